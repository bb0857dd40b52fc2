"""Each CPU core takes a few images through all layers by itself.

When all cores share each layer, they wait for each other at every one, and tokens leave their caches. DeiT-Ti on two
cores, images/s: batches of 64 give 64, batches of 16 give 82, lanes of 8 give 96, and decoding beside blocks nothing.
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

IMAGES_PER_CORE = 8  # at once; 4 and 16 were slower
T = TypeVar("T")


def may_part(model: nn.Module) -> bool:
    """True if several threads may run the model: no hook expects all images of a batch."""
    return not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def in_lanes(answer: Callable[[Tensor], T], images: Tensor, join: Callable[[Sequence[T]], T]) -> T:
    """answer(images), a few at a time on each of torch's cores."""
    cores = torch.get_num_threads()
    each = min(-(-len(images) // cores), IMAGES_PER_CORE)
    if images.device.type != "cpu" or cores == 1 or each == len(images):
        return answer(images)

    def alone(part: Tensor) -> T:
        torch.set_num_threads(1)  # OpenMP keeps this per thread
        return answer(part)

    try:
        return join(list(_pool(cores).map(alone, images.split(each))))
    finally:
        torch.set_num_threads(cores)  # MKL keeps this for all threads


@cache
def _pool(cores: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(cores, "vitreous-lane")


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pool.cache_clear)  # a fork does not copy threads
