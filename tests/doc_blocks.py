"""Parts of the docs that are made, not written: each stands between two markers and is compared with a fresh one.

To write them anew: VITREOUS_WRITE_DOCS=1 pytest -n0 tests/test_docs.py tests/models/bias/test_page.py
"""

import dataclasses
import os
import re
import shlex
import typing
from pathlib import Path

from shared_files import ROOT

DOCS = ROOT / "docs"
LINKED = {"crop": "how", "rand_augment_table": "both"}  # fields of Augment that docs/reference/augment.md explains


def split_at(text: str, section: str) -> tuple[str, str, str]:
    """What stands before, in and after a made section."""
    begin, end = f"<!-- measured: {section} -->\n", f"<!-- end: {section} -->"
    before, rest = text.split(begin)
    inside, after = rest.split(end)
    return before + begin, inside, end + after


def assert_block(page: Path, section: str, fresh: str) -> None:
    before, inside, after = split_at(page.read_text("utf-8"), section)
    if os.environ.get("VITREOUS_WRITE_DOCS"):
        page.write_text(before + fresh + after, "utf-8")
        inside = fresh
    assert inside == fresh, f"{page.name} is out of date; tests/doc_blocks.py says how to write it anew"


def terminal_svg() -> str:
    """What `vitreous models` prints, as a picture that fetches nothing."""
    import io
    import re

    from rich.console import Console
    from rich.terminal_theme import DIMMED_MONOKAI

    from vitreous.cli.models import models_table
    from vitreous.models import catalog

    console = Console(width=80, record=True, file=io.StringIO(), highlight=False)
    console.print("$ vitreous models", style="bold")
    console.print(models_table([catalog.describe(name) for name in catalog.names()]))
    svg = console.export_svg(title="", theme=DIMMED_MONOKAI, unique_id="models")
    svg = re.sub(r"@font-face \{.*?\}\s*|<!--.*?-->\s*", "", svg, flags=re.DOTALL)  # they point to a network
    return svg.replace("Fira Code", "DejaVu Sans Mono, Menlo, Consolas")


def code_blocks(page: Path, language: str) -> list[str]:
    """The fenced blocks of a page in one language; `sh` is commands alone, `console` commands with what they print."""
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text("utf-8"), re.MULTILINE | re.DOTALL)


def shell_lines(page: Path) -> list[str]:
    """What a reader would type."""
    lines = [line for block in code_blocks(page, "sh") for line in block.splitlines() if line.strip()]
    typed = [line for block in code_blocks(page, "console") for line in block.splitlines() if line[:2] == "$ "]
    return lines + [line[2:] for line in typed]


def commands_in(page: Path) -> list[list[str]]:
    """The words of every vitreous command in the page's blocks, its name first."""
    words = [shlex.split(line, comments=True) for line in shell_lines(page)]
    return [line[line.index("vitreous") + 1 :] for line in words if "vitreous" in line]


def recipe_fields() -> list[tuple[str, ...]]:
    """Name, default, values and meaning of all that `--set` takes, but for augmentation."""
    from vitreous.training.recipe import Recipe

    return _rows(Recipe, {f.name: f.metadata["meaning"] for f in dataclasses.fields(Recipe) if f.name != "augment"})


def augment_fields() -> list[tuple[str, ...]]:
    """The same for augmentation."""
    from vitreous.images.pixels.augment import Augment

    said = {f.name: f.metadata["meaning"] for f in dataclasses.fields(Augment) if f.name != "size"}
    links = {name: f"{said[name]} ([{word}](augment.md))" for name, word in LINKED.items()}
    return _rows(Augment, said | links)


def _rows(kind: type, meanings: dict[str, str]) -> list[tuple[str, ...]]:
    hints, defaults = typing.get_type_hints(kind), {f.name: f.default for f in dataclasses.fields(kind)}
    return [(f"`{name}`", _word(defaults[name]), _values(hints[name]), said) for name, said in meanings.items()]


def _word(value: object) -> str:
    match value:
        case None | bool():
            return str(value).lower()
        case float():
            return f"{value:g}"
        case tuple():
            return ", ".join(map(_word, value)) or "–"
    return str(value) or "–"


def _values(hint: typing.Any) -> str:
    """What a field takes, as `--set` reads it."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Literal:
        return " ".join(map(str, inner))
    if origin is tuple:
        return "numbers" if ... in inner else f"{len(inner)} numbers"
    words = {int: "whole number", float: "number", str: "word", bool: "true false", type(None): "none"}
    if hint in words:
        return words[hint]
    return " or ".join(dict.fromkeys(_values(part) if inner else "length" for part in inner or (hint,)))
