"""What pre-trained weights are worth for these images before training: the number to beat.

Frozen features and a closed-form classifier; each image is judged by one that has seen neither it nor a copy of it.
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch

from vitreous.evaluation import transferability
from vitreous.evaluation.accuracy import above_chance, wilson
from vitreous.images import splits
from vitreous.images.imageset import ImageSet
from vitreous.models.model import Model
from vitreous.training import label_errors
from vitreous.training.label_errors import Doubts
from vitreous.training.recipe import L2S
from vitreous.training.run.closed_form import Progress, frozen_features, most_images, rounds, solve

LARGE_SET = 20_000  # images from which a set is large
LARGE_CLASS = 1_000  # images per class above which a set is large, too
SIMILAR_ABOVE = 0.5  # of the way from chance to certain: the images are like those the weights have seen


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
    doubts: Doubts | None = None  # None in runs begun before labels were doubted

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
    found = known.get("doubts")
    return Estimate(**{**known, "doubts": found and label_errors.from_json(found)})


def measure(
    model: Model,
    data: ImageSet,
    *,
    seed: int = 0,
    device: torch.device | str = "cpu",
    workers: int | None = None,
    progress: Progress | None = None,
) -> Estimate:
    """What the frozen features tell of the labels of `data`, or of a stratified part of a large set."""
    begin = time.monotonic()
    some = splits.subset(data, limit=min(most_images(model.config, device), len(data)), seed=seed)
    found = frozen_features(model, some, device=device, workers=workers, progress=progress)
    labels, classes = found.images.labels, len(data.classes)
    groups, _ = rounds(found.images, seed)
    solved = solve(found.rows, labels, classes, L2S, groups=groups, device=device)
    return Estimate(
        right=solved.right[solved.probe.l2],
        images=len(labels),
        of=len(data),
        chance=float(np.bincount(labels, minlength=classes).max() / len(labels)),
        logme=transferability.logme(found.rows, labels, classes),
        l2=solved.probe.l2,
        doubts=label_errors.doubts_of(found.images, solved.left_out, len(data)),
        seconds=time.monotonic() - begin,
    )


def size(images: int, classes: int) -> str:
    """large or small, for `trainable_layers.CASES`."""
    return "large" if images >= LARGE_SET or images > LARGE_CLASS * classes else "small"


def likeness(estimate: Estimate) -> str:
    """similar or different, for `trainable_layers.CASES`."""
    return "similar" if estimate.above_chance > SIMILAR_ABOVE else "different"
