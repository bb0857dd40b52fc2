"""How useful features are for labels, without training: LogME (arXiv 2102.11005) and the H-score (Bao 2019).

n rows   D features   K classes   everything in float64
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitreous.evaluation.labelled_rows import checked, count_classes, known_rows

Numbers = NDArray[np.float64]
MAX_ROUNDS = 10_000
MAX_PRECISION = 1e10  # of prior and noise; uninformative features would drive the prior's to infinity


@dataclass(frozen=True)
class Score:
    """Both are higher for better features; logme compares models on one set, h_score lies in 0 … K − 1."""

    logme: float
    h_score: float
    rows: int
    features: int
    classes: int

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        most = min(self.features, self.classes - 1)
        return f"LogME {self.logme:.4f}, H-score {self.h_score:.3f} of at most {most} ({self.rows:,} rows)"


def score(x: NDArray[Any], y: NDArray[Any], classes: int | Sequence[str]) -> Score:
    """LogME and H-score of features N D for labels N; rows of −1 are left out."""
    rows, labels = _known(x, y, classes)
    return Score(_logme(rows, labels), _h_score(rows, labels), len(rows), rows.shape[1], len(np.unique(labels)))


def logme(x: NDArray[Any], y: NDArray[Any], classes: int | Sequence[str]) -> float:
    """Mean over classes of the largest log evidence of a row, for targets 0 and 1 on raw features."""
    return _logme(*_known(x, y, classes))


def h_score(x: NDArray[Any], y: NDArray[Any], classes: int | Sequence[str]) -> float:
    """tr(cov(f)⁺ cov(E[f | y])), covariances over n. Meaningless for D ≥ n: every class is separable."""
    return _h_score(*_known(x, y, classes))


def log_evidence(x: Numbers, targets: Numbers) -> tuple[Numbers, Numbers, Numbers]:
    """Largest log evidence over a, b > 0 for each column of targets, per row; and those a and b.

        A = a I + b FᵀF,   m = b A⁻¹ Fᵀ t
        log p = n/2 ln b + D/2 ln a − n/2 ln 2π − b/2 ‖Fm − t‖² − a/2 mᵀm − 1/2 ln det A
        γ = Σᵢ b sᵢ / (a + b sᵢ)          a ← γ / mᵀm,   b ← (n − γ) / ‖Fm − t‖²

    x: n D.  targets: n K.  All D eigenvalues count: those that n < D leaves at zero cancel against D/2 ln a.
    """
    n = len(x)
    u, root, _ = np.linalg.svd(x, full_matrices=False)  # n r, r
    s = root**2
    turned = (u.T @ targets) ** 2  # r K: squared, since only norms are needed
    outside = np.maximum((targets**2).sum(0) - turned.sum(0), 0)  # the part of t outside the features' span
    a = b = np.ones(targets.shape[1])
    for _ in range(MAX_ROUNDS):
        shrink = a + b * s[:, None]  # r K
        gamma = (b * s[:, None] / shrink).sum(0)
        mm = (b**2 * s[:, None] / shrink**2 * turned).sum(0)
        rest = ((a / shrink) ** 2 * turned).sum(0) + outside
        new_a = np.minimum(gamma / np.maximum(mm, 1e-300), MAX_PRECISION)
        new_b = np.minimum((n - gamma) / np.maximum(rest, 1e-300), MAX_PRECISION)
        change = max(float(np.abs(np.log(new_a / a)).max()), float(np.abs(np.log(new_b / b)).max()))
        a, b = new_a, new_b
        if change < 1e-9:
            break
    shrink = a + b * s[:, None]
    mm = (b**2 * s[:, None] / shrink**2 * turned).sum(0)
    rest = ((a / shrink) ** 2 * turned).sum(0) + outside
    logs = np.log(shrink / a).sum(0)  # ln det A − D ln a
    value = n / 2 * np.log(b / (2 * np.pi)) - b / 2 * rest - a / 2 * mm - logs / 2
    return value / n, a, b


def _logme(x: Numbers, y: NDArray[np.int64]) -> float:
    targets = (y[:, None] == np.unique(y)).astype(np.float64)
    return float(log_evidence(x, targets)[0].mean())


def _h_score(x: Numbers, y: NDArray[np.int64]) -> float:
    rows = x - x.mean(0)
    u, s, _ = np.linalg.svd(rows, full_matrices=False)
    u = u[:, s > s.max(initial=0) * max(x.shape) * np.finfo(np.float64).eps]
    numbers, place = np.unique(y, return_inverse=True)
    sums = np.zeros((len(numbers), u.shape[1]))
    np.add.at(sums, place, u)
    return float((sums**2 / np.bincount(place)[:, None]).sum())  # tr over whitened rows √n u of n_k/n ‖mean‖²


def _known(x: NDArray[Any], y: NDArray[Any], classes: int | Sequence[str]) -> tuple[Numbers, NDArray[np.int64]]:
    rows, labels = checked(x, y, count_classes(classes))
    kept = known_rows(labels)
    return np.asarray(rows[kept], np.float64), labels[kept]
