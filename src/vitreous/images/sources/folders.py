"""Folders on a disk: CLASS/image, or SPLIT/CLASS/image; and a pack, which `vitreous pack` made of any set."""

from __future__ import annotations

import errno
import os
import stat
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from vitreous.errors import DataError
from vitreous.images.imageset import ImageSet, NamedImages
from vitreous.images.sources import image_file
from vitreous.images.sources.paths import (
    HASH_WHOLE_BELOW,
    Place,
    cannot_read,
    fingerprint,
    is_image_name,
    is_junk,
    open_regular,
    read_image_file,
)
from vitreous.images.sources.source import FoundImages, SourceKind
from vitreous.images.sources.tree import read_tree
from vitreous.printable import storable
from vitreous.words import few

PACK_INDEX_FILE = "index.safetensors"
MAX_VISITS = 16  # of one folder by links; folders that link to each other would loop


@dataclass(frozen=True)
class Files(NamedImages):
    """Images in separate files. `names`: their paths inside `root`, with /."""

    root: str
    names: tuple[str, ...]

    def raw(self, i: int) -> bytes:
        return read_image_file(Path(self.root, self.names[i]))

    def read(self, i: int) -> NDArray[np.uint8]:
        return image_file.decode(self.raw(i), storable(str(Path(self.root, self.names[i]))))


def recognises(place: Place) -> bool:
    if place.folder is not None:
        return True  # any folder; other sources are asked first
    return bool(place.files) and all(is_image_name(f) for f in place.files)


def open_folders(place: Place) -> FoundImages:
    left = LeftOut()
    if place.folder is not None:
        root = str(place.folder)
        paths = sorted(walk(place.folder, left))  # the disk's order is arbitrary
    else:  # single images, named one by one or by a pattern; only their folders can tell their class
        root = os.path.commonpath([Path(f).absolute().parent for f in place.files])
        paths = sorted({Path(f).absolute().relative_to(root).as_posix() for f in place.files})
    tree = read_tree(paths, storable(place.text))
    source = Files(root, tuple(paths[i] for i in tree.places))
    prints, unreadable = fingerprints(source)
    notes = (*tree.notes, *unreadable, *left.notes())
    return FoundImages(source, tree.labels, tree.classes, tree.own_splits, prints, notes)


@dataclass
class LeftOut:
    """Folders that were skipped, by path inside the set."""

    loops: list[str] = field(default_factory=list)  # lead back into themselves
    bare: list[str] = field(default_factory=list)  # hold nothing
    too_deep: list[str] = field(default_factory=list)  # have a path longer than the system takes

    def notes(self) -> Iterator[str]:
        if self.bare:
            yield f"left out {len(self.bare):,} empty folders: {few(self.bare)}"
        if self.loops:
            yield f"left out {len(self.loops):,} folders that lead back into themselves: {few(self.loops)}"
        if self.too_deep:
            first = self.too_deep[0]
            where = storable(f"{first.count('/') + 1:,} folders down, in {first.split('/')[0]}")
            yield f"left out {len(self.too_deep):,} folders whose path is too long for this system ({where})"


def walk(folder: Path, left: LeftOut) -> Iterator[str]:
    """Paths of all files below, with /. Follows links, unless they lead to a parent folder."""
    above = frozenset(map(_identity, (folder.resolve(), *folder.resolve().parents)))
    visits: Counter[tuple[int, int]] = Counter()
    waiting = [(str(folder), "", above, False)]  # a list: recursion ends at a thousand folders
    while waiting:
        path, inside, above, is_linked = waiting.pop()
        try:
            with os.scandir(path) as entries:
                found = list(entries)
        except OSError as error:
            if error.errno != errno.ENAMETOOLONG:
                raise cannot_read(storable(path), error) from None
            left.too_deep.append(inside)
            continue
        if not found and inside:
            left.bare.append(inside.rstrip("/"))
        for entry in found:
            name = f"{inside}{entry.name}"
            try:
                is_folder = entry.is_dir()
                here = _identity(entry.path) if is_folder else (0, 0)
            except OSError as error:  # a link to itself, or a path too long
                (left.too_deep if error.errno == errno.ENAMETOOLONG else left.loops).append(name)
                continue
            if not is_folder:
                yield name
            elif is_junk(entry.name):
                yield from (f"{name}/{file}" for file in _names(entry.path))
            elif (by_link := is_linked or entry.is_symlink()) and (here in above or visits[here] >= MAX_VISITS):
                left.loops.append(name)
            else:
                visits[here] += by_link
                waiting.append((entry.path, f"{name}/", above | {here}, by_link))


def _identity(path: str | Path) -> tuple[int, int]:
    """A folder's identity, independent of its path."""
    what = os.stat(path)  # noqa: PTH116  pathlib is slow
    return what.st_dev, what.st_ino


def fingerprints(source: Files) -> tuple[list[str], list[str]]:
    """Size and digest of each file (of its first and last 4 KiB in a large set), and notes."""
    sizes, unreadable = [], []
    for name in source.names:
        try:
            state = Path(source.root, name).stat()
            sizes.append(state.st_size if stat.S_ISREG(state.st_mode) else -1)
        except OSError:
            sizes.append(-1)
    whole = sum(size for size in sizes if size <= image_file.BYTE_LIMIT) <= HASH_WHOLE_BELOW
    prints = []
    for name, size in zip(source.names, sizes, strict=True):
        in_part = size > 8192 and (not whole or size > image_file.BYTE_LIMIT)
        try:
            with open_regular(os.path.join(source.root, name), buffering=0) as file:  # noqa: PTH118  pathlib is slow
                raw = file.read(4096 if in_part else size)
                if in_part:
                    file.seek(-4096, os.SEEK_END)
                    raw += file.read(4096)
            prints.append(f"{size}:{fingerprint(raw)}")
        except (OSError, DataError):
            prints.append(f"{size}:unreadable")
            unreadable.append(name)
    if len(unreadable) == len(source.names):
        raise DataError(f"no image of {source.root} can be read ({few(unreadable)}); check the permissions")
    notes = []
    if unreadable:
        why = "permission, a broken link, or no regular file"
        notes.append(f"{len(unreadable):,} files cannot be read ({why}): {few(unreadable)}")
    if empty := [name for name, size in zip(source.names, sizes, strict=True) if size == 0]:
        notes.append(f"{len(empty):,} files are empty: {few(empty)}")
    return prints, notes


def _names(folder: str) -> list[str]:
    """Files directly in a junk folder, only to be counted."""
    try:
        with os.scandir(folder) as entries:
            return [entry.name for entry in entries if entry.is_file(follow_symlinks=False)]
    except OSError:
        return []


def is_pack(place: Place) -> bool:
    return place.folder is not None and (place.folder / PACK_INDEX_FILE).is_file()


def open_pack(place: Place) -> ImageSet:
    """A pack, with the splits, groups and names that it was packed with."""
    from vitreous.images.stores.disk import Pack  # needs torch, unlike other sources

    assert place.folder is not None
    return Pack.open(place.folder)


PACK = SourceKind("pack", "a folder that `vitreous pack` made", is_pack, open_pack)
FOLDERS = SourceKind(
    "folders", "one folder of images for each class, with or without split folders", recognises, open_folders
)
