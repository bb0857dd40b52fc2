"""Probes on layers and tokens: all of what is there, none of what is not."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from feature_clouds import clouds
from picture_sets import photos
from tiny_models import BIT, VIT, awake, line_of

from vitreous.errors import VitreousError
from vitreous.evaluation import logistic
from vitreous.evaluation.features import Features
from vitreous.evaluation.few_shot import choose_shots
from vitreous.evaluation.probes import dev_rows, every_layer, knn, probe, probe_features
from vitreous.evaluation.ridge_regression import ridge

NAMES = ("ape", "bee", "cat")


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    monkeypatch.setenv("VITREOUS_CACHE", str(tmp_path / "cache"))


def features(values: dict[str, np.ndarray], y: np.ndarray, classes: tuple[str, ...] = NAMES) -> Features:
    places = np.arange(len(y))
    return Features(values, y, places, places, classes, (), "a model", "content", False)


def halves(apart: float = 1.0) -> tuple[Features, Features]:
    x, y = clouds(240, 12, 3, apart=apart)
    test_x, test_y = clouds(300, 12, 3, seed=1, apart=apart)
    return features({"x": x}, y), features({"x": test_x}, test_y)


@pytest.mark.claim("I18")
@pytest.mark.parametrize("by", ["ridge", "logistic", "knn"])
def test_encoded_labels_are_read_whole_and_noise_is_chance(by):
    """CLS, mean and every token: a reading that holds the label is all right, one that does not is not."""
    random = np.random.default_rng(0)
    y, test_y = np.arange(150) % 3, np.arange(300) % 3

    def values(labels):
        tokens = random.normal(size=(len(labels), 3, 8))
        tokens[:, 1, :3] = 9 * np.eye(3)[labels]  # the middle token alone knows
        return {"cls": tokens[:, 0], "knows": tokens[:, 1], "norm:tokens": tokens}

    found = probe_features(features(values(y), y), features(values(test_y), test_y), by=by)
    assert found["knows"].right == 300
    assert abs(found["cls"].accuracy - 1 / 3) < 0.12
    tokens = found.tokens("norm:tokens")
    assert tokens.shape == (3,)
    assert tokens[1] == 1
    assert (np.abs(tokens[[0, 2]] - 1 / 3) < 0.12).all()


@pytest.mark.claim("I18")
def test_ten_shots_by_the_papers_solver():
    train, test = halves(apart=0.5)
    found = probe_features(train, test, shots=10, seed=4)
    rows = choose_shots(train.labels, 3, 10, 4)
    assert found.fitted_on == 30
    assert found["x"].right == ridge(train["x"][rows], train.labels[rows], 3).right(test["x"], test.labels)


def test_all_ways_agree_on_easy_rows():
    train, test = halves(apart=3.0)
    for by in ("ridge", "logistic", "knn"):
        assert probe_features(train, test, by=by)["x"].accuracy > 0.97


@pytest.mark.parametrize("by", ["ridge", "logistic", "knn"])
def test_a_constant_reading_is_named_and_the_others_are_read(by):
    """Also where only the rows to fit on are constant; of all tokens, the place of each stays its own."""
    train, test = halves(apart=3.0)
    tokens = [np.stack([0 * part["x"], part["x"]], 1) for part in (train, test)]
    dead = [np.ones((240, 4)), np.random.default_rng(0).normal(size=(300, 4))]
    parts = [
        replace(part, values={"dead": flat, "x": part["x"], "norm:tokens": each})
        for part, flat, each in zip((train, test), dead, tokens, strict=True)
    ]
    found = probe_features(*parts, by=by)
    assert found["x"] == probe_features(train, test, by=by)["x"]
    assert found.constant == (("dead", None), ("norm:tokens", 0))
    assert np.isnan(found.tokens("norm:tokens")).tolist() == [True, False]
    assert found.tokens("norm:tokens")[1] == found["x"].accuracy
    assert json.loads(json.dumps(found.to_json()))["constant"][1] == {"reading": "norm:tokens", "token": 0}
    for text in (str(found), found._repr_html_()):
        assert text.count("constant: nothing can be read") == 2
    with pytest.raises(VitreousError) as error:
        found["dead"]
    line_of(error.value, "dead is the same in every row", "another tap")


def test_a_model_with_a_dead_layer_is_probed_in_the_others():
    """A class token that never meets the image is the same for every image after the first block."""
    model, data = awake(), replace(photos(30, test=12), labels=np.arange(30) % 3, classes=NAMES)
    with torch.no_grad():
        model.blocks[0].attention.merge.weight.zero_()
    found = probe(model, data, workers=0)
    assert found.constant == (("blocks.0.output:cls", None),)
    assert len(found.rows) == 4
    assert found.to_json()["model"]


def test_where_all_readings_are_constant_there_is_nothing_to_probe():
    train, test = (replace(part, values={"x": np.ones_like(part["x"])}) for part in halves())
    with pytest.raises(VitreousError) as error:
        probe_features(train, test)
    line_of(error.value, "same in every row (x)", "read others")


def test_neighbours_vote_by_cosine():
    x = np.array([[1.0, 0], [0, 1], [0, 2]])
    votes = knn(x, np.array([0, 1, 1]), np.array([[5.0, 1], [0.1, 1]]), 2, neighbours=1)
    np.testing.assert_allclose(votes, [[1, 0], [0, 1]])
    soft = knn(x, np.array([0, 1, 1]), np.array([[1.0, 1]]), 2, neighbours=9)
    np.testing.assert_allclose(soft, [[1 / 3, 2 / 3]], atol=1e-6)  # equally near: all three vote alike


def test_a_vote_weighs_by_the_cosine_over_the_temperature():
    random = np.random.default_rng(0)
    x, y, asked = random.normal(size=(12, 4)), np.arange(12) % 3, random.normal(size=(5, 4))
    votes = knn(x, y, asked, 3, neighbours=5, temperature=0.2)
    for row, found in zip(asked, votes, strict=True):
        near = {i: row @ x[i] / np.linalg.norm(row) / np.linalg.norm(x[i]) for i in range(12)}
        five = sorted(near, key=near.get)[-5:]
        by_class = [sum(math.exp(near[i] / 0.2) for i in five if y[i] == k) for k in range(3)]
        np.testing.assert_allclose(found, np.array(by_class) / sum(by_class), rtol=1e-5)


def test_a_logistic_probes_penalty_is_chosen_on_rows_that_it_is_not_fitted_on(monkeypatch):
    x, y = clouds(60, 4, 3)
    real, asked = logistic.choose, []

    def noted(fit_x, fit_y, dev_x, dev_y, *rest, **how):
        asked.append((fit_x, fit_y, dev_x, dev_y))
        return real(fit_x, fit_y, dev_x, dev_y, *rest, **how, l2s=(1.0,))

    monkeypatch.setattr(logistic, "choose", noted)
    probe_features(features({"x": x}, y), features({"x": x[:9]}, y[:9]), by="logistic", seed=4)
    is_dev = dev_rows(y, seed=4)
    ((fit_x, fit_y, dev_x, dev_y),) = asked
    np.testing.assert_array_equal(fit_x, x[~is_dev])
    np.testing.assert_array_equal(dev_x, x[is_dev])
    assert (fit_y.tolist(), dev_y.tolist()) == (y[~is_dev].tolist(), y[is_dev].tolist())
    assert is_dev.sum() == 12


def test_every_layer_of_a_model_in_one_call():
    model, data = awake(), photos(30, test=12)
    data = replace(data, labels=np.arange(30) % 3, classes=NAMES)
    found = probe(model, data, workers=0)
    names = [row.reading for row in found.rows]
    assert names == [
        "features",
        "blocks.0.output:cls",
        "blocks.0.output:gap",
        "blocks.1.output:cls",
        "blocks.1.output:gap",
    ]
    assert found.images == 12
    assert found.fitted_on == 18
    body = json.loads(json.dumps(found.to_json()))
    assert [row["reading"] for row in body["probes"]] == names
    assert "blocks.1.output:gap" in str(found)
    assert "<table>" in found._repr_html_()
    tokens = probe(model, data, "norm:tokens", workers=0)
    assert len(tokens.tokens("norm:tokens")) == 17


def test_layers_of_each_family():
    gap = awake(VIT, pool="gap", class_token=True)  # its class token is never read by its own head
    assert every_layer(gap)[:2] == ["blocks.0.output:cls", "blocks.0.output:gap"]
    assert "blocks.0.output:cls" not in every_layer(awake(VIT, pool="gap", class_token=False))
    assert every_layer(awake(BIT)) == [
        *(f"stages.{s}.units.{u}.output:gap" for s, u in [(0, 0), (1, 0), (1, 1)]),
        "features",
    ]


def test_the_encoder_is_left_as_it_was():
    model, data = awake(), replace(photos(30, test=12), labels=np.arange(30) % 3, classes=NAMES)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    probe(model, data, workers=0, by="logistic")
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


def test_a_fifth_of_each_class_chooses():
    y = np.repeat([0, 1, 2], [50, 20, 4])
    assert np.bincount(y[dev_rows(y)], minlength=3).tolist() == [10, 4, 0]
    assert not np.array_equal(dev_rows(y, 0), dev_rows(y, 1))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"by": "tree"}, ["no probe by 'tree'"]),
        ({"shots": 0}, ["0 shots"]),
        ({"labels": np.full(300, -1)}, ["some to judge by"]),
        ({"classes": ("a", "b", "c")}, ["other classes"]),
        ({"values": {"y": np.zeros((300, 12))}}, ["other models or taps"]),
        ({"values": {"x": np.full((300, 12), np.nan)}}, ["test features are not finite"]),
    ],
)
def test_what_cannot_be_probed_is_one_line(change, words):
    train, test = halves()
    changed = {name: value for name, value in change.items() if name in ("labels", "classes", "values")}
    how = {name: value for name, value in change.items() if name not in changed}
    with pytest.raises(VitreousError) as error:
        probe_features(train, replace(test, **changed), **how)
    line_of(error.value, *words)


def test_an_absent_probe_is_answered_with_those_there_are():
    with pytest.raises(VitreousError) as error:
        probe_features(*halves())["z"]
    line_of(error.value, "'z'", "x")
    with pytest.raises(VitreousError) as error:
        knn(np.eye(2), np.arange(2), np.eye(2), 2, neighbours=0)
    line_of(error.value, "0 neighbours")
