"""vitreous predict"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vitreous.cli.show import MODEL, say, say_json, say_line
from vitreous.errors import ConfigError
from vitreous.printable import printable_line

if TYPE_CHECKING:
    from collections.abc import Iterator

    from vitreous.evaluation.predict import Prediction

EXAMPLE = "vitreous predict last holiday/*.jpg --format csv"
FORMATS = ("table", "csv", "json")
NAME_COLUMNS = 40  # columns of a name in the table


def run(
    model: Annotated[str, MODEL],
    images: Annotated[list[str], typer.Argument(metavar="IMAGE...|DIR", help="Images, or folders of them.")],
    top: Annotated[int, typer.Option(metavar="N", help="How many of the likeliest classes to list.")] = 5,
    format: Annotated[str, typer.Option(metavar="table|csv|json", help="How to print them.")] = "table",
    batch: Annotated[int | None, typer.Option(metavar="N", help="Images at a time.")] = None,
    device: Annotated[str | None, typer.Option(metavar="cpu|cuda", help="Where to compute; a GPU if any.")] = None,
    workers: Annotated[int | None, typer.Option(metavar="N", help="Readers; by default one for each core.")] = None,
    explain: Annotated[
        str | None, typer.Option(metavar="DIR", help="Write where each answer came from, as a picture, into DIR.")
    ] = None,
    untrained: Annotated[bool, typer.Option("--untrained", metavar="", help="Even with random weights.")] = False,
    json: Annotated[bool, typer.Option("--json", metavar="", help="Print one JSON object a line.")] = False,
) -> None:
    """Answer what is in each image, with calibrated confidence, or "none of these".

    Rows come as they are ready, for any number of images. One that cannot be read has the reason in its row.
    """
    import vitreous
    from vitreous.weights.load_model import load_trained

    if format not in FORMATS:
        raise ConfigError(f"there is no format {format!r}; say {', '.join(FORMATS)}")
    loaded = load_trained(model, untrained=untrained)
    for note in loaded.source.get("assumed", ()):
        if str(note).startswith("preprocessing"):  # a wrong one costs accuracy in silence
            say(f"no config lies beside {model}, so this is assumed: {note}", file=sys.stderr)
    named = images[0] if len(images) == 1 else images
    answers: Iterator[Prediction] = vitreous.predict(
        loaded, named, top=top, device=device, batch=batch, workers=workers
    )
    if explain is not None:
        from vitreous.server.overlays import explained

        answers = explained(loaded, named, answers, explain)
    write = {"table": _table_row, "csv": _csv_row, "json": _json_row}["json" if json else format]
    count = broken = unsure = 0
    for answer in answers:
        if not count and write is _csv_row:
            pairs = (f"{what}{k + 1}" for k in range(top) for what in ("label", "p"))
            _print_csv(["name", "said", *pairs, "score", "unsure", "error"])
        write(answer, top)
        count, broken, unsure = count + 1, broken + (answer.error is not None), unsure + answer.is_unsure
    if unsure and write is _table_row and loaded.track_record is not None:
        say(loaded.track_record.about_unsure, file=sys.stderr)
    if broken:
        say(f"{broken:,} of {count:,} images could not be read", file=sys.stderr)
    if broken == count:
        raise typer.Exit(1)


def _table_row(answer: Prediction, top: int) -> None:
    name = printable_line(answer.name)
    name = name if len(name) <= NAME_COLUMNS else "…" + name[1 - NAME_COLUMNS :]
    if answer.error is not None:
        say_line(f"{name:<{NAME_COLUMNS}}  {answer.error}")
        return
    rows = [f"{label} {100 * p:.1f} %" for label, p in zip(answer.labels, answer.probabilities, strict=True)]
    text = f"{'unsure: ' * answer.is_unsure}{', '.join(rows)}" if answer.said else f"none of these (nearest: {rows[0]})"
    say_line(f"{name:<{NAME_COLUMNS}}  {text}")


def _csv_row(answer: Prediction, top: int) -> None:
    said = ";".join(answer.said) if answer.said or answer.error is not None else "none of these"
    pairs = [cell for label, p in zip(answer.labels, answer.probabilities, strict=True) for cell in (label, f"{p:.6f}")]
    score = "" if answer.score is None else f"{answer.score:.6f}"
    _print_csv([answer.name, said, *pairs, *[""] * (2 * top - len(pairs)), score, _yes(answer), answer.error or ""])


def _yes(answer: Prediction) -> str:
    return "" if answer.error is not None else "yes" if answer.is_unsure else "no"


def _print_csv(row: list[Any]) -> None:
    import csv
    import io

    line = io.StringIO(newline="")
    csv.writer(line, lineterminator="").writerow(row)
    say(line.getvalue())


def _json_row(answer: Prediction, top: int) -> None:
    say_json("predict", answer.to_json())
