"""How devices share a training: the fastest way that fits, by what one device needs."""

import pytest

from vitreous.training.plan.memory import Memory
from vitreous.training.plan.parallel import ROOM_SHARE, UNIT_NUMBERS, choose, unit_sizes

GIB = 2**30


def needs(kind, parts, checkpointing):
    """16 GiB of weights and moments, shared by fsdp; 32 GiB of activations, fewer in parts, a quarter recomputed."""
    weights = 16 * GIB // (8 if kind == "fsdp" else 1)
    return Memory(weights, 0, 0, 0, 32 * GIB // parts // (4 if checkpointing else 1))


@pytest.mark.parametrize(
    ("room", "kind", "checkpointing", "parts"),
    [
        (80, "ddp", False, 1),
        (40, "fsdp", False, 1),
        (21, "fsdp", False, 2),
        (12, "fsdp", False, 4),
        (7, "fsdp", True, 2),
        (4.3, "fsdp", True, 8),
    ],
)
def test_the_first_that_fits_is_taken(room, kind, checkpointing, parts):
    """Copies, shards, parts of 16 images or more, recomputed blocks, and only then smaller parts."""
    found = choose("auto", needs, world=8, room=int(room * GIB), on_each=64, parts=(1, 2, 4, 8, 16))
    assert (found.kind, found.checkpointing, found.parts) == (kind, checkpointing, parts)
    assert needs(kind, parts, checkpointing).total <= ROOM_SHARE * room * GIB


def test_what_is_asked_for_is_taken():
    found = choose("ddp", needs, world=8, room=20 * GIB, on_each=64, parts=(1, 2), checkpointing=False)
    assert (found.kind, found.checkpointing, found.parts) == ("ddp", False, 2)
    assert "as asked" in str(found)
    assert "may not fit" in str(found)
    assert choose("fsdp", needs, world=1, room=80 * GIB, on_each=64).kind == "fsdp"
    assert choose("auto", needs, world=1, room=80 * GIB, on_each=64).kind == "alone"


@pytest.mark.parametrize(
    ("blocks", "sizes"),
    [([], []), ([1] * 7, [7]), ([UNIT_NUMBERS // 2] * 5, [2, 2, 1]), ([UNIT_NUMBERS] * 3, [1, 1, 1])],
)
def test_blocks_are_gathered_together_until_they_are_large(blocks, sizes):
    assert unit_sizes(blocks) == sizes
