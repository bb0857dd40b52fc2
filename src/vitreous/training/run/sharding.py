"""A network in shards (FSDP2): each rank keeps its rows of every weight, gradient, moment and average.

A few blocks at a time are gathered, for the forward pass and again for the backward pass. Optimisers, clipping and
averages work on `ShardedTask.own`: plain tensors that share memory with the shards. The network that was given stays
whole on the host, for looks at dev and for the outcome.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn

from vitreous.errors import ConfigError
from vitreous.models.convolutions import Stage
from vitreous.models.vit import Block
from vitreous.ranks import Ranks
from vitreous.training.plan.parallel import unit_sizes
from vitreous.training.run.optimizers import named_parameters
from vitreous.training.run.tasks.classify import Task


@dataclass(frozen=True)
class RankRows:
    """Which rows of a tensor a rank keeps: the first dimension in equal shares, rounded up; the last ranks get less."""

    ranks: Ranks

    def of(self, shape: tuple[int, ...]) -> slice:
        each = -(-shape[0] // self.ranks.world)
        begin = min(self.ranks.rank * each, shape[0])
        return slice(begin, min(begin + each, shape[0]))

    def own(self, whole: Tensor) -> Tensor:
        """This rank's rows, a view; every rank keeps a single number."""
        return whole[self.of(tuple(whole.shape))] if whole.ndim else whole

    def whole(self, own: Tensor, shape: tuple[int, ...]) -> Tensor:
        """All ranks' rows; called by all of them."""
        if not shape or self.ranks.world == 1:
            return own
        each = -(-shape[0] // self.ranks.world)
        mine = own.new_zeros((each, *shape[1:]))
        mine[: len(own)] = own
        found = own.new_empty((each * self.ranks.world, *shape[1:]))
        torch.distributed.all_gather(list(found.split(each)), mine)
        return found[: shape[0]]

    def norms(self, own: Tensor) -> Tensor:
        """Norms of whole tensors from norms of their rows.  N -> N."""
        squares = own.square()
        torch.distributed.all_reduce(squares)
        return squares.sqrt()


class ShardedTask:
    """A task whose network lies in shards."""

    def __init__(self, given: Task, device: torch.device, ranks: Ranks, *, half: bool):
        """given: whole; it moves to the host and stays whole.  half: blocks compute in bfloat16."""
        if any(isinstance(module, nn.BatchNorm1d) for module in given.network.modules()):
            raise ConfigError("norm_kind=batch counts the images of each device apart under fsdp; say --parallel ddp")
        self.rows, self.given = RankRows(ranks), given
        given.network.to("cpu")
        self.task = _own_modules(given)
        _shard(self.task.network, device, half)
        self._whole: dict[str, Any] = dict(named_parameters(self.task.network))  # DTensors
        self.shapes = {name: tuple(p.shape) for name, p in self._whole.items()}
        self.own = {
            name: nn.Parameter(p.detach().to_local(), requires_grad=p.requires_grad) for name, p in self._whole.items()
        }

    @torch.no_grad()  # else autograd records each access to the rows of a tensor, hundreds in a step
    def take_gradients(self) -> None:
        """After a backward pass, put the rows' gradients where optimisers look for them."""
        for name, whole in self._whole.items():
            own, gradient = self.own[name], whole.grad
            own.data = whole.to_local()  # FSDP may have moved it at its first forward pass
            own.grad = None if gradient is None else gradient.to_local()
            whole.grad = None

    def set_sync(self, wanted: bool) -> None:
        """Whether the next backward pass adds up the ranks' gradients."""
        self.task.network.set_requires_gradient_sync(wanted)  # type: ignore[operator]

    @torch.no_grad()
    def fill_given(self, weights: Mapping[str, Tensor]) -> None:
        """Fill the given network with these rows of all ranks."""
        given = dict(named_parameters(self.given.network))
        for name, own in weights.items():
            given[name].copy_(self.rows.whole(own.detach(), self.shapes[name]))
        for name, buffer in self.task.network.named_buffers():
            self.given.network.get_buffer(name).copy_(buffer)


def units(network: nn.Module) -> list[list[nn.Module]]:
    """The neighbouring blocks that are gathered together."""
    found: list[list[nn.Module]] = []
    for parent in network.modules():
        blocks = [module for module in parent.children() if isinstance(module, Block | Stage)]
        rest = iter(blocks)
        weights = [sum(p.numel() for p in block.parameters()) for block in blocks]
        found += [list(islice(rest, size)) for size in unit_sizes(weights)]
    return found


def _shard(network: nn.Module, device: torch.device, half: bool) -> None:
    """Shard blocks in units, and stem, positions, norm and head with the whole, in float32."""
    try:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
    except ImportError:
        raise ConfigError(f"fsdp needs torch 2.6 or newer, this is {torch.__version__}; say --parallel ddp") from None
    mesh = init_device_mesh(device.type, (torch.distributed.get_world_size(),))
    kinds = {"param_dtype": torch.bfloat16, "reduce_dtype": torch.float32} if half else {}
    policy = MixedPrecisionPolicy(**kinds, cast_forward_inputs=False)
    for unit in units(network):
        fully_shard(unit, mesh=mesh, mp_policy=policy)
    fully_shard(network, mesh=mesh)


def _own_modules(task: Task) -> Task:
    """A copy with its own modules and parameters; the parameters share their memory until they are sharded."""
    network = task.network
    mine: dict[int, Any] = {
        id(p): nn.Parameter(p.detach(), requires_grad=p.requires_grad) for p in network.parameters()
    }
    mine |= {id(buffer): buffer.clone() for buffer in network.buffers()}
    teacher = getattr(task, "teacher", None)
    if teacher is not None:
        mine[id(teacher)] = teacher  # it is not trained
    return copy.deepcopy(task, mine)
