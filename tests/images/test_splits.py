"""Splits that tear nothing apart, and subsets inside subsets."""

from collections import Counter
from dataclasses import replace
from functools import cache
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from picture_files import class_folders, encoded, photo
from pictures_in_memory import clean_files, encode, make_set, noise_picture
from PIL import Image

from vitreous import images
from vitreous.errors import DataError
from vitreous.images import splits
from vitreous.images.health import duplicates
from vitreous.images.imageset import Scan
from vitreous.images.sources import image_file


def names(data):
    return [data.name(i) for i in range(len(data))]


def side(data):
    return dict(zip(names(data), data.splits.tolist(), strict=True))


@settings(max_examples=40)
@given(st.integers(0, 10**6), st.integers(1, 5), st.floats(0.05, 0.6))
def test_a_split_keeps_groups_whole_and_classes_in_both_sides(seed, largest, fraction):
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 4, 120)
    groups = np.repeat(np.arange(120), rng.integers(1, largest + 1, 120))[:120]
    second = splits.make_split(labels, [f"{i}.png" for i in range(120)], groups, fraction=fraction, seed=seed)
    for group in np.unique(groups):
        assert len(set(second[groups == group])) == 1
    for c in range(4):
        count = int((labels == c).sum())
        if count > 1 and largest == 1:
            assert second[labels == c].sum() == min(max(round(fraction * count), 1), count - 1)
        assert count == 0 or not second[labels == c].all()


@settings(max_examples=40)
@given(st.lists(st.integers(1, 4), min_size=1, max_size=4), st.floats(0.01, 0.99), st.integers(0, 99), st.booleans())
def test_no_class_goes_over_whole_however_small_it_is(sizes, fraction, seed, in_pairs):
    labels = np.repeat(np.arange(len(sizes)), sizes)
    groups = np.arange(len(labels)) // (2 if in_pairs else 1)
    second = splits.make_split(labels, [f"{i}.png" for i in range(len(labels))], groups, fraction=fraction, seed=seed)
    for c, size in enumerate(sizes):
        over = int(second[labels == c].sum())
        assert over < size
        if not in_pairs and size > 1:
            assert over >= 1


def test_a_class_sorted_folder_is_split_in_every_class(tmp_path):
    data = images.open(class_folders(tmp_path, {"a": 10, "b": 20, "c": 5}))
    assert data.split("test").counts.tolist() == [2, 4, 1]
    assert "20 % of each class were set aside as test (seed 0; no duplicates found)" in str(data)
    written = data.about["split"]
    assert (written["made"], written["seed"], written["train"], written["test"]) == (True, 0, 28, 7)


def test_a_split_depends_on_the_seed_and_on_names_alone(tmp_path):
    root = class_folders(tmp_path / "one", {"a": 20, "b": 20})
    first = images.open(root)
    again = images.open(class_folders(tmp_path / "elsewhere", {"b": 20, "a": 20}), seed=0)
    assert {n.split("/")[1] for n in names(first.split("test")) if n[0] == "a"} == {
        n.split("/")[1] for n in names(again.split("test")) if n[0] == "a"
    }
    assert side(first) == side(images.open(root))
    assert side(first) != side(images.open(root, seed=1))


def test_a_new_picture_leaves_most_others_where_they_were(tmp_path):
    root = class_folders(tmp_path, {"a": 40, "b": 40})
    before = side(images.open(root))
    (root / "a" / "000.png").write_bytes(encoded(500))
    after = side(images.open(root))
    assert sum(before[name] != after[name] for name in before) <= 2


def test_copies_and_near_copies_stay_together(tmp_path):
    root = class_folders(tmp_path, {"a": 20, "b": 20})
    for i in range(20):
        (root / "a" / f"copy{i}.png").write_bytes(encoded(i))
        (root / "b" / f"near{i}.jpg").write_bytes(encoded(20 + i, "JPEG", quality=60))
    for seed in range(3):
        found = side(images.open(root, seed=seed))
        assert all(found[f"a/{i}.png"] == found[f"a/copy{i}.png"] for i in range(20))
        assert all(found[f"b/{i}.png"] == found[f"b/near{i}.jpg"] for i in range(20))
        assert Counter(found.values())["test"] == 16
    assert "kept together: 40 exact copies, 80 with near copies" in str(images.open(root))


