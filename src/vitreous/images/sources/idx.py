"""IDX files, as MNIST and its family come: `train-images-idx3-ubyte.gz` beside `train-labels-idx1-ubyte.gz`."""

from __future__ import annotations

import gzip
import re
import zlib
from pathlib import Path

import numpy as np

from vitreous.errors import DataError
from vitreous.images.sources.labels import by_number, split_in
from vitreous.images.sources.paths import Place, cannot_read, file_name, open_file
from vitreous.images.sources.source import FoundImages, SourceKind
from vitreous.images.sources.stack import Array, stack_of

IDX_NAME = re.compile(r"(?P<stem>.*)(?P<what>images|labels)(?P<rest>[-.]idx(?P<axes>\d)-ubyte(\.gz)?)", re.IGNORECASE)
UBYTE = 8  # the type's code in the magic number
MAX_IDX_BYTES = 8 << 30  # bytes


def recognises(place: Place) -> bool:
    if place.folder is not None and place.has_image_folders:
        return False
    files = [str(place.folder / name) for name in place.names] if place.folder else list(place.files)
    found = [IDX_NAME.fullmatch(file_name(file)) for file in files]
    return any(found) if place.folder else bool(files) and all(found)


def open_idx(place: Place) -> FoundImages:
    files = [str(place.folder / name) for name in place.names] if place.folder else _with_twins(place.files)
    named = {file: match for file in files if (match := IDX_NAME.fullmatch(file_name(file)))}
    pixels = sorted(file for file, match in named.items() if match["what"].lower() == "images")
    stems = {_set(named[file]["stem"]) for file in pixels}
    if len(stems) > 1:
        raise DataError(
            f"{place.text} holds IDX files of {len(stems)} sets ({', '.join(sorted(stems))}); name one by a pattern"
        )
    pieces: list[tuple[str, str, str, str]] = []
    for file in pixels:
        split = split_in(named[file]["stem"]) or ""
        if split in [piece[0] for piece in pieces]:
            raise DataError(f"{place.text} holds {file_name(file)} twice (.gz and not); keep one of them")
        pieces.append((split, file, "", file_name(file)))
    if not pieces:
        raise DataError(f"{place.text} holds IDX labels but no images; add the -images-idx3-ubyte file")
    source, own_splits, notes = stack_of(load, pieces)
    labels = [_labels(part.file, named, part.count) for part in source.parts]
    numbers, classes = by_number(np.concatenate(labels), None, place.text, source.name)
    return FoundImages(
        source, numbers, classes, own_splits, source.fingerprints(), tuple(notes), channels=source.channels
    )


def load(file: str, key: str = "") -> Array:
    """The array of an IDX file: magic 0 0 TYPE AXES, one big-endian length for each axis, then bytes."""
    try:
        with open_file(file) as handle:
            raw = gzip.GzipFile(fileobj=handle).read(MAX_IDX_BYTES) if file.lower().endswith(".gz") else handle.read()
    except (EOFError, zlib.error, gzip.BadGzipFile):
        raise DataError(f"{file} is cut short or damaged; fetch it again") from None
    except OSError as error:
        raise cannot_read(file, error) from None
    axes = raw[3] if len(raw) > 3 else 0
    start = 4 + 4 * axes
    if raw[:2] != b"\0\0" or not 1 <= axes <= 4 or raw[2] != UBYTE or len(raw) < start:
        raise DataError(f"{file} is not an IDX file of bytes (magic {raw[:4].hex() or 'missing'}); fetch it again")
    shape = tuple(int(n) for n in np.frombuffer(raw, ">u4", axes, 4))
    if len(raw) - start != int(np.prod(shape, dtype=object)):
        raise DataError(f"{file} says {'×'.join(map(str, shape))} and holds {len(raw) - start:,} bytes; fetch it again")
    return np.frombuffer(raw, np.uint8, offset=start).reshape(shape)


def _labels(pixels: str, named: dict[str, re.Match[str]], count: int) -> Array:
    stem = named[pixels]["stem"].lower()
    twins = [f for f, m in named.items() if m["what"].lower() == "labels" and m["stem"].lower() == stem]
    if not twins:
        raise DataError(f"{pixels} has no labels beside it; add {named[pixels]['stem']}labels-idx1-ubyte")
    labels = load(twins[0])
    if labels.shape != (count,):
        raise DataError(f"{pixels} has {count:,} images and {twins[0]} has {len(labels):,} labels; fetch them again")
    return labels.astype(np.int64)


def _with_twins(files: tuple[str, ...]) -> list[str]:
    """The files that were named, and the labels that lie beside named images."""
    found = set(files)
    for file in files:
        match = IDX_NAME.fullmatch(file_name(file))
        if match and match["what"].lower() == "images":
            for beside in Path(file).parent.iterdir():
                other = IDX_NAME.fullmatch(beside.name)
                if other and other["what"] == "labels" and other["stem"] == match["stem"]:
                    found.add(str(beside))
    return sorted(found)


def _set(stem: str) -> str:
    """The set that a file is part of: emnist-letters for `emnist-letters-train-`, mnist for `train-`."""
    return "-".join(word for word in re.split(r"[^a-z0-9]+", stem.lower()) if word and not split_in(word)) or "mnist"


IDX = SourceKind("idx", "IDX files of the MNIST family, .gz too", recognises, open_idx)
