"""vitreous demo"""

from __future__ import annotations

from typing import Annotated

import typer

from vitreous.cli.models import models_table, print_table
from vitreous.cli.show import Json, show

EXAMPLE = "vitreous demo --out attention.svg"


def run(
    out: Annotated[str | None, typer.Option(metavar="FILE", help="Where the attention map goes.")] = None,
    force: Annotated[bool, typer.Option("--force", metavar="", help="Overwrite FILE.")] = False,
    json: Json = False,
) -> None:
    """Build models, load a checkpoint, look into it, and convert it: a minute's tour."""
    import vitreous

    result = vitreous.demo(out, force=force)
    if not json:
        print_table(models_table(result.models))
    show("demo", result, json=json)
