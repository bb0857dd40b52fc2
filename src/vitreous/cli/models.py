"""vitreous models"""

from __future__ import annotations

import re
from dataclasses import asdict
from itertools import groupby
from pathlib import Path
from shutil import get_terminal_size
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vitreous.cli.show import Json, say_fitted, say_line, show
from vitreous.errors import ConfigError

if TYPE_CHECKING:
    from rich.table import Column, Table

    from vitreous.models.architecture import ModelPart
    from vitreous.models.catalog import Row
    from vitreous.weights.pretrained import Pretrained

EXAMPLE = "vitreous models B/16 R50+B/16 BiT-R50x1"
COLUMN_GAP = 3  # between two columns of a table, and at its edges together
FOLDED_COLUMNS = 12  # a column of words needs at least


def run(
    names: Annotated[list[str] | None, typer.Argument(metavar="[NAME]...", help="Only these; all if none.")] = None,
    options: Annotated[
        bool, typer.Option("--options", metavar="", help="List the options that change a model.")
    ] = False,
    weights: Annotated[
        bool, typer.Option("--weights", metavar="", help="List trained weights that have a short name.")
    ] = False,
    draw: Annotated[
        bool, typer.Option("--draw", metavar="[FILE]", help="Draw one model whole, as .svg, .png or .pdf.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", metavar="", help="Overwrite the drawing.")] = False,
    json: Json = False,
) -> None:
    """List the models with their exact parameters and multiply-adds."""
    from vitreous.models import catalog
    from vitreous.weights import pretrained, starter

    if draw:
        draw_model(names or [], force=force, json=json)
        return
    if weights or (names and set(names) <= pretrained.PRETRAINED.keys()):
        known = [pretrained.get(name) for name in names or pretrained.PRETRAINED]
        here = [pretrained.is_here(row) for row in known]
        if json:
            pairs = zip(known, here, strict=True)
            show("models", {"weights": [asdict(row) | {"is_here": one} for row, one in pairs]}, json=True)
            return
        print_table(weights_table(known))
        names_here = [row.name for row, is_here in zip(known, here, strict=True) if is_here]
        say_fitted(f"On this machine: {', '.join(names_here) or 'none of them yet'}.")
        say_fitted(f"One is fetched when you name it: vitreous fit PHOTOS --weights {known[0].name}")
        return
    if options:
        found = catalog.options()
        if json:
            keys = ("default", "values", "meaning")
            table = {name: dict(zip(keys, about, strict=True)) for name, about in found.items()}
            show("models", {"options": table}, json=True)
        else:
            print_table(options_table(found))
        return
    rows = [catalog.describe(name) for name in names or catalog.names()]
    if json:
        show("models", {"models": [asdict(row) for row in rows]}, json=True)
        return
    print_table(models_table(rows))
    if not names and starter.is_there():
        say_fitted("These begin with nothing learned; `starter`, inside the package, is trained.")
        say_fitted("Others that are: vitreous models --weights")


def draw_model(words: list[str], *, force: bool, json: bool) -> None:
    """Write the drawing of one model. words: its name, and the file if one is named."""
    from vitreous.files import claim, write_bytes
    from vitreous.models import architecture, catalog
    from vitreous.report.files import Panel, sheet
    from vitreous.weights.load_model import is_new, load

    ends = (".svg", ".png", ".pdf")
    files, names = ([word for word in words if word.lower().endswith(ends) is is_file] for is_file in (True, False))
    if len(names) != 1 or len(files) > 1:
        raise ConfigError(
            f"--draw draws one model into a file of {', '.join(ends)}: vitreous models B/16 --draw b16.svg"
        )
    (name,) = names
    if is_new(name):
        config, short = catalog.parse(name), name.split()[0]
    else:
        config, short = load(name).config, Path(name).stem
    file = files[0] if files else f"{re.sub(r'[^A-Za-z0-9+_.-]', '-', short)}.svg"
    claim(file, force=force)
    chart = architecture.drawing(config, short)
    whole = sheet([Panel(chart)], heading=name, caption=f"{chart.title}.")
    kinds = {".svg": lambda: whole.to_svg().encode(), ".png": whole.to_png, ".pdf": lambda: whole.to_pdf(title=name)}
    write_bytes(file, kinds[file[-4:].lower()](), force=force)
    found = architecture.parts(config)
    if json:
        show("models", {"drawing": file, "parts": [part.to_json() for part in found]}, json=True)
        return
    print_table(parts_table(found))
    say_line(f"drawing: {file}")


