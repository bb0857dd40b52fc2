"""Temperature and threshold of the trained model, and its calibrated answers to the judged images."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitreous.evaluation import calibration
from vitreous.models.model import Model
from vitreous.training.plan.plan import Plan
from vitreous.training.run.trained import Trained

__all__ = ["calibrate", "confident_from", "judged_probabilities"]

MIN_ANSWERS = 20  # fewer make "answer only above" worthless


def calibrate(plan: Plan, trained: Trained) -> None:
    """Fit temperature and threshold on answers to images that were not trained on, never on test.

    Masked patches name no class, so their model keeps what it knows of its weights.
    """
    model = trained.model
    if plan.protocol == "masked":
        return
    if trained.chosen is not None and trained.chosen_labels is not None and len(trained.chosen):
        model.temperature = calibration.fit_temperature(trained.chosen, trained.chosen_labels)
        model.threshold = calibration.fit_threshold(calibration.score(trained.chosen))
    model.source = {
        "made_by": "vitreous fit",
        "recipe": plan.recipe.name,
        "data": plan.data.content_id,
        "learned_from": "all" if plan.judges_all and trained.test is None else "train",
        **{name: value for name, value in model.source.items() if name == "terms"},
    }


def judged_probabilities(trained: Trained) -> NDArray[np.float64]:
    """As the model answers; each fold at the temperature of the other folds, so that none praises itself."""
    model = trained.model
    if trained.part is None or trained.judged is None or model.answers == "several":
        return _probabilities(trained.logits, model)
    found = np.zeros(trained.logits.shape, np.float64)
    labels = trained.judged.labels
    for number in np.unique(trained.part):
        here = trained.part == number
        fitted = calibration.fit_temperature(trained.logits[~here], labels[~here])
        found[here] = calibration.softmax(trained.logits[here], fitted)
    return found


def confident_from(trained: Trained) -> float | None:
    """The confidence above which answers are mostly right; None if that tells nothing."""
    if trained.chosen is None or trained.chosen_labels is None or trained.model.answers == "several":
        return None
    above = calibration.answer_above(_probabilities(trained.chosen, trained.model), trained.chosen_labels)
    if above is None or above.confidence == 0 or above.answered < MIN_ANSWERS:
        return None
    return above.confidence


def _probabilities(logits: NDArray[Any], model: Model) -> NDArray[np.float64]:
    way = calibration.sigmoid if model.answers == "several" else calibration.softmax
    return way(logits, model.temperature)
