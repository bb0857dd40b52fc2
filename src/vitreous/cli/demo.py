"""vitreous demo"""

from __future__ import annotations

from typing import Annotated

import typer

from vitreous.cli.show import Json, show

EXAMPLE = "vitreous demo"


def run(
    out: Annotated[str | None, typer.Option(metavar="DIR", help="The run's folder (runs/demo, made anew).")] = None,
    seconds: Annotated[
        float | None, typer.Option(metavar="S", help="Train for S seconds by the clock, not 1,200 steps.")
    ] = None,
    seed: Annotated[
        int | None, typer.Option(metavar="N", help="Of the first weights, the order and the flips (0).")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", metavar="", help="Go on with a demo that was stopped, from its last state.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", metavar="", help="Overwrite an older run in DIR.")] = False,
    json: Json = False,
) -> None:
    """Train on the embedded images, about a minute, with a report: the main job, without any data of yours."""
    import vitreous
    from vitreous.cli.training_display import display

    with display() as tell:
        result = vitreous.demo(out, seconds=seconds, seed=seed, resume=resume, force=force, tell=tell)
    show("demo", result, json=json)
