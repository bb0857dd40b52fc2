"""Arrays and IDX files: the numbers that were written come back as pictures."""

import gzip
import pickle

import numpy as np
import pytest
from picture_files import idx_bytes

from vitreous import images
from vitreous.errors import DataError

RNG = np.random.default_rng(0)
X = RNG.integers(0, 256, (20, 8, 6, 3), dtype=np.uint8)
Y = np.arange(20) % 4


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_npz_with_its_own_splits(tmp_path, save):
    save(tmp_path / "set.npz", x_train=X[:15], y_train=Y[:15], x_test=X[15:], y_test=Y[15:])
    data = images.open(tmp_path / "set.npz")
    assert (data.kind, data.classes, data.channels) == ("arrays", ("0", "1", "2", "3"), 3)
    train, test = data.split("train"), data.split("test")
    assert np.array_equal([train.read(i) for i in range(15)], X[:15])
    assert np.array_equal([test.read(i) for i in range(5)], X[15:])
    assert np.array_equal(test.labels, Y[15:])
    again = pickle.loads(pickle.dumps(data))
    assert np.array_equal(again.read(3), data.read(3))
    assert len(pickle.dumps(data)) < 5000  # arrays stay at home
    data.read(0)[:] = 0  # a copy


@pytest.mark.parametrize(
    "keys",
    [
        ("train_images", "train_labels"),
        ("images", "labels"),
        ("x", "y"),
        ("data", "targets"),
        ("arr_0", "arr_1"),
        ("X", "Y"),
    ],
)
def test_keys_by_their_usual_names(tmp_path, keys):
    np.savez(tmp_path / "set.npz", **{keys[0]: X, keys[1]: Y})
    data = images.open(tmp_path / "set.npz")
    assert np.array_equal(data.labels, Y)
    assert "20 % of each class were set aside as test" in str(data)


def test_three_splits_of_medmnist(tmp_path):
    parts = {
        f"{s}_{k}": v
        for s, n in (("train", 12), ("val", 4), ("test", 4))
        for k, v in (("images", X[:n]), ("labels", Y[:n, None]))
    }
    np.savez(tmp_path / "set.npz", **parts)
    data = images.open(tmp_path / "set.npz")
    assert (len(data.split("train")), len(data.split("test"))) == (16, 4)


def test_npy_with_labels_beside(tmp_path):
    np.save(tmp_path / "x_train.npy", X[:, :, :, 0])
    np.save(tmp_path / "y_train.npy", Y)
    np.save(tmp_path / "x_test.npy", X[:8, :, :, 0])
    np.save(tmp_path / "y_test.npy", Y[:8])
    whole, one = images.open(tmp_path), images.open(tmp_path / "x_train.npy")
    assert (len(whole.split("train")), len(whole.split("test")), whole.channels) == (20, 8, 1)
    assert whole.read(0).shape == (8, 6, 1)
    assert np.array_equal(one.labels, Y)


def test_numbers_of_other_kinds_become_bytes(tmp_path):
    cases = {
        "unit": X / 255,
        "bytes": X.astype(np.float32),
        "sixteen": X.astype(np.uint16) * 257,
        "first": X.transpose(0, 3, 1, 2),
    }
    for name, x in cases.items():
        np.savez(tmp_path / f"{name}.npz", images=x, labels=Y)
        data = images.open(tmp_path / f"{name}.npz")
        assert np.array_equal(data.read(4), X[4]), name
        assert len(data.notes) > 1  # said
    alpha = np.concatenate([X, np.zeros((20, 8, 6, 1), np.uint8)], -1)
    np.savez(tmp_path / "alpha.npz", images=alpha, labels=Y)
    assert (images.open(tmp_path / "alpha.npz").read(0) == 255).all()


def test_labels_by_name_one_hot_and_several(tmp_path):
    np.savez(tmp_path / "a.npz", images=X, labels=np.array(["d", "c", "b", "a"])[Y])
    assert images.open(tmp_path / "a.npz").labels[:4].tolist() == [3, 2, 1, 0]
    np.savez(tmp_path / "b.npz", images=X, labels=np.eye(4)[Y], class_names=np.array(["p", "q", "r", "s"]))
    data = images.open(tmp_path / "b.npz")
    assert (data.labels.tolist(), data.classes) == (Y.tolist(), ("p", "q", "r", "s"))
    several = np.eye(4, dtype=int)[Y]
    several[0, 3] = 1
    np.savez(tmp_path / "c.npz", images=X, labels=several)
    assert np.array_equal(images.open(tmp_path / "c.npz").labels, several)


