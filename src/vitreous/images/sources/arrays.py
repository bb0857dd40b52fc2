""".npz and .npy arrays: `x_train y_train x_test y_test`, `train_images train_labels …`, `images labels`."""

from __future__ import annotations

import re
import zipfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.lib import format as npy

from vitreous.errors import DataError
from vitreous.images.sources.labels import Labels, by_name, by_number, split_in
from vitreous.images.sources.paths import Place, cannot_read
from vitreous.images.sources.source import FoundImages, SourceKind
from vitreous.images.sources.stack import Array, Stack, stack_of

PIXEL_WORDS = {"x", "images", "image", "imgs", "data", "pixels", "pictures", "features", "arr0"}
LABEL_WORDS = {"y", "labels", "label", "targets", "target", "classes", "t", "arr1"}
NAME_KEYS = ("class_names", "classes", "label_names", "names", "categories")


def recognises(place: Place) -> bool:
    if place.folder is None:
        return len(place.files) == 1 and bool(place.ending(".npz", ".npy"))
    return bool(place.ending(".npy") or len(place.ending(".npz")) == 1) and not place.has_image_folders


def open_arrays(place: Place) -> FoundImages:
    where = _members(place)
    names = _class_names(where)
    pairs = _pairs(where, place.text)
    source, own_splits, notes = stack_of(load, [(split, *where[pixels], pixels) for split, pixels, _ in pairs])
    labels = []
    for part, (_, pixels, answers) in zip(source.parts, pairs, strict=True):
        found = load(*where[answers]) if answers else np.full(part.count, -1)
        if len(found) != part.count:
            raise DataError(
                f"{place.text} has {part.count:,} images in {pixels} and {len(found):,} labels in {answers}"
            )
        labels.append(found)
    numbers, classes = _labels(labels, names, place.text, source)
    if not any(answers for _, _, answers in pairs):
        notes.append("no labels were found beside the images")
    return FoundImages(
        source, numbers, classes, own_splits, source.fingerprints(), tuple(notes), channels=source.channels
    )


def load(file: str, key: str) -> Array:
    """Read an array, mapped from disk unless compressed. Never a pickle."""
    try:
        if not key:
            return np.load(file, mmap_mode="r", allow_pickle=False)
        if (mapped := _map_member(file, f"{key}.npy")) is not None:
            return mapped
        with np.load(file, allow_pickle=False) as archive:
            return archive[key]
    except OSError as error:
        raise cannot_read(file, error) from None
    except MemoryError:
        raise
    except Exception as error:  # numpy and zipfile raise many kinds of error on damage
        why = (
            "holds Python objects, which are not read" if "pickle" in str(error).lower() else "is cut short or damaged"
        )
        raise DataError(f"{file}{f' ({key})' if key else ''} {why}; write plain arrays of numbers") from None


def _map_member(file: str, member: str) -> Array | None:
    """A stored (not compressed) member of an .npz lies in it as an .npy file does on a disk."""
    with zipfile.ZipFile(file) as archive:
        entry = archive.getinfo(member)
        if entry.compress_type != zipfile.ZIP_STORED or entry.flag_bits & 1:
            return None
    with Path(file).open("rb") as handle:
        handle.seek(entry.header_offset + 26)
        lengths = handle.read(4)
        start = entry.header_offset + 30 + int.from_bytes(lengths[:2], "little") + int.from_bytes(lengths[2:], "little")
        handle.seek(start)
        if npy.read_magic(handle) != (1, 0):
            return None
        shape, fortran, dtype = npy.read_array_header_1_0(handle)
        if dtype.hasobject or not all(shape):
            return None
        offset = handle.tell()
    if offset - start + dtype.itemsize * int(np.prod(shape)) != entry.file_size:
        raise ValueError("the member is cut short")
    return np.memmap(file, dtype, "r", offset, shape, "F" if fortran else "C")


def _members(place: Place) -> dict[str, tuple[str, str]]:
    """Key to (file, key in the file); an .npy file is called by its stem."""
    found: dict[str, tuple[str, str]] = {}
    if npz := place.ending(".npz"):
        try:
            with zipfile.ZipFile(npz[0]) as archive:
                keys = [name.removesuffix(".npy") for name in archive.namelist() if name.endswith(".npy")]
        except (zipfile.BadZipFile, NotImplementedError, ValueError, OSError):
            raise DataError(f"{npz[0]} is not a whole .npz file (cut short, or damaged); write it again") from None
        found |= {key: (npz[0], key) for key in sorted(keys)}
    else:
        files = place.ending(".npy")
        if place.folder is None:  # its labels are in a file beside it
            one = Path(files[0])
            files = sorted({str(one), *(str(p) for p in one.parent.glob("*.npy") if _label_twin(one.stem, p.stem))})
        found |= {Path(file).stem: (file, "") for file in files}
    return found


