"""The stages of a run: what trains on which images, where it stands, and how long the remaining stages will take."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from vitreous.errors import ConfigError
from vitreous.images.imageset import ImageSet
from vitreous.models.model import Model
from vitreous.models.preprocess import Preprocess
from vitreous.training.recipe import Epochs, Recipe
from vitreous.training.run import schedule
from vitreous.training.run.tasks.classify import Task


@dataclass(frozen=True, eq=False)
class TrainingStage:
    """One training: a task, its recipe, its images."""

    task: Task
    model: Model  # whose answers dev judges
    recipe: Recipe
    train: ImageSet
    preprocess: Preprocess
    dev: ImageSet | None = None
    name: str = "fit"

    def __post_init__(self) -> None:
        if not self.per_epoch:
            raise ConfigError(
                f"a batch of {self.recipe.batch} is more than the {len(self.train)} training images; "
                f"give --set batch={len(self.train) // 2 * 2}"
            )

    @property
    def per_epoch(self) -> int:
        """Steps of an epoch."""
        return len(self.train) // self.recipe.batch

    @property
    def steps(self) -> int:
        """Steps in all; 0 while a time in seconds is not yet turned into steps."""
        return schedule.total_steps(self.recipe, self.per_epoch) or 0


@dataclass(frozen=True)
class Standing:
    """Where a stage stands: the plain values that a saved state holds next to its tensors."""

    steps: int  # in all
    step: int = 0  # the next one
    consumed: int = 0  # batches
    best: dict[str, Any] | None = None  # step, accuracy and loss of the kept state
    top: tuple[float, float] | None = None  # highest accuracy on dev, and minus its loss
    without_gain: int = 0  # looks at dev since the highest
    skipped: tuple[int, ...] = ()  # batches that broke the loss
    seconds: float = 0.0  # of training
    is_over: bool = False

    def after_step(self) -> Standing:
        return replace(self, step=self.step + 1, consumed=self.consumed + 1)

    def back_to(self, step: int) -> Standing:
        """Before `step`: the steps since then changed nothing."""
        return replace(self, step=step, consumed=self.consumed - (self.step - step))

    def past_batch(self) -> Standing:
        """After a batch that broke the loss, without a step."""
        return replace(self, skipped=(*self.skipped, self.consumed), consumed=self.consumed + 1)

    def after_look(self, accuracy: float, loss: float, images: int) -> tuple[Standing, bool, bool]:
        """The standing after a look at dev, whether it is the highest so far, and whether its state is kept.

        The latest state within a standard error of the highest accuracy is kept. With a hundred images, chance decides
        the highest, and an early state that reaches it, before the rate came down, is worse on all other images.
        """
        is_best = self.top is None or (accuracy, -loss) > self.top
        top = (accuracy, -loss) if is_best or self.top is None else self.top
        share = (top[0] * images + 1) / (images + 2)  # a perfect score on a few images is not certain
        is_kept = accuracy >= top[0] - math.sqrt(share * (1 - share) / max(images, 1))
        return (
            replace(
                self,
                top=top,
                best={"step": self.step, "accuracy": accuracy, "loss": loss} if is_kept else self.best,
                without_gain=0 if is_best else self.without_gain + 1,
            ),
            is_best,
            is_kept,
        )

    def to_json(self) -> dict[str, Any]:
        return msgspec.to_builtins(self)

    @classmethod
    def from_json(cls, about: dict[str, Any]) -> Standing:
        """Older states have no `top`."""
        return msgspec.convert(about, cls)


@dataclass
class Stages:
    """How far the whole run is, by the steps that this process logs.  lengths: steps of each stage over the first's."""

    lengths: Mapping[str, float] = field(default_factory=dict)
    began: float | None = None  # when the first step was logged
    taken: int = 0  # steps since
    last: tuple[str, int] = ("", 0)

    def after(self, stage: str, step: int, steps: int) -> dict[str, Any]:
        """The fields of `StepOfSeveral` for the place in the whole run; empty if the run is one training."""
        if len(self.lengths) < 2 or stage not in self.lengths:
            return {}
        self._count(stage, step)
        names, lengths = list(self.lengths), list(self.lengths.values())
        at = names.index(stage)
        done, later = sum(lengths[:at]), sum(lengths[at + 1 :])
        left = steps - step + steps * later / lengths[at]
        assert self.began is not None
        each = (time.monotonic() - self.began) / self.taken if self.taken else None
        return {
            "stage_number": at + 1,
            "stages": len(names),
            "run_share": (done + lengths[at] * step / steps) / sum(lengths),
            "run_seconds_left": None if each is None else left * each,
        }

    def _count(self, stage: str, step: int) -> None:
        """The first logged step starts the clock, so it is not counted."""
        if self.began is None:
            self.began = time.monotonic()
        else:
            self.taken += max(step - (self.last[1] if stage == self.last[0] else 0), 0)
        self.last = stage, step


def stage_of(rate: float) -> str:
    """The name of a trial's stage in events and states."""
    return f"rate-{rate!r}".replace("+", "")


def stages_of(recipe: Recipe, folds: int, rates: tuple[float, ...]) -> Stages:
    """One stage for each rate of a sweep; or one for each fold, and one that learns from all images."""
    if recipe.is_solved or recipe.task != "classify":
        return Stages()
    if rates:
        return Stages({stage_of(rate): 1.0 for rate in rates})
    of_all = folds / (folds - 1) if folds and isinstance(recipe.length, Epochs) else 1.0  # an epoch has more images
    return Stages({f"fold-{number + 1}": 1.0 for number in range(folds)} | {"fit": of_all})
