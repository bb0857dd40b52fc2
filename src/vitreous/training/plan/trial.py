"""Real training steps on images of noise, timed: what `plan --measure` and benchmarks/plan_memory.py run."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from vitreous.images.batches.batches import Batches, Loading, Order
from vitreous.images.imageset import TRAIN, ImageSet
from vitreous.images.pixels.augment import Augment
from vitreous.models.catalog import build
from vitreous.models.config import Config
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
    config: Config,
    recipe: Recipe,
    device: torch.device,
    *,
    steps: int = 20,
    checkpointing: bool = False,
    compiled: Compiled | None = None,
    captured: bool | None = None,
) -> TimedSteps:
    """Time training steps of the recipe's batch, by the step that `fit` takes."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    threads = torch.get_num_threads()
    work = make_work(config, recipe, device, checkpointing=checkpointing, compiled=compiled, captured=captured)
    try:
        for _ in range(TRIAL_WARM_UP):
            work()
        seconds = seconds_each(work, steps, device)
    finally:
        torch.set_num_threads(threads)
    memory = torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None
    return TimedSteps(steps, recipe.batch, seconds, memory)


def make_work(
    config: Config,
    recipe: Recipe,
    device: torch.device,
    *,
    checkpointing: bool = False,
    compiled: Compiled | None = None,
    captured: bool | None = None,
    **options: Any,
) -> Callable[[], None]:
    """A function that takes the next training step, on images of noise that lie on the device.

    On a CPU torch's threads are as `fit` sets them.  options: of `Step`.
    """
    crop = Augment(size=config.image_size, crop="none", flip=0.5)
    recipe = replace(recipe, augment=crop)
    network = build(config, seed=0).to(device).train()
    network.gradient_checkpointing = checkpointing
    classes = max(config.readout.classes, 1)
    data = _noise(recipe.batch, config, classes)
    stage = TrainingStage(Classify(network, recipe), network, recipe, data, network.preprocess)
    runtime = Runtime(device, workers=0, compiled=compiled)
    lanes = choose_lanes(stage, runtime)
    torch.set_num_threads(choose_threads(stage, runtime, lanes))
    step = Step(
        stage.task, recipe, steps=1000, rule=stage.preprocess, classes=classes, device=device, ranks=runtime.ranks,
        compiled=compiled, captured=captured, lanes=lanes, **options,
    )  # fmt: skip
    loading = Loading(preprocess=stage.preprocess, augment=crop, workers=0, device=device, resident=True)
    batches = iter(Batches(data, Order(batch=recipe.batch, epochs=10**6, ranks=runtime.ranks), loading))
    done = 0

    def work() -> None:
        nonlocal done
        step(next(batches), done, 0.1)
        done += 1

    return work


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
