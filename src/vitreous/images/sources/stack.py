"""Decoded images of one size, as arrays: what `.npz`, `.npy`, IDX files and the embedded set become."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitreous.errors import DataError
from vitreous.images.sources.paths import fingerprint

Array = NDArray[Any]


@dataclass(frozen=True)
class ArrayPart:
    """One array of images, and how its numbers become uint8 H × W × C."""

    file: str
    key: str  # in the file
    title: str  # prefix of its images' names
    count: int
    channels_first: bool = False
    scale: float = 1.0


@dataclass
class Stack:
    """Arrays of images. `load(file, key)` is called on first use in each process; arrays are not pickled."""

    load: Callable[[str, str], Array]
    parts: tuple[ArrayPart, ...]
    channels: int
    arrays: dict[int, Array] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        self.ends = np.array(list(accumulate(part.count for part in self.parts)), np.int64)

    def __len__(self) -> int:
        return int(self.ends[-1]) if len(self.ends) else 0

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"arrays": {}}

    def name(self, i: int) -> str:
        n, row = self._find(i)
        return f"{self.parts[n].title}/{row}"

    def raw(self, i: int) -> None:
        return None

    def read(self, i: int) -> NDArray[np.uint8]:
        n, row = self._find(i)
        return self._as_images(n, self.array(n)[row : row + 1])[0]

    def whole(self) -> NDArray[np.uint8]:
        """All images at once, N × H × W × C."""
        return np.concatenate([self._as_images(n, self.array(n)) for n in range(len(self.parts))])

    def array(self, n: int) -> Array:
        if n not in self.arrays:
            self.arrays[n] = self.load(self.parts[n].file, self.parts[n].key)
        return self.arrays[n]

    def fingerprints(self) -> list[str]:
        rows = (row for n in range(len(self.parts)) for row in self.array(n))
        return [fingerprint(np.ascontiguousarray(row).tobytes()) for row in rows]

    def _find(self, i: int) -> tuple[int, int]:
        n = int(np.searchsorted(self.ends, i, "right"))
        return n, i - (int(self.ends[n - 1]) if n else 0)

    def _as_images(self, n: int, x: Array) -> NDArray[np.uint8]:
        """Image i as a writable copy."""
        part = self.parts[n]
        x = x[..., None] if x.ndim == 3 else x.transpose(0, 2, 3, 1) if part.channels_first else x
        if x.dtype != np.uint8 or part.scale != 1:
            x = np.nan_to_num(x.astype(np.float64) * part.scale).round().clip(0, 255).astype(np.uint8)
        if x.shape[-1] == 4:  # laid on white
            alpha = x[..., 3:].astype(np.float64) / 255
            x = (x[..., :3] * alpha + 255 * (1 - alpha)).round().astype(np.uint8)
        if x.shape[-1] == 1 and self.channels == 3:
            x = x.repeat(3, axis=-1)
        return np.array(x, np.uint8, order="C")


def stack_of(
    load: Callable[[str, str], Array], pieces: Iterable[tuple[str, str, str, str]]
) -> tuple[Stack, list[str], list[str]]:
    """Arrays of one set, each image's own split, and notes.  pieces: split, file, key and title of each array."""
    parts: list[ArrayPart] = []
    own_splits, notes, channels = [], [], 1
    for split, file, key, title in pieces:
        part, needed, told = _describe(load(file, key), file, key, split or title)
        parts.append(part)
        own_splits += [split] * part.count
        notes += told
        channels = max(channels, needed)
    return Stack(load, tuple(parts), channels), own_splits, notes


def _describe(array: Array, file: str, key: str, title: str) -> tuple[ArrayPart, int, list[str]]:
    """How an array holds images: the part, its channels, and notes on what was decided."""
    what = f"{file} ({key})" if key else file
    if array.dtype.kind not in "uifb" or array.ndim not in (3, 4) or not len(array):
        raise DataError(f"{what} is {array.dtype} of shape {array.shape}; images are N×H×W or N×H×W×C of numbers")
    first, channels = False, 1
    if array.ndim == 4:
        first = array.shape[-1] not in (1, 3, 4) and array.shape[1] in (1, 3, 4)
        channels = array.shape[1] if first else array.shape[-1]
        if channels not in (1, 3, 4):
            raise DataError(f"{what} has shape {array.shape}; images have 1, 3 or 4 channels")
    notes = [f"{title}: channels came first and were moved last"] * first
    scale = 1.0
    if array.dtype != np.uint8:
        top = float(np.nanmax(array)) if array.dtype != bool else 1.0
        scale = 255.0 if top <= 1 else 1.0 if top <= 255 else 1 / 257 if top <= 65535 else 255 / top
        notes.append(
            f"{title}: {array.dtype} from {float(np.nanmin(array)):g} to {top:g} became 0 to 255 (times {scale:.4g})"
        )
    return ArrayPart(file, key, title, len(array), first, scale), 1 if channels == 1 else 3, notes
