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

LEARNED = "learned.npy"  # digests of files, or of pixels if the set holds them decoded


def write(data: ImageSet, folder: Path, begun_from: Path | None) -> None:
    """Write the digests of these images into the run, if its check or its split has read them.

    begun_from: the weights file that training started from; images that it has learned from count too.
    """
    if (digests := known_digests(data)) is not None:
        digests = np.union1d(digests, _written(begun_from))
        atomic_write(folder / LEARNED, lambda file: np.save(file, digests), force=True)


def of(model: Model, data: ImageSet) -> ImageSet:
    """The images of the set that the model has learned from; if unknown, its train split, or all."""
    which = seen(model, data)
    if which is not None and which.any():
        return data.take(which)
    is_whole = data.split_was_made and model.source.get("learned_from") != "train"
    return data if is_whole or TRAIN not in data.splits else data.split(TRAIN)


def seen(model: Model, data: ImageSet) -> NDArray[np.bool_] | None:
    """Of each image, whether the model has learned from it; None if that is not known."""
    learned = _written(model.read_from)
    if not len(learned) or (digests := known_digests(data)) is None:
        return None
    return (digests != 0) & np.isin(digests, learned)


def _written(weights: Path | None) -> NDArray[np.uint64]:
    """The digests that lie beside a file of weights; empty if there are none."""
    try:
        found = np.load(weights.with_name(LEARNED), allow_pickle=False) if weights is not None else np.zeros(0)
    except (OSError, ValueError, EOFError):
        return np.zeros(0, np.uint64)
    return np.asarray(found).astype(np.uint64)
