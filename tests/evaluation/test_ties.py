"""Of classes with equal scores the lowest is the answer, whatever order the BLAS in use adds in."""

import numpy as np
import pytest
import torch
from feature_clouds import clouds
from hypothesis import given
from hypothesis import strategies as st
from picture_sets import photos
from tiny_models import awake

import vitreous
from vitreous.evaluation import logistic
from vitreous.evaluation.accuracy import measure
from vitreous.evaluation.episodic import right_share
from vitreous.evaluation.features import Features
from vitreous.evaluation.few_shot import fewshot
from vitreous.evaluation.inference import logits
from vitreous.evaluation.probes import probe_features
from vitreous.evaluation.ridge_regression import Ridge, count_right, decompose, ridge
from vitreous.evaluation.tie_breaking import TIE_FLOAT32, TIE_FLOAT64, best_class, best_classes
from vitreous.exports.parity import compare
from vitreous.training.run.closed_form import solve

CLASSES = [3, 5, 9, 17, 33, 65]  # a last column beyond the tiles that a BLAS works in


def twins(n: int, d: int, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Clouds of which the first and the last class are the same rows."""
    x, y = clouds(n * k, d, k, apart=2.0)
    x[y == k - 1] = x[y == 0]
    return x.astype(np.float32), y


def features(x: np.ndarray, y: np.ndarray, k: int) -> Features:
    places = np.arange(len(y))
    return Features({"x": x}, y, places, places, tuple(map(str, range(k))), (), "a model", "content", False)


# The rule


@given(st.integers(2, 40), st.integers(0, 2**32 - 1), st.sampled_from([np.float32, np.float64]))
def test_scores_that_rounding_moved_answer_as_those_that_it_did_not(k, seed, kind):
    """Scores are whole numbers, so many are equal; then each is moved by a few roundings."""
    draw = np.random.default_rng(seed)
    whole = draw.integers(-4, 5, (20, k)).astype(kind)
    whole[:, -1] = -5  # the largest, so that no row is zeros alone
    moved = (whole + 8 * np.finfo(kind).eps * draw.uniform(-1, 1, whole.shape)).astype(kind)
    wanted = whole.argmax(1)
    for scores in (whole, moved, 1e6 * moved):
        assert (best_class(scores) == wanted).all()
        assert (best_class(torch.from_numpy(scores)).numpy() == wanted).all()
        for row, plain in zip(scores, whole, strict=True):
            assert best_classes(row, 5) == np.argsort(-plain, kind="stable")[:5].tolist()


@pytest.mark.parametrize(("kind", "same"), [(np.float32, TIE_FLOAT32), (np.float64, TIE_FLOAT64)])
def test_scores_further_apart_than_rounding_are_not_equal(kind, same):
    for apart, answer in ((0.5, 0), (2, 1)):
        scores = np.array([[8.0, 8.0 * (1 + apart * same), -8.0]], kind)
        assert best_class(scores).tolist() == best_class(torch.from_numpy(scores)).tolist() == [answer]
        assert best_classes(scores[0], 3) == [answer, 1 - answer, 2]


def test_scores_without_an_end_do_not_make_the_others_equal():
    scores = np.array([[-np.inf, 1.0, 2.0], [1.0, 2.0, np.inf], [-np.inf, -np.inf, -np.inf]])
    assert best_class(scores).tolist() == best_class(torch.from_numpy(scores)).tolist() == [2, 2, 0]


# Probes


@pytest.mark.parametrize("k", CLASSES)
def test_of_equal_columns_the_first_answers(k):
    random = np.random.default_rng(k)
    weight = random.normal(size=(65, k))
    weight[:, -1] = weight[:, 0] = 2 * weight[:, 0]
    probe = Ridge(weight, random.normal(size=64), np.ones(64), 1.0)
    x = random.normal(size=(1000, 64)).astype(np.float32)
    said = probe.answers(x)
    assert (said == 0).any()
    assert (said != k - 1).all()
    for labels in (np.zeros(1000, int), np.full(1000, k - 1), said):
        assert count_right([probe] * 3, x, labels) == [int((said == labels).sum())] * 3


@pytest.mark.parametrize("k", CLASSES)
@pytest.mark.parametrize(("n", "d"), [(3, 40), (30, 10)])
def test_two_classes_of_the_same_rows_are_told_as_the_first(n, d, k):
    """The solved columns differ in their last bits; so do scores of rows that are left out."""
    x, y = twins(n, d, k)
    for form in ("primal", "dual"):
        for l2 in (1024.0, 4.0):
            probe = ridge(x, y, k, l2=l2, form=form)
            assert (probe.answers(x) != k - 1).all()
            assert count_right([probe], x, np.full(len(x), k - 1)) == [0]
    found = fewshot(x, y, x, np.full(len(x), k - 1), k, shots=(n,), seeds=2, l2=(1024.0, 4.0))
    assert not found.right.any()


@pytest.mark.parametrize("k", CLASSES)
def test_rows_left_out_with_their_copies_are_told_as_the_first(k):
    x, y = twins(6, 10, k)
    groups = np.arange(len(x))
    groups[y == k - 1] = groups[y == 0]
    found = solve(x, y, k, [1.0, 64.0, 1024.0], groups=groups)
    others = y != k - 1
    for l2, right in found.right.items():
        left_out = decompose(x, y, k).left_out(l2, groups)[others]
        assert right == (left_out[:, :-1].argmax(1) == y[others]).sum()
    assert (ridge(x, y, k, l2=(1.0, 64.0), groups=groups).answers(x) != k - 1).all()


@pytest.mark.parametrize("k", CLASSES[:3])
def test_a_fitted_regression_tells_two_classes_of_the_same_rows_as_the_first(k):
    x, y = twins(20, 6, k)
    probe = logistic.fit(x, y, k, l2=0.1)
    assert probe.right(x, np.full(len(x), k - 1)) == 0
    assert probe.right(x, np.zeros(len(x), int)) >= 20


@pytest.mark.parametrize("k", CLASSES)
def test_neighbours_of_two_classes_are_told_as_the_first(k):
    """All rows vote, so that the two classes have equal votes."""
    x, y = twins(5, 40, k)
    found = probe_features(features(x, y, k), features(x, np.full(len(x), k - 1), k), by="knn", neighbours=len(x))
    assert found["x"].right == 0


@pytest.mark.parametrize("by", ["prototypes", "nearest", "ridge"])
@pytest.mark.parametrize("likening", ["euclid", "cosine"])
def test_episodes_with_a_class_twice_answer_the_first(by, likening):
    """Every query of the second is told as the first: right are those of all classes but the last."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(50, 5, 8, 24, dtype=torch.float64, generator=generator)
    x = x + 20 * torch.randn(50, 5, 1, 24, dtype=torch.float64, generator=generator)
    x[:, 4] = x[:, 0]
    found = right_share(x, 3, by=by, likening=likening, l2=1.0)
    assert (found == 0.8).all()


# Models


@pytest.mark.parametrize("k", CLASSES)
def test_a_model_with_a_class_twice_answers_the_first(k):
    model = awake(classes=k)
    with torch.no_grad():
        model.head.weight.mul_(0.01)
        model.head.weight[[0, -1]] = model.head.weight[0] * 100
        model.head.bias[[0, -1]] = 50.0
    model.labels = tuple(f"class {i}" for i in range(k))
    data = photos(40)
    assert {answer.labels[:2] for answer in vitreous.predict(model, data, top=2, workers=0)} == {
        ("class 0", f"class {k - 1}")
    }
    found = logits(model, data, workers=0).values
    for label, right in ((0, 40), (k - 1, 0)):
        result = measure(found, np.full(40, label), model.labels)
        assert result.right == right
        assert result.right_in_five in (None, 40)
        assert (result.judged.answer == 0).all()


def test_an_export_that_rounds_otherwise_agrees_about_a_class_that_is_there_twice():
    random = np.random.default_rng(0)
    ours = random.normal(size=(100, 5)).astype(np.float32)
    ours[:, [1, 4]] = ours.max(1, keepdims=True)
    theirs = ours + np.float32(1e-6) * random.uniform(-1, 1, ours.shape).astype(np.float32)
    assert compare("tensor", theirs, ours).agreement == 1
