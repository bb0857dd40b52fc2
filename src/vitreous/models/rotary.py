"""Rotary positions: queries and keys turn by angles that grow with their place (arXiv 2104.09864, 2403.13298).

The q·k of two patches then depends on the difference of their angles, so on how far apart they stand. Angles are
computed once per forward pass, in float32, and shared by the blocks; tokens in front of the patches do not turn.

H heads   N tokens   d = width / heads, whose pairs of numbers turn by d/2 angles
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn

from vitreous.models.config import Size, ViTConfig
from vitreous.models.taps import Tap


class Turn(NamedTuple):
    """Cosines and sines of the angles: N d/2, or H N d/2."""

    cosine: Tensor
    sine: Tensor


class Rotation(nn.Module):
    """The angles of each token in a layer."""

    def __init__(self, config: ViTConfig, grid: Size):
        super().__init__()
        self.grid, self.prefix, self.settings = grid, config.prefix, config.rotation

    def forward(self, layer: int, grid: Size) -> Turn:
        raise AssertionError("each kind says how its tokens turn")

    def turn(self, angles: Tensor) -> Turn:                                     # … P d/2, patches alone
        still = angles.new_zeros(*angles.shape[:-2], self.prefix, angles.shape[-1])
        angles = torch.cat([still, angles], -2)                                 # … N d/2
        return Turn(angles.cos(), angles.sin())

    def places(self, grid: Size) -> tuple[Tensor, Tensor]:
        """Each patch's place along the first axis and along the second, P numbers each, in raster order."""
        s = self.settings
        stretched = s.rotary_grid or (None, None)
        along = [_line(n, to, s.rotary_places, s.rotary_start) for n, to in zip(grid, stretched, strict=True)]
        rows, columns = (axis.flatten() for axis in torch.meshgrid(*along, indexing="ij"))
        return (rows, columns) if s.rotary_first == "rows" else (columns, rows)


def _line(n: int, stretched: int | None, places: str, start: float) -> Tensor:
    """n places along a side: counted and stretched to another number, or −1 … 1 at the patches' centres."""
    if places == "image":
        return 2 * ((torch.arange(0.5, n, device="cpu") + start) / n) - 1
    counted = torch.arange(n, dtype=torch.float32, device="cpu") + start
    return counted if stretched is None else counted / n * stretched


class AxialRotation(Rotation):
    """Half of the angles follow the row, half the column: place · base^(−j / (d/4)), j = 0 … d/4 − 1."""

    cosine: Tensor
    sine: Tensor

    def __init__(self, config: ViTConfig, grid: Size):
        super().__init__(config, grid)
        self.head_width = config.encoder.width // config.encoder.heads
        made = self.turn(self.angles(grid))
        self.register_buffer("cosine", made.cosine, persistent=False)
        self.register_buffer("sine", made.sine, persistent=False)

    def angles(self, grid: Size) -> Tensor:
        """P d/2: place 1 means a whole circle if places lie in −1 … 1, and 1 radian if they are counted."""
        s, q = self.settings, self.head_width // 4
        slowness = s.rotary_base ** (torch.arange(q, dtype=torch.float32, device="cpu") / q)
        whole = 2 * math.pi if s.rotary_places == "image" else 1.0
        return torch.cat([whole * place[:, None] / slowness for place in self.places(grid)], -1)

    def forward(self, layer: int, grid: Size) -> Turn:
        if grid == self.grid:
            return Turn(self.cosine, self.sine)
        made = self.turn(self.angles(grid))
        return Turn(made.cosine.to(self.cosine), made.sine.to(self.sine))


class MixedRotation(Rotation):
    """Each angle follows a direction of its own, learned by every head of every layer: first · f₁ + second · f₂."""

    def __init__(self, config: ViTConfig, grid: Size):
        super().__init__(config, grid)
        e = config.encoder
        self.frequencies = nn.Parameter(torch.empty(2, e.depth, e.heads, e.width // e.heads // 2))

    def start(self) -> None:
        """Axial frequencies, turned by a random angle in every head."""
        _, depth, heads, half = self.frequencies.shape
        q = half // 2
        size = self.settings.rotary_base ** (-torch.arange(q) / q)  # q
        angle = 2 * math.pi * torch.rand(depth, heads, 1)
        both = torch.cat([angle.expand(-1, -1, q), angle.expand(-1, -1, q) + math.pi / 2], -1)  # depth H d/2
        with torch.no_grad():
            self.frequencies.copy_(size.repeat(2) * torch.stack([both.cos(), both.sin()]))

    def forward(self, layer: int, grid: Size) -> Turn:
        first, second = (place[:, None].to(self.frequencies.device) for place in self.places(grid))  # P 1
        one, two = self.frequencies[:, layer, :, None].float()                  # each H 1 d/2
        made = self.turn(first * one + second * two)                            # H P d/2
        return Turn(made.cosine.to(self.frequencies.dtype), made.sine.to(self.frequencies.dtype))


ROTATIONS: dict[str, type[Rotation]] = {"axial": AxialRotation, "mixed": MixedRotation}


class Rotate(nn.Module):
    """Turns the queries and keys of a layer; taps `query` and `key` show them turned."""

    def __init__(self, config: ViTConfig):
        super().__init__()
        self.pairs = config.rotation.rotary_pairs
        self.query, self.key = Tap(), Tap()

    def forward(self, q: Tensor, k: Tensor, turn: Turn) -> tuple[Tensor, Tensor]:  # each B H N d
        return self.query(turned(q, turn, self.pairs)), self.key(turned(k, turn, self.pairs))


def turned(x: Tensor, turn: Turn, pairs: str) -> Tensor:  # B H N d
    """Each pair (a, b) becomes (a cos − b sin, b cos + a sin)."""
    axis, shape = (-1, (-1, 2)) if pairs == "neighbours" else (-2, (2, -1))
    a, b = x.unflatten(-1, shape).unbind(axis)                                  # each B H N d/2
    both = a * turn.cosine - b * turn.sine, b * turn.cosine + a * turn.sine
    return torch.stack(both, axis).flatten(-2).to(x.dtype)                      # B H N d
