"""A CPU's cores side by side: each takes a few images by itself through all layers.

All cores on one layer after the other wait for each other at every layer, and its tokens leave their caches. DeiT-Ti on
two cores, images/s: 64 at a time 64, 16 at a time 82; by lanes of 8 each 96, and decoding beside it stops nobody.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import TypeVar

import torch
from torch import Tensor, nn

__all__ = ["in_lanes", "may_part"]

IMAGES_PER_CORE = 8  # images that a core takes at once; of 4 and 16 it was slower
T = TypeVar("T")


def may_part(model: nn.Module) -> bool:
    """Whether several threads may run it: nothing listens, as a tap does, for all images of a batch."""
    return not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def in_lanes(answer: Callable[[Tensor], T], images: Tensor, join: Callable[[Sequence[T]], T]) -> T:
    """answer(images), a few at a time on each of the cores that torch was given."""
    cores = torch.get_num_threads()
    each = min(-(-len(images) // cores), IMAGES_PER_CORE)
    if images.device.type != "cpu" or cores == 1 or each == len(images):
        return answer(images)

    def alone(part: Tensor) -> T:
        torch.set_num_threads(1)  # OpenMP keeps it for each thread
        return answer(part)

    try:
        return join(list(_pool(cores).map(alone, images.split(each))))
    finally:
        torch.set_num_threads(cores)  # MKL has one number for all threads


@cache
def _pool(cores: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(cores, "vitreous-lane")


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pool.cache_clear)  # threads stay behind
