"""The embedded set: every pixel is Fashion-MNIST's own."""

import gzip
import pickle
import time
from pathlib import Path

import numpy as np
import pytest

from vitreous import images
from vitreous.files import digest
from vitreous.images.sources import fashion

DEBIAN = Path("/usr/share/datasets/fashion-mnist")


def test_the_pixels_are_those_that_were_packed():
    assert digest(fashion.unpack().tobytes()) == fashion.PIXELS_SHA256


@pytest.mark.skipif(not DEBIAN.is_dir(), reason="apt-get install dataset-fashion-mnist")
@pytest.mark.parametrize(("split", "part"), [("train", "train"), ("test", "t10k")])
def test_they_are_the_originals(split, part):
    original = np.frombuffer(
        gzip.decompress((DEBIAN / f"{part}-images-idx3-ubyte.gz").read_bytes()), np.uint8, offset=16
    )
    labels = np.frombuffer(gzip.decompress((DEBIAN / f"{part}-labels-idx1-ubyte.gz").read_bytes()), np.uint8, offset=8)
    data = images.open("fashion", split=split)
    for c in range(10):
        ours = np.stack([data.read(i)[:, :, 0] for i in np.flatnonzero(data.labels == c)[:50]])
        assert np.array_equal(ours, original.reshape(-1, 28, 28)[labels == c][:50])


def test_it_is_balanced_at_every_stretch_and_fits_the_package():
    data = images.open("fashion")
    assert (data.kind, data.channels, len(data.classes)) == ("fashion", 1, 10)
    assert data.read(0).shape == (28, 28, 1)
    for split in ("train", "test"):
        assert set(data.split(split).take(range(500)).counts.tolist()) == {50}
    assert (len(data.split("train")), len(data.split("test"))) == (8700, 2200)
    assert fashion.FASHION_FILE.stat().st_size <= 3_900_000
    assert "MIT" in fashion.FASHION_FILE.with_name("fashion-LICENSE.txt").read_text("utf-8")
    assert np.array_equal(pickle.loads(pickle.dumps(data)).read(5), data.read(5))
    assert data.source.whole().shape == (10900, 28, 28, 1)


def test_it_is_there_in_about_a_second():
    fashion._unpacked.clear()
    start = time.process_time()
    images.open("fashion").read(0)
    assert time.process_time() - start < 2  # half a second on an idle core


def test_a_path_of_that_name_wins(tmp_path, monkeypatch):
    from picture_files import class_folders

    class_folders(tmp_path / "fashion", {"hat": 3, "coat": 3})
    monkeypatch.chdir(tmp_path)
    assert images.open("fashion").classes == ("coat", "hat")
