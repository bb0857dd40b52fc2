"""What pre-trained weights are worth for these images before anything is trained: the number to beat.

Their frozen features and a closed-form classifier, each image judged by one that has seen neither it nor a copy of it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch

from vitreous.evaluation import transferability
from vitreous.evaluation.accuracy import wilson
from vitreous.images import splits
from vitreous.images.imageset import TRAIN, ImageSet
from vitreous.models.config import Config
from vitreous.models.cost import macs
from vitreous.models.model import Model
from vitreous.training import label_errors as doubts
from vitreous.training.label_errors import Doubts
from vitreous.training.recipe import L2S
from vitreous.training.run.closed_form import Progress, frozen_features, rounds, solve
from vitreous.training.tell.summary import Rival

__all__ = ["ALIKE", "LARGE", "LARGE_CLASS", "Estimate", "from_json", "likeness", "measure", "rival", "size"]

LARGE = 20_000  # images from which a set is large
LARGE_CLASS = 1_000  # images of each class above which it is, too
ALIKE = 0.5  # of the way from chance to certain, above which images are like those that the weights have seen
LEAST, MOST = 500, 20_000  # images that are looked at; of more, a stratified part
WORK = {"cpu": 5e12, "cuda": 5e14}  # multiply-adds that they may take: about a minute of two cores, seconds of a GPU


@dataclass(frozen=True)
class Estimate:
    """The least-squares probe on images that were left out of it, and LogME (arXiv 2102.11005)."""

    right: int
    images: int  # judged
    of: int  # images that there are, where only a part was looked at
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
        """0 is chance, 1 is certain."""
        return (self.accuracy - self.chance) / (1 - self.chance)

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
    return Estimate(**{**known, "doubts": found and doubts.from_json(found)})


def measure(
    model: Model,
    data: ImageSet,
    *,
    seed: int = 0,
    device: torch.device | str = "cpu",
    workers: int | None = None,
    progress: Progress | None = None,
) -> Estimate:
    """What the frozen features say of the labels of `data`, or of a stratified part where it is large."""
    begin = time.monotonic()
    some = splits.subset(data, limit=min(_most(model.config, device), len(data)), seed=seed)
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
        doubts=doubts.doubts_of(found.images, solved.left_out, len(data)),
        seconds=time.monotonic() - begin,
    )


def _most(config: Config, device: torch.device | str) -> int:
    """Images that a measure may read."""
    work = WORK["cpu" if torch.device(device).type == "cpu" else "cuda"]
    return min(max(int(work / macs(config)), LEAST), MOST)


def size(images: int, classes: int) -> str:
    """large or small, for `policy.CASES`."""
    return "large" if images >= LARGE or images > LARGE_CLASS * classes else "small"


def likeness(estimate: Estimate) -> str:
    """similar or different, for `policy.CASES`."""
    return "similar" if estimate.above_chance > ALIKE else "different"


def rival(
    start: Callable[[], Model],
    config: Config,
    estimate: Estimate,
    data: ImageSet,
    judged: ImageSet,
    *,
    device: torch.device | str = "cpu",
    workers: int | None = None,
) -> Rival:
    """The number to beat, on the images judged where these were kept from training; else as it was measured.

    start: makes the network, of this config, with the weights that training began with; asked where it is needed.
    """
    name = "frozen features, closed-form classifier"
    train = data.split(TRAIN)
    is_apart = not np.isin(judged.ids, train.ids).any()
    if not is_apart or max(len(train), len(judged)) > _most(config, device):
        return Rival(f"{name} (leave-one-out)", estimate.right, estimate.images)
    model = start()
    known, new = (frozen_features(model, part, device=device, workers=workers) for part in (train, judged))
    solved = solve(known.rows, known.images.labels, len(data.classes), (estimate.l2,), device=device)
    return Rival(name, solved.probe.right(new.rows, new.images.labels), len(new.images))
