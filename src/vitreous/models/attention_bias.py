"""What attention adds to q·k for the offset of two patches: a learned table (BEiT), or an MLP of it (timm's relpos).

H heads   N tokens   h w the grid   (2h − 1)(2w − 1) offsets
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitreous.models.config import Size, ViTConfig
from vitreous.models.layers import Linear, start_linear
from vitreous.models.positions import resize_positions

CLASS_ROWS = 3  # of a table: class token to patch, patch to class token, class token to itself


class BiasTable(nn.Module):
    """One learned number for every offset and head; three rows for the class token stand at the end."""

    def __init__(self, config: ViTConfig, grid: Size):
        super().__init__()
        self.grid, self.prefix, self.rule = grid, config.prefix, config.embedding.position_resize
        offsets = (2 * grid[0] - 1) * (2 * grid[1] - 1) + (CLASS_ROWS if self.prefix else 0)
        self.table = nn.Parameter(torch.empty(offsets, config.encoder.heads))

    def start(self) -> None:
        nn.init.zeros_(self.table)

    def forward(self, grid: Size, index: Tensor) -> Tensor:                     # N N
        table = self.table if grid == self.grid else resize_bias(self.table, self.grid, grid, rule=self.rule)
        return table[index].permute(2, 0, 1)                                    # H N N


class BiasMLP(nn.Module):
    """An MLP of the offset's logarithm, sign(o) · ln(1 + |o|), in rows and columns; nothing for the class token."""

    def __init__(self, config: ViTConfig, grid: Size):
        super().__init__()
        e = config.encoder
        self.prefix = config.prefix
        self.expand, self.contract = Linear(2, e.attention_bias_mlp), Linear(e.attention_bias_mlp, e.heads)

    def start(self) -> None:
        for layer in (self.expand, self.contract):
            start_linear(layer)

    def forward(self, grid: Size, index: Tensor) -> Tensor:                     # P P
        rows, columns = (torch.arange(1 - n, n, dtype=torch.float32, device="cpu") for n in grid)
        offsets = torch.cartesian_prod(rows, columns).to(self.expand.weight)    # (2h−1)(2w−1) 2
        values = self.contract(self.expand(offsets.sign() * offsets.abs().log1p()).relu())
        return F.pad(values[index].permute(2, 0, 1), [self.prefix, 0, self.prefix, 0])  # H N N


class AttentionBias(nn.Module):
    """The bias of a layer: its own, one that all layers share, or the sum of both."""

    index: Tensor

    def __init__(self, config: ViTConfig, grid: Size):
        super().__init__()
        e = config.encoder
        self.grid = grid
        kind, self.prefix = {"table": (BiasTable, config.prefix), "mlp": (BiasMLP, 0)}[e.attention_bias]
        own, shared = {"every-layer": (e.depth, 0), "shared": (0, 1), "both": (e.depth, 1)}[e.attention_bias_at]
        self.layers = nn.ModuleList(kind(config, grid) for _ in range(own))
        self.shared = nn.ModuleList(kind(config, grid) for _ in range(shared))
        self.register_buffer("index", offset_index(grid, self.prefix), persistent=False)

    def forward(self, layer: int, grid: Size) -> Tensor:
        index = self.index if grid == self.grid else offset_index(grid, self.prefix).to(self.index.device)
        first, *more = [part(grid, index) for part in [*self.layers[layer : layer + 1], *self.shared]]
        return first + more[0] if more else first                               # H N N


def offset_index(grid: Size, prefix: int) -> Tensor:
    """Which row of a table each pair of tokens reads: N N, rows are queries."""
    h, w = grid
    places = torch.cartesian_prod(torch.arange(h, device="cpu"), torch.arange(w, device="cpu"))
    rows, columns = places.unbind(1)
    down, right = rows[:, None] - rows + h - 1, columns[:, None] - columns + w - 1
    index = down * (2 * w - 1) + right                                          # P P
    if not prefix:
        return index
    last = (2 * h - 1) * (2 * w - 1)
    index = F.pad(index, [1, 0, 1, 0])                                          # N N
    index[0], index[:, 0], index[0, 0] = last, last + 1, last + 2
    return index


def resize_bias(table: Tensor, old: Size, new: Size, *, rule: str) -> Tensor:
    """The table for another grid; the class token's rows stay."""
    offsets = (2 * old[0] - 1) * (2 * old[1] - 1)
    sizes = ((2 * old[0] - 1, 2 * old[1] - 1), (2 * new[0] - 1, 2 * new[1] - 1))
    return torch.cat([resize_positions(table[:offsets], *sizes, rule=rule), table[offsets:]])
