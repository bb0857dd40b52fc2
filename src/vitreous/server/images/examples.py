"""Images for a first visit: of the data that the server was given, or of the set inside the package for its classes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from vitreous.errors import DataError
from vitreous.images import open_data
from vitreous.images.imageset import TEST, ImageSet
from vitreous.images.sources.fashion import FASHION_CLASSES as CLOTHES
from vitreous.images.sources.fashion import FASHION_NAME as EMBEDDED
from vitreous.server.engine import Pixels

__all__ = ["choose"]

COUNT = 8


def choose(data: ImageSet | None, labels: Sequence[str]) -> list[tuple[str, Pixels]]:
    """(label, picture H W C): of different classes as far as there are, from the test split where there is one.

    labels: the model's.  Without data, a model of other classes than the set inside has no examples.
    """
    if data is None and set(labels) != set(CLOTHES):
        return []
    found = open_data.open(EMBEDDED) if data is None else data
    if TEST in found.splits:
        found = found.split(TEST)
    chosen: list[tuple[str, Pixels]] = []
    for place in _spread(found):
        try:
            chosen.append((_label(found, place), found.read(place)))
        except (DataError, OSError):
            continue
        if len(chosen) == COUNT:
            break
    return chosen


def _spread(data: ImageSet) -> list[int]:
    """Places, the first of every class before the second of any."""
    if data.labels.ndim == 2 or not data.classes:
        return list(range(min(len(data), 4 * COUNT)))
    turn = np.zeros(len(data), np.int64)
    for c in range(len(data.classes)):
        where = np.flatnonzero(data.labels == c)
        turn[where] = np.arange(len(where))
    return np.lexsort((data.labels, turn))[: 4 * COUNT].tolist()


def _label(data: ImageSet, place: int) -> str:
    label = data.labels[place]
    if np.ndim(label) or label < 0 or not data.classes:
        return "example"
    return data.classes[int(label)]
