"""What the figures of several measures share: columns of a table, bands, names of layers, and maps over images."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from PIL import Image

from vitreous.measures.measure import Arrays, Found, rows_of
from vitreous.report import charts
from vitreous.report.charts import Line, Span, Tile, tile_side
from vitreous.report.colours import MAX_SIDE_UNSMOOTHED, colours
from vitreous.report.files import Panel
from vitreous.words import percent, shortened

BLOCK_AXIS, LAYER_AXIS = "block", "layer, from first to last"
COLOUR_AT_LOWEST, COLOUR_AT_HIGHEST = 0.8, 0.25  # share of a map's colour over the image
OVERLAY_SIDE = 112  # pixels of a small picture's longer side
PHOTO_SIDE = 448  # pixels of a photo's longer side, as it is kept
PIXELS_PER_TILE_PIXEL = 2  # sharp on a fine screen
VEIL_AT_LOWEST, VEIL_AT_HIGHEST = 0.72, 0.3  # share of a map's colour over a photo
LEADER_LETTERS = 28  # of a class in a legend
UNSEEN_GREY, UNSEEN_CONTRAST = 128.0, 0.35  # the parts of a photo that the model does not see


# Tables ------------------------------------------------------------------------------------------------------------


def column(rows: Sequence[Mapping[str, Any]], key: str) -> NDArray[np.float64]:
    """One key of every row; NaN for None."""
    return np.array([row.get(key) for row in rows], np.float64)


def blocks_of(rows: Sequence[Mapping[str, Any]]) -> NDArray[np.float64]:
    """The block of every row, for people: from 1."""
    return column(rows, "layer") + 1


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
    """The line of a key, in a band of two standard errors.  within: the limits of the band."""
    value, spread = column(rows, key), np.nan_to_num(column(rows, error))
    low, high = (np.clip(value + way * 2 * spread, *within) for way in (-1, 1))
    return Line(name, x, value, low, high, has_points=has_points)


def chance_of(found: Found) -> str:
    """The name of a line over one image."""
    return f"chance given to {shortened(found['leader'], LEADER_LETTERS)}"


def both_rows(found: Found, beside: Found | None) -> list[dict[str, Any]]:
    """The rows of both models, for a common scale."""
    return rows_of(found) + ([] if beside is None else rows_of(beside))


def top_with_room(*parts: Sequence[float | None] | NDArray[np.float64] | None) -> float:
    """The end of an axis: 16 % above the largest number."""
    known = [float(v) for part in parts if part is not None for v in part if v is not None and math.isfinite(v)]
    return 1.16 * max(known, default=1.0) or 1.0


# Layers ------------------------------------------------------------------------------------------------------------


def short_name(model: str, parts: int = 1) -> str:
    """The last parts of a path (of its folder, for a run's model); any other name as it is (S/16 is not a path)."""
    if not (Path(model).is_absolute() or model.startswith(("./", "../", "~")) or Path(model).exists()):
        return model
    path = Path(model)
    path = path.parent if path.name == "model.safetensors" and path.parent.name else path
    return "/".join(path.parts[-parts:]) or model


def short_names(models: Sequence[str]) -> list[str]:
    """Names that differ: longer paths where the last parts are the same; numbers if one model is given twice."""
    for parts in (1, 2, 3):
        names = [short_name(model, parts) for model in models]
        if len(set(names)) == len(names):
            return names
    return [f"{short_name(model)} ({i})" for i, model in enumerate(models, 1)]


def spans(names: Sequence[str]) -> list[Span]:
    """Neighbouring taps of one block or unit, under its name."""
    return [Span(name, len(list(same))) for name, same in groupby(map(block_name, names))]


def block_name(tap: str) -> str:
    """`block 8` for blocks.7.attention.weights: people count from 1."""
    parts = tap.removeprefix("stem.").split(".")
    before = "stem " if tap.startswith("stem.") else ""
    if parts[0] == "blocks" and len(parts) > 1:
        return f"block {int(parts[1]) + 1}"
    if parts[0] == "stages" and len(parts) > 3:
        return f"{before}unit {int(parts[1]) + 1}.{int(parts[3]) + 1}"
    return before + parts[-1]


def layer_name(tap: str) -> str:
    """`block 8` for blocks.7 and its output; `block 8, attention.output` for a part of it."""
    parts = tap.removeprefix("stem.").split(".")
    part = ".".join(parts[{"blocks": 2, "stages": 4}.get(parts[0], len(parts)) :])
    return block_name(tap) + (f", {part}" if part not in ("", "output") else "")


# Images ------------------------------------------------------------------------------------------------------------


def rgb(images: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Images of any number of channels, as RGB.  B C H W -> B H W 3"""
    moved = images.transpose(0, 2, 3, 1)
    return moved[..., :3] if moved.shape[-1] > 2 else np.repeat(moved[..., :1], 3, -1)


WHOLE_BOX = (0.0, 0.0, 1.0, 1.0)  # left, top, right, bottom, in shares of an image


@dataclass(frozen=True, eq=False)
class Photo:
    """An image as it is.  box: the part that the model sees: left, top, right, bottom, in shares of its sides."""

    pixels: NDArray[np.uint8]  # H W 3
    box: tuple[float, float, float, float]

    def resized(self, side: int) -> Photo:
        """With `side` pixels along its longer side; a small image shows its pixels."""
        h, w = self.pixels.shape[:2]
        factor = side / max(h, w)
        size = max(round(w * factor), 1), max(round(h * factor), 1)
        is_small = max(h, w) <= MAX_SIDE_UNSMOOTHED
        way = Image.Resampling.NEAREST if is_small and factor > 1 else Image.Resampling.LANCZOS
        return Photo(np.asarray(Image.fromarray(self.pixels).resize(size, way)), self.box)


def stacked(photos: Sequence[Photo]) -> dict[str, NDArray[Any]]:
    """Photos as arrays for a file: pixels B S S 3, each photo in the upper left corner."""
    largest = max(max(photo.pixels.shape[:2]) for photo in photos)
    pixels = np.zeros((len(photos), largest, largest, 3), np.uint8)
    for place, photo in zip(pixels, photos, strict=True):
        place[: photo.pixels.shape[0], : photo.pixels.shape[1]] = photo.pixels
    sizes = np.array([photo.pixels.shape[:2] for photo in photos], np.int64)
    return {"photos": pixels, "photo_sizes": sizes, "photo_boxes": np.array([photo.box for photo in photos])}


def photos_of(arrays: Arrays) -> list[Photo]:
    """What `stacked` put into arrays."""
    if "photos" not in arrays:
        return []
    parts = zip(arrays["photos"], arrays["photo_sizes"], arrays["photo_boxes"].tolist(), strict=True)
    return [Photo(pixels[:h, :w], tuple(box)) for pixels, (h, w), box in parts]


def evened(heat: NDArray[np.floating], cells: Sequence[float]) -> NDArray[np.float32]:
    """The values of a map in the middles of an even grid.  h w.

    cells: where the map's own grid lies: left, top, right, bottom in shares of the image (`architecture.spread`).
    """
    left, top, right, bottom = cells
    for axis, (begin, end) in enumerate(((top, bottom), (left, right))):
        count = heat.shape[axis]
        middles = (np.arange(count) + 0.5) / count
        at = ((middles - begin) / (end - begin) * count - 0.5).clip(0, count - 1)
        low = np.floor(at).astype(int)
        share = (at - low).reshape((-1, 1) if axis == 0 else (1, -1))
        heat = np.take(heat, low, axis) * (1 - share) + np.take(heat, np.minimum(low + 1, count - 1), axis) * share
    return heat.astype(np.float32)


def veiled(photo: Photo, heat: NDArray[np.floating], *, is_root: bool = False) -> NDArray[np.uint8]:
    """The photo, dark where the map is low and lit where it is high, on the map's own scale; grey where unseen.

    heat: h w.  is_root: scale by the square root, since one strong patch would hide all others.
    """
    h, w = photo.pixels.shape[:2]
    low, high = float(heat.min()), float(heat.max())
    share = ((heat - low) / (high - low) if high > low else np.zeros_like(heat)).clip(0, 1).astype(np.float32)
    left, top, right, bottom = (round(edge * n) for edge, n in zip(photo.box, (w, h, w, h), strict=True))
    light = Image.fromarray(np.sqrt(share) if is_root else share)
    light = light.resize((max(right - left, 1), max(bottom - top, 1)), Image.Resampling.BILINEAR)
    within = np.clip(np.asarray(light)[max(-top, 0) : h - top, max(-left, 0) : w - left], 0, 1)
    out = UNSEEN_GREY + (photo.pixels.astype(np.float32) - UNSEEN_GREY) * UNSEEN_CONTRAST
    part = (slice(max(top, 0), max(top, 0) + within.shape[0]), slice(max(left, 0), max(left, 0) + within.shape[1]))
    out[part] = _mixed(photo.pixels[part].astype(np.float32), within)
    return out.round().astype(np.uint8)


def _mixed(ground: NDArray[np.float32], light: NDArray[np.float32]) -> NDArray[np.float32]:
    """The ground under the colours of a map.  H W 3, H W of 0 … 1 -> H W 3."""
    mix = (VEIL_AT_LOWEST + (VEIL_AT_HIGHEST - VEIL_AT_LOWEST) * light)[..., None]
    return (1 - mix) * ground + mix * colours(light, 0.0, 1.0)


def looks_of(arrays: Arrays) -> NDArray[np.float32]:
    """Where the first token in front (the class token, if any) looks; without one, the mean patch.  B L H h w"""
    queries, keys = arrays["maps"].shape[3:]
    first = slice(0, 1 if queries > keys else None)
    maps, peaks = (arrays[name][:, :, :, first].astype(np.float32) for name in ("maps", "peaks"))
    rows = (maps * peaks[..., None] / 255).mean(3)  # B L H K
    return rows.reshape(*rows.shape[:3], *arrays["maps_grid"].tolist())


def share_of_look(share: float) -> str:
    return percent(share, 0 if share >= 0.0995 else 1)  # as look.js does


def veil_scale() -> NDArray[np.uint8]:
    """The colours of a veil over middle grey, from low to high.  1 64 3"""
    light = np.linspace(0, 1, 64, dtype=np.float32)[None]
    return _mixed(np.full((1, 64, 3), UNSEEN_GREY, np.float32), light).round().astype(np.uint8)


def over_photos(
    arrays: Arrays,
    maps: Mapping[str, NDArray[np.floating]],
    *,
    heading: str,
    says: Callable[[float], str],
    most: int = 1,
    is_root: bool = False,
) -> list[Panel]:
    """Each photo, and each map over it with its colour bar; nothing without photos.

    maps: by name, B h w.  says: a map's value in words.  most: photos shown.
    """
    photos = photos_of(arrays)[:most]
    if not photos or not maps:
        return []
    columns = 1 + len(maps) if len(photos) > 1 or len(maps) < 4 else max(2, min(4, round((1 + len(maps)) ** 0.5)))
    side = round(PIXELS_PER_TILE_PIXEL * tile_side(columns))
    tiles = []
    for i, whole in enumerate(photos):
        photo = whole.resized(side)
        tiles.append(Tile("image", photo.pixels))
        for name, each in maps.items():
            heat = evened(np.asarray(each[i], np.float32), tuple(arrays.get("cells", WHOLE_BOX)))
            scale = (veil_scale(), says(float(heat.min())), says(float(heat.max())))
            tiles.append(Tile(name, veiled(photo, heat, is_root=is_root), scale))
    return [Panel(charts.tiles(tiles, title=heading[:1].lower() + heading[1:], columns=columns), heading)]


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
