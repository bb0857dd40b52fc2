"""A CPU's cores side by side in training: each takes a part of the batch forward and back by itself.

Cores that share the work of each layer wait for each other at every layer. On two cores, images/s with one thread, two
threads, two lanes: small-hybrid at 28 pixels 2,949, 2,085, 3,831; at 96 pixels 972, 1,246, 1,637; Ti/16 14, 23, 27.
Gradients are added in the order of the lanes, so that the same number of lanes gives the same weights, bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from vitreous.models.cost import training_flops
from vitreous.models.layers import DropPath
from vitreous.models.model import replica
from vitreous.training.run.tasks.classify import Task

if TYPE_CHECKING:
    from vitreous.training.run.runtime import Runtime
    from vitreous.training.run.stage import TrainingStage

MIN_IMAGES_PER_LANE = 8  # with fewer, starting a lane costs more than it gains
MAX_LANES = 16
ONE_THREAD_BELOW = 4e9  # FLOP of a step: at 2e9, two threads next to the one that draws were 0.6 times as fast
MAX_GRADIENT_BYTES = 2**30  # bytes of the gradients of all lanes; each lane has its own


@dataclass(frozen=True, eq=False)
class Lane:
    """A task with its own modules over the same parameters, since what is set for a step belongs to a module."""

    loss: Callable[..., tuple[Tensor, Tensor]]
    drop_paths: list[DropPath]


class Lanes:
    """Several lanes, each with a thread."""

    def __init__(self, task: Task, count: int):
        tasks = [task, *(replica(task) for _ in range(count - 1))]
        self.lanes = [Lane(each.loss, drop_paths(each.network)) for each in tasks]
        self._pool = ThreadPoolExecutor(count, "vitreous-lane", partial(torch.set_num_threads, 1))

    def __len__(self) -> int:
        return len(self.lanes)

    def gradients(
        self, forward: Callable[[slice, Lane], tuple[Tensor, Tensor]], rows: slice, parameters: Sequence[Tensor]
    ) -> tuple[Tensor, Tensor, list[Tensor | None]]:
        """Mean loss, right answers and gradients of these rows of a batch, in equal shares for all lanes."""
        each = (rows.stop - rows.start) // len(self)

        def work(k: int) -> tuple[Tensor, Tensor, tuple[Tensor | None, ...]]:
            begin = rows.start + k * each
            loss, right = forward(slice(begin, begin + each), self.lanes[k])
            found = torch.autograd.grad(loss / len(self), parameters, allow_unused=True)
            return loss.detach(), right.detach(), found

        losses, rights, found = zip(*self._pool.map(work, range(len(self))), strict=True)
        used = [i for i, gradient in enumerate(found[0]) if gradient is not None]
        sums = [found[0][i] for i in used]
        for more in found[1:]:
            sums = list(torch._foreach_add(sums, [more[i] for i in used]))  # a copy: two gradients may be one tensor
        total: list[Tensor | None] = [None] * len(parameters)
        for i, gradient in zip(used, sums, strict=True):
            total[i] = gradient
        return torch.stack(losses).mean(), torch.stack(rights).sum(), total


def how_many(batch: int, parts: int, cores: int, *, parameters: int, in_pairs: bool) -> int:
    """A lane for each core, if each has enough images and memory; else 1."""
    count = min(cores, MAX_LANES)
    share, rest = divmod(batch, count * parts)
    is_even = not rest and not (in_pairs and share % 2)
    return count if share >= MIN_IMAGES_PER_LANE and is_even and 4 * parameters * count <= MAX_GRADIENT_BYTES else 1


def choose_lanes(stage: TrainingStage, runtime: Runtime) -> int:
    """Lanes for a training on a CPU; a compiled step takes all cores itself."""
    is_compiled = runtime.compiled not in (None, "none")
    if runtime.device.type != "cpu" or is_compiled or runtime.ranks.world > 1 or has_dropout(stage.task.network):
        return 1
    return how_many(
        stage.recipe.batch,
        stage.recipe.accumulation,
        torch.get_num_threads(),
        parameters=sum(p.numel() for p in stage.task.network.parameters() if p.requires_grad),
        in_pairs=stage.recipe.augment.mixes,
    )


def choose_threads(stage: TrainingStage, runtime: Runtime, lanes: int) -> int:
    """One thread in each lane; also one if a step is so little work that threads would wait for each other."""
    if lanes > 1:
        return 1
    work = training_flops(stage.model.config) * stage.recipe.batch / runtime.ranks.world
    return 1 if runtime.device.type == "cpu" and work < ONE_THREAD_BELOW else torch.get_num_threads()


def drop_paths(network: nn.Module) -> list[DropPath]:
    return [module for module in network.modules() if isinstance(module, DropPath)]


def has_dropout(network: nn.Module) -> bool:
    """Whether the network draws from torch's one generator: threads would change the order of its draws."""
    return any(isinstance(m, nn.Dropout) and m.p > 0 for m in network.modules()) or any(
        getattr(m, "dropout_rate", 0.0) > 0 for m in network.modules()
    )
