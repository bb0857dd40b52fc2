"""A head in closed form: least squares on frozen features, every image judged when it and its copies are left out.

    logits of the images g left out = T_g − (I − H_gg)⁻¹ (T − H T)_g       H = Z (ZᵀZ + l2 I)⁻¹ Zᵀ

Exact, and as cheap as one fit: see `ridge_regression.Decomposed.left_out`.

N images   D features   K classes
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from vitreous.errors import DataError
from vitreous.evaluation.accuracy import wilson
from vitreous.evaluation.calibration import fit_temperature
from vitreous.evaluation.features import extract
from vitreous.evaluation.ridge_regression import Decomposed, Ridge, decompose
from vitreous.evaluation.tie_breaking import best_class
from vitreous.images import splits
from vitreous.images.imageset import TEST, TRAIN, ImageSet
from vitreous.machine import memory as machine_memory
from vitreous.models.config import Config
from vitreous.models.cost import macs
from vitreous.models.model import Model, head_shape
from vitreous.models.vit import TwoHeads

MIN_MEASURED, MAX_MEASURED = 500, 20_000  # images whose frozen features are read for a measure
MEASURE_MACS = {"cpu": 5e12, "cuda": 5e14}  # multiply-adds of such a measure: a minute of two cores, seconds of a GPU
MAX_ROUNDS = 200  # with this many images per class, one more or less makes no difference
FEATURE_COPIES, ANSWER_COPIES = 4, 8  # of N D and of N K float64 that are held at once
MAX_MEMORY_SHARE = 0.5  # of the memory that they may take

Progress = Callable[[int, int], None]


@dataclass(frozen=True, eq=False)
class Frozen:
    """Features of the images that could be read, in the order of `images`."""

    images: ImageSet
    rows: NDArray[np.float32]  # N D


def frozen_features(
    model: Model,
    data: ImageSet,
    *,
    device: torch.device | str = "cpu",
    workers: int | None = None,
    progress: Progress | None = None,
) -> Frozen:
    """What the head reads of every image, in float32, kept on disk by split: train is not read again for all."""
    rows: NDArray[np.float32] | None = None
    is_read = np.zeros(len(data), bool)
    for split in (TRAIN, TEST):
        where = np.flatnonzero(data.splits == split)
        if len(where):
            found = extract(
                model,
                data.take(where),
                keep="float32",
                precision="float32",
                device=device,
                workers=workers,
                progress=progress,
            )
            rows = np.zeros((len(data), found.only.shape[1]), np.float32) if rows is None else rows
            rows[where[found.places]] = found.only
            is_read[where[found.places]] = True
    if rows is None:
        raise DataError(f"{data.path} has no images to read features of; name another set")
    return Frozen(data, rows) if is_read.all() else Frozen(data.take(is_read), rows[is_read])


@dataclass(frozen=True, eq=False)
class Solved:
    """A probe, and what it says about every row when that row's group is left out."""

    probe: Ridge
    left_out: NDArray[np.float64]  # N K
    right: dict[float, int]  # of each l2 tried: rows that are right when they are left out
    parts: Decomposed

    def without_own_class(self, labels: NDArray[np.int64]) -> NDArray[np.float32]:
        """What a head that never saw a row's class says about the row; −inf for that class.  N K."""
        scores = self.parts.left_out(self.probe.l2, labels).astype(np.float32)
        scores[np.arange(len(labels)), labels] = -np.inf
        return scores

    def right_without(self, groups: NDArray[np.int64], labels: NDArray[np.int64]) -> int:
        """Rows named rightly with the same l2 when these groups are left out instead."""
        return int((best_class(self.parts.left_out(self.probe.l2, groups)) == labels).sum())


def solve(
    rows: NDArray[Any],
    labels: NDArray[np.int64],
    classes: int,
    l2s: Sequence[float],
    *,
    groups: NDArray[np.int64] | None = None,
    device: torch.device | str = "cpu",
) -> Solved:
    """The probe whose l2 has the smallest squared error when rows are left out.

    Not the one with most rows right: that count is coarse, so the best of nine flatters itself, and on new rows it is
    no better.
    """
    try:
        parts = decompose(rows, labels, classes, device=device)
        return _best(parts, labels, classes, l2s, groups)
    except torch.OutOfMemoryError:  # of a GPU: the host has more room
        parts = decompose(rows, labels, classes, device="cpu")
        return _best(parts, labels, classes, l2s, groups)


def _best(
    parts: Decomposed,
    labels: NDArray[np.int64],
    classes: int,
    l2s: Sequence[float],
    groups: NDArray[np.int64] | None,
) -> Solved:
    targets = 2.0 * (labels[:, None] == np.arange(classes)) - 1
    right: dict[float, int] = {}
    least, best, best_scores = np.inf, 0.0, np.zeros((0, classes))
    for l2 in sorted(l2s):
        scores = parts.left_out(l2, groups)
        right[l2] = int((best_class(scores) == labels).sum())
        error = float(((scores - targets) ** 2).mean())
        if error < least:
            least, best, best_scores = error, l2, scores
    return Solved(parts.at(best), best_scores, right, parts)


