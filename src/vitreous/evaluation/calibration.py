"""Calibrated confidence: one temperature, one threshold for "none of these", and checks of both.

Everything here works on logits alone, so every runtime gives the same numbers.

N images   K classes
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitreous.errors import DataError

Numbers = NDArray[np.floating[Any]]
MIN_TEMPERATURE, MAX_TEMPERATURE = 0.05, 20.0
BINS = 15
CONFIDENCES = (0.0, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99)  # rows of the table "answer only above"
CONFIDENCE_GRID = (*(n / 100 for n in range(100)), 0.995, 0.999)  # tried by `answer_above`
LOGITS_AT_ONCE = 2**22  # numbers copied to float64 at a time


def softmax(logits: Numbers, temperature: float = 1.0) -> NDArray[np.float64]:
    """exp(z / T) / Σ exp(z / T), in float64.  N K -> N K."""
    z = np.asarray(logits, np.float64) / temperature
    z = np.exp(z - z.max(-1, keepdims=True))
    return z / z.sum(-1, keepdims=True)


def sigmoid(logits: Numbers, temperature: float = 1.0) -> NDArray[np.float64]:
    """1 / (1 + exp(−z / T)), in float64, for each class by itself."""
    return 0.5 * (1 + np.tanh(0.5 / temperature * np.asarray(logits, np.float64)))


def score(logits: Numbers) -> NDArray[np.float64]:
    """How much an image resembles what the model learned, by its largest logit.  N K -> N."""
    return np.asarray(logits, np.float64).max(-1)


def fit_threshold(scores: Numbers, keep: float = 0.95) -> float:
    """The score that a share `keep` of these images reaches; images below it are none of the classes."""
    scores = np.asarray(scores, np.float64)
    if not 0 < keep <= 1:
        raise DataError(f"a threshold cannot keep a share of {keep}; give one above 0 and at most 1")
    if not len(scores) or not np.isfinite(scores).all():
        raise DataError("a threshold needs scores, all finite; give those of images that nothing was trained on")
    return float(np.sort(scores)[math.floor((1 - keep) * len(scores) + 1e-9)])


# Temperature -----------------------------------------------------------------------------------------------------


def fit_temperature(logits: Numbers, labels: NDArray[np.integer[Any]]) -> float:
    """The temperature that calibrates confidences (arXiv 1706.04599), from images not used in training.

        T = argmin  mean NLL(z / T) + (ln T)² / 2N,    MIN_TEMPERATURE ≤ T ≤ MAX_TEMPERATURE

    The second term is a prior, ln T ~ Normal(0, 1): a few images that are all right do not drive T to zero, and many
    images outweigh it. The NLL falls monotonically from T = 1 to its minimum, so T never raises it on these images.
    labels: N class numbers, or N K of 0 and 1, where each class has its own logistic loss. −1 is left out.
    """
    logits, labels = _known(logits, labels)
    if not len(logits):
        return 1.0

    def cost(log_t: float) -> float:
        return mean_loss(logits, labels, math.exp(log_t)) + log_t**2 / (2 * len(logits))

    here, step = cost(0.0), 1e-3
    if cost(step) < here:
        found = _golden(cost, 0.0, math.log(MAX_TEMPERATURE))
    elif cost(-step) < here:
        found = _golden(cost, math.log(MIN_TEMPERATURE), 0.0)
    else:
        return 1.0
    better = mean_loss(logits, labels, math.exp(found)) <= mean_loss(logits, labels, 1.0)
    return math.exp(found) if better else 1.0


def mean_loss(logits: Numbers, labels: NDArray[np.integer[Any]], temperature: float = 1.0) -> float:
    """Negative log likelihood, mean over images; summed over classes if labels are N K."""
    total = 0.0
    for part in parts(logits):
        z, y = np.asarray(logits[part], np.float64) / temperature, labels[part]
        if y.ndim == 2:
            total += float((np.logaddexp(0, z) - z * y).sum())
        else:
            z = z - z.max(-1, keepdims=True)
            total += float((np.log(np.exp(z).sum(-1)) - z[np.arange(len(z)), y]).sum())
    return total / len(logits) if len(logits) else math.nan


def parts(logits: Numbers) -> Iterator[slice]:
    """Slices of rows, so memory does not grow with their number."""
    step = max(LOGITS_AT_ONCE // max(logits.shape[-1], 1), 1)
    return (slice(first, min(first + step, len(logits))) for first in range(0, len(logits), step))


def _known(logits: Numbers, labels: NDArray[Any]) -> tuple[Numbers, NDArray[np.int64]]:
    labels = np.asarray(labels, np.int64)
    if len(logits) != len(labels):
        raise DataError(f"{len(logits)} rows of logits and {len(labels)} labels do not belong together")
    if not np.isfinite(logits).all():
        raise DataError("the logits are not all finite, so the model is broken; go back to an earlier state of it")
    is_known = labels >= 0 if labels.ndim == 1 else (labels >= 0).all(1)
    return (logits, labels) if is_known.all() else (logits[is_known], labels[is_known])


def _golden(cost: Callable[[float], float], low: float, high: float, tolerance: float = 1e-4) -> float:
    """Golden-section search for a minimum."""
    ratio = (math.sqrt(5) - 1) / 2
    left, right = high - ratio * (high - low), low + ratio * (high - low)
    at_left, at_right = cost(left), cost(right)
    while high - low > tolerance:
        if at_left <= at_right:
            high, right, at_right = right, left, at_left
            left = high - ratio * (high - low)
            at_left = cost(left)
        else:
            low, left, at_left = left, right, at_right
            right = low + ratio * (high - low)
            at_right = cost(right)
    return (low + high) / 2


# Does it hold? ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Bin:
    """Answers whose confidence lies in (low, high]."""

    low: float
    high: float
    count: int
    confidence: float  # their mean; nan for an empty bin
    right: float  # share right


@dataclass(frozen=True)
class Calibration:
    """error: expected calibration error, Σ count / N · |right − confidence|."""

    error: float
    bins: tuple[Bin, ...]

    def to_json(self) -> dict[str, Any]:
        bins = [asdict(b) if b.count else {"low": b.low, "high": b.high, "count": 0} for b in self.bins]
        return {"expected_calibration_error": self.error, "bins": bins}


def reliability(confidence: Numbers, is_right: NDArray[Any], bins: int = BINS) -> Calibration:
    """Confidence against the share right, in equal bins (arXiv 1706.04599).  Both: N."""
    confidence, is_right = np.asarray(confidence, np.float64), np.asarray(is_right, np.float64)
    place = np.clip(np.ceil(confidence * bins).astype(np.int64) - 1, 0, bins - 1)
    count = np.bincount(place, minlength=bins)
    sums = (np.bincount(place, weights=values, minlength=bins) for values in (confidence, is_right))
    mean, right = (np.divide(s, count, out=np.full(bins, math.nan), where=count > 0) for s in sums)
    error = float((count * np.abs(np.nan_to_num(mean - right))).sum() / max(len(confidence), 1))
    rows = zip(range(bins), count.tolist(), mean.tolist(), right.tolist(), strict=True)
    return Calibration(error, tuple(Bin(b / bins, (b + 1) / bins, n, s, r) for b, n, s, r in rows))


@dataclass(frozen=True)
class Above:
    """The outcome of answering only with a confidence of at least `confidence`."""

    confidence: float
    images: int
    answered: int
    right: int

    @property
    def answered_share(self) -> float:
        return self.answered / self.images if self.images else 0.0

    @property
    def right_share(self) -> float:
        """The share right of those answered; nan if none is."""
        return self.right / self.answered if self.answered else math.nan

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        right = f"{100 * self.right_share:.1f} % right" if self.answered else "none"
        return f"answer only above {self.confidence:g}: {100 * self.answered_share:.1f} % answered, {right}"


def above(confidence: Numbers, is_right: NDArray[Any], limit: float) -> Above:
    """Counts at one confidence limit."""
    answered = np.asarray(confidence) >= limit
    return Above(limit, len(answered), int(answered.sum()), int(np.asarray(is_right, bool)[answered].sum()))


def answer_above(probabilities: Numbers, labels: NDArray[Any], is_enough: Callable[[Above], bool]) -> Above | None:
    """The lowest confidence down to which enough answers are right, in steps of 0.01; None if there is none.

    The search starts at the surest answers and ends at the first failure after a confidence that holds: the lowest of
    all that hold may hold by chance.  probabilities: N K, calibrated, of images not used in training.  labels: N.
    """
    probabilities, labels = _known(probabilities, labels)
    confidence, is_right = probabilities.max(-1), probabilities.argmax(-1) == labels
    found: Above | None = None
    for limit in reversed(CONFIDENCE_GRID):
        row = above(confidence, is_right, limit)
        if row.answered and is_enough(row):
            found = row
        elif found is not None:
            break
    return found
