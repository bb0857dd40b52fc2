"""All samples of tar shards as columns of numbers: no Python object for each sample.

A set above `KEEP_TABLE_FROM` bytes keeps its table in the cache folder and maps it into memory, so all processes of a
machine share it, and opening the set again reads nothing. One process makes it; the others wait.

    CACHE/shards/KEY/    start.bin size.bin label.bin ends.bin keys.bin, and last table.json
"""

from __future__ import annotations

import hashlib
import io
import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
import numpy as np
from numpy.typing import NDArray

from vitreous.errors import VitreousError
from vitreous.files import cache_folder, digest, lock, remove, unlink, write_bytes
from vitreous.printable import storable

KEEP_TABLE_FROM = 1 << 30  # bytes of all shards together
TABLES_KEPT = 8  # in the cache folder
TABLE_VERSION = 2
COLUMNS = {"start": np.int64, "size": np.int32, "label": np.int32, "ends": np.int64, "keys": np.uint8}

ODD_LABELS = {list, dict, float}


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

    def packed(self) -> PackedIndex:
        keys = [key.encode("utf-8", "surrogateescape") for key in self.keys]
        numbers: dict[str, int] = {}  # of labels, as JSON: a list has no hash
        which = [numbers.setdefault(_json(label), len(numbers)) for label in self.label]
        return PackedIndex(
            keys=b"".join(keys),
            ends=np.cumsum([len(key) for key in keys], dtype=np.int64).astype(np.int32).tobytes(),
            start=np.array(self.start, np.int64).tobytes(),
            size=np.array(self.size, np.int32).tobytes(),
            which=np.array(which, np.int32).tobytes(),
            labels=[json.loads(label) for label in numbers],
            about=self.about if any(self.about) else [],
            has_end=self.has_end,
            left=[storable(key) for key in self.left],
        )


