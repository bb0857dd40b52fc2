"""vitreous eval"""

from __future__ import annotations

from typing import Annotated

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
    batch: Annotated[int | None, typer.Option(metavar="N", help="Images at a time.")] = None,
    device: Annotated[str | None, typer.Option(metavar="cpu|cuda", help="Where to compute; a GPU if any.")] = None,
    workers: Annotated[int | None, typer.Option(metavar="N", help="Readers; by default one for each core.")] = None,
    force: Annotated[bool, typer.Option("--force", metavar="", help="Overwrite FILE of --csv.")] = False,
    json: Json = False,
) -> None:
    """Say how often a model is right: exact counts, per class, with interval and confidence."""
    import vitreous
    from vitreous.cli.progress import progress

    loaded = vitreous.load(model)
    with progress("judging") as tell:
        result = vitreous.evaluate(
            loaded,
            data,
            split=split,  # type: ignore[arg-type]  # checked there
            labels=labels,
            device=device,
            batch=batch,
            workers=workers,
            csv=csv,
            force=force,
            progress=tell,
        )
    show("eval", {"model": model, **result.to_json()} if json else result, json=json)
