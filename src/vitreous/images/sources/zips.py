"""A zip of class folders, or several (`train-0.zip`, `val.zip`), read in place: each image by its offset."""

from __future__ import annotations

import re
import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from vitreous.errors import DataError
from vitreous.images.imageset import NamedImages
from vitreous.images.sources import image_file
from vitreous.images.sources.labels import split_in, split_of, without_split
from vitreous.images.sources.paths import (
    Place,
    file_name,
    file_size,
    is_image_name,
    is_junk,
    open_file,
    read_range,
    stem,
)
from vitreous.images.sources.source import FoundImages, SourceKind
from vitreous.images.sources.tree import read_tree
from vitreous.printable import storable
from vitreous.words import few

STORED, DEFLATED = 0, 8
MAX_ZIP_RATIO = 200  # unpacked to packed, for zips beyond 1 GiB; images hardly compress
LOCAL_HEADER_BYTES = 30  # before the name
LEADS_OUT = re.compile(r"^/|^[A-Za-z]:|(^|/)\.\.(/|\Z)|[\\\0]")  # a path that is absolute, goes up, or deceives


@dataclass(frozen=True)
class Zips(NamedImages):
    """Images inside zip files. Holds only offsets and no open file, so it can be sent to workers."""

    files: tuple[str, ...]
    names: tuple[str, ...]
    file: NDArray[np.int32]  # which of the files
    start: NDArray[np.int64]  # where the local header begins
    packed: NDArray[np.int64]  # bytes in the zip
    size: NDArray[np.int64]  # bytes unpacked
    method: NDArray[np.int32]
    crc: NDArray[np.uint32]

    def raw(self, i: int) -> bytes:
        file, start, packed, size = self.files[self.file[i]], int(self.start[i]), int(self.packed[i]), int(self.size[i])
        header = read_range(file, start, LOCAL_HEADER_BYTES)
        if header[:4] != b"PK\3\4":
            raise self._damaged(i)
        skip = LOCAL_HEADER_BYTES + int.from_bytes(header[26:28], "little") + int.from_bytes(header[28:30], "little")
        raw = read_range(file, start + skip, packed)
        if self.method[i] == DEFLATED:
            try:
                raw = zlib.decompressobj(-15).decompress(raw, size + 1)  # never more than was declared
            except zlib.error:
                raise self._damaged(i) from None
        if len(raw) != size or zlib.crc32(raw) != self.crc[i]:
            raise self._damaged(i)
        return raw

    def read(self, i: int) -> NDArray[np.uint8]:
        return image_file.decode(self.raw(i), f"{self.files[self.file[i]]}/{self.name(i)}")

    def _damaged(self, i: int) -> DataError:
        return DataError(f"{self.files[self.file[i]]} is damaged at {self.name(i)}; fetch the zip again")


def recognises(place: Place) -> bool:
    return bool(place.ending(".zip")) and not place.has_image_folders


def open_zips(place: Place) -> FoundImages:
    files = place.ending(".zip")
    _one_set(files, place)
    entries = [(n, entry) for n, file in enumerate(files) for entry in _entries(file)]
    flat = {
        n: not any("/" in e.filename for m, e in entries if m == n and _counts(e.filename)) for n in range(len(files))
    }
    paths, splits = [], []
    for n, entry in entries:
        says = stem(files[n])
        # a zip without folders is a class if it is one of several, and not named for a split
        prefix = f"{says}/" if flat[n] and len(files) > 1 and not split_of(says) else ""
        paths.append(prefix + entry.filename)
        splits.append("" if prefix else split_in(says) or "")
    order = sorted(range(len(paths)), key=lambda i: (paths[i], files[entries[i][0]]))
    tree = read_tree([paths[i] for i in order], storable(place.text), [splits[i] for i in order])
    kept = [entries[order[i]] for i in tree.places]
    names = tuple(paths[order[i]] for i in tree.places)
    source = Zips(
        files=tuple(files),
        names=names,
        file=np.array([n for n, _ in kept], np.int32),
        start=np.array([e.header_offset for _, e in kept], np.int64),
        packed=np.array([e.compress_size for _, e in kept], np.int64),
        size=np.array([e.file_size for _, e in kept], np.int64),
        method=np.array([e.compress_type for _, e in kept], np.int32),
        crc=np.array([e.CRC for _, e in kept], np.uint32),
    )
    prints = [f"{e.file_size}:{e.CRC:08x}" for _, e in kept]
    notes = [*tree.notes]
    if twice := len(names) - len(set(names)):
        notes.append(f"{twice:,} images have the path of another, in the same or another zip; all are kept")
    if left := [name for name in place.names if name not in map(file_name, files)]:
        notes.append(f"left out what lies beside the zips: {few(left)}")
    return FoundImages(source, tree.labels, tree.classes, tree.own_splits, prints, tuple(notes))


def _one_set(files: Sequence[str], place: Place) -> None:
    """Refuse zips of several sets in one folder; zips of several classes are one set."""
    if place.folder is None or len(files) < 2:
        return
    sets = {without_split(stem(file)) for file in files}
    if len(sets) > 1 and any(split_in(stem(file)) for file in files):
        raise DataError(
            f"{place.text} holds zips of {len(sets)} sets ({few(sets)}); name one of them: '{place.text}/NAME-*.zip'"
        )


def _counts(name: str) -> bool:
    return is_image_name(name) and not any(is_junk(part) for part in name.split("/"))


def _entries(file: str) -> list[zipfile.ZipInfo]:
    """The directory of a zip, checked for traps."""
    try:
        with open_file(file) as handle, zipfile.ZipFile(handle) as archive:
            entries = [entry for entry in archive.infolist() if not entry.is_dir()]
            after = archive.start_dir
    except (zipfile.BadZipFile, NotImplementedError, EOFError, ValueError):
        raise DataError(f"{file} is not a whole zip file (cut short, or damaged); fetch it again") from None
    for entry in entries:
        if LEADS_OUT.search(name := entry.orig_filename):
            raise DataError(f"{file} holds {storable(name)!r}, a path that leads out of it; do not trust this zip")
    images = [entry for entry in entries if _counts(entry.filename)]
    for entry in images:
        if entry.flag_bits & 1:
            raise DataError(f"{file} is encrypted ({storable(entry.filename)}); unpack it with its password first")
        if entry.compress_type not in (STORED, DEFLATED):
            raise DataError(
                f"{file} packs {storable(entry.filename)} by method {entry.compress_type}; zip it with deflate"
            )
    _refuse_bomb(file, entries, after)
    return entries


def _refuse_bomb(file: str, entries: list[zipfile.ZipInfo], after: int) -> None:
    why = f"{file} is a zip bomb: "
    for entry in entries:
        if entry.file_size > image_file.BYTE_LIMIT and _counts(entry.filename):
            raise DataError(
                f"{why}{storable(entry.filename)} would unpack to {entry.file_size:,} bytes; do not trust it"
            )
    unpacked = sum(entry.file_size for entry in entries)
    if unpacked > 1 << 30 and unpacked > MAX_ZIP_RATIO * file_size(file):
        raise DataError(
            f"{why}it would unpack to {unpacked:,} bytes, {MAX_ZIP_RATIO} times its size and more; do not trust it"
        )
    spans = sorted((entry.header_offset, entry.compress_size) for entry in entries)
    for (start, size), (following, _) in pairwise([*spans, (after, 0)]):
        if start + LOCAL_HEADER_BYTES + size > following:
            raise DataError(f"{why}its files overlap; do not trust it")


ZIP = SourceKind("zip", "a zip of class folders, or a folder of such zips, read in place", recognises, open_zips)
