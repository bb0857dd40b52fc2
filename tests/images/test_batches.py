"""Which pictures come, in which order, with which pixels, is the seed's business alone."""

import multiprocessing
import os
import signal
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from picture_sets import Arrays, arrays, as_set, photos, tar_shards
from shared_files import ROOT

from vitreous.errors import ConfigError, DataError
from vitreous.images import augment, preprocess
from vitreous.images.augment import Augment
from vitreous.images.batches import Batches, Coverage
from vitreous.images.sources.finding import find_place
from vitreous.images.sources.shards import open_shards
from vitreous.models.preprocess import Preprocess

RULE = Preprocess(size=(32, 32), fit="crop", short_side=36, interpolation="bicubic", antialias=True)
AUGMENT = Augment(size=(32, 32), rand_augment=(2, 10), mixup=0.2)
SMALL_RULE = Preprocess(size=(12, 12), interpolation="bicubic", antialias=True)
SMALL_AUGMENT = Augment(size=(12, 12), mixup=0.2)


@pytest.fixture(scope="module")
def many():
    return photos(48)


def train(data, **changes):
    changes = {"batch": 8, "preprocess": RULE, "augment": AUGMENT, "seed": 3, "workers": 0, **changes}
    return Batches(data, **{"rank": 0, "world": 1, **changes})


def rows(batches):
    """place → (id, label, pixels, what the augmentation makes of it), of every picture that comes, by epoch."""
    out = {}
    for batch in batches:
        images = batch.images
        if batch.plan is not None:
            images = augment.apply(images, batch.plan, cropped=batch.is_cropped)
        for k, place in enumerate(batch.places):
            key = (batch.epoch, int(place))
            assert key not in out
            out[key] = (
                int(batch.ids[k]),
                int(batch.labels[k]),
                batch.images[k].numpy().tobytes(),
                images[k].numpy().tobytes(),
            )
    return out


def union(many_rows):
    out = {}
    for part in many_rows:
        assert not out.keys() & part.keys(), "two ranks were given one place"
        out |= part
    return out


