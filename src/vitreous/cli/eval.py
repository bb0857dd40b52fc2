"""vitreous eval"""

from __future__ import annotations

import sys
from itertools import count
from pathlib import Path
from typing import Annotated, Any, cast

import typer

from vitreous.cli.order import check_order
from vitreous.cli.show import DATA, MODEL, Json, progress, say_line, show
from vitreous.errors import ConfigError, Interrupted

EXAMPLE = "vitreous eval last photos --csv answers.csv"


def run(
    model: Annotated[str | None, MODEL] = None,
    data: Annotated[str | None, DATA] = None,
    split: Annotated[
        str | None,
        typer.Option(metavar="test|train|all", help="The images to judge by: test, or all new ones if there is none."),
    ] = None,
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
    curve: Annotated[
        bool, typer.Option("--curve", metavar="", help="Would more labels help? A law through growing parts of train.")
    ] = False,
    target: Annotated[
        float | None, typer.Option(metavar="0.95", help="The labels that this accuracy needs, by --curve.")
    ] = None,
    suite: Annotated[
        str | None, typer.Option(metavar="FILE", help="Several models, sets and tasks, named in a TOML file.")
    ] = None,
    out: Annotated[
        str | None,
        typer.Option(
            metavar="FILE", help="The page of --shots (evals/DATA-N.html), with its JSON; the folder of --suite."
        ),
    ] = None,
    batch: Annotated[int | None, typer.Option(metavar="N", help="Images at a time.")] = None,
    device: Annotated[str | None, typer.Option(metavar="cpu|cuda", help="Where to compute; a GPU if any.")] = None,
    workers: Annotated[int | None, typer.Option(metavar="N", help="Readers; by default one for each core.")] = None,
    force: Annotated[bool, typer.Option("--force", metavar="", help="Overwrite FILE of --csv or --out.")] = False,
    json: Json = False,
) -> None:
    """Say how often a model is right: exact counts, per class, with interval and confidence."""
    import vitreous

    if suite is not None:
        if model is not None or any((shots, curve, target, csv, labels, split, batch, seeds != 3, force)):
            raise ConfigError(
                "a suite names its models, images and tasks itself; give --suite FILE, --out and --device"
            )
        _run_suite(suite, out=out, device=device, workers=workers, json=json)
        return
    if model is None or data is None:
        raise ConfigError("name a model and images: vitreous eval MODEL DATA; or several: vitreous eval --suite FILE")
    check_order("eval", model, [data])
    asks_curve = curve or target is not None
    wanted = _numbers(shots) if shots is not None else (1, 5, 10, 25) if asks_curve else None
    out = _page(data) if wanted is not None and out is None else out
    loaded, judge = vitreous.load(model), cast(Any, vitreous.evaluate)  # one call for both of its forms
    with progress("judging" if wanted is None else "reading features") as tell:
        result = judge(
            loaded, data, shots=wanted, seeds=seeds, curve=curve, target=target, split=split, labels=labels, csv=csv,
            out=out, device=device, batch=batch, workers=workers, force=force, progress=tell,
        )  # fmt: skip
    show("eval", {"model": model, **result.to_json()} if json else result, json=json)
    if out and not json:
        say_line(f"page: {out}")


def _page(data: str) -> str:
    """A free path, named after the images."""
    name = Path(data.rstrip("/")).name.partition("*")[0].rstrip("-.") or "images"
    return next(str(file) for n in count(1) if not (file := Path("evals") / f"{name}-{n}.html").exists())


def _run_suite(file: str, *, out: str | None, device: str | None, workers: int | None, json: bool) -> None:
    """The table on stdout, a line for each new row on stderr; exit 1 if a row failed."""
    import vitreous

    def tell(done: int, of: int, row: Any) -> None:
        task, right, *_ = row.cells()
        say_line(f"{done}/{of}  {row.data}  {row.model}  {task}  {right}", file=sys.stderr)

    try:
        found = vitreous.evaluation.suite(file, out=out, fit=vitreous.fit, device=device, workers=workers, tell=tell)
    except Interrupted as end:
        say_line("vitreous: stopped, and all that is measured is kept; the same command goes on", file=sys.stderr)
        raise typer.Exit(128 + end.number) from None
    show("eval", found, json=json)
    if not json:
        say_line(f"page: {found.folder}/suite.html")
    if found.failures:
        raise typer.Exit(1)


def _numbers(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(",") if part.strip())
    except ValueError:
        raise ConfigError(f"--shots {text} are not whole numbers; say such as --shots 1,5,10,25") from None
