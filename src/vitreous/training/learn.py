"""`learn`: the training of `fit` without its report, for whoever trains many networks and reads one number of each.

It has the same plan, dev split, steps and choice of a state, so the same weights. It leaves out the health check, the
run folder and its saved states, calibration, familiarity (`none_of_these`), rivals, page and card.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vitreous.errors import ConfigError
from vitreous.evaluation import accuracy
from vitreous.evaluation.accuracy import Result
from vitreous.images.imageset import TEST, ImageSet
from vitreous.images.stores import kept
from vitreous.machine import choose_device
from vitreous.models.model import Model
from vitreous.ranks import group
from vitreous.training.plan import plan as plans
from vitreous.training.plan import refusals
from vitreous.training.plan.request import Request
from vitreous.training.recipe import Recipe
from vitreous.training.run import protocols
from vitreous.training.run.runtime import Runtime, preload_kernels
from vitreous.training.run.step import Compiled
from vitreous.training.run.trained import Outcome, Trial


@dataclass(frozen=True, eq=False)
class Learned:
    """A trained network and its result on test."""

    model: Model
    outcome: Outcome
    trials: tuple[Trial, ...]  # of a sweep
    judged: Result


def learn(
    data: ImageSet,
    *,
    scratch: Path,
    model: str | None,
    weights: str | os.PathLike[str] | None = None,
    recipe: str | Recipe,
    rates: Sequence[float] = (),
    device: str | None = None,
    workers: int | None = None,
    compiled: Compiled | None = None,
    **changes: Any,
) -> Learned:
    """Train as `fit` does, with dev or a sweep, and judge on the set's test split.

    model: a catalog name; None keeps that of the weights.  scratch: a folder for images that are decoded once and do
    not fit into memory.  changes: of the recipe's fields.
    """
    request = Request(
        data=data,
        model=model,
        weights=None if weights is None else os.fspath(weights),
        recipe=recipe,
        changes=changes,
        rates=refusals.check_rates(rates) if rates else False,
        check=False,
        folds=0,
    )
    with group(choose_device(device)) as (place, ranks):
        runtime = Runtime(place, ranks, workers, compiled=compiled)
        with preload_kernels(place):
            plan = plans.make(request, runtime)
        refusals.refuse_early(plan, runtime)
        if plan.protocol not in ("dev", "sweep") or not (data.splits == TEST).any():
            raise ConfigError(f"{data.path} is judged by {plan.protocol}, not on a test split; use fit")
        runtime.strategy = plans.choose_strategy(plan, runtime)
        begun = protocols.begin(plan, scratch, runtime)
        outcome, trials = protocols.learn(plan, begun, None, runtime)
        begun.model.source = {"made_by": "vitreous learn", "recipe": plan.recipe.name, "data": data.content_id}
        found = runtime.answers(begun.model, kept.as_evaluated(data.split(TEST), begun.model.preprocess))
    return Learned(begun.model, outcome, trials, accuracy.measure(found.values, found.labels, data.classes))
