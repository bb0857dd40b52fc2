"""Confidence means what it says, and a fit never makes it worse."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tiny_models import line_of

from vitreous.errors import DataError
from vitreous.evaluation.calibration import (
    MAX_TEMPERATURE,
    MIN_TEMPERATURE,
    answer_above,
    fit_temperature,
    fit_threshold,
    mean_loss,
    reliability,
    score,
    sigmoid,
    softmax,
)


def drawn(n: int, k: int, temperature: float, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Logits, and labels that follow softmax(logits / temperature)."""
    random = np.random.default_rng(seed)
    logits = 3 * random.normal(size=(n, k))
    chances = softmax(logits, temperature).cumsum(1)
    return logits, (random.random((n, 1)) > chances).sum(1).clip(max=k - 1)


def test_probabilities_are_torchs():
    x = np.random.default_rng(0).normal(size=(5, 7)) * 50
    t = torch.from_numpy(x)
    np.testing.assert_allclose(softmax(x, 2.5), (t / 2.5).softmax(-1).numpy(), rtol=1e-12)
    np.testing.assert_allclose(sigmoid(x, 2.5), (t / 2.5).sigmoid().numpy(), rtol=1e-9, atol=1e-15)
    labels = np.arange(5)
    reference = torch.nn.functional.cross_entropy(t / 2.5, torch.from_numpy(labels))
    assert mean_loss(x, labels, 2.5) == pytest.approx(float(reference), rel=1e-12)
    several = (x > 20).astype(np.int64)
    one_by_one = torch.nn.functional.binary_cross_entropy_with_logits(
        t, torch.from_numpy(several).double(), reduction="none"
    )
    assert mean_loss(x, several) == pytest.approx(float(one_by_one.sum(1).mean()), rel=1e-12)


@pytest.mark.parametrize("true", [0.4, 1.0, 2.5])
def test_the_temperature_that_made_the_labels_is_found(true):
    logits, labels = drawn(20_000, 6, true)
    assert fit_temperature(logits, labels) == pytest.approx(true, rel=0.03)


def test_many_images_scale_with_the_logits():
    """T(c z) = c T(z) but for the prior, whose weight is one image's."""
    logits, labels = drawn(20_000, 5, 1.5)
    assert fit_temperature(3 * logits, labels) == pytest.approx(3 * fit_temperature(logits, labels), rel=2e-3)


@given(st.integers(0, 10_000), st.integers(1, 40), st.integers(2, 8), st.floats(0.01, 50), st.booleans())
def test_a_fit_never_raises_the_loss_it_was_fitted_on(seed, n, k, scale, several):
    random = np.random.default_rng(seed)
    logits = scale * random.normal(size=(n, k))
    labels = random.integers(0, 2, (n, k)) if several else random.integers(0, k, n)
    found = fit_temperature(logits, labels)
    assert MIN_TEMPERATURE <= found <= MAX_TEMPERATURE
    assert mean_loss(logits, labels, found) <= mean_loss(logits, labels, 1.0) + 1e-12


def test_a_few_right_answers_are_no_reason_to_be_certain():
    """Without a prior, thirty images that are all right would make the temperature zero."""
    logits = 4 * np.eye(10)[np.arange(30) % 10]
    found = fit_temperature(logits, np.arange(30) % 10)
    assert 0.3 < found < 1
    assert fit_temperature(np.zeros((0, 3)), np.zeros(0, int)) == 1


def test_the_prior_meets_scipys_minimum():
    from scipy.optimize import minimize_scalar

    logits, labels = drawn(60, 4, 2.0)
    cost = lambda t: mean_loss(logits, labels, math.exp(t)) + t**2 / 120  # noqa: E731
    reference = minimize_scalar(cost, bounds=(math.log(MIN_TEMPERATURE), math.log(MAX_TEMPERATURE)), method="bounded")
    assert math.log(fit_temperature(logits, labels)) == pytest.approx(reference.x, abs=1e-3)


def test_images_without_a_label_do_not_count():
    logits, labels = drawn(500, 4, 2.0)
    more = np.concatenate([logits, 9 * logits[:50]])
    assert fit_temperature(more, np.append(labels, np.full(50, -1))) == fit_temperature(logits, labels)


