"""Ways to break a model while it answers: the change of its answer shows what it needs.

shuffle     patches (a hybrid's places) change their order before they become tokens, positions stay
positions   no token knows its place
heads       a head outputs zero
blocks      a block returns its input
skips       a block's first or second skip connection is cut
hide        squares of the image are covered with the mean grey, which is 0 after normalisation
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from vitreous.models.model import Model
from vitreous.models.positions import NoPositions
from vitreous.models.vit import Attention, ViT
from vitreous.server.errors import Refusal

Edit = Callable[[Tensor], Tensor]


@dataclass(frozen=True, kw_only=True)
class Break:
    """What is broken. heads: (block, head); skips: (block, 1 or 2); shuffle: the seed of a permutation."""

    shuffle: int | None = None
    positions: bool = False
    heads: tuple[tuple[int, int], ...] = ()
    blocks: tuple[int, ...] = ()
    skips: tuple[tuple[int, int], ...] = ()
    hide: tuple[int, ...] = ()

    def order(self, places: int) -> list[int] | None:
        """Which patch stands at each place."""
        if self.shuffle is None:
            return None
        return np.random.default_rng(self.shuffle).permutation(places).tolist()

    def check(self, model: Model, grid: tuple[int, int]) -> None:
        """Refuse what names a part that the model does not have."""
        places = grid[0] * grid[1]
        for patch in self.hide:
            check_within(patch, places, "patch")
        if not isinstance(model, ViT):
            if self.shuffle is not None or self.positions or self.heads or self.blocks or self.skips:
                raise Refusal(422, "this model has no tokens, positions or heads to break; cover squares instead")
            return
        encoder = model.config.encoder
        for block in (*self.blocks, *(block for block, _ in (*self.heads, *self.skips))):
            check_within(block, encoder.depth, "block")
        for _, head in self.heads:
            check_within(head, encoder.heads, "head")
        for _, skip in self.skips:
            if skip not in (1, 2):
                raise Refusal(
                    422, f"there is no skip {skip}; a block has skip 1, around attention, and 2, around the MLP"
                )

    def shown(self, x: Tensor, grid: tuple[int, int], cells: tuple[float, float, float, float]) -> Tensor:
        """Images B C H W as the model gets them: hidden squares at 0, the mean of training images.

        cells: where the grid lies, in shares of the image; the first and last squares reach to its edges.
        """
        if not self.hide:
            return x
        x = x.clone()
        left, top, right, bottom = cells
        rows, columns = _edges(x.shape[2], grid[0], top, bottom), _edges(x.shape[3], grid[1], left, right)
        for patch in self.hide:
            r, c = divmod(patch, grid[1])
            x[:, :, rows[r] : rows[r + 1], columns[c] : columns[c + 1]] = 0
        return x

    def edits(self, model: Model) -> dict[str, Edit]:
        """The edits for `taps`."""
        edits: dict[str, Edit] = {}
        if not isinstance(model, ViT):
            return edits
        order = self.order(model.grid[0] * model.grid[1])
        if order is not None:
            edits["embedding.patches"] = lambda x: x[:, order]
        for block in self.blocks:
            edits |= {f"blocks.{block}.{part}.output": torch.zeros_like for part in ("attention", "mlp")}
        for block in {block for block, _ in self.heads}:
            gone = [head for where, head in self.heads if where == block]
            edits[f"blocks.{block}.attention.per_head"] = _without(gone)
        for block, skip in self.skips:
            edits[f"blocks.{block}.skip{skip}"] = torch.zeros_like
        return edits

    def in_words(self, places: str = "patches") -> list[str]:
        """One phrase for each thing that is broken.  places: what the model's tokens are made of."""
        words = [f"{places} shuffled"] if self.shuffle is not None else []
        words += ["no positions"] if self.positions else []
        words += [f"head {head + 1} of block {block + 1} silent" for block, head in self.heads]
        words += [f"block {block + 1} left out" for block in self.blocks]
        around = {1: "attention", 2: "the MLP"}
        words += [f"the skip around {around[skip]} of block {block + 1} cut" for block, skip in self.skips]
        hidden = f"{len(self.hide)} square{'s' * (len(self.hide) > 1)} covered"
        return words + ([hidden] if self.hide else [])


def _edges(side: int, count: int, begin: float, end: float) -> list[int]:
    """The pixels between which squares lie."""
    inner = [math.floor(side * (begin + (end - begin) * i / count) + 0.5) for i in range(1, count)]
    return [0, *inner, side]


def unplaced(model: Model) -> Model:
    """The same model with its positions removed wherever they enter."""
    if isinstance(model, ViT):
        model.embedding.positions = NoPositions(model.config, model.grid)
        model.layer_positions.tables = nn.ModuleList()
        model.places.rotation = model.places.bias = None
        for part in model.modules():
            if isinstance(part, Attention):
                part.positions = None
    return model.eval()


def _without(heads: list[int]) -> Edit:
    def edit(x: Tensor) -> Tensor:  # B H N d
        x = x.clone()
        x[:, heads] = 0
        return x

    return edit


def check_within(number: int, count: int, what: str) -> None:
    """Refuse the number of a part that does not exist."""
    if not 0 <= number < count:
        raise Refusal(422, f"there is no {what} {number}; choose from 0 to {count - 1}")
