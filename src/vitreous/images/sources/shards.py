"""WebDataset tar shards: `key.jpg` beside `key.cls` or `key.json`, each image read by its offset."""

from __future__ import annotations

import json
import re
import tarfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitreous.errors import DataError
from vitreous.images.imageset import NamedImages
from vitreous.images.sources import image_file
from vitreous.images.sources.labels import LABEL_COLUMNS, by_value, column, split_of, split_of_path
from vitreous.images.sources.paths import (
    HASH_WHOLE_BELOW,
    Place,
    file_name,
    file_size,
    fingerprint,
    is_image_name,
    is_junk,
    is_remote,
    open_file,
    read_range,
)
from vitreous.images.sources.source import FoundImages, SourceKind
from vitreous.printable import storable
from vitreous.words import few

MAX_LABEL_BYTES = 1 << 20  # a larger file is not a label
NAME_FILES = ("classes.txt", "classnames.txt", "class_names.txt", "labels.txt")


@dataclass(frozen=True)
class Shards(NamedImages):
    """Images inside tar files. Holds only offsets and no open file, so it can be sent to workers."""

    files: tuple[str, ...]
    names: tuple[str, ...]  # SHARD/key.jpg
    file: NDArray[np.int32]
    start: NDArray[np.int64]
    size: NDArray[np.int64]

    def raw(self, i: int) -> bytes:
        file = self.files[self.file[i]]
        raw = read_range(file, int(self.start[i]), int(self.size[i]))
        if len(raw) != self.size[i]:
            raise DataError(f"{file} is cut short at {self.name(i)}; fetch the shard again")
        return raw

    def read(self, i: int) -> NDArray[np.uint8]:
        return image_file.decode(self.raw(i), f"{self.files[self.file[i]]}/{self.name(i).split('/', 1)[1]}")


@dataclass
class Index:
    """One shard's samples in order: offset, size, label and facts of each image."""

    keys: list[str] = field(default_factory=list)  # with the image's suffix
    start: list[int] = field(default_factory=list)
    size: list[int] = field(default_factory=list)
    label: list[Any] = field(default_factory=list)  # a number, a name, several, or None
    about: list[dict[str, Any]] = field(default_factory=list)  # the other entries of its .json
    has_end: bool = True  # the tar has its end mark
    left: list[str] = field(default_factory=list)  # keys without an image


def recognises(place: Place) -> bool:
    return not place.has_image_folders and bool(shard_files(place))


def shard_files(place: Place) -> list[str]:
    """The tars that are named, or in the folder or its split folders."""
    if found := place.ending(".tar"):
        return found
    if place.folder is not None:
        inside = [place.folder / name for name in place.names if split_of(name)]
        return sorted(str(tar) for folder in inside for tar in folder.glob("*.tar") if not is_junk(tar.name))
    if place.files and all(
        f.lower().endswith((".tar.gz", ".tgz", ".tar.xz", ".tar.zst", ".tar.bz2")) for f in place.files
    ):
        raise DataError(f"{place.text} is compressed, so its images have no places; unpack it to .tar first")
    return []


def open_shards(place: Place) -> FoundImages:
    from vitreous.images.stores.shard_index import known  # imported here: it uses this module

    files = shard_files(place)
    written = known(files, Index)
    shards = [written.get(file) or index_shard(file) for file in files]
    names = [f"{_short(file, files)}/{key}" for file, shard in zip(files, shards, strict=True) for key in shard.keys]
    labels = [label for shard in shards for label in shard.label]
    if not names:
        raise DataError(f"{place.text} holds no images (key.jpg beside key.cls or key.json); check the shards")
    which = np.repeat(np.arange(len(files), dtype=np.int32), [len(shard.keys) for shard in shards])
    start = np.array([at for shard in shards for at in shard.start], np.int64)
    size = np.array([n for shard in shards for n in shard.size], np.int64)
    source = Shards(tuple(files), tuple(names), which, start, size)
    numbers, classes = _classes(labels, files, place.text, source)
    split = [split_of_path(file) for file in files]
    columns = _columns([about for shard in shards for about in shard.about])
    notes = _notes(files, shards, labels)
    return FoundImages(source, numbers, classes, [split[n] for n in which], _prints(source), tuple(notes), columns)


def index_shard(file: str) -> Index:
    """Read the headers of one tar and its label files; an error names a truncated shard."""
    index = Index()
    with open_file(file) as handle:
        try:
            for key, parts in _samples(handle, index):
                images = [ending for ending in parts if is_image_name("." + ending.rsplit(".", 1)[-1])]
                if not images:
                    index.left.append(key)
                    continue
                ending = images[0]
                member = parts[ending]
                label, about = _label(handle, parts, f"{file}/{key}")
                index.keys.append(f"{key}.{ending}")
                index.start.append(member.offset_data)
                index.size.append(member.size)
                index.label.append(label)
                index.about.append(about)
        except (tarfile.TarError, EOFError) as error:
            is_cut = "end of data" in str(error) or "truncated" in str(error)
            what = "is cut short" if is_cut else "is damaged, or no tar file"
            last = f" after {storable(index.keys[-1])}" if index.keys else ""
            raise DataError(f"{file} {what}{last}; fetch the shard again") from None
    return index


