"""What a model learned, as class means of features: images far from all of them are none of these classes.

N images   D features   K classes
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from vitreous.evaluation.features import extract
from vitreous.images.imageset import ImageSet
from vitreous.models.familiarity import Familiarity
from vitreous.models.model import Model
from vitreous.models.preprocess import Preprocess
from vitreous.training.run.runtime import Runtime

if TYPE_CHECKING:
    from vitreous.training.plan.plan import Plan

IMAGES_PER_CLASS, IMAGES_IN_ALL = 100, 20_000  # whose features make the means; more change little
BLANK_RANGE = 8 / 255  # an image is blank if no channel has a wider range
BLANKS_LEARNED_FROM = 0.02  # a set with this share of blank images teaches them

Rows = NDArray[np.floating[Any]]


def learn(plan: Plan, model: Model, train: ImageSet, runtime: Runtime) -> None:
    """Give a trained model its familiarity, from images that it learned from."""
    some = train.take(_some_of_each(train, plan.recipe.seed))
    found = extract(model, some, cache=False, device=runtime.device, workers=runtime.workers)
    model.familiarity = familiarity_of(plan, found.only, found.labels)


def familiarity_of(plan: Plan, rows: Rows, labels: NDArray[np.int64]) -> Familiarity:
    """rows: N D, features of training images.  labels: N, or N K with several labels."""
    means = _unit(_members(labels, len(plan.classes)).T @ _unit(rows))
    return Familiarity(torch.from_numpy(means.astype(np.float32)), _least_contrast(plan, plan.preprocess))


def left_out_scores(
    rows: Rows, labels: NDArray[np.int64], classes: int, part: NDArray[np.int64]
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """The score of each image by the means of the other parts: of all classes, and of all but its own.  N, N.

    The second is its score as if its class had never been learned.
    """
    unit, members = _unit(rows), _members(labels, classes)
    whole = members.T @ unit  # K D
    known, unknown = np.zeros(len(rows), np.float32), np.zeros(len(rows), np.float32)
    for number in np.unique(part):
        here = part == number
        cosines = unit[here] @ _unit(whole - members[here].T @ unit[here]).T  # n K
        known[here] = cosines.max(1)
        unknown[here] = np.where(members[here] > 0, -1, cosines).max(1)
    return known, unknown


def _members(labels: NDArray[np.int64], classes: int) -> NDArray[np.float32]:
    """N K of 0 and 1."""
    is_member = labels > 0 if labels.ndim == 2 else labels[:, None] == np.arange(classes)
    return is_member.astype(np.float32)


def _unit(rows: Rows) -> NDArray[np.float32]:
    rows = np.asarray(rows, np.float32)
    return rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)


def _some_of_each(data: ImageSet, seed: int) -> NDArray[np.int64]:
    """Places of at most IMAGES_PER_CLASS images of each class, drawn at random, in their order."""
    order = np.random.default_rng(seed).permutation(len(data))
    members = _members(data.labels[order], len(data.classes))
    rank = np.where(members > 0, members.cumsum(0), np.inf).min(1)  # the place of an image within its class
    each = min(IMAGES_PER_CLASS, max(IMAGES_IN_ALL // len(data.classes), 1))
    return np.sort(order[rank <= each])


def _least_contrast(plan: Plan, rule: Preprocess) -> float:
    """The least contrast, normalised as `Familiarity` wants it."""
    blank = plan.health.find("blank") if plan.health is not None else None
    if blank is not None and len(blank.cases) >= BLANKS_LEARNED_FROM * plan.health.checked:  # type: ignore[union-attr]
        return 0.0
    return BLANK_RANGE / max(rule.std)
