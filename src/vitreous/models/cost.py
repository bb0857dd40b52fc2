"""Multiply-accumulates of one image's forward pass: products of matrices and convolutions, as the papers count.

For a plain ViT: depth · (4 L D² + 2 L² D + 2 L D M) + N · C P² · D + D · K, with L tokens, N of them patches.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from itertools import zip_longest
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from vitreous.models.config import Config

ELEMENTWISE = {"add", "sub", "mul", "div", "gelu", "relu", "silu", "sigmoid", "sqrt", "clamp"}
ELEMENTWISE |= {"_softmax", "_safe_softmax"}
RESULTS = {"native_layer_norm": 3, "native_group_norm": 3, "var_mean": 2}  # else one


@lru_cache(maxsize=256)
def macs(config: Config) -> int:
    """Half of the FLOP of a forward pass on the meta device, so no part of a model is missed."""
    from vitreous.models.catalog import blueprint  # imported here: catalog imports this module

    image = torch.empty(1, config.channels, *config.image_size, device="meta")
    model = blueprint(config).eval().to("meta")  # positions keep their waves on the CPU
    with torch.no_grad(), _CountFlops() as counter:
        model(image)
    return counter.flops // 2


def training_flops(config: Config) -> int:
    """FLOP to train on one image: two per multiply-add, once forward and twice backward."""
    return 6 * macs(config)


class _CountFlops(TorchDispatchMode):
    """Add up torch's FLOP formulas over all operations, as `FlopCounterMode` does.

    The latter imports torch._dynamo, as do most operations on the meta device, which takes a second once per process.
    So the shapes of common operations are found here; any other operation runs on the meta device.
    """

    def __init__(self) -> None:
        from torch.utils.flop_counter import flop_registry

        super().__init__()
        self.formulas, self.flops = flop_registry, 0

    @classmethod
    def _should_skip_dynamo(cls) -> bool:  # torch's default, True, imports torch._dynamo
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = func.overloadpacket.__name__
        shape = _shape(name, args, **kwargs)
        if shape is None:
            out = func(*args, **kwargs)
        else:
            first = args[0] if isinstance(args[0], Tensor) else args[0][0]
            out = torch.empty(shape, dtype=first.dtype, device="meta")
            out = (out,) * RESULTS[name] if name in RESULTS else out
        if func.overloadpacket in self.formulas:
            self.flops += self.formulas[func.overloadpacket](*args, **kwargs, out_val=out)
        return out


def _shape(name: str, args: tuple[Any, ...], *, keepdim: bool = False, **_: Any) -> tuple[int, ...] | None:
    """The shape of the results of an operation; None if it is not known here."""
    x, *others = args
    match name:
        case _ if name in ELEMENTWISE:
            shapes = [reversed(each.shape) for each in args if isinstance(each, Tensor)]
            return tuple(max(sizes) for sizes in zip_longest(*shapes, fillvalue=1))[::-1]
        case "native_layer_norm" | "native_group_norm":
            return tuple(x.shape)
        case "mm" | "bmm":
            return (*x.shape[:-1], others[0].shape[-1])
        case "addmm" | "baddbmm":
            return (*others[0].shape[:-1], others[1].shape[-1])
        case "mean" | "var_mean" if others:
            keepdim = others[1] if len(others) > 1 else keepdim
            axes = {axis % x.ndim for axis in others[0]}
            return tuple(1 if i in axes else n for i, n in enumerate(x.shape) if keepdim or i not in axes)
        case "cat":
            axis = others[0] % x[0].ndim if others else 0
            total = sum(each.shape[axis] for each in x)
            return tuple(total if i == axis else n for i, n in enumerate(x[0].shape))
        case "convolution" if not others[5]:  # not transposed
            weight, _bias, *rest = others
            return (len(x), len(weight), *_sides(x, weight.shape[2:], *rest[:3]))
        case _:
            return None


def _sides(x: Tensor, kernel: Any, stride: Any, padding: Any, dilation: Any) -> Iterator[int]:
    for n, k, s, p, d in zip(x.shape[2:], kernel, stride, padding, dilation, strict=True):
        yield (n + 2 * p - d * (k - 1) - 1) // s + 1
