"""Series: images taken together, as they are named, and as they seem."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from picture_files import class_folders, encoded, photo
from pictures_in_memory import make_set
from PIL import Image

from vitreous import images
from vitreous.errors import DataError
from vitreous.images import open_data, series, splits
from vitreous.images.series import Guess
from vitreous.images.sources import image_file

HOURS = ("2026:05:01 09:10:00", "2026:05:01 09:50:00", "2026:05:01 10:05:00", "2026:05:01 10:20:00")


def shot(path, number, moment, camera="A1"):
    """A photo with EXIF; without a moment, the camera alone."""
    exif = Image.Exif()
    exif[image_file.CAMERA_MODEL] = camera
    if moment:
        exif.get_ifd(image_file.EXIF_PART)[image_file.TAKEN_AT] = moment
    path.parent.mkdir(parents=True, exist_ok=True)
    photo(number).save(path, exif=exif)


def numbered(root, counts, *, by_folder=False):
    """DATA/CLASS/N.png, or DATA/CLASS/day D/N.png with three images a day."""
    for c, (name, count) in enumerate(counts.items()):
        for i in range(count):
            file = root / name / (f"day {i // 3}/{i}.png" if by_folder else f"{i}.png")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(encoded(100 * c + i))
    return root


def together(groups, names):
    """The names of each group of two or more."""
    found = {}
    for group, name in zip(groups.tolist(), names, strict=True):
        found.setdefault(group, []).append(name)
    return sorted(members for members in found.values() if len(members) > 1)


# ---------------------------------------------------------------------------------------------------- as they are named


@pytest.mark.parametrize("group_by", ["folder", r"day (\d)"])
def test_no_split_no_dev_and_no_fold_separates_what_is_named(tmp_path, group_by):
    data = images.open(numbered(tmp_path, {"a": 12, "b": 12}, by_folder=True), group_by=group_by)
    day = [name.rpartition("/")[0] if group_by == "folder" else name.split("/")[1] for name in data.names]
    sides = [data.splits.tolist(), splits.folds(data, 3).tolist()]
    train, dev = splits.cut_dev(data, 0.4)
    for where in sides:
        assert len(set(zip(day, where, strict=True))) == len(set(day)), "a day lies on two sides"
        assert len(set(where)) > 1
    days = [{data.names[i].rpartition("/")[0] for i in part.ids} for part in (train, dev)]
    assert not days[0] & days[1]
    assert days[1]


def test_a_folder_is_a_group_and_a_column_of_that_name_wins(tmp_path):
    root = numbered(tmp_path, {"a": 6, "b": 6}, by_folder=True)
    assert "4 groups by folder" in str(images.open(root, group_by="folder"))
    rows = "".join(f"{name},{name[0]},{i % 3}\n" for i, name in enumerate(images.open(root).names))
    (tmp_path / "a.csv").write_text("path,label,folder\n" + rows)
    assert "3 groups by column 'folder'" in str(images.open(tmp_path / "a.csv", group_by="folder"))


def test_photos_of_one_day_are_a_group_and_one_without_a_date_stands_alone(tmp_path):
    for i, day in enumerate((1, 1, 1, 2, 2, 3, 0)):
        shot(tmp_path / "ab"[i % 2] / f"{i}.jpg", i, f"2026:05:0{day} {i + 1:02}:00:00" if day else "")
    data = images.open(tmp_path, group_by="exif-day")
    assert together(data.groups, data.names) == [["a/0.jpg", "a/2.jpg", "b/1.jpg"], ["a/4.jpg", "b/3.jpg"]]
    assert "3 groups by EXIF day, 1 images without one" in str(data)


@pytest.mark.parametrize(
    ("group_by", "words"),
    [
        ("exif-day", "tells its day by EXIF; group by folder, a column or a regular expression"),
        ("patient", r"group_by='patient' matches no path, such as a/0.png, nor is it one of the columns who; correct"),
        ("(", r"group_by='(' is neither a column nor a regular expression: .*(columns: who)"),
        ("", "group_by='' matches no path"),
    ],
)
def test_what_groups_nothing_is_refused(tmp_path, group_by, words):
    root = numbered(tmp_path, {"a": 4, "b": 4})
    rows = "".join(f"{name},{name[0]},{i % 3}\n" for i, name in enumerate(images.open(root).names))
    (tmp_path / "t.csv").write_text("path,label,who\n" + rows)
    pattern = words.replace("(", r"\(").replace(")", r"\)")
    with pytest.raises(DataError, match=pattern):
        images.open(tmp_path / "t.csv", group_by=group_by)


def test_other_groups_make_another_split_and_one_note_of_it(tmp_path):
    data = images.open(numbered(tmp_path, {"a": 20, "b": 20}))
    pairs = np.arange(40) // 2
    again = open_data.regroup(data, pairs, "20 pairs")
    assert len(set(zip(pairs.tolist(), again.splits.tolist(), strict=True))) == 20
    assert len(set(zip(pairs.tolist(), data.splits.tolist(), strict=True))) > 20
    (note,) = [note for note in again.notes if note.startswith("no test split was given")]
    assert "20 pairs" in note
    own = replace(data, about={})  # as if its split had come with it
    assert (open_data.regroup(own, pairs, "").splits == own.splits).all()


# --------------------------------------------------------------------------------------------------------- as they seem


def guessed(data):
    return {guess.by: together(guess.groups, data.names) for guess in series.guesses(data)}


def test_file_numbers_that_follow_each_other_are_a_series_of_ten_at_most(tmp_path):
    root = numbered(tmp_path, {"a": 23, "b": 4})
    (root / "b" / "20.png").write_bytes(encoded(900))
    found = guessed(images.open(root))["neighbouring file numbers"]
    assert [len(names) for names in found] == [10, 10, 3, 4]
    assert set(found[0]) == {f"a/{i}.png" for i in range(10)}
    assert ["b/0.png", "b/1.png", "b/2.png", "b/3.png"] in found, "20 is far from 3"


def test_names_without_numbers_and_numbers_far_apart_are_no_series(tmp_path):
    class_folders(tmp_path, {"a": 3, "b": 3})
    for i, file in enumerate(sorted(tmp_path.glob("*/*.png"))):
        file.rename(file.with_name(f"{'abcdef'[i]}.png" if i < 3 else f"{100 * i}.png"))
    assert guessed(images.open(tmp_path)) == {}


def test_folders_of_a_class_are_series_and_a_class_in_one_folder_has_none(tmp_path):
    root = numbered(tmp_path, {"a": 9, "b": 9}, by_folder=True)
    assert [len(names) for names in guessed(images.open(root))["subfolders"]] == [3] * 6
    assert "subfolders" not in guessed(images.open(numbered(tmp_path / "flat", {"a": 9, "b": 9})))


def test_one_camera_within_an_hour_is_a_series(tmp_path):
    for i, moment in enumerate(HOURS):
        shot(tmp_path / "ab"[i % 2] / f"{'wxyz'[i]}.jpg", i, moment)
    shot(tmp_path / "a" / "v.jpg", 9, HOURS[0], camera="B2")
    found = guessed(images.open(tmp_path))
    assert found["the same camera and hour"] == [["a/w.jpg", "a/y.jpg", "b/x.jpg"]], "70 minutes are too long"


def test_images_are_alike_beyond_what_chance_makes_alike_between_classes():
    """Ten photos of each class, five shots of each; the shots are found, and photos of one class stay apart."""
    draw = np.random.default_rng(0)
    photos, labels = draw.normal(size=(20, 64)), np.repeat([0, 1], 50)
    rows = np.repeat(photos, 5, axis=0) + 0.3 * draw.normal(size=(100, 64)) + 3.0 * labels[:, None]
    found = series.alike(rows, labels, np.arange(100))
    assert Counter(found.groups.tolist()) == dict.fromkeys(range(0, 100, 5), 5)
    alone = series.alike(draw.normal(size=(100, 64)) + 3.0 * labels[:, None], labels, np.arange(100))
    assert alone is None or series.in_series(alone.groups).mean() < 0.2


def test_a_copy_under_another_label_hides_no_series():
    """It is alike by more than chance, and is known."""
    draw = np.random.default_rng(0)
    rows, labels = np.repeat(draw.normal(size=(20, 64)), 5, axis=0), np.repeat([0, 1], 50)
    rows = rows + 0.3 * draw.normal(size=(100, 64))
    rows[:5] = draw.normal(size=(5, 64))  # each taken alone
    rows[50] = rows[0]
    copies = np.arange(100)
    hidden = series.in_series(series.alike(rows, labels, copies).groups).mean()
    copies[50] = 0
    assert series.in_series(series.alike(rows, labels, copies).groups).mean() > max(0.8, hidden)


def test_a_class_with_too_few_series_goes_back_to_copies():
    labels, copies = np.repeat([0, 1], 12), np.arange(24)
    copies[1] = 0
    guess = Guess(np.r_[np.arange(12) // 3, np.full(12, 99)], "days", "")
    found = series.joined(guess, copies, labels)
    assert together(found, range(24)) == [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9, 10, 11]]
    assert series.joined(Guess(labels, "classes", ""), copies, labels) is None


def test_groups_at_random_have_as_many_of_each_class():
    labels, groups = np.arange(60) % 3, np.arange(60) // 7
    found = series.shuffled(groups, labels, 0)
    assert (found != groups).any()
    for group in np.unique(groups):
        assert sorted(labels[found == group]) == sorted(labels[groups == group])


def test_nothing_is_read_to_guess():
    data = make_set({f"train/{'ab'[i % 2]}/{i}.png": encoded(i) for i in range(4)})
    assert data.scan.last is None
    series.guesses(data)
    assert data.scan.last is None
