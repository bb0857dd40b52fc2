"""A see-through workbench for Vision Transformers. Importing it is light: torch loads on first use."""

import gc
import os
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vitreous import errors as errors
    from vitreous import evaluation as evaluation
    from vitreous import exports as exports
    from vitreous import images as images
    from vitreous import measures as measures
    from vitreous import models as models
    from vitreous import papers as papers
    from vitreous import report as report
    from vitreous import server as server
    from vitreous import training as training
    from vitreous import weights as weights
    from vitreous.evaluation.evaluate import evaluate as evaluate
    from vitreous.evaluation.predict import predict as predict
    from vitreous.exports.export import export as export
    from vitreous.images.health import check as check
    from vitreous.images.stores.disk import pack as pack
    from vitreous.machine import doctor as doctor
    from vitreous.measures.look import look as look
    from vitreous.models.catalog import build as build
    from vitreous.models.taps import tap_names as tap_names
    from vitreous.models.taps import taps as taps
    from vitreous.server.serve import serve as serve
    from vitreous.training.demo import demo as demo
    from vitreous.training.fit import fit as fit
    from vitreous.weights.load_model import load as load
    from vitreous.weights.save_model import convert as convert
    from vitreous.weights.save_model import save as save

__version__ = "0.1.0"

ROOMS = ["errors", "report", "models", "weights", "images", "evaluation", "measures", "training"]
ROOMS += ["papers", "exports", "server"]
HOME = {
    "build": "models.catalog",
    "load": "weights.load_model",
    "save": "weights.save_model",
    "convert": "weights.save_model",
    "tap_names": "models.taps",
    "taps": "models.taps",
    "check": "images.health",
    "pack": "images.stores.disk",
    "evaluate": "evaluation.evaluate",
    "predict": "evaluation.predict",
    "look": "measures.look",
    "doctor": "machine",
    "demo": "training.demo",
    "fit": "training.fit",
    "export": "exports.export",
    "serve": "server.serve",
}

__all__ = ["__version__", *HOME, *ROOMS]

if "torch" not in sys.modules:  # OpenMP reads it once, when torch loads; threads that spin starve a busy machine
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


def __getattr__(name: str) -> Any:
    if name in ROOMS:
        return _import(f"vitreous.{name}")
    if name in HOME:
        return getattr(_import(f"vitreous.{HOME[name]}"), name)
    raise AttributeError(f"vitreous has no {name!r}; it has: {', '.join([*HOME, *ROOMS])}")


def _import(name: str) -> Any:
    """Import while Python collects no garbage: each collection would go through all objects of torch."""
    is_enabled = gc.isenabled()
    gc.disable()
    try:
        return import_module(name)
    finally:
        if is_enabled:
            gc.enable()


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
