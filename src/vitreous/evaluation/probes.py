"""Probes on each layer and token of a frozen model (figures 11 and 13 of arXiv 2108.08810).

N rows   D features   K classes   T tokens
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from vitreous.errors import ConfigError, DataError
from vitreous.evaluation import logistic
from vitreous.evaluation.accuracy import wilson
from vitreous.evaluation.features import Features, extract
from vitreous.evaluation.few_shot import choose_shots
from vitreous.evaluation.inference import Precision, Progress
from vitreous.evaluation.labelled_rows import Rows, checked, is_constant, ranked_in_class
from vitreous.evaluation.ridge_regression import DEFAULT_L2, count_right, ridge
from vitreous.evaluation.tie_breaking import TIE_FLOAT32, best_class
from vitreous.images import open_data
from vitreous.images.imageset import ImageSet
from vitreous.models.config import ViTConfig
from vitreous.models.model import Model, unwrapped
from vitreous.models.taps import tap_names
from vitreous.randomness import uniform
from vitreous.report.page import Table, fragment
from vitreous.words import few, percent, percent_range

By = Literal["ridge", "logistic", "knn"]
PROBE_KINDS = ("ridge", "logistic", "knn")
NEIGHBOURS = 20
VOTE_TEMPERATURE = 0.07  # of the neighbours' votes, as in arXiv 2104.14294


@dataclass(frozen=True)
class ProbeRow:
    """One reading, or one of its tokens, and the number of test rows that its probe gets right."""

    reading: str
    token: int | None
    right: int
    images: int
    l2: float | None = None

    @property
    def accuracy(self) -> float:
        return self.right / self.images

    @property
    def interval(self) -> tuple[float, float]:
        return wilson(self.right, self.images)

    def to_json(self) -> dict[str, Any]:
        body: dict[str, Any] = {"reading": self.reading, "token": self.token, "right": self.right}
        return body | {"accuracy": self.accuracy, "interval": list(self.interval), "l2": self.l2}


@dataclass(frozen=True)
class Probed:
    """All probes of one call, in the order of the model.

    constant: readings and tokens that are equal in every training row, so no probe can use them.
    """

    rows: tuple[ProbeRow, ...]
    by: By
    images: int
    fitted_on: int
    about: dict[str, Any] = field(default_factory=dict)
    constant: tuple[tuple[str, int | None], ...] = ()

    def __getitem__(self, reading: str) -> ProbeRow:
        for row in self.rows:
            if row.reading == reading and row.token is None:
                return row
        if (reading, None) in self.constant:
            raise DataError(f"{reading} is the same in every row, so it has no probe; read another tap")
        there = ", ".join(row.reading for row in self.rows[:12])
        raise ConfigError(f"there is no probe of {reading!r}; there are: {there}")

    def tokens(self, reading: str) -> NDArray[np.float64]:
        """Accuracy of every token of a reading, NaN for a constant one: T."""
        found: dict[int, float] = {t: np.nan for name, t in self.constant if name == reading and t is not None}
        found |= {row.token: row.accuracy for row in self.rows if row.reading == reading and row.token is not None}
        return np.array([found[token] for token in sorted(found)])

    def to_json(self) -> dict[str, Any]:
        body: dict[str, Any] = {"by": self.by, "images": self.images, "fitted_on": self.fitted_on}
        body |= {"constant": [{"reading": reading, "token": token} for reading, token in self.constant]}
        return dict(self.about) | body | {"probes": [row.to_json() for row in self.rows]}

    def _cells(self) -> list[tuple[str, str, str]]:
        cells = [
            (_named(row.reading, row.token), percent(row.accuracy), percent_range(row.interval)) for row in self.rows
        ]
        return cells + [(_named(*each), "-", "constant: nothing can be read") for each in self.constant]

    def __str__(self) -> str:
        cells = self._cells()
        width = max(len(name) for name, _, _ in cells)
        first = f"{self.by} on {self.fitted_on:,} rows, judged on {self.images:,} (95 % intervals)"
        return "\n".join([first, *(f"{name:<{width}}  {right:>7}  {span}" for name, right, span in cells)])

    __repr__ = __str__  # at a prompt

    def _repr_html_(self) -> str:
        return fragment([Table(["reading", "right", "95 % interval"], self._cells(), "lrl")])


def probe(
    model: nn.Module,
    data: str | os.PathLike[str] | ImageSet,
    taps: str | Iterable[str] | None = None,
    *,
    pool: str | Sequence[str] | None = None,
    by: By = "ridge",
    shots: int | None = None,
    l2: float | None = None,
    seed: int = 0,
    batch: int | None = None,
    device: torch.device | str | None = None,
    workers: int | None = None,
    precision: Precision = "auto",
    cache: bool | str | os.PathLike[str] = True,
    progress: Progress | None = None,
) -> Probed:
    """A probe on every layer of a frozen model, in one pass over train and one over test.

    taps, pool: as in `extract`; None is every layer, by CLS and by the mean of patches if it has both (even the class
    token that a GAP model never reads).  Others as in `probe_features`.
    """
    inner = unwrapped(model)
    images = open_data.open(data)
    readings = every_layer(inner) if taps is None else taps
    how: dict[str, Any] = {"pool": pool, "batch": batch, "device": device, "workers": workers}
    how |= {"precision": precision, "cache": cache, "progress": progress}
    train, test = (extract(inner, images.split(split), readings, **how) for split in ("train", "test"))
    found = probe_features(train, test, by=by, shots=shots, l2=l2, seed=seed)
    about = {"data": images.path, "content_id": images.content_id, "model": train.model}
    return replace(found, about=about)


def every_layer(model: Model) -> list[str]:
    """The output of each block or unit, and what the head reads."""
    names = [name for name in tap_names(model) if name.endswith(".output") and _is_layer(name)]
    has_class = isinstance(model.config, ViTConfig) and model.config.embedding.class_token
    pools = {name: ("cls", "gap") if has_class and name.startswith("blocks.") else ("gap",) for name in names}
    return [*(f"{name}:{pool}" for name in names for pool in pools[name]), "features"]


def _is_layer(name: str) -> bool:
    parts = name.removeprefix("stem.").split(".")
    return (parts[0] == "blocks" and len(parts) == 3) or (parts[0] == "stages" and len(parts) == 5)


def probe_features(
    train: Features,
    test: Features,
    *,
    by: By = "ridge",
    shots: int | None = None,
    l2: float | None = None,
    seed: int = 0,
    neighbours: int = NEIGHBOURS,
) -> Probed:
    """A probe for every reading; one for each token if a reading holds all tokens.

    by: ridge (the papers' least squares), logistic (multinomial, L-BFGS) or knn.  shots: rows per class, drawn
    by the seed; None is all rows.  l2: None is 1024 for ridge, and for logistic the best on a fifth of train.
    A reading that is equal in all training rows is left out and listed in `constant`; an error only if all are.
    """
    _refuse(train, test, by, shots)
    labels, count = train.labels, len(train.classes)
    known = np.flatnonzero(labels >= 0)
    chosen = known if shots is None else choose_shots(labels, count, shots, seed)
    judged = np.flatnonzero(test.labels >= 0)
    if not len(judged) or len(np.unique(labels[chosen])) < 2:
        raise DataError("a probe needs labelled rows of 2 classes to fit on, and some to judge by; give more")
    rows: list[ProbeRow] = []
    constant: list[tuple[str, int | None]] = []
    for name in train.values:
        for token, x, test_x in _tokens(train[name], test[name], chosen, judged):
            checked(x, labels[chosen], count, "train")
            if is_constant(x):
                constant.append((name, token))
                continue
            right = _probe(x, labels[chosen], test_x, test.labels[judged], count, by, l2, seed, neighbours)
            rows.append(ProbeRow(name, token, *right))
    if constant and not rows:
        told = few([_named(*each) for each in constant])
        raise DataError(f"train features are the same in every row ({told}), so nothing can be told apart; read others")
    return Probed(tuple(rows), by, len(judged), len(chosen), constant=tuple(constant))


def _refuse(train: Features, test: Features, by: By, shots: int | None) -> None:
    if by not in PROBE_KINDS:
        raise ConfigError(f"there is no probe by {by!r}; say {', '.join(PROBE_KINDS)}")
    if shots is not None and shots < 1:
        raise ConfigError(f"{shots} shots leave no rows; say 1 or more, or leave it out for all rows")
    if train.classes != test.classes:
        raise DataError("train and test name other classes; give two parts of one set")
    if set(train.values) != set(test.values) or train.model != test.model:
        raise DataError("train and test were read from other models or taps; read both in the same way")
    if train.labels.ndim != 1:
        raise DataError("images have several labels, and a probe answers one; give one class for each")


def _named(reading: str, token: int | None) -> str:
    return reading if token is None else f"{reading} {token}"


def _tokens(
    x: NDArray[Any], test_x: NDArray[Any], chosen: Rows, judged: Rows
) -> Iterable[tuple[int | None, NDArray[Any], NDArray[Any]]]:
    if x.ndim == 2:
        yield None, x[chosen], test_x[judged]
    else:
        for token in range(x.shape[1]):  # one at a time: all tokens may exceed memory
            yield token, x[chosen, token], test_x[judged, token]


def _probe(
    x: NDArray[Any],
    y: Rows,
    test_x: NDArray[Any],
    test_y: Rows,
    classes: int,
    by: By,
    l2: float | None,
    seed: int,
    neighbours: int,
) -> tuple[int, int, float | None]:
    """Right, seen, l2."""
    checked(test_x, test_y, classes, "test")
    if by == "ridge":
        linear = ridge(x, y, classes, l2=l2 or DEFAULT_L2)
        return count_right([linear], test_x, test_y)[0], len(test_y), linear.l2
    if by == "knn":
        votes = knn(x, y, test_x, classes, neighbours=neighbours)
        return int((best_class(votes, TIE_FLOAT32 / VOTE_TEMPERATURE) == test_y).sum()), len(test_y), None
    if l2 is None and (is_dev := dev_rows(y, seed)).any():
        l2 = logistic.choose(x[~is_dev], y[~is_dev], x[is_dev], y[is_dev], classes, slope=1e-4).l2
    l2 = 0.1 if l2 is None else l2
    return logistic.fit(x, y, classes, l2=l2, slope=1e-4).right(test_x, test_y), len(test_y), l2


def dev_rows(y: NDArray[Any], seed: int = 0, share: int = 5) -> NDArray[np.bool_]:
    """One in `share` rows of each class, drawn at random; none from a class with fewer."""
    labels = np.asarray(y)
    key = uniform(seed, "probe dev", 0, np.arange(len(labels)))[:, 0]
    order, rank, size = ranked_in_class(labels, key)
    found = np.zeros(len(labels), bool)
    found[order] = rank < size // share
    return found


def knn(
    x: NDArray[Any],
    y: NDArray[Any],
    test_x: NDArray[Any],
    classes: int,
    *,
    neighbours: int = NEIGHBOURS,
    temperature: float = VOTE_TEMPERATURE,
) -> NDArray[np.float64]:
    """Votes of the nearest rows by cosine, each of weight exp(cosine / temperature); test rows × K, summing to 1."""
    if neighbours < 1 or not temperature > 0:
        raise ConfigError(
            f"{neighbours} neighbours at temperature {temperature} vote on nothing; say 1 or more, above 0"
        )
    unit = _unit(x)
    labels = torch.from_numpy(np.asarray(y, np.int64))
    k = min(neighbours, len(unit))
    parts = []
    step = max(1, 2**24 // len(unit))
    for begin in range(0, len(test_x), step):
        rows = _unit(test_x[begin : begin + step])
        near, which = (rows @ unit.T).topk(k, 1)
        weight = torch.softmax(near.double() / temperature, 1)
        parts.append(torch.zeros(len(rows), classes, dtype=torch.float64).scatter_add_(1, labels[which], weight))
    return torch.cat(parts).numpy() if parts else np.zeros((0, classes))


def _unit(x: NDArray[Any]) -> Tensor:
    return F.normalize(torch.from_numpy(np.array(x, np.float32)), dim=1)
