"""WebDataset tar shards: `key.jpg` beside `key.cls` or `key.json`, each image read by its offset."""

from __future__ import annotations

import hashlib
import json
import logging
import re
import tarfile
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitreous.errors import DataError, ShardError, without_secrets
from vitreous.images.batches.processes import in_order
from vitreous.images.imageset import WordArray
from vitreous.images.sources import image_file
from vitreous.images.sources.labels import LABEL_COLUMNS, by_name, by_number, column, split_of, split_of_path
from vitreous.images.sources.paths import (
    HASH_WHOLE_BELOW,
    Place,
    file_name,
    file_stamps,
    fingerprint,
    is_image_name,
    is_junk,
    open_file,
    read_range,
)
from vitreous.images.sources.remote import Stamp, is_in_this_process, is_remote, read_ranges
from vitreous.images.sources.source import FoundImages, SourceKind
from vitreous.images.stores.shard_table import (
    KEEP_TABLE_FROM,
    Index,
    PackedIndex,
    ShardTable,
    kept_table,
    make_table,
    table_key,
)
from vitreous.printable import storable
from vitreous.words import few

MAX_LABEL_BYTES = 1 << 20  # a larger file is not a label
NAME_FILES = ("classes.txt", "classnames.txt", "class_names.txt", "labels.txt")
SHARDS_AT_ONCE = 8  # read through a network
MAX_TOLD_IMAGES = 100_000  # of larger sets the other entries of .json files are not kept

log = logging.getLogger("vitreous.data")


@dataclass(frozen=True)
class Shards:
    """Images inside tar files. Holds only offsets and no open file, so it can be sent to workers."""

    files: tuple[str, ...]
    titles: tuple[str, ...]  # the shards' names
    table: ShardTable
    skips_bad: bool = False  # an image of a bad shard is unreadable, and the run continues

    def __len__(self) -> int:
        return len(self.table)

    @property
    def block_starts(self) -> NDArray[np.int64]:
        """The first image of each shard; images of one shard are read near each other."""
        return self.table.first[:-1]

    def name(self, i: int) -> str:
        """SHARD/key.jpg"""
        return storable(f"{self.titles[self.table.shard(i)]}/{self.table.key(i)}")

    def raw(self, i: int) -> bytes:
        n, (start, size) = self.table.shard(i), self.table.place(i)
        try:
            return self._whole(i, read_range(self.files[n], start, size))
        except ShardError as error:
            raise self._fault(error) from None

    def read(self, i: int) -> NDArray[np.uint8]:
        return image_file.decode(self.raw(i), f"{self.files[self.table.shard(i)]}/{storable(self.table.key(i))}")

    @cached_property
    def is_far(self) -> bool:
        return any(map(is_remote, self.files))

    @property
    def stays_here(self) -> bool:
        """True if another process would not find the shards."""
        return any(map(is_in_this_process, self.files))

    def fetch(self, numbers: Sequence[int]) -> dict[int, bytes | DataError]:
        """The encoded files of several images from a store, several requests at once; empty for shards on a disk."""
        if not self.is_far:
            return {}
        found = read_ranges([(self.files[self.table.shard(i)], *self.table.place(i)) for i in numbers])
        return dict(zip(numbers, map(self._checked, numbers, found), strict=True))

    def _checked(self, i: int, raw: bytes | DataError) -> bytes | DataError:
        try:
            return self._fault(raw) if isinstance(raw, DataError) else self._whole(i, raw)
        except ShardError as error:
            return self._fault(error)

    def _whole(self, i: int, raw: bytes) -> bytes:
        if len(raw) != self.table.place(i)[1]:
            file = self.files[self.table.shard(i)]
            raise ShardError(f"{file} is cut short at {self.name(i)}; fetch the shard again")
        return raw

    def _fault(self, error: DataError) -> DataError:
        """The error of a bad shard: it ends the run, or makes one image unreadable."""
        return DataError(str(error)) if self.skips_bad else error


def recognises(place: Place) -> bool:
    return not place.has_image_folders and bool(shard_files(place))


def shard_files(place: Place) -> list[str]:
    """The tars that are named, or that lie in the folder or its split folders."""
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
    files = shard_files(place)
    shards = _OpenShards(files, place)
    table = shards.table()
    if not len(table):
        raise DataError(f"{place.text} holds no images (key.jpg beside key.cls or key.json); check the shards")
    files = [file for file in files if file not in shards.dropped]
    titles = _titles(files)
    source = Shards(tuple(files), titles, table, place.skips_bad_shards)
    if table.facts.odd_label:
        odd = storable(table.facts.odd_label)
        raise DataError(f"{place.text}: the label of {odd} is neither a class number nor a name; write key.cls files")
    labels, classes = _classes(source, files, place.text)
    counts = table.facts.counts
    splits = WordArray.repeated([split_of_path(file) for file in files], counts)
    columns = _columns(shards.about) if len(table) <= MAX_TOLD_IMAGES else {}
    notes = (*_notes(files, source, labels), *shards.notes())
    about = {"lost_samples": shards.lost, "bad_shards": sorted(map(file_name, shards.faults))} if shards.faults else {}
    is_small = not source.is_far and int(table.columns["size"].sum(dtype=np.int64)) <= HASH_WHOLE_BELOW
    prints = [fingerprint(source.raw(i)) for i in range(len(source))] if is_small and not shards.faults else []
    content = None if prints else _content(source, classes, [split_of_path(file) for file in files])
    return FoundImages(source, labels, classes, splits, prints, notes, columns, about=about, content=content)


