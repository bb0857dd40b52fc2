"""A pack is whole or absent, is reused while nothing has changed, and says what is wrong with it in one line."""

import json
import os
import pickle
import signal
import sys
import time
from dataclasses import replace

import forks
import numpy as np
import pytest
from picture_files import class_folders
from picture_sets import Arrays, Files, arrays, as_set, encoded, make_batches, photos, scene
from shared_files import ROOT

import vitreous
from vitreous.errors import BusyError, ConfigError, DataError, ExistsError
from vitreous.files import lock
from vitreous.images.imageset import Scan
from vitreous.images.pixels import decode, preprocess
from vitreous.images.pixels.augment import Augment
from vitreous.images.splits import cut_dev
from vitreous.images.stores import disk as packing
from vitreous.images.stores.disk import Pack, is_pack, pack
from vitreous.models.preprocess import IMAGENET_MEAN, IMAGENET_STD, Preprocess

RULE = Preprocess(size=(32, 32), fit="crop", short_side=36, interpolation="bicubic", antialias=True)


@pytest.fixture(scope="module")
def data():
    return photos(30, test=10)


@pytest.fixture
def packed(data, tmp_path):
    return pack(data, tmp_path / "set.pack", short_side=40, preprocess=RULE)


def test_a_pack_holds_every_picture_label_and_name(data, packed):
    """Train pictures at the short side in Pillow's pixels, test pictures finished to the rule's letter."""
    assert len(packed) == 30
    assert isinstance(packed, vitreous.images.imageset.ImageSet)
    for name in ("ids", "labels", "splits"):
        assert np.array_equal(getattr(packed, name), getattr(data, name))
    assert packed.classes == data.classes
    for i in range(30):
        assert packed.name(i) == data.name(i)
        if i < 20:
            assert min(packed.read(i).shape[:2]) == 40
            assert np.array_equal(packed.read(i), decode.shrink(data.read(i), 40))
        else:
            assert np.array_equal(packed.read(i), preprocess.pixels(data.read(i), RULE))
    assert np.array_equal(Pack.open(packed.path).read(29), packed.read(29))


@pytest.mark.parametrize("splits", [[""], ["train/", "test/"], ["train/", "val/", "test/"]])
def test_a_pack_opens_as_data_and_gives_the_same_dev_split(splits, tmp_path):
    """Copies are found in the set's own pixels, so the pack has to remember them."""
    root = class_folders(tmp_path / "set", {f"{split}{c}": 20 for split in splits for c in "ab"})
    for i in range(10):
        raw = (root / splits[0] / "a" / f"{i}.png").read_bytes()
        (root / splits[0] / "a" / f"copy{i}.png").write_bytes(raw)
    whole = vitreous.images.open(root)
    pack(whole, tmp_path / "set.pack", short_side=4)
    packed = vitreous.images.open(tmp_path / "set.pack")
    assert isinstance(packed, Pack)
    assert packed.kind == "pack"
    assert packed.notes == whole.notes
    assert packed.about["split"] == whole.about["split"]
    for name in ("ids", "labels", "splits", "own_splits"):
        assert np.array_equal(getattr(packed, name), getattr(whole, name))
    for mine, theirs in zip(cut_dev(packed, 0.3, seed=2), cut_dev(whole, 0.3, seed=2), strict=True):
        assert np.array_equal(mine.ids, theirs.ids)
    with pytest.raises(DataError, match="was split when it was packed; name the set that it was made of"):
        vitreous.images.open(tmp_path / "set.pack", group_by="a")


def test_other_groups_are_another_pack(data, packed):
    with pytest.raises(ExistsError, match="holds other images, labels or splits"):
        pack(replace(data, groups=np.zeros(30, np.int64)), packed.path, short_side=40, preprocess=RULE)


def test_without_a_rule_test_pictures_keep_every_pixel(data, tmp_path):
    packed = pack(data, tmp_path / "p", short_side=40)
    assert all(np.array_equal(packed.read(i), data.read(i)) for i in range(20, 30))
    assert packed.preprocess is None


def test_nothing_lies_beside_a_finished_pack(packed, tmp_path):
    assert [p.name for p in tmp_path.iterdir()] == ["set.pack"]
    assert sorted(p.name for p in (tmp_path / "set.pack").iterdir()) == ["index.safetensors", "pixels.u8"]


