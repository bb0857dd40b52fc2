"""Which pictures come, in which order, with which pixels, is the seed's business alone."""

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import tracemalloc
from dataclasses import replace

import forks
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from picture_sets import Arrays, arrays, as_set, make_batches, photos, scene, tar_shards
from shared_files import ROOT

from vitreous.errors import ConfigError, DataError
from vitreous.images.batches import workers as batch_workers
from vitreous.images.batches.batches import Coverage, EpochOrder
from vitreous.images.pixels import augment, preprocess
from vitreous.images.pixels.augment import Augment
from vitreous.images.sources.paths import find_place
from vitreous.images.sources.shards import open_shards
from vitreous.images.stores import device as residing
from vitreous.images.stores.memory import HeldPixels, hold
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
    return make_batches(data, **{"rank": 0, "world": 1, **changes})


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
        make_batches(data, batch=batch * world, preprocess=rule, rank=r, world=world, workers=workers, resident=False)
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
    for batch in make_batches(many, batch=10, preprocess=RULE, workers=2, rank=0, world=1):
        for i, image in zip(batch.ids, batch.images, strict=True):
            assert (image.permute(1, 2, 0).numpy() == preprocess.pixels(many.read(i), RULE)).all()


@pytest.mark.parametrize("is_resident", [True, False])
def test_readers_are_left_without_waiting_for_one_that_is_slow(is_resident):
    """A collector may be the one to leave them, within a thread that is just beginning: waiting there hung for ever."""
    whole = residing.Whole(torch.zeros(1, 3, 2, 2, dtype=torch.uint8), None, {})
    feed = (
        batch_workers.Resident(whole) if is_resident else batch_workers.Threads(None, (1,), 1, 1, torch.device("cpu"))
    )
    go = threading.Event()
    slow = feed.pool.submit(go.wait, 30)
    try:
        feed.close()
        assert not slow.done()
    finally:
        go.set()


def test_a_finished_pass_begins_again():
    batches = make_batches(arrays(10), batch=4, preprocess=SMALL_RULE, rank=0, world=1)
    for _ in range(3):
        assert len(batches) == 3
        assert [b.ids.tolist() for b in batches] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
        assert batches.coverage().is_exact


