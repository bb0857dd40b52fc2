"""Multinomial logistic regression: the plain baseline for a network on the same numbers.

N rows   D numbers in a row   K classes
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from vitreous.errors import ConfigError, DataError
from vitreous.evaluation import calibration
from vitreous.evaluation.eager_optimizer import EagerOptimizer
from vitreous.evaluation.tie_breaking import best_class

LOGISTIC_L2S = (1.0, 0.1, 0.01, 1e-3, 1e-4, 1e-5)  # from the largest; each fit starts from the previous one
FLOAT64_BELOW = 2**25  # numbers; below this everything is float64
MAX_LBFGS_STEPS = 500


@dataclass(frozen=True, eq=False)
class Probe:
    """logits = ((x − mean) / std) Wᵀ + b"""

    weight: NDArray[np.float64]  # K D
    bias: NDArray[np.float64]  # K
    mean: NDArray[np.float64]  # D
    std: NDArray[np.float64]  # D; 1 for constant features
    l2: float
    loss: float  # on the training rows, including the penalty
    is_converged: bool

    def logits(self, x: NDArray[Any]) -> NDArray[np.float64]:
        """N D, or N of any shape with D numbers each -> N K."""
        rows = np.asarray(x).reshape(len(x), -1)
        if rows.shape[1] != len(self.mean):
            raise DataError(f"rows of {rows.shape[1]} numbers do not fit a probe of {len(self.mean)}; give such rows")
        return ((rows - self.mean) / self.std) @ self.weight.T + self.bias

    def right(self, x: NDArray[Any], y: NDArray[Any]) -> int:
        """The number of rows answered right."""
        return int((best_class(self.logits(x)) == np.asarray(y)).sum())


def fit(
    x: NDArray[Any],
    y: NDArray[Any],
    classes: int,
    *,
    l2: float = 1e-3,
    start: Probe | None = None,
    slope: float | None = None,
    device: str = "cpu",
) -> Probe:
    """The unique minimum of   mean NLL(y | x W + b) + l2 / 2 ‖W‖²   on standardised x, by L-BFGS.

    x: N of any shape, such as pixels or features.  y: N class numbers.  start: an earlier probe on the same rows.
    slope: the largest gradient entry to stop at; None is what the precision allows.
    """
    rows, labels = _checked(x, y, classes, l2)
    kind = np.float64 if rows.size <= FLOAT64_BELOW and device != "mps" else np.float32
    mean = rows.mean(0, dtype=np.float64)
    std = rows.std(0, dtype=np.float64)
    std = np.where(std > 1e-12 * np.maximum(np.abs(mean), 1), std, 1.0)
    inputs = torch.from_numpy(((rows - mean) / std).astype(kind)).to(device)
    answers = torch.from_numpy(labels).to(device)
    weight, bias = (
        torch.zeros(shape, dtype=inputs.dtype, device=device) for shape in ((classes, rows.shape[1]), classes)
    )
    if start is not None:
        weight.copy_(torch.from_numpy(start.weight))
        bias.copy_(torch.from_numpy(start.bias))
    tolerance = slope or (1e-6 if kind is np.float64 else 1e-4)
    loss, left = _minimise(inputs, answers, weight, bias, l2, tolerance)
    found, offset = (part.cpu().double().numpy() for part in (weight, bias))
    return Probe(found, offset, mean, std, l2, loss, left <= 1e-3)


def choose(
    x: NDArray[Any],
    y: NDArray[Any],
    dev_x: NDArray[Any],
    dev_y: NDArray[Any],
    classes: int,
    *,
    l2s: Sequence[float] = LOGISTIC_L2S,
    by: Literal["right", "loss"] = "right",
    slope: float | None = None,
    device: str = "cpu",
) -> Probe:
    """The probe whose l2 gets the most dev rows right, or the lowest dev loss; the other criterion breaks ties."""
    if not l2s:
        raise ConfigError("there is no l2 to choose from; give some")
    best: tuple[tuple[float, float], Probe] | None = None
    probe: Probe | None = None
    for l2 in sorted(l2s, reverse=True):
        probe = fit(x, y, classes, l2=l2, start=probe, slope=slope, device=device)
        loss = calibration.mean_loss(probe.logits(dev_x), np.asarray(dev_y, np.int64))
        rank = (-loss, probe.right(dev_x, dev_y)) if by == "loss" else (probe.right(dev_x, dev_y), -loss)
        if best is None or rank > best[0]:
            best = rank, probe
    assert best is not None
    return best[1]


def _checked(x: NDArray[Any], y: NDArray[Any], classes: int, l2: float) -> tuple[NDArray[Any], NDArray[np.int64]]:
    rows, labels = np.asarray(x).reshape(len(x), -1 if len(x) else 0), np.asarray(y, np.int64)
    if not l2 >= 0:
        raise ConfigError(f"l2 of {l2} is not a penalty; give 0 or more")
    if len(rows) != len(labels) or not len(rows):
        raise DataError(f"{len(rows)} rows and {len(labels)} labels make no regression; give one label for each row")
    if labels.min() < 0 or labels.max() >= classes:
        raise DataError(f"labels from {labels.min()} to {labels.max()} are not those of {classes} classes")
    if not np.isfinite(rows).all():
        raise DataError("the rows hold numbers that are not finite; take those rows out")
    return rows, labels


class _LBFGS(EagerOptimizer, torch.optim.LBFGS):
    pass


def _minimise(x: Tensor, y: Tensor, weight: Tensor, bias: Tensor, l2: float, tolerance: float) -> tuple[float, float]:
    """Minimise in place. Returns the final loss and the largest gradient entry."""
    parts = [weight.requires_grad_(), bias.requires_grad_()]
    search = _LBFGS(
        parts,
        max_iter=MAX_LBFGS_STEPS,
        history_size=20,
        tolerance_grad=tolerance,
        tolerance_change=0,
        line_search_fn="strong_wolfe",
    )

    def closure() -> Tensor:
        search.zero_grad()
        loss = F.cross_entropy(F.linear(x, weight, bias), y) + l2 / 2 * weight.square().sum()
        loss.backward()
        return loss

    with torch.enable_grad():
        search.step(closure)
        loss = float(closure().detach())
    slope = max(float(part.grad.abs().max()) for part in parts if part.grad is not None)
    for part in parts:
        part.requires_grad_(False)
        part.grad = None
    return loss, slope
