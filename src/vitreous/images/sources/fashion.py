"""`fashion`: the embedded part of Fashion-MNIST (Zalando, MIT licence), lossless, the same number of every class."""

from __future__ import annotations

import lzma
from pathlib import Path

import numpy as np

from vitreous.files import digest
from vitreous.images.sources.paths import Place
from vitreous.images.sources.source import FoundImages, SourceKind
from vitreous.images.sources.stack import Array, ArrayPart, Stack

FASHION_NAME = "fashion"
FASHION_FILE = Path(__file__).parents[1] / "embedded" / "fashion.xz"  # made by benchmarks/make_fashion.py
TRAIN_PER_CLASS, TEST_PER_CLASS = 870, 220
FASHION_CLASSES: tuple[str, ...] = ("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat")
FASHION_CLASSES += ("Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot")
# of all images as the file has them: class after class, train then test
PIXELS_SHA256 = "e733237804366348801f1c063c83be8f8558587a1b426b7f2be33f76f2ca4d73"


def recognises(place: Place) -> bool:
    return place.text == FASHION_NAME and place.folder is None and not place.files


def open_fashion(place: Place) -> FoundImages:
    train, test = 10 * TRAIN_PER_CLASS, 10 * TEST_PER_CLASS
    counts = {"train": train, "test": test}
    parts = tuple(ArrayPart(str(FASHION_FILE), split, split, count) for split, count in counts.items())
    labels = np.concatenate([np.arange(train) % 10, np.arange(test) % 10]).astype(np.int64)
    of_each = f"{TRAIN_PER_CLASS} of its 6,000 and {TEST_PER_CLASS} of its 1,000 of each class"
    own_splits = ["train"] * train + ["test"] * test
    prints = [digest(FASHION_FILE)] * (train + test)
    notes = (f"Fashion-MNIST (MIT licence): {of_each}",)
    return FoundImages(Stack(load, parts, 1), labels, FASHION_CLASSES, own_splits, prints, notes, channels=1)


def unpack() -> Array:
    """All images as the file has them, class after class, train then test: N × 28 × 28."""
    return np.frombuffer(lzma.decompress(FASHION_FILE.read_bytes()), np.uint8).reshape(-1, 28, 28).swapaxes(1, 2)


_unpacked: dict[str, Array] = {}


def load(file: str, key: str) -> Array:
    """Train or test with the classes in turn, so that every stretch is balanced: image i is of class i % 10."""
    if not _unpacked:
        pixels = unpack()
        train, test = pixels[: 10 * TRAIN_PER_CLASS], pixels[10 * TRAIN_PER_CLASS :]
        for name, part in (("train", train), ("test", test)):
            _unpacked[name] = np.ascontiguousarray(part.reshape(10, -1, 28, 28).swapaxes(0, 1)).reshape(-1, 28, 28)
    return _unpacked[key]


FASHION = SourceKind(FASHION_NAME, "the embedded part of Fashion-MNIST", recognises, open_fashion)
