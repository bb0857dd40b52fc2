"""Measure a model on images. Each part loads on first use."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vitreous.evaluation.confident_learning import label_errors as label_errors
    from vitreous.evaluation.episodic import episodes as episodes
    from vitreous.evaluation.features import extract as extract
    from vitreous.evaluation.few_shot import fewshot as fewshot
    from vitreous.evaluation.learning_curve import curve as curve
    from vitreous.evaluation.probes import probe as probe
    from vitreous.evaluation.ridge_regression import ridge as ridge
    from vitreous.evaluation.suites.table import suite as suite
    from vitreous.evaluation.transferability import score as score

MODULES = [
    "accuracy",
    "calibration",
    "evaluate",
    "features",
    "class_matching",
    "inference",
    "logistic",
    "predict",
    "probes",
    "transferability",
]
HOME = {
    "extract": "features",
    "fewshot": "few_shot",
    "ridge": "ridge_regression",
    "episodes": "episodic",
    "probe": "probes",
    "score": "transferability",
    "curve": "learning_curve",
    "label_errors": "confident_learning",
    "suite": "suites.table",
}

__all__ = [*HOME, *MODULES]


def __getattr__(name: str) -> Any:
    if name in HOME:
        return getattr(import_module(f"{__name__}.{HOME[name]}"), name)
    if name in MODULES:
        return import_module(f"{__name__}.{name}")
    raise AttributeError(f"{__name__} has no {name!r}; it has: {', '.join(__all__)}")
