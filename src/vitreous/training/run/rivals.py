"""Simpler methods judged on the same images: the numbers that training must beat."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from vitreous.images.imageset import TRAIN, ImageSet
from vitreous.training.run.closed_form import frozen_features, most_images, solve
from vitreous.training.run.network import start_model
from vitreous.training.run.runtime import Runtime
from vitreous.training.run.trained import Rival

if TYPE_CHECKING:
    from vitreous.training.plan.plan import Plan

__all__ = ["find_rivals", "frozen_rival"]


def find_rivals(plan: Plan, judged: ImageSet, pixels: ImageSet | None, runtime: Runtime) -> tuple[Rival, ...]:
    """The caller's own rival, and the frozen features that training began with."""
    found = [] if runtime.rival is None else [runtime.rival(plan.data.split(TRAIN), judged)]
    if plan.estimate is not None and not plan.recipe.is_solved:
        found.append(frozen_rival(plan, judged if pixels is None else pixels, runtime))
    return tuple(found)


def frozen_rival(plan: Plan, judged: ImageSet, runtime: Runtime) -> Rival:
    """Frozen features and a closed-form classifier, on the judged images if training never saw them.

    Else, or for a very large set, the plan's leave-one-out estimate.
    """
    assert plan.estimate is not None
    name = "frozen features, closed-form classifier"
    train = plan.data.split(TRAIN)
    is_apart = not np.isin(judged.ids, train.ids).any()
    if not is_apart or max(len(train), len(judged)) > most_images(plan.config, runtime.device):
        return Rival(f"{name} (leave-one-out)", plan.estimate.right, plan.estimate.images)
    model = start_model(plan, runtime.device)
    how: dict[str, Any] = {"device": runtime.device, "workers": runtime.workers}
    known, new = (frozen_features(model, part, **how) for part in (train, judged))
    solved = solve(known.rows, known.images.labels, len(plan.classes), (plan.estimate.l2,), device=runtime.device)
    return Rival(name, solved.probe.right(new.rows, new.images.labels), len(new.images))
