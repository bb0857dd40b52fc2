"""A finished run in a notebook's cell: what the terminal says about it, and its weakest classes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vitreous.report.page import Bar, Block, Code, Table, fragment
from vitreous.words import percent

if TYPE_CHECKING:
    from vitreous.training.tell.write import Run

MAX_CLASSES_IN_CELL = 8


def shown(run: Run) -> str:
    return fragment([Code(str(run)), *_weakest((run.metrics.get("judged") or {}).get("classes") or [])])


def _weakest(classes: list[dict[str, Any]]) -> list[Block]:
    known = [row for row in classes if row.get("recall") is not None]
    if not known:
        return []
    rows = sorted(known, key=lambda row: row["recall"])[:MAX_CLASSES_IN_CELL]
    cells = [[row["name"], f"{row['images']:,}", Bar(percent(row["recall"], 0), row["recall"])] for row in rows]
    caption = f"the {len(rows)} weakest of {len(known):,} classes" if len(rows) < len(known) else ""
    return [Table(["class", "images", "found"], cells, "lr", caption)]
