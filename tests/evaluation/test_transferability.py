"""LogME and H-score: the recorded values, the laws, and what has no score."""

import json

import numpy as np
import pytest
from feature_clouds import clouds
from scipy.optimize import minimize
from shared_files import ROOT
from tiny_models import line_of

from vitreous.errors import VitreousError
from vitreous.evaluation.transferability import h_score, log_evidence, logme, score

GOLDEN = np.load(ROOT / "tests/golden/measures/transferability.npz")


@pytest.mark.parametrize("case", ["good", "weak"])
def test_recorded_scores(case):
    x, y = GOLDEN[f"features_{case}"], GOLDEN["y"]
    found = score(x, y, 3)
    assert found.logme == pytest.approx(GOLDEN[f"logme_{case}"], abs=1e-9)
    assert found.h_score == pytest.approx(GOLDEN[f"hscore_{case}"], abs=1e-9)
    parts = np.stack(log_evidence(x, np.eye(3)[y]), 1)  # evidence, a, b of each class
    np.testing.assert_allclose(parts, GOLDEN[f"logme_per_class_{case}"], rtol=1e-6)


def test_h_scores_by_hand():
    assert h_score(GOLDEN["hand_hscore_features"], GOLDEN["hand_hscore_y"], 2) == pytest.approx(1)
    assert h_score(GOLDEN["hand2_hscore_features"], GOLDEN["hand_hscore_y"], 2) == pytest.approx(0.5)


@pytest.mark.parametrize(("n", "d"), [(40, 6), (12, 30)])
def test_the_evidence_is_a_maximum(n, d):
    """As written, with all D eigenvalues, maximised by another's hand."""
    x, y = clouds(n, d, 2)
    target = (y == 1).astype(float)

    def cost(logs):
        a, b = np.exp(logs)
        whole = a * np.eye(d) + b * x.T @ x
        m = b * np.linalg.solve(whole, x.T @ target)
        squares = b / 2 * ((x @ m - target) ** 2).sum() + a / 2 * m @ m
        value = (
            n / 2 * np.log(b)
            + d / 2 * np.log(a)
            - n / 2 * np.log(2 * np.pi)
            - squares
            - np.linalg.slogdet(whole)[1] / 2
        )
        return -value / n

    best = min(
        (
            minimize(cost, start, method="Nelder-Mead", options={"xatol": 1e-8, "fatol": 1e-12})
            for start in ([0, 0], [3, 3])
        ),
        key=lambda r: r.fun,
    )
    assert log_evidence(x, target[:, None])[0][0] == pytest.approx(-best.fun, abs=1e-6)


def test_turning_features_changes_nothing():
    x, y = clouds(60, 6, 3)
    turn = np.linalg.qr(np.random.default_rng(0).normal(size=(6, 6)))[0]
    first, second = score(x, y, 3), score(x @ turn, y, 3)
    assert first.logme == pytest.approx(second.logme)
    assert first.h_score == pytest.approx(second.h_score)
    assert h_score(x * np.arange(1, 7) + 5, y, 3) == pytest.approx(first.h_score)  # any linear map, for the H-score


def test_better_features_score_higher():
    y = clouds(300, 8, 4)[1]
    good, weak, none = (score(clouds(300, 8, 4, apart=apart)[0], y, 4) for apart in (2.0, 0.5, 0.0))
    assert good.logme > weak.logme > none.logme
    assert 3 >= good.h_score > weak.h_score > none.h_score >= 0


def test_features_without_a_signal_have_a_finite_score():
    """a would grow for ever, and is capped; a class of the set without rows does not count."""
    y = np.arange(20) % 2
    x = np.where(np.arange(20) % 4 < 2, 1.0, -1.0)[:, None]  # orthogonal to both classes
    assert np.isfinite(score(x, y, 5).logme)
    assert score(x, y, 5).classes == 2


def test_it_tells_people_and_programs_the_same():
    x, y = clouds(60, 6, 3)
    found = score(x, y, ["ant", "bee", "cat"])
    assert json.loads(json.dumps(found.to_json()))["logme"] == found.logme == logme(x, y, 3)
    assert "of at most 2" in str(found)


@pytest.mark.parametrize(
    ("y", "words"), [(np.zeros(8, int), ["fewer than 2 classes"]), (np.arange(8), ["from 0 to 7", "3 classes"])]
)
def test_what_has_no_score_is_one_line(y, words):
    with pytest.raises(VitreousError) as error:
        score(np.eye(8), y, 3)
    line_of(error.value, *words)