def rounds(data: ImageSet, seed: int = 0) -> tuple[NDArray[np.int64], int]:
    """The round in which each image is left out, and how many images have copies.

    A round leaves out one image of each class, with its copies, bursts and series. Leaving out one image alone would
    make its class one smaller than the others, and least squares would rarely name it: with few images, accuracy is
    too low.
    """
    groups = data.groups if data.groups is not None else splits.find_groups(data)[0]
    _, first, sizes = np.unique(groups, return_index=True, return_counts=True)
    of_class = np.bincount(data.labels[first])
    count = min(max(int(of_class.max()), 2), MAX_ROUNDS, len(first))
    if count < 2:
        raise DataError(f"all images of {data.path} are copies of one, so none can be judged by the others; add some")
    return splits.folds(replace(data, groups=groups), count, seed), int(sizes[sizes > 1].sum())


@dataclass(frozen=True)
class Series:
    """Images taken together, and what leaving them out whole does to the number of frozen features."""

    by: str  # what the user groups by, or what the guess is based on
    is_given: bool  # by the user
    count: int  # series of two images or more
    images: int  # in them
    one_by_one: int | None = None  # right when an image is left out with its copies alone; None where nobody asked
    whole: int | None = None  # right when its whole series is left out as well
    at_random: int | None = None  # right when as many images, drawn at random, are left out instead: the mean of draws
    least_at_random: int | None = None  # the lowest of them
    judged: int = 0  # images that these numbers are of

    @classmethod
    def of(cls, groups: NDArray[np.int64], by: str, *, is_given: bool) -> Series:
        """These groups, without a number."""
        sizes = np.unique(groups, return_counts=True)[1]
        return cls(by, is_given, int((sizes > 1).sum()), int(sizes[sizes > 1].sum()))

    @property
    def matters(self) -> bool:
        """Whether whole series lower the number beyond its interval, not only because fewer images are learned from.

        So it must be below all draws at random; if those lie beyond the interval too, it must be beyond theirs.
        """
        if self.one_by_one is None or self.whole is None or self.at_random is None or self.least_at_random is None:
            return False
        low, low_at_random = (self.judged * wilson(n, self.judged)[0] for n in (self.one_by_one, self.at_random))
        border = low if self.at_random >= low else low_at_random
        return self.whole < min(border, self.least_at_random)

    @property
    def is_kept_whole(self) -> bool:
        """Whether no series is split between what is learned from and what judges."""
        return self.is_given or self.matters

    def to_json(self) -> dict[str, Any]:
        """Counts, and each number as a share with its interval."""
        shares = {
            name: {"right": right, "accuracy": right / self.judged, "interval": list(wilson(right, self.judged))}
            for name in ("one_by_one", "whole", "at_random")
            if (right := getattr(self, name)) is not None
        }
        return asdict(self) | shares | {"matters": self.matters, "is_headline": self.is_kept_whole}

    def __str__(self) -> str:
        return f"{self.count:,} series {'by' if self.is_given else 'guessed by'} {self.by}"


@dataclass(frozen=True, eq=False)
class FirstHead:
    """The head that a training begins with, solved on the very images that it learns from."""

    frozen: Frozen  # of all images that some training learns from
    groups: NDArray[np.int64]  # of each: the round in which it is left out
    l2s: Sequence[float]

    def put_into(self, model: Model, train: ImageSet) -> None:
        """Scores fitted to ±1 are too small for a softmax, so they get the temperature that suits left-out images."""
        here = np.isin(self.frozen.images.ids, train.ids)
        labels, groups = self.frozen.images.labels[here], np.unique(self.groups[here], return_inverse=True)[1]
        found = solve(self.frozen.rows[here], labels, len(train.classes), self.l2s, groups=groups)
        put_into_head(model, found.probe, fit_temperature(found.left_out, labels))


def put_into_head(model: Model, probe: Ridge, temperature: float = 1.0) -> None:
    """logits = probe.scores(features) / temperature: weight and bias also standardise. Nothing else changes."""
    weight, bias = (torch.from_numpy(part / temperature) for part in probe.on_raw())  # D K, K
    if isinstance(model.head, TwoHeads):  # the mean of two, each with its own token
        first, second = (2 * weight).chunk(2)
        _set(model.head.class_head, first, bias)
        _set(model.head.distillation_head, second, bias)
    else:
        _set(model.head, weight, bias)


def _set(head: nn.Module, weight: Tensor, bias: Tensor) -> None:
    assert isinstance(head, nn.Linear)
    with torch.no_grad():
        head.weight.copy_(weight.T)
        head.bias.copy_(bias)


def most_images(config: Config, device: torch.device | str) -> int:
    """How many images a measure of frozen features may read."""
    work = MEASURE_MACS["cpu" if torch.device(device).type == "cpu" else "cuda"]
    return min(max(int(work / macs(config)), MIN_MEASURED), MAX_MEASURED)


def memory_needed(images: int, model: Model) -> int:
    """Bytes that a closed form takes: it holds all rows and all answers at once."""
    classes, features = head_shape(model)
    return 8 * images * (FEATURE_COPIES * features + ANSWER_COPIES * classes)


def has_room(images: int, model: Model) -> bool:
    return memory_needed(images, model) <= MAX_MEMORY_SHARE * (machine_memory() or 2**63)