def _samples(handle: Any, index: Index) -> Iterator[tuple[str, dict[str, tarfile.TarInfo]]]:
    """Neighbouring members with one key (the path to the first dot of its last part), as {ending: member}."""
    with tarfile.open(fileobj=handle, mode="r:") as tar:
        key: str | None = None
        parts: dict[str, tarfile.TarInfo] = {}
        while (member := tar.next()) is not None:
            tar.members = []  # type: ignore[attr-defined]  # a shard may hold millions
            folder, _, name = member.name.removeprefix("./").rpartition("/")
            if not member.isreg() or is_junk(name) or "." not in name:
                continue
            first, ending = name.split(".", 1)
            here = f"{folder}/{first}" if folder else first
            place = handle.tell()
            if here != key:
                if key is not None:
                    yield key, parts
                key, parts = here, {}
            parts[ending.lower()] = member
            handle.seek(place)
        if key is not None:
            yield key, parts
        handle.seek(tar.offset)  # tarfile stops silently at a damaged or truncated header
        after = handle.read(512)
        index.has_end = len(after) == 512
        if after.strip(b"\0") or 0 < len(after) < 512:
            raise tarfile.ReadError("unexpected end of data" if len(after) < 512 else "damaged header")


def _label(handle: Any, parts: dict[str, tarfile.TarInfo], what: str) -> tuple[Any, dict[str, Any]]:
    about: dict[str, Any] = {}
    if "json" in parts and parts["json"].size <= MAX_LABEL_BYTES:
        try:
            read = json.loads(_small(handle, parts["json"]))
        except ValueError:
            raise DataError(f"{what}.json is not JSON; correct the shard") from None
        about = read if isinstance(read, dict) else {"label": read}
    if "cls" in parts and parts["cls"].size <= MAX_LABEL_BYTES:
        text = _small(handle, parts["cls"]).decode("utf-8", "replace").strip()
        return (int(text) if re.fullmatch(r"-?\d{1,18}", text) else text or None), about
    names = {column(name): name for name in about}
    found = [names[name] for name in LABEL_COLUMNS if name in names]
    return (about.pop(found[0]) if found else None), about


def _small(handle: Any, member: tarfile.TarInfo) -> bytes:
    handle.seek(member.offset_data)
    return bytes(handle.read(member.size))


def _classes(
    labels: list[Any], files: Sequence[str], what: str, source: Shards
) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    if any(isinstance(label, list | dict | float) for label in labels):
        raise DataError(
            f"{what}: a label of {source.name(0)} is neither a class number nor a name; write key.cls files"
        )
    return by_value(labels, _names_beside(files[0]), what, source.name)


def _names_beside(file: str) -> list[str] | None:
    """Class names from a text file beside the shards, one on a line."""
    if is_remote(file):
        return None
    for name in NAME_FILES:
        path = Path(file).parent / name
        if path.is_file():
            return [line for line in path.read_text("utf-8").splitlines() if line.strip()]
    return None


def _columns(about: list[dict[str, Any]]) -> dict[str, Sequence[str]]:
    names = sorted({name for entries in about for name in entries})
    return {name: [str(entries.get(name, "")) for entries in about] for name in names[:64]}


def _notes(files: list[str], shards: list[Index], labels: list[Any]) -> Iterator[str]:
    yield f"{len(files):,} shards, read by offset"
    if cut := [file_name(file) for file, shard in zip(files, shards, strict=True) if not shard.has_end]:
        yield f"{len(cut):,} shards have no end mark and may be cut short: {few(cut)}"
    if left := [key for shard in shards for key in shard.left]:
        yield f"left out {len(left):,} keys without an image: {few(left)}"
    if None in labels:
        yield f"{labels.count(None):,} images have no label"


def _prints(source: Shards) -> list[str]:
    """Sizes, and digests if all images are local and small together."""
    total = int(source.size.sum())
    if total > HASH_WHOLE_BELOW or any(map(is_remote, source.files)):
        sizes = [file_size(file) for file in source.files]
        return [
            f"{size}:{start}:{sizes[n]}" for n, start, size in zip(source.file, source.start, source.size, strict=True)
        ]
    return [fingerprint(source.raw(i)) for i in range(len(source))]


def _short(file: str, files: Sequence[str]) -> str:
    """A shard's name, with its folder if two shards share one."""
    name = file_name(file)
    is_alone = sum(file_name(f) == name for f in files) == 1
    return name if is_alone else "/".join(re.split(r"[/\\]", file)[-2:])


SHARDS = SourceKind("shards", "WebDataset tar shards: key.jpg beside key.cls or key.json", recognises, open_shards)
