"""Small layers that several networks share, and the initialisers of the released code (LeCun, Xavier)."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitreous.models.config import ViTConfig

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu-tanh": lambda x: F.gelu(x, approximate="tanh"),
    "quick-gelu": lambda x: x * torch.sigmoid(1.702 * x),  # OpenAI's CLIP
    "silu": F.silu,
    "relu": F.relu,
    "swiglu": lambda x: F.silu(x.chunk(2, -1)[0]) * x.chunk(2, -1)[1],  # two halves in, one out: DINOv2-giant
}
HIDDEN_WIDTHS_READ = {"swiglu": 2}  # hidden widths that an activation reads, if not one


class Linear(nn.Linear):
    """A linear layer that skips torch's initialisation; its owner's `start` sets the values."""

    def reset_parameters(self) -> None:
        pass


class Activation(nn.Module):
    """x Φ(x), its tanh form, x σ(1.702 x), x σ(x), max(x, 0), or a gated pair."""

    def __init__(self, kind: str):
        super().__init__()
        self.kind = kind

    def forward(self, x: Tensor) -> Tensor:
        return ACTIVATIONS[self.kind](x)


class TokenBatchNorm(nn.BatchNorm1d):
    """Batch norm per feature over all tokens of all images; the last axis is the feature."""

    def forward(self, x: Tensor) -> Tensor:                                     # … D
        return super().forward(x.reshape(-1, x.shape[-1])).view_as(x)


def make_norm(config: ViTConfig, width: int | None = None) -> nn.Module:
    kinds = {"layer": nn.LayerNorm, "rms": nn.RMSNorm, "batch": TokenBatchNorm}
    return kinds[config.encoder.norm_kind](width or config.encoder.width, eps=config.encoder.norm_eps)


def make_head_norm(config: ViTConfig) -> nn.Module:
    """The norm of one head's query or key."""
    e = config.encoder
    if not e.qk_norm:
        return nn.Identity()
    kind = nn.RMSNorm if e.norm_kind == "rms" else nn.LayerNorm
    return kind(e.width // e.heads, eps=e.norm_eps)


class KeysWithoutBias(Linear):
    """Stacked queries, keys and values; `bias` holds those of queries and values, 2D numbers, and keys have none."""

    def __init__(self, width: int):
        super().__init__(width, 3 * width, bias=False)
        self.bias = nn.Parameter(torch.empty(2 * width))

    def forward(self, x: Tensor) -> Tensor:                                     # B N D
        query, value = self.bias.chunk(2)
        return F.linear(x, self.weight, torch.cat([query, torch.zeros_like(query), value]))  # B N 3D


class Gain(nn.Module):
    """Layer scale: a learned factor on each feature of a branch."""

    def __init__(self, width: int, beginning: float):
        super().__init__()
        self.beginning = beginning
        self.gain = nn.Parameter(torch.empty(width))

    def start(self) -> None:
        nn.init.constant_(self.gain, self.beginning)

    def forward(self, x: Tensor) -> Tensor:                                     # B N D
        return x * self.gain


class DropPath(nn.Module):
    """In training, drops a branch for a whole image with probability `rate`, and scales the others by 1 / (1 − rate).

    factor: B values, 0 or 1 / (1 − rate), drawn by the trainer; if None, torch draws them.
    """

    def __init__(self, rate: float):
        super().__init__()
        self.rate = rate
        self.factor: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:                                     # B …
        if not self.training:
            return x
        factor = self.factor  # B; only its values differ between blocks, so one compiled block serves all
        if factor is None:
            factor = (torch.rand(x.shape[0], device=x.device) >= self.rate) / (1 - self.rate)
        return x * factor.to(x.dtype).view(-1, *[1] * (x.dim() - 1))


def branch_end(config: ViTConfig, drop_path: float) -> nn.Sequential:
    """The end of a branch, before it joins the stream: dropout, norm, layer scale, drop path; by default nothing."""
    e = config.encoder
    parts: dict[str, nn.Module] = {}
    if e.dropout:
        parts["dropout"] = nn.Dropout(e.dropout)
    if e.norm == "branch":
        parts["norm"] = make_norm(config)
    if e.layer_scale is not None:
        parts["scale"] = Gain(e.width, e.layer_scale)
    if drop_path:
        parts["drop_path"] = DropPath(drop_path)
    return nn.Sequential(OrderedDict(parts))


def xavier(weight: Tensor, fan_in: int, fan_out: int) -> None:
    """Uniform in ±√(6 / (fan_in + fan_out))."""
    bound = math.sqrt(6 / (fan_in + fan_out))
    nn.init.uniform_(weight, -bound, bound)


def lecun(weight: Tensor, fan_in: int) -> None:
    """Normal truncated at ±2σ, with variance 1 / fan_in after truncation."""
    std = math.sqrt(1 / fan_in) / 0.87962566103423978
    nn.init.trunc_normal_(weight, std=std, a=-2 * std, b=2 * std)


def start_linear(layer: nn.Linear, *, parts: int = 1, bias_std: float = 0.0) -> None:
    """Xavier on each of `parts` stacked matrices (queries, keys, values); bias zero or N(0, bias_std²)."""
    xavier(layer.weight, layer.in_features, layer.out_features // parts)
    if layer.bias is not None:
        nn.init.normal_(layer.bias, std=bias_std) if bias_std else nn.init.zeros_(layer.bias)
