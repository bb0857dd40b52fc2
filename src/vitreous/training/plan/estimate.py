"""What pre-trained weights are worth for these images before training: the number to beat.

Frozen features and a closed-form classifier; it judges each image without having seen it or a copy of it, or its series
where that matters.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from vitreous.evaluation import transferability
from vitreous.evaluation.accuracy import above_chance, wilson
from vitreous.images import series, splits
from vitreous.images.imageset import TEST, ImageSet
from vitreous.images.series import Guess
from vitreous.models.model import Model
from vitreous.training import label_errors
from vitreous.training.label_errors import Doubts
from vitreous.training.recipe import L2S
from vitreous.training.run.closed_form import (
    Frozen,
    Progress,
    Series,
    Solved,
    frozen_features,
    most_images,
    rounds,
    solve,
)

LARGE_SET = 20_000  # images from which a set is large
LARGE_CLASS = 1_000  # images per class above which a set is large as well
SIMILAR_ABOVE = 0.5  # of the way from chance to certain: the images are like those the weights have seen
DRAWS_AT_RANDOM = 5  # random draws of as many images as series hold, for comparison

Places = NDArray[np.int64]


@dataclass(frozen=True)
class Estimate:
    """The least-squares probe on left-out images, and LogME (arXiv 2102.11005)."""

    right: int
    images: int  # judged
    of: int  # images in the set, where only a part was measured
    chance: float  # share of the commonest class
    logme: float
    l2: float
    seconds: float
    doubts: Doubts | None = None  # None in older runs, which doubted no labels
    series: Series | None = None  # None if no image seems to have been taken with another

    @property
    def accuracy(self) -> float:
        return self.right / self.images

    @property
    def above_chance(self) -> float:
        return above_chance(self.accuracy, self.chance)

    def to_json(self) -> dict[str, Any]:
        found = {"accuracy": self.accuracy, "interval": list(wilson(self.right, self.images))}
        return asdict(self) | found | {"above_chance": self.above_chance}

    def __str__(self) -> str:
        low, high = (100 * x for x in wilson(self.right, self.images))
        part = f" of {self.images:,} images" if self.images < self.of else ""
        return (
            f"frozen features and a closed-form classifier: {100 * self.accuracy:.1f} % ({low:.1f} to {high:.1f}) of "
            f"images left out{part}, chance {100 * self.chance:.0f} %, LogME {self.logme:.2f}; {self.seconds:.0f} s"
        )


def from_json(data: dict[str, Any]) -> Estimate:
    known = {name: data[name] for name in Estimate.__dataclass_fields__ if name in data}
    doubts, grouped = known.get("doubts"), known.get("series")
    found = {"doubts": doubts and label_errors.from_json(doubts), "series": grouped and Series(**grouped)}
    return Estimate(**{**known, **found})


def measure(
    model: Model,
    data: ImageSet,
    *,
    seed: int = 0,
    group_by: str | None = None,
    guesses: Sequence[Guess] | None = None,
    device: torch.device | str = "cpu",
    workers: int | None = None,
    progress: Progress | None = None,
) -> tuple[Estimate, Guess | None]:
    """What the frozen features tell about the labels of `data`, or of a stratified part of a large set.

    group_by: what `data.groups` are, if the user named them.  guesses: series that the images may lie in; None asks for
    none.  Also returns the guess that matters, if one does.
    """
    begin = time.monotonic()
    some = splits.subset(data, limit=min(most_images(model.config, device), len(data)), seed=seed)
    found = frozen_features(model, some, device=device, workers=workers, progress=progress)
    labels, classes = found.images.labels, len(data.classes)
    is_grouped = found.images.groups is not None and group_by is None
    copies = found.images.groups if is_grouped else splits.find_groups(found.images)[0]
    assert copies is not None
    groups, kept = copies, None
    solved = _solved(found, groups, classes, seed, device)
    if group_by is not None:
        assert found.images.groups is not None
        groups = found.images.groups
        told: Series | None = _left_whole(solved, found, groups, group_by, seed, is_given=True)
    else:
        here = np.isin(data.ids, found.images.ids)
        near = [replace(guess, groups=guess.groups[here]) for guess in guesses or ()]
        if guesses is not None and here.all() and (data.splits == TEST).any():  # all images, not train alone
            near += [guess for guess in [series.alike(found.rows, labels, copies)] if guess is not None]
        told, kept = _strongest(solved, found, copies, near, seed)
        groups = copies if kept is None else kept.groups
    if groups is not copies:
        solved = _solved(found, groups, classes, seed, device)
    estimate = Estimate(
        right=solved.right[solved.probe.l2],
        images=len(labels),
        of=len(data),
        chance=float(np.bincount(labels, minlength=classes).max() / len(labels)),
        logme=transferability.logme(found.rows, labels, classes),
        l2=solved.probe.l2,
        doubts=label_errors.doubts_of(found.images, solved.left_out, len(data)),
        series=told,
        seconds=time.monotonic() - begin,
    )
    return estimate, kept


def _solved(found: Frozen, groups: Places, classes: int, seed: int, device: torch.device | str) -> Solved:
    left_out, _ = rounds(replace(found.images, groups=groups), seed)
    return solve(found.rows, found.images.labels, classes, L2S, groups=left_out, device=device)


def _strongest(
    solved: Solved, found: Frozen, copies: Places, guesses: Sequence[Guess], seed: int
) -> tuple[Series | None, Guess | None]:
    """The guess with the lowest number among those that matter, else among all; within its interval, the first guess.

    EXIF and folders come before features, since a user can look them up.
    """
    measured = []
    for guess in guesses:
        groups = series.joined(guess, copies, found.images.labels)
        if groups is not None:
            measured.append((_left_whole(solved, found, groups, guess.by, seed), replace(guess, groups=groups)))
    if not measured:
        return None, None
    able = [pair for pair in measured if pair[0].matters] or measured
    lowest = min(told.whole or 0 for told, _ in able)
    _, high = wilson(lowest, len(found.rows))  # if all are right, it may round to less than 1
    told, guess = next(pair for pair in able if (pair[0].whole or 0) <= max(lowest, high * len(found.rows)))
    return told, guess if told.matters else None


def _left_whole(solved: Solved, found: Frozen, groups: Places, by: str, seed: int, *, is_given: bool = False) -> Series:
    """What leaving out these groups does, and what leaving out as many images at random does."""
    images, labels = found.images, found.images.labels

    def right(numbers: Places) -> int:
        return solved.right_without(rounds(replace(images, groups=numbers), seed)[0], labels)

    told = Series.of(groups, by, is_given=is_given)
    at_random = [right(series.shuffled(groups, labels, seed + k)) for k in range(DRAWS_AT_RANDOM)]
    return replace(
        told,
        one_by_one=solved.right[solved.probe.l2],
        whole=right(groups),
        at_random=round(float(np.mean(at_random))),
        least_at_random=min(at_random),
        judged=len(labels),
    )


def size(images: int, classes: int) -> str:
    """large or small, for `trainable_layers.CASES`."""
    return "large" if images >= LARGE_SET or images > LARGE_CLASS * classes else "small"


def likeness(estimate: Estimate) -> str:
    """similar or different, for `trainable_layers.CASES`."""
    return "similar" if estimate.above_chance > SIMILAR_ABOVE else "different"
