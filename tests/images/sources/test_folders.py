"""Class folders as people have them."""

import os
import shutil
import tempfile
from pathlib import Path

import numpy as np
import pytest
from picture_files import class_folders, encoded, photo

from vitreous import images
from vitreous.errors import DataError
from vitreous.images.sources.labels import split_in, split_of, without_split


def said(data):
    return "\n".join(data.notes)


def names(data):
    return [data.name(i) for i in range(len(data))]


@pytest.mark.parametrize(
    ("train", "second"),
    [
        ("train", "val"),
        ("train", "test"),
        ("Training", "Testing"),
        ("TRAIN_SET", "validation-set"),
        ("train2017", "val2017"),
        ("training_data", "dev"),
        ("trainset", "testset"),
        ("images_train", "images_test"),
        ("train", "valid"),
    ],
)
def test_the_second_split_is_test_however_it_is_spelled(tmp_path, train, second):
    class_folders(tmp_path, {f"{train}/cat": 3, f"{train}/dog": 2, f"{second}/cat": 1, f"{second}/dog": 2})
    data = images.open(tmp_path)
    assert data.kind == "folders"
    assert data.classes == ("cat", "dog")
    assert data.split("train").counts.tolist() == [3, 2]
    assert data.split("test").counts.tolist() == [1, 2]


def test_words_that_only_look_like_splits_are_none():
    assert [split_of(w) for w in ("trains", "testament", "valley", "devil", "cat", "train station", "")] == [
        "train", None, None, None, None, None, None,
    ]  # fmt: skip
    assert split_in("imagenette-128-train") == "train"
    assert split_in("train-0") == "train"
    assert split_in("latest-03") is None
    assert (
        without_split("oxford-pets-160-train")
        == without_split("oxford-pets-160-val")
        != without_split("imagenette-val")
    )


def test_of_three_splits_validation_is_trains_dev_split(tmp_path):
    class_folders(tmp_path, {f"{s}/{c}": n for s, n in (("train", 4), ("val", 2), ("test", 3)) for c in "ab"})
    data = images.open(tmp_path)
    assert (len(data.split("train")), len(data.split("test"))) == (12, 6)
    assert all(name.startswith("test/") for name in names(data.split("test")))
    assert "three splits: its 4 validation images are on train's side" in said(data)
    train, dev = images.splits.cut_dev(data)
    assert names(dev) == [name for name in names(data) if name.startswith("val/")]
    assert all(name.startswith("train/") for name in names(train))


def test_a_class_may_be_called_train(tmp_path):
    data = images.open(class_folders(tmp_path, {"train": 5, "plane": 5, "test": 5}))
    assert data.classes == ("plane", "test", "train")


def test_splits_inside_classes_are_splits(tmp_path):
    data = images.open(class_folders(tmp_path, {f"{c}/{s}": 2 for c in ("cat", "dog") for s in ("train", "test")}))
    assert data.classes == ("cat", "dog")
    assert data.split("test").counts.tolist() == [2, 2]


def test_a_wrapping_folder_means_nothing(tmp_path):
    data = images.open(class_folders(tmp_path, {"set-1.0/images/cat": 3, "set-1.0/images/dog": 3}))
    assert data.classes == ("cat", "dog")


def test_junk_is_left_out_and_said(tmp_path):
    root = class_folders(tmp_path, {"cat": 3, "dog": 3, "cat/deep/er": 1, "bird": 0})
    (root / "__MACOSX" / "cat").mkdir(parents=True)
    (root / "__MACOSX" / "._0.png").write_bytes(b"x")
    for junk in ("cat/.DS_Store", "dog/Thumbs.db", "dog/._0.png", "desktop.ini"):
        (root / junk).write_bytes(b"junk")
    (root / "cat" / "readme.txt").write_text("a")
    (root / "cover.png").write_bytes(encoded(99))
    data = images.open(root)
    assert len(data) == 7
    assert data.classes == ("cat", "dog")
    text = said(data)
    assert "left out 5 hidden or system files" in text
    assert "left out 1 files that are not images: cat/readme.txt" in text
    assert "left out 1 images of the top folder that lie in no class folder" in text
    assert "1 images lie deeper than their class folder" in text
    assert "left out 1 empty folders: bird" in text


def test_names_may_be_in_any_script(tmp_path):
    classes = ["кошка", "犬", "γάτα", "naïve café", "قط", "🦊"]
    data = images.open(class_folders(tmp_path, dict.fromkeys(classes, 2)))
    assert data.classes == tuple(sorted(classes))
    assert data.read(0).shape == (32, 40, 3)


@pytest.mark.skipif(os.name == "nt", reason="Windows names are text")
def test_names_that_are_no_text_are_shown_and_read(tmp_path):
    root = class_folders(tmp_path, {"a": 2, "b": 2})
    (root / "a" / os.fsdecode(b"\xff\xfe.png")).write_bytes(encoded(77))
    data = images.open(root)
    place = names(data).index("a/\\xff\\xfe.png")
    assert np.array_equal(data.read(place), np.asarray(photo(77)))


def test_one_spelling_of_an_accent_is_one_class(tmp_path):
    """macOS writes é as two letters, others as one."""
    class_folders(tmp_path, {"train/caf\u00e9": 2, "train/tea": 2, "test/cafe\u0301": 1, "test/tea": 1})
    assert images.open(tmp_path).classes == ("caf\u00e9", "tea")


