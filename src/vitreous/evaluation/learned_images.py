"""Which images a model has learned from: `fit` writes their digests beside the model; `eval` and `export` read them.

The model's own file names no image, so that it can be given away.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from vitreous.evaluation.accuracy import HAS_LEARNED
from vitreous.files import atomic_write
from vitreous.images.health.duplicates import known_digests
from vitreous.images.imageset import TRAIN, ImageSet
from vitreous.models.model import Model

LEARNED = "learned.npy"  # digests of files, or of pixels if the set holds them decoded


@dataclass(frozen=True)
class Overlap:
    """How many of some images a model has learned from; None if that is not known."""

    images: int
    learned: int | None

    def caution(self, number: str) -> str:
        """What `number`, measured on these images, says about new ones; empty if the model has learned from none."""
        if self.learned is None:
            return f"which images the model learned from is not known here; if some are these, {number} is too high"
        if self.learned == self.images:
            return f"{HAS_LEARNED}: {number} says nothing about new ones"
        if self.learned:
            return f"the model has learned from {self.learned:,} of these {self.images:,} images: {number} is too high"
        return ""


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


def overlap(model: Model, whole: ImageSet, part: ImageSet) -> Overlap:
    """How many images of this part of a set the model has learned from."""
    learned = seen(model, whole)
    if learned is None and (known := by_content(model, whole)):  # then the split that training made decides
        learned = (whole.splits == TRAIN) | (known == "all")
    return Overlap(len(part), None if learned is None else int(learned[np.isin(whole.ids, part.ids)].sum()))


def by_content(model: Model, data: ImageSet) -> str:
    """What our model has learned from in this set: "train", "all" if it was cross-validated, or "" for another set."""
    is_same = bool(data.content_id) and model.source.get("data") == data.content_id
    if not is_same:
        return ""
    return str(model.source.get("learned_from", "train")) if data.split_was_made else "train"


def _written(weights: Path | None) -> NDArray[np.uint64]:
    """The digests that lie beside a file of weights; empty if there are none."""
    try:
        found = np.load(weights.with_name(LEARNED), allow_pickle=False) if weights is not None else np.zeros(0)
    except (OSError, ValueError, EOFError):
        return np.zeros(0, np.uint64)
    return np.asarray(found).astype(np.uint64)