CHANGES = [
    lambda image: image.resize((72, 54), Image.Resampling.LANCZOS),
    lambda image: image.resize((190, 140), Image.Resampling.BICUBIC),
    lambda image: image.point(lambda v: min(255, int(v * 1.15 + 5))),
    lambda image: image.convert("L"),
    lambda image: image.crop((1, 1, 95, 71)),
    lambda image: image,
]


def test_what_check_calls_a_duplicate_no_split_separates(tmp_path):
    """One rule for both: check finds the planted copies of a set that we split, and never a leak."""
    for i in range(60):
        image = noise_picture(i)
        (tmp_path / "ab"[i % 2]).mkdir(exist_ok=True)
        image.save(tmp_path / "ab"[i % 2] / f"{i}.jpg", quality=90)
        if i < 24:
            CHANGES[i % 6](image).save(tmp_path / "ab"[i % 2] / f"{i}-changed.jpg", quality=50 + i)
    for seed in range(4):
        data = images.open(tmp_path, seed=seed)
        findings = {f.kind: f for f in images.health.check(data).findings}
        assert len(findings["near-duplicate"].cases) == 24
        assert "leak" not in findings
        dev = splits.cut_dev(data, 0.3, seed)[1].ids
        torn = [
            case for case in findings["near-duplicate"].cases if np.isin(data.ids[list(case.images)], dev).sum() == 1
        ]
        assert not torn
    shuffled = np.where(np.random.default_rng(0).random(len(data)) < 0.5, "test", "train")
    assert images.health.check(replace(data, splits=shuffled)).find("leak").cases, "the law is not empty"


@settings(deadline=None, max_examples=20)
@given(st.sets(st.integers(0, 47), min_size=6), st.randoms(use_true_random=False))
def test_a_part_of_a_checked_set_has_the_groups_of_one_read_alone(chosen, random):
    """Nothing is read again after a check, and a run that goes on without one cuts the same dev split."""
    data = _with_copies()
    images.health.check(data, cache=False, workers=0)
    order = sorted(chosen)
    random.shuffle(order)
    part = data.take(np.array(order))
    recalled, told = splits.find_groups(part)
    read, said = splits.find_groups(replace(part, scan=Scan()))  # forgotten: it must read
    assert _partition(recalled) == _partition(read)
    assert told == said


@cache
def _with_copies():
    """16 pictures, each with an exact copy, and a copy saved anew."""
    files = {f"{c}/{i}-{kind}.jpg": raw for i in range(16) for c in "ab"[i % 2] for kind, raw in _thrice(i)}
    return make_set(files)


def _thrice(i):
    picture = noise_picture(i)
    first = encode(picture, quality=90)
    return ("one", first), ("same", first), ("near", encode(picture, quality=60))


def _partition(groups):
    members = {}
    for place, group in enumerate(groups.tolist()):
        members.setdefault(group, set()).add(place)
    return sorted(map(sorted, members.values()))


def test_a_turned_copy_is_a_near_copy(tmp_path):
    root = class_folders(tmp_path, {"a": 6, "b": 6})
    exif = Image.Exif()
    exif[image_file.ORIENTATION] = 6
    photo(0).transpose(Image.Transpose.ROTATE_90).save(root / "a" / "turned.png", exif=exif)
    data = images.open(root)
    assert data.groups[names(data).index("a/turned.png")] == data.groups[names(data).index("a/0.png")]


def shot(path, number, moment, camera="One"):
    exif = Image.Exif()
    exif[image_file.CAMERA_MODEL] = camera
    exif.get_ifd(image_file.EXIF_PART)[image_file.TAKEN_AT] = moment
    photo(number).save(path, exif=exif)


