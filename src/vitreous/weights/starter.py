"""`starter`: a small pretrained model inside the package, for users without a network.

benchmarks/make_starter.py makes it. It ships only if benchmarks/starter_worth.py finds it useful; without the file,
everything here says so.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from vitreous.errors import CheckpointError
from vitreous.weights.tensor_files import read_json

STARTER_NAME = "starter"
STARTER_FILE = Path(__file__).with_name("starter.safetensors")
STARTER_CARD = Path(__file__).with_name("starter.json")  # its data, its making, and the cost of packing
MAX_STARTER_BYTES = 3_900_000
FROM_SCRATCH_ABOVE = 20_000  # training images; with more, a network from scratch beats the starter
Z99 = 2.576  # standard errors of a 99 % interval
FROZEN_IMAGE_SIZE = 96  # pixels; frozen features are better at this size than at the 64 of pre-training
MIN_GAIN = 0.1  # an estimate must cover this share of the way from chance to 100 %


def is_there() -> bool:
    """True if this package contains the starter."""
    return STARTER_FILE.is_file()


def file() -> Path:
    """The starter's file, or a CheckpointError."""
    if not is_there():
        raise CheckpointError(
            "this vitreous carries no starter; give a file or folder of weights, hf:OWNER/NAME, or a catalog name"
        )
    return STARTER_FILE


def card() -> dict[str, Any]:
    """The card: command, seeds, terms of the data, accuracy before and after packing, machine; empty without one."""
    return read_json(STARTER_CARD)


def word() -> str:
    """An unambiguous name: `starter`, or its file if a path `starter` exists here and would win."""
    return str(file()) if Path(STARTER_NAME).exists() else STARTER_NAME


def is_meant(source: str) -> bool:
    """True if `source` names the starter."""
    return source == str(STARTER_FILE) or (source == STARTER_NAME and not Path(STARTER_NAME).exists())


def terms() -> str:
    """Terms of the training images, for users of the starter and of models fine-tuned from it."""
    return str(card().get("data", {}).get("terms", ""))


def network() -> str:
    """The starter's architecture as a catalog name."""
    return str(card().get("model", STARTER_NAME))


def suits(images: int, channels: int) -> bool:
    """True if a training on this many images, without --weights, should try the starter.

    `is_clear` then decides by a few-shot estimate on the images themselves.
    """
    return is_there() and channels == 3 and images < FROM_SCRATCH_ABOVE


def size_for(images: tuple[int, int]) -> int | None:
    """The input size in pixels for images of this size; None: the starter's own.

    300 photos, five draws, a solved head: 64 pixels 66.3 % of imagenette and 68.1 % of five cat breeds, 96 pixels 70.8
    and 73.3 %, for 2.4 times the work; 128 pixels 71.0 and 74.7 %, for 4.4 times (benchmarks/starter_sizes.py).
    """
    return FROZEN_IMAGE_SIZE if min(images) >= FROZEN_IMAGE_SIZE else None


def is_clear(right: int, seen: int, chance: float) -> bool:
    """True if a few-shot estimate, `right` of `seen` images, clearly beats chance.

    chance: the share of the most frequent class.  Wilson's 99 % interval must lie above it, and the estimate
    must cover MIN_GAIN of the way from chance to 100 %.
    """
    if seen < 1:
        return False
    share, z = right / seen, Z99
    centre = share + z**2 / (2 * seen)
    half = z * (share * (1 - share) / seen + z**2 / (4 * seen**2)) ** 0.5
    lowest = (centre - half) / (1 + z**2 / seen)
    return lowest > chance and share - chance >= MIN_GAIN * (1 - chance)
