"""An experiment, declared: claims, a grid of cells, a measure and a rule for the verdict.

An experiment is one file of `experiments/`. Its cells are what is computed. A cell is identified by a digest of all
that decides its numbers, so experiments share cells and a finished cell never runs again.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import numpy as np

from vitreous.errors import ConfigError
from vitreous.files import digest
from vitreous.papers.verdict import ONE_APART, UNBOUNDED, Bounds, Effect, VerdictRule

ScaleName = Literal["laptop", "gpu", "full", "released"]
SCALES: tuple[ScaleName, ...] = ("laptop", "gpu", "full", "released")
TRAINED_SCALES: tuple[ScaleName, ...] = ("laptop", "gpu", "full")  # those whose cells train networks
RELEASED: ScaleName = "released"  # weights of others; a "seed" is a group of images, and groups share none
POINTS = "points"


@dataclass(frozen=True, eq=False)
class Cell:
    """One piece of work: a training, or a reading of trained models.

    work: a name of WORKS.  options: all that decides its numbers, as plain JSON.  needs: the trainings it reads.
    """

    work: str
    options: Mapping[str, Any]
    needs: tuple[Cell, ...] = ()
    version: int = 1  # of the work; a new version makes a new cell

    @cached_property
    def key(self) -> str:
        parts = [self.work, self.version, self.options, [need.key for need in self.needs]]
        return digest(json.dumps(parts, sort_keys=True).encode())[:20]

    def to_json(self) -> dict[str, Any]:
        """As a worker reads it, with the cells it needs."""
        needs = [need.to_json() for need in self.needs]
        return {"work": self.work, "version": self.version, "options": dict(self.options), "needs": needs}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Cell:
        needs = tuple(cls.from_json(need) for need in data["needs"])
        return cls(data["work"], data["options"], needs, data["version"])


@dataclass(frozen=True)
class GridCell:
    """A cell at its place in the grid. Cells of one arm and seed join their readings."""

    arm: str
    seed: int
    cell: Cell


class ArmTable:
    """The readings of a grid by arm and seed, as far as they are known."""

    def __init__(self, rows: Mapping[str, Mapping[int, Mapping[str, Any]]]):
        self.rows = rows

    @property
    def arms(self) -> list[str]:
        return list(self.rows)

    def values(self, arm: str, reading: str) -> dict[int, Any]:
        """A reading by seed; seeds without it are left out."""
        rows = self.rows.get(arm, {})
        return {seed: row[reading] for seed, row in sorted(rows.items()) if row.get(reading) is not None}

    def one(self, arm: str, reading: str, name: str, unit: str = "", bounds: Bounds = UNBOUNDED) -> Effect:
        """The reading itself as an effect."""
        return Effect(name, self.values(arm, reading), unit, bounds)

    def difference(
        self,
        arm: str,
        other: str,
        reading: str,
        unit: str = POINTS,
        name: str | None = None,
        bounds: Bounds | None = None,
    ) -> Effect:
        """arm − other, seed by seed.  bounds: those of two shares, if the unit is points."""
        mine, theirs = self.values(arm, reading), self.values(other, reading)
        values = {seed: float(mine[seed]) - float(theirs[seed]) for seed in mine if seed in theirs}
        usual = ONE_APART if unit == POINTS else UNBOUNDED
        return Effect(name or f"{arm} − {other}", values, unit, bounds or usual)

    def combined(
        self,
        name: str,
        arms: Sequence[str],
        reading: str,
        of: Callable[..., float],
        unit: str = "",
        bounds: Bounds = UNBOUNDED,
    ) -> Effect:
        """of(reading of each arm), for each seed that has them all."""
        columns = [self.values(arm, reading) for arm in arms]
        seeds = [seed for seed in columns[0] if all(seed in column for column in columns)] if columns else []
        return Effect(name, {seed: float(of(*(column[seed] for column in columns))) for seed in seeds}, unit, bounds)

    def slope(
        self, name: str, arms: Mapping[str, float], reading: str, unit: str = "", *, is_falling: bool = False
    ) -> Effect:
        """The slope of the reading over the arms' numbers, seed by seed.  is_falling: its negative."""
        xs, sign = list(arms.values()), -1 if is_falling else 1
        return self.combined(name, list(arms), reading, lambda *ys: sign * float(np.polyfit(xs, ys, 1)[0]), unit)


