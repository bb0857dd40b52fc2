"""The work `patterns`: how alike the position patterns of several trained models are (P1, figure 10)."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from torch import Tensor

from vitreous.errors import DataError
from vitreous.measures.filters_and_positions import position_change, position_likeness, position_table
from vitreous.models.vit import ViT
from vitreous.papers.experiment import Cell
from vitreous.papers.works.bench import Bench, Readings, Work

Pairs = Sequence[tuple[int, int]]


def patterns(trained: Sequence[Cell], groups: Mapping[str, Pairs]) -> Cell:
    """groups: pairs of the trainings by number; the reading NAME is the mean likeness of the pairs of group NAME."""
    named = {name: [list(pair) for pair in pairs] for name, pairs in groups.items()}
    return Cell("patterns", {"groups": named}, tuple(trained), PATTERNS.version)


def run_patterns(cell: Cell, bench: Bench) -> Readings:
    maps = [position_map(bench.model(need)) for need in cell.needs]
    return {name: mean_likeness(maps, pairs) for name, pairs in cell.options["groups"].items()}


def position_map(model: object) -> Tensor:
    """Cosine of the positions of every two places, h w h w."""
    table = position_table(model) if isinstance(model, ViT) else None
    if table is None or not isinstance(model, ViT):
        raise DataError("a model that adds no position vectors has no pattern of them; compare others")
    return position_likeness(table.cpu(), model.grid)


def mean_likeness(maps: Sequence[Tensor], pairs: Pairs) -> float:
    """Mean correlation of the two patterns of a pair; a constant pattern counts as 0."""
    return statistics.mean(position_change(maps[i], maps[j]) or 0.0 for i, j in pairs)


PATTERNS = Work(run_patterns)
