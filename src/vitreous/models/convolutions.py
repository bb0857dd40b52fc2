"""Convolutions of the ResNets: standardised kernels, group norm, and the two border rules."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitreous.models.config import ResNetConfig, Size
from vitreous.models.layers import lecun
from vitreous.models.taps import Tap


class StandardisedConv(nn.Conv2d):
    """A convolution whose kernels have mean 0 and variance 1 per output channel (weight standardisation).

    border: "same" pads as TensorFlow does (the odd pixel goes after), "symmetric" by kernel // 2.
    """

    def __init__(self, before: int, after: int, kernel: int, stride: int, config: ResNetConfig, border: str):
        super().__init__(before, after, kernel, stride, bias=False)
        self.eps, self.eps_at, self.border = config.standardise_eps, config.standardise_eps_at, border

    def reset_parameters(self) -> None:
        pass  # `start` sets the initial values

    def start(self) -> None:
        lecun(self.weight, self.weight[0].numel())

    def standardised(self) -> Tensor:
        weight = self.weight.to(torch.promote_types(self.weight.dtype, torch.float32))  # in half precision eps is 0
        variance, mean = torch.var_mean(weight, (1, 2, 3), correction=0, keepdim=True)
        if self.eps_at == "variance":
            spread = (variance + self.eps).sqrt()
        else:
            spread = variance.clamp(min=1e-30).sqrt() + self.eps  # √0 of a constant kernel has no gradient
        return ((weight - mean) / spread).to(self.weight.dtype)

    def forward(self, x: Tensor) -> Tensor:                                     # B C h w
        if self.border == "same":
            x = pad_same(x, self.kernel_size[0], self.stride[0], 0.0)
            return F.conv2d(x, self.standardised(), None, self.stride)
        return F.conv2d(x, self.standardised(), None, self.stride, self.kernel_size[0] // 2)


def same_pads(n: int, kernel: int, stride: int) -> Size:
    """Padding before and after, for an output of ⌈n / stride⌉."""
    total = max((-(-n // stride) - 1) * stride + kernel - n, 0)
    return total // 2, total - total // 2


def pad_same(x: Tensor, kernel: int, stride: int, value: float) -> Tensor:
    top, bottom = same_pads(x.shape[-2], kernel, stride)
    left, right = same_pads(x.shape[-1], kernel, stride)
    if top or bottom or left or right:
        x = F.pad(x, (left, right, top, bottom), value=value)
    return x


def group_norm(channels: int, config: ResNetConfig) -> nn.GroupNorm:
    """32 groups, or the largest number that divides the channels."""
    return nn.GroupNorm(next(g for g in (32, 16, 8, 4, 2, 1) if channels % g == 0), channels, eps=config.group_norm_eps)


def halved(n: int, times: int = 1) -> int:
    """The side of a map after convolutions of stride 2."""
    return -(-n // 2**times)


class Stage(nn.Module):
    """Units in a row; the first changes channels and may halve the map."""

    def __init__(self, unit: type[nn.Module], units: int, before: int, middle: int, stride: int, config: ResNetConfig):
        super().__init__()
        widths = [before, *[4 * middle] * (units - 1)]
        self.units = nn.ModuleList(unit(w, middle, stride if i == 0 else 1, config) for i, w in enumerate(widths))
        self.output = Tap()

    def forward(self, x: Tensor) -> Tensor:                                     # B C h w
        for unit in self.units:
            x = unit(x)
        return self.output(x)


def make_stages(unit: type[nn.Module], config: ResNetConfig) -> tuple[nn.ModuleList, int]:
    """All stages after the root, and the output channels: bottlenecks have 64, 128, …, outputs four times that."""
    width = channels = root_width(config)
    stages = nn.ModuleList()
    for i, units in enumerate(config.units):
        stages.append(Stage(unit, units, channels, width * 2**i, 1 if i == 0 else 2, config))
        channels = 4 * width * 2**i
    return stages, channels


def root_width(config: ResNetConfig) -> int:
    return int(64 * config.resnet_width)
