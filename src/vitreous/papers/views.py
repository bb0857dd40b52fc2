"""The same images with other pixels: `SET:VIEW`, for questions about what the pixels hold.

grey                  the mean of the three colours in place of each: as many numbers, no colour
decorrelated          three axes along which colours vary by themselves, each with the same spread
shuffled-patches-P    each image's squares of P × P pixels, in an order of its own

H W rows and columns of an image   C colours
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from vitreous.errors import DataError
from vitreous.images.imageset import TRAIN, ImageSet, Source
from vitreous.randomness import permutation

COLOUR_IMAGES = 256  # training images that give the colour axes
MIDDLE_BYTE, SPREAD = 127.5, 48.0  # of a decorrelated channel, in bytes: 2.6 deviations fit

Pixels = NDArray[np.uint8]  # H W C
Changed = Callable[[Pixels, int], Pixels]  # an image and its number


@dataclass(frozen=True)
class ChangedImages:
    """A source whose images pass through a function."""

    origin: Source
    change: Changed

    def __len__(self) -> int:
        return len(self.origin)

    def name(self, i: int) -> str:
        return self.origin.name(i)

    def raw(self, i: int) -> None:
        return None

    def read(self, i: int) -> Pixels:
        return self.change(self.origin.read(i), i)


def viewed(data: ImageSet, view: str) -> ImageSet:
    """The set through a view; an empty one is the set itself."""
    if not view:
        return data
    source = ChangedImages(data.source, _change(data, view))
    return replace(data, source=source, path=f"{data.path}:{view}", content_id=f"{data.content_id}:{view}")


def _change(data: ImageSet, view: str) -> Changed:
    name, _, size = view.rpartition("-")
    if name == "shuffled-patches" and size.isdigit() and int(size) > 0:
        return partial(with_shuffled_patches, patch=int(size))
    if view == "grey":
        return as_grey
    if view == "decorrelated" and data.channels == 3:
        return partial(along_axes, axes=colour_axes(data))
    raise DataError(f"{data.path} has no view {view!r}; give grey, decorrelated (of colours) or shuffled-patches-P")


def as_grey(image: Pixels, number: int) -> Pixels:
    mean = image.mean(-1, keepdims=True).round().astype(np.uint8)
    return np.broadcast_to(mean, image.shape).copy()


@dataclass(frozen=True)
class ColourAxes:
    """colour − mean, times `turn`: numbers that do not vary together, each with a deviation of 1."""

    mean: NDArray[np.float64]  # C
    turn: NDArray[np.float64]  # C C


def colour_axes(data: ImageSet) -> ColourAxes:
    """Principal axes of the colours of the first training images, each scaled to the same spread."""
    places = np.flatnonzero(data.splits == TRAIN)[:COLOUR_IMAGES]
    colours = np.concatenate([data.read(int(i)).reshape(-1, data.channels)[::7] for i in places]).astype(np.float64)
    values, axes = np.linalg.eigh(np.cov(colours.T))
    return ColourAxes(colours.mean(0), axes / np.sqrt(np.maximum(values, 1e-9)))


def along_axes(image: Pixels, number: int, axes: ColourAxes) -> Pixels:
    turned = (image.astype(np.float64) - axes.mean) @ axes.turn
    return np.clip(MIDDLE_BYTE + SPREAD * turned, 0, 255).round().astype(np.uint8)


def with_shuffled_patches(image: Pixels, number: int, patch: int) -> Pixels:
    """Patches in an order drawn by the image's number; pixels that do not fill a patch stay."""
    rows, columns = image.shape[0] // patch, image.shape[1] // patch
    whole = image[: rows * patch, : columns * patch]
    parts = whole.reshape(rows, patch, columns, patch, -1).swapaxes(1, 2).reshape(rows * columns, patch, patch, -1)
    parts = parts[permutation(number, "shuffled patches", 0, len(parts))]
    out = image.copy()
    joined = parts.reshape(rows, columns, patch, patch, -1).swapaxes(1, 2)
    out[: rows * patch, : columns * patch] = joined.reshape(whole.shape)
    return out
