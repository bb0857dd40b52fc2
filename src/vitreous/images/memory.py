"""A set of pictures decoded once and held in memory: what a pack is on disk, for sets that fit."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitreous.errors import DataError
from vitreous.images import decode
from vitreous.images.imageset import TRAIN, ImageSet, Source
from vitreous.models.preprocess import Preprocess

__all__ = ["HeldPixels", "hold"]


@dataclass(eq=False)
class HeldPixels:
    """Pictures by the ids they had where they came from."""

    origin: Source
    ids: NDArray[np.int64]  # rising
    pictures: list[NDArray[np.uint8]]
    is_finished: NDArray[np.bool_]  # by the rule that the set's `about` names

    def __len__(self) -> int:
        return len(self.ids)

    def name(self, i: int) -> str:
        return self.origin.name(i)

    def raw(self, i: int) -> None:
        return None

    def read(self, i: int) -> NDArray[np.uint8]:
        return self.pictures[self.row(i)]

    def row(self, i: int) -> int:
        return int(np.searchsorted(self.ids, i))

    def finished(self, ids: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Which of the pictures with these ids are the finished pixels of a rule."""
        return self.is_finished[np.searchsorted(self.ids, ids)]

    @property
    def sizes(self) -> NDArray[np.int64]:
        """Rows, columns of each."""
        return np.array([picture.shape[:2] for picture in self.pictures], np.int64).reshape(-1, 2)


def hold(data: ImageSet, *, short_side: int, preprocess: Preprocess, workers: int | None = None) -> ImageSet:
    """Train pictures with a short side of at most `short_side`, test pictures finished by the rule, as a pack has them.

    A picture that cannot be read is an error, named.  workers: threads; decoding lets the interpreter go.
    """
    order = np.argsort(data.ids, kind="stable")
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1

    def one(place: int) -> NDArray[np.uint8]:
        pixels = data.read(place)
        if data.splits[place] == TRAIN:
            return np.ascontiguousarray(decode.shrink(pixels, short_side))
        return np.ascontiguousarray(decode.finish(pixels, preprocess))

    with ThreadPoolExecutor(workers or min(cores, 16), "vitreous-hold") as pool:
        try:
            pictures = list(pool.map(one, order.tolist()))
        except DataError:
            pool.shutdown(cancel_futures=True)
            raise
    source = HeldPixels(data.source, data.ids[order], pictures, data.splits[order] != TRAIN)
    about: dict[str, Any] = {**data.about, "pack": {"preprocess": preprocess.to_json(), "short_side": short_side}}
    return replace(data, source=source, about=about)
