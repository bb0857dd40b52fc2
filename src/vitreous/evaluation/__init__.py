"""A model and images become numbers. Each part loads on first use."""

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vitreous.evaluation.curve import curve as curve
    from vitreous.evaluation.episodes import episodes as episodes
    from vitreous.evaluation.features import extract as extract
    from vitreous.evaluation.fewshot import fewshot as fewshot
    from vitreous.evaluation.fewshot import ridge as ridge
    from vitreous.evaluation.label_errors import label_errors as label_errors
    from vitreous.evaluation.probes import probe as probe
    from vitreous.evaluation.suite import suite as suite
    from vitreous.evaluation.transferability import score as score

PARTS = [
    "accuracy",
    "calibration",
    "evaluate",
    "features",
    "labels",
    "logistic",
    "predict",
    "probes",
    "transferability",
]
HOME = {
    "extract": "features",
    "fewshot": "fewshot",
    "ridge": "fewshot",
    "episodes": "episodes",
    "probe": "probes",
    "score": "transferability",
    "curve": "curve",
    "label_errors": "label_errors",
    "suite": "suite",
}

__all__ = [*HOME, *PARTS]


class _Room(ModuleType):
    """Where a file bears its function's name, the function is meant, whichever was imported first."""

    def __setattr__(self, name: str, value: Any) -> None:
        if not (isinstance(value, ModuleType) and HOME.get(name) == name):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Room


def __getattr__(name: str) -> Any:
    if name in HOME:
        return getattr(import_module(f"{__name__}.{HOME[name]}"), name)
    if name in PARTS:
        return import_module(f"{__name__}.{name}")
    raise AttributeError(f"{__name__} has no {name!r}; it has: {', '.join(__all__)}")
