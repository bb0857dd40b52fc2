"""Parquet in the hub's layout: a column of images (bytes and path), a column of labels, names in the schema."""

from __future__ import annotations

import hashlib
import json
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitreous.errors import DataError, MissingExtraError, ShardError, VitreousError
from vitreous.images.batches.processes import in_order
from vitreous.images.imageset import WordArray
from vitreous.images.sources import image_file
from vitreous.images.sources.labels import (
    LABEL_COLUMNS,
    PATH_COLUMNS,
    Labels,
    by_name,
    by_names,
    by_number,
    column,
    split_of_path,
)
from vitreous.images.sources.paths import (
    HASH_WHOLE_BELOW,
    Place,
    file_name,
    file_stamps,
    fingerprint,
    is_junk,
    open_file,
    read_image_file,
)
from vitreous.images.sources.remote import Stamp, is_in_this_process, is_remote
from vitreous.images.sources.source import FoundImages, SourceKind
from vitreous.words import few

KEPT_BYTES = 256 << 20  # of row groups in memory; reading an image reads its whole row group
FILES_AT_ONCE = 8  # read through a network
MAX_TOLD_ROWS = 100_000  # of larger sets only the column of labels is read


@dataclass
class Rows:
    """Images in the rows of Parquet files; keeps the last row groups, but not across pickling."""

    files: tuple[str, ...]
    image: str  # column
    groups: list[tuple[int, int]]  # file, row group
    first: NDArray[np.int64]  # row of the set at which each row group begins; at the end, the number of rows
    size: NDArray[np.int64]  # bytes of each row group's images
    skips_bad: bool = False  # an image of a bad file is unreadable, and the run continues
    kept: OrderedDict[int, Any] = field(default_factory=OrderedDict, repr=False)
    locks: dict[int, Any] = field(default_factory=dict, repr=False)
    lock: Any = field(default_factory=Lock, repr=False)

    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in self.__dict__.items() if k not in ("kept", "locks", "lock")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__ |= state | {"kept": OrderedDict(), "locks": {}, "lock": Lock()}

    def __len__(self) -> int:
        return int(self.first[-1])

    @cached_property
    def _file_starts(self) -> NDArray[np.int64]:
        """The first row of each file."""
        return self.first[np.searchsorted([file for file, _ in self.groups], np.arange(len(self.files)))]

    @property
    def block_starts(self) -> NDArray[np.int64] | None:
        """The first row of each row group, if not all row groups can be kept in memory."""
        return None if self.window is None else self.first[:-1]

    @property
    def window(self) -> int | None:
        """How many images are shuffled at a time, their row groups kept in memory; None if all are kept."""
        total = int(self.size.sum())
        if total <= KEPT_BYTES:
            return None
        return max(int(len(self) * KEPT_BYTES / 2 / total), int(np.diff(self.first).max()))

    @property
    def stays_here(self) -> bool:
        """True if another process would not find the files."""
        return any(map(is_in_this_process, self.files))

    def name(self, i: int) -> str:
        """FILE/row"""
        file = self.groups[self._group(i)][0]
        return f"{file_name(self.files[file])}/{i - int(self._file_starts[file])}"

    def raw(self, i: int) -> bytes:
        group = self._group(i)
        row = i - int(self.first[group])
        try:
            value = self._rows(group)[row].as_py()
        except ShardError as error:
            raise DataError(str(error)) if self.skips_bad else error from None
        raw = value.get("bytes") if isinstance(value, dict) else value
        if raw is not None:
            return bytes(raw)
        file = self.files[self.groups[group][0]]
        path = value.get("path") if isinstance(value, dict) else None
        if path and not is_remote(file) and (Path(file).parent / path).is_file():
            return read_image_file(Path(file).parent / path)
        raise DataError(f"{file}: row {row} has no image; drop the row")

    def read(self, i: int) -> NDArray[np.uint8]:
        return image_file.decode(self.raw(i), self.name(i))

    def _group(self, i: int) -> int:
        return int(np.searchsorted(self.first, i, "right")) - 1

    def _rows(self, group: int) -> Any:
        """A row group's images; threads read several at once, and none twice."""
        with self.lock:
            alone = self.locks.setdefault(group, Lock())
        with alone:
            with self.lock:
                if group in self.kept:
                    self.kept.move_to_end(group)
                    return self.kept[group]
            rows = self._read_group(*self.groups[group])
            with self.lock:
                self.kept[group] = rows
                while len(self.kept) > 1 and sum(int(self.size[g]) for g in self.kept) > KEPT_BYTES:
                    self.locks.pop(self.kept.popitem(last=False)[0], None)
            return rows

    def _read_group(self, file: int, number: int) -> Any:
        try:
            with open_file(self.files[file]) as handle:
                return _parquet().ParquetFile(handle).read_row_group(number, columns=[self.image])[0]
        except VitreousError:
            raise
        except (OSError, ValueError) as error:  # pyarrow's own are among these
            what = f"{self.files[file]} is damaged in row group {number} ({type(error).__name__})"
            raise ShardError(f"{what}; fetch it again") from None


