"""Real training steps on images of noise, timed: what `plan --measure` and benchmarks/scale.py run."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from vitreous.images.batches.batches import Batch, Batches, Loading, Order
from vitreous.images.imageset import TRAIN, ImageSet
from vitreous.images.pixels.augment import Augment
from vitreous.models.catalog import build
from vitreous.models.config import Config
from vitreous.training.plan.parallel import Strategy
from vitreous.training.recipe import Recipe
from vitreous.training.run.core_parallel import choose_lanes, choose_threads
from vitreous.training.run.runtime import Runtime
from vitreous.training.run.stage import TrainingStage
from vitreous.training.run.step import Compiled, Step
from vitreous.training.run.tasks.classify import Classify

TRIAL_WARM_UP = 3  # steps before the clock starts: compile, capture, fill the queues


@dataclass(frozen=True)
class TimedSteps:
    """Steps that ran.  images: of a step.  seconds: of a step.  memory: the most bytes torch held; None on a CPU."""

    steps: int
    images: int
    seconds: float
    memory: int | None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


class NoiseImages:
    """Images of noise: the work is the same for any."""

    def __init__(self, count: int, config: Config):
        shape = (count, *config.image_size, config.channels)
        self.pixels = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)

    def __len__(self) -> int:
        return len(self.pixels)

    def name(self, i: int) -> str:
        return str(i)

    def raw(self, i: int) -> None:
        return None

    def read(self, i: int) -> NDArray[np.uint8]:
        return self.pixels[i]


def measure(
    config: Config, recipe: Recipe, device: torch.device, *, steps: int = 20, checkpointing: bool = False
) -> TimedSteps:
    """Time training steps of the recipe's batch, as `fit` takes them."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    threads = torch.get_num_threads()
    take = make_steps(config, recipe, device, strategy=Strategy(checkpointing=checkpointing))
    try:
        for _ in range(TRIAL_WARM_UP):
            take()
        seconds = seconds_each(take, steps, device)
    finally:
        torch.set_num_threads(threads)
    memory = torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None
    return TimedSteps(steps, recipe.batch, seconds, memory)


class TrialSteps:
    """Each call takes the next training step."""

    def __init__(self, step: Step, batches: Iterator[Batch]):
        self.step, self._batches, self._done = step, batches, 0

    def __call__(self) -> None:
        self.step(next(self._batches), self._done, 0.1)
        self._done += 1


def make_steps(
    config: Config,
    recipe: Recipe,
    device: torch.device,
    *,
    compiled: Compiled | None = None,
    captured: bool | None = None,
    strategy: Strategy | None = None,
) -> TrialSteps:
    """Training steps of `fit`, on images of noise that lie on the device.

    On a CPU, torch's threads are set as in `fit`.
    """
    crop = Augment(size=config.image_size, crop="none", flip=0.5)
    recipe = replace(recipe, augment=crop)
    network = build(config, seed=0).to(device).train()
    classes = max(config.readout.classes, 1)
    data = _noise(recipe.batch, config, classes)
    stage = TrainingStage(Classify(network, recipe), network, recipe, data, network.preprocess)
    runtime = Runtime(device, workers=0, compiled=compiled)
    lanes = choose_lanes(stage, runtime)
    torch.set_num_threads(choose_threads(stage, runtime, lanes))
    step = Step(
        stage.task, recipe, steps=1000, rule=stage.preprocess, classes=classes, device=device, ranks=runtime.ranks,
        compiled=compiled, captured=captured, lanes=lanes, strategy=strategy,
    )  # fmt: skip
    loading = Loading(preprocess=stage.preprocess, augment=crop, workers=0, device=device, resident=True)
    return TrialSteps(step, iter(Batches(data, Order(batch=recipe.batch, epochs=10**6, ranks=runtime.ranks), loading)))


def seconds_each(work: Callable[[], None], steps: int, device: torch.device) -> float:
    _wait(device)
    begin = time.perf_counter()
    for _ in range(steps):
        work()
    _wait(device)
    return (time.perf_counter() - begin) / steps


def _noise(count: int, config: Config, classes: int) -> ImageSet:
    return ImageSet(
        source=NoiseImages(count, config), ids=np.arange(count), labels=np.arange(count) % classes,
        classes=tuple(map(str, range(classes))), splits=np.full(count, TRAIN), path="noise", kind="memory",
        content_id="noise", channels=config.channels,
    )  # fmt: skip


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
