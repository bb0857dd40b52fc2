"""What is held in memory is what reading would give, found by its id."""

import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from picture_sets import Arrays, photos

from vitreous.errors import DataError
from vitreous.images.pixels import decode
from vitreous.images.stores import memory
from vitreous.images.stores.memory import HeldPixels, find, find_places, hold
from vitreous.models.preprocess import Preprocess

RULE = Preprocess(size=(32, 32), fit="crop", short_side=36, interpolation="bicubic", antialias=True)


def held(data, **changes):
    return hold(data, **{"short_side": 40, "preprocess": RULE, **changes})


@pytest.mark.parametrize("workers", [1, 3])
def test_held_pictures_are_those_of_the_set_in_any_order(workers):
    """Train pictures shrunk, test pictures finished, each by its id whatever the order of the set."""
    data = photos(20, test=6).take(np.random.default_rng(0).permutation(20))
    found = held(data, workers=workers)
    assert (found.ids == data.ids).all()
    for i in range(20):
        pixels = data.read(i)
        wanted = decode.shrink(pixels, 40) if data.splits[i] == "train" else decode.finish(pixels, RULE)
        assert (found.read(i) == wanted).all()
        assert found.name(i) == data.name(i)
    places = find_places(found.source.ids, data.ids)
    assert (found.source.is_finished[places] == (data.splits == "test")).all()
    assert (found.source.ids[places] == data.ids).all()


def test_progress_rises_to_the_whole_set():
    heard = []
    held(photos(70), progress=lambda done, total: heard.append((done, total)))
    assert heard == [(64, 70), (70, 70)]


def test_few_pictures_wait_at_a_time_and_the_rest_is_not_read_after_an_error(monkeypatch, tmp_path):
    monkeypatch.setattr(memory, "IMAGES_AHEAD_PER_THREAD", 2)
    log = tmp_path / "log"
    data = photos(40, log=log)
    data.source.files[3] = b"junk"
    with pytest.raises(DataError, match=r"set/3\.jpg"):
        held(data, workers=1)
    time.sleep(0.05)
    assert len(log.read_text()) <= 8


def test_a_deferred_error_comes_when_that_picture_is_read():
    data = photos(8)
    data.source.files[3] = b"junk"
    found = held(data, on_unreadable="defer")
    for i in range(8):
        if i == 3:
            with pytest.raises(DataError, match=r"set/3\.jpg"):
                found.read(i)
        else:
            assert min(found.read(i).shape[:2]) == 40
    assert found.source.sizes[3].tolist() == [0, 0]
    assert list(found.source.unread) == [3]


def test_sizes_are_counted_once():
    source = HeldPixels(Arrays(np.zeros((2, 1, 1, 3))), np.arange(2), [np.zeros((3, 4, 3), np.uint8)] * 2, np.zeros(2))
    assert source.sizes.tolist() == [[3, 4], [3, 4]]
    assert source.sizes is source.sizes


@given(there=st.lists(st.integers(0, 10**12), min_size=1, max_size=40, unique=True), data=st.data())
def test_an_id_is_found_where_it_lies(there, data):
    wanted = data.draw(st.lists(st.sampled_from(there)))
    assert find_places(np.array(there), wanted).tolist() == [there.index(i) for i in wanted]


def test_a_part_is_found_by_its_ids_and_a_stranger_is_named():
    data = photos(12)
    found = find(held(data), [7, 2, 11])
    assert found.ids.tolist() == [7, 2, 11]
    assert found.labels.tolist() == data.labels[[7, 2, 11]].tolist()
    part = held(data.take([3, 4, 5]))
    with pytest.raises(DataError, match=r"a/set: 2 images are not among these 3, such as number 0; hold or pack"):
        find(part, [4, 0, 9])
    with pytest.raises(DataError, match="1 images are not among these 0"):
        find(data.take([]), [0])
