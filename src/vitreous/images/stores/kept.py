"""For a process that trains many networks on parts of a few sets: keeps arrays on the device, and decoded sets.

Off unless `keep` was called: then memory is spent once for each set, and nothing is read or decoded twice.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np

from vitreous.files import digest
from vitreous.images.imageset import TEST, ImageSet
from vitreous.images.stores import memory
from vitreous.models.preprocess import Preprocess

LAST = 6  # things kept: a cell reads train, dev and test of one set, or of two
Made = TypeVar("Made")
_found: dict[Hashable, tuple[Any, Any]] | None = None  # holds the source, so that no other object takes its id


def keep() -> None:
    """From now on this process keeps what `once` makes."""
    global _found
    _found = {} if _found is None else _found


def is_on() -> bool:
    return _found is not None


def once(source: Any, what: Hashable, make: Callable[[], Made]) -> Made:
    """make(), or its earlier result for this source, if that is among the last few. None is not kept."""
    if _found is None:
        return make()
    key = id(source), what
    if key in _found:
        found = _found.pop(key)
    else:
        while len(_found) >= LAST:  # first, to make room
            del _found[next(iter(_found))]
        found = source, make()
    made: Made = found[1]
    if made is not None:
        _found[key] = found  # now the newest
    return made


def hold(data: ImageSet, *, short_side: int, preprocess: Preprocess, **how: Any) -> ImageSet:
    """`memory.hold`, once for the same images, splits and pixels."""
    chosen = digest(data.ids.tobytes() + (np.asarray(data.splits) == TEST).tobytes())
    what = "held", chosen, short_side, preprocess
    return once(data.source, what, lambda: memory.hold(data, short_side=short_side, preprocess=preprocess, **how))


def as_evaluated(data: ImageSet, rule: Preprocess) -> ImageSet:
    """The images with the pixels of an evaluation, decoded once; unchanged if nothing is kept."""
    if not is_on() or not data.is_encoded:
        return data
    judged = replace(data, splits=np.full(len(data), TEST))
    return replace(hold(judged, short_side=min(rule.size), preprocess=rule), splits=data.splits)