def recognises(place: Place) -> bool:
    return not place.has_image_folders and bool(parquet_files(place))


def parquet_files(place: Place) -> list[str]:
    if found := place.ending(".parquet"):
        return found
    if place.folder is None or place.has_image_folders:
        return []
    below = [p.relative_to(place.folder) for depth in ("*/", "*/*/") for p in place.folder.glob(f"{depth}*.parquet")]
    return sorted(str(place.folder / p) for p in below if not any(map(is_junk, p.parts)))


def open_parquet(place: Place) -> FoundImages:
    files, bad = _whole_files(parquet_files(place), place)
    first = files[0]
    for one in files[1:]:
        if one.schema.names != first.schema.names:
            raise DataError(f"{one.file} has other columns than {first.file}; name the files of one set")
    image = image_column(first.schema, first.file)
    groups = [(n, g) for n, one in enumerate(files) for g in range(len(one.rows))]
    starts = np.cumsum([0, *(count for one in files for count in one.rows)], dtype=np.int64)
    size = np.array([count for one in files for count in one.image_bytes(image)], np.int64)
    names = tuple(one.file for one in files)
    source = Rows(names, image, groups, starts, size, place.skips_bad_shards)
    if not len(source):
        raise DataError(f"{place.text} has no rows; fetch it again")
    labels, classes, used = _labels(files, image, place.text, source)
    facts: dict[str, Sequence[str]] = {}
    if len(source) <= MAX_TOLD_ROWS:
        others = [name for name in first.schema.names if name not in (image, used)]
        facts = {name: [str(v) for one in files for v in one.read(name).to_pylist()] for name in others}
    splits = [split_of_path(one.file) for one in files]
    own_splits = WordArray.repeated(splits, [sum(one.rows) for one in files])
    note = f"{len(files):,} Parquet files, images in column {image!r}, labels in {used!r}, {len(groups):,} row groups"
    notes = [note, *(f"skipped {len(bad):,} bad files, and all their rows: {few(map(str, bad), 1)}" for _ in bad[:1])]
    is_small = int(size.sum()) <= HASH_WHOLE_BELOW and not any(map(is_remote, names))
    prints = [_print(source, i) for i in range(len(source))] if is_small and not bad else []
    content = None if prints else _content(files, labels, classes, splits)
    about = {"bad_shards": [str(error) for error in bad], "lost_samples": None} if bad else {}
    return FoundImages(source, labels, classes, own_splits, prints, tuple(notes), facts, about=about, content=content)


@dataclass(frozen=True, eq=False)
class _ParquetFile:
    """What a file's footer states."""

    file: str
    metadata: Any
    schema: Any
    size: int

    @property
    def rows(self) -> list[int]:
        """The number of rows in each row group."""
        return [self.metadata.row_group(g).num_rows for g in range(self.metadata.num_row_groups)]

    def image_bytes(self, image: str) -> list[int]:
        """The bytes of the images in each row group."""
        found = []
        for group in map(self.metadata.row_group, range(self.metadata.num_row_groups)):
            columns = map(group.column, range(group.num_columns))
            found.append(sum(c.total_uncompressed_size for c in columns if c.path_in_schema.split(".")[0] == image))
        return found

    def read(self, name: str) -> Any:
        """One column."""
        with open_file(self.file) as handle:
            return _parquet().ParquetFile(handle, metadata=self.metadata).read(columns=[name])[0]


def _whole_files(files: list[str], place: Place) -> tuple[list[_ParquetFile], list[DataError]]:
    """The files, and the faults of those to skip; without leave to skip, the first fault is raised."""
    stamps = file_stamps(files)
    is_far = any(map(is_remote, files))
    with ThreadPoolExecutor(FILES_AT_ONCE) as pool:
        read = partial(_opened, stamps)
        found = list(in_order(pool, read, files, 2 * FILES_AT_ONCE) if is_far else map(read, files))
    bad = [one for one in found if isinstance(one, DataError)]
    good = [one for one in found if isinstance(one, _ParquetFile)]
    if bad and (not place.skips_bad_shards or not good):
        raise bad[0]
    return good, bad


def _opened(stamps: dict[str, Stamp | DataError], file: str) -> _ParquetFile | DataError:
    told = stamps[file]
    if isinstance(told, DataError):
        return told
    parquet = _parquet()
    try:
        with open_file(file) as handle:
            reader = parquet.ParquetFile(handle)
            return _ParquetFile(file, reader.metadata, reader.schema_arrow, told.size)
    except DataError as error:
        return error
    except Exception as error:  # pyarrow's own
        return ShardError(f"{file} is not a whole Parquet file ({type(error).__name__}); fetch it again")


