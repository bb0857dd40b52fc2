"""Labels, from what people write: class names become numbers; words name splits, and columns of a table."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitreous.errors import DataError
from vitreous.images.imageset import TEST, TRAIN

Labels = NDArray[np.int64]

VAL = "val"
SPLIT_WORDS = {
    TRAIN: ("train", "training", "trainval", "trn"),
    VAL: ("val", "valid", "validation", "validate", "validating", "dev", "devel", "development", "eval", "evaluation"),
    TEST: ("test", "testing", "tests", "tst", "t10k"),
}
SPLIT_OF_WORD = {word: split for split, words in SPLIT_WORDS.items() for word in words}
DECORATION = {"set", "data", "dataset", "images", "image", "img", "imgs", "split", "pictures", "photos", "files"}
_glued = re.compile(rf"({'|'.join(sorted(SPLIT_OF_WORD, key=len, reverse=True))})(set|data|images|imgs|split)?s?\d*")

PATH_COLUMNS: tuple[str, ...] = ("path", "file", "filename", "filepath", "image", "imagepath", "imagefile")
PATH_COLUMNS += ("img", "imgpath", "imageid", "id")
LABEL_COLUMNS: tuple[str, ...] = ("label", "labels", "class", "classes", "classname", "category", "categories", "y")
LABEL_COLUMNS += ("target", "targets", "tag", "tags", "cls", "species", "breed", "finelabel", "classid", "labelid")
SPLIT_COLUMNS = ("split", "set", "subset", "partition", "phase", "usage")


def by_name(names: Sequence[str | None]) -> tuple[Labels, tuple[str, ...]]:
    """Class numbers in the order of the sorted names; whole numbers are sorted as numbers. None is −1."""
    classes = sorted({name for name in names if name is not None}, key=_order(names))
    number = {name: i for i, name in enumerate(classes)} | {None: -1}
    return np.array([number[name] for name in names], np.int64), tuple(classes)


def by_names(several: Sequence[Sequence[str]], classes: Sequence[str] | None = None) -> tuple[Labels, tuple[str, ...]]:
    """The same for images with several names: N × K of 0 and 1."""
    flat = [name for names in several for name in names]
    classes = sorted(set(flat), key=_order(flat)) if classes is None else list(classes)
    number = {name: i for i, name in enumerate(classes)}
    labels = np.zeros((len(several), len(classes)), np.int64)
    for row, names in zip(labels, several, strict=True):
        row[[number[name] for name in names]] = 1
    return labels, tuple(classes)


def by_number(
    numbers: NDArray[np.integer], classes: Sequence[str] | None, what: str, name: Callable[[int], str]
) -> tuple[Labels, tuple[str, ...]]:
    """Labels that are already class numbers; without names, a class is named by its number."""
    labels = numbers.astype(np.int64)
    if classes is None:
        classes = [str(i) for i in range(int(labels.max(initial=-1)) + 1)]
    wrong = np.flatnonzero((labels < -1) | (labels >= len(classes)))
    if len(wrong):
        first = int(wrong[0])
        raise DataError(
            f"{what}: the label {labels[first]} of {name(first)} is outside the {len(classes)} classes "
            f"({len(wrong):,} such labels); correct it, or the list of class names"
        )
    return labels, tuple(classes)


def by_value(
    values: Sequence[Any], classes: Sequence[str] | None, what: str, name: Callable[[int], str]
) -> tuple[Labels, tuple[str, ...]]:
    """Class numbers if all values are whole numbers, else names; None is −1."""
    if all(isinstance(value, int) for value in values if value is not None):
        numbers = np.array([-1 if value is None else value for value in values], np.int64)
        return by_number(numbers, classes, what, name)
    return by_name([None if value is None else str(value) for value in values])


def _order(names: Iterable[str | None]) -> Callable[[str], Any] | None:
    numbers = all(re.fullmatch(r"-?\d{1,18}", name) for name in names if name is not None)
    return (lambda name: (int(name), name)) if numbers else None


def split_of(folder: str) -> str | None:
    """The split that a folder's whole name means: `Training_Set`, `val2017`, `images-test`; None for any other name."""
    words = re.split(r"[^a-z0-9]+", folder.casefold())
    words = [word for word in words if word not in DECORATION and not word.isdigit()]
    found = _glued.fullmatch(words[0]) if len(words) == 1 else None
    return SPLIT_OF_WORD[found[1]] if found else None


def split_in(stem: str) -> str | None:
    """The split named by a word of a file's name: `imagenette-128-train`, `data_val_003`; the last one counts."""
    words = re.split(r"[^a-z0-9]+", stem.casefold())
    found = [match for word in words if (match := _glued.fullmatch(word))]
    return SPLIT_OF_WORD[found[-1][1]] if found else None


def split_of_path(file: str) -> str:
    """The split that a file's name states, or its folder's; "" if neither does."""
    *_, folder, name = ["", *re.split(r"[/\\]", file)]
    return split_in(name.split(".")[0]) or split_of(folder) or ""


def without_split(stem: str) -> str:
    """A file's name without split and number: the set that it belongs to."""
    words = [word for word in re.split(r"[^a-z0-9]+", stem.casefold()) if word]
    while words and (re.fullmatch(r"\d+|[a-z]|of|part\d*", words[-1]) or _glued.fullmatch(words[-1])):
        words.pop()
    return "-".join(word for word in words if not _glued.fullmatch(word))


def column(name: str) -> str:
    """A column's name in the spelling of the lists here."""
    return re.sub(r"[^a-z0-9]", "", name.casefold())