def test_a_threshold_keeps_what_it_promises():
    scores = np.random.default_rng(0).normal(size=997)
    for keep in (0.5, 0.9, 0.95, 0.99, 1.0):
        kept = (scores >= fit_threshold(scores, keep)).mean()
        assert keep <= kept < keep + 2 / 997
    assert fit_threshold(scores[:10]) == scores[:10].min()


def test_the_score_is_the_largest_logit():
    x = np.random.default_rng(0).normal(size=(6, 4))
    assert (score(x) == x.max(1)).all()
    np.testing.assert_allclose(score(x + 2.5), score(x) + 2.5)
    assert (score(x[:, [2, 0, 3, 1]]) == score(x)).all()


def test_true_confidence_has_no_error():
    """Bins whose share right is their confidence: the error is 0; certainty that is always wrong: 1."""
    confidence = np.repeat([0.5, 0.9], [10, 10])
    is_right = np.array([1] * 5 + [0] * 5 + [1] * 9 + [0])
    assert reliability(confidence, is_right).error == pytest.approx(0)
    assert reliability(np.ones(7), np.zeros(7)).error == 1
    assert sum(b.count for b in reliability(confidence, is_right).bins) == 20


def test_bins_are_those_of_the_paper():
    """Σ n_b / N · |right − confidence|, bins (low, high]."""
    random = np.random.default_rng(0)
    confidence, is_right = random.random(500), random.random(500) < 0.6
    found = reliability(confidence, is_right)
    by_hand = 0.0
    for b in range(15):
        inside = (confidence > b / 15) & (confidence <= (b + 1) / 15)
        if inside.any():
            by_hand += inside.mean() * abs(is_right[inside].mean() - confidence[inside].mean())
        assert found.bins[b].count == inside.sum()
    assert found.error == pytest.approx(by_hand)


@pytest.mark.parametrize("bins", [4, 8])
def test_a_confidence_on_the_border_of_two_bins_belongs_to_the_lower(bins):
    """(low, high]: borders that floats hold exactly; 0 itself has no lower bin."""
    borders = np.arange(bins + 1) / bins
    found = reliability(borders, np.zeros(bins + 1), bins)
    assert [b.count for b in found.bins] == [2] + [1] * (bins - 1)
    assert [b.confidence for b in found.bins] == [0.5 / bins, *borders[2:]]


def test_answering_only_above_a_confidence():
    probabilities = np.array([[0.9, 0.1], [0.8, 0.2], [0.3, 0.7], [0.55, 0.45], [0.6, 0.4]])
    labels = np.array([0, 0, 1, 1, 1])
    row = answer_above(probabilities, labels, lambda row: row.right == row.answered)
    assert (row.confidence, row.answered, row.right, row.images) == (0.61, 3, 3, 5)
    assert str(row) == "answer only above 0.61: 60.0 % answered, 100.0 % right"
    assert answer_above(probabilities, labels, lambda row: row.right >= 0.5 * row.answered).confidence == 0
    assert answer_above(probabilities, 1 - labels, lambda row: row.right >= 0.9 * row.answered) is None


def test_a_confidence_counts_only_if_the_surer_ones_hold_too():
    """Many right answers that are unsure do not excuse wrong ones that are sure."""
    counts = ((0.9, 40, 40), (0.7, 10, 0), (0.4, 400, 400))  # confidence, answers, right
    confidence = np.concatenate([np.full(n, p) for p, n, _ in counts])
    labels = np.concatenate([np.arange(n) >= right for _, n, right in counts]).astype(int)
    probabilities = np.stack([confidence, *[(1 - confidence) / 3] * 3], 1)

    def is_enough(row):
        return row.right >= 0.9 * row.answered

    assert answer_above(probabilities, labels, is_enough).confidence == 0.71
    assert answer_above(probabilities[50:], labels[50:], is_enough).confidence == 0


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: fit_temperature(np.full((2, 3), np.nan), np.zeros(2, int)), ["not all finite"]),
        (lambda: fit_temperature(np.zeros((2, 3)), np.zeros(3, int)), ["2 rows", "3 labels"]),
        (lambda: fit_threshold(np.zeros(0)), ["needs scores"]),
        (lambda: fit_threshold(np.array([np.inf])), ["finite"]),
        (lambda: fit_threshold(np.zeros(3), keep=0), ["share of 0"]),
    ],
)
def test_bad_input_is_one_line(call, words):
    with pytest.raises(DataError) as caught:
        call()
    line_of(caught.value, *words)
