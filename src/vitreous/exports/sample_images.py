"""Pictures to compare by, where the user names none: generated scenes of many sizes, and embedded photographs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vitreous.images import open_data
from vitreous.images.embedded import shapes
from vitreous.images.pixels import preprocess
from vitreous.images.sources.fashion import FASHION_NAME as FASHION

__all__ = ["embedded", "generated"]

SIZES = (
    (224, 224),
    (240, 320),
    (320, 240),
    (97, 131),
    (300, 140),
    (64, 64),
    (180, 400),
    (33, 57),
    (256, 192),
    (48, 48),
)
HALF = 50  # of each kind

Picture = NDArray[np.uint8]  # H W C


def generated(index: int, channels: int = 3) -> Picture:
    """A shape on clouds, with fine grain, of a size that depends on its number; the same everywhere and always."""
    rows, columns = SIZES[index % len(SIZES)]
    scene = Image.fromarray(shapes.draw(index)[0]).resize((columns, rows), Image.Resampling.BICUBIC)
    grain = np.random.default_rng(index).integers(-12, 13, (rows, columns, 3))
    picture = (np.asarray(scene).astype(np.int64) + grain).clip(0, 255).astype(np.uint8)
    return preprocess.as_array(preprocess.as_image(picture, channels))


def embedded(channels: int = 3) -> Iterator[tuple[Picture, Any]]:
    """Generated scenes and photographs of clothes by turns; nobody knows their label."""
    clothes = open_data.open(FASHION, split="test")
    for i in range(HALF):
        yield generated(i, channels), None
        yield preprocess.as_array(preprocess.as_image(clothes.read(i), channels)), None
