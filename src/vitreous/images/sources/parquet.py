"""Parquet in the hub's layout: a column of images (bytes and path), a column of labels, names in the schema."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitreous.errors import DataError, MissingExtraError
from vitreous.images.imageset import NamedImages
from vitreous.images.sources import image_file
from vitreous.images.sources.labels import (
    LABEL_COLUMNS,
    PATH_COLUMNS,
    Labels,
    by_names,
    by_number,
    by_value,
    column,
    split_of_path,
)
from vitreous.images.sources.paths import (
    HASH_WHOLE_BELOW,
    Place,
    file_name,
    file_size,
    fingerprint,
    is_junk,
    is_remote,
    open_file,
    read_image_file,
)
from vitreous.images.sources.source import FoundImages, SourceKind

ROW_GROUPS_KEPT = 4  # in memory; reading an image reads its whole row group


@dataclass
class Rows(NamedImages):
    """Images in the rows of Parquet files; keeps the last row groups, but not across pickling."""

    files: tuple[str, ...]
    image: str  # column
    groups: list[tuple[int, int]]  # file, row group
    first: NDArray[np.int64]  # row of the set at which each row group begins
    names: tuple[str, ...]
    kept: OrderedDict[int, list[Any]] = field(default_factory=OrderedDict, repr=False)
    lock: Any = field(default_factory=Lock, repr=False)

    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in self.__dict__.items() if k not in ("kept", "lock")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__ |= state | {"kept": OrderedDict(), "lock": Lock()}

    def raw(self, i: int) -> bytes:
        group = int(np.searchsorted(self.first, i, "right")) - 1
        value = self._rows(group)[i - int(self.first[group])]
        raw = value.get("bytes") if isinstance(value, dict) else value
        if raw is not None:
            return bytes(raw)
        file = self.files[self.groups[group][0]]
        path = value.get("path") if isinstance(value, dict) else None
        if path and not is_remote(file) and (Path(file).parent / path).is_file():
            return read_image_file(Path(file).parent / path)
        raise DataError(f"{file}: row {i - int(self.first[group])} has no image; drop the row")

    def read(self, i: int) -> NDArray[np.uint8]:
        return image_file.decode(self.raw(i), self.name(i))

    def _rows(self, group: int) -> list[Any]:
        with self.lock:
            if group in self.kept:
                self.kept.move_to_end(group)
                return self.kept[group]
            file, number = self.groups[group]
            try:
                with open_file(self.files[file]) as handle:
                    rows = _parquet().ParquetFile(handle).read_row_group(number, columns=[self.image])[0].to_pylist()
            except (OSError, ValueError) as error:  # pyarrow's own are among these
                what = f"{self.files[file]} is damaged in row group {number} ({type(error).__name__})"
                raise DataError(f"{what}; fetch it again") from None
            self.kept[group] = rows
            while len(self.kept) > ROW_GROUPS_KEPT:
                self.kept.popitem(last=False)
            return rows


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
    files = parquet_files(place)
    parquet = _parquet()
    groups: list[tuple[int, int]] = []
    counts, tables, splits, schema = [], [], [], None
    for n, file in enumerate(files):
        try:
            with open_file(file) as handle:
                reader = parquet.ParquetFile(handle)
                schema = schema if schema is not None else reader.schema_arrow
                if reader.schema_arrow.names != schema.names:
                    raise DataError(f"{file} has other columns than {files[0]}; name the files of one set")
                image = image_column(schema, file)
                others = [name for name in schema.names if name != image]
                tables.append(reader.read(columns=others))
                sizes = [reader.metadata.row_group(g).num_rows for g in range(reader.metadata.num_row_groups)]
        except DataError:
            raise
        except Exception as error:  # pyarrow's own
            raise DataError(f"{file} is not a whole Parquet file ({type(error).__name__}); fetch it again") from None
        groups += [(n, g) for g in range(len(sizes))]
        counts += sizes
        splits += [split_of_path(file)] * sum(sizes)
    first = np.cumsum([0, *counts[:-1]], dtype=np.int64)
    rows = ((file_name(file), row) for file, t in zip(files, tables, strict=True) for row in range(t.num_rows))
    names = tuple(f"{file}/{row}" for file, row in rows)
    if not names:
        raise DataError(f"{place.text} has no rows; fetch it again")
    source = Rows(tuple(files), image, groups, first, names)
    columns = {name: [v for table in tables for v in table.column(name).to_pylist()] for name in tables[0].column_names}
    labels, classes, used = _labels(schema, columns, place.text, source)
    facts: dict[str, Sequence[str]] = {
        name: [str(v) for v in values] for name, values in columns.items() if name != used
    }
    note = f"{len(files):,} Parquet files, images in column {image!r}, labels in {used!r}, {len(groups):,} row groups"
    return FoundImages(source, labels, classes, splits, _prints(source, files), (note,), facts)


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
    schema: Any, columns: dict[str, list[Any]], what: str, source: Rows
) -> tuple[Labels, tuple[str, ...], str | None]:
    """Class numbers with the schema's names, or by value; and the column used."""
    features = _features(schema)
    named = {name: _class_names(feature) for name, feature in features.items() if _class_names(feature) is not None}
    rank = {name: i for i, name in enumerate(LABEL_COLUMNS)}
    candidates = [name for name in columns if name in named or column(name) in rank]
    if not candidates:
        return np.full(len(source), -1, np.int64), (), None
    used = min(candidates, key=lambda name: (rank.get(column(name), len(rank)), name not in named))
    values, names = columns[used], named.get(used)
    if any(isinstance(value, list) for value in values):
        several = [[_called(v, names, what, source, i) for v in value or []] for i, value in enumerate(values)]
        return *by_names(several, names), used
    return *by_value(values, names, what, source.name), used


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
    """Names of a ClassLabel, also inside a list of them."""
    if isinstance(feature, list):
        feature = feature[0] if feature else None
    if isinstance(feature, dict) and feature.get("_type") in ("Sequence", "List", "LargeList"):
        feature = feature.get("feature")
    names = feature.get("names") if isinstance(feature, dict) else None
    return [str(name) for name in names] if isinstance(names, list) else None


def _prints(source: Rows, files: Sequence[str]) -> list[str]:
    """Digests of the images if all files are local and small, else the sizes of their row groups."""
    if sum(map(file_size, files)) <= HASH_WHOLE_BELOW and not any(map(is_remote, files)):
        return [_print(source, i) for i in range(len(source))]
    prints = []
    for file in files:
        with open_file(file) as handle:
            metadata = _parquet().ParquetFile(handle).metadata
        for group in map(metadata.row_group, range(metadata.num_row_groups)):
            prints += [f"{file_size(file)}:{group.total_byte_size}"] * group.num_rows
    return prints


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
