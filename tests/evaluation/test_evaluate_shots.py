"""`evaluate(shots=…)`: a frozen model, a few labels of each class, a table and a page."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from picture_sets import photos
from shared_files import SHARED, needs_shared
from tiny_models import awake, line_of

import vitreous
from vitreous.errors import VitreousError
from vitreous.evaluation import few_shot_page
from vitreous.evaluation.features import extract
from vitreous.evaluation.few_shot import fewshot
from vitreous.report.page import render

NAMES = ("ape", "bee", "cat")


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    monkeypatch.setenv("VITREOUS_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def data():
    return replace(photos(40, test=16), labels=np.arange(40) % 3, classes=NAMES)


@pytest.mark.claim("F08")
def test_it_is_fewshot_on_the_features_of_train_and_test(data):
    """The encoder is not touched, and its head and labels do not matter: the model knows five other classes."""
    model = awake()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    found = vitreous.evaluate(model, data, shots=(1, 5), seeds=2, workers=0)
    train, test = (extract(model, data.split(s), workers=0, cache=False) for s in ("train", "test"))
    wanted = fewshot(train.only, train.labels, test.only, test.labels, NAMES, shots=(1, 5), seeds=2)
    np.testing.assert_array_equal(found.right, wanted.right)
    assert found.about["content_id"] == data.content_id
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


def test_a_model_without_a_head_is_judged_too(data):
    assert vitreous.evaluate(awake(classes=0), data, shots=(2,), workers=0).images == 16


def test_a_model_may_be_named_and_one_count_of_shots_be_a_number(data, tmp_path):
    vitreous.save(awake(), tmp_path / "model.safetensors")
    named = vitreous.evaluate(tmp_path / "model.safetensors", data, shots=2, workers=0)
    assert named.shots == (2,)
    np.testing.assert_array_equal(named.right, vitreous.evaluate(awake(), data, shots=(2,), workers=0).right)


@pytest.mark.parametrize("wrong", [{"shots": (0,)}, {"seeds": 0}, {"target": 2.0}])
def test_what_is_no_number_of_shots_is_said_before_a_picture_is_read(data, wrong, tmp_path):
    with pytest.raises(VitreousError) as error:
        vitreous.evaluate(awake(), data, workers=0, **{"shots": (1,), **wrong})
    line_of(error.value, "give")
    assert not list(tmp_path.glob("cache/**/values.bin"))


def test_unreadable_images_are_named(data):
    data.source.files[0] = data.source.files[0][:30]
    found = vitreous.evaluate(awake(), data, shots=(1,), workers=0)
    assert any("1 image that could not be read" in note for note in found.notes)


def test_the_page_holds_the_numbers_and_the_plot(data, tmp_path):
    found = vitreous.evaluate(awake(), data, shots=(1, 3), workers=0, out=tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text()
    assert f"{100 * found.mean(3):.1f} %" in text
    assert "<svg" in text
    assert "://" not in text.replace("http://www.w3.org", "")
    with pytest.raises(VitreousError) as error:
        vitreous.evaluate(awake(), data, shots=(1,), workers=0, out=tmp_path / "page.html")
    line_of(error.value, "exists already", "--force")
    several = fewshot(np.eye(6), np.arange(6) % 2, np.eye(6), np.arange(6) % 2, 2, shots=(1, 2), seeds=1, l2=(1.0, 4.0))
    assert "l2 4" in render(few_shot_page.page(several))


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"shots": (1,), "split": "train"}, ["drawn from train and judged on test"]),
        ({"shots": (1,), "csv": "rows.csv"}, ["leave out the rest"]),
        ({"out": "page.html"}, ["say shots="]),
        ({"shots": ()}, ["shots []"]),
    ],
)
def test_what_does_not_go_together_is_one_line(data, given, words):
    with pytest.raises(VitreousError) as error:
        vitreous.evaluate(awake(), data, workers=0, **given)
    line_of(error.value, *words)


def test_a_set_without_a_train_split_is_one_line(data):
    with pytest.raises(VitreousError) as error:
        vitreous.evaluate(awake(), data.split("test"), shots=(1,), workers=0)
    line_of(error.value, "no split 'train'")
    several = replace(data, labels=np.ones((40, 3), int))
    with pytest.raises(VitreousError) as error:
        vitreous.evaluate(awake(), several, shots=(1,), workers=0)
    line_of(error.value, "one label for each image")


@needs_shared
@pytest.mark.slow
@pytest.mark.claim("F08")
def test_real_features_of_real_pets():
    """Frozen DeiT-Ti on 400 photos of 37 breeds: more shots are better, by far better than chance (2.7 %)."""
    model = vitreous.load(SHARED / "weights/deit-tiny")
    data = vitreous.images.open(SHARED / "data/oxford-pets-160-*.zip", limit=400)
    found = vitreous.evaluate(model, data, shots=(1, 5))
    assert found.mean(1) > 0.45
    assert found.mean(5) > found.mean(1) + 0.05
    again = vitreous.evaluate(model, data, shots=(1, 5))
    assert json.dumps(again.to_json()) == json.dumps(found.to_json())


@needs_shared
@pytest.mark.slow
def test_more_ways_are_worse_and_more_shots_better_on_real_features():
    """8 breeds of 24 photos each, 600 episodes a cell; intervals apart."""
    model = vitreous.load(SHARED / "weights/deit-tiny")
    data = vitreous.images.open(SHARED / "data/oxford-pets-160-val.zip")
    places = np.concatenate([np.flatnonzero(data.labels == k)[:24] for k in range(8)])
    found = extract(model, data.take(places))
    cell = {
        (w, s): vitreous.evaluation.episodes(found.only, found.labels, ways=w, shots=s, queries=8)
        for w, s in [(2, 1), (5, 1), (8, 1), (5, 5), (5, 15)]
    }
    for worse, better in [((5, 1), (2, 1)), ((8, 1), (5, 1)), ((5, 1), (5, 5))]:
        assert cell[worse].interval[1] < cell[better].interval[0]
    assert cell[5, 15].mean > cell[5, 5].mean - 0.01
