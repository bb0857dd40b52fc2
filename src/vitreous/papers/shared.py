"""What all processes share about a large set: which images are copies, and the pixels of a view.

Both are files next to the trained models, made by the first process that wants them.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitreous.files import lock
from vitreous.files import replace as move
from vitreous.images.health.duplicates import NearPair, Twins, scan_set
from vitreous.images.health.facts import Seen
from vitreous.images.imageset import TRAIN, ImageSet, Scan, Source
from vitreous.papers.views import viewed

SHARED_FROM = 20_000  # images; reading a smaller set again is as fast
COPIED_AT_ONCE = 1024


def share_copies(data: ImageSet, folder: Path) -> None:
    """Find the copies in a large set once, for the dev splits of all processes: finding them reads every image."""
    train = data.take(data.splits == TRAIN)
    if len(train) < SHARED_FROM or data.is_encoded:  # facts on encoded files have their own cache
        return

    def make(file: Path) -> None:
        seen, twins = scan_set(train, None)
        lengths = [len(group) for group in twins.exact]
        near = [(pair.i, pair.j, pair.bits, pair.correlation) for pair in twins.near]
        with file.open("wb") as out:
            np.savez(
                out,
                ids=train.ids,
                facts=seen.facts,
                members=np.array([i for group in twins.exact for i in group], np.int64),
                lengths=np.array(lengths, np.int64),
                near=np.array(near, np.float64).reshape(-1, 4),
            )

    with np.load(_made(folder, f"copies-{data.content_id}.npz", make), allow_pickle=False) as found:
        groups = np.split(found["members"], found["lengths"].cumsum()[:-1]) if len(found["lengths"]) else []
        near = [NearPair(int(i), int(j), int(bits), float(alike)) for i, j, bits, alike in found["near"]]
        twins = Twins([group.tolist() for group in groups], near)
        data.scan.last = weakref.ref(data.source), found["ids"], Seen(found["facts"]), twins


@dataclass(eq=False)
class KeptPixels:
    """Images of one size by number, from one file."""

    origin: Source
    file: Path

    def __post_init__(self) -> None:
        self.images: NDArray[np.uint8] = np.load(self.file, mmap_mode="r")

    def __len__(self) -> int:
        return len(self.images)

    def name(self, i: int) -> str:
        return self.origin.name(i)

    def raw(self, i: int) -> None:
        return None

    def read(self, i: int) -> NDArray[np.uint8]:
        return np.array(self.images[i])

    def whole(self) -> NDArray[np.uint8]:
        return np.array(self.images)


def shared_view(data: ImageSet, view: str, folder: Path) -> ImageSet:
    """A view of a large set with its pixels in a file. Copies are those of the set itself, so dev splits agree."""
    found = viewed(data, view)
    if data.scan.last is None or data.scan.last[0]() is not data.source:
        return found

    def make(file: Path) -> None:
        shape = (len(found.source), *found.source.read(0).shape)
        out: Any = np.lib.format.open_memmap(file, "w+", np.uint8, shape)
        for first in range(0, len(out), COPIED_AT_ONCE):
            numbers = range(first, min(first + COPIED_AT_ONCE, len(out)))
            out[first : first + COPIED_AT_ONCE] = np.stack([found.source.read(i) for i in numbers])
        out.flush()

    source = KeptPixels(data.source, _made(folder, f"view-{data.content_id}-{view}.npy", make))
    _, ids, seen, twins = data.scan.last
    return replace(found, source=source, scan=Scan((weakref.ref(source), ids, seen, twins)))


def _made(folder: Path, name: str, make: Callable[[Path], None]) -> Path:
    """The file of that name, made by the first process that asks; others wait for it."""
    file = folder / name
    folder.mkdir(parents=True, exist_ok=True)
    with lock(folder / f".{name}.lock"):
        if not file.is_file():
            part = file.with_name(f"{name}.part")
            make(part)
            move(part, file)
    return file
