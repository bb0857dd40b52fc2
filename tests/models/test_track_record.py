"""What a model's file knows of its answers: how often they are right, and which are unsure; the same everywhere."""

import json

import numpy as np
import pytest
import torch
from tiny_models import VIT, awake

import vitreous
from vitreous.errors import CheckpointError, ConfigError
from vitreous.exports.facts import model_facts
from vitreous.models.track_record import TrackRecord, from_json

MEASURED = {"right": 0.817, "low": 0.771, "high": 0.856, "images": 312, "sure_from": 0.82, "has_chosen": False}


def measured(**changes):
    model = awake(VIT)
    model.track_record = TrackRecord(**MEASURED | changes)
    return model


def test_it_tells_how_often_the_model_is_right_and_what_unsure_means():
    record = TrackRecord(**MEASURED)
    assert record.about_right == "right on 81.7 % of images that it had not seen (77.1 to 85.6, 95 % interval)"
    assert record.about_unsure == "unsure: below 82 %; of surer answers 90 % or more are right"
    assert "also chose it" in TrackRecord(**MEASURED | {"has_chosen": True}).about_right
    assert "even the surest" in TrackRecord(**MEASURED | {"sure_from": 1.0}).about_unsure


@pytest.mark.parametrize(("sure_from", "unsure"), [(None, []), (0.0, []), (0.82, [0.4]), (1.0, [0.4, 0.9])])
def test_answers_below_the_trusted_confidence_are_unsure(sure_from, unsure):
    record = TrackRecord(**MEASURED | {"sure_from": sure_from})
    assert [share for share in (0.4, 0.9) if record.is_unsure(share)] == unsure


def test_a_file_keeps_it(tmp_path):
    model = measured()
    vitreous.save(model, tmp_path / "model")
    vitreous.save(model, tmp_path / "theirs", format="timm")
    for path in (tmp_path / "model.safetensors", tmp_path / "theirs"):
        assert vitreous.load(path).track_record == model.track_record


def test_a_model_at_another_size_or_with_another_head_was_not_measured(tmp_path):
    vitreous.save(measured(), tmp_path / "model")
    for change in ({"image_size": 24}, {"classes": 3}):
        assert vitreous.load(tmp_path / "model.safetensors", **change).track_record is None


def test_a_file_without_it_marks_no_answer(tmp_path):
    vitreous.save(awake(VIT), tmp_path / "model")
    model = vitreous.load(tmp_path / "model.safetensors")
    assert model.track_record is None
    assert model_facts(model)["record"] is None
    (answer,) = vitreous.predict(model, np.zeros((20, 20, 3), np.uint8))
    assert not answer.is_unsure


def test_the_pages_get_the_words(tmp_path):
    found = json.loads(json.dumps(model_facts(measured())["record"]))
    assert found["sure_from"] == 0.82
    assert found["about_right"].startswith("right on 81.7 %")


@pytest.mark.parametrize(
    "changes",
    [
        {"right": 1.5},
        {"right": "much"},
        {"low": float("nan")},
        {"images": 0},
        {"images": True},
        {"sure_from": -0.1},
        {"sure_from": "often"},
        {"has_chosen": 1},
        {"what": 2},
    ],
)
def test_a_damaged_record_is_refused_in_one_line(changes):
    with pytest.raises(ConfigError, match="track_record does not hold shares of right answers"):
        from_json(MEASURED | changes)


@pytest.mark.parametrize("record", [7, [], {}, "right"])
def test_something_else_is_refused(record, tmp_path, monkeypatch):
    monkeypatch.setattr(TrackRecord, "to_json", lambda self: record)
    vitreous.save(measured(), tmp_path / "model")
    with pytest.raises(CheckpointError, match="track_record does not hold"):
        vitreous.load(tmp_path / "model.safetensors")


def answers_of(model, sure_from):
    """With a head that answers class 0 with about 60 %."""
    with torch.no_grad():
        model.head.weight.zero_()
        model.head.bias.copy_(torch.tensor([1.8, 0, 0, 0, 0]))
    model.track_record = TrackRecord(**MEASURED | {"sure_from": sure_from})
    return next(vitreous.predict(model, np.full((20, 20, 3), 90, np.uint8)))


def test_predict_says_unsure_in_words_and_as_a_boolean():
    low, high = (answers_of(awake(VIT), limit) for limit in (0.9, 0.3))
    assert (low.to_json()["is_unsure"], high.to_json()["is_unsure"]) == (True, False)
    assert low.said == high.said, "an unsure answer is still an answer"
    assert ": unsure: " in str(low)
    assert "(unsure)" in low._repr_html_()
    assert "unsure" not in str(high) + high._repr_html_()


def test_none_of_these_is_not_unsure():
    model = awake(VIT)
    model.threshold = 1e6
    answer = answers_of(model, 0.9)
    assert answer.is_unlike
    assert not answer.is_unsure
