"""Weights at another image size, and the work `at-size`: what a model answers there before any step."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from vitreous.errors import ConfigError
from vitreous.evaluation.evaluate import evaluate
from vitreous.models.config import ViTConfig
from vitreous.models.model import Model
from vitreous.models.positions import resize_line
from vitreous.papers.experiment import Cell
from vitreous.papers.works.bench import Bench, Readings, Work
from vitreous.weights.load_model import load
from vitreous.weights.save_model import save

PositionMove = Literal["2-D", "1-D", "anew"]
POSITION_MOVES: tuple[PositionMove, ...] = ("2-D", "1-D", "anew")
POSITION_STD = 0.02  # of a fresh table, as in a new network


@dataclass(frozen=True)
class Resized:
    """pixels: the new side.  positions: resized as a grid, as one line of tokens, or drawn anew."""

    pixels: int
    positions: PositionMove

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def at_size(weights: str | os.PathLike[str], resized: Resized) -> Model:
    """The weights at another size. Tokens in front of the patches keep their positions."""
    model, how = load(weights, image_size=resized.pixels), resized.positions
    if how not in POSITION_MOVES:
        raise ConfigError(f"positions move {how!r}; give {', '.join(POSITION_MOVES)}")
    if how == "2-D":  # as load does
        return model
    front = _config(model).covered
    table, before = _table(model), _table(load(weights))
    with torch.no_grad():
        if how == "1-D":
            table[front:] = resize_line(before[front:], len(table) - front)
        else:
            table[front:].normal_(0, POSITION_STD, generator=torch.Generator().manual_seed(0))
    return model


def _config(model: Model) -> ViTConfig:
    if not isinstance(model.config, ViTConfig):
        raise ConfigError("a ResNet has no positions to resize; give a ViT")
    return model.config


def _table(model: Any) -> Any:
    """The learned positions."""
    return model.embedding.positions.table


def begin_at_size(weights: Any, resized: Resized, into: Path) -> Path:
    """The resized weights as a file to train from."""
    save(at_size(weights, resized), into, force=True)
    return into


def answers_at_size(trained: Cell, resized: Resized) -> Cell:
    """A model's accuracy at another size, on test images of its own classes."""
    known = {name: trained.options[name] for name in ("data", "classes") if name in trained.options}
    return Cell("at-size", {**known, "resized": resized.to_json()}, (trained,), AT_SIZE.version)


def run_at_size(cell: Cell, bench: Bench) -> Readings:
    model = at_size(bench.model_file(cell.needs[0]), Resized(**cell.options["resized"]))
    found = evaluate(model, bench.sets.part(cell.options, 0), split="test", **bench.place)
    return {"accuracy_before": found.right / found.images}


AT_SIZE = Work(run_at_size)