def test_processes_write_the_same_bytes(data, packed, tmp_path):
    import multiprocessing

    other = pack(data, tmp_path / "other", short_side=40, preprocess=RULE, workers=2)
    for name in ("pixels.u8", "index.safetensors"):
        assert (tmp_path / "other" / name).read_bytes() == (tmp_path / "set.pack" / name).read_bytes()
    assert other.content_id == packed.content_id
    assert not multiprocessing.active_children()


def test_a_subset_keeps_its_ids_and_so_its_draws(data, tmp_path):
    some = data.take([17, 3, 25, 4])
    packed = pack(some, tmp_path / "some", short_side=40)
    assert packed.ids.tolist() == [17, 3, 25, 4]
    assert [packed.name(i) for i in range(4)] == [data.name(i) for i in (17, 3, 25, 4)]
    assert np.array_equal(packed.read(1), decode.shrink(data.read(3), 40))
    assert np.array_equal(packed.take([2]).read(0), data.read(25))


def test_the_same_content_and_settings_are_reused(data, packed, tmp_path):
    before = (tmp_path / "set.pack" / "pixels.u8").stat().st_ino
    again = pack(data, packed.path, short_side=40, preprocess=RULE)
    assert again.reused
    assert not packed.reused
    assert (tmp_path / "set.pack" / "pixels.u8").stat().st_ino == before
    assert "reused, nothing has changed" in str(again)
    other_colours = replace(RULE, mean=IMAGENET_MEAN, std=IMAGENET_STD)
    assert pack(data, packed.path, short_side=40, preprocess=other_colours).reused, "normalising comes after the pixels"


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"content_id": "other"}, DataError, r"set\.pack is stale: a/set has changed since it was packed; .*--force"),
        (
            {"short_side": 48},
            ExistsError,
            r"has short side 40, not 48; choose another place, or pack it again with --f",
        ),
        ({"preprocess": None}, ExistsError, "holds test pixels for another rule"),
        ({"take": [1, 2]}, ExistsError, "holds other images, labels or splits"),
    ],
)
def test_another_content_or_setting_is_noticed(data, packed, change, error, words):
    settings = {"short_side": 40, "preprocess": RULE} | {
        k: v for k, v in change.items() if k in ("short_side", "preprocess")
    }
    now = replace(data, content_id=change["content_id"]) if "content_id" in change else data
    now = now.take(change["take"]) if "take" in change else now
    with pytest.raises(error, match=words) as caught:
        pack(now, packed.path, **settings)
    assert "\n" not in str(caught.value)
    fresh = pack(now, packed.path, **settings, force=True)
    assert not fresh.reused
    assert len(fresh) == len(now)


def test_a_pixel_that_changed_is_noticed_when_it_is_read(packed, tmp_path):
    path = tmp_path / "set.pack" / "pixels.u8"
    raw = bytearray(path.read_bytes())
    raw[int(packed.source.starts[4]) + 11] ^= 1
    path.write_bytes(raw)
    found = Pack.open(packed.path)
    found.read(3)
    for look in (lambda: found.read(4), found.verify):
        with pytest.raises(
            DataError, match=r"set\.pack is damaged: the pixels of set/4\.jpg have changed; pack it again"
        ):
            look()


@pytest.mark.parametrize(
    ("file", "hurt"),
    [
        ("pixels.u8", lambda raw: raw[:-1]),
        ("pixels.u8", lambda raw: b""),
        ("index.safetensors", lambda raw: raw[:-9]),
        ("index.safetensors", lambda raw: raw[:-1] + bytes([raw[-1] ^ 1])),
        ("index.safetensors", lambda raw: b""),
        ("index.safetensors", lambda raw: raw[:40].replace(b"{", b"[") + raw[40:]),
    ],
)
def test_a_damaged_pack_is_one_line(packed, data, tmp_path, file, hurt):
    path = tmp_path / "set.pack" / file
    path.write_bytes(hurt(path.read_bytes()))
    for look in (lambda: Pack.open(packed.path), lambda: pack(data, packed.path, short_side=40, preprocess=RULE)):
        with pytest.raises(DataError, match=r"set\.pack is damaged: .*; pack it again with --force") as caught:
            look()
        assert "\n" not in str(caught.value)
    assert len(pack(data, packed.path, short_side=40, preprocess=RULE, force=True)) == 30


