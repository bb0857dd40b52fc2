"""A model meets a set: classes by name, other labels by file, and nothing left out in silence."""

import csv
import json
from dataclasses import replace

import numpy as np
import pytest
from picture_files import class_folders
from picture_sets import arrays, photos
from tiny_models import awake, line_of

import vitreous
from vitreous.errors import ConfigError, DataError, ExistsError, VitreousError
from vitreous.evaluation.class_matching import match_classes
from vitreous.evaluation.inference import logits
from vitreous.weights import imagenet

NAMES = ("ape", "bee", "cat", "dog", "eel")


@pytest.fixture
def model():
    model = awake()
    model.labels = NAMES
    return model


@pytest.fixture
def data():
    """20 pictures, the last 12 of them test, of five classes."""
    data = photos(20, test=12)
    return replace(data, labels=np.arange(20) % 5, classes=NAMES)


def answers(model, data) -> np.ndarray:
    return logits(model, data, workers=0).values.argmax(1)


def test_a_row_an_image_has_its_label_then_its_answer(model, data, tmp_path):
    test = data.split("test")
    result = vitreous.evaluate(model, data, csv=tmp_path / "rows.csv", workers=0)
    rows = list(csv.DictReader((tmp_path / "rows.csv").read_text().splitlines()))
    said = answers(model, test)
    assert (said != test.labels).any()
    assert [row["name"] for row in rows] == [test.name(i) for i in range(len(test))]
    assert [row["label"] for row in rows] == [NAMES[k] for k in test.labels]
    assert [row["answer"] for row in rows] == [NAMES[k] for k in said]
    assert [row["right"] for row in rows] == [str(int(right)) for right in said == test.labels]
    assert [float(row["confidence"]) for row in rows] == pytest.approx(result.judged.confidence, abs=1e-6)


# Which images, which classes


def test_the_test_split_is_judged_unless_told_otherwise(model, data):
    for split, count in (("test", 12), ("train", 8), ("all", 20)):
        result = vitreous.evaluate(model, data, split=split, workers=0)
        part = data if split == "all" else data.split(split)
        assert result.images == count
        assert result.right == (answers(model, part) == part.labels).sum()
        assert result.judged.names == tuple(part.name(i) for i in range(count))
        assert result.about["split"] == split
    assert vitreous.evaluate(model, data, workers=0).images == 12


LEARNED = "the model has learned from these very images: the number says nothing about new ones"


PART = "the model has learned from 8 of these 20 images: the number is too high"


@pytest.mark.parametrize(
    ("source", "was_made", "whole", "part"),
    [
        ({"data": "content", "learned_from": "train"}, True, ["train"], ["all"]),
        ({"data": "content", "learned_from": "all"}, True, ["test", "train", "all"], []),  # cross-validated
        ({"data": "content", "learned_from": "all"}, False, ["train"], ["all"]),  # a test split of its own is left out
        ({"data": "other content", "learned_from": "all"}, True, [], []),
        ({}, True, [], []),
    ],
    ids=str,
)
def test_a_number_on_images_that_the_model_learned_from_says_so(model, data, source, was_made, whole, part):
    model.source.update(source)
    data = replace(data, about={"split": {"made": was_made}})
    for split in ("test", "train", "all"):
        result = vitreous.evaluate(model, data, split=split, workers=0)
        assert (LEARNED in result.notes) == (split in whole)
        assert str(result).startswith("The model has learned from these very images: ") == (split in whole)  # first
        assert (PART in result.notes) == (split in part)


def test_images_without_a_name_of_their_content_raise_no_warning(model, data):
    """Two that are both unknown are not the same."""
    model.source.update({"data": "", "learned_from": "all"})
    assert LEARNED not in vitreous.evaluate(model, replace(data, content_id=""), workers=0).notes


def test_classes_meet_by_name_whatever_their_order(model, data):
    """Labels in another order, spelled with capitals and underscores, mean the same."""
    first = vitreous.evaluate(model, data, workers=0)
    order = [3, 0, 4, 1, 2]
    names = tuple(f" {NAMES[k].upper()}" for k in order)
    other = replace(data, classes=names, labels=np.argsort(order)[data.labels])
    second = vitreous.evaluate(model, other, workers=0)
    assert second.right == first.right
    assert (second.confusion == first.confusion).all()
    assert second.classes == NAMES


