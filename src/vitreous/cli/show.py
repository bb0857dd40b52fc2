"""All that commands print: `say` for people, `show` for a result, and a bar of progress.

A terminal obeys some characters in a stranger's names and labels; they are written out, never sent.
"""

from __future__ import annotations

import json as text
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, Any, Protocol, TextIO

import typer

from vitreous import ranks
from vitreous.printable import printable, printable_line

MODEL = typer.Argument(metavar="MODEL", help="A file or folder of weights, a run, last, deit-tiny, hf:OWNER/NAME.")
DATA = typer.Argument(metavar="DATA", help="A folder, zip, shards, a table: any set of images.")
Json = Annotated[bool, typer.Option("--json", metavar="", help="Print one JSON object.")]


class Showable(Protocol):
    """A value with a readable `str` and a JSON form, as our public functions return it."""

    def to_json(self) -> dict[str, Any]: ...


def show(command: str, result: Showable | dict[str, Any], *, json: bool) -> None:
    """Print `result`, its `alarm` in red; as JSON its first key is the schema."""
    if json:
        say_json(command, result if isinstance(result, dict) else result.to_json(), indent=2)
    elif ranks.here().is_first:
        print(_red(printable(str(result)), printable(getattr(result, "alarm", None) or "")), flush=True)


def _red(lines: str, alarm: str) -> str:
    """The lines, with an alarm among them in red on a terminal."""
    is_coloured = alarm and sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    return lines.replace(alarm, typer.style(alarm, fg="red", bold=True), 1) if is_coloured else lines


def say(lines: str, *, file: TextIO | None = None) -> None:
    """Print lines for people, at once also into a pipe.  file: stdout if not given, where rank 0 alone prints."""
    if file is None and not ranks.here().is_first:
        return
    print(printable(lines), file=file or sys.stdout, flush=True)


def say_line(line: str, *, file: TextIO | None = None) -> None:
    """Print one line, whatever the names in it hold."""
    say(printable_line(line), file=file)


def say_json(command: str, body: dict[str, Any], *, indent: int | None = None) -> None:
    """Print one JSON object, in ASCII; its first key is the schema.  indent: None is one line."""
    say(text.dumps({"schema": f"vitreous.{command}/1", **body}, indent=indent))


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