def test_what_is_no_pack_is_said(tmp_path, data):
    with pytest.raises(DataError, match=r"there is no pack .*absent; make it with: vitreous pack DATA"):
        Pack.open(tmp_path / "absent")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "letter.txt").write_text("mine")
    with pytest.raises(DataError, match=r"is not a pack: it has no index\.safetensors"):
        Pack.open(tmp_path / "other")
    for force in (True, False):
        with pytest.raises(ExistsError):
            pack(data, tmp_path / "other", force=force)
    assert (tmp_path / "other" / "letter.txt").read_text() == "mine"
    assert not is_pack(tmp_path / "other")


def test_unreadable_pictures_are_left_out_and_named(tmp_path):
    files = [encoded(scene(i, 40, 40)) for i in range(6)]
    files[2], files[5] = b"", files[5][:200]
    packed = pack(as_set(Files(files), test=2), tmp_path / "p")
    assert packed.ids.tolist() == [0, 1, 3, 4]
    assert [name for name, _ in packed.about["pack"]["left_out"]] == ["set/2.jpg", "set/5.jpg"]
    assert "left out, unreadable: set/2.jpg is empty" in str(packed)
    assert np.array_equal(packed.read(2), decode.decode(files[3], "x"))
    with pytest.raises(DataError, match=r"no image of a/set can be read; the first: set/0\.jpg is empty"):
        pack(as_set(Files([b"", b""])), tmp_path / "none")
    assert not (tmp_path / "none").exists()


def test_names_in_any_script_and_several_labels_survive(tmp_path):
    class Named(Arrays):
        def name(self, i):
            return ["日本/猫.jpg", "ßß\udcff.png", "a b\n.gif"][i]

    data = replace(as_set(Named(arrays(3).source.pixels)), labels=np.array([[1, 0, 1], [0, 0, 0], [1, 1, 1]]))
    packed = pack(data, tmp_path / "p")
    assert [packed.name(i) for i in range(3)] == [data.name(i) for i in range(3)]
    assert np.array_equal(packed.labels, data.labels)


def test_a_grey_set_stays_grey_and_finishes_for_colour_models(tmp_path):
    rule = Preprocess(size=(8, 8), interpolation="bilinear", antialias=True)
    data = arrays(6, channels=1, test=3)
    packed = pack(data, tmp_path / "p", preprocess=rule)
    assert packed.channels == 1
    one, two = (
        [b.images for b in make_batches(s.split("test"), batch=3, preprocess=rule, rank=0, world=1)]
        for s in (data, packed)
    )
    assert (one[0] == two[0]).all()


def test_batches_from_a_pack_are_those_of_the_set(data, packed):
    """Evaluation: bit for bit. Training: the same ids, order and boxes, cut from the smaller picture."""
    settings = {"batch": 10, "preprocess": RULE, "rank": 0, "world": 1, "workers": 0}
    for a, b in zip(*(make_batches(s.split("test"), **settings) for s in (data, packed)), strict=True):
        assert (a.images == b.images).all()
        assert (a.labels == b.labels).all()
    augment = Augment(size=(32, 32))
    for a, b in zip(
        *(make_batches(s.split("train"), **settings, augment=augment) for s in (data, packed)), strict=True
    ):
        assert (a.ids == b.ids).all()
        assert (a.plan.crop == b.plan.crop).all()
        assert (a.images.float() - b.images.float()).abs().mean() < 12


def test_finished_pixels_serve_no_other_rule(packed):
    other = replace(RULE, size=(16, 16), short_side=20)
    with pytest.raises(
        DataError, match=r"holds test pixels of another rule .* pack it again for this one with --force"
    ):
        make_batches(packed.split("test"), batch=2, preprocess=other, rank=0, world=1)
    make_batches(packed.split("train"), batch=2, preprocess=other, rank=0, world=1)


def test_a_pack_travels_to_worker_processes_without_its_pixels(packed):
    """The file is mapped again over there."""
    packed.read(0)
    sent = pickle.dumps(packed)
    assert len(sent) < 20_000
    assert np.array_equal(pickle.loads(sent).read(7), packed.read(7))


