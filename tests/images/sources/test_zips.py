"""Zips are read in place, and hostile ones are refused."""

import pickle
import struct
import zipfile

import numpy as np
import pytest
from picture_files import class_folders, encoded, photo, zip_of
from shared_files import needs_shared

from vitreous import images
from vitreous.errors import DataError


def members(*paths):
    return {path: encoded(i) for i, path in enumerate(paths)}


SET = members("train/cat/0.png", "train/cat/1.png", "train/dog/0.png", "val/cat/0.png", "val/dog/1.png")


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_a_zip_of_class_folders_is_the_set(tmp_path, method):
    data = images.open(zip_of(tmp_path / "pets.zip", SET, method))
    assert (data.kind, data.classes) == ("zip", ("cat", "dog"))
    assert data.split("train").counts.tolist() == [2, 1]
    for i in range(len(data)):
        assert data.raw(i) == SET[data.name(i)]
    assert np.array_equal(data.read(0), np.asarray(photo(0)))


def test_several_zips_are_one_set_by_folder_or_pattern(tmp_path):
    zip_of(tmp_path / "train-0.zip", members("cat/0.png", "dog/0.png"))
    zip_of(tmp_path / "train-1.zip", members("cat/2.png", "dog/2.png"))
    zip_of(tmp_path / "val.zip", members("cat/3.png", "dog/4.png"))
    for name in (tmp_path, tmp_path / "*.zip", tmp_path / "{train-{0..1},val}.zip"):
        data = images.open(name)
        assert (len(data.split("train")), len(data.split("test"))) == (4, 2)
        assert data.classes == ("cat", "dog")


def test_zips_of_two_sets_in_one_folder_are_not_one_set(tmp_path):
    for name in ("pets-train", "pets-val", "cars-train", "cars-val"):
        zip_of(tmp_path / f"{name}.zip", members("a/0.png", "b/0.png"))
    with pytest.raises(DataError, match=r"holds zips of 2 sets \(cars, pets\); name one of them: '.*NAME-\*\.zip'"):
        images.open(tmp_path)
    assert len(images.open(tmp_path / "pets-*.zip")) == 4


def test_a_zip_for_each_class(tmp_path):
    for name in ("cat", "dog"):
        zip_of(tmp_path / f"{name}.zip", members("0.png", "1.png", "2.png"))
    assert images.open(tmp_path).classes == ("cat", "dog")


def test_a_pickled_set_reads_on(tmp_path):
    data = pickle.loads(pickle.dumps(images.open(zip_of(tmp_path / "a.zip", SET))))
    assert data.raw(2) == SET["train/dog/0.png"]


def test_mac_junk_is_left_out(tmp_path):
    data = images.open(
        zip_of(tmp_path / "a.zip", SET | {"__MACOSX/train/cat/._0.png": b"x", "train/cat/.DS_Store": b"y"})
    )
    assert len(data) == 5
    assert "left out 2 hidden or system files" in str(data)


@pytest.mark.parametrize("path", ["../evil.png", "a/../../evil.png", "/etc/evil.png", "C:/evil.png"])
def test_a_path_that_leads_out_is_refused(tmp_path, path):
    with pytest.raises(
        DataError, match=r"a\.zip holds '.*evil\.png', a path that leads out of it; do not trust this zip"
    ):
        images.open(zip_of(tmp_path / "a.zip", SET | {path: encoded(9)}))


def test_a_zip_bomb_is_refused(tmp_path):
    many = zip_of(tmp_path / "many.zip", SET | {f"cat/{i}.png": bytes(5000) for i in range(4)}, zipfile.ZIP_DEFLATED)
    many.write_bytes(many.read_bytes().replace(struct.pack("<I", 5000), struct.pack("<I", 300 << 20)))
    with pytest.raises(DataError, match=r"many\.zip is a zip bomb: it would unpack to 1,258,.* bytes"):
        images.open(many)


