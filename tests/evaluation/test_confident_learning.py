"""Suspect labels: planted ones are found, by probes that never saw the row."""

import json
import sys
from dataclasses import replace

import numpy as np
import pytest
from feature_clouds import clouds
from picture_sets import photos
from tiny_models import awake, line_of

import vitreous
from vitreous.errors import VitreousError
from vitreous.evaluation.confident_learning import label_errors, out_of_fold
from vitreous.evaluation.ridge_regression import decompose, ridge
from vitreous.images.health import confident_errors

label_errors_module = sys.modules[out_of_fold.__module__]  # the package has a function of its name


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    monkeypatch.setenv("VITREOUS_CACHE", str(tmp_path / "cache"))


def test_planted_errors_are_found_and_few_others():
    x, y = clouds(300, 12, 4, apart=2.0)
    said = y.copy()
    said[:15] = (y[:15] + np.random.default_rng(0).integers(1, 4, 15)) % 4
    p = out_of_fold(x, said, 4, np.arange(300) % 5)
    wrong, likelier = confident_errors(said, p)
    assert (wrong < 15).sum() >= 12  # a threshold at the mean leaves the least sure ones out
    assert (wrong[:10] < 15).all()
    assert len(wrong) < 25
    assert (likelier[wrong < 15] == y[wrong[wrong < 15]]).all()


def test_they_are_probabilities_of_probes_that_did_not_see_the_fold():
    x, y = clouds(60, 6, 3)
    fold = np.arange(60) // 3 % 4
    p = out_of_fold(x, y, 3, fold)
    np.testing.assert_allclose(p.sum(1), 1)
    assert (p.argmax(1) == decompose(x, y, 3).left_out(1024.0, fold).argmax(1)).all()
    other = y.copy()
    other[fold == 0] = (y[fold == 0] + 1) % 3  # labels of a fold do not reach its own scores
    changed = decompose(x, other, 3).left_out(1024.0, fold)
    np.testing.assert_allclose(changed[fold == 0], decompose(x, y, 3).left_out(1024.0, fold)[fold == 0], atol=1e-9)


def test_rows_without_a_label_are_answered_by_all_others():
    x, y = clouds(60, 6, 3)
    y[:5] = -1
    p = out_of_fold(x, y, 3, np.arange(60) % 4)
    assert (p[:5].argmax(1) == ridge(x[5:], y[5:], 3).answers(x[:5])).all()


def test_a_model_and_a_set_become_suspects_for_check():
    data = replace(photos(60), labels=np.arange(60) % 3, classes=("ant", "bee", "cat"))
    data.source.files[7] = data.source.files[7][:40]
    model = awake()
    found = label_errors(model, data, workers=0)
    assert found.probabilities.shape == (60, 3)
    np.testing.assert_allclose(found.probabilities[7], 1 / 3)
    assert found.images == 59
    assert 7 not in found.places
    assert len(json.loads(json.dumps(found.to_json()))["suspects"]) == len(found.places) == len(found.names)
    assert str(found).startswith(f"{len(found.places)} of 59 labels look wrong")
    assert "<pre>" in found._repr_html_()
    health = vitreous.check(data, probabilities=found.probabilities, workers=0)
    assert {case.images[0] for f in health.findings if f.kind == "label-error" for case in f.cases} <= {
        *found.places.tolist(),
        7,
    }


def test_copies_do_not_vouch_for_each_other(monkeypatch):
    """The pictures of a group are left out together."""
    groups = np.arange(60) // 4
    data = replace(photos(60), labels=np.arange(60) % 3, classes=("ant", "bee", "cat"), groups=groups)
    seen = []
    real = label_errors_module.out_of_fold
    monkeypatch.setattr(
        label_errors_module, "out_of_fold", lambda x, y, k, fold, **o: seen.append(fold) or real(x, y, k, fold, **o)
    )
    label_errors(awake(), data, workers=0)
    assert all(len(set(seen[0][groups == group])) == 1 for group in range(15))
    assert len(set(seen[0])) == 5


@pytest.mark.parametrize(
    ("y", "fold", "words"),
    [
        (np.zeros(12, int), np.arange(12) % 2, ["fewer than 2 classes"]),
        (np.arange(12) % 2, np.zeros(12, int), ["in one fold"]),
    ],
)
def test_what_has_no_errors_to_find_is_one_line(y, fold, words):
    with pytest.raises(VitreousError) as error:
        out_of_fold(np.eye(12), y, 2, fold)
    line_of(error.value, *words)


def test_several_labels_are_refused():
    data = replace(photos(10), labels=np.ones((10, 2), int), classes=("ant", "bee"))
    with pytest.raises(VitreousError) as error:
        label_errors(awake(), data, workers=0)
    line_of(error.value, "several labels")