class PackedIndex(msgspec.Struct, frozen=True):
    """The same as columns of numbers, as an index beside shards holds them; no Python object for each sample."""

    keys: bytes  # one after the other
    ends: bytes  # int32: where each ends
    start: bytes  # int64
    size: bytes  # int32
    which: bytes  # int32: the label of each sample, as its place in `labels`
    labels: list[Any]
    about: list[dict[str, Any]]  # empty if no sample has any
    has_end: bool
    left: list[str]

    def __len__(self) -> int:
        return len(self.size) // 4

    @property
    def is_whole(self) -> bool:
        """False if a column is cut short, or names what is not there."""
        count, which = len(self), np.frombuffer(self.which, np.int32) if len(self.which) % 4 == 0 else None
        if which is None or {len(self.ends), len(self.size), len(self.which), len(self.start) // 2} != {4 * count}:
            return False
        ends = np.frombuffer(self.ends, np.int32)
        is_sorted = not count or (ends[0] >= 0 and (np.diff(ends) >= 0).all() and ends[-1] == len(self.keys))
        is_known = not count or (which.min() >= 0 and which.max() < len(self.labels))
        return bool(is_sorted and is_known) and len(self.about) in (0, count)


def _json(label: Any) -> str:
    """A label as JSON; half a character in a name is escaped."""
    return json.dumps(storable(label) if isinstance(label, str) else label)


class ShardFacts(msgspec.Struct, frozen=True):
    """What a table knows about each shard, and the values that its label numbers stand for."""

    counts: list[int]
    digests: list[str]  # of keys, offsets, sizes and labels
    labels: list[int | str | None]
    has_end: list[bool]
    left: int = 0  # keys without an image
    left_names: list[str] = []
    odd_label: str = ""  # an image whose label is neither a number nor a name


@dataclass(frozen=True, eq=False)
class ShardTable:
    """Samples of shards, one after the other."""

    facts: ShardFacts
    columns: dict[str, NDArray[Any]]
    folder: Path | None = None  # where the columns lie, if they are mapped

    def __reduce__(self) -> Any:
        """A mapped table is sent to a worker as the path of its folder."""
        if self.folder is not None:
            return open_table, (self.folder,)
        return ShardTable, (self.facts, self.columns)

    def __len__(self) -> int:
        return int(self.first[-1])

    @cached_property
    def first(self) -> NDArray[np.int64]:
        """The number of each shard's first sample; at the end, the number of samples."""
        return np.cumsum([0, *self.facts.counts], dtype=np.int64)

    def shard(self, i: int) -> int:
        """The shard of sample i."""
        return int(np.searchsorted(self.first, i, "right")) - 1

    def place(self, i: int) -> tuple[int, int]:
        """Offset and size of sample i in its shard."""
        return int(self.columns["start"][i]), int(self.columns["size"][i])

    def key(self, i: int) -> str:
        ends = self.columns["ends"]
        begin = int(ends[i - 1]) if i else 0
        return self.columns["keys"][begin : int(ends[i])].tobytes().decode("utf-8", "surrogateescape")


def table_key(marks: Iterable[str]) -> str:
    """The name of a table: changes when a shard does."""
    return digest("\n".join([str(TABLE_VERSION), *marks]).encode("utf-8", "surrogateescape"))[:24]


def kept_table(key: str, read: Callable[[], Iterator[PackedIndex]]) -> ShardTable:
    """The table of this name from the cache folder, made from `read()` if it is not there; in memory if that fails.

    Of several processes one reads the shards, and the others wait for it.
    """
    folder = cache_folder() / "shards" / key
    if (found := _opened(folder)) is not None:
        return found
    with ExitStack() as stack:
        try:
            stack.enter_context(lock(folder.with_suffix(".lock")))
            folder.mkdir(parents=True, exist_ok=True)
        except (OSError, VitreousError):  # no room, or nothing may be written there
            return make_table(read())
        if (found := _opened(folder)) is not None:
            return found
        unlink(folder / "table.json")
        _forget_oldest(folder)
        return make_table(read(), folder)


def make_table(shards: Iterable[PackedIndex], folder: Path | None = None) -> ShardTable:
    """The table of these shards, read one after the other; in `folder` if one is given."""
    numbers: dict[int | str | None, int] = {}
    counts, digests, has_end = [], [], []
    left_names: list[str] = []
    left, end, odd = 0, 0, ""
    with ExitStack() as stack:
        sinks: dict[str, BinaryIO] = {
            name: io.BytesIO() if folder is None else stack.enter_context((folder / f"{name}.bin").open("wb"))
            for name in COLUMNS
        }
        for shard in shards:
            ends = np.frombuffer(shard.ends, np.int32).astype(np.int64) + end
            which = np.frombuffer(shard.which, np.int32)
            odd = odd or _odd_label(shard, which)
            sinks["ends"].write(ends.tobytes())
            sinks["label"].write(_numbered(shard.labels, numbers)[which].tobytes())
            for name, column in (("keys", shard.keys), ("start", shard.start), ("size", shard.size)):
                sinks[name].write(column)
            end += len(shard.keys)
            counts.append(len(shard))
            digests.append(_digest(shard))
            has_end.append(shard.has_end)
            left += len(shard.left)
            left_names += shard.left[: max(4 - len(left_names), 0)]
        facts = ShardFacts(counts, digests, list(numbers), has_end, left, left_names, odd)
        if folder is None:
            read = {name: sink.getvalue() for name, sink in sinks.items() if isinstance(sink, io.BytesIO)}
            return ShardTable(facts, {name: np.frombuffer(read[name], kind) for name, kind in COLUMNS.items()})
    write_bytes(folder / "table.json", msgspec.json.encode(facts), force=True)
    return open_table(folder)


def open_table(folder: Path) -> ShardTable:
    """A table in the cache folder, mapped into memory."""
    facts = msgspec.json.decode((folder / "table.json").read_bytes(), type=ShardFacts)
    columns: dict[str, NDArray[Any]] = {}
    for name, kind in COLUMNS.items():
        path = folder / f"{name}.bin"
        columns[name] = np.memmap(path, kind, "r") if path.stat().st_size else np.zeros(0, kind)
    if any(len(columns[name]) != sum(facts.counts) for name in COLUMNS if name != "keys"):
        raise ValueError("a column is cut short")
    return ShardTable(facts, columns, folder)


def _opened(folder: Path) -> ShardTable | None:
    """The table in this folder, and a mark that it was used; None if it is not whole."""
    try:
        found = open_table(folder)
    except (OSError, ValueError, msgspec.MsgspecError):
        return None
    with suppress(OSError):
        os.utime(folder / "table.json")
    return found


def _forget_oldest(folder: Path) -> None:
    """Remove the tables that were opened longest ago."""
    others = [path for path in folder.parent.iterdir() if path.is_dir() and path != folder]
    for old in sorted(others, key=_last_opened)[: max(len(others) - TABLES_KEPT + 1, 0)]:
        with suppress(OSError):
            remove(old)


def _last_opened(folder: Path) -> float:
    try:
        return (folder / "table.json").stat().st_mtime
    except OSError:
        return 0.0


def _numbered(labels: Sequence[Any], numbers: dict[int | str | None, int]) -> NDArray[np.int32]:
    """Each label as its place in `numbers`, which grows; one of another kind counts as none."""
    if set(map(type, labels)) & ODD_LABELS:
        labels = [None if type(label) in ODD_LABELS else label for label in labels]
    return np.array([numbers.setdefault(label, len(numbers)) for label in labels], np.int32)


def _odd_label(shard: PackedIndex, which: NDArray[np.int32]) -> str:
    """The first image whose label is neither a number nor a name."""
    if not set(map(type, shard.labels)) & ODD_LABELS:
        return ""
    odd = [i for i, label in enumerate(shard.labels) if type(label) in ODD_LABELS]
    first = int(np.flatnonzero(np.isin(which, odd))[0])
    begin, end = np.frombuffer(b"\0\0\0\0" + shard.ends, np.int32)[first : first + 2].tolist()
    return shard.keys[begin:end].decode("utf-8", "surrogateescape")


def _digest(shard: PackedIndex) -> str:
    total = hashlib.blake2b(digest_size=12)
    for column in (shard.keys, shard.ends, shard.start, shard.size, shard.which):
        total.update(column)
    total.update(msgspec.json.encode(shard.labels))
    return total.hexdigest()
