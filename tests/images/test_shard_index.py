"""An index beside shards says what their headers say, and goes on where it stopped."""

import base64
import json

import numpy as np
import pytest
from picture_sets import encoded, scene, tar_shards

from vitreous import images
from vitreous.errors import DataError
from vitreous.images.sources.shards import index_shard
from vitreous.images.stores import disk, shard_index
from vitreous.images.stores.shard_table import make_table


def test_an_index_says_what_the_headers_say(tmp_path):
    files = [str(path) for path in tar_shards(tmp_path, [3, 5, 1])]
    written = disk.index(tmp_path)
    assert written.counts == dict(zip(files, [3, 5, 1], strict=True))
    assert written.files == (str(tmp_path / "vitreous-index.jsonl"),)
    assert shard_index.known(files) == {file: index_shard(file) for file in files}
    assert sorted(p.name for p in tmp_path.iterdir()) == [*(f"set-00{n}.tar" for n in range(3)), "vitreous-index.jsonl"]
    assert str(written).startswith("9 images in 3 shards; 3 were read now")
    assert json.loads(json.dumps(written.to_json()))["images"] == 9


def test_pictures_are_where_the_index_says(tmp_path):
    (path,) = tar_shards(tmp_path, [4])
    disk.index(path)
    found = make_table([shard_index.known([str(path)])[str(path)]])
    raw = path.read_bytes()
    for i in range(4):
        start, size = found.place(i)
        assert raw[start : start + size] == encoded(scene(i, 8, 8), "PNG")
    assert np.array_equal(np.array(found.facts.labels)[found.columns["label"]], [0, 1, 2, 0])


def test_only_shards_that_changed_are_read_again(tmp_path):
    files = tar_shards(tmp_path, [3, 5, 1])
    assert disk.index(tmp_path).scanned == 3
    assert disk.index(tmp_path).scanned == 0
    tar_shards(tmp_path / "..", [2])[0].replace(files[0])
    assert str(files[0]) not in shard_index.known(list(map(str, files)))
    again = disk.index(tmp_path)
    assert (again.scanned, again.counts[str(files[0])]) == (1, 2)
    assert disk.index(tmp_path, force=True).scanned == 3


def test_a_stopped_index_goes_on_after_its_last_whole_line(tmp_path):
    files = [str(path) for path in tar_shards(tmp_path, [2, 2, 2, 2])]
    seen = []

    def scan(file):
        seen.append(file)
        if len(seen) == 3:
            raise KeyboardInterrupt
        return index_shard(file)

    with pytest.raises(KeyboardInterrupt):
        shard_index.write(files, scan)
    assert not (tmp_path / "vitreous-index.jsonl").exists()
    assert shard_index.known(files) == {}
    with (tmp_path / "vitreous-index.jsonl.part").open("ab") as file:
        file.write(b'{"mark": "set-002')  # cut in the middle of a line
    assert disk.index(tmp_path).scanned == 2
    assert set(shard_index.known(files)) == set(files)


def test_a_damaged_index_is_not_believed(tmp_path):
    files = [str(path) for path in tar_shards(tmp_path, [2, 2])]
    disk.index(tmp_path)
    path = tmp_path / "vitreous-index.jsonl"
    path.write_bytes(path.read_bytes()[:-30])
    assert set(shard_index.known(files)) == {files[0]}
    path.write_bytes(b"\xff\x00 no index")
    assert shard_index.known(files) == {}
    assert disk.index(tmp_path).scanned == 2


@pytest.mark.parametrize(("column", "now"), [("which", b"\7\0\0\0" * 2), ("ends", b"\1\0\0\0"), ("start", b"1234")])
def test_columns_that_disagree_are_not_believed(column, now, tmp_path):
    """An index that another program wrote may say anything: its shard is read again."""
    files = [str(path) for path in tar_shards(tmp_path, [2, 2])]
    disk.index(tmp_path)
    path = tmp_path / "vitreous-index.jsonl"
    first, second = map(json.loads, path.read_text().splitlines())
    first["samples"][column] = base64.b64encode(now).decode()
    path.write_text(f"{json.dumps(first)}\n{json.dumps(second)}\n")
    assert set(shard_index.known(files)) == {files[1]}
    assert len(images.open(tmp_path)) == 4


def test_what_has_no_shards_is_said_and_a_cut_shard_named(tmp_path):
    with pytest.raises(DataError, match="holds no tar shards; pack it: vitreous pack"):
        disk.index(tmp_path)
    (path,) = tar_shards(tmp_path, [3])
    path.write_bytes(path.read_bytes()[:700])
    with pytest.raises(DataError, match=r"set-000\.tar is cut short|set-000\.tar is no whole tar"):
        disk.index(tmp_path)


@pytest.mark.parametrize("force", [False, True])
def test_the_index_of_one_pattern_keeps_the_lines_of_other_shards(force, tmp_path):
    files = [str(path) for path in tar_shards(tmp_path, [3, 5, 1, 2])]
    disk.index(tmp_path)
    (tmp_path / "set-002.tar").unlink()
    tar_shards(tmp_path / "..", [4])[0].replace(files[3])
    written = disk.index(tmp_path / "set-000.tar", force=force)
    assert (written.scanned, written.counts) == (int(force), {files[0]: 3})
    assert set(shard_index.known([files[0], files[1], files[3]])) == set(files[:2])
    lines = (tmp_path / "vitreous-index.jsonl").read_text().splitlines()
    assert sorted(json.loads(line)["mark"].split()[0] for line in lines) == ["set-000.tar", "set-001.tar"]
