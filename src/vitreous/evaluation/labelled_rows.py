"""Rows of features with a class number each, −1 for none: what every probe checks first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitreous.errors import DataError

Rows = NDArray[np.int64]


def checked(x: NDArray[Any], y: NDArray[Any], classes: int, what: str = "") -> tuple[NDArray[Any], Rows]:
    """Check that features N D and labels N fit together.  what: train or test, for the error."""
    rows, labels = np.asanyarray(x), np.asarray(y)
    of = f"{what} " if what else ""
    if rows.ndim != 2:
        raise DataError(f"{of}features of shape {rows.shape} are not rows of numbers; give N x D, one tap pooled")
    if labels.ndim != 1:
        raise DataError(f"{of}labels of shape {labels.shape} name several classes a row; give one class number each")
    if len(rows) != len(labels):
        raise DataError(f"there are {len(rows)} {of}rows and {len(labels)} labels; give one label for each row")
    if len(labels) and (labels.max() >= classes or labels.min() < -1):
        raise DataError(f"{of}labels from {labels.min()} to {labels.max()} are not those of {classes} classes")
    for begin in range(0, len(rows), 4096):  # never loads a mapped file whole
        is_fine = np.isfinite(rows[begin : begin + 4096]).all(1)
        if not is_fine.all():
            bad = begin + int(np.flatnonzero(~is_fine)[0])
            raise DataError(f"{of}features are not finite, first in row {bad}; mend the model, or take that row out")
    return rows, labels.astype(np.int64)


def count_classes(classes: int | Sequence[str]) -> int:
    """The number of classes, given as a number or as names."""
    return classes if isinstance(classes, int) else len(classes)


def known_rows(labels: Rows) -> Rows:
    """The rows that have a label; refuses labels of fewer than 2 classes."""
    kept = np.flatnonzero(labels >= 0)
    if len(np.unique(labels[kept])) < 2:
        raise DataError("the labels name fewer than 2 classes; give rows of at least 2")
    return kept


def is_constant(rows: NDArray[Any]) -> bool:
    """True if all rows are equal."""
    return all((rows[begin : begin + 4096] == rows[:1]).all() for begin in range(0, len(rows), 4096))


def refuse_constant(rows: NDArray[Any]) -> None:
    if is_constant(rows):
        raise DataError("train features are the same in every row, so nothing can be told apart; read another tap")


def ranked_in_class(labels: NDArray[Any], key: NDArray[Any]) -> tuple[Rows, Rows, Rows]:
    """Rows by class and key; the rank of each within its class; the size of its class."""
    order = np.lexsort((key, labels))
    _, starts, sizes = np.unique(labels[order], return_index=True, return_counts=True)
    return order, np.arange(len(order)) - np.repeat(starts, sizes), np.repeat(sizes, sizes)
