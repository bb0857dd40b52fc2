"""A set in a notebook's cell: how many images, of which classes, and what some of them look like."""

from __future__ import annotations

import numpy as np

from vitreous.errors import DataError
from vitreous.images.imageset import ImageSet
from vitreous.report.page import Bar, Block, Group, Number, Numbers, Picture, Pictures, Table, Text, fragment, picture

MAX_CLASSES_IN_CELL = 8
MAX_IMAGES_IN_CELL = 6
CELL_SIDE = 96  # pixels of a picture


def shown(data: ImageSet) -> str:
    """Counts, the largest classes, and one image of each of a few."""
    splits = [Number(f"{count:,}", f"in {name}") for name, count in data.split_counts.items()]
    classes = [Number(f"{len(data.classes):,}", "class" if len(data.classes) == 1 else "classes")]
    counts = Numbers([Number(f"{len(data):,}", "image" if len(data) == 1 else "images"), *splits, *classes])
    blocks: list[Block] = [Text(f"{data.path}: {data.kind}"), counts]
    largest = np.argsort(-data.counts, kind="stable").tolist()
    if largest and data.counts.max():
        rows = [[data.classes[k], Bar(f"{data.counts[k]:,}", data.counts[k] / data.counts.max())] for k in largest]
        left = len(rows) - MAX_CLASSES_IN_CELL
        more = f"and {left:,} more" if left > 0 else ""
        blocks.append(Table(["class", "images"], rows[:MAX_CLASSES_IN_CELL], caption=more))
    if len(data):
        blocks.append(Pictures([Group([_picture(data, i)]) for i in _places(data, largest)]))
    return fragment(blocks)


def _places(data: ImageSet, classes: list[int]) -> list[int]:
    """The first image of each of some classes; without classes, the first images."""
    has = data.labels if data.has_many_labels else data.labels[:, None] == np.arange(len(classes))
    firsts = [int(np.argmax(has[:, k] > 0)) for k in classes[:MAX_IMAGES_IN_CELL] if (has[:, k] > 0).any()]
    return list(dict.fromkeys(firsts)) or list(range(min(len(data), MAX_IMAGES_IN_CELL)))


def _picture(data: ImageSet, place: int) -> Picture:
    try:
        pixels = data.read(place)
    except (OSError, DataError):
        pixels = None
    return picture(pixels, data.name(place), side=CELL_SIDE)
