"""Match a set's labels to a model's classes, by name or from a file of other labels."""

from __future__ import annotations

import csv
import io
import json
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitreous.errors import DataError
from vitreous.images.imageset import ImageSet
from vitreous.images.sources.labels import LABEL_COLUMNS, PATH_COLUMNS, column
from vitreous.images.sources.paths import cannot_read
from vitreous.weights import imagenet
from vitreous.words import few

IMAGENET_FILE = re.compile(r"ILSVRC2012_val_(\d{8})")  # ReaL labels are sorted by these numbers
NAME_COLUMNS = {*PATH_COLUMNS, "name", "names", "imagename"}


def match_classes(data: ImageSet, labels: Sequence[str] | None, classes: int) -> tuple[NDArray[np.int64], list[str]]:
    """The model's class number for each class of the set, and notes.

    labels: the model's; without them classes match by number, and both sides need equally many.
    """
    if not data.classes:
        raise DataError(
            f"{data.path} has no labels to judge by; make a folder for each class, or use: vitreous predict"
        )
    if not classes:
        raise DataError(
            "the model has no head, so it names nothing; fit one: vitreous fit DATA --weights MODEL; "
            "or judge its features: vitreous eval MODEL DATA --shots 1,5,10"
        )
    if labels is None:
        if len(data.classes) != classes:
            raise DataError(
                f"{data.path} has {len(data.classes)} classes, and the model answers {classes} without saying which; "
                "give it labels: vitreous.load(MODEL, labels=[...])"
            )
        return np.arange(classes), [f"the model names no classes; its {classes:,} were taken in the order of the set's"]
    known = _by_name(labels)
    if imagenet.are_classes(labels):  # WordNet ids and all of WordNet's names mean the same classes
        known = _by_name([", ".join((number, *names)) for number, names in imagenet.classes()]) | known
    found = [known.get(_plain(name)) for name in data.classes]
    if missing := [name for name, number in zip(data.classes, found, strict=True) if number is None]:
        are_codes = all(re.fullmatch(r"n?\d+", name) for name in missing)  # numbers or WordNet ids
        if len(missing) == len(data.classes) == classes and are_codes:
            return np.arange(classes), [
                f"classes of the set are codes, such as {data.classes[0]}; they were taken in the model's order"
            ]
        raise DataError(
            f"the model does not know {len(missing)} of {len(data.classes)} classes of {data.path}: {few(missing)}; "
            f"it knows {few(list(labels))}; rename or leave out those folders, or fit a new head: "
            f"vitreous fit {data.path} --weights MODEL"
        )
    numbers = np.array(found, np.int64)
    if len(set(found)) < len(found):
        twice = next(k for k in found if found.count(k) > 1)
        both = [name for name, number in zip(data.classes, found, strict=True) if number == twice]
        raise DataError(f"{few(both)} of {data.path} are one class to the model; put their images into one folder")
    if len(numbers) < classes:
        return numbers, [
            f"{len(numbers):,} of the model's {classes:,} classes are in {data.path}; it may answer any of them"
        ]
    return numbers, []


def read_labels(
    path: str | os.PathLike[str], data: ImageSet, whole: ImageSet, numbers: NDArray[np.int64], names: Sequence[str]
) -> list[list[int]]:
    """Read a file of labels for the images of `data`, as class numbers of the model; [] leaves an image out.

    JSON: a list of lists in the order of the set (or of the whole set, or of ImageNet's validation files), or
    {image: label or labels}. CSV or TSV: a row IMAGE,LABEL[,LABEL…], where one cell may hold "a;b".
    A label is a class name or the model's class number. Images are found by path or file name.
    numbers: the model's number of each class of the set.  names: the model's.  whole: the set that `data` belongs to.
    """
    path = Path(path)
    try:
        text = path.read_text("utf-8-sig")
    except UnicodeDecodeError:
        raise DataError(f"{path} is not UTF-8; save it as UTF-8") from None
    except OSError as error:
        raise cannot_read(path, error) from None
    listed = _json(path, text) if path.suffix.lower() == ".json" else _table(path, text)
    rows = _in_order(path, listed, data, whole) if isinstance(listed, list) else _looked_up(path, listed, data)
    known = _by_name(names) | {_plain(name): int(numbers[i]) for i, name in enumerate(data.classes)}
    return [list(dict.fromkeys(_number(path, one, known, len(names)) for one in row)) for row in rows]


