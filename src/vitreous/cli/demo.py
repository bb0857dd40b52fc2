"""vitreous demo"""

from __future__ import annotations

from vitreous.cli.show import Json
from vitreous.errors import VitreousError

EXAMPLE = "vitreous demo"


def run(json: Json = False) -> None:
    """Build models, load a checkpoint and draw an attention map."""
    raise VitreousError("the demo is not written yet; see: vitreous models")
