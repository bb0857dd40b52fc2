"""CSV files of path,label in the forms people write."""

import numpy as np
import pytest
from picture_files import class_folders, photo

from vitreous import images
from vitreous.errors import DataError


@pytest.fixture
def folder(tmp_path):
    return class_folders(tmp_path, {"pics": 8})


def table(folder, text, name="set.csv"):
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def rows(*labels):
    return "".join(f"pics/{i}.png,{label}\n" for i, label in enumerate(labels))


@pytest.mark.parametrize(
    "header", ["path,label\n", "filename,class\n", "Image Path,Category\n", "\ufeffpath,label\n", ""]
)
def test_path_and_label_under_any_usual_name(folder, header):
    data = images.open(table(folder, header + rows(*"abababab")))
    assert (data.kind, data.classes) == ("tables", ("a", "b"))
    assert data.labels.tolist() == [0, 1] * 4
    assert np.array_equal(data.read(3), np.asarray(photo(3)))


def test_semicolons_tabs_and_quotes(folder):
    data = images.open(table(folder, 'path;label\npics/0.png;"a; b"\npics/1.png;c\n'))
    assert data.classes == ("a; b", "c")
    data = images.open(table(folder, "path\tlabel\npics/0.png\ta\npics/1.png\tb\n", "set.tsv"))
    assert data.classes == ("a", "b")


def test_numbers_are_sorted_as_numbers(folder):
    assert images.open(table(folder, "path,label\n" + rows(10, 9, 2, 10, 9, 2, 2, 9))).classes == ("2", "9", "10")


def test_a_column_names_the_split_and_another_groups(folder):
    text = "path,label,split,who\n" + "".join(
        f"pics/{i}.png,{'ab'[i % 2]},{'train' if i < 5 else 'Validation'},w{i}\n" for i in range(8)
    )
    data = images.open(table(folder, text))
    assert (len(data.split("train")), len(data.split("test"))) == (5, 3)
    assert "of these groups" not in str(data)
    torn = images.open(table(folder, text.replace("w7", "w0")), group_by="who")
    assert "the set's own split separates 1 of these groups" in str(torn)


def test_files_named_for_splits(folder):
    table(folder, "path,label\n" + rows(*"abab"), "train.csv")
    table(folder, "path,label\npics/6.png,a\npics/7.png,b\n", "test.csv")
    data = images.open(folder)
    assert data.kind == "tables"
    assert (len(data.split("train")), len(data.split("test"))) == (4, 2)


@pytest.mark.parametrize(
    "text",
    [
        "path,label\n" + rows("a|b", "a", "b", "", "a|b", "a", "b", "a"),
        "path,a,b\n" + rows("1,1", "1,0", "0,1", "0,0", "1,1", "1,0", "0,1", "1,0"),
        "path,label1,label2\n" + rows("a,b", "a,", "b,", ",", "b,a", "a,", "b,", "a,"),
        "path,label\n" + rows("a", "a", "b", "", "a", "a", "b", "a") + "pics/0.png,b\npics/4.png,b\n",
    ],
    ids=["bars", "hot", "columns", "rows"],
)  # fmt: skip
def test_several_labels_in_four_spellings_are_the_same(folder, text):
    data = images.open(table(folder, text))
    assert data.classes == ("a", "b")
    wanted = [[1, 1], [1, 0], [0, 1], [0, 0], [1, 1], [1, 0], [0, 1], [1, 0]]
    assert data.labels.tolist() == wanted
    assert data.counts.tolist() == [5, 4]


def test_class_folders_win_over_a_table_beside_them(tmp_path):
    class_folders(tmp_path, {"cat": 3, "dog": 3})
    table(tmp_path, "path,label\ncat/0.png,x\n")
    assert images.open(tmp_path).kind == "folders"


def test_paths_may_lack_folder_and_ending(tmp_path):
    class_folders(tmp_path, {"images": 4})
    data = images.open(table(tmp_path, "id,label\n0,a\n1,b\n2,a\n3,b\n"))
    assert data.name(2) == "images/2.png"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (
            "path,label\npics/0.png,a\npics/none.png,b\n",
            r"names 1 images that are not there \(pics/none\.png\); paths count",
        ),
        ("path,label\npics/0.png\n", r"row 2, has 1 columns where the first has 2; mend the row"),
        ("path,label\n", "has a header and no rows"),
        ("", "is empty; write one row of path,label"),
        (
            "path,colour,shape\npics/0.png,red,round\n",
            r"has no column of labels; call it label \(it has: path, colour, shape\)",
        ),
        ("a,b\nc,d\n", "names no column path and no column label"),
    ],
)
def test_faults_are_named(folder, text, line):
    with pytest.raises(DataError, match=line):
        images.open(table(folder, text))


def test_another_encoding_is_named(folder):
    (folder / "set.csv").write_bytes("path,label\npics/0.png,é\n".encode("latin-1"))
    with pytest.raises(DataError, match="is not UTF-8; save it as UTF-8"):
        images.open(folder / "set.csv")


def test_a_word_that_is_no_split_is_refused_in_every_table(folder):
    line = r"column 'split' says 'holdout', which is not a split known here; use train, val or test"
    text = "path,label,split\n" + rows("a,train", "b,train", "a,holdout", "b,holdout")
    with pytest.raises(DataError, match=line):
        images.open(table(folder, text))
    table(folder, "path,label,split\n" + rows("a,train", "b,train", "a,test", "b,test"), "one.csv")
    table(folder, "path,label,split\npics/6.png,a,train\npics/7.png,b,holdout\n", "two.csv")
    (folder / "set.csv").unlink()
    with pytest.raises(DataError, match=rf"two\.csv: {line}"):
        images.open(folder)


def test_a_column_that_names_no_split_at_all_is_none_and_said(folder):
    text = "path,label,set,split\n" + rows(
        *(f"{'ab'[i % 2]},S{i % 3},{'train' if i < 6 else 'test'}" for i in range(8))
    )
    data = images.open(table(folder, text))
    assert (len(data.split("train")), len(data.split("test"))) == (6, 2)
    assert "column 'set' names no split known here (S0, S1, S2) and was not taken for one" in str(data)
