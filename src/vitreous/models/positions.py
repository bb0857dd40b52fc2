"""Where a token stands: kinds of position embedding (appendix D.4 of arXiv 2010.11929), and resizing them.

To add a kind, write one class and one line in POSITION_KINDS, or an entry point in the group `vitreous.positions`.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitreous.errors import ConfigError, ImageSizeError
from vitreous.models.config import Size, ViTConfig
from vitreous.registry import Registry


class Positions(nn.Module):
    """A kind of position embedding: tokens B N D and their grid -> tokens with positions."""

    in_attention = False  # True: it adds to the attention logits, B H N d -> B H N N, not to the tokens
    can_repeat = True  # True: it may be added at every layer

    def __init__(self, config: ViTConfig, grid: Size):
        super().__init__()
        self.grid, self.covered, self.prefix = grid, config.covered, config.prefix


class NoPositions(Positions):
    """No positions: a bag of patches."""

    can_repeat = False

    def forward(self, x: Tensor, grid: Size) -> Tensor:                         # B N D
        return x


class LearnedPositions(Positions):
    """One learned vector per place of the raster sequence: E_pos of equation 1."""

    def __init__(self, config: ViTConfig, grid: Size):
        super().__init__(config, grid)
        self.rule, self.beginning = config.embedding.position_resize, config.embedding.position_start
        self.table = nn.Parameter(torch.empty(config.covered + grid[0] * grid[1], config.encoder.width))
        self.resized: tuple[Size, Tensor, Tensor] | None = None  # cache: a grid, the source table, the resized table

    def start(self) -> None:
        start_positions(self.table, self.grid, self.covered, self.beginning)

    def at(self, grid: Size) -> Tensor:
        """The table resized to a grid; cached until table or grid changes, but never when gradients are needed."""
        if grid == self.grid:
            return self.table
        if torch.is_grad_enabled() or torch.compiler.is_compiling() or self.table.is_inference():
            return resize_positions(self.table, self.grid, grid, prefix=self.covered, rule=self.rule)
        kept = self.resized
        if kept is None or kept[0] != grid or not same(kept[1], self.table):
            new = resize_positions(self.table, self.grid, grid, prefix=self.covered, rule=self.rule)
            self.resized = kept = grid, self.table.detach().clone(), new
        return kept[2]

    def forward(self, x: Tensor, grid: Size) -> Tensor:                         # B N D
        return x + behind_prefix(self.at(grid), self.covered, self.prefix).to(x.dtype)


class Learned2dPositions(Positions):
    """[X_column; Y_row]: two tables of D/2 numbers, and one vector for each token in front of the patches."""

    def __init__(self, config: ViTConfig, grid: Size):
        super().__init__(config, grid)
        width = config.encoder.width
        if width % 2:
            raise ConfigError(f"positions=learned-2d need an even width, not {width}; change width")
        self.beginning = config.embedding.position_start
        self.columns = nn.Parameter(torch.empty(grid[1], width // 2))
        self.rows = nn.Parameter(torch.empty(grid[0], width // 2))
        self.front = nn.Parameter(torch.empty(config.covered, width)) if config.covered else None

    def start(self) -> None:
        if self.beginning == "sincos":
            whole = sincos_2d(self.grid, 2 * self.rows.shape[1]).unflatten(0, self.grid)      # h w D
            with torch.no_grad():
                self.columns.copy_(whole[0, :, : self.columns.shape[1]])
                self.rows.copy_(whole[:, 0, self.columns.shape[1] :])
        else:
            start_positions(self.columns, self.grid, 0, self.beginning)
            start_positions(self.rows, self.grid, 0, self.beginning)
        if self.front is not None:
            start_positions(self.front, self.grid, 0, "normal" if self.beginning == "sincos" else self.beginning)

    def forward(self, x: Tensor, grid: Size) -> Tensor:                         # B N D
        columns, rows = resize_line(self.columns, grid[1]), resize_line(self.rows, grid[0])
        places = torch.cat([columns.expand(grid[0], -1, -1), rows[:, None].expand(-1, grid[1], -1)], -1).flatten(0, 1)
        table = places if self.front is None else torch.cat([self.front, places])
        return x + behind_prefix(table, self.covered, self.prefix).to(x.dtype)


class SinCos2dPositions(Positions):
    """Fixed waves of row and column on the patches (big_vision, MoCo v3); nothing is learned."""

    waves: Tensor

    def __init__(self, config: ViTConfig, grid: Size):
        super().__init__(config, grid)
        self.register_buffer("waves", sincos_2d(grid, config.encoder.width), persistent=False)

    def forward(self, x: Tensor, grid: Size) -> Tensor:                         # B N D
        waves = self.waves if grid == self.grid else sincos_2d(grid, x.shape[-1]).to(x.device)
        return x + behind_prefix(waves, 0, self.prefix).to(x.dtype)


class RelativePositions(Positions):
    """Attention logits gain q · r[p_q − p_k]: one learned vector of a head's width per offset in the sequence.

    Shared by the heads of a layer, scaled with the rest, class token first: the paper leaves these three open.
    """

    in_attention = True
    can_repeat = False
    index: Tensor

    def __init__(self, config: ViTConfig, grid: Size):
        super().__init__(config, grid)
        self.tokens = config.prefix + grid[0] * grid[1]
        self.beginning = config.embedding.position_start
        self.offsets = nn.Parameter(torch.empty(2 * self.tokens - 1, config.encoder.width // config.encoder.heads))
        place = torch.arange(self.tokens, device="cpu")
        self.register_buffer("index", place[:, None] - place + self.tokens - 1, persistent=False)             # N N

    def start(self) -> None:
        start_positions(self.offsets, self.grid, 0, self.beginning)

    def forward(self, q: Tensor) -> Tensor:                                     # B H N d
        if q.shape[-2] != self.tokens:
            raise ImageSizeError(
                f"relative positions were made for {self.tokens} tokens, not {q.shape[-2]}; "
                f"build for the image's own size"
            )
        every = q @ self.offsets.mT                                             # B H N 2N-1
        return every.gather(-1, self.index.expand(*q.shape[:2], -1, -1))        # B H N N


POSITION_KINDS: Registry[type[Positions]] = Registry(
    "positions",
    {
        "none": NoPositions,
        "learned": LearnedPositions,
        "learned-2d": Learned2dPositions,
        "relative": RelativePositions,
        "sincos-2d": SinCos2dPositions,
    },
)


def sincos_2d(grid: Size, width: int, temperature: float = 10_000.0) -> Tensor:
    """[sin(xω), cos(xω), sin(yω), cos(yω)], ωⱼ = temperature^(−j/(q−1)), q = width / 4.  Returns N D, raster order."""
    if width % 4 or width < 8:
        raise ConfigError(f"sin-cos positions need a width of 8, 12, 16, …, not {width}; change width")
    q = width // 4
    omega = temperature ** (-torch.arange(q, dtype=torch.float64, device="cpu") / (q - 1))
    rows, columns = (torch.arange(n, dtype=torch.float64, device="cpu") for n in grid)
    y, x = torch.meshgrid(rows, columns, indexing="ij")
    x, y = x.flatten()[:, None] * omega, y.flatten()[:, None] * omega           # N q
    return torch.cat([x.sin(), x.cos(), y.sin(), y.cos()], -1).float()


def start_positions(table: Tensor, grid: Size, covered: int, how: str) -> None:
    """Initial values: N(0, 0.02²) as in the released code, zeros, N(0, 1), or the sin-cos waves."""
    with torch.no_grad():
        if how == "zeros":
            table.zero_()
        else:
            table.normal_(std=1.0 if how == "unit" else 0.02)
        if how == "sincos":
            table[covered:] = sincos_2d(grid, table.shape[-1])


def behind_prefix(table: Tensor, covered: int, prefix: int) -> Tensor:
    """Add zero rows for tokens in front without a position.  covered+N D -> prefix+N D."""
    if covered == prefix:
        return table
    nothing = table.new_zeros(prefix - covered, table.shape[1])
    return torch.cat([table[:covered], nothing, table[covered:]])


def same(a: Tensor, b: Tensor) -> bool:
    """True if device, type and every number agree; a write through `.data` leaves no other trace."""
    return a.device == b.device and a.dtype == b.dtype and torch.equal(a, b)


# How to resize a learned table: torch's mode, antialias, align corners.
RESIZE_METHODS = {
    "paper": ("bilinear", False, True),        # scipy's zoom of order 1, in the official code and big_vision
    "timm": ("bicubic", True, False),          # and DINOv2 in transformers
    "huggingface": ("bicubic", False, False),  # ViT and DeiT in transformers
    "torchvision": ("bicubic", False, True),
}


def resize_positions(table: Tensor, old: Size, new: Size, *, prefix: int = 0, rule: str = "paper") -> Tensor:
    """Resize a learned table to another grid; the first `prefix` rows stay.

    table: prefix + rows·columns, D.  old, new: rows, columns.  rule: a key of RESIZE_METHODS.
    """
    if rule not in RESIZE_METHODS:
        raise ConfigError(f"position_resize {rule!r} is not one of {', '.join(RESIZE_METHODS)}")
    if old == new:
        return table
    mode, antialias, align = RESIZE_METHODS[rule]
    front, places = table[:prefix], table[prefix:]
    exact = places.to(torch.promote_types(places.dtype, torch.float32))         # half precision is too coarse for means
    field = exact.unflatten(0, old).permute(2, 0, 1)[None]                      # 1 D h w
    if rule == "paper":
        field = _aligned_bilinear(field, new)
    elif antialias and new[1] == 1:  # torch 2.13 on the CPU gets a single column wrong, but not a single row
        field = F.interpolate(field.mT, new[::-1], mode=mode, antialias=antialias, align_corners=align).mT
    else:
        field = F.interpolate(field, new, mode=mode, antialias=antialias, align_corners=align)
    places = field[0].permute(1, 2, 0).flatten(0, 1).to(table)                  # N D
    return torch.cat([front, places])


def _aligned_bilinear(field: Tensor, new: Size) -> Tensor:
    """Output i reads at i·(old−1)/(new−1), a single output at 0; rows, then columns.  1 D h w."""
    for axis, n in ((2, new[0]), (3, new[1])):
        field = resize_line(field.movedim(axis, 0), n).movedim(0, axis)
    return field


def resize_line(table: Tensor, new: int) -> Tensor:
    """Linear interpolation along the first axis; keeps both ends."""
    old = table.shape[0]
    if old == new:
        return table
    at = torch.arange(new, dtype=torch.float64, device="cpu") * ((old - 1) / max(new - 1, 1))
    low = at.floor().long().clamp(max=max(old - 2, 0))
    share = (at - low).to(table).view(-1, *[1] * (table.dim() - 1))
    low = low.to(table.device)
    return torch.lerp(table[low], table[(low + 1).clamp(max=old - 1)], share)


def square_grid(places: int) -> Size | None:
    """The square grid with that many places, or None."""
    side = math.isqrt(places)
    return (side, side) if side * side == places else None
