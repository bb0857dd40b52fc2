"""Would more labels help? Accuracy on growing parts of a set, and the power law through it.

error(n) = a n^−b + c          a, b > 0,  0 ≤ c < the smallest error seen
"""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from vitreous.errors import ConfigError, DataError
from vitreous.evaluation.labelled_rows import Rows, checked, count_classes, known_rows, ranked_in_class
from vitreous.evaluation.ridge_regression import DEFAULT_L2, count_right, nested_ridges
from vitreous.images.imageset import TRAIN, ImageSet
from vitreous.randomness import uniform
from vitreous.words import percent, percent_range

MIN_POINTS = 4  # for a law of three parameters
TOO_WIDE = 0.25  # an interval of what more images could reach
MAX_EXTRAPOLATION = 10  # times the largest size; a law is not trusted beyond
BOOTSTRAP_DRAWS = 400
GRID_POINTS = 64
GRID_ZOOMS = 7  # each narrows the grid of c to two steps
# By default the curve reports the labels needed for the next two above the accuracy reached.
TARGET_ACCURACIES = (0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95, 0.97, 0.98, 0.99)

Numbers = NDArray[np.float64]


@dataclass(frozen=True)
class PowerLaw:
    """error(n) = a n^−b + c"""

    a: float
    b: float
    c: float

    def error(self, n: float | Numbers) -> Any:
        return self.a * np.asarray(n, np.float64) ** -self.b + self.c

    def rows_for(self, error: float) -> float:
        """Rows needed for this error; infinite if c is above it."""
        if error <= self.c:
            return math.inf
        log = math.log(self.a / (error - self.c)) / self.b if self.b else math.inf
        return math.exp(log) if log < 700 else math.inf


@dataclass(frozen=True)
class Needed:
    """Training images needed for a target; `low` and `high` span 95 % of the redrawn curves."""

    accuracy: float
    images: float  # infinite if the law never reaches it
    low: float
    high: float
    most: int  # the law is not trusted beyond

    @property
    def is_believed(self) -> bool:
        return self.images <= self.most

    def to_json(self) -> dict[str, Any]:
        numbers = {"images": self.images, "low": self.low, "high": self.high}
        known = {name: round(value) if value <= self.most else None for name, value in numbers.items()}
        return {"accuracy": self.accuracy, **known, "most": self.most, "is_believed": self.is_believed}

    def __str__(self) -> str:
        target = f"{100 * self.accuracy:g} %"
        if not self.is_believed:
            far = f"{target} right is not in reach of {self.most:,} images"
            return f"{far}; fine-tuning or a better model would help more than labels"
        high = f"{math.ceil(self.high):,}" if self.high <= self.most else f"more than {self.most:,}"
        return (
            f"{target} right needs about {math.ceil(self.images):,} training images ({math.ceil(self.low):,} to {high})"
        )


