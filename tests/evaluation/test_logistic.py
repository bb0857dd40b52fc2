"""The plain rival: one minimum, found."""

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.special import logsumexp
from tiny_models import line_of

import vitreous
from vitreous.errors import VitreousError
from vitreous.evaluation import calibration, logistic


def blobs(n: int, d: int, k: int, seed: int = 0, apart: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    """Overlapping clouds, one for each class; the places of the clouds do not depend on the seed."""
    random = np.random.default_rng(seed)
    y = random.integers(0, k, n)
    centres = apart * np.random.default_rng(99).normal(size=(k, d))
    return centres[y] + random.normal(size=(n, d)), y


def test_it_meets_scipys_minimum():
    x, y = blobs(120, 5, 3)
    l2 = 0.01
    probe = logistic.fit(x, y, 3, l2=l2)
    z = (x - x.mean(0)) / x.std(0)

    def cost(flat):
        w, b = flat[:15].reshape(3, 5), flat[15:]
        logits = z @ w.T + b
        return (logsumexp(logits, axis=1) - logits[np.arange(120), y]).mean() + l2 / 2 * (w**2).sum()

    reference = minimize(cost, np.zeros(18), method="BFGS", options={"gtol": 1e-8, "maxiter": 5000})
    assert probe.is_converged
    assert probe.loss == pytest.approx(reference.fun, abs=1e-9)
    np.testing.assert_allclose(probe.weight, reference.x[:15].reshape(3, 5), atol=1e-4)


def test_units_do_not_matter():
    """Pixels of 0 … 255 or of 0 … 1, shifted or not: the same answers."""
    x, y = blobs(200, 6, 4)
    first = logistic.fit(x, y, 4)
    second = logistic.fit(255 * x + 7, y, 4)
    np.testing.assert_allclose(second.logits(255 * x + 7), first.logits(x), atol=1e-5)


def test_the_order_of_rows_does_not_matter():
    x, y = blobs(150, 4, 3)
    order = np.random.default_rng(3).permutation(150)
    np.testing.assert_allclose(logistic.fit(x[order], y[order], 3).weight, logistic.fit(x, y, 3).weight, atol=1e-5)


def test_a_start_changes_the_way_and_not_the_end():
    x, y = blobs(200, 6, 4)
    warm = logistic.fit(x, y, 4, l2=1e-3, start=logistic.fit(x, y, 4, l2=1.0))
    np.testing.assert_allclose(warm.weight, logistic.fit(x, y, 4, l2=1e-3).weight, atol=1e-4)


def test_a_number_that_never_changes_weighs_nothing():
    x, y = blobs(100, 3, 2)
    wide = np.concatenate([x, np.full((100, 1), 12.0)], 1)
    probe = logistic.fit(wide, y, 2)
    assert np.isfinite(probe.logits(wide)).all()
    assert (probe.weight[:, 3] == 0).all()


def test_a_stiff_penalty_answers_with_the_shares_of_the_classes():
    """l2 → ∞: the weights vanish and the biases are the log shares, up to a constant."""
    x, y = blobs(300, 4, 3)
    probe = logistic.fit(x, y, 3, l2=1e3)
    shares = np.bincount(y) / 300
    bias = probe.bias - probe.bias.mean()
    np.testing.assert_allclose(bias, np.log(shares) - np.log(shares).mean(), atol=1e-3)


def test_l2_is_chosen_on_dev():
    """Clouds that overlap much: the stiffest penalty is the best on dev, and the softest on the rows themselves."""
    x, y = blobs(40, 30, 3, apart=0.4)
    dev_x, dev_y = blobs(400, 30, 3, seed=5, apart=0.4)
    chosen = logistic.choose(x, y, dev_x, dev_y, 3)
    rights = {l2: logistic.fit(x, y, 3, l2=l2).right(dev_x, dev_y) for l2 in logistic.LOGISTIC_L2S}
    best, second, *_ = sorted(rights.values(), reverse=True)
    assert best > second + 5, "near equals would be told apart by rounding"
    assert chosen.l2 == max(rights, key=rights.get)


def test_l2_is_chosen_by_the_loss_on_dev_where_that_is_asked_for():
    x, y = blobs(40, 30, 3)
    dev_x, dev_y = blobs(400, 30, 3, seed=5)

    def loss(probe):
        return calibration.mean_loss(probe.logits(dev_x), dev_y)

    chosen = logistic.choose(x, y, dev_x, dev_y, 3, by="loss")
    least = min(loss(logistic.fit(x, y, 3, l2=l2)) for l2 in logistic.LOGISTIC_L2S)
    assert loss(chosen) <= 1.05 * least  # warm starts end within tolerance of cold ones


def test_pixels_of_clothes_tell_much():
    data = vitreous.images.open("fashion", limit=1500)
    train, test = data.split("train"), data.split("test")
    x, y = (np.stack([part.read(i) for i in range(len(part))]) for part in (train, test))
    probe = logistic.fit(x, train.labels, 10, l2=0.1)
    assert probe.right(y, test.labels) > 0.7 * len(test)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: logistic.fit(np.zeros((3, 2)), [0, 1], 2), ["3 rows and 2 labels"]),
        (lambda: logistic.fit(np.zeros((0, 2)), [], 2), ["0 rows"]),
        (lambda: logistic.fit(np.zeros((2, 2)), [0, 2], 2), ["0 to 2", "2 classes"]),
        (lambda: logistic.fit(np.zeros((2, 2)), [0, -1], 2), ["-1 to 0"]),
        (lambda: logistic.fit(np.full((2, 2), np.nan), [0, 1], 2), ["not finite"]),
        (lambda: logistic.fit(np.zeros((2, 2)), [0, 1], 2, l2=-1), ["l2 of -1"]),
        (lambda: logistic.fit(np.zeros((2, 2)), [0, 1], 2, l2=float("nan")), ["l2 of nan"]),
        (lambda: logistic.fit(*blobs(20, 3, 2), 2).logits(np.zeros((1, 4))), ["rows of 4", "probe of 3"]),
        (lambda: logistic.choose(np.zeros((2, 2)), [0, 1], np.zeros((2, 2)), [0, 1], 2, l2s=()), ["no l2"]),
    ],
)
def test_bad_input_is_one_line(call, words):
    with pytest.raises(VitreousError) as caught:
        call()
    line_of(caught.value, *words)
