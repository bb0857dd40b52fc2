"""Labelled images from any source: the result of `images.open`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from vitreous.errors import DataError
from vitreous.printable import storable

STREAMED_KINDS = ("shards", "parquet")
STREAMED_FROM = 100_000  # images
TRAIN, TEST = "train", "test"  # the only splits; code that chooses something cuts a dev split from train


@runtime_checkable
class Source(Protocol):
    """Images by number, in one fixed order. Pickled to workers, so it opens its files lazily and holds no handles."""

    def __len__(self) -> int: ...

    def name(self, i: int) -> str:
        """The name of image i: a path inside the set."""

    def raw(self, i: int) -> bytes | None:
        """The encoded file of image i, or None if images are stored decoded."""

    def read(self, i: int) -> NDArray[np.uint8]:
        """Image i, upright, as H×W×3 (or H×W×1 if the whole set is grey)."""


class NamedImages:
    """A source whose length and names come from a list of names."""

    names: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.names)

    def name(self, i: int) -> str:
        return storable(self.names[i])


@dataclass(frozen=True, eq=False)
class WordArray:
    """Words from a short list, one byte each, used like an array of text."""

    codes: NDArray[np.uint8]
    words: tuple[str, ...]

    @classmethod
    def of(cls, values: Sequence[str] | NDArray[np.str_] | WordArray) -> WordArray:
        if isinstance(values, WordArray):
            return values
        words, codes = np.unique(np.asarray(values, dtype=np.str_), return_inverse=True)
        return cls(codes.astype(np.uint8), tuple(words.tolist()))

    @classmethod
    def repeated(cls, values: Sequence[str], counts: Sequence[int]) -> WordArray:
        """Each value, repeated by its count."""
        short = cls.of(values)
        return replace(short, codes=np.repeat(short.codes, counts))

    @classmethod
    def chosen(cls, where: NDArray[np.bool_], one: str, other: str) -> WordArray:
        """`one` where True, else `other`."""
        return cls((~where).astype(np.uint8), (one, other))

    def __len__(self) -> int:
        return len(self.codes)

    def __getitem__(self, where: Any) -> Any:
        found = self.codes[where]
        return self.words[found] if np.ndim(found) == 0 else replace(self, codes=found)

    def __iter__(self) -> Iterator[str]:
        return map(self.words.__getitem__, self.codes.tolist())

    def __contains__(self, word: object) -> bool:
        return bool((self == word).any())

    def __eq__(self, other: object) -> Any:
        """True where the word is `other`, or the word at the same place of another array."""
        if isinstance(other, str):
            return self.codes == self.words.index(other) if other in self.words else np.zeros(len(self), bool)
        return np.asarray(self) == np.asarray(other)

    def __ne__(self, other: object) -> Any:
        return ~(self == other)

    __hash__ = None  # type: ignore[assignment]  # as an array has none

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        return np.array(self.words, dtype=np.str_)[self.codes].astype(dtype or np.str_)

    def tolist(self) -> list[str]:
        return list(self)

    def found(self) -> set[str]:
        """The words that occur."""
        return {self.words[i] for i in np.flatnonzero(np.bincount(self.codes, minlength=len(self.words)))}


@dataclass(eq=False)
class Scan:
    """Facts and duplicates that health/duplicates.py last found in a set; all its parts share them."""

    last: tuple[Any, Any, Any, Any] | None = None  # a weak reference to the source, ids, Seen, Twins

    def __reduce__(self) -> tuple[type[Scan], tuple[()]]:
        return Scan, ()  # a worker needs none of it


@dataclass(frozen=True, eq=False)
class ImageSet:
    """Some images of a source with their labels.

    ids: each image's number in the source, which is its sample id for every draw, in every subset.
    labels: N class numbers, −1 for none; or N×K of 0 and 1 if images have several.
    """

    source: Source
    ids: NDArray[np.int64]
    labels: NDArray[np.int64]
    classes: tuple[str, ...]
    splits: NDArray[np.str_] | WordArray  # of each image: "train" or "test"
    path: str  # as the user wrote it
    kind: str  # which source: "folders", "zip", "shards", …
    content_id: str  # of the whole source: changes when an image or a label does
    notes: tuple[str, ...] = ()  # what was found and done, as text
    channels: int = 3
    about: dict[str, Any] = field(default_factory=dict)
    own_splits: NDArray[np.str_] | WordArray | None = (
        None  # the split that the set itself names: train, val, test or ""
    )
    groups: NDArray[np.int64] | None = None  # of each image: images with the same number stay in one split
    scan: Scan = field(default_factory=Scan, repr=False)

    def __len__(self) -> int:
        return len(self.ids)

    def name(self, i: int) -> str:
        return self.source.name(int(self.ids[i]))

    def raw(self, i: int) -> bytes | None:
        return self.source.raw(int(self.ids[i]))

    def fetch(self, places: Sequence[int]) -> dict[int, bytes | DataError]:
        """The encoded files of several images at once if the source can (shards in a store), else nothing."""
        fetch = getattr(self.source, "fetch", None)
        if fetch is None:
            return {}
        numbers = [int(self.ids[i]) for i in places]
        found = fetch(numbers)
        return {i: found[number] for i, number in zip(places, numbers, strict=True) if number in found}

    @property
    def is_streamed(self) -> bool:
        """True for a set of shards so large that it is read as it lies: not compared, held or packed."""
        return self.kind in STREAMED_KINDS and len(self) > STREAMED_FROM

    @property
    def is_encoded(self) -> bool:
        """True if its images are encoded files, judged by the first one."""
        try:
            return self.raw(0) is not None
        except DataError:  # only an encoded file can be unreadable
            return True

    @property
    def has_many_labels(self) -> bool:
        """True if labels are rows of 0 and 1 over the classes, not class numbers."""
        return self.labels.ndim == 2

    @property
    def split_was_made(self) -> bool:
        """True if `images.open` made the test split, because the set has none."""
        return bool((self.about.get("split") or {}).get("made"))

    def read(self, i: int) -> NDArray[np.uint8]:
        """Image i of this subset: uint8 H×W×C, upright."""
        return self.source.read(int(self.ids[i]))

    def take(self, places: Sequence[int] | NDArray[np.integer] | NDArray[np.bool_]) -> ImageSet:
        """The images at these places of this set."""
        where = np.asarray(places)
        where = np.flatnonzero(where) if where.dtype == bool else where.astype(np.int64)
        return replace(
            self,
            ids=self.ids[where],
            labels=self.labels[where],
            splits=self.splits[where],
            own_splits=None if self.own_splits is None else self.own_splits[where],
            groups=None if self.groups is None else self.groups[where],
        )

    def split(self, name: str) -> ImageSet:
        """The images of "train" or of "test"."""
        names = WordArray.of(self.splits).found()
        if name not in names:
            raise DataError(f"{self.path} has no split {name!r}; it has: {', '.join(sorted(names)) or 'no images'}")
        return self.take(self.splits == name)

    @property
    def counts(self) -> NDArray[np.int64]:
        """The number of images in each class."""
        if self.has_many_labels:
            return self.labels.clip(min=0).sum(0)
        return np.bincount(self.labels[self.labels >= 0], minlength=len(self.classes))

    @property
    def split_counts(self) -> dict[str, int]:
        """The number of images in each split that has any."""
        return {name: int((self.splits == name).sum()) for name in (TRAIN, TEST) if (self.splits == name).any()}

    @property
    def names(self) -> list[str]:
        """The name of each image."""
        return [self.name(i) for i in range(len(self))]

    def headline(self, *, has_splits: bool = True) -> str:
        """The set in one line.  has_splits: with the number of images in each split."""
        parts = [f"{count:,} {name}" for name, count in self.split_counts.items()]
        names = ", ".join(self.classes[:3]) + (" …" if len(self.classes) > 3 else "")
        least, most = (int(self.counts.min()), int(self.counts.max())) if self.classes else (0, 0)
        span = f"{least:,} to {most:,} images" if least < most else f"{most:,} image{'' if most == 1 else 's'}"
        splits = f" ({', '.join(parts)})" if has_splits else ""
        first = f"{self.path}: {self.kind}, {len(self):,} images{splits}, {len(self.classes):,} classes"
        return first + (f" ({names}; {span} each)" if names else "")

    def __str__(self) -> str:
        return "\n".join([self.headline(), *self.notes])

    __repr__ = __str__  # at a prompt

    def _repr_html_(self) -> str:
        from vitreous.images.set_in_notebook import shown  # jinja2 and Pillow, only when a set is shown

        return shown(self)
