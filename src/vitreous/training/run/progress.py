"""The trainings of one run, in their order: which of them it is at, and how long all that are left will take."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from vitreous.training.recipe import Epochs, Recipe

__all__ = ["Stages", "stage_of", "stages_of"]


@dataclass
class Stages:
    """Told of every step that is logged, in one process.  lengths: by stage, its steps, those of the first being 1."""

    lengths: Mapping[str, float] = field(default_factory=dict)
    began: float | None = None  # when the first step was told of
    taken: int = 0  # steps since
    last: tuple[str, int] = ("", 0)

    def after(self, stage: str, step: int, steps: int) -> dict[str, Any]:
        """What a step's event says of the whole run; nothing, where it is one training."""
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
        """The first step told of takes no time that is known; a stage after it begins with none taken."""
        if self.began is None:
            self.began = time.monotonic()
        else:
            self.taken += max(step - (self.last[1] if stage == self.last[0] else 0), 0)
        self.last = stage, step


def stage_of(rate: float) -> str:
    """The name of a trial's stage in events and states."""
    return f"rate-{rate!r}".replace("+", "")


def stages_of(recipe: Recipe, folds: int, rates: tuple[float, ...]) -> Stages:
    """One for each rate of a sweep; or one for each fold, and one that learns from all images."""
    if recipe.is_solved or recipe.task != "classify":
        return Stages()
    if rates:
        return Stages({stage_of(rate): 1.0 for rate in rates})
    of_all = folds / (folds - 1) if folds and isinstance(recipe.length, Epochs) else 1.0  # an epoch has more images
    return Stages({f"fold-{number + 1}": 1.0 for number in range(folds)} | {"fit": of_all})
