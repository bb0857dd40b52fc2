"""The work `speed`: images a second and memory of an untrained network. Its numbers hold for the machine that the
record names, and it has that machine to itself.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from vitreous.evaluation.inference import at_work
from vitreous.machine import choose_device
from vitreous.models.catalog import build
from vitreous.models.cost import macs
from vitreous.papers.experiment import Cell
from vitreous.papers.works.bench import Bench, Readings, Work

ROUNDS = 10  # the fastest counts, since other work slows the rest
LEAST_SECONDS = 0.05  # of a round
MIB = 2**20


def speed(model: str, batch: int, repeat: int) -> Cell:
    """model: a catalog name with changes, its image size among them.  repeat: the number of the measurement."""
    return Cell("speed", {"model": model, "batch": batch, "repeat": repeat}, (), SPEED.version)


def run_speed(cell: Cell, bench: Bench) -> Readings:
    """images_per_second: answers; train_images_per_second: forward and backward, without the optimizer.

    saved_mib: what the forward pass keeps for the backward pass, by image; peak_mib: the GPU's peak in training.
    """
    options, place = cell.options, choose_device(bench.device)
    model = build(options["model"], seed=int(options["repeat"]))
    config = model.config
    images = torch.randint(0, 256, (options["batch"], config.channels, *config.image_size), dtype=torch.uint8)
    with at_work(model, place) as (normalised, cast):
        inputs = normalised(images.to(place))

        @torch.inference_mode()
        def answer() -> None:
            with cast():
                model(inputs)

        rate = options["batch"] / seconds_of(answer, place)
    training = training_cost(model.to(place).train(), inputs.clone(), cast, place)
    work = macs(config)
    return {"images_per_second": rate, "macs_per_second": rate * work, "macs": work, **training}


def training_cost(model: nn.Module, inputs: Tensor, cast: Any, place: torch.device) -> Readings:
    """Speed and memory of forward and backward."""
    saved = 0

    def count(kept: Tensor) -> Tensor:
        nonlocal saved
        whole = kept.untyped_storage()
        saved += 0 if whole.data_ptr() in counted else whole.nbytes()
        counted.add(whole.data_ptr())
        return kept

    def step() -> None:
        with cast():
            loss = model(inputs).float().square().mean()
        loss.backward()

    counted = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    with torch.autograd.graph.saved_tensors_hooks(count, lambda kept: kept):
        step()
    if place.type == "cuda":
        torch.cuda.reset_peak_memory_stats(place)
    rate = len(inputs) / seconds_of(step, place)
    peak = {"peak_mib": torch.cuda.max_memory_allocated(place) / MIB} if place.type == "cuda" else {}
    return {"train_images_per_second": rate, "saved_mib": saved / MIB / len(inputs), **peak}


def seconds_of(work: Callable[[], None], place: torch.device) -> float:
    """Seconds of one call: the fastest of several rounds, each with enough calls to be timed well."""
    work()
    calls = max(1, math.ceil(LEAST_SECONDS / max(_timed(work, 1, place), 1e-6)))
    return min(_timed(work, calls, place) for _ in range(ROUNDS)) / calls


def _timed(work: Callable[[], None], calls: int, place: torch.device) -> float:
    _wait(place)
    begin = time.perf_counter()
    for _ in range(calls):
        work()
    _wait(place)
    return time.perf_counter() - begin


def _wait(place: torch.device) -> None:
    if place.type == "cuda":
        torch.cuda.synchronize(place)


SPEED = Work(run_speed, is_alone=True)
