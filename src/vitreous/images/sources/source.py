"""What a source is (`SourceKind`), and what it finds in a place (`FoundImages`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from vitreous.images.imageset import ImageSet, Source, WordArray
from vitreous.images.sources.labels import Labels
from vitreous.images.sources.paths import Place


@dataclass(frozen=True)
class FoundImages:
    """All images of a set as a source found them; `images.open_data` turns it into an `ImageSet`."""

    source: Source
    labels: Labels  # N, −1 for none; or N × K of 0 and 1
    classes: tuple[str, ...]
    own_splits: Sequence[str] | WordArray  # each image's own split: train, val, test or ""
    fingerprints: Sequence[str]  # of each image: changes when the image does; unused with `content`
    notes: tuple[str, ...] = ()
    columns: dict[str, Sequence[str]] = field(default_factory=dict)  # further facts about each image
    channels: int = 3
    about: dict[str, Any] = field(default_factory=dict)
    content: str | None = None  # the content id, if the source knows it by itself


@dataclass(frozen=True)
class SourceKind:
    """One kind of data, and how to open it."""

    name: str
    holds: str  # one line for people
    recognises: Callable[[Place], bool]
    open: Callable[[Place], FoundImages | ImageSet]  # an ImageSet if the set is already split
