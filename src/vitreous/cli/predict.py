"""vitreous predict"""

from __future__ import annotations

import os
import sys
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vitreous.cli.order import check_order
from vitreous.cli.show import MODEL, columns_of, say, say_fitted, say_json
from vitreous.errors import ConfigError
from vitreous.printable import printable_line
from vitreous.words import NONE_OF_THESE, cells, none_of_these, percent, shortened

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from vitreous.evaluation.predict import Prediction

EXAMPLE = "vitreous predict last holiday/*.jpg --format csv"
FORMATS = ("table", "csv", "json")
NAME_COLUMNS = 40  # of a name in the table, at most
MIN_LABEL_LETTERS = 8


def run(
    model: Annotated[str, MODEL],
    images: Annotated[
        list[str] | None, typer.Argument(metavar="IMAGE...|DIR", help="Images, or folders of them.")
    ] = None,
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
    """Answer what is in each image, with its confidence, or "none of these".

    Confidence is calibrated if `fit` made the model.
    Rows come as they are ready, for any number of images. One that cannot be read has the reason in its row.
    """
    import vitreous
    from vitreous.weights.load_model import load_trained

    if format not in FORMATS:
        raise ConfigError(f"there is no format {format!r}; say {', '.join(FORMATS)}")
    check_order("predict", model, images or [])
    if not images:
        raise ConfigError(f"name images too: vitreous predict {model} PHOTO.jpg, a folder, or a pattern")
    loaded = load_trained(model, untrained=untrained)
    if model == "last" and loaded.read_from is not None:
        say(f"last is {os.path.relpath(loaded.read_from.parent)}", file=sys.stderr)
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
    record = loaded.track_record
    is_never_sure = record is not None and record.sure_from == 1  # one line says it for all
    table_row: Callable[[Prediction, int], None] = partial(_table_row, marks=not is_never_sure)
    write = {"table": table_row, "csv": _csv_row, "json": _json_row}["json" if json else format]
    count = broken = unsure = 0
    for answer in answers:
        if not count and write is _csv_row:
            pairs = (f"{what}{k + 1}" for k in range(top) for what in ("label", "p"))
            _print_csv(["name", "said", *pairs, "score", "unsure", "error"])
        write(answer, top)
        count, broken, unsure = count + 1, broken + (answer.error is not None), unsure + answer.is_unsure
    if unsure and write is table_row and record is not None:
        say_fitted("all " * is_never_sure + record.about_unsure, file=sys.stderr)
    if broken:
        say(f"{broken:,} of {count:,} images could not be read", file=sys.stderr)
    if broken == count:
        raise typer.Exit(1)


def _table_row(answer: Prediction, top: int, *, marks: bool) -> None:
    """One line, no wider than the terminal, with the likeliest classes that fit.  marks: call unsure answers so."""
    columns = columns_of(sys.stdout) or sys.maxsize
    width = min(NAME_COLUMNS, 2 * columns // 5)
    name = _ending(printable_line(answer.name), width)
    text = _in_words(answer, columns - width - 2, marks=marks) if answer.error is None else _without_name(answer)
    say_fitted(printable_line(f"{name}  {text}"))


def _ending(name: str, columns: int) -> str:
    """The name, or its end, in this many columns: the file's own name stands last."""
    from rich.cells import cell_len, set_cell_size

    if cell_len(name) > columns:
        name = name[-columns:]
        while cell_len(name) > columns - 1:
            name = name[1:]
        name = f"…{name}"
    return set_cell_size(name, columns)


def _without_name(answer: Prediction) -> str:
    """What is wrong, after the name that begins the row."""
    return (answer.error or "").removeprefix(f"{answer.name} ")


def _in_words(answer: Prediction, columns: int, *, marks: bool) -> str:
    """The answer with the confidence of each class, as many as fit; for "none of these" the nearest alone."""
    labels = [printable_line(label) for label in answer.labels]
    if not answer.said:
        return none_of_these(shortened(labels[0], max(columns - len(none_of_these("")), MIN_LABEL_LETTERS)))
    shares = [percent(p) for p in answer.probabilities]
    start, more = "unsure: " * (answer.is_unsure and marks), ", …" if labels[1:] else ""
    room = columns - cells(f"{start} {shares[0]}{more}")
    line = f"{start}{shortened(labels[0], max(room, MIN_LABEL_LETTERS))} {shares[0]}"
    for k in range(1, len(labels)):
        longer = f"{line}, {labels[k]} {shares[k]}"
        if cells(longer) + (len(more) if labels[k + 1 :] else 0) > columns:
            return line + more
        line = longer
    return line


def _csv_row(answer: Prediction, top: int) -> None:
    said = ";".join(answer.said) if answer.said or answer.error is not None else NONE_OF_THESE
    shares = ["" if answer.is_unlike else f"{p:.6f}" for p in answer.probabilities]
    pairs = [cell for pair in zip(answer.labels, shares, strict=True) for cell in pair]
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
