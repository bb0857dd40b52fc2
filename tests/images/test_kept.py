"""A process keeps few things, and lays down whole only what fits."""

import numpy as np
import pytest
import torch
from picture_sets import arrays, as_set, photos

from vitreous.images.batches.loader import Loader
from vitreous.images.pixels.augment import Augment
from vitreous.images.sources.stack import ArrayPart, Stack
from vitreous.images.stores import device as residing
from vitreous.images.stores import kept, memory
from vitreous.models.preprocess import Preprocess

RULE = Preprocess(size=(12, 12))
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def keeping(monkeypatch):
    monkeypatch.setattr(kept, "_found", None)
    kept.keep()


def test_the_last_few_are_kept():
    source, made = object(), []

    def wanted(what):
        return kept.once(source, what, lambda: made.append(what) or f"made {what}")

    for what in range(kept.LAST):
        assert wanted(what) == wanted(what) == f"made {what}"
    wanted(0)  # the latest now
    assert wanted("another") == "made another"
    assert len(kept._found) == kept.LAST
    wanted(0)
    assert made == [*range(kept.LAST), "another"]
    wanted(1)
    assert made[-1] == 1


def test_room_is_made_before_another_is_made():
    for what in range(kept.LAST):
        kept.once(keeping, what, object)
    assert kept.once(keeping, "another", lambda: len(kept._found)) == kept.LAST - 1


def test_the_parts_that_seeds_draw_do_not_pile_up(monkeypatch):
    data, decoded = photos(12), []
    monkeypatch.setattr(memory, "hold", lambda data, **how: decoded.append(len(data)) or data)
    for seed in range(3 * kept.LAST):
        kept.as_evaluated(data.take(np.random.default_rng(seed).permutation(12)[:6]), RULE)
    assert len(decoded) > kept.LAST
    assert len(kept._found) == kept.LAST


@pytest.mark.parametrize("augment", [None, Augment(size=(12, 12))])
@pytest.mark.parametrize("has_room", [True, False])
def test_a_set_lies_whole_if_it_fits_and_not_because_its_part_does(monkeypatch, augment, has_room):
    pixels = arrays(40).source.pixels
    source, read = Stack(lambda file, key: pixels, (ArrayPart("file", "key", "title", 40),), 3), []
    monkeypatch.setattr(Stack, "whole", lambda stack: read.append(stack) or pixels)
    monkeypatch.setattr(residing, "_room", lambda device, world: pixels.nbytes - (not has_room))
    part = as_set(source).take([3, 8, 5])
    for _ in range(2):
        found = residing.lay_whole(Loader(part, RULE, fast=True), augment, CPU, world=1, is_asked=False, may_miss=False)
        assert (found.images.permute(0, 2, 3, 1).numpy() == pixels[[3, 8, 5]]).all()
    assert len(read) == len(kept._found) == has_room
