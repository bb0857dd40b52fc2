"""Answers from a runtime other than torch: the server writes the model for it when it starts.

Attention, breaking and similar images look inside the model, so torch computes them.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from vitreous.errors import ConfigError
from vitreous.exports.export import TARGETS
from vitreous.exports.graphs import ready_to_export
from vitreous.exports.target import Run, WriteOptions, make_parts, quietly, require
from vitreous.images.pixels import preprocess
from vitreous.models.model import Model
from vitreous.models.preprocess import Preprocess
from vitreous.server.engine import Engine, Pixels, stacked

MAX_DIFFERENCE_FROM_TORCH = 1e-3  # of logits, as a share of the largest


def without_torch() -> list[str]:
    """The targets whose files run without PyTorch."""
    return [name for name, target in TARGETS.items() if target.runner is not None]


def check(runtime: str, device: str | None) -> None:
    """Refuse a runtime that does not exist, is not installed, or cannot compute on the device."""
    if runtime == "torch":
        return
    if runtime not in without_torch():
        known = ", ".join(["torch", *without_torch()])
        raise ConfigError(f"there is no runtime {runtime!r} to serve with; choose {known}")
    require(TARGETS[runtime].packages, f"vitreous serve --runtime {runtime}")
    if device not in (None, "cpu"):
        raise ConfigError(f"--runtime {runtime} computes on the CPU; leave --device out, or choose --runtime torch")


class OtherRuntime:
    """A model written for another runtime; every worker opens the file for itself."""

    def __init__(self, model: Model, runtime: str):
        self.name, self.rule, self.target = runtime, model.preprocess, TARGETS[runtime]
        self._read = answers_of if model.config.readout.classes else features_of
        self._folder = tempfile.TemporaryDirectory(prefix="vitreous-serve-", ignore_cleanup_errors=True)
        folder = Path(self._folder.name)
        (folder / "scratch").mkdir()
        with quietly():
            self.target.write(make_parts(ready_to_export(model)), folder, folder / "scratch", WriteOptions())
        self._file = folder / f"tensor{self.target.suffix}"

    def open(self, engine: Engine) -> Callable[[list[Pixels]], NDArray[np.float32]]:
        """A function from images to what the engine answers, once its answer to one image agrees with torch."""
        run = self.target.open(self._file)
        self._compare(run, engine)
        return lambda seen: self._read(run, normalised(seen, self.rule))

    def close(self) -> None:
        """Delete the files."""
        self._folder.cleanup()

    def _compare(self, run: Run, engine: Engine) -> None:
        seen = [np.random.default_rng(0).integers(0, 256, (*self.rule.size, len(self.rule.mean)), dtype=np.uint8)]
        theirs, ours = self._read(run, normalised(seen, self.rule)), engine.answers_to(seen)
        apart = float(np.abs(theirs - ours).max() / max(np.abs(ours).max(), 1e-6))
        if not apart <= MAX_DIFFERENCE_FROM_TORCH:
            raise ConfigError(
                f"{self.name} answers differently from torch here (logits {apart:.1%} apart); choose --runtime torch"
            )


def answers_of(run: Run, x: NDArray[np.float32]) -> NDArray[np.float32]:
    """Logits and score of a tensor form, B K + 1; files of older exports have no score.  x: B C H W."""
    logits, *others = run(x)
    score = others[0] if others and others[0].ndim == 1 else logits.max(1)
    return np.concatenate([logits, score[:, None]], 1)


def features_of(run: Run, x: NDArray[np.float32]) -> NDArray[np.float32]:
    """Features of an encoder without a head, B D.  x: B C H W."""
    return run(x)[0]


def normalised(seen: list[Pixels], rule: Preprocess) -> NDArray[np.float32]:
    """What another runtime's file takes, B C H W."""
    return preprocess.finish(stacked(seen), rule).numpy()
