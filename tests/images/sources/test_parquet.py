"""Parquet as the hub writes it."""

import json
import pickle

import numpy as np
import pytest
from picture_files import encoded, photo

from vitreous import images
from vitreous.errors import DataError

pa = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")

IMAGE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
NAMES = {"label": {"names": ["zebra", "ant"], "_type": "ClassLabel"}, "image": {"_type": "Image"}}


def write(path, numbers, labels, features=NAMES, **columns):
    path.parent.mkdir(parents=True, exist_ok=True)
    pictures = [{"bytes": encoded(n), "path": f"{n}.png"} for n in numbers]
    table = pa.table({"image": pa.array(pictures, IMAGE), "label": labels} | columns)
    if features:
        table = table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    parquet.write_table(table, path, row_group_size=3)


@pytest.fixture
def hub(tmp_path):
    write(tmp_path / "data" / "train-00000-of-00002.parquet", range(8), [0, 1] * 4)
    write(tmp_path / "data" / "train-00001-of-00002.parquet", range(8, 14), [1, 0] * 3)
    write(tmp_path / "data" / "test-00000-of-00001.parquet", range(14, 18), [1, 0] * 2)
    (tmp_path / "README.md").write_text("a card")
    return tmp_path


def test_the_hubs_layout_opens_with_the_schemas_names(hub):
    data = images.open(hub)
    assert (data.kind, data.classes) == ("parquet", ("zebra", "ant"))  # numbers keep their meaning
    assert (len(data.split("train")), len(data.split("test"))) == (14, 4)
    place = [data.name(i) for i in range(len(data))].index("train-00001-of-00002.parquet/4")
    assert np.array_equal(data.read(place), np.asarray(photo(12)))
    assert data.labels[place] == 1
    assert np.array_equal(pickle.loads(pickle.dumps(data)).read(place), data.read(place))


def test_split_folders_name_splits_too(tmp_path):
    write(tmp_path / "default" / "train" / "0000.parquet", range(4), [0, 1] * 2)
    write(tmp_path / "default" / "validation" / "0000.parquet", range(4, 8), [0, 1] * 2)
    data = images.open(tmp_path)
    assert (len(data.split("train")), len(data.split("test"))) == (4, 4)


def test_labels_may_be_names_or_several(tmp_path):
    write(tmp_path / "a.parquet", range(6), ["b", "a", "c"] * 2, features=None)
    assert images.open(tmp_path / "a.parquet").classes == ("a", "b", "c")
    several = {"label": {"feature": {"names": ["x", "y", "z"], "_type": "ClassLabel"}, "_type": "Sequence"}}
    write(tmp_path / "b.parquet", range(4), [[0], [0, 2], [], [1]], features=several)
    data = images.open(tmp_path / "b.parquet")
    assert data.labels.tolist() == [[1, 0, 0], [1, 0, 1], [0, 0, 0], [0, 1, 0]]
    assert data.classes == ("x", "y", "z")


def test_a_column_groups(tmp_path):
    write(tmp_path / "a.parquet", range(12), [0, 1] * 6, patient=[f"p{n // 3}" for n in range(12)])
    data = images.open(tmp_path / "a.parquet", group_by="patient")
    assert all(len(set(data.splits[3 * p : 3 * p + 3])) == 1 for p in range(4))


def test_a_label_outside_the_classes_is_refused(tmp_path):
    write(tmp_path / "a.parquet", range(4), [0, 1, 2, 1])
    with pytest.raises(DataError, match=r"the label 2 of a\.parquet/2 is outside the 2 classes"):
        images.open(tmp_path / "a.parquet")


def test_broken_and_pictureless_files_are_named(tmp_path):
    (tmp_path / "a.parquet").write_bytes(b"PAR1 no")
    with pytest.raises(DataError, match=r"a\.parquet is not a whole Parquet file"):
        images.open(tmp_path / "a.parquet")
    parquet.write_table(pa.table({"label": [1]}), tmp_path / "b.parquet")
    with pytest.raises(DataError, match=r"b\.parquet has no column of images .*; it has: label"):
        images.open(tmp_path / "b.parquet")


def test_a_row_without_a_picture_is_named_when_read(tmp_path):
    table = pa.table(
        {
            "image": pa.array([{"bytes": encoded(0), "path": None}, {"bytes": None, "path": None}] * 2, IMAGE),
            "label": [0, 1, 1, 0],
        }
    )
    parquet.write_table(table, tmp_path / "a.parquet")
    data = images.open(tmp_path / "a.parquet")
    with pytest.raises(DataError, match=r"a\.parquet: row 1 has no image; drop the row"):
        data.read(1)