def image_column(schema: Any, file: str) -> str:
    """The column of images: a struct with bytes, else bytes under an image's name."""
    import pyarrow as pa

    fields = [schema.field(i) for i in range(len(schema.names))]
    structs = [f.name for f in fields if pa.types.is_struct(f.type) and f.type.get_field_index("bytes") >= 0]
    plain = [f.name for f in fields if pa.types.is_binary(f.type) or pa.types.is_large_binary(f.type)]
    if not structs + plain:
        raise DataError(
            f"{file} has no column of images (a struct of bytes and path); it has: {', '.join(schema.names)}"
        )
    found = structs or plain
    return next((name for name in found if column(name) in ("image", "img", "picture", *PATH_COLUMNS)), found[0])


def _labels(
    files: Sequence[_ParquetFile], image: str, what: str, source: Rows
) -> tuple[Labels, tuple[str, ...], str | None]:
    """Class numbers with the schema's names, or by value; and the column used."""
    import pyarrow as pa

    schema = files[0].schema
    features = _features(schema)
    named = {name: _class_names(feature) for name, feature in features.items() if _class_names(feature) is not None}
    rank = {name: i for i, name in enumerate(LABEL_COLUMNS)}
    candidates = [name for name in schema.names if name != image and (name in named or column(name) in rank)]
    if not candidates:
        return np.full(len(source), -1, np.int64), (), None
    used = min(candidates, key=lambda name: (rank.get(column(name), len(rank)), name not in named))
    names = named.get(used)
    if pa.types.is_nested(schema.field(used).type):
        values = [value for one in files for value in one.read(used).to_pylist()]
        several = [[_called(v, names, what, source, i) for v in value or []] for i, value in enumerate(values)]
        return *by_names(several, names), used
    found: dict[Any, int] = {None: 0}
    which = np.concatenate([codes for one in files for codes in _coded(one.read(used), found)])
    if all(isinstance(value, int) for value in found if value is not None):
        numbers = np.array([-1 if value is None else value for value in found], np.int64)
        return *by_number(numbers[which], names, what, source.name), used
    numbers, classes = by_name([None if value is None else str(value) for value in found])
    return numbers[which], classes, used


def _coded(values: Any, found: dict[Any, int]) -> Iterator[NDArray[np.int64]]:
    """Each value of a column as its place in `found`, which grows."""
    for chunk in values.dictionary_encode().chunks:
        known = [found.setdefault(value, len(found)) for value in chunk.dictionary.to_pylist()]
        codes = np.array([0, *known], np.int64)  # the first for rows without a value
        yield codes[chunk.indices.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64) + 1]


def _called(value: Any, names: Sequence[str] | None, what: str, source: Rows, i: int) -> str:
    if names is None or not isinstance(value, int):
        return str(value)
    by_number(np.array([value]), names, what, lambda _: source.name(i))
    return names[value]


def _features(schema: Any) -> dict[str, Any]:
    raw = (schema.metadata or {}).get(b"huggingface")
    try:
        found = json.loads(raw)["info"]["features"] if raw else {}
    except (ValueError, KeyError, TypeError):
        return {}
    return found if isinstance(found, dict) else {}


def _class_names(feature: Any) -> list[str] | None:
    """Names of a ClassLabel, alone or in a list."""
    if isinstance(feature, list):
        feature = feature[0] if feature else None
    if isinstance(feature, dict) and feature.get("_type") in ("Sequence", "List", "LargeList"):
        feature = feature.get("feature")
    names = feature.get("names") if isinstance(feature, dict) else None
    return [str(name) for name in names] if isinstance(names, list) else None


def _content(files: Sequence[_ParquetFile], labels: Labels, classes: Sequence[str], splits: Sequence[str]) -> str:
    """A digest of classes, and of each file's name, split, size, row groups and labels, in the order of the names."""
    lines, begin = [], 0
    for one, split in zip(files, splits, strict=True):
        groups = map(one.metadata.row_group, range(one.metadata.num_row_groups))
        sizes = ",".join(f"{group.num_rows}:{group.total_byte_size}" for group in groups)
        end = begin + sum(one.rows)
        told = fingerprint(np.ascontiguousarray(labels[begin:end]).tobytes())
        lines.append("\0".join([file_name(one.file), split, str(one.size), sizes, told]))
        begin = end
    text = "\n".join(["\0".join(classes), *sorted(lines)])
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:32]


def _print(source: Rows, i: int) -> str:
    try:
        return fingerprint(source.raw(i))
    except DataError:
        return "none"


def _parquet() -> Any:
    try:
        import pyarrow.parquet
    except ImportError:
        raise MissingExtraError("data", "reading Parquet files") from None
    return pyarrow.parquet


PARQUET = SourceKind(
    "parquet", "Parquet in the hub's layout: image bytes, label, names from the schema", recognises, open_parquet
)
