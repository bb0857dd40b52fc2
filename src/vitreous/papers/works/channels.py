"""The work `channels`: how much the colours of a patch repeat each other, in images and in the filters learned."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from vitreous.errors import DataError
from vitreous.images.imageset import TRAIN
from vitreous.models.vit import ViT, patchify
from vitreous.papers.experiment import Cell
from vitreous.papers.works.bench import Bench, Readings, Work, seed_of
from vitreous.randomness import permutation

COLOUR_SAMPLE = 256  # images of a seed


def channels(trained: Cell) -> Cell:
    """For a ViT, on training images that its seed draws."""
    options = {"data": trained.options["data"], "seed": trained.options["seed"]}
    return Cell("channels", options, (trained,), CHANNELS.version)


def run_channels(cell: Cell, bench: Bench) -> Readings:
    model = bench.model(cell.needs[0])
    if not isinstance(model, ViT) or model.config.channels < 2:
        raise DataError("colours are compared in a ViT that sees several; train one on colour images")
    data = bench.sets.open(cell.options["data"]).split(TRAIN)
    chosen = data.take(permutation(seed_of(cell.options), "paper channels", 0, len(data))[:COLOUR_SAMPLE])
    patch, count = model.embedding.patch, model.config.channels
    patches = patchify(model.preprocess(chosen), patch).unflatten(-1, (count, -1))  # B N C PP
    inside = patches - patches.mean(-1, keepdim=True)
    filters = model.embedding.projection.weight.detach().unflatten(-1, (count, -1))  # D C PP
    found = {"patch": inside.flatten(0, 1), "filter": filters}
    return {f"{name}_{key}": value for name, x in found.items() for key, value in colour_structure(x.cpu()).items()}


def colour_structure(x: torch.Tensor) -> dict[str, float]:
    """Over all places of all items: mean correlation of two colours, and the share of the first colour axis.

    x: items C places.
    """
    rows: NDArray[Any] = x.double().transpose(0, 1).flatten(1).numpy()  # C, items · places
    colours = len(rows)
    correlation = np.corrcoef(rows)
    power = np.linalg.eigvalsh(np.cov(rows))
    between = correlation[~np.eye(colours, dtype=bool)]
    return {"colour_correlation": float(between.mean()), "first_colour_axis": float(power[-1] / power.sum())}


CHANNELS = Work(run_channels)
