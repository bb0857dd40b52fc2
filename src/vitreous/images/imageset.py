"""Labelled pictures, wherever they lie: what everything after `images.open` works on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from vitreous.errors import DataError

TRAIN, TEST = "train", "test"  # the two splits there are; a dev split is cut from train by whoever chooses something


@runtime_checkable
class Source(Protocol):
    """Pictures by number, in one fixed order. Pickled to workers, so it opens its files lazily and holds no handles."""

    def __len__(self) -> int: ...

    def name(self, i: int) -> str:
        """Where picture i lies, for people: a path inside the set."""

    def raw(self, i: int) -> bytes | None:
        """The encoded file of picture i, or None where pictures lie decoded."""

    def read(self, i: int) -> NDArray[np.uint8]:
        """Picture i, upright, as H×W×3 (or H×W×1 where the whole set is grey)."""


@dataclass(frozen=True, eq=False)
class ImageSet:
    """Some pictures of a source with their labels.

    ids: the picture's number in the source, which is its sample id for every draw and stays with it in every subset.
    labels: N class numbers, or N×K of 0 and 1 where a picture has several; −1 where there is none.
    """

    source: Source
    ids: NDArray[np.int64]
    labels: NDArray[np.int64]
    classes: tuple[str, ...]
    splits: NDArray[np.str_]  # of each picture: "train" or "test"
    path: str  # as the user said it
    kind: str  # which source: "folders", "zip", "shards", …
    content_id: str  # of the whole source: changes when a picture or a label does
    notes: tuple[str, ...] = ()  # what was found and what was done about it, for people
    channels: int = 3
    about: dict[str, Any] = field(default_factory=dict)
    given: NDArray[np.str_] | None = None  # of each picture: the split that the set itself names (train, val, test, "")
    groups: NDArray[np.int64] | None = None  # of each picture: those of one number must stay in one split

    def __len__(self) -> int:
        return len(self.ids)

    def name(self, i: int) -> str:
        return self.source.name(int(self.ids[i]))

    def raw(self, i: int) -> bytes | None:
        return self.source.raw(int(self.ids[i]))

    @property
    def is_encoded(self) -> bool:
        """Whether its pictures are files that must be decoded, as the first one tells."""
        try:
            return self.raw(0) is not None
        except DataError:  # of a file; what lies decoded has none
            return True

    @property
    def has_many_labels(self) -> bool:
        """Whether a label is a row of 0 and 1 over the classes, not one class number."""
        return self.labels.ndim == 2

    @property
    def split_was_made(self) -> bool:
        """Whether `images.open` made the test split, because the set brought none."""
        return bool((self.about.get("split") or {}).get("made"))

    def read(self, i: int) -> NDArray[np.uint8]:
        """Picture i of this subset: uint8 H×W×C, upright."""
        return self.source.read(int(self.ids[i]))

    def take(self, places: Sequence[int] | NDArray[np.integer] | NDArray[np.bool_]) -> ImageSet:
        """Those pictures, in that order; places count within this set."""
        where = np.asarray(places)
        where = np.flatnonzero(where) if where.dtype == bool else where.astype(np.int64)
        return replace(
            self,
            ids=self.ids[where],
            labels=self.labels[where],
            splits=self.splits[where],
            given=None if self.given is None else self.given[where],
            groups=None if self.groups is None else self.groups[where],
        )

    def split(self, name: str) -> ImageSet:
        """The pictures of "train" or of "test"."""
        names = set(self.splits.tolist())
        if name not in names:
            raise DataError(f"{self.path} has no split {name!r}; it has: {', '.join(sorted(names)) or 'no pictures'}")
        return self.take(self.splits == name)

    @property
    def counts(self) -> NDArray[np.int64]:
        """Pictures of each class."""
        if self.labels.ndim == 2:
            return self.labels.clip(min=0).sum(0)
        return np.bincount(self.labels[self.labels >= 0], minlength=len(self.classes))

    def __str__(self) -> str:
        parts = [f"{int((self.splits == s).sum()):,} {s}" for s in (TRAIN, TEST) if (self.splits == s).any()]
        names = ", ".join(self.classes[:3]) + (" …" if len(self.classes) > 3 else "")
        least, most = (int(self.counts.min()), int(self.counts.max())) if self.classes else (0, 0)
        span = f"{least:,} to {most:,} images" if least < most else f"{most:,} image{'' if most == 1 else 's'}"
        first = f"{self.path}: {self.kind}, {len(self):,} images ({', '.join(parts)}), {len(self.classes):,} classes"
        return "\n".join([first + (f" ({names}; {span} each)" if names else ""), *self.notes])
