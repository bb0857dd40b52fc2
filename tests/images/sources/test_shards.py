"""WebDataset shards: every picture by its offset, from a disk or an address; a cut shard is named."""

import json
import pickle

import numpy as np
import pytest
from picture_files import encoded, photo, tar_of

from vitreous import images
from vitreous.errors import DataError
from vitreous.images.sources.shards import index_shard
from vitreous.images.stores.shard_table import make_table

fsspec = pytest.importorskip("fsspec")


def shard(numbers, classes=3, **more):
    files = {}
    for n in numbers:
        files |= {f"{n:05d}.jpg": encoded(n), f"{n:05d}.cls": str(n % classes).encode()}
    return files | more


@pytest.fixture
def shards(tmp_path):
    for k in range(3):
        tar_of(tmp_path / f"train-{k:03d}.tar", shard(range(6 * k, 6 * k + 6)))
    tar_of(tmp_path / "val-000.tar", shard(range(18, 24)))
    return tmp_path


def test_shards_are_a_set_by_folder_pattern_or_braces(shards):
    for name in (shards, shards / "*.tar", shards / "{train-{000..002},val-000}.tar"):
        data = images.open(name)
        assert (data.kind, len(data), data.classes) == ("shards", 24, ("0", "1", "2"))
        assert (len(data.split("train")), len(data.split("test"))) == (18, 6)
    for i in range(len(data)):
        assert data.labels[i] == int(data.name(i).split("/")[1][:5]) % 3
    assert np.array_equal(data.read(7), np.asarray(photo(7)))
    assert data.name(7) == "train-001.tar/00007.jpg"


def test_a_pattern_that_names_a_missing_shard_says_which(shards):
    with pytest.raises(DataError, match=r"names 5 files, and .*train-003\.tar is not there \(2 missing\)"):
        images.open(shards / "train-{000..004}.tar")


def test_an_address_is_read_as_a_path_is(shards):
    memory = fsspec.filesystem("memory")
    for path in shards.glob("*.tar"):
        memory.pipe(f"/set/{path.name}", path.read_bytes())
    try:
        near = images.open(shards / "train-*.tar")
        for address in ("memory://set/train-{000..002}.tar", "memory://set/train-*.tar"):
            far = images.open(address)
            assert np.array_equal(far.labels, near.labels)
            assert far.raw(8) == near.raw(8)
        assert len(images.open("memory://set")) == 24
        with pytest.raises(DataError, match=r"memory://set/none\.tar is not there; check the address"):
            images.open("memory://set/none.tar")
    finally:
        memory.rm("/set", recursive=True)


def test_an_unknown_protocol_is_named():
    with pytest.raises(DataError, match=r"nosuch://x/a\.tar cannot be reached"):
        images.open("nosuch://x/a.tar")


def test_json_says_the_label_and_what_else_there_is(tmp_path):
    files = {}
    for n in range(12):
        said = {"label": ["ox", "ass"][n % 2], "farm": f"f{n // 4}"}
        files |= {f"a/{n}.png": encoded(n), f"a/{n}.json": json.dumps(said).encode()}
    data = images.open(tar_of(tmp_path / "farm.tar", files), group_by="farm")
    assert data.classes == ("ass", "ox")
    assert data.classes[data.labels[0]] == "ox"
    sides = {f: {data.splits[i] for i in range(12) if i // 4 == f} for f in range(3)}
    assert all(len(side) == 1 for side in sides.values())


def test_names_lie_beside_the_shards(shards):
    (shards / "classes.txt").write_text("cat\ndog\nowl\n")
    assert images.open(shards).classes == ("cat", "dog", "owl")
    (shards / "classes.txt").write_text("cat\ndog\n")
    with pytest.raises(
        DataError, match=r"the label 2 of train-000\.tar/00002\.jpg is outside the 2 classes \(8 such labels\)"
    ):
        images.open(shards)


@pytest.mark.parametrize("share", [0.3, 0.5, 0.8])
def test_a_shard_cut_in_half_is_named(shards, share):
    path = shards / "train-001.tar"
    raw = path.read_bytes()[:10240]
    path.write_bytes(raw[: int(len(raw) * share) + 100])
    with pytest.raises(DataError, match=r"train-001\.tar is cut short.*; fetch the shard again"):
        images.open(shards)


def test_a_shard_damaged_in_the_middle_is_named(shards):
    path = shards / "train-001.tar"
    raw = bytearray(path.read_bytes())
    start, _ = make_table([index_shard(str(path))]).place(3)
    raw[start - 400] ^= 255
    path.write_bytes(raw)
    with pytest.raises(DataError, match=r"train-001\.tar is damaged, or no tar file after 00008\.jpg; fetch"):
        images.open(shards)


def test_a_shard_cut_between_files_is_noticed(shards):
    path = shards / "train-001.tar"
    index = index_shard(str(path))
    path.write_bytes(path.read_bytes()[: make_table([index]).place(4)[0] - 512])
    data = images.open(shards)
    assert "1 shards have no end mark and may be cut short: train-001.tar" in str(data)


def test_a_shard_cut_after_it_was_opened_is_named_when_read(shards):
    data = images.open(shards)
    path = shards / "val-000.tar"
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(DataError, match=r"val-000\.tar is cut short at val-000\.tar/00023\.jpg; fetch the shard again"):
        data.read(23)


def test_no_tar_and_compressed_tars_are_named(tmp_path):
    (tmp_path / "x.tar").write_bytes(b"x" * 2000)
    with pytest.raises(DataError, match=r"x\.tar is damaged, or no tar file; fetch the shard again"):
        images.open(tmp_path / "x.tar")
    (tmp_path / "x.tar.gz").write_bytes(b"x")
    with pytest.raises(DataError, match=r"is compressed, so its images have no places; unpack it to \.tar first"):
        images.open(tmp_path / "x.tar.gz")


def test_missing_labels_are_minus_one_and_said(tmp_path):
    data = images.open(tar_of(tmp_path / "train.tar", shard(range(6)) | {"x.jpg": encoded(50), "y.txt": b"caption"}))
    assert data.labels[data.ids == 6].tolist() == [-1]
    assert "1 images have no label" in str(data)
    assert "left out 1 keys without an image: y" in str(data)


def test_a_pickled_set_reads_on(shards):
    data = images.open(shards)
    assert pickle.loads(pickle.dumps(data)).raw(3) == data.raw(3)


def test_it_agrees_with_an_index_that_was_written_beside(shards):
    from vitreous.images.stores import shard_index

    before = images.open(shards)
    shard_index.write(sorted(map(str, shards.glob("*.tar"))), index_shard)
    after = images.open(shards)
    assert after.content_id == before.content_id
    assert after.raw(5) == before.raw(5)
