"""The work `likeness`: CKA of two trained models of one architecture, block by block."""

from __future__ import annotations

from vitreous.errors import DataError
from vitreous.images.imageset import TEST
from vitreous.measures.look import look
from vitreous.papers.experiment import Cell
from vitreous.papers.works.bench import Bench, Readings, Work
from vitreous.papers.works.look import dealt


def likeness(trained: Cell, other: Cell, data: str, *, seen: int = 512) -> Cell:
    """seen: test images, the same for every pair."""
    return Cell("likeness", {"data": data, "seen": seen}, (trained, other), LIKENESS.version)


def run_likeness(cell: Cell, bench: Bench) -> Readings:
    """likeness: a number for each block; likeness_low, likeness_high: means of the lowest and the highest third."""
    model, other = (bench.model(need) for need in cell.needs)
    shown = dealt(bench.sets.open(cell.options["data"]).split(TEST), cell.options["seen"])
    how = {"only": ["similarity-across"], "images": len(shown), "layers": "blocks", **bench.place}
    blocks = [row["cka"] for row in look(model, shown, against=other, **how)["similarity-across"]["same_name"]]
    if not blocks or None in blocks:
        raise DataError("the two models have no blocks of the same name whose answers change; compare two of one kind")
    third = max(len(blocks) // 3, 1)
    low, high = sum(blocks[:third]) / third, sum(blocks[-third:]) / third
    return {"likeness": blocks, "likeness_low": low, "likeness_high": high}


LIKENESS = Work(run_likeness)
