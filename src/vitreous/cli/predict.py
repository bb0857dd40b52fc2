"""vitreous predict"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from vitreous.evaluation.predict import Answer

EXAMPLE = "vitreous predict last holiday/*.jpg --format csv"
FORMATS = ("table", "csv", "json")
WIDTH = 40  # columns of a name in the table


def run(
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="A file or folder of weights, a run, last, hf:OWNER/NAME.")
    ],
    images: Annotated[list[str], typer.Argument(metavar="IMAGE...|DIR", help="Images, or folders of them.")],
    top: Annotated[int, typer.Option(metavar="N", help="How many of the likeliest classes to list.")] = 5,
    format: Annotated[str, typer.Option(metavar="table|csv|json", help="How to print them.")] = "table",
    batch: Annotated[int | None, typer.Option(metavar="N", help="Images at a time.")] = None,
    device: Annotated[str | None, typer.Option(metavar="cpu|cuda", help="Where to compute; a GPU if any.")] = None,
    workers: Annotated[int | None, typer.Option(metavar="N", help="Readers; by default one for each core.")] = None,
    explain: Annotated[
        str | None, typer.Option(metavar="DIR", help="Write where each answer came from, as a picture, into DIR.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", metavar="", help="Print one JSON object a line.")] = False,
) -> None:
    """Answer what is in each image, with calibrated confidence, or "none of these".

    Rows come as they are ready, for any number of images. One that cannot be read has the reason in its row.
    """
    import vitreous
    from vitreous.errors import ConfigError

    if format not in FORMATS:
        raise ConfigError(f"there is no format {format!r}; say {', '.join(FORMATS)}")
    loaded = vitreous.load(model)
    named = images[0] if len(images) == 1 else images
    answers = vitreous.predict(loaded, named, top=top, device=device, batch=batch, workers=workers)
    if explain is not None:
        from vitreous.server.overlays import explained

        answers = explained(loaded, named, answers, explain)
    write = {"table": _table_row, "csv": _csv_row, "json": _json_row}["json" if json else format]
    count = broken = 0
    for answer in answers:
        if not count and write is _csv_row:
            _print_csv(
                ["name", "said", *(f"{what}{k + 1}" for k in range(top) for what in ("label", "p")), "score", "error"]
            )
        write(answer, top)
        count, broken = count + 1, broken + (answer.error is not None)
    if broken:
        print(f"{broken:,} of {count:,} images could not be read", file=sys.stderr)
    if broken == count:
        raise typer.Exit(1)


def _table_row(answer: Answer, top: int) -> None:
    name = answer.name if len(answer.name) <= WIDTH else "…" + answer.name[1 - WIDTH :]
    if answer.error is not None:
        print(f"{name:<{WIDTH}}  {answer.error}", flush=True)
        return
    rows = [f"{label} {100 * p:.1f} %" for label, p in zip(answer.labels, answer.probabilities, strict=True)]
    text = ", ".join(rows) if answer.said else f"none of these (nearest: {rows[0]})"
    print(f"{name:<{WIDTH}}  {text}", flush=True)  # also into a pipe: rows come as they are ready


def _csv_row(answer: Answer, top: int) -> None:
    said = ";".join(answer.said) if answer.said or answer.error is not None else "none of these"
    pairs = [cell for label, p in zip(answer.labels, answer.probabilities, strict=True) for cell in (label, f"{p:.6f}")]
    score = "" if answer.score is None else f"{answer.score:.6f}"
    _print_csv([answer.name, said, *pairs, *[""] * (2 * top - len(pairs)), score, answer.error or ""])


def _print_csv(row: list[Any]) -> None:
    import csv

    csv.writer(sys.stdout, lineterminator="\n").writerow(row)
    sys.stdout.flush()


def _json_row(answer: Answer, top: int) -> None:
    import json

    print(json.dumps({"schema": "vitreous.predict/1", **answer.to_json()}, ensure_ascii=False), flush=True)
