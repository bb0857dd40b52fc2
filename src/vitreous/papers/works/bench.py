"""What cells are computed with: sets of images, trained models, a device."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from vitreous.errors import NotFiniteError
from vitreous.files import cache_folder, replace
from vitreous.models.model import Model
from vitreous.papers.experiment import Cell
from vitreous.papers.sets import Sets
from vitreous.training.run.step import Compiled
from vitreous.weights.load_model import load
from vitreous.weights.save_model import save

Readings = dict[str, Any]  # plain numbers by name


@dataclass(frozen=True)
class Work:
    """What a cell does. A new version makes new cells: raise it when the numbers change their meaning."""

    run: Callable[[Cell, Bench], Readings]
    version: int = 1
    is_alone: bool = False  # it measures time, so nothing else may run meanwhile


@dataclass
class Bench:
    """models: where trained models are kept by the key of their cell; by default the user's cache."""

    sets: Sets = field(default_factory=Sets)
    device: str | None = None
    workers: int | None = None
    compiled: Compiled | None = None  # which part of a training step; None: as `fit` chooses
    models: Path = field(default_factory=lambda: cache_folder() / "papers")
    train: Callable[[Cell, Bench], Readings] | None = None  # makes a model that is not there

    def is_trained(self, cell: Cell) -> bool:
        """True if its training ended here, with a model or without one."""
        return self._file(cell).is_file() or self._diverged(cell).is_file()

    def model_file(self, cell: Cell) -> Path:
        """The trained model of a cell; trained again if it is not there."""
        if not self.is_trained(cell):
            assert self.train is not None, "the runner says how to train"
            self.train(cell, self)
        if self._diverged(cell).is_file():
            raise NotFiniteError(f"the training {cell.key} diverged, so it left no model")
        return self._file(cell)

    def _file(self, cell: Cell) -> Path:
        return self.models / f"{cell.key}.safetensors"

    def _diverged(self, cell: Cell) -> Path:
        return self.models / f"{cell.key}.diverged"

    def mark_diverged(self, cell: Cell) -> None:
        """Note that the training leaves no model, so that no reader trains it again."""
        self.models.mkdir(parents=True, exist_ok=True)
        self._diverged(cell).touch()

    def model(self, cell: Cell) -> Model:
        return load(self.model_file(cell))

    def keep(self, cell: Cell, model: Model) -> None:
        """Keep a trained model for the cells that need it."""
        self.models.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=self.models) as scratch:
            (part,) = save(model, Path(scratch) / "model.safetensors")
            replace(part, self._file(cell))

    @property
    def place(self) -> dict[str, Any]:
        """Where to compute, as keyword arguments of our public functions."""
        return {"device": self.device, "workers": self.workers}


def seed_of(options: Mapping[str, Any]) -> int:
    return int(options["seed"])


def is_cuda(bench: Bench) -> bool:
    return torch.cuda.is_available() if bench.device is None else bench.device.startswith("cuda")
