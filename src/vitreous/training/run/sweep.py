"""A sweep of learning rates, as in table 4 of arXiv 2010.11929: each trains, dev chooses, test knows nothing of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from vitreous.errors import ConfigError
from vitreous.training.recipe import Recipe

__all__ = ["Trial", "at_rate", "best", "checked", "no_folds", "rates", "stage_of"]

SGD = (0.001, 0.003, 0.01, 0.03)  # P1's
FACTORS = (1 / 3, 1.0, 3.0)  # of the recipe's own rate, for the others


@dataclass(frozen=True)
class Trial:
    """What a rate came to on dev."""

    rate: float  # 0: the head that was solved, without a step
    accuracy: float
    loss: float
    step: int  # at which it was best
    is_kept: bool = False

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def rates(recipe: Recipe, asked: bool | Sequence[float], say: Callable[[str], object]) -> tuple[float, ...]:
    """The rates to try, in rising order; none where no sweep was asked for, or nothing has a rate."""
    if asked is False:
        return ()
    if recipe.is_solved:
        say(f"a closed form has no rate to sweep; its penalty is chosen among {len(recipe.l2)} as it is")
        return ()
    if recipe.task != "classify":
        raise ConfigError(f"a sweep chooses by right answers, and task={recipe.task} has none; leave --sweep out")
    if not recipe.dev:
        raise ConfigError("a sweep chooses on dev, and dev=0 leaves none; give a share, such as --set dev=0.1")
    if asked is True:
        return SGD if recipe.optimizer == "sgd" else tuple(recipe.peak_lr * factor for factor in FACTORS)
    return checked(asked)


def checked(asked: Any) -> tuple[float, ...]:
    """Rates that were named, in rising order."""
    try:
        found = tuple(sorted({float(rate) for rate in asked}))
    except (TypeError, ValueError):
        found = ()
    if isinstance(asked, str) or not found or not all(0 < rate < math.inf for rate in found):
        raise ConfigError(f"sweep={asked!r} are no rates; give numbers above 0, such as (0.001, 0.01)")
    return found


def no_folds(folds: int | None) -> int:
    """A sweep looks at dev, which folds have not."""
    if folds:
        raise ConfigError(f"a sweep chooses on dev, and {folds} folds leave none; leave --folds or --sweep out")
    return 0


def at_rate(recipe: Recipe, rate: float) -> Recipe:
    """The recipe with another rate; those of the head and of Muon change by the same factor."""
    factor = rate / recipe.peak_lr
    head = recipe.head_lr and recipe.head_lr * factor
    return recipe.change(peak_lr=rate, head_lr=head, muon_lr=recipe.muon_lr * factor)


def stage_of(rate: float) -> str:
    """The name of a trial's stage in events and states."""
    return f"rate-{rate!r}".replace("+", "")


def best(trials: Sequence[Trial]) -> Trial:
    """Most right answers on dev; of equals the smaller loss, then the smaller rate."""
    return min(trials, key=lambda trial: (-trial.accuracy, trial.loss, trial.rate))
