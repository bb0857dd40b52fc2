"""What the figures of several measures share: columns of a table, bands, names of layers, and maps over images."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from PIL import Image

from vitreous.measures.measure import Found, rows_of
from vitreous.report.charts import Line, Span
from vitreous.report.colours import colours

BLOCK_AXIS, LAYER_AXIS = "block", "layer, from first to last"
COLOUR_AT_LOWEST, COLOUR_AT_HIGHEST = 0.8, 0.25  # share of a map's colour over the image
OVERLAY_SIDE = 112  # pixels of a small picture's longer side


# Tables ------------------------------------------------------------------------------------------------------------


def column(rows: Sequence[Mapping[str, Any]], key: str) -> NDArray[np.float64]:
    """One key of every row; NaN for None."""
    return np.array([row.get(key) for row in rows], np.float64)


def lines_of(
    rows: Sequence[Mapping[str, Any]], x: ArrayLike, names: Mapping[str, str], *, has_points: bool = False
) -> list[Line]:
    """A line for each key that has numbers.  names: the line's name -> its key."""
    known = {name: key for name, key in names.items() if any(row[key] is not None for row in rows)}
    return [Line(name, x, column(rows, key), has_points=has_points) for name, key in known.items()]


def banded(
    name: str,
    rows: Sequence[Mapping[str, Any]],
    x: ArrayLike,
    key: str,
    error: str,
    *,
    within: tuple[float, float] = (-math.inf, math.inf),
    has_points: bool = False,
) -> Line:
    """The line of a key, in a band of two standard errors.  within: the ends of what the band may reach."""
    value, spread = column(rows, key), np.nan_to_num(column(rows, error))
    low, high = (np.clip(value + way * 2 * spread, *within) for way in (-1, 1))
    return Line(name, x, value, low, high, has_points=has_points)


def both_rows(found: Found, beside: Found | None) -> list[dict[str, Any]]:
    """The rows of both models, for a common scale."""
    return rows_of(found) + ([] if beside is None else rows_of(beside))


def top_with_room(*parts: Sequence[float | None] | NDArray[np.float64] | None) -> float:
    """The end of an axis: 16 % above the largest number."""
    known = [float(v) for part in parts if part is not None for v in part if v is not None and math.isfinite(v)]
    return 1.16 * max(known, default=1.0) or 1.0


# Layers ------------------------------------------------------------------------------------------------------------


def spans(names: Sequence[str]) -> list[Span]:
    """Neighbouring taps of one block or unit, under its name."""
    return [Span(name, len(list(same))) for name, same in groupby(map(block_name, names))]


def block_name(tap: str) -> str:
    """`block 7` for blocks.7.attention.weights."""
    parts = tap.removeprefix("stem.").split(".")
    before = "stem " if tap.startswith("stem.") else ""
    if parts[0] == "blocks" and len(parts) > 1:
        return f"block {parts[1]}"
    if parts[0] == "stages" and len(parts) > 3:
        return f"{before}unit {parts[1]}.{parts[3]}"
    return before + parts[-1]


# Images ------------------------------------------------------------------------------------------------------------


def rgb(images: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Images of any number of channels with three.  B C H W -> B H W 3"""
    moved = images.transpose(0, 2, 3, 1)
    return moved[..., :3] if moved.shape[-1] > 2 else np.repeat(moved[..., :1], 3, -1)


def shrunk(image: NDArray[np.uint8], side: int = OVERLAY_SIDE) -> NDArray[np.uint8]:
    """The image with `side` pixels along its longer side."""
    h, w = image.shape[:2]
    factor = side / max(h, w)
    size = max(round(w * factor), 1), max(round(h * factor), 1)
    way = Image.Resampling.BOX if factor < 1 else Image.Resampling.NEAREST
    return np.asarray(Image.fromarray(image).resize(size, way))


def overlaid(
    image: NDArray[np.uint8],
    heat: NDArray[np.floating],
    *,
    side: int = OVERLAY_SIDE,
    lit: float = COLOUR_AT_HIGHEST,
    tails: float = 0.0,
) -> NDArray[np.uint8]:
    """The image, dark where the map is low and lit where it is high, on the map's own scale.  H W 3, h w -> H W 3.

    side: pixels of the longer side.  lit: share of the map's colour where the map is highest.  tails: share of the map
    beyond each end of the scale, since one stray patch would dim all others.
    """
    below = shrunk(image, side).astype(np.float32)
    size = below.shape[1], below.shape[0]
    low, high = map(float, np.quantile(heat, (tails, 1 - tails)))
    share = ((heat - low) / (high - low) if high > low else np.zeros_like(heat)).clip(0, 1).astype(np.float32)
    light = np.clip(np.asarray(Image.fromarray(share).resize(size, Image.Resampling.BILINEAR)), 0, 1)
    mix = (COLOUR_AT_LOWEST + (lit - COLOUR_AT_LOWEST) * light)[..., None]
    return ((1 - mix) * below + mix * colours(light, 0.0, 1.0)).round().astype(np.uint8)
