"""The process group: which of how many processes this is, under torchrun or alone."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from vitreous.errors import ConfigError, RunError

if TYPE_CHECKING:
    import torch

LONGEST_WAIT = timedelta(hours=4)  # others wait while the first rank decodes or writes

Value = TypeVar("Value")


@dataclass(frozen=True)
class Ranks:
    """This process is number `rank` of `world`."""

    rank: int = 0
    world: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.world:
            raise ConfigError(f"rank {self.rank} of {self.world} does not exist; ranks count from 0 to world - 1")

    @property
    def is_first(self) -> bool:
        """The one that prints and writes."""
        return self.rank == 0


def here() -> Ranks:
    """From torch.distributed if it runs, else from torchrun's variables, else a single rank."""
    if _is_running():
        import torch.distributed as group

        return Ranks(group.get_rank(), group.get_world_size())
    return Ranks(_number("RANK", 0), _number("WORLD_SIZE", 1))


@contextmanager
def group(device: torch.device) -> Iterator[tuple[torch.device, Ranks]]:
    """This rank's device, in the group that torchrun asks for; alone without it."""
    ranks = here()
    if ranks.world == 1:
        yield device, ranks
        return
    import torch

    running = torch.distributed
    if device.type == "cuda":
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(device)
    is_ours = not running.is_initialized()
    if is_ours:
        running.init_process_group("nccl" if device.type == "cuda" else "gloo", timeout=LONGEST_WAIT)
    try:
        yield device, ranks
    finally:
        if is_ours:
            running.destroy_process_group()


def agreed(ranks: Ranks, choose: Callable[[], Any]) -> Any:
    """What the first rank chooses, on all of them; what it refuses, too."""
    chosen, fault = None, None
    if ranks.is_first:
        try:
            chosen = choose()
        except Exception as error:
            fault = error
    if ranks.world > 1:
        import torch.distributed

        told: list[Any] = [chosen, None if fault is None else str(fault)]
        torch.distributed.broadcast_object_list(told, 0)
        if told[1] is not None and fault is None:
            raise RunError(told[1])
        chosen = told[0]
    if fault is not None:
        raise fault
    return chosen


@contextmanager
def first(ranks: Ranks, make: Callable[[], AbstractContextManager[Value]]) -> Iterator[Value | None]:
    """What rank 0 makes; None on the others, which wait for it."""
    made: list[AbstractContextManager[Value]] = []
    agreed(ranks, lambda: made.append(make()))
    if not made:
        yield None
        return
    with made[0] as value:
        yield value


def together(ranks: Ranks) -> None:
    """No rank goes on before the first has written what others will read; one that fails does not wait."""
    if ranks.world > 1 and sys.exc_info()[0] is None:
        import torch.distributed

        torch.distributed.barrier()


def gather(value: Value) -> list[Value]:
    """Every rank's value, in the order of ranks; called by all of them."""
    where = here()
    if where.world == 1:
        return [value]
    if not _is_running():
        raise ConfigError(
            f"rank {where.rank} of {where.world} has no process group to ask; "
            "call torch.distributed.init_process_group() first"
        )
    import torch.distributed as group

    values: list[Value | None] = [None] * where.world
    group.all_gather_object(values, value)
    return values  # type: ignore[return-value]  # all are filled in now


def _is_running() -> bool:
    """True if a process group runs; does not import torch, since without it there is none."""
    group = sys.modules.get("torch.distributed")
    return bool(group and group.is_available() and group.is_initialized())


def _number(name: str, otherwise: int) -> int:
    text = os.environ.get(name, "").strip() or str(otherwise)
    if not text.isdecimal():
        raise ConfigError(f"the variable {name} is {text!r}, which is not a number; unset it, or start with torchrun")
    return int(text)