class _OpenShards:
    """The samples of shards, by the index beside them, an earlier table, or their headers; and what was bad."""

    def __init__(self, files: Sequence[str], place: Place):
        self.files, self.skips = files, place.skips_bad_shards
        self.stamps = file_stamps(files)
        self.faults: dict[str, DataError] = {}
        self.dropped: set[str] = set()  # bad shards of unknown content
        self.lost = 0  # samples of bad shards, as far as they are known
        self.about: list[dict[str, Any]] = []
        missing = {file: told for file, told in self.stamps.items() if isinstance(told, DataError)}
        if missing and not self.skips:
            more = f" ({len(missing):,} of {len(files):,} shards fail)" if len(missing) > 1 else ""
            raise ShardError(f"{next(iter(missing.values()))}{more}")

    def table(self) -> ShardTable:
        sizes = [told.size for told in self.stamps.values() if isinstance(told, Stamp)]
        if sum(sizes) < KEEP_TABLE_FROM or len(sizes) < len(self.files):
            return make_table(self.indices())
        told = [told for told in self.stamps.values() if isinstance(told, Stamp)]
        marks = (f"{file} {one.size} {one.version}" for file, one in zip(self.files, told, strict=True))
        return kept_table(table_key(marks), self.indices)

    def indices(self) -> Iterator[PackedIndex]:
        """The samples of each shard; a bad one is dropped on request, else its error is raised."""
        from vitreous.images.stores.shard_index import WrittenIndex  # imported here: it uses this package

        is_far = any(map(is_remote, self.files))
        with WrittenIndex(self.files) as written, ThreadPoolExecutor(SHARDS_AT_ONCE) as pool:
            read = partial(self._read, written)
            found = in_order(pool, read, self.files, 2 * SHARDS_AT_ONCE) if is_far else map(read, self.files)
            for file, one in zip(self.files, found, strict=True):
                index = self._skipped(file, one, written) if isinstance(one, DataError) else one
                if index is None:
                    continue
                if len(self.about) <= MAX_TOLD_IMAGES:
                    self.about += index.about or [{}] * len(index)
                yield index

    def _skipped(self, file: str, fault: DataError, written: Any) -> PackedIndex | None:
        """A bad shard's samples, if the index lists them: they stay in the set, and are lost when they are read."""
        if not self.skips:
            raise fault
        self.faults[file] = fault
        index: PackedIndex | None = written.get(file, None)
        if index is None:
            self.dropped.add(file)
        else:
            self.lost += len(index)
        return index

    def _read(self, written: Any, file: str) -> PackedIndex | DataError:
        told = self.stamps[file]
        if isinstance(told, DataError):
            return told
        try:
            known: PackedIndex | None = written.get(file, told)
            return index_shard(file) if known is None else known
        except DataError as error:
            return error

    def notes(self) -> Iterator[str]:
        if self.faults:
            unknown = f", and all of {len(self.dropped):,} that no index tells of" if self.dropped else ""
            why = next(iter(self.faults.values()))
            yield f"skipped {len(self.faults):,} bad shards: {self.lost:,} samples are lost{unknown} ({why})"


def index_shard(file: str) -> PackedIndex:
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
    return index.packed()


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


def _classes(source: Shards, files: Sequence[str], what: str) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """Class numbers if all labels are whole numbers, else names; −1 for none."""
    values, which = source.table.facts.labels, source.table.columns["label"]
    if all(isinstance(value, int) for value in values if value is not None):
        numbers = np.array([-1 if value is None else value for value in values], np.int64)
        return by_number(numbers[which], _names_beside(files[0]), what, source.name)
    numbers, classes = by_name([None if value is None else str(value) for value in values])
    return numbers[which], classes


def _names_beside(file: str) -> list[str] | None:
    """Class names from a text file beside the shards, one per line."""
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


def _notes(files: Sequence[str], source: Shards, labels: NDArray[np.int64]) -> Iterator[str]:
    facts = source.table.facts
    yield f"{len(files):,} shards, read by offset"
    if cut := [file_name(file) for file, has_end in zip(files, facts.has_end, strict=True) if not has_end]:
        yield f"{len(cut):,} shards have no end mark and may be cut short: {few(cut)}"
    if facts.left:
        names = ", ".join(map(storable, facts.left_names[:3]))
        more = f" and {facts.left - 3:,} more" if facts.left > 3 else ""
        yield f"left out {facts.left:,} keys without an image: {names}{more}"
    if None in facts.labels and (count := int((labels < 0).sum())):
        yield f"{count:,} images have no label"


def _content(source: Shards, classes: Sequence[str], splits: Sequence[str]) -> str:
    """A digest of classes, and of each shard's name, split and samples, in the order of the names."""
    total = hashlib.sha256("\0".join(classes).encode("utf-8", "surrogateescape"))
    for line in sorted(zip(source.titles, splits, source.table.facts.digests, strict=True)):
        total.update(("\n" + "\0".join(line)).encode("utf-8", "surrogateescape"))
    return total.hexdigest()[:32]


def _titles(files: Sequence[str]) -> tuple[str, ...]:
    """The shards' names, with their folder if two shards share one."""
    often = Counter(map(file_name, files))
    parts = (re.split(r"[/\\]", without_secrets(file)) for file in files)
    return tuple(
        file_name(file) if often[file_name(file)] == 1 else "/".join(part[-2:])
        for file, part in zip(files, parts, strict=True)
    )


SHARDS = SourceKind("shards", "WebDataset tar shards: key.jpg beside key.cls or key.json", recognises, open_shards)
