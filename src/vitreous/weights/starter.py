"""`starter`: a small model of our own inside the package, so that nobody without a network begins from nothing.

Made by benchmarks/make_starter.py. It ships only if benchmarks/starter_worth.py says that it earns its place; without
the file, everything here says so.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from vitreous.errors import CheckpointError
from vitreous.weights.tensor_files import read_json

__all__ = [
    "FROM_SCRATCH_ABOVE",
    "MAX_STARTER_BYTES",
    "STARTER_CARD",
    "STARTER_FILE",
    "STARTER_NAME",
    "card",
    "file",
    "is_clear",
    "is_meant",
    "is_there",
    "network",
    "size_for",
    "suits",
    "terms",
    "word",
]

STARTER_NAME = "starter"
STARTER_FILE = Path(__file__).with_name("starter.safetensors")
STARTER_CARD = Path(__file__).with_name("starter.json")  # how it was made, of what, and what packing cost
MAX_STARTER_BYTES = 3_900_000  # bytes of the file
FROM_SCRATCH_ABOVE = 20_000  # training images from which a network of its own learns more than the starter knows
Z99 = 2.576  # standard errors: 99 %
FROZEN_IMAGE_SIZE = 96  # pixels at which its frozen features tell more than at the 64 it has learned at
MIN_GAIN = 0.1  # of the way from chance to all right, that an estimate must have come at least


def is_there() -> bool:
    """Whether this package carries one."""
    return STARTER_FILE.is_file()


def file() -> Path:
    """Its file, or one line that says there is none."""
    if not is_there():
        raise CheckpointError(
            "this vitreous carries no starter; give a file or folder of weights, hf:OWNER/NAME, or a catalog name"
        )
    return STARTER_FILE


def card() -> dict[str, Any]:
    """Command, seeds, terms of the data, accuracy before and after packing, machine; empty where there is none."""
    return read_json(STARTER_CARD)


def word() -> str:
    """What means it and nothing else: its name, or its file where a path of that name lies here, which would win."""
    return str(file()) if Path(STARTER_NAME).exists() else STARTER_NAME


def is_meant(source: str) -> bool:
    """Whether `source` names it."""
    return source == str(STARTER_FILE) or (source == STARTER_NAME and not Path(STARTER_NAME).exists())


def terms() -> str:
    """Of the pictures it has learned from: for whoever uses it, or a model begun from it."""
    return str(card().get("data", {}).get("terms", ""))


def network() -> str:
    """In the words of the catalog."""
    return str(card().get("model", STARTER_NAME))


def suits(images: int, channels: int) -> bool:
    """Whether a training on so many images, without a word about weights, should try to begin from the starter.

    `--weights none` does not ask. What remains is the few-shot estimate on the images themselves: `is_clear`.
    """
    return is_there() and channels == 3 and images < FROM_SCRATCH_ABOVE


def size_for(pictures: tuple[int, int]) -> int | None:
    """Pixels to begin with, for pictures of this size; None: its own.

    300 photos, five draws, a solved head: 64 pixels 66.3 % of imagenette and 68.1 % of five cat breeds, 96 pixels 70.8
    and 73.3 %, for 2.4 times the work; 128 pixels 71.0 and 74.7 %, for 4.4 times (benchmarks/starter_sizes.py).
    """
    return FROZEN_IMAGE_SIZE if min(pictures) >= FROZEN_IMAGE_SIZE else None


def is_clear(right: int, seen: int, chance: float) -> bool:
    """Whether a few-shot estimate, `right` of `seen` images, beats chance clearly.

    chance: the share of the most frequent class.  Wilson's 99 % interval must lie above it, and the estimate a tenth of
    the way from chance to all right.
    """
    if seen < 1:
        return False
    share, z = right / seen, Z99
    centre = share + z**2 / (2 * seen)
    half = z * (share * (1 - share) / seen + z**2 / (4 * seen**2)) ** 0.5
    lowest = (centre - half) / (1 + z**2 / seen)
    return lowest > chance and share - chance >= MIN_GAIN * (1 - chance)