def test_a_part_of_the_models_classes_is_allowed_and_said(model, data):
    few = vitreous.images.open(data, classes=["cat", "eel"])
    result = vitreous.evaluate(model, few, workers=0)
    assert "2 of the model's 5 classes are in a/set; it may answer any of them" in result.notes
    assert result.right == (answers(model, few.split("test")) == np.array([2, 4])[few.split("test").labels]).sum()
    assert [row.name for row in result.weakest()] == ["cat", "eel"]


def test_a_class_that_the_model_does_not_know_is_an_error_with_the_way_out(model, data):
    with pytest.raises(DataError) as caught:
        vitreous.evaluate(model, replace(data, classes=("ape", "bee", "cow", "dog", "fox")))
    line_of(caught.value, "2 of 5 classes", "cow, fox", "it knows ape", "vitreous fit a/set --weights")


def test_two_folders_of_one_class_are_an_error(model, data):
    with pytest.raises(DataError) as caught:
        vitreous.evaluate(model, replace(data, classes=("ape", "bee", "cat", "dog", "Dog")))
    line_of(caught.value, "Dog, dog", "one class to the model")


def test_a_model_without_labels_goes_by_number(model, data):
    model.labels = None
    result = vitreous.evaluate(model, data, workers=0)
    assert result.classes == NAMES
    assert "in the order of the set's" in result.notes[0]
    with pytest.raises(DataError) as caught:
        vitreous.evaluate(model, arrays(9, 16, test=3))
    line_of(caught.value, "has 3 classes", "answers 5", "labels=")


def test_a_model_without_a_head_is_told_what_would_do(data):
    with pytest.raises(DataError) as error:
        vitreous.evaluate(awake(classes=0), data, workers=0)
    line_of(error.value, "no head", "vitreous fit", "--shots")


def test_synonyms_and_codes():
    """ImageNet's labels hold several names; data sets have WordNet ids or numbers."""
    data = arrays(4, 8)
    labels = ("tench, Tinca tinca", "crane", "crane", "gold-fish")
    numbers, notes = match_classes(replace(data, classes=("tinca_tinca", "gold fish")), labels, 4)
    assert numbers.tolist() == [0, 3]
    assert notes
    with pytest.raises(DataError, match="crane"):  # which of the two?
        match_classes(replace(data, classes=("tench", "crane")), labels, 4)
    codes = replace(data, classes=("n01", "n02", "n03", "n04"))
    numbers, notes = match_classes(codes, labels, 4)
    assert numbers.tolist() == [0, 1, 2, 3]
    assert "n01" in notes[0]
    numbers, _ = match_classes(replace(data, classes=("a", "b")), ("a, b", "b"), 2)  # a whole label wins over a part
    assert numbers.tolist() == [0, 1]


def test_wordnet_ids_and_names_mean_the_classes_of_imagenet(data):
    """A set of some of ImageNet's classes, under ids or any of WordNet's names, meets a model of all of them."""
    for labels in (imagenet.labels(), [", ".join(names) for _, names in imagenet.classes()]):
        for classes in (("n02110958", "n01440764"), ("pug-dog", "Tinca_tinca"), ("pug", "tench")):
            numbers, notes = match_classes(replace(data, labels=data.labels % 2, classes=classes), labels, 1000)
            assert numbers.tolist() == [254, 0]
            assert len(notes) == 1
            assert "2 of the model's 1,000 classes" in notes[0]
    shuffled = [*imagenet.labels()[1:], imagenet.labels()[0]]
    with pytest.raises(DataError, match="does not know"):  # another order: its ids are not known
        match_classes(replace(data, labels=data.labels % 2, classes=("n02110958", "n01440764")), shuffled, 1000)
    with pytest.raises(DataError, match="does not know"):  # two classes are called so
        match_classes(replace(data, labels=data.labels % 2, classes=("crane", "tench")), imagenet.labels(), 1000)


def test_unreadable_pictures_are_named_and_not_judged(model, data):
    data.source.files[15] = b""
    result = vitreous.evaluate(model, data, workers=0)
    assert result.images == 11
    assert any("1 image that could not be read" in note and "set/15.jpg" in note for note in result.notes)
    assert result.to_json()["coverage"]["seen"] == 11
    used = f"{len(data)} files, {len(data) - 12} not in test (--split all takes them too), 1 cannot be read: 11 judged"
    assert result.about["images_used"] == used
    assert used in str(result)
    assert "set/15.jpg" not in result.judged.names


