"""Resizing as two matrix products: every runtime then does what `images.pixels` does, within one grey level.

A row of a matrix holds the weights of a line's pixels in one pixel of the resized line. Only the rows inside the crop
are made, so the output has one size for every input. Positions are whole numbers until the last division:

    pixel j − centre of i  =  ((2j + 1) · want − (2i + 1) · have) / (2 · want)
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from vitreous.errors import ConfigError
from vitreous.models.preprocess import Preprocess

Shares = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]  # of pixel j in line i, have, want


def line_matrix(have: int, want: Tensor, first: Tensor, count: int, rule: Preprocess) -> Tensor:
    """Lines first … first + count − 1 of `want`, from `have`; a line outside is black.  Returns count have, float64.

    A runtime without float64 takes float32. There a sum of 1 may be rounded, so a sum near 1 counts as 1.
    """
    line = first + torch.arange(count)[:, None]
    at, size = torch.minimum(line.clamp(min=0), want - 1), number(have)
    shares = _choose(rule)(torch.arange(have)[None], at, size, want)
    total = shares.sum(1, keepdim=True)
    total = torch.where((total - 1).abs() < 1e-5, torch.ones_like(total), total)
    return shares / total * ((line >= 0) & (line < want))


def before_crop(height: int, width: int, rule: Preprocess) -> tuple[Tensor, Tensor]:
    """Rows and columns after the resize: `images.pixels.preprocess.before_crop`, without a branch."""
    if rule.fit == "squash" or rule.short_side is None:
        return number(rule.size[0]), number(rule.size[1])
    rows, columns = (rule.short_side * n // min(rule.size) for n in rule.size)
    if rule.fit == "squash-crop":
        return number(rows), number(columns)
    h, w = number(height), number(width)
    is_wide = rows * w >= columns * h
    tall = torch.where(is_wide, number(rows), (columns * h // w).clamp(min=rows))
    return tall, torch.where(is_wide, (rows * w // h).clamp(min=columns), number(columns))


def first_line(have: Tensor, keep: int, rule: Preprocess) -> Tensor:
    """The first of the `keep` central lines; below 0 when there are fewer, which get a black frame."""
    over = have - keep
    half = over.clamp(min=0) // 2
    if rule.centre == "round":  # Python's rule: a half goes to the even number
        half = half + over.clamp(min=0) % 2 * (half % 2)
    return half - (-over).clamp(min=0) // 2


def number(value: int) -> Tensor:
    """A whole number, or a size that the graph knows only when it runs."""
    return torch.full((), value, dtype=torch.int64)


def fixed_point(shares: Tensor) -> tuple[Tensor, Tensor]:
    """Pillow's shares in units of 2⁻²², as whole · 2048 + rest. Sums of bytes times either are exact in float32."""
    units = (shares * 2**22).round()
    whole = (units / 2048).round()
    return whole.float(), (units - 2048 * whole).float()


def pillow_bytes(whole: Tensor, rest: Tensor) -> Tensor:
    """⌊(whole · 2048 + rest + 2²¹) / 2²²⌋ within 0 … 255, as Pillow rounds after each pass."""
    return ((whole + (rest / 2048).floor() + 1024) / 2048).floor().clamp(0, 255)


# Shares of pixel j in line i, before normalisation -----------------------------------------------------------------


def _choose(rule: Preprocess) -> Shares:
    if not rule.antialias:
        sampled = {"nearest": _nearest_by_torch, "bilinear": _between_two, "bicubic": _between_four}
        if rule.interpolation not in sampled:
            raise ConfigError(f"interpolation {rule.interpolation} always antialiases; set antialias=True")
        return sampled[rule.interpolation]
    if rule.interpolation == "nearest":
        return _nearest_by_pillow
    if rule.interpolation == "box":
        return _box
    kernel = {"bilinear": triangle, "bicubic": cubic, "lanczos": lanczos}[rule.interpolation]
    return lambda j, i, have, want: kernel(_away(j, i, have, want), 2 * torch.maximum(have, want))


def _away(j: Tensor, i: Tensor, have: Tensor, want: Tensor) -> Tensor:
    """The distance from the centre of line i to pixel j, in units of 1 / (2 · want) pixel."""
    return ((2 * j + 1) * want - (2 * i + 1) * have).abs()


def _between_two(j: Tensor, i: Tensor, have: Tensor, want: Tensor) -> Tensor:
    """Bilinear at half-pixel centres; beyond the border, the border's pixel repeats."""
    centre = torch.minimum(((2 * i + 1) * have - want).clamp(min=0), 2 * want * (have - 1))
    return triangle((2 * want * j - centre).abs(), 2 * want)


def _between_four(j: Tensor, i: Tensor, have: Tensor, want: Tensor) -> Tensor:
    """Bicubic with torch's −0.75; beyond the border, the border's pixel repeats."""
    inside = cubic(_away(j, i, have, want), 2 * want, -0.75)
    for beyond in (1, 2):
        before = cubic(_away(number(-beyond), i, have, want), 2 * want, -0.75)
        after = cubic(_away(have - 1 + beyond, i, have, want), 2 * want, -0.75)
        inside = inside + before * (j == 0) + after * (j == have - 1)
    return inside


def _nearest_by_torch(j: Tensor, i: Tensor, have: Tensor, want: Tensor) -> Tensor:
    return (j == torch.minimum((i.float() * (have.float() / want.float())).floor().long(), have - 1)).double()


def _nearest_by_pillow(j: Tensor, i: Tensor, have: Tensor, want: Tensor) -> Tensor:
    return (j == (2 * i + 1) * have // (2 * want)).double()


def _box(j: Tensor, i: Tensor, have: Tensor, want: Tensor) -> Tensor:
    """Pillow's own steps in float64: its rounding decides where a pixel just between two lines goes."""
    scale = have.double() / want.double()
    wide, centre = scale.clamp(min=1), (i.double() + 0.5) * scale
    first, last = (centre - wide / 2 + 0.5).floor(), (centre + wide / 2 + 0.5).floor()
    x = (j.double() - centre + 0.5) * (1 / wide)
    return ((x > -0.5) & (x <= 0.5) & (j >= first) & (j < last)).double()


# A kernel at x = away / whole, both whole numbers; 1 − x and x − 1 are exact too, as float32 needs.


def triangle(away: Tensor, whole: Tensor) -> Tensor:
    """1 − x, or 0."""
    return (whole - away).clamp(min=0).double() / whole.double()


def cubic(away: Tensor, whole: Tensor, a: float = -0.5) -> Tensor:
    """Keys' kernel: 1 − (a + 3) x² + (a + 2) x³ up to 1, then a (x − 1) (x − 2)² up to 2."""
    x, y, z = (n.double() / whole.double() for n in (away, whole - away, 2 * whole - away))  # x, 1 − x, 2 − x
    low = 1 - x * x * ((a + 3) - (a + 2) * x)
    high = y * (-a + y * ((2 * a + 3) - (a + 2) * y))  # the same in 1 − x
    near = torch.where(2 * away < whole, low, high)
    return torch.where(away < whole, near, torch.where(away < 2 * whole, -a * y * z * z, torch.zeros_like(x)))


def lanczos(away: Tensor, whole: Tensor) -> Tensor:
    """sin(πx) / πx · sin(πx/3) / (πx/3) within 3."""
    x = away.double() / whole.double()
    angle = math.pi * torch.where(away == 0, torch.ones_like(x), x)
    inside = 3 * angle.sin() * (angle / 3).sin() / (angle * angle)
    return torch.where(away == 0, torch.ones_like(x), torch.where(away < 3 * whole, inside, torch.zeros_like(x)))
