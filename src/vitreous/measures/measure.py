"""A measure as one value: what it reads, how its numbers grow while a model sees images, and how it is drawn.

To add one: a file that holds a `Measure`, and a line in MEASURES (or an entry point in the group `vitreous.measures`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from vitreous.measures.similarity import ENOUGH_IMAGES
from vitreous.measures.subject import Subject
from vitreous.report.files import Panel

Found = dict[str, Any]  # plain numbers, as they go into JSON
Arrays = Mapping[str, NDArray[Any]]  # what is too large for JSON
PLURAL = {"patch": "patches", "place": "places"}  # of `Subject.place`
FEW_PLACES = 7  # a side; on fewer, all places are near and far at once


class Reading:
    """Numbers in the making. `update` counts what `see` gathered from a batch; `drop` forgets it."""

    def __init__(self, subject: Subject, other: Subject | None = None):
        self.subject, self.other = subject, other
        self.batch: dict[str, Tensor] = {}  # what `see` gathered

    def see(self, tap: str, x: Tensor, side: int = 0) -> None:
        """One activation, while the forward runs; keep little of it.  side: 1 for the model compared with."""

    def update(self) -> None:
        """The batch went through."""

    def drop(self) -> None:
        """The batch failed; it comes again in smaller parts."""
        self.batch = {}

    def finish(self) -> Found:
        """Plain numbers, after the last batch; a measure with forwards of its own runs them here."""
        raise AssertionError("every reading returns what it found")

    def arrays(self) -> dict[str, NDArray[Any]]:
        """What is too large for JSON."""
        return {}


class Averages(Reading):
    """Means over images: `gather` values of each image of a batch under a name."""

    def __init__(self, subject: Any = None, other: Subject | None = None):
        super().__init__(subject, other)
        self.sums: dict[str, Tensor] = {}
        self.squares: dict[str, Tensor] = {}
        self.images = 0

    def gather(self, name: str, values: Tensor) -> None:
        self.batch[name] = values

    def update(self) -> None:
        count = 0
        for name, values in self.batch.items():
            held = values.detach()
            held = held.cpu() if held.device.type == "mps" else held  # MPS has no float64
            self.sums[name] = self.sums.get(name, 0) + held.sum(0, dtype=torch.float64).cpu()
            self.squares[name] = self.squares.get(name, 0) + held.square().sum(0, dtype=torch.float64).cpu()
            count = len(held)
        self.images += count
        self.batch = {}

    def mean(self, name: str) -> Tensor:
        return self.sums[name] / self.images

    def error(self, name: str) -> Tensor:
        """Standard error of the mean over images."""
        if self.images < 2:
            return torch.full_like(self.sums[name], math.nan)
        spread = (self.squares[name] / self.images - self.mean(name).square()).clamp(min=0)
        return (spread / (self.images - 1)).sqrt()

    def by_head(self, value: str, error: str) -> list[dict[str, Any]]:
        """A row for every layer and head: its mean and standard error, under these names."""
        return [
            {"layer": number_of(tap), "head": head, value: plain(mean), error: plain(spread)}
            for tap in self.sums
            for head, (mean, spread) in enumerate(zip(self.mean(tap).tolist(), self.error(tap).tolist(), strict=True))
        ]

    def by_layer(self) -> list[float]:
        """The mean over the heads of every layer."""
        return [plain(self.mean(tap).mean().item()) for tap in self.sums]


def rows_of(found: Found) -> list[dict[str, Any]]:
    """The table of most measures: their `rows`."""
    return list(found.get("rows", []))


@dataclass(frozen=True)
class Drawn:
    """One figure. paper: its place in the papers, such as P1-fig7; empty for a figure of our own."""

    panels: Sequence[Panel]
    paper: str = ""


@dataclass(frozen=True, kw_only=True)
class Measure:
    """One measure, whole: its numbers, its sentence and its figures. Its functions know nothing of files and pages.

    taps: patterns by family (see `Subject.families`), {last} for the last block; all measures that name some share one
    forward.
    start: (model's subject, the one compared with) -> a reading.  forwards: how many of single images beyond the shared
    ones; a backward pass counts as two.  why_not: why it has no meaning here, in one line, or None.
    draw: (found, what the other model gave, arrays) -> figures; both models' charts share a scale. A measure that draws
    nothing is shown as its table.  arrays_of: the measure whose arrays `draw` gets, by default its own.
    caution: why its numbers mean little on so few images, or None.  least_images: on fewer, a look at all measures
    leaves it out, and a look that names it warns.
    rank: 1 is the most telling; the page opens with the lines of the first ten. None: no line there.  says_little: True
    for a number whose line comes after all others.
    """

    name: str
    sentence: str  # what it shows, for anybody
    figure: str  # where the papers draw it
    saw: str  # what the papers saw
    start: Callable[[Subject, Subject | None], Reading]
    says: Callable[[Found], str]  # one line with this model's numbers
    taps: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    cost: str = "reads the shared forward"
    forwards: Callable[[Subject], float] = lambda subject: 0.0
    why_not: Callable[[Subject, Subject | None], str | None] = lambda subject, other: None
    is_pair: bool = False  # compares two models
    caution: Callable[[int], str | None] = lambda images: None
    least_images: int = 0
    rows: Callable[[Found], list[dict[str, Any]]] = rows_of  # its table, for CSV
    draw: Callable[[Found, Found | None, Arrays], list[Drawn]] = lambda found, beside, arrays: []
    method: Callable[[Found], str] = lambda found: ""  # how it was measured, in a sentence
    rank: int | None = 0
    says_little: Callable[[Found], bool] = lambda found: False
    arrays_of: str | None = None


def caution_of_shares(images: int) -> str | None:
    """How far off a share of so few answers may be, by the 95 % interval; one image gives no share."""
    if images == 1 or images >= ENOUGH_IMAGES:
        return None
    return f"a share of {images} answers may be off by {100 * 1.96 * math.sqrt(0.25 / images):.0f} points"


def on_few_places(grid: Sequence[int]) -> str:
    """What to add to a sentence about distances; empty if there are places enough."""
    return f"; on {grid[0]} × {grid[1]} places that tells little" if min(grid) < FEW_PLACES else ""


def bands(found: Found) -> str:
    """What the bands of a chart are; one image has none."""
    return "" if found["images"] == 1 else "; bands are two standard errors over images"


def number_of(tap: str) -> int:
    """7 for blocks.7.attention.weights."""
    return int(tap.split(".")[1])


def plain(value: Any, digits: int = 6) -> Any:
    """Tensors, arrays and numbers as JSON knows them, rounded to `digits`; None for NaN and infinity."""
    if isinstance(value, list | tuple):
        return [plain(each, digits) for each in value]
    if isinstance(value, dict):
        return {key: plain(each, digits) for key, each in value.items()}
    if hasattr(value, "tolist"):  # torch's and numpy's
        return plain(value.tolist(), digits)
    if isinstance(value, float):
        return float(f"{value:.{digits}g}") if math.isfinite(value) else None
    return value