@pytest.mark.skipif(os.name == "nt", reason="links need rights")
def test_links_are_followed_and_loops_left_out(tmp_path):
    root = class_folders(tmp_path / "set", {"cat": 3, "dog": 2})
    other = class_folders(tmp_path / "elsewhere", {"owl": 3}, start=50)
    (root / "owl").symlink_to(other / "owl")
    (root / "cat" / "again").symlink_to(root)
    (root / "dog" / "self").symlink_to(root / "dog" / "self")
    data = images.open(root)
    assert data.counts.tolist() == [3, 2, 3]
    assert "left out 2 folders that lead back into themselves: cat/again, dog/self" in said(data)
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    with pytest.raises(DataError, match="loop is a link to nothing, or to itself"):
        images.open(tmp_path / "loop")


def test_empty_and_pictureless_folders_are_refused(tmp_path):
    with pytest.raises(DataError, match=r"is empty; make one folder of images for each class in it$"):
        images.open(tmp_path)
    (tmp_path / "a.txt").write_text("x")
    with pytest.raises(DataError, match="holds 1 files and none is an image"):
        images.open(tmp_path)


def test_one_class_and_one_image_are_said(tmp_path):
    data = images.open(class_folders(tmp_path / "one", {"cat": 4}))
    assert "only one class (cat), so nothing to tell apart; make a folder for each class" in said(data)
    data = images.open(class_folders(tmp_path / "two", {"cat": 6, "dog": 1}))
    assert "1 classes have one image, which is in train and never tested: dog" in said(data)
    assert data.split("train").counts[1] == 1


def test_pictures_without_class_folders_have_no_label(tmp_path):
    root = class_folders(tmp_path, {".": 3})
    data = images.open(root)
    assert (data.classes, data.labels.tolist()) == ((), [-1, -1, -1])
    assert "no image has a label" in said(data)
    one = images.open(root / "1.png")
    assert np.array_equal(one.read(0), np.asarray(photo(1)))
    assert len(images.open(root / "[01].png")) == 2


def test_a_class_of_test_that_train_has_not_is_refused(tmp_path):
    class_folders(tmp_path, {"train/cat": 2, "train/dog": 2, "val/images": 2})
    with pytest.raises(DataError, match=r"val has images of images, outside the 2 classes of train; move them"):
        images.open(tmp_path)


def test_a_test_folder_without_classes_is_left_out_and_said(tmp_path):
    data = images.open(class_folders(tmp_path, {"train/cat": 5, "train/dog": 5, "test": 4}))
    assert len(data) == 10
    assert "left out 4 images of test that lie in no class folder" in said(data)
    assert "no test split was given" in said(data)


def test_broken_files_stay_in_the_set_and_are_named_when_read(tmp_path):
    root = class_folders(tmp_path, {"cat": 5, "dog": 5})
    (root / "cat" / "empty.jpg").write_bytes(b"")
    (root / "dog" / "half.png").write_bytes(encoded(80)[:200])
    data = images.open(root)
    assert len(data) == 12
    assert "1 files are empty: cat/empty.jpg" in said(data)
    with pytest.raises(DataError, match=r"cat.empty\.jpg is empty \(0 bytes\)"):
        data.read(names(data).index("cat/empty.jpg"))
    with pytest.raises(DataError, match=r"dog.half\.png is cut short"):
        data.read(names(data).index("dog/half.png"))


@pytest.fixture
def readers_folder():
    """A folder that another user may enter; the test is that user, unless it is one already."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@pytest.mark.skipif(os.name == "nt", reason="POSIX permissions")
def test_what_may_not_be_read_is_named(readers_folder):
    root = class_folders(readers_folder, {"cat": 3, "dog": 3})
    (root / "cat" / "0.png").chmod(0)
    me = os.geteuid()
    if me == 0:
        os.seteuid(65534)
    try:
        data = images.open(root)
        assert "1 files cannot be read (permission, a broken link, or no regular file): cat/0.png" in said(data)
        with pytest.raises(DataError, match=r"cat/0\.png cannot be read: permission denied; give yourself the right"):
            data.read(names(data).index("cat/0.png"))
        os.seteuid(me)
        (root / "dog").chmod(0)
        os.seteuid(65534 if me == 0 else me)
        with pytest.raises(DataError, match=r"dog cannot be read: permission denied"):
            images.open(root)
    finally:
        os.seteuid(me)
        (root / "dog").chmod(0o755)


def test_splits_of_other_names_are_no_classes(tmp_path):
    class_folders(tmp_path, {f"{s}/{c}": 2 for s in ("train", "query", "gallery") for c in ("cat", "dog")})
    line = r"gallery, query hold the same folders as train \(cat, dog\) but are not splits known here; call them train"
    with pytest.raises(DataError, match=line):
        images.open(tmp_path)


def test_a_class_called_train_may_have_folders_of_its_own(tmp_path):
    data = images.open(
        class_folders(tmp_path, {"train/steam": 3, "train/images": 3, "plane/jet": 3, "plane/images": 3})
    )
    assert data.classes == ("plane", "train")
