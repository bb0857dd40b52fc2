"""Which images a model has learned from: `fit` writes their digests beside the model, `eval` reads them there.

The model's own file names no image, so that it can be given away.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from vitreous.files import atomic_write
from vitreous.images.health.duplicates import known_digests
from vitreous.images.imageset import TRAIN, ImageSet
from vitreous.models.model import Model

LEARNED = "learned.npy"  # digests of files, or of pixels that lie decoded


def write(data: ImageSet, folder: Path) -> None:
    """Write the digests of these images into the run, if its check or its split has read them."""
    if (digests := known_digests(data)) is not None:
        atomic_write(folder / LEARNED, lambda file: np.save(file, np.unique(digests)), force=True)


def of(model: Model, data: ImageSet) -> ImageSet:
    """The images of the set that the model has learned from, as far as is known; else its train split, or all."""
    which = seen(model, data)
    if which is not None and which.any():
        return data.take(which)
    is_whole = data.split_was_made and model.source.get("learned_from") != "train"
    return data if is_whole or TRAIN not in data.splits else data.split(TRAIN)


def seen(model: Model, data: ImageSet) -> NDArray[np.bool_] | None:
    """Of each image, whether the model has learned from it; None if that is not known."""
    file = None if model.read_from is None else model.read_from.with_name(LEARNED)
    if file is None or not file.is_file() or (digests := known_digests(data)) is None:
        return None
    try:
        learned = np.load(file, allow_pickle=False)
    except (OSError, ValueError, EOFError):
        return None
    return (digests != 0) & np.isin(digests, learned)
