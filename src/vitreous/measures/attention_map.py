"""Where single tokens look, as maps; and the maps of a few images, small enough for a page."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from vitreous.measures.drawing import overlaid, rgb, shrunk
from vitreous.measures.measure import Arrays, Drawn, Found, Measure, Reading
from vitreous.measures.rollout import Flow, needs_reads, relevance_map
from vitreous.measures.subject import Subject, needs_attention
from vitreous.report import charts
from vitreous.report.charts import Tile
from vitreous.report.files import Panel

MAX_MAP_SIDE = 16  # patches of a pooled map, at most
MAX_MAPS_BYTES = 6 * 2**20  # of all maps together: a page holds them
ROLLOUT_VARIANTS = {
    "rollout": {"residual": True, "heads": "mean"},
    "rollout_plain": {"residual": False, "heads": "mean"},
    "rollout_max": {"residual": True, "heads": "max"},
    "rollout_min": {"residual": True, "heads": "min"},
}


def attention_map(weights: Tensor, grid: tuple[int, int], *, query: int = 0) -> Tensor:
    """One token's attention to the patches, as a map.

    weights: B H N N; the last h·w tokens are the patches.  grid: rows, columns.  query: 0 is the class token.
    Returns B H h w; each map sums to at most 1 (the rest went to the tokens in front).
    """
    places = grid[0] * grid[1]
    if not 0 < places <= weights.shape[-1]:
        raise ValueError(f"a grid of {grid[0]}x{grid[1]} does not fit {weights.shape[-1]} tokens")
    return weights[:, :, query, -places:].unflatten(-1, grid)


def pooled_grid(grid: tuple[int, int], side: int = MAX_MAP_SIDE) -> tuple[int, int]:
    """The grid with at most `side` rows and columns."""
    return min(grid[0], side), min(grid[1], side)


def pooled_attention(weights: Tensor, grid: tuple[int, int], small: tuple[int, int]) -> Tensor:
    """Attention among patches on a coarser grid: mean over the queries of a cell, share of a cell's keys.

    weights: B H T T.  Returns B H front+q k, q = k = rows · columns of `small`; first the tokens in front, as queries.
    """
    n = grid[0] * grid[1]
    prefix = weights.shape[-1] - n
    keys = _pooled(weights[..., -n:].flatten(0, 2), grid, small)  # B·H·T k, mean over a cell
    keys = keys * (n / (small[0] * small[1]))  # the cell's whole share
    keys = keys.unflatten(0, weights.shape[:3])  # B H T k
    patches = _pooled(keys[:, :, prefix:].mT.flatten(0, 2), grid, small).unflatten(0, keys.mT.shape[:3]).mT
    return torch.cat([keys[:, :, :prefix], patches], 2)


def _pooled(rows: Tensor, grid: tuple[int, int], small: tuple[int, int]) -> Tensor:
    """Rows of h·w numbers on the smaller grid, by mean."""
    if grid == small:
        return rows
    return F.adaptive_avg_pool2d(rows.unflatten(-1, grid)[:, None], small).flatten(1)


class _Maps(Reading):
    """The attention of the first images: each query's map in bytes, 255 for its largest weight."""

    def __init__(self, subject: Subject, other: Subject | None = None):
        super().__init__(subject)
        config: Any = subject.model.config
        self.layers, self.heads = config.encoder.depth, config.encoder.heads
        self.examples, self.small = self._fitting()
        variants = {} if needs_reads(subject) else ROLLOUT_VARIANTS
        self.flows = {name: Flow(subject, **how) for name, how in variants.items()}
        self.seen: list[tuple[NDArray[np.uint8], NDArray[np.float16]]] = []
        self.kept: dict[str, NDArray[Any]] = {}

    def _fitting(self) -> tuple[int, tuple[int, int]]:
        """The most images that fit; for one image, the finest grid that fits."""
        options = [(count, MAX_MAP_SIDE) for count in range(self.subject.settings.examples, 0, -1)]
        options += [(1, side) for side in range(MAX_MAP_SIDE - 1, 1, -1)]
        for count, side in options:
            small = pooled_grid(self.subject.grid, side)
            cells = small[0] * small[1]
            if count * self.layers * self.heads * (cells + self.subject.prefix) * cells <= MAX_MAPS_BYTES:
                return count, small
        return 1, pooled_grid(self.subject.grid, 2)

    def see(self, tap: str, x: Tensor, side: int = 0) -> None:
        if self.kept:
            return
        few = x[: self.examples]
        for flow in self.flows.values():
            flow.see(tap, few)
        if not tap.endswith("pool.weights"):
            maps = pooled_attention(few.float(), self.subject.grid, self.small)  # B H Q K
            peak = maps.amax(-1, keepdim=True).clamp(min=1e-12)
            self.seen.append(
                ((255 * maps / peak).round().byte().cpu().numpy(), peak[..., 0].cpu().numpy().astype(np.float16))
            )

    def update(self) -> None:
        if not self.kept and self.seen:
            shown: Tensor = self.subject.of_batch["pixels"][: self.examples]
            maps, peaks = zip(*self.seen, strict=True)
            self.kept = {"maps": np.stack(maps, 1), "peaks": np.stack(peaks, 1), "images": shown.cpu().byte().numpy()}
            for name, flow in self.flows.items():
                self.kept[name] = relevance_map(flow.rows(), self.subject.grid).cpu().numpy().astype(np.float16)
        self.seen = []

    def drop(self) -> None:
        self.seen = []

    def finish(self) -> Found:
        return {
            "images": len(self.kept["maps"]),
            "layers": self.layers,
            "heads": self.heads,
            "grid": list(self.subject.grid),
            "pooled_to": list(self.small),
            "front_tokens": self.subject.prefix,
            "bytes": int(self.kept["maps"].nbytes),
        }

    def arrays(self) -> dict[str, NDArray[Any]]:
        """maps: images layers heads queries keys, bytes of each query's largest, `peaks`; and rollouts."""
        return self.kept


