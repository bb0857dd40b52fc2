"""The process group: which of how many processes this is, under torchrun or alone."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from typing import TypeVar

from vitreous.errors import ConfigError

__all__ = ["Ranks", "gather", "here"]

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
    """From torch.distributed where it runs, else from the variables that torchrun sets, else alone."""
    if _is_running():
        import torch.distributed as group

        return Ranks(group.get_rank(), group.get_world_size())
    return Ranks(_number("RANK", 0), _number("WORLD_SIZE", 1))


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
    """Without importing torch: where nobody has, no group runs."""
    group = sys.modules.get("torch.distributed")
    return bool(group and group.is_available() and group.is_initialized())


def _number(name: str, otherwise: int) -> int:
    text = os.environ.get(name, "").strip() or str(otherwise)
    if not text.isdecimal():
        raise ConfigError(f"the variable {name} is {text!r}, which is no number; unset it, or start with torchrun")
    return int(text)
