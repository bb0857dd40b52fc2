"""Which labels are more likely wrong than right, by probabilities of a model that has not seen the images.

N images   K classes
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

TEMPERATURES = np.geomspace(0.05, 20, 301)  # steps of 2 %, all equally likely a priori
WRONG_SHARES = np.concatenate([[0.0], np.geomspace(0.001, 0.3, 33)])
SHARE_PRIORS = np.where(WRONG_SHARES > 0, 0.5 / 33, 0.5)  # 'no label is wrong' and 'some are' are equally likely
FITTED_ROWS, FITTED_PROBABILITIES = 5_000, 1_000_000  # at most: two numbers are fitted, so a part is enough
MIN_ABOVE_CHANCE = 0.5  # of the way from the commonest class's share to 100 %


def confident_errors(labels: ArrayLike, probabilities: ArrayLike) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Suspected label errors by confident learning (arXiv 1911.00068), the most doubtful first.

        t_j = mean of p[i, j] over the images i that carry label j
        suspected: the j with the largest p[i, j] among those with p[i, j] ≥ t_j is not the label of i
        suggested: the j with the largest p[i, j] of all; if that is the label of i, nothing is suspected

    labels: N; probabilities: N K, each row from a model that has not seen i.  Returns places, and the label suggested.
    """
    y, p = np.asarray(labels, np.int64), np.asarray(probabilities, np.float64)
    rows = np.arange(len(y))
    sums = np.zeros(p.shape[1])
    np.add.at(sums, y, p[rows, y])
    counts = np.bincount(y, minlength=p.shape[1])
    thresholds = np.where(counts > 0, sums / np.maximum(counts, 1), np.inf)
    confident = np.where(p >= thresholds, p, -1.0)
    is_doubted = (confident.max(1) >= 0) & (confident.argmax(1) != y)
    suggested = p.argmax(1)
    margin = p[rows, y] - p[rows, suggested]
    wrong = np.flatnonzero(is_doubted & (margin < 0))
    wrong = wrong[np.argsort(margin[wrong], kind="stable")]
    return wrong, suggested[wrong]


def likely_errors(labels: ArrayLike, probabilities: ArrayLike) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Of `confident_errors`, those more likely wrong than right: a weak model suspects many labels, and most are right.

        P(label y of i) = (1 − r) q[i, y] + r (1 − q[i, y]) / (K − 1)        q = p^(1/T), each row summing to 1
        P(y is wrong)   =                   r (1 − q[i, y]) / (K − 1)  /  P(label y of i)

    r is the share of wrong labels. P(y is wrong) is the mean over r and T, each weighted by how well it explains all
    labels. A model that is itself wrong too often names none.
    """
    y, p = np.asarray(labels, np.int64), np.asarray(probabilities, np.float64)
    places, suggested = confident_errors(y, p)
    if not len(places) or not _is_able(y, p):
        return places[:0], suggested[:0]
    logs, step = np.log(p.clip(1e-12)), max(-(-len(p) // FITTED_ROWS), -(-p.size // FITTED_PROBABILITIES))
    weights = _weights(logs[::step], y[::step])
    is_wrong = np.zeros(len(places))
    for temperature, of_shares in zip(TEMPERATURES.tolist(), weights, strict=True):
        if of_shares.sum() > 1e-6:
            right, wrong = _explained(logs[places], y[places], temperature)
            is_wrong += (wrong / (right + wrong)) @ of_shares
    return places[is_wrong > 0.5], suggested[is_wrong > 0.5]


def _is_able(labels: NDArray[np.int64], p: NDArray[np.float64]) -> bool:
    """Whether the model predicts most of the labels that guessing would miss."""
    chance = np.bincount(labels).max() / len(labels)
    return bool((p.argmax(1) == labels).mean() - chance > MIN_ABOVE_CHANCE * (1 - chance))


def _weights(logs: NDArray[np.float64], labels: NDArray[np.int64]) -> NDArray[np.float64]:
    """How likely each temperature and share of wrong labels is, given all labels; the sum is 1.  T R."""
    found = [np.log(sum(_explained(logs, labels, t))).sum(0) for t in TEMPERATURES.tolist()]
    weights = np.exp(found - np.max(found)) * SHARE_PRIORS
    return weights / weights.sum()


def _explained(logs: NDArray[np.float64], labels: NDArray[np.int64], temperature: float) -> tuple[Any, Any]:
    """P(label, and it is right), P(label, and it is wrong), for each share of wrong labels.  Each N R."""
    z = logs / temperature
    z -= z.max(1, keepdims=True)
    own = np.exp(z[np.arange(len(z)), labels]).clip(1e-300) / np.exp(z).sum(1)
    own = own[:, None]
    return (1 - WRONG_SHARES) * own, WRONG_SHARES * (1 - own) / (logs.shape[1] - 1)
