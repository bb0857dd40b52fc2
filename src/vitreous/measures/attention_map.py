"""Where single tokens look, as maps; and the maps of a few images, small enough for a page."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from vitreous.errors import DataError
from vitreous.images.pixels.preprocess import seen_box
from vitreous.measures.attention import patch_distances
from vitreous.measures.drawing import (
    PHOTO_SIDE,
    WHOLE_BOX,
    Photo,
    looks_of,
    over_photos,
    rgb,
    share_of_look,
    stacked,
)
from vitreous.measures.measure import PLURAL, Arrays, Drawn, Found, Measure, Reading
from vitreous.measures.rollout import Flow, needs_reads, relevance_map
from vitreous.measures.subject import Subject, needs_attention
from vitreous.models.architecture import spread
from vitreous.models.vit import ViT
from vitreous.words import counted

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
    """The attention of the first images: each query's map in bytes, 255 for its largest weight; and their photos."""

    def __init__(self, subject: Subject, other: Subject | None = None):
        super().__init__(subject)
        config: Any = subject.model.config
        self.layers, self.heads = config.encoder.depth, config.encoder.heads
        self.examples, self.small = self._fitting()
        variants = {} if needs_reads(subject) else ROLLOUT_VARIANTS
        self.flows = {name: Flow(subject, **how) for name, how in variants.items()}
        self.seen: list[dict[str, NDArray[Any]]] = []  # one for each block
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
            weights = few.float()
            maps = pooled_attention(weights, self.subject.grid, self.small)  # B H Q K
            peak = maps.amax(-1, keepdim=True).clamp(min=1e-12)
            parts = {"maps": (255 * maps / peak).round().byte(), "peaks": peak[..., 0].half()}
            parts |= {name: each.half() for name, each in self._of_patches(weights).items()}
            self.seen.append({name: part.cpu().numpy() for name, part in parts.items()})

    def _of_patches(self, weights: Tensor) -> dict[str, Tensor]:
        """How far each patch looks, over how many tokens, and how much at the class token; means over heads, B h w."""
        grid, subject = self.subject.grid, self.subject
        n = grid[0] * grid[1]
        rows = weights[:, :, -n:]  # B H N T
        far = (rows[..., -n:] * patch_distances(grid, subject.patch).to(weights)).sum(-1)
        found = {"distance": far, "spread": torch.special.entr(rows).sum(-1).exp()}
        found |= {"to_class": rows[..., 0]} if subject.has_class_token else {}
        return {name: each.mean(1).unflatten(-1, grid) for name, each in found.items()}

    def update(self) -> None:
        if not self.kept and self.seen:
            of_batch = self.subject.of_batch
            shown: Tensor = of_batch["pixels"][: self.examples].cpu().byte()
            self.kept = {name: np.stack([block[name] for block in self.seen], 1) for name in self.seen[0]}
            self.kept |= {"maps_grid": np.array(self.small), "images": shown.numpy()}
            model = self.subject.model
            if isinstance(model, ViT):
                self.kept["cells"] = np.array(spread(model.stem, model.config.image_size, model.grid))
            self.kept |= stacked(self._photos(of_batch["places"][: self.examples], shown))
            for name, flow in self.flows.items():
                self.kept[name] = relevance_map(flow.rows(), self.subject.grid).cpu().numpy().astype(np.float16)
        self.seen = []

    def _photos(self, places: NDArray[np.int64], shown: Tensor) -> list[Photo]:
        """The images as they are; one that can no longer be read, as the model saw it."""
        out = []
        for place, seen in zip(places.tolist(), rgb(shown.numpy()), strict=True):
            photo = Photo(seen, WHOLE_BOX)
            with suppress(OSError, DataError):
                pixels = self.subject.data.read(place)
                box = seen_box((pixels.shape[0], pixels.shape[1]), self.subject.model.preprocess)
                photo = Photo(rgb(pixels.transpose(2, 0, 1)[None])[0], box)
            is_large = max(photo.pixels.shape[:2]) > PHOTO_SIDE
            out.append(photo.resized(PHOTO_SIDE) if is_large else photo)
        return out

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
            "place": self.subject.place,
            "who_looks": _who_looks(self.subject),
            "bytes": int(self.kept["maps"].nbytes),
        }

    def arrays(self) -> dict[str, NDArray[Any]]:
        """maps: images layers heads queries keys, in bytes, 255 for each query's largest (`peaks`); rollouts; photos.

        distance, spread, to_class: images layers rows columns.
        """
        return self.kept


def _who_looks(subject: Subject) -> str:
    if subject.has_class_token:
        return "the class token looks"
    return "the first register looks" if subject.prefix else f"the {PLURAL[subject.place]} look"


def _say(found: Found) -> str:
    fine = "" if found["pooled_to"] == found["grid"] else f", pooled to {found['pooled_to'][0]}x{found['pooled_to'][1]}"
    blocks, heads = counted(found["layers"], "block"), counted(found["heads"], "head")
    return f"{blocks} of {heads} on {counted(found['images'], 'image')}{fine}"


def _draw(found: Found, beside: Found | None, arrays: Arrays) -> list[Drawn]:
    if "maps" not in arrays:
        return []
    looks = looks_of(arrays)
    blocks, heads = looks.shape[1:3]
    who = found["who_looks"]
    shown: Any = {"says": share_of_look, "is_root": True}
    last = {"mean of heads": looks[:, -1].mean(1)}
    if found["images"] > 1:
        panels = over_photos(arrays, last, heading=f"Where {who}, block {blocks}", most=found["images"], **shown)
        return [Drawn(panels)]
    last |= {f"head {h + 1}": looks[:, -1, h] for h in range(heads) if heads > 1}
    by_block = {f"block {b + 1}": looks[:, b].mean(1) for b in range(blocks)}
    panels = over_photos(arrays, last, heading=f"Where {who}, block {blocks}", **shown)
    panels += over_photos(arrays, by_block, heading=f"Where {who}, mean of heads", **shown)
    return [Drawn(panels)]


def _method(found: Found) -> str:
    (h, w), (rows, columns) = found["grid"], found["pooled_to"]
    pooled = f"{h}×{w}, none pooled" if (h, w) == (rows, columns) else f"pooled from {h}×{w} to {rows}×{columns}"
    return (
        f"{counted(found['images'], 'image')}; {PLURAL[found['place']]} as queries and keys {pooled}, each map as "
        "bytes of its own largest weight. Colours go by the square root of a weight, each map on its own scale."
    )


MAPS = Measure(
    name="attention-maps",
    sentence="Where every token looks, in every block and head, on a few of the images.",
    figure="not in P1 or P2; beside P1 figures 6 and 14, which are rollouts",
    saw="Not measured there.",
    start=_Maps,
    says=_say,
    taps={"vit": ("blocks.*.attention.weights",), "map": ("**pool.weights",)},
    why_not=needs_attention,
    draw=_draw,
    method=_method,
    rank=None,
)