def test_a_burst_stays_together(tmp_path):
    root = class_folders(tmp_path, {"a": 4, "b": 4})
    for i in range(5):  # another scene each time, so only the clock joins them
        shot(root / "a" / f"burst{i}.jpg", 50 + i, f"2026:05:01 12:00:{2 * i:02d}")
        shot(root / "b" / f"slow{i}.jpg", 60 + i, f"2026:05:01 13:{i:02d}:00")
        shot(root / "b" / f"other{i}.jpg", 70 + i, f"2026:05:01 12:00:{2 * i:02d}", camera=f"Two{i}")
    data = images.open(root)
    groups = dict(zip(names(data), data.groups.tolist(), strict=True))
    assert len({groups[f"a/burst{i}.jpg"] for i in range(5)}) == 1
    assert len({groups[f"b/{kind}{i}.jpg"] for kind in ("slow", "other") for i in range(5)}) == 10
    assert "5 in bursts" in str(data)


def test_three_seconds_are_still_a_burst_and_four_are_none(tmp_path):
    root = class_folders(tmp_path, {"a": 2})
    for i, second in enumerate((0, 3, 7)):
        shot(root / "a" / f"shot{i}.jpg", 50 + i, f"2026:05:01 12:00:{second:02d}")
    data = images.open(root)
    groups = dict(zip(names(data), data.groups.tolist(), strict=True))
    assert groups["a/shot0.jpg"] == groups["a/shot1.jpg"] != groups["a/shot2.jpg"]


def test_a_clock_that_was_never_set_makes_no_burst(tmp_path):
    root = class_folders(tmp_path, {"a": 2, "b": 2})
    for i in range(30):
        shot(root / "a" / f"x{i}.jpg", 100 + i, "2000:01:01 00:00:00")
    assert len(set(images.open(root).groups.tolist())) == 34


def test_group_by_a_regular_expression(tmp_path):
    root = tmp_path
    for c in "ab":
        (root / c).mkdir()
        for p in range(6):
            for k in range(3):
                (root / c / f"patient{p}-{k}.png").write_bytes(encoded(100 * (c == "b") + 10 * p + k))
    data = images.open(root, group_by=r"patient(\d+)")
    sides = {}
    for name, where in side(data).items():
        sides.setdefault(name.split("patient")[1][0], set()).add(where)
    assert all(len(s) == 1 for s in sides.values())  # a patient of both classes, too
    assert set(data.splits.tolist()) == {"train", "test"}
    assert "6 groups by 'patient(\\\\d+)' on the path" in str(data)
    with pytest.raises(DataError, match=r"group_by='pat1ent' matches no path, such as a/patient0-0\.png; correct it"):
        images.open(root, group_by="pat1ent")
    with pytest.raises(DataError, match=r"group_by='\(' is neither a column nor a regular expression"):
        images.open(root, group_by="(")


def test_unreadable_pictures_are_like_no_other(tmp_path):
    root = class_folders(tmp_path, {"a": 5, "b": 5})
    for i in range(4):
        (root / "a" / f"broken{i}.png").write_bytes(b"")
    data = images.open(root)
    assert len(set(data.groups.tolist())) == len(data)


def test_a_class_that_is_one_burst_stays_in_train_and_it_is_said(tmp_path):
    root = class_folders(tmp_path, {"a": 10})
    (root / "b").mkdir()
    for i in range(6):
        (root / "b" / f"{i}.png").write_bytes(encoded(200))
    data = images.open(root)
    assert data.split("train").counts[1] == 6
    assert "1 classes have no test image: b" in str(data)


def test_dev_is_cut_from_train_alone_seeded_stratified_and_grouped(tmp_path):
    root = class_folders(tmp_path, {f"{s}/{c}": 20 for s in ("train", "test") for c in "ab"})
    for i in range(10):
        (root / "train" / "a" / f"copy{i}.png").write_bytes((root / "train" / "a" / f"{i}.png").read_bytes())
    data = images.open(root)
    train, dev = splits.cut_dev(data, 0.2, seed=3)
    assert set(names(train)) | set(names(dev)) == set(names(data.split("train")))
    assert not set(names(train)) & set(names(dev))
    assert dev.counts.tolist() == [6, 4]
    assert all((f"train/a/{i}.png" in names(dev)) == (f"train/a/copy{i}.png" in names(dev)) for i in range(10))
    assert names(splits.cut_dev(data.split("train"), 0.2, seed=3)[1]) == names(dev)
    assert names(splits.cut_dev(data, 0.2, seed=4)[1]) != names(dev)
    assert "dev: 10 images cut from train (seed 3, stratified" in str(dev)
    with pytest.raises(DataError, match="has no training images to cut a dev split from"):
        splits.cut_dev(data.split("test"))


