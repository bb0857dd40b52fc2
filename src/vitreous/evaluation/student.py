"""Student's t for a few numbers: probabilities, quantiles, and the interval of a mean."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


def two_sided(t: float, freedom: int) -> float:
    """P(|T| ≥ |t|) with `freedom` degrees of freedom, a whole number, by the finite series."""
    angle = math.atan2(abs(t), math.sqrt(freedom))
    sine, cosine = math.sin(angle), math.cos(angle)
    term, total = (cosine, cosine) if freedom % 2 else (1.0, 1.0)
    for k in range(3 if freedom % 2 else 2, freedom - 1, 2):
        term *= cosine * cosine * (k - 1) / k
        total += term
    if freedom % 2 == 0:
        inside = sine * total
    elif freedom == 1:
        inside = 2 * angle / math.pi
    else:
        inside = 2 * (angle + sine * total) / math.pi
    return min(max(1.0 - inside, 0.0), 1.0)


def quantile(level: float, freedom: int) -> float:
    """The t with P(|T| ≤ t) = level."""
    low, high = 0.0, 1.0
    while two_sided(high, freedom) > 1 - level:
        low, high = high, 2 * high
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if two_sided(middle, freedom) > 1 - level else (low, middle)
    return (low + high) / 2


def interval_of_mean(values: Sequence[float] | NDArray[np.float64], level: float = 0.95) -> tuple[float, float] | None:
    """The interval of the mean of some numbers; None for fewer than two."""
    numbers = np.asarray(values, np.float64)
    if len(numbers) < 2:
        return None
    half = quantile(level, len(numbers) - 1) * float(numbers.std(ddof=1)) / math.sqrt(len(numbers))
    return float(numbers.mean()) - half, float(numbers.mean()) + half