def test_temperature_and_threshold_are_the_models(model, data):
    model.temperature = 3.0
    model.threshold = float(np.median(logits(model, data.split("test"), workers=0).values.max(1)))
    result = vitreous.evaluate(model, data, workers=0)
    assert result.temperature == 3.0
    assert result.unlike == 6


# Several labels


def test_one_answer_to_pictures_with_several_labels_is_right_if_it_is_one_of_them(model, data):
    several = np.zeros((20, 5), np.int64)
    several[np.arange(20), data.labels] = several[np.arange(20), (data.labels + 1) % 5] = 1
    several[8] = 0
    result = vitreous.evaluate(model, replace(data, labels=several), workers=0)
    found = answers(model, data)[8:]
    assert result.right == several[8:][np.arange(12), found].sum()
    assert (result.images, result.left_out) == (11, 1)
    assert result.confusion is not None


def test_a_model_of_several_answers_is_judged_class_by_class(model, data):
    model.answers = "several"
    one = vitreous.evaluate(model, data, workers=0)
    hot = vitreous.evaluate(model, replace(data, labels=np.eye(5, dtype=np.int64)[data.labels]), workers=0)
    assert one.mean_average_precision == hot.mean_average_precision is not None
    values = logits(model, data.split("test"), workers=0).values
    assert one.right == ((values >= 0) == np.eye(5)[data.labels[8:]]).all(1).sum()


@pytest.mark.parametrize("answering", ["one", "several"])
def test_several_labels_meet_the_models_classes_by_name(model, data, answering):
    """Columns of the set in another order, and one class of the model that the set does not have."""
    model.answers = answering
    order = [3, 0, 4, 1]
    named = np.eye(5, dtype=np.int64)[data.labels]
    named[:, 3] |= named[:, 0]
    named[:, 2] = 0
    set_of_four = replace(data, classes=tuple(NAMES[k] for k in order), labels=named[:, order])
    result = vitreous.evaluate(model, set_of_four, workers=0)
    values, wanted = logits(model, data.split("test"), workers=0).values, named[8:]
    if answering == "one":
        assert result.right == sum(row[said] for row, said in zip(wanted, values.argmax(1), strict=True))
    else:
        assert result.right == sum(((row >= 0) == truth).all() for row, truth in zip(values, wanted, strict=True))
        assert [row.images for row in result.per_class] == wanted.sum(0).tolist()


# Labels from a file


def other(data) -> list[list[int]]:
    """For each test picture: its own label, another one too, or none."""
    return [[[int(y)], [int(y), 2], []][i % 3] for i, y in enumerate(data.split("test").labels)]


@pytest.mark.parametrize(
    "form", ["list", "whole list", "dict", "names", "file names", "csv", "cells", "tsv", "rows", "value"]
)
def test_other_labels_come_in_many_forms(form, model, data, tmp_path):
    test, rows = data.split("test"), other(data)
    wanted = vitreous.evaluate(model, data, labels=rows, workers=0).to_json()
    names = [test.name(i) for i in range(12)]
    words = [[NAMES[k] for k in row] for row in rows]
    path = (
        tmp_path
        / f"labels.{'json' if form not in ('csv', 'cells', 'tsv', 'rows') else 'tsv' if form == 'tsv' else 'csv'}"
    )
    text = {
        "list": lambda: json.dumps(rows),
        "whole list": lambda: json.dumps([[0]] * 8 + rows),
        "dict": lambda: json.dumps(dict(zip(names, rows, strict=True))),
        "names": lambda: json.dumps(dict(zip(names, words, strict=True))),
        "file names": lambda: json.dumps(
            {name.rpartition("/")[2]: row for name, row in zip(names, words, strict=True)}
        ),
        "value": lambda: json.dumps(
            {name: row[0] if len(row) == 1 else row or None for name, row in zip(names, words, strict=True)}
        ),
        "csv": lambda: (
            "name,label,label\n" + "".join(",".join([n, *w]) + "\n" for n, w in zip(names, words, strict=True))
        ),
        "cells": lambda: "".join(f'{n},"{";".join(w)}"\n' for n, w in zip(names, words, strict=True)),
        "tsv": lambda: "".join("\t".join([n, *w]) + "\n" for n, w in zip(names, words, strict=True)),
        "rows": lambda: "".join(f"{n},{one}\n" for n, w in zip(names, words, strict=True) for one in w or [""]),
    }[form]()
    path.write_text(text)
    found = vitreous.evaluate(model, data, labels=path, workers=0).to_json()
    assert found.pop("labels") == str(path)
    wanted.pop("labels")
    assert found == wanted
    assert (found["images"], found["left_out"]) == (8, 4)
    assert "not judged: 4 images without a label" in found["notes"]


