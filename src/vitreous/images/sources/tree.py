"""Paths become labels: SPLIT/CLASS/…/image, CLASS/…/image or images alone, on a disk or in a zip."""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from vitreous.errors import DataError
from vitreous.images.sources.labels import Labels, by_name, split_of
from vitreous.images.sources.paths import is_image_name, is_junk
from vitreous.printable import storable
from vitreous.words import few

Parts = tuple[str, ...]


@dataclass(frozen=True)
class Tree:
    """The images among some paths (as places in that list), with split and class from their folders."""

    places: list[int]
    labels: Labels
    classes: tuple[str, ...]
    own_splits: list[str]
    notes: tuple[str, ...]


def read_tree(paths: Sequence[str], what: str, split_of_file: Sequence[str] | None = None) -> Tree:
    """Read splits and classes from folders. `split_of_file`: each path's split if no folder tells (its zip's name)."""
    parts = [tuple(path.split("/")) for path in paths]
    junk = [any(is_junk(part) for part in p) for p in parts]
    seen = [i for i, p in enumerate(parts) if not junk[i] and is_image_name(p[-1])]
    other = [paths[i] for i, p in enumerate(parts) if not junk[i] and not is_image_name(p[-1])]
    if not seen:
        held = f"{len(paths):,} files and none is an image" if paths else "is empty"
        raise DataError(f"{what} {'holds ' if paths else ''}{held}; make one folder of images for each class in it")
    notes = []
    if hidden := [path for path, is_hidden in zip(paths, junk, strict=True) if is_hidden]:
        notes.append(f"left out {len(hidden):,} hidden or system files: {few(hidden)}")
    if other:
        notes.append(f"left out {len(other):,} files that are not images: {few(other)}")
    depth = _wrappers([parts[i] for i in seen])
    inside = {i: parts[i][depth:] for i in seen}
    if all(len(p) > 2 and split_of(p[1]) for p in inside.values()):  # CLASS/SPLIT/image
        inside = {i: (p[1], p[0], *p[2:]) for i, p in inside.items()}
    folders = _split_folders(list(inside.values()), what)
    some_folders = any(len(p) > 1 for p in inside.values())
    keep, names, own_splits = [], [], []
    stray: Counter[str] = Counter()
    for i in seen:
        path = inside[i]
        split = folders.get(path[0], "") if len(path) > 1 else ""
        rest = path[1:] if split else path
        if (folders and not split) or (len(rest) == 1 and some_folders):
            stray[path[0] if len(path) > 1 else "the top folder"] += 1
        else:
            keep.append(i)
            names.append(unicodedata.normalize("NFC", storable(rest[0])) if len(rest) > 1 else None)
            own_splits.append(split or (split_of_file[i] if split_of_file else ""))
    for where, count in sorted(stray.items()):
        notes.append(f"left out {count:,} images of {storable(where)} that lie in no class folder")
    if not keep:
        raise DataError(f"{what} holds images in split folders but no class folders; make one for each class")
    if deep := sum(len(inside[i]) > (3 if folders else 2) for i in keep):
        notes.append(f"{deep:,} images lie deeper than their class folder and belong to it")
    labels, classes = by_name(names)
    if len(set(classes)) != len({name.casefold() for name in classes}):
        twice = [name for name, n in Counter(name.casefold() for name in classes).items() if n > 1]
        notes.append(f"classes that differ only in upper and lower case: {few(twice)}")
    _refuse_strangers(labels, classes, own_splits, what)
    return Tree(keep, labels, classes, own_splits, tuple(notes))


def _wrappers(paths: list[Parts]) -> int:
    """The number of outer folders that all images share, before a split folder or the only class."""
    depth = 0
    while True:
        heads = {path[depth] if len(path) > depth + 1 else None for path in paths}
        if len(heads) != 1 or None in heads:
            return depth
        (head,) = heads
        assert head is not None
        below = {path[depth + 1] if len(path) > depth + 2 else None for path in paths}
        if below == {None} or (split_of(head) and None not in below):
            return depth
        if None in below:  # images beside folders: this is a class
            return depth
        depth += 1


def _split_folders(paths: list[Parts], what: str) -> dict[str, str]:
    """Top folder to split, if the top folders are splits; a class that is called train holds its images directly."""
    tops = {path[0] for path in paths if len(path) > 1}
    with_classes = {path[0] for path in paths if len(path) > 2}
    named = {top: split for top in tops if (split := split_of(top))}
    holds = {top: split for top, split in named.items() if top in with_classes}
    others = tops - set(named)
    enough = not others or ("train" in holds.values() and len(set(holds.values())) > 1)
    if holds and not enough:
        _refuse_strange_splits(paths, set(holds), what)
    return holds if holds and enough else {}


def _refuse_strange_splits(paths: list[Parts], splits: set[str], what: str) -> None:
    """Refuse folders beside `train` that hold the same class folders: they are splits by another name."""
    below: dict[str, set[str]] = {}
    for path in paths:
        if len(path) > 2 and not split_of(path[1]):
            below.setdefault(path[0], set()).add(path[1])
    for split in sorted(splits):
        inside = below.get(split, set())
        alike = sorted(top for top in set(below) - splits if len(below[top] & inside) > 1)
        if alike:
            raise DataError(
                f"{what}: {few(map(storable, alike))} hold the same folders as {storable(split)} "
                f"({few(map(storable, sorted(below[alike[0]] & inside)))}) but are not splits known here; "
                f"call them train, val or test, or move them away; if {storable(split)} is a class, call it otherwise"
            )


def _refuse_strangers(labels: Labels, classes: tuple[str, ...], own_splits: list[str], what: str) -> None:
    splits = np.array(own_splits)
    in_train = set(labels[splits == "train"].tolist())
    if not in_train:
        return
    for split in ("val", "test"):
        strangers = {classes[c] for c in set(labels[splits == split].tolist()) - in_train}
        if strangers:
            raise DataError(
                f"{what}: {split} has images of {few(strangers)}, outside the {len(in_train)} classes of train; "
                f"move them to the right class folder, or add the class to train"
            )