@dataclass(frozen=True, eq=False)
class Curve:
    """Errors of the closed-form probe on nested parts, and the law fitted to their means."""

    sizes: tuple[int, ...]
    error: Numbers  # S R: sizes, seeds
    images: int  # test rows
    law: PowerLaw
    redrawn: tuple[PowerLaw, ...]  # bootstrapped laws
    targets: tuple[float, ...] = ()  # accuracies to report the needed labels for

    def interval(self, name: str) -> tuple[float, float]:
        """The 95 % interval of a, b or c."""
        low, high = np.percentile([getattr(law, name) for law in self.redrawn], [2.5, 97.5])
        return float(low), float(high)

    def expected(self, n: int) -> tuple[float, float, float]:
        """Accuracy with n training images, and its 95 % interval; at most ten times the largest size."""
        if not 0 < n <= MAX_EXTRAPOLATION * self.sizes[-1]:
            raise ConfigError(f"{n:,} images are beyond what {self.sizes[-1]:,} tell; ask for 1 to {self.most:,}")
        low, high = np.percentile([law.error(n) for law in self.redrawn], [2.5, 97.5])
        return 1 - float(self.law.error(n)), 1 - float(high), 1 - float(low)

    @property
    def most(self) -> int:
        return MAX_EXTRAPOLATION * self.sizes[-1]

    def needed(self, accuracy: float) -> Needed:
        """Training images needed for this accuracy."""
        refuse_target(accuracy)
        low, high = np.percentile([min(law.rows_for(1 - accuracy), 1e300) for law in self.redrawn], [2.5, 97.5])
        return Needed(accuracy, self.law.rows_for(1 - accuracy), float(low), float(high), self.most)

    def to_json(self) -> dict[str, Any]:
        rows = [
            {"images": n, "accuracy": (1 - e).tolist(), "mean": 1 - float(e.mean())}
            for n, e in zip(self.sizes, self.error, strict=True)
        ]
        law = {name: {"value": getattr(self.law, name), "interval": list(self.interval(name))} for name in "abc"}
        twice = dict(zip(("accuracy", "low", "high"), self.expected(2 * self.sizes[-1]), strict=True))
        needed = [self.needed(target).to_json() for target in self.targets]
        body = {"test_images": self.images, "curve": rows, "law": law, "with_twice_the_images": twice}
        return body | {"needed": needed}

    def __str__(self) -> str:
        lines = [
            f"{n:>8,} images  {100 * (1 - e.mean()):5.1f} % right" for n, e in zip(self.sizes, self.error, strict=True)
        ]
        now, (then, low, high) = 1 - float(self.law.error(self.sizes[-1])), self.expected(2 * self.sizes[-1])
        gain = f"twice as many: {percent(then)} ({percent_range((low, high))}), {100 * (then - now):+.1f} points"
        low, high = self.interval("c")
        most = "not known" if high - low > TOO_WIDE else percent(1 - self.law.c)
        left = f"however many: {most} ({percent_range((1 - high, 1 - low))})"
        return "\n".join([*lines, gain, left, *(str(self.needed(target)) for target in self.targets)])

    __repr__ = __str__  # at a prompt

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(str(self))}</pre>"


def refuse_target(target: float | None) -> None:
    if target is not None and not 0 < target < 1:
        raise ConfigError(f"an accuracy of {target} is not a target; give one between 0 and 1")


def curve(
    x: NDArray[Any],
    y: NDArray[Any],
    test_x: NDArray[Any],
    test_y: NDArray[Any],
    classes: int | Sequence[str],
    *,
    sizes: Sequence[int] | None = None,
    seeds: int = 5,
    l2: float = DEFAULT_L2,
    target: float | None = None,
    device: torch.device | str = "cpu",
) -> Curve:
    """Fit the closed-form probe on nested, stratified parts of the rows, and a power law to its errors.

    sizes: rows of the parts; None halves all rows down to 2 per class, 4 to 8 sizes in all.  target: an accuracy to
    report the needed labels for; None takes the next two round ones above what all rows reach.
    """
    refuse_target(target)
    count = count_classes(classes)
    rows, labels = checked(x, y, count, "train")
    test_rows, test_labels = checked(test_x, test_y, count, "test")
    kept, judged = known_rows(labels), np.flatnonzero(test_labels >= 0)
    if not len(judged):
        raise DataError("there are no labelled test rows to judge by; give some")
    if not isinstance(seeds, int) or seeds < 1:
        raise ConfigError(f"seeds={seeds} draw no parts; say 1 or more")
    steps = _sizes(sizes, len(kept), len(np.unique(labels[kept])))
    error = np.empty((len(steps), seeds))
    for seed in range(seeds):
        order = kept[nested_rows(labels[kept], seed)]
        parts = [order[a:b] for a, b in zip([0, *steps[:-1]], steps, strict=True)]
        probes = [found[0] for found in nested_ridges(rows, labels, count, parts, (l2,), device=device)]
        right = count_right(probes, test_rows[judged], test_labels[judged], device=device)
        error[:, seed] = 1 - np.array(right) / len(judged)
    means = error.mean(1)
    law = power_law(steps, means)
    redrawn = _bootstrap(np.array(steps, np.float64), error, len(judged))
    above = [t for t in TARGET_ACCURACIES if t > 1 - means[-1]][:2]
    return Curve(tuple(steps), error, len(judged), law, redrawn, tuple(above) if target is None else (target,))


def nested_rows(y: NDArray[Any], seed: int) -> Rows:
    """An order of rows whose every prefix is stratified: row r of a class of n comes at (r + ½) / n."""
    labels = np.asarray(y)
    key = uniform(seed, "curve", 0, np.arange(len(labels)))[:, 0]
    order, rank, size = ranked_in_class(labels, key)
    when = np.where(rank == 0, -1.0, (rank + 0.5) / size)  # the first row of each class comes before all others
    return order[np.lexsort((key[order], when))]