@pytest.mark.parametrize("batch", [4, 8, 16])
@pytest.mark.parametrize("world", [1, 2, 4])
def test_neither_batch_size_nor_ranks_change_a_picture_or_its_augmentation(many, batch, world):
    """Two epochs, union over the ranks: ids, labels, pixels before and after the augmentation."""
    if batch == 4 and world == 4:
        pytest.skip("one picture a rank has no partner")
    one = rows(train(many, epochs=2, batch=48))
    ranks = [rows(train(many, epochs=2, batch=batch, rank=rank, world=world)) for rank in range(world)]
    assert {len(part) for part in ranks} == {2 * 48 // world}
    assert union(ranks) == one


@pytest.mark.parametrize("workers", [1, 2])
def test_worker_threads_change_nothing(many, workers):
    assert rows(train(many, epochs=2, workers=workers)) == rows(train(many, epochs=2))


def test_worker_processes_change_nothing(many):
    assert rows(train(many, workers=2, processes=True)) == rows(train(many))


def test_two_epochs_and_two_seeds_differ_in_order_and_crop(many):
    found = rows(train(many, epochs=2))
    first, second = ({k[1]: v for k, v in found.items() if k[0] == epoch} for epoch in (0, 1))
    assert sorted(v[0] for v in first.values()) == sorted(v[0] for v in second.values()) == list(range(48))
    assert [first[p][0] for p in range(48)] != [second[p][0] for p in range(48)]
    pixels = [{v[0]: v[2] for v in epoch.values()} for epoch in (first, second)]
    assert all(pixels[0][i] != pixels[1][i] for i in range(48))
    other = rows(train(many, seed=4))
    assert [v[0] for v in other.values()] != [first[p][0] for p in range(48)]


@settings(max_examples=25)
@given(stop=st.integers(0, 12), then=st.sampled_from([8, 16]), world=st.sampled_from([1, 2]))
def test_a_run_resumed_at_any_batch_goes_on_as_if_never_stopped(stop, then, world):
    """And may go on with another batch size, or on other ranks. Prefetched batches do not count as taken."""
    data = arrays(48)
    how = {"preprocess": SMALL_RULE, "augment": SMALL_AUGMENT, "epochs": 2, "resident": False, "workers": 1}
    whole = rows(train(data, **how))
    first = train(data, **how)
    taken = {}
    running = iter(first)
    for _ in range(stop):
        taken |= rows([next(running)])
    state = first.state()
    running.close()
    batch = then if state["place"] % then == 0 else 8
    rest = [train(data, **how, start=state, batch=batch, rank=r, world=world) for r in range(world)]
    assert len({len(part) for part in rest}) == 1
    assert union([taken, *map(rows, rest)]) == whole


def test_resuming_reads_nothing_that_went_before(tmp_path):
    log = tmp_path / "log"
    data = photos(32, log=log)
    first = train(data, augment=None, shuffle=True, batch=4)
    running = iter(first)
    for _ in range(6):
        next(running)
    running.close()
    log.write_text("")
    assert len(list(train(data, augment=None, shuffle=True, batch=4, start=first.state()))) == 2
    assert len(log.read_text()) <= 8 + 1  # one more, to see whether files are encoded


@pytest.mark.parametrize(
    ("change", "words"),
    [({"seed": 9}, "seed was 3, is 9"), ({"content_id": "other"}, "content_id was content, is other")],
)
def test_a_state_of_another_run_is_refused(change, words):
    data = arrays(16)
    state = train(data, preprocess=SMALL_RULE, augment=SMALL_AUGMENT).state()
    if "content_id" in change:
        data = as_set(data.source, content_id=change["content_id"])
        change = {}
    with pytest.raises(DataError, match=words):
        train(data, preprocess=SMALL_RULE, augment=SMALL_AUGMENT, start=state, **change)


@given(count=st.integers(1, 50), batch=st.integers(1, 12), world=st.integers(1, 5), workers=st.integers(0, 1))
def test_an_evaluation_sees_every_picture_once_on_any_number_of_ranks(count, batch, world, workers):
    data = arrays(count, 4)
    rule = Preprocess(size=(4, 4), antialias=True)
    ranks = [
        Batches(data, batch=batch * world, preprocess=rule, rank=r, world=world, workers=workers, resident=False)
        for r in range(world)
    ]
    steps = [list(part) for part in ranks]
    assert len({len(part) for part in steps} | {part.steps_per_epoch for part in ranks}) == 1
    ids = np.concatenate([b.ids for part in steps for b in part])
    assert sorted(ids.tolist()) == list(range(count))
    for part in steps:
        for b in part:
            assert (b.labels.numpy() == b.ids % 3).all()
            assert all(
                (image.permute(1, 2, 0).numpy() == data.read(i)).all() for i, image in zip(b.ids, b.images, strict=True)
            )


def test_evaluation_pixels_are_pillows(many):
    for batch in Batches(many, batch=10, preprocess=RULE, workers=2, rank=0, world=1):
        for i, image in zip(batch.ids, batch.images, strict=True):
            assert (image.permute(1, 2, 0).numpy() == preprocess.pixels(many.read(i), RULE)).all()


def test_a_finished_pass_begins_again():
    batches = Batches(arrays(10), batch=4, preprocess=SMALL_RULE, rank=0, world=1)
    for _ in range(3):
        assert len(batches) == 3
        assert [b.ids.tolist() for b in batches] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
        assert batches.coverage().is_exact


def test_coverage_counts_and_names_what_was_skipped():
    source = Arrays(arrays(20).source.pixels, {3, 11})
    batches = Batches(
        as_set(source), batch=8, preprocess=SMALL_RULE, skip_unreadable=True, resident=False, rank=0, world=1
    )
    assert sum(len(batch) for batch in batches) == 18
    found = batches.coverage()
    assert (found.images, found.seen, found.unique) == (20, 18, 18)
    assert not found.is_exact
    assert str(found).splitlines() == [
        "18 images seen, 18 unique of 20, 2 skipped",
        "array/3 cannot be read; take it out",
        "array/11 cannot be read; take it out",
    ]
    assert found.to_json()["skipped"] == list(found.skipped)
    assert Coverage(3, 3, 3).is_exact


COVER = """
import os, sys
sys.path.insert(0, {tests!r})
import torch.distributed as group
from picture_sets import arrays
from vitreous import ranks
from vitreous.images.batches import Batches
from vitreous.models.preprocess import Preprocess
group.init_process_group("gloo", init_method="file://{file}", rank=int(sys.argv[1]), world_size=2)
batches = Batches(arrays(21, 4), batch=4, preprocess=Preprocess(size=(4, 4), antialias=True))
mine = sum(len(batch) for batch in batches)
assert ranks.here() == ranks.Ranks(int(sys.argv[1]), 2)
assert ranks.gather(group.get_rank()) == [0, 1]
print(mine, batches.coverage().to_json(), flush=True)
group.destroy_process_group()
"""


def test_real_ranks_agree_on_what_they_saw_together(tmp_path):
    code = COVER.format(tests=str(ROOT / "tests"), file=tmp_path / "meet")
    processes = [
        subprocess.Popen([sys.executable, "-c", code, str(rank)], stdout=subprocess.PIPE, text=True) for rank in (0, 1)
    ]
    lines = [process.communicate()[0].split(" ", 1) for process in processes]
    assert sum(int(mine) for mine, _ in lines) == 21
    assert {text.strip() for _, text in lines} == {"{'images': 21, 'seen': 21, 'unique': 21, 'skipped': []}"}


def test_pairs_of_the_order_never_cross_a_rank_or_a_batch(many):
    for rank in range(2):
        for batch in train(many, batch=12, rank=rank, world=2, drop_last=False):
            assert (batch.places[::2] % 2 == 0).all()
            assert (batch.places[1::2] == batch.places[::2] + 1).all()


def test_a_set_that_fits_lies_whole_on_the_device_and_gives_the_same_pictures():
    data = arrays(40, test=0)
    how = {"preprocess": SMALL_RULE, "epochs": 2, "shuffle": True, "augment": None}
    streamed, whole = train(data, **how, resident=False), train(data, **how)
    assert rows(streamed) == rows(whole)
    assert whole._resident().shape == (40, 3, 12, 12)
    found = next(iter(train(data, preprocess=SMALL_RULE, augment=SMALL_AUGMENT)))
    assert not found.is_cropped
    assert augment.apply(found.images, found.plan, cropped=found.is_cropped).shape == (8, 3, 12, 12)


def test_pictures_that_differ_in_size_cannot_lie_whole(many):
    assert train(many)._resident() is None
    with pytest.raises(ConfigError, match="a/set cannot lie whole on cpu"):
        next(iter(train(many, resident=True)))


def test_grey_pictures_reach_a_model_of_three_colours():
    data = arrays(8, channels=1)
    for resident in (True, False):
        batch = next(iter(Batches(data, batch=8, preprocess=SMALL_RULE, resident=resident, rank=0, world=1)))
        assert batch.images.shape == (8, 3, 12, 12)
        assert (batch.images[:, 0] == batch.images[:, 2]).all()


def test_shards_are_shuffled_within_a_bounded_window(tmp_path):
    """Places of one window come from the shards that lie under it; every picture comes once; any batch resumes."""
    tar_shards(tmp_path, [25] * 8)
    data = as_set(open_shards(find_place(tmp_path)).source)
    how = {"batch": 10, "preprocess": Preprocess(size=(8, 8), antialias=True), "shuffle": True}
    how |= {"shuffle_buffer": 50, "seed": 1, "workers": 1}

    def ids(**more):
        return np.concatenate([batch.ids for batch in Batches(data, **how, **{"rank": 0, "world": 1} | more)])

    whole = ids()
    assert sorted(whole.tolist()) == list(range(200))
    windows = whole.reshape(4, 50)
    assert all(len(np.unique(window // 25)) == 2 for window in windows)
    assert (np.diff(windows, axis=1) != 1).mean() > 0.9
    assert len({tuple(np.unique(window // 25)) for window in windows} - {(0, 1), (2, 3), (4, 5), (6, 7)}) > 0
    first = Batches(data, **how, rank=0, world=1)
    running = iter(first)
    for _ in range(7):
        next(running)
    running.close()
    assert (ids(start=first.state()) == whole[70:]).all()
    halves = [ids(rank=rank, world=2) for rank in (0, 1)]
    assert (np.concatenate([half.reshape(-1, 5) for half in halves], 1).ravel() == whole).all()


@pytest.mark.parametrize("how", [{"workers": 0}, {"workers": 2}])
def test_an_unreadable_picture_is_one_line_that_names_it(many, how):
    files = list(many.source.files)
    files[7] = files[7][:300]
    files[31] = b"junk"
    with pytest.raises(DataError, match=r"set/(7|31)\.jpg") as caught:
        list(train(as_set(type(many.source)(files)), **how))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"batch": 9, "world": 2}, "a batch of 9 cannot be shared by 2 ranks; give a multiple of 2"),
        ({"batch": 6, "world": 2}, "mixing takes pairs, and a batch of 6 on 2 ranks is 3 each; give a multiple of 4"),
        ({"batch": 64}, "a batch of 64 is more than a/set has; give its 48 images or less"),
        ({"rank": 2, "world": 2}, "rank 2 of 2 does not exist"),
        ({"augment": Augment(size=(24, 24))}, r"augmentation makes images of \(24, 24\), the model takes \(32, 32\)"),
    ],
)
def test_settings_without_meaning_are_refused_in_one_line(many, change, words):
    with pytest.raises(ConfigError, match=words):
        train(many, **change)


def test_a_set_without_pictures_is_refused():
    with pytest.raises(DataError, match="a/set has no pictures"):
        train(photos(4).take([]))


DYING = """
import os, sys, time
sys.path.insert(0, {tests!r})
import picture_sets
from picture_sets import Files, photos
from vitreous.images.batches import Batches
from vitreous.images.augment import Augment
from vitreous.models.preprocess import Preprocess

if __name__ == "__main__":
    data = photos(64, seconds=0.05)
    batches = Batches(data, batch=8, preprocess=Preprocess(size=(32, 32)), augment=Augment(size=(32, 32)), workers=2,
                      processes={processes}, rank=0, world=1)
    try:
        for batch in batches:
            print("batch", flush=True)
    except KeyboardInterrupt:
        print("interrupted", flush=True)
"""


@pytest.mark.parametrize("processes", [False, True])
def test_ctrl_c_ends_workers_quietly(tmp_path, processes):
    script = tmp_path / "run.py"
    script.write_text(DYING.format(tests=str(ROOT / "tests"), processes=processes))
    process = subprocess.Popen(
        [sys.executable, str(script)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    assert process.stdout.readline() == "batch\n"
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: the whole group
    out, errors = process.communicate(timeout=30)
    assert out.splitlines()[-1] == "interrupted"
    assert errors == ""  # nor a word about shared memory left behind


def test_a_worker_process_that_dies_is_one_line(many):
    batches = train(many, workers=1, processes=True, prefetch=1)
    running = iter(batches)
    next(running)
    child = multiprocessing.active_children()[-1]
    os.kill(child.pid, signal.SIGKILL)
    with pytest.raises(DataError, match="a process that read a/set ended by itself"):
        list(running)


def test_labels_may_be_many_for_one_picture():
    data = arrays(8)
    several = np.eye(3, dtype=np.int64)[data.labels]
    batches = Batches(replace(data, labels=several), batch=4, preprocess=SMALL_RULE, rank=0, world=1)
    assert torch.equal(next(iter(batches)).labels, torch.from_numpy(several[:4]))


def test_a_state_of_other_pictures_or_another_order_is_refused():
    """The same number of pictures of the same source is not the same set."""
    whole = photos(24)
    first, second = whole.take(range(12)), whole.take(range(12, 24))
    state = Batches(first, batch=4, preprocess=RULE, shuffle=True).state()
    Batches(first, batch=4, preprocess=RULE, shuffle=True, start=state)
    for data, shuffle in ((second, True), (first, False)):
        with pytest.raises(DataError, match=r"is not where the run stopped: (chosen|order) was"):
            Batches(data, batch=4, preprocess=RULE, shuffle=shuffle, start=state)
    for wrong in ({"place": 10**6}, {"epoch": -3}, {"place": "a"}):
        with pytest.raises(DataError, match="which is no place in"):
            Batches(first, batch=4, preprocess=RULE, shuffle=True, start={**state, **wrong})


@pytest.mark.parametrize("wrong", [{"rank": 1}, {"world": 2}, {"workers": -1}, {"epochs": -1}, {"prefetch": -1}])
def test_arguments_without_sense_are_one_line(wrong):
    with pytest.raises(ConfigError, match=r"belong together|must each be 0 or more"):
        Batches(photos(8), batch=4, preprocess=RULE, **wrong)


def test_a_part_of_the_ranks_cannot_speak_of_coverage():
    batches = Batches(photos(8), batch=4, preprocess=RULE, rank=0, world=2)
    list(batches)
    with pytest.raises(ConfigError, match="coverage needs all ranks"):
        batches.coverage()