SLOW = """
import sys
from pathlib import Path
sys.path.insert(0, {tests!r})
from picture_sets import photos
from vitreous.images.stores import disk as packing

packing.IMAGES_PER_CHUNK, packing.SYNC_SECONDS = 4, 0.0
packing.pack(photos(40, log=Path({log!r}), seconds=0.03), {out!r}, short_side=40, workers=0)
"""


def test_a_killed_pack_is_absent_and_the_next_call_goes_on_from_there(tmp_path, monkeypatch):
    """SIGKILL in the middle: no OUT; then a second call reads only what was not safely written, to the same bytes."""
    out, log = tmp_path / "set.pack", tmp_path / "log"
    code = SLOW.format(tests=str(ROOT / "tests"), log=str(log), out=str(out))
    process = forks.Popen([sys.executable, "-c", code])
    journal = tmp_path / ".set.pack.packing" / "journal.jsonl"
    while not (journal.exists() and len(journal.read_bytes().splitlines()) > 3):
        assert process.poll() is None
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert not out.exists()
    with journal.open("ab") as file:
        file.write(b'{"number": 99, "si')  # as if killed while writing this line
    monkeypatch.setattr(packing, "IMAGES_PER_CHUNK", 4)
    log.write_text("")
    packed = pack(photos(40, log=log), out, short_side=40, workers=0)
    assert len(log.read_text()) <= 40 - 3 * 4
    packed.verify()
    whole = pack(photos(40), tmp_path / "whole", short_side=40)
    assert (out / "pixels.u8").read_bytes() == (tmp_path / "whole" / "pixels.u8").read_bytes()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["log", "set.pack", "whole"]
    assert whole.content_id == packed.content_id


def test_a_pack_between_its_two_renames_is_found(packed, tmp_path):
    """As a kill leaves it where the system cannot exchange two folders."""
    (tmp_path / "set.pack").rename(tmp_path / ".set.pack.replaced")
    assert np.array_equal(vitreous.images.open(tmp_path / "set.pack").ids, packed.ids)
    assert [path.name for path in tmp_path.iterdir()] == ["set.pack"]


def test_what_an_attempt_with_other_settings_left_is_not_taken(tmp_path, monkeypatch):
    monkeypatch.setattr(packing, "IMAGES_PER_CHUNK", 4)

    def stop(done, total):
        if done >= 8:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pack(photos(20), tmp_path / "p", short_side=40, progress=stop)
    assert not (tmp_path / "p").exists()
    packed = pack(photos(20), tmp_path / "p", short_side=30)
    assert {min(packed.read(i).shape[:2]) for i in range(20)} == {30}


FULL = """
import resource, sys
sys.path.insert(0, {tests!r})
from picture_sets import photos
from vitreous.errors import DataError
from vitreous.images.stores.disk import pack
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
try:
    pack(photos(30), {out!r}, workers=0)
except DataError as error:
    print(error)
"""


def test_a_full_disk_is_one_line_and_leaves_no_pack(tmp_path):
    """The system refuses to let a file grow, as it does when the disk is full."""
    out = tmp_path / "set.pack"
    done = forks.run(
        [sys.executable, "-c", FULL.format(tests=str(ROOT / "tests"), out=str(out))], capture_output=True, text=True
    )
    assert done.stderr == ""
    (line,) = done.stdout.splitlines()
    assert line.startswith(f"no room for the pack {out} (")
    assert "goes on where it stopped, or delete" in line
    assert not out.exists()
    assert len(pack(photos(30), out)) == 30
    assert [p.name for p in tmp_path.iterdir()] == ["set.pack"]


def test_two_cannot_pack_one_place_at_once(data, tmp_path):
    with (
        lock(tmp_path / ".p.packing" / "lock"),
        pytest.raises(BusyError, match=r"p is being packed by another process"),
    ):
        pack(data, tmp_path / "p")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda d: {"data": d.take([])}, "a/set has no images to pack"),
        (lambda d: {"data": d.take([1, 1])}, "taken with some images twice"),
        (lambda d: {"data": d, "short_side": 0}, "a short side of 0 pixels holds no image"),
    ],
)
def test_what_cannot_be_packed_is_one_line(data, tmp_path, change, words):
    with pytest.raises(DataError, match=words):
        pack(path=tmp_path / "p", **change(data))
    assert not any(tmp_path.iterdir())


