"""`images.open`: find out what DATA is, and open it."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitreous.errors import DataError, without_secrets
from vitreous.images import series, splits
from vitreous.images.health.scan import Progress
from vitreous.images.imageset import STREAMED_FROM, TEST, TRAIN, ImageSet, WordArray
from vitreous.images.sources import SOURCES
from vitreous.images.sources.fashion import FASHION_NAME as FASHION
from vitreous.images.sources.labels import VAL
from vitreous.images.sources.paths import Place, find_place
from vitreous.images.sources.source import FoundImages, SourceKind
from vitreous.printable import storable
from vitreous.words import few

SPLIT_NOTE = re.compile(r"\bno test (split|image)|never tested|no training image")  # notes about a split made here
SPLIT_MADE = "no test split was given"


def open(
    path: str | os.PathLike[str] | ImageSet,
    *,
    split: str | None = None,
    limit: int | None = None,
    fraction: float | None = None,
    classes: Sequence[str] | None = None,
    seed: int = 0,
    group_by: str | None = None,
    skip_bad_shards: bool = False,
    progress: Progress | None = None,
) -> ImageSet:
    """The images of DATA: a path | a pattern | `fashion` | an fsspec address; an existing path wins.

    split: "train" or "test" alone. limit, fraction: that many images, spread over splits and classes; with one seed, a
    smaller subset lies inside a larger one. classes: only these. group_by: a column, `folder`, `exif-day`, or a regular
    expression on the path; images of one group stay on one side of every split. skip_bad_shards: leave out a shard
    that cannot be read, and note how many samples are lost. progress: called with (done, total) while reading every
    image, which is needed only to make a split.
    """
    splits.check_subset(limit, fraction)
    if group_by is not None and not isinstance(group_by, str):
        raise DataError(
            f"group_by={group_by!r} is not text; say folder, exif-day, a column, or a regular expression on the path"
        )
    if group_by is not None and isinstance(path, ImageSet):
        raise DataError(
            f"{path.path} is open and split already; give group_by where it is opened by its path, or leave it out"
        )
    data = path if isinstance(path, ImageSet) else _open(path, seed, group_by, progress, skip_bad_shards)
    if classes is not None:
        data = splits.keep_classes(data, classes)
    if split is not None:
        data = data.split(split)
    return splits.subset(data, limit=limit, fraction=fraction, seed=seed)


def _open(
    path: str | os.PathLike[str], seed: int, group_by: str | None, progress: Progress | None, skip_bad_shards: bool
) -> ImageSet:
    place = replace(_place(path), skips_bad_shards=skip_bad_shards)
    kind = _kind(place)
    found = kind.open(place)
    if isinstance(found, ImageSet):
        if group_by is not None:
            raise DataError(
                f"{place.text} was split when it was packed; name the set that it was made of, or leave group_by out"
            )
        return found
    found = replace(found, classes=tuple(map(storable, found.classes)))
    if not len(found.source):
        raise DataError(f"{place.text} holds no images")
    data = ImageSet(
        source=found.source,
        ids=np.arange(len(found.source), dtype=np.int64),
        labels=found.labels,
        classes=found.classes,
        splits=WordArray.repeated([TRAIN], [len(found.source)]),
        path=storable(without_secrets(place.text)),
        kind=kind.name,
        content_id=content_id(found),
        notes=found.notes,
        channels=found.channels,
        about=dict(found.about),
        own_splits=WordArray.of(found.own_splits),
    )
    groups, how = None, ""
    if group_by is not None:
        groups, how = series.groups_by(data, group_by, found.columns, progress)
    data = replace(data, groups=groups)
    has_second = bool(WordArray.of(found.own_splits).found() & {VAL, TEST})
    data = _own_split(data, how) if has_second else _made_split(data, seed, how, progress)
    return replace(data, notes=(*data.notes, *_cautions(data)))


def regroup(data: ImageSet, groups: NDArray[np.int64], how: str) -> ImageSet:
    """The set with these groups. A split that was made here is made again, so that it separates none of them."""
    data = replace(data, groups=groups)
    if not data.split_was_made:
        return data
    old = _cautions(data)
    notes = tuple(note for note in data.notes if note not in old and not note.startswith(SPLIT_MADE))
    data = _made_split(replace(data, notes=notes), data.about["split"]["seed"], how, None)
    return replace(data, notes=(*data.notes, *_cautions(data)))


def content_id(found: FoundImages) -> str:
    """A digest of the classes and of each image's name, fingerprint, label and split, in the order of the names."""
    if found.content is not None:
        return found.content
    several = found.labels.ndim == 2
    total = hashlib.sha256("\0".join(found.classes).encode("utf-8", "surrogateescape"))
    lines = []
    for i in range(len(found.source)):
        label = ",".join(map(str, np.flatnonzero(found.labels[i]))) if several else str(found.labels[i])
        lines.append(f"{found.source.name(i)}\0{found.fingerprints[i]}\0{label}\0{found.own_splits[i]}")
    for line in sorted(lines):
        total.update(b"\n" + line.encode("utf-8", "surrogateescape"))
    return total.hexdigest()[:32]


def _place(path: str | os.PathLike[str]) -> Place:
    text = os.fspath(path)
    if text == FASHION and not os.path.lexists(text):
        return Place(text)
    return find_place(path)