def test_a_picture_that_declares_too_much_is_refused(tmp_path):
    file = zip_of(tmp_path / "a.zip", SET, zipfile.ZIP_DEFLATED)
    raw = bytearray(file.read_bytes())
    place = raw.index(b"PK\1\2")
    raw[place + 24 : place + 28] = struct.pack("<I", 3 << 30)
    file.write_bytes(raw)
    with pytest.raises(DataError, match=r"zip bomb: train/cat/0\.png would unpack to 3,221,225,472 bytes"):
        images.open(file)


def test_files_that_overlap_are_refused(tmp_path):
    """Many entries on one stretch of bytes: how a small zip holds petabytes."""
    file = zip_of(tmp_path / "a.zip", SET)
    raw = bytearray(file.read_bytes())
    places = [i for i in range(len(raw)) if raw[i : i + 4] == b"PK\1\2"]
    raw[places[1] + 42 : places[1] + 46] = raw[places[0] + 42 : places[0] + 46]
    file.write_bytes(raw)
    with pytest.raises(DataError, match=r"a\.zip is a zip bomb: its files overlap"):
        images.open(file)


def test_a_file_that_unpacks_to_more_than_it_says_is_named(tmp_path):
    file = zip_of(tmp_path / "a.zip", SET | {"train/cat/big.png": bytes(5000)}, zipfile.ZIP_DEFLATED)
    raw = file.read_bytes().replace(struct.pack("<I", 5000), struct.pack("<I", 50))
    file.write_bytes(raw)
    data = images.open(file)
    with pytest.raises(DataError, match=r"a\.zip is damaged at train/cat/big\.png; fetch the zip again"):
        data.raw([data.name(i) for i in range(6)].index("train/cat/big.png"))


def test_damage_is_noticed_where_it_is(tmp_path):
    file = zip_of(tmp_path / "a.zip", SET)
    raw = bytearray(file.read_bytes())
    raw[raw.index(SET["train/dog/0.png"]) + 30] ^= 1
    file.write_bytes(raw)
    data = images.open(file)
    with pytest.raises(DataError, match=r"damaged at train/dog/0\.png"):
        data.read(2)
    data.read(1)


def test_a_cut_zip_and_no_zip_are_named(tmp_path):
    file = zip_of(tmp_path / "a.zip", SET)
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(DataError, match=r"a\.zip is not a whole zip file \(cut short, or damaged\); fetch it again"):
        images.open(file)


def test_an_encrypted_zip_is_named(tmp_path):
    file = zip_of(tmp_path / "a.zip", SET)
    raw = bytearray(file.read_bytes())
    raw[raw.index(b"PK\1\2") + 8] |= 1
    file.write_bytes(raw)
    with pytest.raises(DataError, match=r"a\.zip is encrypted"):
        images.open(file)


@pytest.mark.parametrize("name", ["download.zip", "download.tar", "download.parquet", "x_train.npy"])
def test_folders_of_pictures_beside_a_download_win(tmp_path, name):
    class_folders(tmp_path, {"cat": 2, "dog": 2})
    (tmp_path / name).write_bytes(b"whatever")
    data = images.open(tmp_path)
    assert data.kind == "folders"
    assert f"left out 1 files that are not images: {name}" in str(data)


@needs_shared
@pytest.mark.parametrize(
    ("pattern", "count", "classes", "train"),
    [("oxford-pets-160-*.zip", 7349, 37, 3680), ("imagenette-128-{train,val}.zip", 6704, 10, 4738)],
)
def test_real_zips_open_in_place(shared, pattern, count, classes, train):
    data = images.open(shared / "data" / pattern)
    assert (len(data), len(data.classes), len(data.split("train"))) == (count, classes, train)
    assert list(data.classes) == sorted(data.classes)
    for i in range(0, count, 997):
        assert data.read(i).ndim == 3
        assert data.classes[data.labels[i]] == data.name(i).split("/")[1]
        assert {"train": "train", "val": "test"}[data.name(i).split("/")[0]] == data.splits[i]


@needs_shared
def test_a_folder_of_several_real_sets_says_so(shared):
    with pytest.raises(DataError, match="holds zips of 4 sets"):
        images.open(shared / "data")
