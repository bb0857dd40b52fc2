"""A set decoded once into memory, as a pack is on disk."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from vitreous.errors import DataError
from vitreous.images.batches.processes import in_order
from vitreous.images.imageset import TRAIN, ImageSet, Source
from vitreous.images.pixels import decode
from vitreous.machine import core_count
from vitreous.models.preprocess import Preprocess

IMAGES_AHEAD_PER_THREAD = 16  # queued for each thread
UNREADABLE_IMAGE = np.zeros((0, 0, 3), np.uint8)


@dataclass(eq=False)
class HeldPixels:
    """Images by their ids in the original source."""

    origin: Source
    ids: NDArray[np.int64]  # ascending
    images: list[NDArray[np.uint8]]
    is_finished: NDArray[np.bool_]  # by the preprocessing in the set's `about`
    unread: dict[int, str] = field(default_factory=dict)  # id → why that image is missing

    def __len__(self) -> int:
        return len(self.ids)

    def name(self, i: int) -> str:
        return self.origin.name(i)

    def raw(self, i: int) -> None:
        return None

    def read(self, i: int) -> NDArray[np.uint8]:
        if i in self.unread:
            raise DataError(self.unread[i])
        return self.images[int(np.searchsorted(self.ids, i))]

    @cached_property
    def sizes(self) -> NDArray[np.int64]:
        """Rows, columns of each; 0, 0 for a missing one."""
        return np.array([image.shape[:2] for image in self.images], np.int64).reshape(-1, 2)


def hold(
    data: ImageSet,
    *,
    short_side: int,
    preprocess: Preprocess,
    workers: int | None = None,
    progress: Callable[[int, int], None] | None = None,
    on_unreadable: Literal["raise", "defer"] = "raise",
) -> ImageSet:
    """Train images with a short side of at most `short_side`, test images finished by the rule, as a pack has them.

    An unreadable image is an error, now or deferred until it is read.
    workers: threads; decoding releases the interpreter lock.  progress: called with (done, total).
    """
    order = np.argsort(data.ids, kind="stable")
    threads = workers or min(core_count(), 16)
    images: list[NDArray[np.uint8]] = []
    unread: dict[int, str] = {}

    def one(place: int) -> NDArray[np.uint8]:
        pixels = data.read(place)
        if data.splits[place] == TRAIN:
            return np.ascontiguousarray(decode.shrink(pixels, short_side))
        return np.ascontiguousarray(decode.finish(pixels, preprocess))

    def one_or_why(place: int) -> NDArray[np.uint8] | DataError:
        try:
            return one(place)
        except DataError as error:
            if on_unreadable == "raise":
                raise
            return error

    with ThreadPoolExecutor(threads, "vitreous-hold") as pool:
        for found in in_order(pool, one_or_why, order.tolist(), IMAGES_AHEAD_PER_THREAD * threads):
            if isinstance(found, DataError):
                unread[int(data.ids[order[len(images)]])] = str(found)
            images.append(UNREADABLE_IMAGE if isinstance(found, DataError) else found)
            if progress is not None and (len(images) % 64 == 0 or len(images) == len(order)):
                progress(len(images), len(order))
    source = HeldPixels(data.source, data.ids[order], images, data.splits[order] != TRAIN, unread)
    about: dict[str, Any] = {**data.about, "pack": {"preprocess": preprocess.to_json(), "short_side": short_side}}
    return replace(data, source=source, about=about)


def find(held: ImageSet, ids: ArrayLike) -> ImageSet:
    """The images of these ids, in that order."""
    try:
        return held.take(find_places(held.ids, ids))
    except DataError as error:
        raise DataError(f"{held.path}: {error}") from None


def find_places(there: NDArray[np.int64], ids: ArrayLike) -> NDArray[np.int64]:
    """The place of each id in `there`, which need not be sorted; one search for all."""
    wanted = np.asarray(ids, np.int64)
    order = None if (there[1:] >= there[:-1]).all() else np.argsort(there, kind="stable")
    found = np.searchsorted(there, wanted, sorter=order)
    found = np.minimum(found, max(len(there) - 1, 0))
    places = found if order is None else order[found]
    missing = wanted[there[places] != wanted] if len(there) else wanted
    if len(missing):
        raise DataError(
            f"{len(missing):,} images are not among these {len(there):,}, such as number {missing[0]}; "
            "hold or pack the whole set"
        )
    return places