def _label_twin(pixels: str, other: str) -> bool:
    """True if `other` names the labels of `pixels`: x_train and y_train, train and train_labels."""
    words, others = _words(pixels), _words(other)
    rest = [word for word in words if word not in PIXEL_WORDS]
    return any(word in LABEL_WORDS for word in others) and [w for w in others if w not in LABEL_WORDS] == rest


def _words(key: str) -> list[str]:
    key = re.sub(r"^arr_(\d)$", r"arr\1", key)
    return [w for w in re.split(r"[^a-z0-9]+", re.sub(r"(?<=[a-z])(?=[A-Z])", "_", key).lower()) if w]


def _pairs(where: dict[str, tuple[str, str]], what: str) -> list[tuple[str, str, str | None]]:
    """(split, key of pixels, key of labels)."""
    pixels = {key for key in where if key not in NAME_KEYS and load(*where[key]).ndim in (3, 4)}
    labels = {key for key in where if key not in pixels and (key not in NAME_KEYS or key == "classes")}
    labels = {key for key in labels if load(*where[key]).ndim in (1, 2)}
    if not pixels:
        raise DataError(
            f"{what} holds no images (N×H×W or N×H×W×C of numbers); it has: {', '.join(where) or 'nothing'}"
        )
    found = []
    for key in sorted(pixels):
        split = split_in("-".join(_words(key))) or ""
        same = [
            k for k in sorted(labels) if (split_in("-".join(_words(k))) or "") == split and set(_words(k)) & LABEL_WORDS
        ]
        twins = [k for k in same if _label_twin(key, k)] or same
        found.append((split, key, twins[0] if twins else None))
    if len(found) > 1 and len({split for split, _, _ in found}) < len(found):
        raise DataError(
            f"{what} holds several arrays of images ({', '.join(sorted(pixels))}); call them train and test"
        )
    return found


def _class_names(where: dict[str, tuple[str, str]]) -> list[str] | None:
    for key in NAME_KEYS:
        if key in where:
            names = load(*where[key])
            if names.ndim == 1 and names.dtype.kind in "US":
                return [n.decode("utf-8", "replace") if isinstance(n, bytes) else str(n) for n in names.tolist()]
    return None


def _labels(
    found: Sequence[Array], names: list[str] | None, what: str, source: Stack
) -> tuple[Labels, tuple[str, ...]]:
    """Numbers, names, one column, one-hot rows, or several 0 and 1 in a row."""
    several = [x.reshape(len(x)) if x.ndim == 2 and x.shape[1] == 1 else x for x in map(np.asarray, found)]
    if len({x.shape[1:] for x in several}) > 1:
        raise DataError(f"{what} labels its splits in different shapes; give all of them class numbers")
    labels = np.concatenate(several)
    if labels.dtype.kind in "US":
        return by_name([v.decode("utf-8", "replace") if isinstance(v, bytes) else str(v) for v in labels.tolist()])
    if labels.dtype.kind not in "uibf" or not np.array_equal(labels, np.round(labels)):
        raise DataError(f"{what} has labels of {labels.dtype} that are not class numbers; write whole numbers or names")
    if labels.ndim == 1:
        return by_number(labels.astype(np.int64), names, what, source.name)
    if not np.isin(labels, (0, 1)).all():
        raise DataError(f"{what} has labels of shape {labels.shape} that are not 0 or 1; write class numbers")
    classes = names or [str(i) for i in range(labels.shape[1])]
    if len(classes) != labels.shape[1]:
        raise DataError(
            f"{what} has {labels.shape[1]} columns of labels and {len(classes)} class names; make them agree"
        )
    if (labels.sum(1) == 1).all():  # one-hot
        return by_number(labels.argmax(1), classes, what, source.name)
    return labels.astype(np.int64), tuple(classes)


ARRAYS = SourceKind(
    "arrays", ".npz or .npy arrays: x_train y_train x_test y_test, or images labels", recognises, open_arrays
)
