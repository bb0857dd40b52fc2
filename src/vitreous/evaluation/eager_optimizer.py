"""Optimisers that do not import torch._dynamo, as torch's own do: it takes as long as torch itself."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch


class EagerOptimizer(torch.optim.Optimizer):
    """Put it before torch's optimiser: class AdamW(EagerOptimizer, torch.optim.AdamW)."""

    add_param_group = inspect.unwrap(torch.optim.Optimizer.add_param_group)
    zero_grad = inspect.unwrap(torch.optim.Optimizer.zero_grad)


def eager_step(optimizer: type[torch.optim.Optimizer]) -> Callable[..., Any]:
    """The optimiser's step, without the marks that torch._dynamo reads."""
    return torch.no_grad()(inspect.unwrap(optimizer.step))