def test_the_real_labels_of_imagenet_go_by_the_number_of_the_file(model, data, tmp_path):
    """Their list is sorted by ILSVRC2012_val_00000001 …, a set of class folders is not."""

    class Official:
        def __init__(self, inner):
            self.inner = inner

        def __len__(self):
            return len(self.inner)

        def name(self, i):
            return f"val/{NAMES[i % 5]}/ILSVRC2012_val_{49_990 - 100 * i:08}.JPEG"

        def raw(self, i):
            return self.inner.raw(i)

        def read(self, i):
            return self.inner.read(i)

    official = replace(data, source=Official(data.source))
    whole = [[] for _ in range(50_000)]
    for i in range(20):
        whole[49_990 - 100 * i - 1] = [i % 5]
    path = tmp_path / "real.json"
    path.write_text(json.dumps(whole))
    assert (
        vitreous.evaluate(model, official, labels=path, workers=0).right
        == vitreous.evaluate(model, data, workers=0).right
    )


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("absent.json", None, ["absent.json", "No such file"]),
        ("a.json", "{", ["not JSON"]),
        ("a.json", "3", ["holds a int"]),
        ("a.json", "[[0]]", ["labels of 1 images", "12"]),
        ("a.json", '{"set/9.jpg": 1}', ["says nothing of 11 of 12", "add them"]),
        ("a.json", json.dumps([[9]] * 12), ["'9'", "0 to 4"]),
        ("a.json", json.dumps([[-1]] * 12), ["'-1'", "0 to 4"]),
        ("a.json", json.dumps([[0.5]] * 12), ["'0.5'"]),
        ("a.json", json.dumps(["cow"] * 12), ["'cow'", "not a class of the model"]),
        ("a.csv", 'x,"', ["not a table"]),
        ("a.csv", b"\xff\xfe", ["not UTF-8"]),
    ],
)
def test_a_file_that_is_no_good_is_one_line(name, text, words, model, data, tmp_path):
    path = tmp_path / name
    if text is not None:
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(VitreousError) as caught:
        vitreous.evaluate(model, data, labels=path)
    line_of(caught.value, *words)


# The table of images


def test_a_row_for_every_image(model, data, tmp_path):
    path = tmp_path / "answers.csv"
    result = vitreous.evaluate(model, data, workers=0, csv=path)
    rows = list(csv.DictReader(path.read_text().splitlines()))
    assert len(rows) == 12
    assert sum(int(row["right"]) for row in rows) == result.right
    assert [row["name"] for row in rows] == list(result.judged.names)
    assert all((row["label"] == row["answer"]) == (row["right"] == "1") for row in rows)
    with pytest.raises(ExistsError, match="--force"):
        vitreous.evaluate(model, data, csv=path)
    vitreous.evaluate(model, data, workers=0, csv=path, force=True)


# Bad input


def test_a_split_that_is_none(model, data):
    with pytest.raises(ConfigError, match="no split 'val'; say test, train, all"):
        vitreous.evaluate(model, data, split="val")
    with pytest.raises(DataError, match="has no split 'test'"):
        vitreous.evaluate(model, data.split("train"))


def test_pictures_without_labels(model, tmp_path):
    class_folders(tmp_path, {"": 3})
    with pytest.raises(DataError) as caught:
        vitreous.evaluate(model, tmp_path)
    line_of(caught.value, "no labels to judge by", "vitreous predict")


def test_nothing_left_to_judge(model, data):
    with pytest.raises(DataError, match="no image with a label"):
        vitreous.evaluate(model, data, labels=[[]] * 12, workers=0)
    with pytest.raises(DataError, match="labels of 3 images"):
        vitreous.evaluate(model, data, labels=[[0]] * 3, workers=0)
