"""What training leaves behind, as plain values: outcome of a stage, trials of a sweep, rivals, the trained model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from vitreous.evaluation.accuracy import Result
from vitreous.images.imageset import ImageSet
from vitreous.models.model import Model
from vitreous.training.label_errors import Doubts


@dataclass
class Outcome:
    """How one stage of training ended."""

    state: dict[str, Tensor]  # of the network: the state that dev chose, else the last one
    step: int  # at which that state was taken
    steps: int  # in all
    seconds: float  # of training, over all processes that worked on it
    images_per_second: float
    dev: dict[str, Any] | None = None  # accuracy and loss on dev
    skipped: tuple[int, ...] = ()  # batches that broke the loss


@dataclass(frozen=True)
class Trial:
    """The result on dev of one learning rate."""

    rate: float  # 0: the solved head, without a step
    accuracy: float
    loss: float
    step: int  # at which dev was best
    is_kept: bool = False

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def best(trials: Sequence[Trial]) -> Trial:
    """Most right answers on dev; among equals the smaller loss, then the smaller rate."""
    return min(trials, key=lambda trial: (-trial.accuracy, trial.loss, trial.rate))


FROZEN = "frozen features, closed-form classifier"  # the name of what the features say without training


@dataclass(frozen=True)
class Rival:
    """A simpler method, judged on the same images."""

    name: str
    right: int
    seen: int


@dataclass(frozen=True, kw_only=True, eq=False)
class Trained:
    """A trained model, the images that judge it with its answers, and the answers it is calibrated on."""

    model: Model
    outcome: Outcome
    judged: ImageSet | None = None  # None: no image judges it
    logits: NDArray[np.float32]  # N K, of the judged images
    judged_by: str
    scores: NDArray[np.float32] = field(default_factory=lambda: np.zeros(0, np.float32))  # N, of the judged images
    chosen: NDArray[np.float32] | None = None  # logits on which the temperature is fitted
    chosen_labels: NDArray[np.int64] | None = None
    chosen_groups: NDArray[np.int64] | None = None  # copies and series among them, if known
    chosen_scores: NDArray[np.float32] | None = None  # on which the threshold is fitted
    unknown_scores: NDArray[np.float32] | None = None  # N, of images whose class was left out
    unknown_logits: NDArray[np.float32] | None = None  # N K, by a head without that class, which has −inf
    used: dict[str, int]  # images of train, dev and test
    seconds: float
    part: NDArray[np.int64] | None = None  # the fold of each judged image
    test: Result | None = None  # of the set's own test split, next to a cross-validated number
    trials: tuple[Trial, ...] = ()  # of a sweep
    rivals: tuple[Rival, ...] = ()
    pixels: ImageSet | None = None  # the judged images as an evaluation sees them, where they are decoded already
    doubts: Doubts | None = None  # about labels learned from, where a closed form left their images out
