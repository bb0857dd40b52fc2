"""The work `gradients`: how the gradient's size changes with depth, before training and after it."""

from __future__ import annotations

import math
import statistics
from typing import Any

import torch
from torch import Tensor, nn

from vitreous.images.imageset import TRAIN
from vitreous.machine import choose_device
from vitreous.models.catalog import build
from vitreous.papers.experiment import Cell
from vitreous.papers.works.bench import Bench, Readings, Work, seed_of
from vitreous.randomness import permutation

GRADIENT_IMAGES = 128


def gradients(trained: Cell) -> Cell:
    """For a ViT, on images that it was trained on."""
    return Cell("gradients", {"data": trained.options["data"]}, (trained,), GRADIENTS.version)


def run_gradients(cell: Cell, bench: Bench) -> Readings:
    """spread: deviation over blocks of the gradient's log norm; 0 if all blocks get the same."""
    need = cell.needs[0]
    trained = bench.model(need)
    data = bench.sets.open(cell.options["data"]).split(TRAIN)
    chosen = data.take(permutation(0, "paper gradients", 0, len(data))[:GRADIENT_IMAGES])
    device = choose_device(bench.device)
    images, labels = trained.preprocess(chosen).to(device), torch.from_numpy(chosen.labels).to(device)
    fresh = build(trained.config, seed=seed_of(need.options))
    draw_head(fresh, seed_of(need.options))
    out: Readings = {}
    for when, model in (("start", fresh), ("trained", trained)):
        norms = block_gradients(model.to(device), images, labels)
        out |= {f"gradient_{when}": norms, f"gradient_spread_{when}": spread_of_logs(norms)}
    return out


def draw_head(model: Any, seed: int) -> None:
    """A ViT's head starts at zero and passes no gradient down; give it LeCun's values, which do."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        nn.init.normal_(model.head.weight, std=model.head.in_features**-0.5)


def block_gradients(model: Any, images: Tensor, labels: Tensor) -> list[float]:
    """The norm of the loss's gradient over all parameters of each block."""
    model.eval().requires_grad_(True)
    loss = nn.functional.cross_entropy(model(images), labels)
    blocks = [list(block.parameters()) for block in model.blocks]
    found = iter(torch.autograd.grad(loss, [each for block in blocks for each in block]))
    return [math.sqrt(sum(float(next(found).double().square().sum()) for _ in block)) for block in blocks]


def spread_of_logs(norms: list[float]) -> float:
    return statistics.pstdev(math.log(norm) for norm in norms) if min(norms) > 0 else math.inf


GRADIENTS = Work(run_gradients)
