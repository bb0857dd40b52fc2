"""A CSV (or TSV) of path,label: several labels as `a|b`, as several rows or columns, or as columns of 0 and 1."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from vitreous.errors import DataError
from vitreous.images.sources.folders import Files, fingerprints
from vitreous.images.sources.labels import (
    LABEL_COLUMNS,
    PATH_COLUMNS,
    SPLIT_COLUMNS,
    SPLIT_OF_WORD,
    Labels,
    by_name,
    by_names,
    column,
    split_of,
)
from vitreous.images.sources.paths import Place, cannot_read, file_name, is_image_name, open_file, stem
from vitreous.images.sources.source import FoundImages, SourceKind
from vitreous.printable import storable
from vitreous.words import few

TABLE_SUFFIXES = (".csv", ".tsv")


@dataclass(frozen=True)
class LabelTable:
    """The rows and column names of one file."""

    file: str
    names: list[str]
    rows: list[list[str]]

    def values(self, name: str) -> list[str]:
        place = self.names.index(name)
        return [row[place] for row in self.rows]


def recognises(place: Place) -> bool:
    files = place.ending(*TABLE_SUFFIXES)
    if place.folder is None or not files:
        return bool(files)
    if place.has_image_folders and _class_folders(place) > 1:
        return False  # class folders win over a table beside them
    return any(_is_table(file) for file in files)


def open_tables(place: Place) -> FoundImages:
    files = place.ending(*TABLE_SUFFIXES)
    tables = [read(file) for file in files if place.folder is None or _is_table(file)]
    first = tables[0]
    for table in tables[1:]:
        if table.names != first.names:
            raise DataError(f"{table.file} has other columns than {first.file}; name the files of one set")
    path = _path_column(first)
    splits = _split_column(tables)
    labels = _label_columns(first, {path, splits})
    root = Path(first.file).resolve().parent
    paths: list[str] = []
    several: list[list[str]] = []
    own_splits: list[str] = []
    rest = [name for name in first.names if name not in {path, splits, *labels}]
    columns: dict[str, list[str]] = {name: [] for name in rest}
    place_of: dict[str, int] = {}
    twice = 0
    hot = len(labels) > 1 and all(_is_hot(table, name) for table in tables for name in labels)
    for table in tables:
        called = split_of(stem(table.file)) or ""
        named = [_split(s) or "" for s in table.values(splits)] if splits else None
        resolved = _resolve(table, path, root)
        for i, (file, row) in enumerate(zip(resolved, table.rows, strict=True)):
            answers = _answers([row[table.names.index(name)] for name in labels], labels, hot)
            if file in place_of:  # a second row adds its labels
                n = place_of[file]
                twice += set(answers) <= set(several[n])
                several[n] += [answer for answer in answers if answer not in several[n]]
                continue
            place_of[file] = len(paths)
            paths.append(file)
            several.append(answers)
            own_splits.append(named[i] if named else called)
            for name in rest:
                columns[name].append(row[table.names.index(name)])
    source = Files(str(root), tuple(paths))
    prints, notes = fingerprints(source)
    numbers, classes = _number(several, labels if hot else None)
    notes.insert(
        0, f"paths in column {path!r}, labels in {', '.join(map(repr, labels[:4]))}{' …' if len(labels) > 4 else ''}"
    )
    for name in rest:
        if column(name) in SPLIT_COLUMNS and (words := sorted({word for word in columns[name] if word})):
            notes.append(f"column {name!r} names no split known here ({few(words)}) and was not taken for one")
    if twice:
        notes.append(f"{twice:,} rows repeat the label of an earlier row")
    if numbers.ndim == 2:
        notes.append(f"images have several labels: {numbers.sum(1).mean():.2f} on average")
    if nothing := sum(not names for names in several):
        notes.append(f"{nothing:,} images have no label")
    return FoundImages(
        source, numbers, classes, own_splits, prints, tuple(notes), {k: tuple(v) for k, v in columns.items()}
    )


def read(file: str) -> LabelTable:
    """Read header and rows; without a header, the columns are path and label."""
    try:
        with io.TextIOWrapper(open_file(file), "utf-8-sig") as lines:
            text = lines.read()
    except UnicodeDecodeError:
        raise DataError(f"{file} is not UTF-8; save it as UTF-8") from None
    except OSError as error:
        raise cannot_read(file, error) from None
    delimiter = max(",;\t", key=text.split("\n", 1)[0].count)
    try:
        rows = [row for row in csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True) if any(row)]
    except csv.Error as error:
        raise DataError(f"{file} is not a clean CSV ({error}); write it again") from None
    if not rows:
        raise DataError(f"{file} is empty; write one row of path,label for each image")
    names = [name.strip() for name in rows[0]]
    paths = [i for i, name in enumerate(names) if is_image_name(name)]
    if paths or not any(column(name) in (*PATH_COLUMNS, *LABEL_COLUMNS) for name in names):
        if not paths:
            raise DataError(
                f"{file} names no column path and no column label; its first row is {', '.join(names)[:80]}"
            )
        others = [i for i in range(len(names)) if i != paths[0]]
        names = ["path" if i == paths[0] else "label" if i == others[0] else f"label{i}" for i in range(len(names))]
        rows = [names, *rows]
    for number, row in enumerate(rows[1:], 2):
        if len(row) != len(names):
            raise DataError(
                f"{file}, row {number}, has {len(row)} columns where the first has {len(names)}; mend the row"
            )
    if len(rows) == 1:
        raise DataError(f"{file} has a header and no rows; write one row of path,label for each image")
    return LabelTable(file, names, [[cell.strip() for cell in row] for row in rows[1:]])


def _is_table(file: str) -> bool:
    """True if the table names existing images, and is not some other file in the folder."""
    try:
        table = read(file)
        path = _path_column(table)
        _label_columns(table, {path})
        return _find_file(Path(file).resolve().parent, table.values(path)[0]) is not None
    except DataError:
        return False


def _class_folders(place: Place) -> int:
    """Folders with images below, except split folders and a folder that holds all images."""
    assert place.folder is not None
    folders = [place.folder / name for name in place.names if (place.folder / name).is_dir()]
    inner = [f for f in folders if not split_of(f.name)]
    inner += [sub for f in folders if split_of(f.name) for sub in f.iterdir() if sub.is_dir()]
    return len(inner)


def _path_column(table: LabelTable) -> str:
    by_spelling = {column(name): name for name in reversed(table.names)}
    named = [by_spelling[name] for name in PATH_COLUMNS if name in by_spelling]
    like = [name for name in table.names if any(is_image_name(v) for v in table.values(name)[:20])]
    found = [name for name in named if name in like] or like or named
    if not found:
        raise DataError(f"{table.file} has no column of paths; call it path (it has: {', '.join(table.names)})")
    return found[0]


def _label_columns(table: LabelTable, taken: set[str | None]) -> list[str]:
    """The label columns: by name, numbered (label1, label2), several of 0 and 1, or the only other column."""
    others = [name for name in table.names if name not in taken]
    named = [name for name in others if column(name).rstrip("0123456789") in LABEL_COLUMNS]
    exact = sorted((n for n in named if column(n) in LABEL_COLUMNS), key=lambda n: LABEL_COLUMNS.index(column(n)))
    hot = [name for name in others if _is_hot(table, name)]
    if exact and (len(named) == 1 or len(exact) == len(named)):
        return exact[:1]
    if named:
        return named
    if len(hot) > 1:
        return hot
    if len(others) == 1:
        return others
    raise DataError(f"{table.file} has no column of labels; call it label (it has: {', '.join(table.names)})")


def _is_hot(table: LabelTable, name: str) -> bool:
    return set(table.values(name)) <= {"0", "1", "0.0", "1.0"}


def _split_column(tables: Sequence[LabelTable]) -> str | None:
    """The split column; refuses one where only some words name a split."""
    mixed: list[tuple[str, str, str]] = []
    for name in tables[0].names:
        if column(name) not in SPLIT_COLUMNS:
            continue
        words = {word: table.file for table in tables for word in table.values(name) if word}
        strange = sorted(word for word in words if not _split(word))
        if words and not strange:
            return name
        if 0 < len(strange) < len(words):
            mixed.append((words[strange[0]], name, strange[0]))
    if mixed:
        file, name, word = mixed[0]
        raise DataError(
            f"{file}: column {name!r} says {word!r}, which is not a split known here; use train, val or test"
        )
    return None


def _split(word: str) -> str | None:
    return SPLIT_OF_WORD.get(word.casefold()) or split_of(word)


def _answers(cells: list[str], labels: list[str], hot: bool) -> list[str]:
    if hot:
        return [name for name, cell in zip(labels, cells, strict=True) if cell in ("1", "1.0")]
    return list(dict.fromkeys(name.strip() for cell in cells for name in cell.split("|") if name.strip()))


def _number(several: list[list[str]], classes: list[str] | None) -> tuple[Labels, tuple[str, ...]]:
    if classes is None and all(len(names) <= 1 for names in several):
        return by_name([names[0] if names else None for names in several])
    return by_names(several, classes)


def _find_file(root: Path, name: str) -> str | None:
    """The file that a path of the table means: as written, or in images/, with or without a suffix."""
    name = name.replace("\\", "/")
    for folder in ("", "images/", "train/", "data/"):
        for ending in ("", ".jpg", ".png", ".jpeg", ".webp"):
            if name and (root / f"{folder}{name}{ending}").is_file():
                return f"{folder}{name}{ending}"
    return None


def _resolve(table: LabelTable, path: str, root: Path) -> list[str]:
    names = table.values(path)
    found = [_find_file(root, name) for name in names]
    if missing := [name for name, file in zip(names, found, strict=True) if file is None]:
        raise DataError(
            f"{table.file} names {len(missing):,} images that are not there ({few(missing)}); "
            f"paths count from the folder of {storable(file_name(table.file))}"
        )
    return [file for file in found if file]


TABLES = SourceKind("tables", "a CSV of path,label; several labels as a|b or as columns", recognises, open_tables)