def _say(found: Found) -> str:
    fine = "" if found["pooled_to"] == found["grid"] else f", pooled to {found['pooled_to'][0]}x{found['pooled_to'][1]}"
    return f"{found['layers']} layers of {found['heads']} heads on {found['images']} images{fine}"


def _draw(found: Found, beside: Found | None, arrays: Arrays) -> list[Drawn]:
    if "maps" not in arrays:
        return []
    small = tuple(found["pooled_to"])
    maps, peaks = arrays["maps"][:, -1].astype(np.float32), arrays["peaks"][:, -1].astype(np.float32)
    whole = (maps * peaks[..., None] / 255).mean(1)  # B Q K, over heads
    front = found["front_tokens"]
    rows = whole[:, 0] if front else whole.mean(1)
    tiles = [
        Tile("", shown)
        for image, row in zip(rgb(arrays["images"]), rows, strict=True)
        for shown in (shrunk(image), overlaid(image, row.reshape(small)))
    ]
    title = "where the first token looks, last block" if front else "where the patches look, last block"
    chart = charts.tiles(tiles, title=title, columns=4, column_names=["image", "looks at"] * 2)
    return [Drawn([Panel(chart, title[0].upper() + title[1:])], paper="P1-fig6")]


def _method(found: Found) -> str:
    (h, w), (rows, columns) = found["grid"], found["pooled_to"]
    pooled = f"{h}×{w}, none pooled" if (h, w) == (rows, columns) else f"pooled from {h}×{w} to {rows}×{columns}"
    return (
        f"{found['images']} images; patches as queries and keys {pooled}, each map as bytes of its own largest weight."
    )


MAPS = Measure(
    name="attention-maps",
    sentence="Where every patch looks, in every layer and head, on a few of the images.",
    figure="P1 figures 6 and 14",
    saw="The class token looks at the object.",
    start=_Maps,
    says=_say,
    taps={"vit": ("blocks.*.attention.weights",), "map": ("**pool.weights",)},
    why_not=needs_attention,
    draw=_draw,
    method=_method,
    rank=None,
)
