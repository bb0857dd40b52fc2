"""Who reads what of a set of shards, for any number of ranks, without a process or an image."""

from dataclasses import replace
from itertools import islice

import numpy as np
import pytest
from picture_sets import as_set

from vitreous.images import imageset, open_data, splits
from vitreous.images.batches.batches import WINDOWS_KEPT, Batches, EpochOrder, Loading, Order, find_blocks
from vitreous.images.imageset import WordArray
from vitreous.images.sources.shards import Shards
from vitreous.images.stores.shard_table import Index, make_table
from vitreous.models.preprocess import Preprocess
from vitreous.ranks import Ranks


def shards_of(counts):
    """Shards with so many samples each, which nobody reads."""
    indices = (
        Index([f"{i}.jpg" for i in range(n)], list(range(n)), [1] * n, [(i + k) % 10 for i in range(n)]).packed()
        for k, n in enumerate(counts)
    )
    names = tuple(f"train-{k:04d}.tar" for k in range(len(counts)))
    return Shards(names, names, make_table(indices))


def set_of(counts):
    source = shards_of(counts)
    return replace(as_set(source), labels=source.table.columns["label"].astype(np.int64), kind="shards")


def plan(data, rank, world, *, batch, **order):
    options = {"batch": batch, "seed": 5, "shuffle": True, "shuffle_buffer": 1_000, "ranks": Ranks(rank, world)}
    return Batches(data, Order(**options | order), Loading(preprocess=Preprocess(size=(8, 8)), workers=0))


def members(batches, start=(0, 0), steps=None):
    found = batches._steps(*start)
    return [step.members for step in islice(found, steps)]


@pytest.fixture(scope="module")
def data():
    counts = 700 + np.random.default_rng(0).integers(0, 600, 24)
    counts[-1] += -counts.sum() % 4_000
    return set_of(counts.tolist())


def test_2000_ranks_see_each_sample_once_in_equal_shares(data):
    """Whatever the number of ranks, step k shows the same images, in the same order."""
    whole = members(plan(data, 0, 1, batch=4_000))
    assert sorted(np.concatenate(whole).tolist()) == list(range(len(data)))
    shared = plan(data, 0, 1, batch=4_000)
    for world in (2_000, 250):
        parts = []
        for rank in range(world):
            shared.ranks = Ranks(rank, world)
            parts.append(np.array(members(shared)))
        assert {part.shape for part in parts} == {(len(whole), 4_000 // world)}
        for step, seen in enumerate(whole):
            assert np.array_equal(np.concatenate([part[step] for part in parts]), seen)


def test_the_last_step_of_an_evaluation_is_shared_within_one_batch(data):
    part = data.take(np.arange(9_001))
    shared = plan(part, 0, 1, batch=4_000, shuffle=False, drop_last=False)
    seen = []
    for rank in range(2_000):
        shared.ranks = Ranks(rank, 2_000)
        mine = members(shared)
        assert len(mine) == 3
        seen += [place for step in mine for place in step.tolist()]
    assert sorted(seen) == list(range(9_001))


def test_a_run_goes_on_at_another_number_of_ranks(data):
    straight = members(plan(data, 0, 1, batch=4_000, epochs=2))
    stopped = plan(data, 0, 1, batch=4_000, epochs=2)
    stopped.seek(0, (len(data) // 4_000 - 2) * 4_000)
    state = stopped.state()
    for world, steps in ((2_000, 2), (40, 4), (1, 4)):  # the last two steps are the next epoch's
        shared = plan(data, 0, 1, batch=4_000, epochs=2, start=state)
        parts = []
        for rank in range(world):
            shared.ranks = Ranks(rank, world)
            parts.append(members(shared, (state["epoch"], state["place"]), steps))
        for step in range(steps):
            assert np.array_equal(
                np.concatenate([part[step] for part in parts]), straight[len(data) // 4_000 - 2 + step]
            )


def test_a_rank_keeps_windows_and_not_the_epoch(data):
    order = plan(data, 1, 2_000, batch=4_000)._places
    for place in range(0, len(data), 500):
        order.members(0, np.arange(place, min(place + 2, len(data))))
    kept = sum(len(window) for window in order._windows.values())
    assert kept <= WINDOWS_KEPT * 1_000 < len(data)


def test_blocks_of_shards_are_mixed_and_epochs_differ(data):
    blocks = find_blocks(data)
    assert blocks.size.max() <= 500
    assert blocks.size.sum() == len(data)
    order = EpochOrder(len(data), 1, True, blocks, 2_000)
    first, second = (order.members(epoch, np.arange(len(data))) for epoch in (0, 1))
    assert (first != second).mean() > 0.9
    shard = np.searchsorted(data.source.block_starts, first, "right")
    assert np.mean([len(np.unique(shard[a : a + 2_000])) for a in range(0, len(data), 2_000)]) > 3


def test_a_subset_in_any_order_is_shown_once(data):
    some = data.take(np.random.default_rng(1).permutation(len(data))[:5_000])
    seen = np.concatenate(members(plan(some, 0, 1, batch=1_000)))
    assert sorted(seen.tolist()) == list(range(5_000))


def test_a_streamed_set_is_split_by_draws_that_stay(data, monkeypatch):
    monkeypatch.setattr(imageset, "STREAMED_FROM", 1_000)
    monkeypatch.setattr(splits, "MAX_DRAWN_IMAGES", 1_000)
    monkeypatch.setattr(type(data.source), "raw", lambda self, i: pytest.fail("an image was read"))
    monkeypatch.setattr(type(data.source), "name", lambda self, i: pytest.fail("a name was made"))
    split = open_data._made_split(data, 3, "", None)
    assert split.split_was_made
    test = int((split.splits == "test").sum())
    assert 850 < test < 1_150
    train, dev = splits.cut_dev(split, 0.1, 0)
    assert len(train) + len(dev) + test == len(data)
    assert 850 < len(dev) < 1_150
    again = open_data._made_split(data, 3, "", None)
    assert (again.splits == split.splits).all()
    assert len(splits.subset(split, limit=500)) == 500


def test_words_are_an_array_of_text():
    words = WordArray.of(np.array(["train", "test", "train", ""]))
    assert (words == "train").tolist() == [True, False, True, False]
    assert (words != "train").tolist() == [False, True, False, True]
    assert (words == "val").tolist() == [False] * 4
    assert words.tolist() == list(words) == ["train", "test", "train", ""]
    assert words[1] == "test"
    assert words[[0, 3]].tolist() == ["train", ""]
    assert words[np.array([True, False, False, True])].found() == {"train", ""}
    assert ("test" in words, "val" in words) == (True, False)
    assert np.array_equal(np.asarray(words), ["train", "test", "train", ""])
    assert WordArray.repeated(["a", "b"], [2, 1]).tolist() == ["a", "a", "b"]


@pytest.mark.slow
def test_four_million_samples_take_bytes_and_not_objects():
    """The order of one rank is found without an array of all samples."""
    import tracemalloc

    blocks_of = set_of([10_000] * 400)
    batches = plan(blocks_of, 7, 2_000, batch=4_000, shuffle_buffer=10_000)
    tracemalloc.start()
    found = members(batches, (0, 0), 20)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert all(len(step) == 2 for step in found)
    assert peak < 8 * 2**20
