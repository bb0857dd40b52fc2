"""All that commands print goes through here: `say` for people, `show` for a result, either as one JSON object.

What a terminal would obey in a stranger's names and labels is written out, never sent."""

from __future__ import annotations

import json as text
import sys
from typing import Annotated, Any, Protocol, TextIO

import typer

from vitreous.printable import printable, printable_line

__all__ = ["Json", "Showable", "say", "say_json", "say_line", "show"]

Json = Annotated[bool, typer.Option("--json", metavar="", help="Print one JSON object.")]


class Showable(Protocol):
    """What every public function of ours returns: a value with a readable `str` and a JSON form."""

    def to_json(self) -> dict[str, Any]: ...


def show(command: str, result: Showable | dict[str, Any], *, json: bool) -> None:
    """Print `result`; as JSON its first key is the schema."""
    if json:
        body = result if isinstance(result, dict) else result.to_json()
        say_json(command, body, indent=2)
    else:
        say(str(result))


def say(lines: str, *, file: TextIO | None = None) -> None:
    """Print lines for people, at once also into a pipe.  file: stdout if not given."""
    print(printable(lines), file=file or sys.stdout, flush=True)


def say_line(line: str, *, file: TextIO | None = None) -> None:
    """Print one line, whatever the names in it hold."""
    say(printable_line(line), file=file)


def say_json(command: str, body: dict[str, Any], *, indent: int | None = None) -> None:
    """Print one JSON object, in ASCII; its first key is the schema.  indent: None is one line."""
    say(text.dumps({"schema": f"vitreous.{command}/1", **body}, indent=indent))
