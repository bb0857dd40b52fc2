"""What computes the answers: torch, or another runtime that the model is written for when the server starts.

Attention, breaking and similar images look inside the model, so they stay with torch.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from vitreous.errors import ConfigError, MissingExtraError
from vitreous.exports.export import TARGETS
from vitreous.exports.graphs import ready_to_export
from vitreous.exports.onnx import OPSETS
from vitreous.exports.target import How, Run, make_parts, missing, quietly
from vitreous.models.model import Model
from vitreous.models.preprocess import Preprocess
from vitreous.server.engine import Engine, Pixels

__all__ = ["RUNTIMES", "Outside", "check", "normalised"]

RUNTIMES = ("torch", "onnx", "openvino")
APART = 1e-3  # of the largest logit, that a runtime may differ from torch


def check(runtime: str, device: str | None) -> None:
    """A runtime that there is, whose packages are installed, and that can compute there."""
    if runtime not in RUNTIMES:
        raise ConfigError(f"there is no runtime {runtime!r} to serve with; say {', '.join(RUNTIMES)}")
    if runtime == "torch":
        return
    if missing(TARGETS[runtime], False) is not None:
        raise MissingExtraError(str(TARGETS[runtime].extra), f"vitreous serve --runtime {runtime}")
    if device not in (None, "cpu"):
        raise ConfigError(f"--runtime {runtime} computes on the CPU here; leave --device out, or say --runtime torch")


class Outside:
    """A model written for another runtime; every worker opens it for itself."""

    def __init__(self, model: Model, runtime: str):
        self.name, self.rule, self.target = runtime, model.preprocess, TARGETS[runtime]
        self._folder = tempfile.TemporaryDirectory(prefix="vitreous-serve-", ignore_cleanup_errors=True)
        folder = Path(self._folder.name)
        (folder / "scratch").mkdir()
        with quietly():
            self.target.write(make_parts(ready_to_export(model)), folder, folder / "scratch", How(opset=OPSETS[0]))
        self._file = folder / f"tensor{self.target.suffix}"

    def open(self, engine: Engine) -> Callable[[list[Pixels]], NDArray[np.float32]]:
        """The way to logits B K, once it has said of a picture what torch says."""
        run = self.target.open(self._file)

        def logits(seen: list[Pixels]) -> NDArray[np.float32]:
            return run(normalised(seen, self.rule))[0]

        self._compare(run, engine)
        return logits

    def close(self) -> None:
        """The files go away."""
        self._folder.cleanup()

    def _compare(self, run: Run, engine: Engine) -> None:
        seen = [np.random.default_rng(0).integers(0, 256, (*self.rule.size, len(self.rule.mean)), dtype=np.uint8)]
        theirs, ours = run(normalised(seen, self.rule))[0], engine.logits(seen)
        apart = float(np.abs(theirs - ours).max() / max(np.abs(ours).max(), 1e-6))
        if not apart <= APART:
            raise ConfigError(
                f"{self.name} answers otherwise than torch here (logits {apart:.1%} apart); say --runtime torch"
            )


def normalised(seen: list[Pixels], rule: Preprocess) -> NDArray[np.float32]:
    """B C H W, as `images.preprocess.finish` makes it."""
    x = np.stack(seen).transpose(0, 3, 1, 2).astype(np.float32) / np.float32(255)
    mean, std = (np.array(values, np.float32)[:, None, None] for values in (rule.mean, rule.std))
    return np.ascontiguousarray((x - mean) / std)
