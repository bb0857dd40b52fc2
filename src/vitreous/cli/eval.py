"""vitreous eval"""

from __future__ import annotations

from typing import Annotated, Any

import typer

from vitreous.cli.show import Json, show

EXAMPLE = "vitreous eval last photos --csv answers.csv"


def run(
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="A file or folder of weights, a run, last, hf:OWNER/NAME.")
    ],
    data: Annotated[str, typer.Argument(metavar="DATA", help="A folder, zip, shards, a table: any set of images.")],
    split: Annotated[str, typer.Option(metavar="test|train|all", help="The images to judge by.")] = "test",
    labels: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Other or several labels for each image, as JSON, CSV or TSV."),
    ] = None,
    csv: Annotated[str | None, typer.Option("--csv", metavar="FILE", help="Write a row for each image.")] = None,
    shots: Annotated[
        str | None,
        typer.Option(metavar="1,5,10", help="Judge the frozen features: so many images of each class as labels."),
    ] = None,
    seeds: Annotated[int, typer.Option(metavar="N", help="Draws of the images of --shots.")] = 3,
    out: Annotated[str | None, typer.Option(metavar="FILE", help="Write a page with the plot of --shots.")] = None,
    batch: Annotated[int | None, typer.Option(metavar="N", help="Images at a time.")] = None,
    device: Annotated[str | None, typer.Option(metavar="cpu|cuda", help="Where to compute; a GPU if any.")] = None,
    workers: Annotated[int | None, typer.Option(metavar="N", help="Readers; by default one for each core.")] = None,
    force: Annotated[bool, typer.Option("--force", metavar="", help="Overwrite FILE of --csv or --out.")] = False,
    json: Json = False,
) -> None:
    """Say how often a model is right: exact counts, per class, with interval and confidence."""
    import vitreous
    from vitreous.cli.progress import progress

    wanted = None if shots is None else _numbers(shots)
    options: dict[str, Any] = {
        "shots": wanted,
        "seeds": seeds,
        "split": split,
        "labels": labels,
        "csv": csv,
        "out": out,
    }
    options |= {"device": device, "batch": batch, "workers": workers, "force": force}
    loaded = vitreous.load(model)
    with progress("judging" if wanted is None else "reading features") as tell:
        result = vitreous.evaluate(loaded, data, progress=tell, **options)
    show("eval", {"model": model, **result.to_json()} if json else result, json=json)
    if out and not json:
        print(f"page: {out}")


def _numbers(text: str) -> tuple[int, ...]:
    from vitreous.errors import ConfigError

    try:
        return tuple(int(part) for part in text.split(",") if part.strip())
    except ValueError:
        raise ConfigError(f"--shots {text} are no whole numbers; say such as --shots 1,5,10,25") from None