def rank_correlation(xs: Iterable[float], ys: Iterable[float]) -> float:
    """Spearman's, with mean ranks for ties; NaN if one side is constant."""
    ranks = [_ranks(np.asarray(list(numbers), np.float64)) for numbers in (xs, ys)]
    if min(rank.std() for rank in ranks) == 0:
        return math.nan
    return float(np.corrcoef(*ranks)[0, 1])


def _ranks(values: Any) -> Any:
    _, places, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = counts.cumsum()
    return ((last - counts + 1 + last) / 2)[places]


@dataclass(frozen=True)
class Claim:
    """What one row of the ledger says, and the effects that decide it.

    A claim with a condition that a scale cannot meet gets no verdict there (`untestable`).
    """

    row: str  # of claims.toml
    words: str
    rule: VerdictRule
    effects: Callable[[ArmTable], Iterable[Effect]]
    published: str = ""  # the paper's numbers
    part: str = ""  # of a row with several claims: a, b
    scales: tuple[ScaleName, ...] = SCALES  # at which it is asked
    untestable: Mapping[ScaleName, str] = field(default_factory=dict)  # why a scale can show the effect, but not judge
    untested: str = ""  # what the row says beside this
    note: str = ""  # what our scale changes
    also: tuple[str, ...] = ()  # rows that ask the same thing, and that this verdict answers

    @property
    def name(self) -> str:
        return self.row + self.part

    @property
    def rows(self) -> tuple[str, ...]:
        return self.row, *self.also


PILOTS: Mapping[ScaleName, int] = {"laptop": 3}  # of the experiments whose laptop seeds are 8, a number these chose


@dataclass(frozen=True)
class Experiment:
    """Claims and the grid of cells that answers them."""

    name: str
    family: str  # in the ledger, such as E-POS
    title: str
    claims: tuple[Claim, ...]
    grid: Callable[[ScaleName, Sequence[int]], Iterable[GridCell]]
    seeds: Mapping[ScaleName, int] = field(default_factory=lambda: {"laptop": 3, "gpu": 3, "full": 3})
    pilots: Mapping[ScaleName, int] = field(default_factory=dict)  # first seeds, from which the number above was chosen
    columns: tuple[str, ...] = ("accuracy",)  # readings that the table shows
    matched: str = ""  # what the arms have in common: parameters, compute, images seen
    scales: tuple[ScaleName, ...] = TRAINED_SCALES

    @property
    def rows(self) -> list[str]:
        """Its rows of the ledger, each once."""
        return list(dict.fromkeys(row for claim in self.claims for row in claim.rows))

    def claims_at(self, scale: ScaleName) -> list[Claim]:
        return [claim for claim in self.claims if scale in claim.scales]

    def placed(self, scale: ScaleName, seeds: int | None = None) -> list[GridCell]:
        """The whole grid."""
        if scale not in self.scales:
            raise ConfigError(f"{self.name} has no scale {scale!r}; give --scale {' or '.join(self.scales)}")
        return list(self.grid(scale, self.planned(scale, seeds)))

    def planned(self, scale: ScaleName, seeds: int | None = None) -> range:
        """The seeds that decide. Pilots come before them: they were seen when the number was chosen."""
        first = self.pilots.get(scale, 0)
        return range(first, first + (seeds or self.seeds[scale]))


def walk(cells: Iterable[Cell]) -> Iterator[Cell]:
    """Every cell once, after those it needs."""
    seen: set[str] = set()

    def visit(cell: Cell) -> Iterator[Cell]:
        for need in cell.needs:
            yield from visit(need)
        if cell.key not in seen:
            seen.add(cell.key)
            yield cell

    for cell in cells:
        yield from visit(cell)