def first_images(data: ImageSet, train: int, seed: int) -> ImageSet:
    """That many training images, spread over the classes, and all test images; smaller choices are nested."""
    places = np.flatnonzero(data.splits == TRAIN)
    if train > len(places):
        raise ConfigError(f"{data.path} has {len(places):,} training images, not {train:,}; say fewer")
    chosen = places[nested_rows(data.labels[places], seed)[:train]]
    return data.take(np.sort(np.concatenate([chosen, np.flatnonzero(data.splits != TRAIN)])))


def power_law(sizes: Sequence[float] | Numbers, error: Sequence[float] | Numbers) -> PowerLaw:
    """The law with the least squared error over c; a line through ln(error − c) over ln n gives a and b for each c."""
    n, e = np.asarray(sizes, np.float64), np.asarray(error, np.float64)
    if n.shape != e.shape or n.ndim != 1 or len(np.unique(n)) < MIN_POINTS:
        raise DataError(
            f"{len(np.unique(n))} sizes are too few for a curve; give {MIN_POINTS} or more, with an error for each"
        )
    if not (np.isfinite(e).all() and (e >= 0).all() and (n > 0).all()):
        raise DataError("sizes must be above 0 and errors finite, 0 or more; give shares of wrong answers")
    return PowerLaw(*(float(v) for v in _fit(n, e[None])[0]))


def _fit(n: Numbers, e: Numbers) -> Numbers:
    """a, b, c for each row of errors e: B S; all rows and all c of a grid at once."""
    log_n = np.log(n) - np.log(n).mean()
    least = np.maximum(e.min(1), 1e-12)  # B
    low, high = np.zeros(len(e)), least * (1 - 1e-9)
    best = np.zeros((len(e), 3))
    for _ in range(GRID_ZOOMS):
        c = low[:, None] + (high - low)[:, None] * np.linspace(0, 1, GRID_POINTS)  # B G
        logs = np.log(np.maximum(e[:, None] - c[..., None], 1e-15))  # B G S
        b = np.maximum(-(logs @ log_n) / (log_n @ log_n), 1e-9)
        a = np.exp(logs.mean(2) + b * np.log(n).mean())
        squares = ((a[..., None] * n ** -b[..., None] + c[..., None] - e[:, None]) ** 2).sum(2)
        g = squares.argmin(1)
        rows = np.arange(len(e))
        best = np.stack([a[rows, g], b[rows, g], c[rows, g]], 1)
        low, high = c[rows, np.maximum(g - 1, 0)], c[rows, np.minimum(g + 1, GRID_POINTS - 1)]
    return best


def _bootstrap(n: Numbers, error: Numbers, images: int) -> tuple[PowerLaw, ...]:
    """Bootstrapped laws: seeds drawn with replacement, and binomial noise of the test rows on each point."""
    random = np.random.default_rng(0)
    seeds = random.integers(0, error.shape[1], (BOOTSTRAP_DRAWS, error.shape[1]))
    drawn = error[:, seeds].mean(2).T  # B S
    drawn = random.binomial(images, drawn) / images
    return tuple(PowerLaw(*(float(v) for v in row)) for row in _fit(n, np.maximum(drawn, 0.5 / images)))


def _sizes(sizes: Sequence[int] | None, rows: int, classes: int) -> list[int]:
    if sizes is None:
        found = [rows]
        while len(found) < 8 and found[-1] // 2 >= 2 * classes:
            found.append(found[-1] // 2)
        found.reverse()
        if len(found) < MIN_POINTS and rows >= 4 * classes:  # few rows per class: smaller steps
            found = np.geomspace(2 * classes, rows, MIN_POINTS).round().astype(int).tolist()
    else:
        found = sorted({int(size) for size in sizes})
    if len(found) < MIN_POINTS:
        raise DataError(
            f"{rows} rows of {classes} classes make {len(found)} sizes of a curve, which needs {MIN_POINTS}; "
            "give more rows"
        )
    if found[0] < classes or found[-1] > rows:
        raise ConfigError(f"sizes from {found[0]} to {found[-1]} do not fit; say {classes} (one a class) to {rows}")
    return found
