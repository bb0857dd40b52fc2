"""Prints a result: for people, or as one JSON object."""

from __future__ import annotations

import json as text
from typing import Annotated, Any, Protocol

import typer

__all__ = ["Json", "Result", "show"]

Json = Annotated[bool, typer.Option("--json", metavar="", help="Print one JSON object.")]


class Result(Protocol):
    """What every public function of ours returns: a value with a readable `str` and a JSON form."""

    def to_json(self) -> dict[str, Any]: ...


def show(command: str, result: Result | dict[str, Any], *, json: bool) -> None:
    """Print `result`; as JSON its first key is the schema."""
    if json:
        body = result if isinstance(result, dict) else result.to_json()
        print(text.dumps({"schema": f"vitreous.{command}/1", **body}, indent=2))
    else:
        print(result)
