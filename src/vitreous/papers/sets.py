"""The sets of images that experiments name, each with its public source and its content id (`data.toml`)."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from vitreous.errors import DataError
from vitreous.evaluation.learning_curve import first_images
from vitreous.images import open_data
from vitreous.images.imageset import TRAIN, ImageSet
from vitreous.papers.experiment import Cell, walk
from vitreous.papers.shared import share_copies, shared_view
from vitreous.papers.views import viewed

DATA_FILE = Path(__file__).parent / "data.toml"


@dataclass(frozen=True)
class NamedSet:
    """A set by the name that cells use."""

    name: str
    places: tuple[str, ...]  # names or patterns inside the folder of --data; the first match counts
    about: str
    source: str
    licence: str
    build: str  # how a stranger makes the same files
    content_id: str  # of the copy that our results used
    is_rebuildable: bool
    is_embedded: bool = False  # part of the package: needs no --data


def is_other_copy(name: str, content_id: str) -> bool:
    """True if a copy of the set is not the one of the committed results."""
    ours = named_sets()[name].content_id if name in named_sets() else ""
    return bool(ours) and content_id != ours


@cache
def named_sets() -> Mapping[str, NamedSet]:
    body = tomllib.loads(DATA_FILE.read_text())
    return {name: NamedSet(name, **{**row, "places": tuple(row["places"])}) for name, row in body.items()}


def plain_name(name: str) -> str:
    """The set behind `cifar10:grey`, a view of it."""
    return name.partition(":")[0]


@dataclass(frozen=True)
class Sets:
    """Opens sets by name.  folder: has the sets that are not embedded.  kept: where processes share what they found.

    `tiny-imagenet:grey` is a view: the same images with other pixels, see `views`.
    """

    folder: str | None = None
    kept: Path | None = None

    def place(self, name: str) -> str:
        """What `images.open` takes, or one line that says what is missing."""
        known, name = named_sets(), plain_name(name)
        if name not in known:
            raise DataError(f"there is no set {name!r} in data.toml; there are: {', '.join(known)}")
        wanted = known[name]
        if wanted.is_embedded:
            return wanted.places[0]
        if self.folder is None:
            raise DataError(f"the set {name} ({wanted.about}) is not in the package; give its folder: --data FOLDER")
        for pattern in wanted.places:
            if any(Path(self.folder).glob(pattern)):
                return str(Path(self.folder) / pattern)
        names = " or ".join(wanted.places)
        raise DataError(f"{self.folder} has no {names}, the set {name}; how to make it: {wanted.build}")

    def open(self, name: str) -> ImageSet:
        return _opened(self.place(name), name.partition(":")[2], self.kept)

    def copies(self, cells: Iterable[Cell]) -> dict[str, str]:
        """The content id of each named set that is here and that the cells, or the trainings they need, read."""
        names = {plain_name(str(cell.options["data"])) for cell in walk(cells) if "data" in cell.options}
        found = {}
        for name in sorted(names & set(named_sets())):
            with suppress(DataError):
                found[name] = self.open(name).content_id
        return found

    def part(self, options: Mapping[str, Any], seed: int) -> ImageSet:
        """The set of a cell: `data`, its first `images` training images (nested and balanced), in `classes`.

        draw: the seed that decides which images come first; by default the cell's own, so that every seed draws others.
        """
        data = self.open(options["data"])
        if (classes := options.get("classes")) is not None:
            data = open_data.open(data, classes=tuple(classes))
        count, there = options.get("images"), data.split_counts.get(TRAIN, 0)
        if count is not None and count > there:
            raise DataError(
                f"{data.path} has {there:,} training images, too few for the grid; "
                f"give a set of at least {count:,}, or --scale laptop"
            )
        return data if count is None else first_images(data, int(count), int(options.get("draw", seed)))


@cache
def _opened(place: str, view: str, folder: Path | None) -> ImageSet:
    if view:
        origin = _opened(place, "", folder)
        return viewed(origin, view) if folder is None else shared_view(origin, view, folder)
    data = open_data.open(place)
    if folder is not None:
        share_copies(data, folder)
    return data