def parts_table(parts: list[ModelPart]) -> Table:
    """One row per part, from image to answer: what leaves it, and what it has learned."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("part", no_wrap=True)
    table.add_column("parameters", justify="right", no_wrap=True)
    table.add_column("what leaves it", no_wrap=True)
    table.add_column("what it is")
    for part in parts:
        name = f"{part.name} × {part.copies}" if part.copies > 1 else part.name
        table.add_row(name, f"{part.parameters:,}", " × ".join(map(str, part.shape)), part.about)
    table.add_section()
    table.add_row("all", f"{sum(part.parameters for part in parts):,}")
    return table


def models_table(rows: list[Row]) -> Table:
    """One row per model, under its family."""
    from rich import box
    from rich.table import Table

    changed = any(" " in row.name for row in rows)
    made_for = "" if changed else "at 224 px and 1000 classes; "
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, caption=f"{made_for}GMACs: 10⁹ multiply-adds")
    table.add_column("model", no_wrap=not changed, overflow="fold", max_width=18 if changed else None)
    for title in ("parameters", "GMACs", "width", "depth", "heads", "mlp", "patch"):
        table.add_column(title, justify="right", no_wrap=True)
    for family, members in groupby(rows, key=lambda row: _family(row.name)):
        table.add_section()
        table.add_row(f"[bold]{family}[/bold]")
        for row in members:
            sizes = (str(size or "–") for size in (row.width, row.depth, row.heads, row.mlp, row.patch))
            table.add_row(row.name, f"{row.parameters:,}", f"{row.macs / 1e9:,.2f}", *sizes)
    return table


def weights_table(rows: list[Pretrained]) -> Table:
    """One row per short name."""
    from rich import box
    from rich.table import Table

    caption = "top-1: right of ImageNet's validation images, by timm; px: side of an image"
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, caption=caption)
    table.add_column("weights", no_wrap=True)
    table.add_column("network", no_wrap=True)
    for title in ("MB", "px", "top-1"):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("learned from", no_wrap=True)
    table.add_column("licence", no_wrap=True)
    for row in rows:
        numbers = (f"{row.megabytes:.0f}", str(row.pixels), f"{row.top1:.1f} %")
        table.add_row(row.name, row.network, *numbers, row.learned_from, row.licence)
    return table


def options_table(options: dict[str, tuple[Any, list[Any] | str, str]]) -> Table:
    """One row per option: what it means, what it may be, what it is unless changed."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, caption='change one: vitreous.build("S/16", positions="none")')
    table.add_column("option", no_wrap=True)
    table.add_column("default", overflow="fold")
    table.add_column("values", overflow="fold")
    table.add_column("meaning")
    for name, (default, values, meaning) in options.items():
        allowed = values if isinstance(values, str) else " ".join(map(str, values))
        usual = "x".join(map(str, default)) if isinstance(default, tuple | list) else str(default)
        table.add_row(name, usual, allowed, meaning)
    return table


def _family(name: str) -> str:
    return "BiT" if name.startswith("BiT") else "hybrids" if "+" in name else "ViT"


def print_table(table: Table) -> None:
    """The columns that the terminal has room for, the first ones first; a line below names those left out."""
    from rich.console import Console

    width = get_terminal_size().columns
    left_out: list[str] = []
    while len(table.columns) > 2 and sum(COLUMN_GAP + _least_width(column) for column in table.columns) > width:
        left_out.insert(0, str(table.columns.pop().header))
    Console(highlight=False, width=width).print(table)
    if left_out:
        say_fitted(f"A wider terminal shows {', '.join(left_out)} too; --json has all.")


def _least_width(column: Column) -> int:
    cells = [str(cell) for cell in (column.header, *column.cells) if "[" not in str(cell)]
    return max(map(len, cells)) if column.no_wrap else column.max_width or FOLDED_COLUMNS
