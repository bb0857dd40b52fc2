"""Rows like features of several classes: overlapping clouds."""

import numpy as np


def clouds(n: int, d: int, k: int, seed: int = 0, apart: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    """Overlapping clouds, one for each class, each class met; the centres do not depend on the seed."""
    random = np.random.default_rng(seed)
    y = np.arange(n) % k
    centres = apart * np.random.default_rng(99).normal(size=(k, d))
    return centres[y] + random.normal(size=(n, d)), y
