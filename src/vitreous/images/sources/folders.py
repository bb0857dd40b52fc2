"""Class folders on a disk: CLASS/picture, or SPLIT/CLASS/picture."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from vitreous.errors import DataError
from vitreous.images.sources import picture
from vitreous.images.sources.finding import WHOLE, Found, Kind, Place, cannot_read, is_junk, is_picture
from vitreous.images.sources.tree import read_tree
from vitreous.words import few, shown


@dataclass(frozen=True)
class Files:
    """Pictures that are files of their own. `names`: their paths inside `root`, with /."""

    root: str
    names: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.names)

    def name(self, i: int) -> str:
        return shown(self.names[i])

    def raw(self, i: int) -> bytes:
        path = Path(self.root, self.names[i])
        try:
            return path.read_bytes()
        except OSError as error:
            raise cannot_read(shown(str(path)), error) from None

    def read(self, i: int) -> NDArray[np.uint8]:
        return picture.decode(self.raw(i), shown(str(Path(self.root, self.names[i]))))


def recognises(place: Place) -> bool:
    if place.folder is not None:
        return True  # whatever it holds; other sources are asked first
    return bool(place.files) and all(is_picture(f) for f in place.files)


def open_folders(place: Place) -> Found:
    if place.folder is None:
        return open_pictures(place)
    loops: list[str] = []
    bare: list[str] = []
    paths = sorted(walk(place.folder, loops, bare))  # the disk's own order means nothing
    tree = read_tree(paths, shown(place.said))
    source = Files(str(place.folder), tuple(paths[i] for i in tree.places))
    prints, notes = fingerprints(source)
    if bare:
        notes.append(f"left out {len(bare):,} empty folders: {few(bare)}")
    if loops:
        notes.append(f"left out {len(loops):,} folders that lead back into themselves: {few(loops)}")
    return Found(source, tree.labels, tree.classes, tree.given, prints, (*tree.notes, *notes))


def open_pictures(place: Place) -> Found:
    """Single pictures, named one by one or by a pattern: nobody says their class, unless their folders do."""
    root = os.path.commonpath([Path(f).absolute().parent for f in place.files])
    files = {Path(f).absolute().relative_to(root).as_posix() for f in place.files}
    tree = read_tree(sorted(files), place.said)
    source = Files(root, tuple(sorted(files)[i] for i in tree.places))
    prints, notes = fingerprints(source)
    return Found(source, tree.labels, tree.classes, tree.given, prints, (*tree.notes, *notes))


def walk(folder: Path, loops: list[str], bare: list[str]) -> Iterator[str]:
    """Paths of all files below, with /. Links are followed; those that lead into a folder above go to `loops`.

    Folders with nothing in them go to `bare`.
    """

    def below(path: str, inside: str, above: frozenset[tuple[int, int]]) -> Iterator[str]:
        try:
            with os.scandir(path) as entries:
                found = list(entries)
        except OSError as error:
            raise cannot_read(shown(path), error) from None
        if not found and inside:
            bare.append(inside.rstrip("/"))
        for entry in found:
            name = f"{inside}{entry.name}"
            try:
                is_folder = entry.is_dir()
            except OSError:  # a link to itself
                loops.append(name)
                continue
            if not is_folder:
                yield name
            elif is_junk(entry.name):
                yield from (f"{name}/{file}" for file in _names(entry.path))
            else:
                what = Path(entry.path).stat()
                here = (what.st_dev, what.st_ino)
                if entry.is_symlink() and here in above:
                    loops.append(name)
                else:
                    yield from below(entry.path, f"{name}/", above | {here})

    top = folder.stat()
    yield from below(str(folder), "", frozenset({(top.st_dev, top.st_ino)}))


def fingerprints(source: Files) -> tuple[list[str], list[str]]:
    """Of each file its size and a digest of its bytes (of the first and last 4 KiB in a large set); and notes."""
    sizes, unreadable = [], []
    for name in source.names:
        try:
            sizes.append(Path(source.root, name).stat().st_size)
        except OSError:
            sizes.append(-1)
    whole = sum(sizes) <= WHOLE
    prints = []
    for name, size in zip(source.names, sizes, strict=True):
        try:
            with open(os.path.join(source.root, name), "rb", buffering=0) as file:  # noqa: PTH118, PTH123  pathlib is slow
                raw = file.read(size if whole or size <= 8192 else 4096)
                if not whole and size > 8192:
                    file.seek(-4096, os.SEEK_END)
                    raw += file.read(4096)
            prints.append(f"{size}:{hashlib.blake2b(raw, digest_size=12).hexdigest()}")
        except OSError:
            prints.append(f"{size}:unreadable")
            unreadable.append(name)
    if len(unreadable) == len(source.names):
        raise DataError(f"no picture of {source.root} can be read ({few(unreadable)}); check the permissions")
    notes = [f"{len(unreadable):,} files cannot be read (permission, or a broken link): {few(unreadable)}"] * bool(
        unreadable
    )
    if any(size == 0 for size in sizes):
        notes.append(
            f"{sizes.count(0):,} files are empty: {few(n for n, s in zip(source.names, sizes, strict=True) if s == 0)}"
        )
    return prints, notes


def _names(folder: str) -> list[str]:
    """Files directly in a junk folder, only to be counted."""
    try:
        with os.scandir(folder) as entries:
            return [entry.name for entry in entries if entry.is_file(follow_symlinks=False)]
    except OSError:
        return []


FOLDERS = Kind(
    "folders", "one folder of pictures for each class, with or without split folders", recognises, open_folders
)
