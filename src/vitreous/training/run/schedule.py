"""The learning rate of every step.

    p(t)   = clip((t − W) / (T − W), 0, 1)                         W warm-up steps, T steps in all, t = 0 … T − 1
    rate   = decay(p) · min(1, t / W) · min(1, (T − t) / C)        C cool-down steps; b peak, e end

    cosine   e + (b − e) (1 + cos πp) / 2              linear     e + (b − e) (1 − p)
    rsqrt    b / √(1 + (t − W) / timescale)            constant   b
    steps    b / 10 for each drop that t has reached
    deit     by whole epochs n of N: warm-up from `warmup_lr` in equal steps, then e + (b − e) (1 + cos πn/N) / 2,
             whose phase the warm-up does not shift

The first step has rate 0, as in the papers' code.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from vitreous.errors import ConfigError
from vitreous.training.recipe import Epochs, Recipe, Steps

Floats = NDArray[np.float64]


def rates(recipe: Recipe, steps: int, steps_per_epoch: float) -> Floats:
    """The rate of each step 0 … steps − 1, of parameters whose peak is `peak_lr`."""
    return _rates(recipe, np.arange(steps, dtype=np.float64), steps, steps_per_epoch)


def rate(recipe: Recipe, step: int, steps: int, steps_per_epoch: float) -> float:
    """The rate of one step; step = steps gives the end of the schedule."""
    return float(_rates(recipe, np.array([step], np.float64), steps, steps_per_epoch)[0])


def total_steps(recipe: Recipe, per_epoch: int) -> int | None:
    """All steps of a training; None if they follow from a time in seconds."""
    match recipe.length:
        case Steps(count=count):
            return count
        case Epochs(count=count):
            return max(1, math.ceil(count * per_epoch - 1e-9))
        case _:
            return None


def span_steps(span: Epochs | Steps | float, steps: int, steps_per_epoch: float) -> int:
    """A warm-up or cool-down in steps: given as steps, as epochs, or as a share of all."""
    if isinstance(span, Steps):
        return span.count
    return round(span.count * steps_per_epoch) if isinstance(span, Epochs) else round(span * steps)


def _rates(recipe: Recipe, t: Floats, steps: int, steps_per_epoch: float) -> Floats:
    warmup = span_steps(recipe.warmup, steps, steps_per_epoch)
    cooldown = span_steps(recipe.cooldown, steps, steps_per_epoch)
    for name, count in (("warmup", warmup), ("cooldown", cooldown)):
        if count > steps:
            raise ConfigError(f"{name} of {count} steps is longer than the run of {steps}; give a share, {name}=0.1")
    if recipe.schedule == "deit":
        rate = _deit(recipe, t, warmup, steps, steps_per_epoch)
    else:
        rate = _decay(recipe, t, warmup, steps) * (np.minimum(1, t / warmup) if warmup else 1)
    return rate * (np.minimum(1, (steps - t) / cooldown) if cooldown else 1)


def _decay(recipe: Recipe, t: Floats, warmup: int, steps: int) -> Floats:
    peak, end = recipe.peak_lr, recipe.end_lr
    p = np.clip((t - warmup) / max(steps - warmup, 1), 0, 1)
    if recipe.schedule == "cosine":
        return end + (peak - end) * (1 + np.cos(np.pi * p)) / 2
    if recipe.schedule == "linear":
        return end + (peak - end) * (1 - p)
    if recipe.schedule == "rsqrt":
        return peak / np.sqrt(1 + np.maximum(t - warmup, 0) / recipe.timescale)
    drops = [round(share * steps) for share in recipe.drops if recipe.schedule == "steps"]
    return peak * 0.1 ** (t[:, None] >= np.array(drops)).sum(1)


def _deit(recipe: Recipe, t: Floats, warmup: int, steps: int, steps_per_epoch: float) -> Floats:
    n = np.floor(t / steps_per_epoch + 1e-9)  # a whole epoch's last digit may be lost
    rising = recipe.warmup_lr + n * (recipe.peak_lr - recipe.warmup_lr) * steps_per_epoch / max(warmup, 1)
    phase = np.minimum(n * steps_per_epoch / steps, 1)
    falling = recipe.end_lr + (recipe.peak_lr - recipe.end_lr) * (1 + np.cos(np.pi * phase)) / 2
    return np.where(n * steps_per_epoch < warmup, rising, falling)
