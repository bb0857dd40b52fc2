"""Ways × shots: can features separate unseen classes from a few samples of each?

An episode draws `ways` classes and, from each, `shots` support and `queries` query rows, all different. Each query is
compared with the support. This is meta-learning's protocol; `fewshot` is the papers' linear fit on all classes.

E episodes   K ways   S shots   Q queries   D features
"""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from vitreous.errors import ConfigError, DataError
from vitreous.evaluation.accuracy import above_chance
from vitreous.evaluation.labelled_rows import Rows, checked
from vitreous.evaluation.ridge_regression import BIAS_COLUMN, DEFAULT_L2, STD_EPS, float64_device
from vitreous.evaluation.tie_breaking import best_class
from vitreous.randomness import uniform
from vitreous.words import few

By = Literal["prototypes", "nearest", "ridge"]
Likening = Literal["euclid", "cosine"]
CLASSIFIERS, DISTANCES = ("prototypes", "nearest", "ridge"), ("euclid", "cosine")
NUMBERS_GATHERED = 2**24  # numbers held at once


@dataclass(frozen=True, eq=False)
class Episodes:
    """accuracy: right queries / (ways · queries), for each episode."""

    accuracy: NDArray[np.float64]  # E
    ways: int
    shots: int
    queries: int
    by: By
    likening: Likening
    seed: int
    notes: tuple[str, ...] = ()

    @property
    def mean(self) -> float:
        return float(self.accuracy.mean())

    @property
    def half_width(self) -> float:
        """Half the 95 % interval: 1.96 s / √E."""
        return 1.96 * float(self.accuracy.std(ddof=1)) / math.sqrt(len(self.accuracy))

    @property
    def interval(self) -> tuple[float, float]:
        return max(self.mean - self.half_width, 0.0), min(self.mean + self.half_width, 1.0)

    @property
    def chance(self) -> float:
        return 1 / self.ways

    @property
    def above_chance(self) -> float:
        """0 for guessing, 1 for all right; comparable across numbers of ways."""
        return above_chance(self.mean, self.chance)

    def to_json(self) -> dict[str, Any]:
        body: dict[str, Any] = {"ways": self.ways, "shots": self.shots, "queries": self.queries}
        body |= {"episodes": len(self.accuracy), "by": self.by, "likening": self.likening, "seed": self.seed}
        body |= {"mean": self.mean, "interval": list(self.interval), "chance": self.chance}
        return body | {"above_chance": self.above_chance, "notes": list(self.notes)}

    def __str__(self) -> str:
        how = self.by if self.by == "ridge" else f"{self.by}, {self.likening}"
        first = f"{self.ways} ways, {self.shots} shots: {100 * self.mean:.1f} % ± {100 * self.half_width:.1f}"
        first += f" ({len(self.accuracy):,} episodes, {how}; chance {100 * self.chance:.1f} %)"
        return "\n".join([first, *(f"note  {note}" for note in self.notes)])

    __repr__ = __str__  # at a prompt

    def _repr_html_(self) -> str:
        return f"<p>{html.escape(str(self))}</p>"


