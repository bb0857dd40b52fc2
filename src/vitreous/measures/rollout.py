"""Where the answer came from, through all layers (attention rollout, arXiv 2005.00928)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

HEADS = ("mean", "max", "min")


def rollout(
    weights: Tensor | Sequence[Tensor], *, residual: bool = True, heads: Literal["mean", "max", "min"] = "mean"
) -> Tensor:
    """How much of every input token is in every output token, if attention alone mixed them.

        Aₗ = heads(weightsₗ) + I, each row divided by its sum;    rollout = A_L … A₂ A₁

    weights: L of B H N N, the first layer first.  residual: with the I of the skip connection; without, the attention
    as it is.  heads: how a layer's heads become one.  Returns B N N, each row summing to 1.
    """
    if heads not in HEADS:
        raise ValueError(f"heads={heads!r} is no way to join heads; say {', '.join(HEADS)}")
    if len(weights) == 0:
        raise ValueError("no layers to roll out; give the attention weights of one layer or more")
    joined: Tensor | None = None
    for layer in weights:  # B H N N
        mixed = layer.mean(1) if heads == "mean" else layer.amax(1) if heads == "max" else layer.amin(1)  # B N N
        if residual:
            mixed = mixed + torch.eye(mixed.shape[-1], dtype=mixed.dtype, device=mixed.device)
        mixed = mixed / mixed.sum(-1, keepdim=True)
        joined = mixed if joined is None else mixed @ joined
    assert joined is not None
    return joined  # B N N
