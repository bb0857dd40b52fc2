"""vitreous look"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Annotated

import typer

from vitreous.cli.order import check_order
from vitreous.cli.show import MODEL, Json, progress, say_line, show
from vitreous.errors import ConfigError

EXAMPLE = "vitreous look last photos"
WEIGHTS_FILE = re.compile(r"\.(safetensors|npz|pth|pt|bin)$")


def run(
    model: Annotated[str | None, MODEL] = None,
    data: Annotated[
        str | None, typer.Argument(metavar="DATA", help="Any set of images; by default those of the package.")
    ] = None,
    against: Annotated[str | None, typer.Option(metavar="MODEL", help="A second model to compare with.")] = None,
    only: Annotated[str | None, typer.Option(metavar="NAMES", help="Measures of --list, joined by commas.")] = None,
    images: Annotated[int, typer.Option(metavar="N", help="How many images the model sees.")] = 512,
    out: Annotated[
        str | None,
        typer.Option(metavar="DIR", help="The look's folder (looks/MODEL-N); a look that was stopped goes on there."),
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
    from vitreous.measures.drawing import short_names
    from vitreous.measures.listing import listing
    from vitreous.training.run.folder import check_writable, next_name

    if list:
        show("look", listing(), json=json)
        return
    if model is None:
        raise ConfigError("name a model: vitreous look MODEL [DATA]; the measures are shown by: vitreous look --list")
    check_order("look", model, [data] if data else [])
    names = None if only is None else [name.strip() for name in only.split(",") if name.strip()]
    if out is None and not json:
        both = short_names([model, *([against] if against else [])])
        out = str(next_name("looks", "-against-".join(WEIGHTS_FILE.sub("", name) for name in both)))
    if out is not None:
        check_writable(Path(out))
    try:
        with progress("looking") as bar:
            found = vitreous.look(
                model, data, against=against, only=names, images=images, out=out, figures=figures, layers=layers,
                exact=exact, seed=seed, batch=batch, device=device, workers=workers, force=force,
                progress=bar, tell=lambda line: say_line(line, file=sys.stderr),
            )  # fmt: skip
    except KeyboardInterrupt:
        if out and Path(out, "measures").is_dir():
            say_line(f"vitreous: stopped; the same command with --out {out} goes on", file=sys.stderr)
        raise
    show("look", found, json=json)
    if out and not json:
        say_line(f"page     {Path(out, 'look.html').resolve().as_uri()}")
        say_line(f"figures  {out}/figures   numbers  {out}/inspection.json")
