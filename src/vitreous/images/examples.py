"""Example images for a page: from data that was given, or from the set inside the package."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from vitreous.errors import DataError
from vitreous.images import open_data
from vitreous.images.imageset import TEST, ImageSet
from vitreous.images.sources.fashion import FASHION_CLASSES as CLOTHES
from vitreous.images.sources.fashion import FASHION_NAME as EMBEDDED

Pixels = NDArray[np.uint8]  # H W C
EXAMPLES_SHOWN = 8


def choose(data: ImageSet | None, labels: Sequence[str]) -> list[tuple[str, Pixels]]:
    """(label, image H W C): of as many classes as possible, from the test split if there is one.

    labels: the model's.  Without data, only a model of the embedded set's classes has examples.
    """
    if data is None and set(labels) != set(CLOTHES):
        return []
    found = of(open_data.open(EMBEDDED) if data is None else data)
    chosen: list[tuple[str, Pixels]] = []
    for place in _spread(found):
        try:
            chosen.append((label_of(found, place) or "example", found.read(place)))
        except (DataError, OSError):
            continue
        if len(chosen) == EXAMPLES_SHOWN:
            break
    return chosen


def of(data: ImageSet) -> ImageSet:
    """The images that examples are taken from: the test split, if there is one."""
    return data.split(TEST) if TEST in data.splits else data


def _spread(data: ImageSet) -> list[int]:
    """Indices: the first image of every class before the second of any."""
    if data.has_many_labels or not data.classes:
        return list(range(min(len(data), 4 * EXAMPLES_SHOWN)))
    turn = np.zeros(len(data), np.int64)
    for c in range(len(data.classes)):
        where = np.flatnonzero(data.labels == c)
        turn[where] = np.arange(len(where))
    return np.lexsort((data.labels, turn))[: 4 * EXAMPLES_SHOWN].tolist()


def label_of(data: ImageSet, place: int) -> str:
    """The class of an image; empty if it has none, or several."""
    label = data.labels[place]
    return "" if np.ndim(label) or label < 0 or not data.classes else data.classes[int(label)]
