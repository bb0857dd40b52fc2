"""vitreous look"""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from vitreous.cli.show import MODEL, Json, progress, say_line, show
from vitreous.errors import ConfigError

EXAMPLE = "vitreous look last photos --out inside"


def run(
    model: Annotated[str | None, MODEL] = None,
    data: Annotated[
        str | None, typer.Argument(metavar="DATA", help="Any set of images; by default those of the package.")
    ] = None,
    against: Annotated[str | None, typer.Option(metavar="MODEL", help="A second model to compare with.")] = None,
    only: Annotated[str | None, typer.Option(metavar="NAMES", help="Measures of --list, joined by commas.")] = None,
    images: Annotated[int, typer.Option(metavar="N", help="How many images the model sees.")] = 512,
    out: Annotated[
        str | None, typer.Option(metavar="DIR", help="Write all numbers there; the same command goes on where it was.")
    ] = None,
    figures: Annotated[
        str | None, typer.Option(metavar="P1|P2", help="Figures of that paper as PDF and LaTeX too.")
    ] = None,
    layers: Annotated[str, typer.Option(metavar="every|blocks", help="The layers whose likeness counts.")] = "every",
    exact: Annotated[
        bool, typer.Option("--exact", metavar="", help="Receptive fields by all channels and 32 images.")
    ] = False,
    list: Annotated[bool, typer.Option("--list", metavar="", help="Show the measures, figures and costs.")] = False,
    seed: Annotated[int, typer.Option(metavar="N", help="Draws the images.")] = 0,
    batch: Annotated[int | None, typer.Option(metavar="N", help="Images at a time.")] = None,
    device: Annotated[str | None, typer.Option(metavar="cpu|cuda", help="Where to compute; a GPU if any.")] = None,
    workers: Annotated[int | None, typer.Option(metavar="N", help="Readers; by default one for each core.")] = None,
    force: Annotated[bool, typer.Option("--force", metavar="", help="Overwrite another look in DIR.")] = False,
    json: Json = False,
) -> None:
    """See through a model while it sees images: attention, likeness of layers, receptive fields and more."""
    import vitreous
    from vitreous.measures.listing import listing

    if list:
        show("look", listing(), json=json)
        return
    if model is None:
        raise ConfigError("name a model: vitreous look MODEL [DATA]; the measures are shown by: vitreous look --list")
    names = None if only is None else [name.strip() for name in only.split(",") if name.strip()]
    with progress("looking") as bar:
        found = vitreous.look(
            model, data, against=against, only=names, images=images, out=out, figures=figures, layers=layers,
            exact=exact, seed=seed, batch=batch, device=device, workers=workers, force=force,
            progress=bar, tell=lambda line: say_line(line, file=sys.stderr),
        )  # fmt: skip
    show("look", found, json=json)
    if out and not json:
        say_line(f"page: {out}/look.html   numbers: {out}/inspection.json   figures: {out}/figures")