def test_pictures_are_read_once_for_all_cuts_of_a_set(monkeypatch):
    data, reads = replace(make_set(clean_files(20)), groups=None), []
    read = duplicates.gather
    monkeypatch.setattr(duplicates, "gather", lambda *given: reads.append(1) or read(*given))
    cuts = [names(splits.cut_dev(data, 0.2, seed)[1]) for seed in (3, 4, 3)]
    splits.folds(data.split("train"), 2)
    assert cuts[0] == cuts[2] != cuts[1]
    assert len(reads) == 1


def test_subsets_lie_inside_each_other_and_are_stratified():
    data = images.open("fashion")
    previous: set[int] = set()
    for fraction in (0.01, 0.03, 0.1, 0.3, 1.0):
        part = images.open(data, fraction=fraction, seed=5)
        assert len(part) == round(fraction * len(data))
        assert previous <= set(part.ids.tolist())
        counts = part.split("train").counts
        assert counts.max() - counts.min() <= 1
        previous = set(part.ids.tolist())
    train = [set(images.open(data, split="train", limit=n).ids.tolist()) for n in (10, 37, 100, 1000)]
    assert all(a <= b for a, b in pairwise(train))
    assert [len(t) for t in train] == [10, 37, 100, 1000]
    assert set(images.open(data, split="train", limit=10).labels.tolist()) == set(range(10))
    assert set(images.open(data, limit=100).ids.tolist()) != set(images.open(data, limit=100, seed=1).ids.tolist())


def test_rare_classes_come_first_into_a_subset(tmp_path):
    data = images.open(class_folders(tmp_path, {"train/common": 40, "train/rare": 2, "test/common": 4, "test/rare": 1}))
    assert images.open(data, split="train", limit=4).counts.tolist() == [3, 1]


def test_samples_keep_their_ids_in_subsets():
    data = images.open("fashion")
    part = images.open(data, limit=50, classes=["Bag", "Coat"])
    assert all(np.array_equal(part.read(i), data.read(int(part.ids[i]))) for i in range(50))


def test_classes_take_some_in_the_sets_order():
    data = images.open("fashion", classes=["Sneaker", "Coat"])
    assert data.classes == ("Coat", "Sneaker")
    assert data.counts.tolist() == [1090, 1090]
    whole = images.open("fashion")
    assert all(data.classes[c] == whole.classes[whole.labels[i]] for i, c in zip(data.ids, data.labels, strict=True))
    with pytest.raises(DataError, match="fashion has no class 'Hat'; it has: T-shirt/top"):
        images.open("fashion", classes=["Hat"])


@pytest.mark.parametrize(
    ("how", "line"),
    [
        ({"limit": 0}, "limit=0 leaves no image"),
        ({"fraction": 0}, "fraction=0 is not above 0"),
        ({"fraction": 1.5}, "fraction=1.5 is not above 0 and at most 1"),
        ({"limit": 3, "fraction": 0.5}, "limit and fraction were both given"),
        ({"split": "dev"}, "fashion has no split 'dev'; it has: test, train"),
        ({"classes": []}, "classes= names no class"),
    ],
)
def test_what_makes_no_sense_is_refused(how, line):
    with pytest.raises(DataError, match=line):
        images.open("fashion", **how)


def test_several_labels_are_split_by_the_rarest(tmp_path):
    class_folders(tmp_path, {"pics": 40})
    rows = [f"pics/{i}.png,{'common|rare' if i % 8 == 0 else 'common'}" for i in range(40)]
    (tmp_path / "set.csv").write_text("path,label\n" + "\n".join(rows))
    data = images.open(tmp_path / "set.csv")
    assert data.split("test").counts.tolist() == [8, 1]
    assert images.open(data, classes=["rare"]).labels.tolist() == [[1]] * 5