def test_coverage_counts_and_names_what_was_skipped():
    source = Arrays(arrays(20).source.pixels, {3, 11})
    batches = make_batches(
        as_set(source), batch=8, preprocess=SMALL_RULE, on_unreadable="skip", resident=False, rank=0, world=1
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
from picture_sets import arrays, make_batches
from vitreous import ranks
from vitreous.models.preprocess import Preprocess
group.init_process_group("gloo", init_method="file://{file}", rank=int(sys.argv[1]), world_size=2)
batches = make_batches(arrays(21, 4), batch=4, preprocess=Preprocess(size=(4, 4), antialias=True))
mine = sum(len(batch) for batch in batches)
assert ranks.here() == ranks.Ranks(int(sys.argv[1]), 2)
assert ranks.gather(group.get_rank()) == [0, 1]
print(mine, batches.coverage().to_json(), flush=True)
group.destroy_process_group()
"""


def test_real_ranks_agree_on_what_they_saw_together(tmp_path):
    code = COVER.format(tests=str(ROOT / "tests"), file=tmp_path / "meet")
    processes = [
        forks.Popen([sys.executable, "-c", code, str(rank)], stdout=subprocess.PIPE, text=True) for rank in (0, 1)
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
    assert whole._whole.images.shape == (40, 3, 12, 12)
    found = next(iter(train(data, preprocess=SMALL_RULE, augment=SMALL_AUGMENT)))
    assert not found.is_cropped
    assert augment.apply(found.images, found.plan, cropped=found.is_cropped).shape == (8, 3, 12, 12)


def test_pictures_that_differ_in_size_cannot_lie_whole(many):
    assert train(many)._whole is None
    with pytest.raises(ConfigError, match="a/set cannot lie whole on cpu"):
        next(iter(train(many, resident=True)))


def test_grey_pictures_reach_a_model_of_three_colours():
    data = arrays(8, channels=1)
    for resident in (True, False):
        batch = next(iter(make_batches(data, batch=8, preprocess=SMALL_RULE, resident=resident, rank=0, world=1)))
        assert batch.images.shape == (8, 3, 12, 12)
        assert (batch.images[:, 0] == batch.images[:, 2]).all()


def test_shards_are_shuffled_within_a_bounded_window(tmp_path):
    """Places of one window come from the shards that lie under it; every picture comes once; any batch resumes."""
    tar_shards(tmp_path, [25] * 8)
    data = as_set(open_shards(find_place(tmp_path)).source)
    how = {"batch": 10, "preprocess": Preprocess(size=(8, 8), antialias=True), "shuffle": True}
    how |= {"shuffle_buffer": 50, "seed": 1, "workers": 1}

    def ids(**more):
        return np.concatenate([batch.ids for batch in make_batches(data, **how, **{"rank": 0, "world": 1} | more)])

    whole = ids()
    assert sorted(whole.tolist()) == list(range(200))
    windows = whole.reshape(4, 50)
    assert all(len(np.unique(window // 25)) == 2 for window in windows)
    assert (np.diff(windows, axis=1) != 1).mean() > 0.9
    assert len({tuple(np.unique(window // 25)) for window in windows} - {(0, 1), (2, 3), (4, 5), (6, 7)}) > 0
    first = make_batches(data, **how, rank=0, world=1)
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
    with pytest.raises(DataError, match="a/set has no images"):
        train(photos(4).take([]))


DYING = """
import os, signal, sys, time
sys.path.insert(0, {tests!r})
import picture_sets
from picture_sets import Files, make_batches, photos
from vitreous.images.pixels.augment import Augment
from vitreous.models.preprocess import Preprocess

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a suite that runs in the background ignores it
    data = photos(64, seconds=0.05)
    batches = make_batches(data, batch=8, preprocess=Preprocess(size=(32, 32)), augment=Augment(size=(32, 32)),
                           workers=2, processes={processes}, rank=0, world=1)
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
    process = forks.Popen(
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
    batches = make_batches(replace(data, labels=several), batch=4, preprocess=SMALL_RULE, rank=0, world=1)
    assert torch.equal(next(iter(batches)).labels, torch.from_numpy(several[:4]))


def test_a_state_of_other_pictures_or_another_order_is_refused():
    """The same number of pictures of the same source is not the same set."""
    whole = photos(24)
    first, second = whole.take(range(12)), whole.take(range(12, 24))
    state = make_batches(first, batch=4, preprocess=RULE, shuffle=True).state()
    make_batches(first, batch=4, preprocess=RULE, shuffle=True, start=state)
    for data, shuffle in ((second, True), (first, False)):
        with pytest.raises(DataError, match=r"is not where the run stopped: (chosen|order) was"):
            make_batches(data, batch=4, preprocess=RULE, shuffle=shuffle, start=state)
    for wrong in ({"place": 10**6}, {"epoch": -3}, {"place": "a"}):
        with pytest.raises(DataError, match="which is not a place in"):
            make_batches(first, batch=4, preprocess=RULE, shuffle=True, start={**state, **wrong})


@pytest.mark.parametrize("wrong", [{"rank": 1, "world": 1}, {"workers": -1}, {"epochs": -1}, {"prefetch": -1}])
def test_arguments_without_sense_are_one_line(wrong):
    with pytest.raises(ConfigError, match=r"does not exist|must each be 0 or more"):
        make_batches(photos(8), batch=4, preprocess=RULE, **wrong)


def test_a_part_of_the_ranks_cannot_speak_of_coverage():
    batches = make_batches(photos(8), batch=4, preprocess=RULE, rank=0, world=2)
    list(batches)
    with pytest.raises(ConfigError, match="coverage needs all ranks"):
        batches.coverage()


# Repeated augmentation ------------------------------------------------------------------------------------------------


def test_an_epoch_of_repeats_shows_a_part_of_the_set_each_picture_so_often(many):
    """48 places: 16 pictures, copies 0, 1, 2 of each; another part in another epoch."""
    parts = []
    for epoch in range(2):
        batches = train(many, repeats=3, epochs=2)
        batches.seek(epoch, 0)
        found = [(int(i), int(c)) for b in batches if b.epoch == epoch for i, c in zip(b.ids, b.copies, strict=True)]
        ids = {i for i, _ in found}
        assert sorted(found) == sorted((i, c) for i in ids for c in range(3))
        assert len(ids) == 16
        parts.append(ids)
    assert parts[0] != parts[1]


@given(count=st.integers(2, 60), repeats=st.integers(1, 7), epoch=st.integers(0, 3))
def test_no_pair_is_two_copies_and_no_copy_comes_twice(count, repeats, epoch):
    order = EpochOrder(count, 5, True, None, 10, repeats)
    if order.distinct < 2:
        return
    members, copies = order.at(epoch, np.arange(count))
    copies = np.zeros(count, int) if copies is None else copies
    assert len(set(zip(members.tolist(), copies.tolist(), strict=True))) == count
    assert copies.max() < repeats
    assert len(np.unique(members)) <= order.distinct == -(-count // repeats)
    assert (members[: count // 2 * 2 : 2] != members[1::2]).all()


def test_copies_lie_mostly_in_one_step_and_beside_other_pictures():
    """As DeiT's sampler gives them: of 3 copies in steps of 512; the partner of a pair changes from copy to copy."""
    members, _ = EpochOrder(12_288, 5, True, None, 10, 3).at(0, np.arange(12_288))
    step = np.arange(12_288) // 512
    order = np.argsort(members, kind="stable").reshape(-1, 3)  # places of the copies of each
    assert (step[order].min(1) == step[order].max(1)).mean() > 0.85
    partners = members[np.arange(12_288) ^ 1][order]
    assert (np.sort(partners, 1)[:, 1:] != np.sort(partners, 1)[:, :-1]).all()


def test_the_first_copy_is_drawn_as_without_repeats_and_the_others_are_not(many):
    crops = {}
    for batch in train(many, repeats=3):
        for k, key in enumerate(zip(batch.ids.tolist(), batch.copies.tolist(), strict=True)):
            crops[key] = batch.plan.crop[k]
        first = batch.copies == 0
        known = augment.draw(replace(AUGMENT, mixup=0.0), 3, 0, batch.ids[first])
        assert (batch.plan.crop[first] == known.crop).all()
        assert (batch.drawn_ids[first] == batch.ids[first]).all()
        assert len(np.unique(batch.drawn_ids)) == len(batch)
    assert len({crop.tobytes() for crop in crops.values()}) == 48
    once = next(iter(train(many)))
    assert once.copies is None
    assert (once.drawn_ids == once.ids).all()


@pytest.mark.parametrize(("batch", "world"), [(4, 1), (8, 2), (16, 4)])
def test_repeats_come_the_same_on_any_ranks_and_after_any_stop(many, batch, world):
    whole = rows(train(many, repeats=3, epochs=2, batch=48))
    ranks = [rows(train(many, repeats=3, epochs=2, batch=batch, rank=r, world=world)) for r in range(world)]
    assert union(ranks) == whole
    first = train(many, repeats=3, epochs=2, batch=batch)
    running = iter(first)
    taken = rows([next(running)])
    running.close()
    assert union([taken, rows(train(many, repeats=3, epochs=2, batch=batch, start=first.state()))]) == whole
    with pytest.raises(DataError, match=r"order was shuffled, each 3 times, is shuffled;"):
        train(many, start=first.state())


@pytest.mark.parametrize("wrong", [{"repeats": 0}, {"repeats": 48}, {"repeats": 2, "shuffle": False}])
def test_repeats_without_meaning_are_refused(many, wrong):
    with pytest.raises(ConfigError, match=r"repeats=\d+ of 48 images leaves no two to show"):
        train(many, **wrong)


# Pictures that cannot be read, or have no label -----------------------------------------------------------------------

BROKEN = {7, 8, 9, 31, 40}


@pytest.fixture(scope="module")
def damaged(many):
    files = [raw[:300] if i in BROKEN else raw for i, raw in enumerate(many.source.files)]
    return as_set(type(many.source)(files))


def test_an_unreadable_picture_gives_its_place_to_another_with_its_own_label(damaged):
    """Others stay as they are; the list names each once, however often it was missed."""
    batches = train(damaged, epochs=2, on_unreadable="replace")
    found = rows(batches)
    assert len(found) == 96
    assert all(label == i % 3 and i not in BROKEN for i, label, *_ in found.values())
    assert sorted(name for name, _ in batches.replaced) == sorted(f"set/{i}.jpg" for i in BROKEN)
    assert all(name in why and "\n" not in why for name, why in batches.replaced)
    sound = {key: (i, pixels) for key, (i, _, pixels, _) in rows(train(photos(48), epochs=2)).items()}
    changed = {key for key, (i, _, pixels, _) in found.items() if (i, pixels) != sound[key]}
    assert changed == {key for key, (i, _) in sound.items() if i in BROKEN}
    assert len({found[key][0] for key in changed}) > 5, "another epoch draws another replacement"


@pytest.mark.parametrize("how", [{"workers": 2}, {"workers": 2, "processes": True}, {"world": 2}, {"stop": 3}])
def test_who_reads_does_not_change_the_replacement(damaged, how):
    whole = rows(train(damaged, on_unreadable="replace", repeats=2))
    world, stop = how.get("world", 1), how.get("stop")
    how = {k: v for k, v in how.items() if k not in ("world", "stop")}
    parts = [train(damaged, on_unreadable="replace", repeats=2, rank=r, world=world, **how) for r in range(world)]
    taken = {}
    if stop is not None:
        running = iter(parts[0])
        for _ in range(stop):
            taken |= rows([next(running)])
        running.close()
        parts = [train(damaged, on_unreadable="replace", repeats=2, start=parts[0].state())]
    assert union([taken, *map(rows, parts)]) == whole


@pytest.mark.parametrize("broken", [{0, 3, 11}, set(range(8))])
def test_replacements_in_a_resident_set_are_those_of_a_streamed_one(broken):
    data = as_set(Arrays(arrays(24).source.pixels, broken))
    how = {"preprocess": SMALL_RULE, "augment": SMALL_AUGMENT, "epochs": 2, "on_unreadable": "replace"}
    whole, streamed = train(data, **how), train(data, **how, resident=False)
    ids = [[b.ids.tolist() for b in batches] for batches in (whole, streamed)]
    assert ids[0] == ids[1]
    assert (whole._whole is None) == (len(broken) == 8)  # the size is read off one of the first
    assert sorted(whole.replaced) == sorted(streamed.replaced)
    for batch in whole if whole._whole is not None else ():
        for i, image in zip(batch.ids, batch.images, strict=True):
            assert (image.permute(1, 2, 0).numpy() == data.read(i)).all()


def test_an_evaluation_skips_what_cannot_be_read_of_a_resident_set_too():
    data = as_set(Arrays(arrays(20).source.pixels, {3, 11}))
    batches = make_batches(data, batch=8, preprocess=SMALL_RULE, on_unreadable="skip", resident=True, rank=0, world=1)
    assert [i for batch in batches for i in batch.ids] == [i for i in range(20) if i not in (3, 11)]
    assert len(batches.coverage().skipped) == 2


def test_a_set_that_is_gone_is_one_line_after_eight_draws(many):
    gone = as_set(type(many.source)([b"junk"] * 16))
    with pytest.raises(DataError, match=r"set/\d+.jpg cannot be read, nor can 8 images drawn in its place") as caught:
        list(train(gone, on_unreadable="replace"))
    assert "\n" not in str(caught.value)
    assert str(caught.value).endswith("vitreous check a/set")


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"on_unreadable": "ignore"}, "on_unreadable='ignore' is unknown; give raise, replace or skip"),
        ({"on_unreadable": "replace", "shuffle": False}, "is for training, .* leave it out, or give skip"),
    ],
)
def test_replacing_is_refused_where_it_has_no_meaning(many, wrong, words):
    with pytest.raises(ConfigError, match=words):
        train(many, **wrong)


@pytest.mark.parametrize("several", [False, True])
def test_pictures_without_a_label_serve_where_none_is_needed(several):
    data = arrays(16)
    labels = np.full((16, 3) if several else 16, -1)
    labels[5] = 1
    data = replace(data, labels=labels)
    how = {"preprocess": SMALL_RULE, "augment": SMALL_AUGMENT}
    for batch in train(data, **how, labelled=False):
        assert (batch.labels.numpy() == labels[batch.ids].clip(0)).all()
    if not several:
        with pytest.raises(DataError, match="15 images of a/set have no label"):
            train(data, **how)


# Where pictures lie, and who reads them -------------------------------------------------------------------------------


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_a_resident_set_is_never_twice_on_the_host(device):
    """numpy holds at most slices on their way; `meta` stands for a device with memory of its own."""
    data = as_set(Arrays(np.zeros((4096, 16, 16, 3), np.uint8)))
    batches = make_batches(data, batch=8, preprocess=Preprocess(size=(16, 16)), device=device, rank=0, world=1)
    tracemalloc.start()
    whole = batches._whole.images
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert whole.shape == (4096, 3, 16, 16)
    assert peak < whole.nbytes / 4


def ragged(sizes):
    pictures = [scene(i, *size) for i, size in enumerate(sizes)]
    data = as_set(Arrays(np.zeros((len(sizes), 1, 1, 3), np.uint8)))
    return replace(data, source=HeldPixels(data.source, data.ids, pictures, np.zeros(len(sizes), bool)))


def test_pictures_of_several_sizes_lie_in_one_frame_that_is_no_more_than_eight_times_their_mean():
    near, far = ragged([(12, 16), (16, 12), (14, 14)] * 4), ragged([(2, 60), (60, 2), (14, 14)] * 4)
    how = {"preprocess": SMALL_RULE, "augment": SMALL_AUGMENT, "batch": 4}
    assert train(near, **how, device="meta")._whole is None  # of its own accord on a GPU alone
    batches = train(near, **how, resident=True)
    for batch in batches:
        for i, image, (tall, wide) in zip(batch.ids, batch.images, batch.sizes, strict=True):
            assert (image[:, :tall, :wide].permute(1, 2, 0).numpy() == near.read(i)).all()
            assert image[:, tall:].sum() == image[:, :, wide:].sum() == 0
    assert batches._whole.images.shape == (12, 3, 16, 16)
    with pytest.raises(ConfigError, match="a/set cannot lie whole on cpu"):
        next(iter(train(far, **how, resident=True)))


def test_a_set_larger_than_the_free_memory_is_streamed(monkeypatch):
    data = arrays(40)
    monkeypatch.setattr(residing, "_free_memory", lambda: int(40 * 12 * 12 * 3 / residing.RESIDENT_SHARE) + 1)
    assert train(data, preprocess=SMALL_RULE, augment=SMALL_AUGMENT)._whole is not None
    assert train(data, preprocess=SMALL_RULE, augment=SMALL_AUGMENT, world=2)._whole is None
    monkeypatch.undo()
    assert 2**20 < residing._free_memory() < 2**50


def test_processes_start_where_enough_is_read_to_pay_for_them(many):
    """The loop's epochs have no end, so it says how much it will read."""
    assert train(many, workers=4, epochs=2**31)._processes
    assert not train(many, workers=4, epochs=2**31, reads=49_999)._processes
    assert train(many, workers=4, epochs=2**31, reads=50_000)._processes
    assert not train(many, workers=2, epochs=2**31, reads=50_000)._processes


def test_what_could_not_be_held_is_replaced_as_if_read(damaged):
    """Crops differ, being taken from smaller pictures; which pictures come does not."""
    held = hold(damaged, short_side=40, preprocess=RULE, on_unreadable="defer")
    batches = train(held, on_unreadable="replace")
    assert [b.ids.tolist() for b in batches] == [b.ids.tolist() for b in train(damaged, on_unreadable="replace")]
    assert {name for name, _ in batches.replaced} == {f"set/{i}.jpg" for i in BROKEN}


def test_a_picture_is_never_its_own_replacement():
    """Of two pictures, the other one, at every address."""
    data = as_set(Arrays(arrays(2).source.pixels, {1}))
    batches = train(data, preprocess=SMALL_RULE, augment=SMALL_AUGMENT, batch=2, epochs=50, on_unreadable="replace")
    assert {i for batch in batches for i in batch.ids.tolist()} == {0}


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
def test_a_gpu_is_given_the_same_pictures_slice_by_slice(monkeypatch):
    monkeypatch.setattr(residing, "IMAGES_PER_COPY", 5)
    data = as_set(Arrays(arrays(24).source.pixels, {3, 11}))
    how = {"preprocess": SMALL_RULE, "augment": SMALL_AUGMENT, "repeats": 2, "on_unreadable": "replace"}
    for there, here in zip(train(data, **how, device="cuda"), train(data, **how), strict=True):
        assert torch.equal(there.images.cpu(), here.images)
        assert torch.equal(there.labels.cpu(), here.labels)
