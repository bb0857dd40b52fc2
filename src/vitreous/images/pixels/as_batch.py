"""`model.preprocess(images)`: images of any kind become one batch, by the pixels that `predict` sees."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from vitreous.errors import DataError
from vitreous.images.imageset import ImageSet
from vitreous.images.pixels import decode, preprocess
from vitreous.images.sources import image_file
from vitreous.images.sources.paths import cannot_read, read_image_file
from vitreous.models.preprocess import Preprocess

WANTED = "give a file, a Pillow image, an array H×W×C of uint8, a set, or a list of these"


def as_batch(images: Any, rule: Preprocess) -> Tensor:
    """Decode, turn upright, resize, crop, normalise.  Returns B C H W, float32, on the CPU."""
    pixels = [decode.finish(image, rule) for image in _read(images)]
    if not pixels:
        raise DataError(f"there is no image to preprocess; {WANTED}")
    return preprocess.finish(torch.from_numpy(np.stack(pixels)).permute(0, 3, 1, 2).contiguous(), rule)


def _read(images: Any) -> Iterator[NDArray[np.uint8]]:
    """Each image, H W C."""
    match images:
        case str() | os.PathLike():
            yield _file(os.fspath(images))
        case Image.Image():
            yield np.array(image_file.upright(images).convert("RGB"))
        case np.ndarray() if images.ndim == 4:
            yield from images
        case np.ndarray():
            yield images
        case ImageSet():
            yield from (images.read(i) for i in range(len(images)))
        case Iterable() if not isinstance(images, Tensor):
            for image in images:
                yield from _read(image)
        case _:
            raise DataError(f"a {type(images).__name__} is not an image; {WANTED}")


def _file(name: str) -> NDArray[np.uint8]:
    if Path(name).is_dir():
        raise DataError(f"{name} is a folder; open it: model.preprocess(vitreous.images.open({name!r}))")
    try:
        return image_file.decode(read_image_file(name), name)
    except OSError as error:
        raise cannot_read(name, error) from None
