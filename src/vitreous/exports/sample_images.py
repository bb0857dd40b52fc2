"""Images to compare on by default: generated scenes of many sizes, and embedded photographs."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vitreous.images import open_data
from vitreous.images.embedded import shapes
from vitreous.images.pixels import preprocess
from vitreous.images.sources.fashion import FASHION_NAME as FASHION

GENERATED_SIZES = (  # rows, columns
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
IMAGES_OF_EACH_KIND = 50

Pixels = NDArray[np.uint8]  # H W C


def generated(index: int, channels: int = 3) -> Pixels:
    """A shape on clouds with fine grain. The index decides the size and every pixel, on every machine."""
    rows, columns = GENERATED_SIZES[index % len(GENERATED_SIZES)]
    scene = Image.fromarray(shapes.draw(index)[0]).resize((columns, rows), Image.Resampling.BICUBIC)
    grain = np.random.default_rng(index).integers(-12, 13, (rows, columns, 3))
    image = (np.asarray(scene).astype(np.int64) + grain).clip(0, 255).astype(np.uint8)
    return preprocess.as_array(preprocess.as_image(image, channels))


def embedded(channels: int = 3) -> Iterator[Pixels]:
    """Generated scenes and photographs of clothes, one after the other, without labels."""
    clothes = open_data.open(FASHION, split="test")
    for i in range(IMAGES_OF_EACH_KIND):
        yield generated(i, channels)
        yield preprocess.as_array(preprocess.as_image(clothes.read(i), channels))