def test_progress_is_told_and_results_have_a_json_form(data, tmp_path):
    told = []
    unread = replace(data, scan=Scan())
    packed = vitreous.pack(unread, tmp_path / "p", preprocess=RULE, progress=lambda *numbers: told.append(numbers))
    assert told[0] == (20, 20), "copies are looked for in train"
    assert told[1] == (0, 30)
    assert told[-1] == (30, 30)
    body = json.loads(json.dumps(packed.to_json()))
    assert body["images"] == 30
    assert body["splits"] == {"train": 20, "test": 10}
    assert body["preprocess"]["short_side"] == 36
    assert "<pre>" in packed._repr_html_()


def test_the_command_packs_and_reuses(tmp_path):
    def run(*words):
        call = [sys.executable, "-m", "vitreous", "pack", *map(str, words)]
        return forks.run(call, capture_output=True, text=True, cwd=tmp_path)

    for i in range(12):
        path = tmp_path / "photos" / "train" / f"class{i % 2}" / f"{i}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(encoded(scene(i, 40, 50)))
    first, again = (run("photos", "out.pack", "--short-side", "24", "--json") for _ in range(2))
    assert (first.returncode, first.stderr) == (0, "")
    body = json.loads(first.stdout)
    assert next(iter(body.items())) == ("schema", "vitreous.pack/1")
    assert (body["images"], body["reused"], json.loads(again.stdout)["reused"]) == (12, False, True)


def test_a_pack_needs_a_place():
    from vitreous.cli.pack import run

    with pytest.raises(ConfigError, match=r"a pack needs a place; give OUT: vitreous pack a/photos\.zip photos\.pack"):
        run("a/photos.zip", None)
    with pytest.raises(ConfigError, match="the index goes beside the shards, not to x; leave OUT away"):
        run("shards", "x", index=True)


def test_a_finished_pack_is_packed_again_only_by_its_own_rule(packed, tmp_path):
    found = vitreous.images.open(packed.path)
    for rule in (None, replace(RULE, size=(24, 24))):
        with pytest.raises(DataError, match=r"set\.pack holds test images only as finished .*packed from: a/set") as e:
            pack(found, tmp_path / "again", short_side=40, preprocess=rule)
        assert "\n" not in str(e.value)
    again = pack(found, tmp_path / "again", short_side=40, preprocess=RULE)
    assert again.preprocess == RULE
    assert all(np.array_equal(again.read(i), packed.read(i)) for i in range(30))
    assert pack(found.split("train"), tmp_path / "train", short_side=30).preprocess is None
    swapped = replace(found, splits=np.full(30, "train"))
    with pytest.raises(DataError, match="only as finished"):
        pack(swapped, tmp_path / "swapped", short_side=40, preprocess=RULE)


def test_a_pack_is_not_packed_again_with_a_larger_short_side(packed, tmp_path):
    with pytest.raises(DataError, match=r"at short side 40, not 48; ask for 40 or less, or pack the set .*: a/set"):
        pack(packed, tmp_path / "again", short_side=48, preprocess=RULE)
    smaller = pack(packed.split("train"), tmp_path / "again", short_side=32)
    assert min(smaller.read(0).shape[:2]) == 32
    assert len(pack(packed.split("test"), tmp_path / "test", preprocess=RULE)) == 10


@pytest.mark.parametrize("what", ["file", "folder", "pack", "link"])
def test_a_place_that_force_may_not_take_is_said_before_any_work(what, data, packed, tmp_path, monkeypatch):
    place = tmp_path / "set.pack" if what == "pack" else tmp_path / "other"
    if what == "file":
        place.write_text("mine")
    elif what == "link":
        place.symlink_to(tmp_path / "set.pack")
    else:
        place.mkdir(exist_ok=True)
        (place / "letter.txt").write_text("mine")
    before = sorted(tmp_path.rglob("*"))
    monkeypatch.setattr(packing, "_decode_all", lambda *_: pytest.fail("it decodes"))
    with pytest.raises(ExistsError, match=r"is not a folder|holds letter\.txt, which --force will not delete"):
        pack(data, place, force=True)
    assert sorted(tmp_path.rglob("*")) == before
