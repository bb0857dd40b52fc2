"""vitreous doctor"""

from __future__ import annotations

from vitreous.cli.show import Json, show

EXAMPLE = "vitreous doctor"


def run(json: Json = False) -> None:
    """Say what this machine has, and how to get what it lacks."""
    import vitreous

    show("doctor", vitreous.doctor(), json=json)