def _kind(place: Place) -> SourceKind:
    """The first source that recognises it; class folders come last, since every folder might be one."""
    names = [name for name in SOURCES if name != "folders"]
    for name in [*names, "folders"]:
        if SOURCES[name].recognises(place):
            return SOURCES[name]
    what = few(place.files, 1)
    raise DataError(
        f"{what} is not a set of images that vitreous knows ({', '.join(SOURCES)}); name a folder or one of those"
    )


def _own_split(data: ImageSet, how: str) -> ImageSet:
    """Use the set's own splits: of two, the second is test; of three, validation joins train as its dev split."""
    assert data.own_splits is not None
    names = WordArray.of(data.own_splits).found()
    notes = [how] if how else []
    if {VAL, TEST} <= names and names & {TRAIN, ""}:
        is_test = data.own_splits == TEST
        count = int((data.own_splits == VAL).sum())
        notes.append(f"the set has three splits: its {count:,} validation images are on train's side, as its dev split")
    else:
        is_test = (data.own_splits == VAL) | (data.own_splits == TEST)
        if not names & {TRAIN, ""}:
            notes.append("there is no train split; all images are test")
        elif VAL in names:
            notes.append("the set's validation split is test here; a dev split is cut from train where one is needed")
    if "" in names:
        notes.append(f"{int((data.own_splits == '').sum()):,} images name no split and are train")
    if data.groups is not None:
        torn = set(data.groups[is_test].tolist()) & set(data.groups[~is_test].tolist())
        notes += [f"the set's own split separates {len(torn):,} of these groups"] if torn else []
    about = data.about | {"split": {"made": False, "given": sorted(names - {""})}}
    return replace(data, splits=WordArray.chosen(is_test, TEST, TRAIN), notes=(*data.notes, *notes), about=about)


def _made_split(data: ImageSet, seed: int, how: str, progress: Progress | None) -> ImageSet:
    """Make a split, and note it."""
    if not data.classes:
        note = "no image has a label (no class folders); all images are test"
        about = data.about | {"split": {"made": False, "given": []}}
        return replace(data, splits=WordArray.repeated([TEST], [len(data)]), notes=(*data.notes, note), about=about)
    if data.is_streamed and data.groups is None:
        return _drawn_split(data, seed)
    groups, told = splits.find_groups(data, data.groups, progress)
    names = data.names
    is_test = splits.make_split(data.labels, names, groups, seed=seed)
    percent = f"{100 * splits.TEST_FRACTION:g} %"
    together = "; ".join(part for part in (how, told) if part)
    note = f"{SPLIT_MADE}: {percent} of each class were set aside as test (seed {seed}; {together})"
    tests = "\n".join(sorted(name for name, test in zip(names, is_test, strict=True) if test))
    written: dict[str, Any] = {
        "made": True,
        "seed": seed,
        "fraction": splits.TEST_FRACTION,
        "kept_together": together,
        "train": int((~is_test).sum()),
        "test": int(is_test.sum()),
        "test_names_sha256": hashlib.sha256(tests.encode()).hexdigest(),
    }
    return replace(
        data,
        splits=WordArray.chosen(is_test, TEST, TRAIN),
        notes=(*data.notes, note),
        groups=groups,
        about=data.about | {"split": written},
    )


def _drawn_split(data: ImageSet, seed: int) -> ImageSet:
    """The test split of a streamed set: images drawn by their numbers, about MAX_DRAWN_IMAGES at most."""
    is_test, fraction = splits.draw_split(data, splits.TEST_FRACTION, seed, "split")
    why = f"more than {STREAMED_FROM:,} images in shards, so near duplicates were not looked for"
    note = f"{SPLIT_MADE}: {int(is_test.sum()):,} images were drawn as test (seed {seed}; {why})"
    written: dict[str, Any] = {
        "made": True,
        "seed": seed,
        "fraction": fraction,
        "kept_together": why,
        "train": int((~is_test).sum()),
        "test": int(is_test.sum()),
    }
    about = data.about | {"split": written}
    return replace(data, splits=WordArray.chosen(is_test, TEST, TRAIN), notes=(*data.notes, note), about=about)


def without_split(notes: Sequence[str]) -> tuple[str, ...]:
    """The notes not about a test split, for a caller that judges all images by a model that has not seen them."""
    return tuple(note for note in notes if not SPLIT_NOTE.search(note))


def _cautions(data: ImageSet) -> list[str]:
    """Notes on what to know before training."""
    notes = []
    if len(data.classes) == 1:
        notes.append(f"only one class ({data.classes[0]}), so nothing to tell apart; make a folder for each class")
    train, test = (data.take(data.splits == name).counts for name in (TRAIN, TEST))
    found = [("have no image", train + test == 0)]
    if data.classes and train.any() and test.any():
        found = [
            ("have one image, which is in train and never tested", (test == 0) & (train == 1)),
            ("have no test image", (test == 0) & (train > 1)),
            ("have no training image", (train == 0) & (test > 0)),
            *found,
        ]
    elif data.classes and train.any():
        notes.append("there is no test split: every class has one image, or copies of one")
    for what, where in found:
        if names := [data.classes[c] for c in np.flatnonzero(where)]:
            notes.append(f"{len(names):,} classes {what}: {few(names)}")
    return notes
