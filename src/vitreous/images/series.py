"""Series: images taken together, as the user names them or as their EXIF, folders, numbers and features suggest.

Images of one series are alike. If some train a model and others test it, the score is too high for new images.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vitreous.errors import DataError
from vitreous.images import perceptual_hash, splits
from vitreous.images.health.duplicates import facts_and_twins
from vitreous.images.health.facts import Facts
from vitreous.images.health.scan import Progress
from vitreous.images.imageset import ImageSet

Places = NDArray[np.int64]

FOLDER, EXIF_DAY = "folder", "exif-day"  # words of group_by; a column of that name wins
DAY, HOUR = 86_400, 3_600  # seconds
RUN_LENGTH = 10  # images with neighbouring file numbers that count as a series; a larger gap ends it too
MIN_SHARE = 0.5  # of the images must lie in series before these are worth a look
MIN_SERIES = 3  # of a class, lest leaving one out take most of its training images
MAX_COMPARED = 5_000  # images whose features are compared pair by pair
ROWS_COMPARED = 1_024  # at once
LAST_NUMBER = re.compile(r"(.*?)(\d{1,18})\D*\Z", re.DOTALL)


@dataclass(frozen=True, eq=False)
class Guess:
    """Series that the images may lie in."""

    groups: Places  # of each image; equal numbers lie in one series
    by: str  # what was looked at, for people
    option: str  # the value of `group_by` for series like these; empty if none gives them


# ---------------------------------------------------------------------------------------------------- as they are named


def groups_by(
    data: ImageSet, group_by: str, columns: dict[str, Sequence[str]], progress: Progress | None = None
) -> tuple[Places, str]:
    """The group of each image by a column, its folder, its EXIF day, or a regular expression on its path; and a note.

    A regular expression gives its first capture group, else the whole match. An image without a value stands alone.
    """
    if group_by in columns:
        values: list[str | None] = [value or None for value in columns[group_by]]
        how = f"column {group_by!r}"
    elif group_by == FOLDER:
        values, how = list(_folders(data)), "folder"
    elif group_by == EXIF_DAY:
        values, how = _days(data, progress), "EXIF day"
    else:
        values, how = _matches(data, group_by, columns), f"{group_by!r} on the path"
    groups, count = _numbered(values)
    alone = sum(value is None for value in values)
    return groups, f"{count:,} groups by {how}" + (f", {alone:,} images without one" if alone else "")


def _folders(data: ImageSet) -> list[str]:
    return [name.rpartition("/")[0] for name in data.names]


def _days(data: ImageSet, progress: Progress | None) -> list[str | None]:
    taken = facts_and_twins(data, progress)[0]["taken"]
    if not taken.any():
        raise DataError(
            f"no image of {data.path} tells its day by EXIF; group by {FOLDER}, a column or a regular expression"
        )
    return [str(second // DAY) if second else None for second in taken.tolist()]


def _matches(data: ImageSet, group_by: str, columns: dict[str, Sequence[str]]) -> list[str | None]:
    try:
        pattern = re.compile(group_by)
    except re.error as error:
        has = f" (columns: {', '.join(columns)})" if columns else ""
        raise DataError(f"group_by={group_by!r} is neither a column nor a regular expression: {error}{has}") from None
    names = data.names
    found = [pattern.search(name) for name in names]
    values = [None if m is None else (m[1] if pattern.groups else m[0]) for m in found]
    if not any(values):
        has = f", nor is it one of the columns {', '.join(columns)}" if columns else ""
        raise DataError(f"group_by={group_by!r} matches no path, such as {names[0]}{has}; correct it")
    return [value or None for value in values]


def _numbered(values: Sequence[object | None]) -> tuple[Places, int]:
    """For each image the place of the first with its value, and how many values there are; None stands alone."""
    first: dict[object, int] = {}
    groups = [i if value is None else first.setdefault(value, i) for i, value in enumerate(values)]
    return np.array(groups, np.int64), len(first)


# --------------------------------------------------------------------------------------------------------- as they seem


def guesses(data: ImageSet) -> list[Guess]:
    """Possible series, by EXIF, folders and file numbers. No image is read that was not read before."""
    found = []
    if data.scan.last is not None:
        found.append(Guess(_sessions(facts_and_twins(data)[0]), "the same camera and hour", EXIF_DAY))
    found.append(Guess(_subfolders(data), "subfolders", FOLDER))
    found.append(Guess(_runs(data), "neighbouring file numbers", ""))
    return [guess for guess in found if in_series(guess.groups).mean() >= MIN_SHARE]


def in_series(groups: Places) -> NDArray[np.bool_]:
    """Whether each image shares its group with another."""
    _, number, sizes = np.unique(groups, return_inverse=True, return_counts=True)
    return sizes[number] > 1


def _sessions(facts: Facts) -> Places:
    """Photos of one camera, the last within an hour of the first."""
    values: list[tuple[int, int] | None] = [None] * len(facts)
    camera, taken = facts["camera"].tolist(), facts["taken"].tolist()
    last, begun = 0, 0
    for i in sorted((i for i in range(len(facts)) if camera[i] and taken[i]), key=lambda i: (camera[i], taken[i])):
        if camera[i] != last or taken[i] - begun > HOUR:
            last, begun = camera[i], taken[i]
        values[i] = last, begun
    return _numbered(values)[0]


def _subfolders(data: ImageSet) -> Places:
    """Folders of a class that has several; a class in one folder has no series."""
    folders = _folders(data)
    of_class: dict[object, set[str]] = {}
    kinds = _kinds(data)
    for kind, folder in zip(kinds, folders, strict=True):
        of_class.setdefault(kind, set()).add(folder)
    is_many = [len(of_class[kind]) > 1 for kind in kinds]
    return _numbered([folder if many else None for folder, many in zip(folders, is_many, strict=True)])[0]


def _runs(data: ImageSet) -> Places:
    """Up to RUN_LENGTH images of a class and folder whose file numbers follow each other."""
    numbered: dict[object, list[tuple[int, int]]] = {}
    for i, (kind, name) in enumerate(zip(_kinds(data), data.names, strict=True)):
        stem = name.rpartition(".")[0] or name
        if (match := LAST_NUMBER.match(stem)) is not None:
            numbered.setdefault((kind, match[1]), []).append((int(match[2]), i))
    groups = np.arange(len(data))
    for files in numbered.values():
        first, count, before = 0, RUN_LENGTH, 0
        for number, i in sorted(files):
            if count == RUN_LENGTH or number - before > RUN_LENGTH:
                first, count = i, 0
            groups[i], count, before = first, count + 1, number
    return groups


def _kinds(data: ImageSet) -> list[object]:
    """The label of each image; several count as one."""
    return [tuple(row) for row in data.labels.tolist()] if data.has_many_labels else data.labels.tolist()


def alike(rows: NDArray[np.floating], labels: Places, copies: Places) -> Guess | None:
    """Images of one class whose features agree more, beyond their class's mean, than any two of different classes.

    Pairs from different classes show how alike images are by chance: none were taken together, except copies (the same
    number in `copies`).  rows: N D.
    """
    if len(rows) > MAX_COMPARED or len(np.unique(labels)) < 2:
        return None
    z = (rows - rows.mean(0)) / (rows.std(0) + 1e-5)
    for label in np.unique(labels):
        z[labels == label] -= z[labels == label].mean(0)
    z /= np.linalg.norm(z, axis=1, keepdims=True).clip(1e-9)
    parts = [slice(begin, begin + ROWS_COMPARED) for begin in range(0, len(z), ROWS_COMPARED)]

    def compared(part: slice) -> tuple[NDArray[np.floating], NDArray[np.bool_]]:
        return z[part] @ z.T, labels[part, None] == labels

    chance = 0.0
    for part in parts:
        cosine, is_same = compared(part)
        chance = max(chance, float(cosine[~is_same & (copies[part, None] != copies)].max(initial=0.0)))
    pairs = []
    for part in parts:
        cosine, is_same = compared(part)
        pairs.append(np.argwhere(is_same & (cosine > chance)) + np.array([part.start, 0]))
    groups = perceptual_hash.groups(np.concatenate(pairs), len(z))
    return Guess(groups, "features much alike", "") if in_series(groups).any() else None


def joined(guess: Guess, copies: Places, labels: Places) -> Places | None:
    """The guess with copies joined; a class with too few series goes back to copies. None if no class has enough."""
    copies = splits.linked(copies)[:, 0]
    groups = perceptual_hash.groups(np.concatenate([splits.linked(guess.groups), splits.linked(copies)]), len(labels))
    for label in np.unique(labels):
        here = labels == label
        if len(np.unique(groups[here])) < MIN_SERIES:
            groups = np.where(here, copies, groups)
    has_series = in_series(groups) & ~in_series(copies)
    return groups if has_series.any() else None


def shuffled(groups: Places, labels: Places, seed: int) -> Places:
    """Random groups with as many images of each class: they show what leaving that many out at once does by itself."""
    draw, found = np.random.default_rng(seed), groups.copy()
    for label in np.unique(labels):
        here = np.flatnonzero(labels == label)
        found[here] = groups[draw.permutation(here)]
    return found
