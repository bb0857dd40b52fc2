"""From any folder to batches. Importing it does not import torch, which processes that only read images do not need."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from vitreous.images.imageset import ImageSet
from vitreous.images.open_data import open

if TYPE_CHECKING:
    from vitreous.images.pixels import preprocess

__all__ = ["ImageSet", "open", "preprocess"]


def __getattr__(name: str) -> Any:
    if name in {"augment", "decode", "preprocess"}:
        return import_module(f"vitreous.images.pixels.{name}")
    if name in {"batches", "health", "stores"}:
        return import_module(f"vitreous.images.{name}")
    raise AttributeError(f"vitreous.images has no {name!r}; it has: {', '.join(__all__)}")