@pytest.mark.parametrize(
    ("arrays", "line"),
    [
        ({"images": X, "labels": Y[:5]}, "has 20 images in images and 5 labels in labels"),
        ({"images": X, "labels": Y - 3}, "the label -3 of images/0 is outside the 1 classes"),
        ({"images": X, "labels": Y, "class_names": np.array(["a", "b"])}, "2 of images/2 is outside the 2 classes"),
        ({"images": X, "labels": Y + 0.5}, "labels of float64 that are not class numbers"),
        ({"images": X.reshape(20, -1)}, "holds no images"),
        ({"images": RNG.random((4, 8, 8, 7))}, "images have 1, 3 or 4 channels"),
        ({"a": X, "b": X}, r"several arrays of images \(a, b\)"),
        ({"images": np.array([{}, {}], object), "labels": Y}, "holds Python objects, which are not read"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_named(tmp_path, arrays, line):
    np.savez(tmp_path / "set.npz", **arrays)
    with pytest.raises(DataError, match=line):
        images.open(tmp_path / "set.npz")


def test_a_cut_npz_is_named(tmp_path):
    np.savez(tmp_path / "a.npz", images=X, labels=Y)
    (tmp_path / "a.npz").write_bytes((tmp_path / "a.npz").read_bytes()[:1000])
    with pytest.raises(DataError, match=r"a\.npz is not a whole \.npz file"):
        images.open(tmp_path / "a.npz")
    np.save(tmp_path / "b.npy", X)
    (tmp_path / "b.npy").write_bytes((tmp_path / "b.npy").read_bytes()[:1000])
    with pytest.raises(DataError, match=r"b\.npy is cut short or damaged"):
        images.open(tmp_path / "b.npy")


@pytest.mark.parametrize(
    ("name", "pack"), [("-idx3-ubyte", bytes), ("-idx3-ubyte.gz", gzip.compress), (".idx3-ubyte", bytes)]
)
def test_idx_files_of_the_mnist_family(tmp_path, name, pack):
    pixels = X[:, :, :, 0]
    for split, part in (("train", slice(0, 15)), ("t10k", slice(15, 20))):
        (tmp_path / f"{split}-images{name}").write_bytes(pack(idx_bytes(pixels[part])))
        (tmp_path / f"{split}-labels{name.replace('3', '1')}").write_bytes(pack(idx_bytes(Y[part])))
    for place in (tmp_path, tmp_path / f"*-images{name}"):
        data = images.open(place)
        assert (data.kind, data.channels) == ("idx", 1)
        assert (len(data.split("train")), len(data.split("test"))) == (15, 5)
        assert np.array_equal(data.labels, np.concatenate([Y[15:], Y[:15]]))  # t10k before train
        assert np.array_equal(data.split("train").read(2)[:, :, 0], pixels[2])


def test_idx_faults_are_named(tmp_path):
    file, labels = tmp_path / "train-images-idx3-ubyte", tmp_path / "train-labels-idx1-ubyte"
    file.write_bytes(idx_bytes(X[:, :, :, 0]))
    with pytest.raises(DataError, match=r"has no labels beside it; add train-labels-idx1-ubyte"):
        images.open(tmp_path)
    labels.write_bytes(idx_bytes(Y[:7]))
    with pytest.raises(DataError, match=r"has 20 images and .* has 7 labels"):
        images.open(tmp_path)
    labels.write_bytes(idx_bytes(Y)[:-3])
    with pytest.raises(DataError, match="says 20 and holds 17 bytes; fetch it again"):
        images.open(tmp_path)
    labels.write_bytes(b"<html>")
    with pytest.raises(DataError, match=r"is not an IDX file of bytes \(magic 3c68746d\)"):
        images.open(tmp_path)
    file.with_suffix(".gz").write_bytes(gzip.compress(idx_bytes(X[:, :, :, 0]))[:60])
    file.unlink()
    labels.write_bytes(idx_bytes(Y))
    with pytest.raises(DataError, match="is cut short or damaged; fetch it again"):
        images.open(tmp_path)
