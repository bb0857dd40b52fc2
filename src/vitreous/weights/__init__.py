"""Everyone's checkpoints to ours and back. Each part loads on first use."""

from importlib import import_module
from types import ModuleType

__all__ = [
    "formats",
    "hub",
    "imagenet",
    "load_model",
    "own_format",
    "pretrained",
    "quantised",
    "save_model",
    "starter",
    "surgery",
]


def __getattr__(name: str) -> ModuleType:
    if name in __all__:
        return import_module(f"{__name__}.{name}")
    raise AttributeError(f"{__name__} has no {name!r}; it has: {', '.join(__all__)}")