def episodes(
    x: NDArray[Any],
    y: NDArray[Any],
    *,
    ways: int = 5,
    shots: int = 1,
    queries: int = 15,
    count: int = 600,
    by: By = "prototypes",
    likening: Likening = "euclid",
    l2: float = DEFAULT_L2,
    seed: int = 0,
    classes: Sequence[str] | None = None,
    known: Sequence[str] | None = None,
    device: torch.device | str = "cpu",
) -> Episodes:
    """Accuracy over many small tasks drawn from features N D with labels N.

    by: prototypes (the class whose mean support is nearest), nearest (support sample), ridge (the papers' probe on
    the support).  likening: euclid, or cosine of rows as they are.  classes: names of y's numbers.  known: classes
    that the features were trained on, which episodes avoid.
    """
    _check(ways, shots, queries, count, by, likening, l2)
    rows, labels = checked(x, y, max(int(np.max(y, initial=0)) + 1, len(classes or ())))
    notes: list[str] = []
    if known is not None:
        if classes is None:
            raise ConfigError("known classes were named, and not those of the labels; give classes= too")
        trained = [k for k, name in enumerate(classes) if name in set(known)]
        labels = np.where(np.isin(labels, trained), -1, labels)
        if trained:
            names = few([classes[k] for k in trained])
            notes.append(f"{len(trained)} of {len(classes)} classes were trained on and left out: {names}")
    drawn = draw(labels, ways=ways, shots=shots, queries=queries, count=count, seed=seed)
    place = float64_device(device)
    parts = []
    step = max(1, NUMBERS_GATHERED // (ways * (shots + queries) * (rows.shape[1] + ways * shots)))
    for begin in range(0, count, step):
        items = drawn[begin : begin + step]
        gathered = torch.from_numpy(np.asarray(rows[items], np.float64)).to(place)  # E K S+Q D
        parts.append(right_share(gathered, shots, by=by, likening=likening, l2=l2).cpu().numpy())
    return Episodes(np.concatenate(parts), ways, shots, queries, by, likening, seed, tuple(notes))


def draw(y: NDArray[Any], *, ways: int, shots: int, queries: int, count: int, seed: int = 0) -> Rows:
    """Row numbers E K S+Q: support first, then queries. An episode depends only on the seed and its number.

    Rows labelled −1 are never drawn.
    """
    labels = np.asarray(y)
    numbers, sizes = np.unique(labels[labels >= 0], return_counts=True)
    need = shots + queries
    if len(numbers) < ways:
        raise DataError(f"there are {len(numbers)} classes for {ways} ways; say fewer ways, or give more classes")
    if (small := sizes < need).any():
        which = few([f"{k} ({n})" for k, n in zip(numbers[small].tolist(), sizes[small].tolist(), strict=True)])
        raise DataError(
            f"{shots} shots and {queries} queries need {need} rows of each class, and class {which} has fewer; "
            "say fewer, or leave those classes out"
        )
    members = [np.flatnonzero(labels == k) for k in numbers]
    chosen = np.argsort(uniform(seed, "episode classes", 0, np.arange(count), len(numbers)), 1, kind="stable")[:, :ways]
    found = np.empty((count, ways, need), np.int64)
    for k, rows in enumerate(members):
        where = np.argwhere(chosen == k)  # (episode, way)
        for part in np.array_split(where, -(-len(where) * len(rows) // NUMBERS_GATHERED)) if len(where) else ():
            keys = uniform(seed, f"episode rows {numbers[k]}", 0, part[:, 0], len(rows))
            found[part[:, 0], part[:, 1]] = rows[np.argsort(keys, 1, kind="stable")[:, :need]]
    return found


def right_share(
    x: Tensor, shots: int, *, by: By = "prototypes", likening: Likening = "euclid", l2: float = DEFAULT_L2
) -> Tensor:
    """The share of right queries in each episode: E.  x: E K S+Q D."""
    ways = x.shape[1]
    support, query = x[:, :, :shots], x[:, :, shots:].flatten(1, 2)  # E K S D, E KQ D
    truth = torch.arange(ways, device=x.device).repeat_interleave(x.shape[2] - shots)
    if by == "ridge":
        scores = _ridge_scores(support.flatten(1, 2), query, ways, l2)  # E KQ K
    else:
        samples = support.mean(2, keepdim=True) if by == "prototypes" else support  # E K 1 D, or E K S D
        if likening == "cosine":  # the nearest unit vector has the largest cosine
            query, samples = F.normalize(query, dim=-1), F.normalize(samples, dim=-1)
        far = torch.cdist(query, samples.flatten(1, 2), compute_mode="donot_use_mm_for_euclid_dist")
        scores = -far.unflatten(-1, (ways, -1)).amin(-1)  # E KQ K
    return (best_class(scores) == truth).double().mean(-1)


def _ridge_scores(support: Tensor, query: Tensor, ways: int, l2: float) -> Tensor:
    """The published probe for each episode, in its dual form.  support: E KS D, class by class."""
    n = support.shape[1]
    mean, std = support.mean(1, keepdim=True), support.std(1, correction=0, keepdim=True) + STD_EPS
    z, q = (support - mean) / std, (query - mean) / std
    targets = (2 * torch.eye(ways).to(z) - 1).repeat_interleave(n // ways, 0)  # KS K
    alpha = torch.linalg.solve(z @ z.mT + l2 * torch.eye(n).to(z), targets)  # E KS K
    return q @ (z.mT @ alpha) + BIAS_COLUMN**2 * targets.sum(0) / (BIAS_COLUMN**2 * n + l2)


# What few-shot accuracy rests on --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ClassCosines:
    """Mean cosine of row pairs within a class, and between classes."""

    within: float
    between: float

    @property
    def gap(self) -> float:
        return self.within - self.between

    def to_json(self) -> dict[str, float]:
        return {"within": self.within, "between": self.between, "gap": self.gap}

    def __str__(self) -> str:
        return f"cosine within classes {self.within:.3f}, between classes {self.between:.3f}, gap {self.gap:.3f}"


def likeness(x: NDArray[Any], y: NDArray[Any], *, is_centred: bool = False) -> ClassCosines:
    """Mean cosine within and between classes.  x: N D.  y: N, −1 left out.

    Sums of unit vectors make all pairs as cheap as all rows:  Σ_{i≠j} uᵢ·uⱼ = ‖Σ u‖² − n.
    is_centred: subtract the mean of all rows first, for features that share a large common part.
    """
    rows, labels = checked(x, y, int(np.max(y, initial=0)) + 1)
    kept = labels >= 0
    unit, labels = np.asarray(rows[kept], np.float64), labels[kept]
    unit = unit - unit.mean(0) if is_centred else unit
    length = np.linalg.norm(unit, axis=1, keepdims=True)
    if not (length > 0).all():
        raise DataError("a row of zeros is like nothing; take such rows out, or look at another tap")
    unit = unit / length
    numbers, place = np.unique(labels, return_inverse=True)
    sizes = np.bincount(place).astype(np.float64)
    sums = np.zeros((len(numbers), unit.shape[1]))
    np.add.at(sums, place, unit)
    inside, n = float((sums**2).sum()), len(unit)
    pairs = float((sizes * (sizes - 1)).sum())
    if not pairs or len(numbers) < 2:
        raise DataError("likeness needs two classes, and two rows of one; give more rows")
    between = (float((sums.sum(0) ** 2).sum()) - inside) / (n * n - float((sizes**2).sum()))
    return ClassCosines((inside - n) / pairs, between)


def overlap(first: Sequence[str], second: Sequence[str]) -> Literal["none", "some", "all"]:
    """The share of the second's classes that the first has: 1 in supervised learning, 0 in few-shot."""
    shared = set(first) & set(second)
    return "none" if not shared else "all" if set(second) <= set(first) else "some"


def _check(ways: int, shots: int, queries: int, count: int, by: str, likening: str, l2: float) -> None:
    for name, value, least in (("ways", ways, 2), ("shots", shots, 1), ("queries", queries, 1), ("count", count, 2)):
        if not isinstance(value, int | np.integer) or value < least:
            raise ConfigError(f"{name}={value} makes no episode; say {least} or more")
    if by not in CLASSIFIERS or likening not in DISTANCES:
        asked = f"by={by!r}, likening={likening!r}"
        raise ConfigError(f"{asked} is unknown; say one of {CLASSIFIERS} and one of {DISTANCES}")
    if not l2 > 0:
        raise ConfigError(f"l2 of {l2} is not a penalty; give a number above 0")
