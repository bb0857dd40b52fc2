"""All that commands print: `say` for people, `show` for a result, and a bar of progress.

A terminal obeys some characters in a stranger's names and labels; they are written out, never sent.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from textwrap import wrap
from typing import Annotated, Any, Protocol, TextIO

import typer

from vitreous import ranks
from vitreous.printable import printable, printable_line
from vitreous.words import cells, unbroken

MODEL = typer.Argument(metavar="MODEL", help="A file or folder of weights, a run, last, deit-tiny, hf:OWNER/NAME.")
DATA = typer.Argument(metavar="DATA", help="A folder, zip, shards, a table: any set of images.")
Json = Annotated[bool, typer.Option("--json", metavar="", help="Print one JSON object.")]


TITLE = re.compile(r"\s*(-> |\S+( \S+)* {2,})?")  # what a line begins with, before its text


class Showable(Protocol):
    """A value with a readable `str` and a JSON form, as our public functions return it.

    One with a table may have `text(columns)` too, which makes the table as narrow as it can.
    """

    def to_json(self) -> dict[str, Any]: ...


def show(command: str, result: Showable | dict[str, Any], *, json: bool) -> None:
    """Print `result`, its `alarm` in red, no line wider than the terminal; as JSON its first key is the schema."""
    if json:
        say_json(command, result if isinstance(result, dict) else result.to_json(), indent=2)
    elif ranks.here().is_first:
        columns = columns_of(sys.stdout)
        text = result.text(columns) if columns and hasattr(result, "text") else str(result)
        lines, alarm = printable(text), printable(getattr(result, "alarm", None) or "")
        if columns:
            lines, alarm = fitted(lines, columns), fitted(alarm, columns)
        print(_red(lines, alarm), flush=True)


def columns_of(stream: TextIO) -> int | None:
    """How wide the terminal is; None for a file or a pipe, whose lines stay whole."""
    return shutil.get_terminal_size().columns if stream.isatty() else None


def fitted(lines: str, columns: int) -> str:
    """The lines, broken between words where too wide; the rest of a line stands under its text, not its title."""
    return "\n".join(part for line in lines.split("\n") for part in _broken(line, columns))


def _broken(line: str, columns: int) -> list[str]:
    if cells(line) <= columns:
        return [line]
    title, space = TITLE.match(line), len(line) - len(line.lstrip())
    indent = title.end() if title and 2 * title.end() <= columns else space + 2
    text = unbroken(line[:indent].replace(" ", "\u00a0") + line[indent:])
    text = "".join(letter + "\0" * (cells(letter) - 1) for letter in text)  # textwrap counts letters, not columns
    under = " " * indent
    parts = wrap(text, columns, subsequent_indent=under, break_long_words=False, break_on_hyphens=False)
    # no link, nor a number and its sign, was broken
    return [part.replace("\u00a0", " ").replace("\0", "") for part in parts]


def _red(lines: str, alarm: str) -> str:
    """The lines, with an alarm among them in red on a terminal."""
    is_coloured = alarm and sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    return lines.replace(alarm, typer.style(alarm, fg="red", bold=True), 1) if is_coloured else lines


def say(lines: str, *, file: TextIO | None = None) -> None:
    """Print lines for people, at once even into a pipe.  file: by default stdout, where only rank 0 prints."""
    if file is None and not ranks.here().is_first:
        return
    print(printable(lines), file=file or sys.stdout, flush=True)


def say_fitted(lines: str, *, file: TextIO | None = None) -> None:
    """The same, no line wider than the terminal."""
    columns = columns_of(file or sys.stdout)
    say(fitted(lines, columns) if columns else lines, file=file)


def say_line(line: str, *, file: TextIO | None = None) -> None:
    """Print one line, whatever the names in it hold."""
    say(printable_line(line), file=file)


def say_json(command: str, body: dict[str, Any], *, indent: int | None = None) -> None:
    """Print one JSON object, in ASCII; its first key is the schema.  indent: None is one line."""
    say(json.dumps({"schema": f"vitreous.{command}/1", **body}, indent=indent))


@contextmanager
def progress(doing: str) -> Iterator[Callable[[int, int], None]]:
    """Yield a function of (done, in all) that moves a bar on stderr; the bar goes away when the work ends."""
    if not sys.stderr.isatty() or not ranks.here().is_first:
        yield lambda done, total: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn(doing), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bars:
        task = bars.add_task(doing, total=None)
        yield lambda done, total: bars.update(task, completed=done, total=total)