def _json(path: Path, text: str) -> list[list[Any]] | dict[str, list[Any]]:
    try:
        listed = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path} is not JSON: {' '.join(str(error).split())[:80]}; write it again") from None
    if isinstance(listed, list):
        return [_several(one) for one in listed]
    if isinstance(listed, dict):
        return {name: _several(one) for name, one in listed.items()}
    raise DataError(f"{path} holds a {type(listed).__name__}; give a list of lists, or image names with their labels")


def _several(one: Any) -> list[Any]:
    return [] if one is None else list(one) if isinstance(one, list) else [one]


def _table(path: Path, text: str) -> dict[str, list[Any]]:
    delimiter = "\t" if path.suffix.lower() == ".tsv" or "\t" in text.partition("\n")[0] else ","
    try:
        rows = [row for row in csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True) if any(row)]
    except csv.Error as error:
        raise DataError(f"{path} is not a table: {error}; save it as CSV") from None
    if rows and (column(rows[0][0]) in NAME_COLUMNS or column(rows[0][-1]) in LABEL_COLUMNS):
        rows = rows[1:]
    found: dict[str, list[Any]] = {}
    for name, *cells in rows:
        found.setdefault(name.strip(), []).extend(
            one.strip() for cell in cells for one in cell.split(";") if one.strip()
        )
    return found


def _in_order(path: Path, listed: list[list[Any]], data: ImageSet, whole: ImageSet) -> list[list[Any]]:
    names = [data.name(i) for i in range(len(data))]
    official = [IMAGENET_FILE.search(name) for name in names]
    if all(official) and len(listed) == 50_000:
        return [listed[int(match[1]) - 1] for match in official if match]
    if len(listed) == len(data):
        return listed
    if len(listed) == len(whole):
        place = {int(number): i for i, number in enumerate(whole.ids)}
        return [listed[place[int(number)]] for number in data.ids]
    raise DataError(
        f"{path} has labels of {len(listed):,} images, {data.path} has {len(data):,} here; "
        "give one list for each, or names with their labels"
    )


def _looked_up(path: Path, listed: dict[str, list[Any]], data: ImageSet) -> list[list[Any]]:
    by_file: dict[str, list[Any] | None] = {}
    for name, row in listed.items():
        for short in {_file(name), _file(name).rpartition(".")[0]} - {""}:
            by_file[short] = None if short in by_file else row  # an ambiguous file name matches nothing

    def row_of(name: str) -> list[Any] | None:
        found = (listed.get(name), by_file.get(_file(name)), by_file.get(_file(name).rpartition(".")[0]))
        return next((row for row in found if row is not None), None)

    names = [data.name(i) for i in range(len(data))]
    rows = [row_of(name) for name in names]
    if missing := [name for name, row in zip(names, rows, strict=True) if row is None]:
        raise DataError(
            f"{path} says nothing of {len(missing):,} of {len(data):,} images: {few(missing)}; "
            "add them, with no label to leave them out"
        )
    return [row for row in rows if row is not None]


def _number(path: Path, label: Any, known: dict[str, int | None], classes: int) -> int:
    number = known.get(_plain(label)) if isinstance(label, str) else None
    if number is None and (type(label) is int or (isinstance(label, str) and label.strip().isdecimal())):
        number = int(label)
    if number is None or not 0 <= number < classes:
        raise DataError(
            f"{path} has the label {str(label)[:40]!r}, which is not a class of the model; "
            f"give a name it knows, or a number from 0 to {classes - 1}"
        )
    return number


def _by_name(labels: Sequence[str]) -> dict[str, int | None]:
    """Plain name to class number: the whole label and each part between commas; None if two classes share it."""
    found: dict[str, int | None] = {}
    for parts in (lambda label: label.split(","), lambda label: [label]):  # a whole label wins over a part of another
        own: dict[str, int | None] = {}
        for number, label in enumerate(labels):
            for name in {_plain(part) for part in parts(label)}:
                own[name] = None if name in own else number
        found |= own
    return found


def _plain(name: str) -> str:
    return " ".join(name.casefold().replace("_", " ").replace("-", " ").split())


def _file(name: str) -> str:
    return name.replace("\\", "/").rpartition("/")[2]
