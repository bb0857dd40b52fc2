"""Of classes with equal scores the lowest is the answer, and scores that differ by rounding alone are equal.

    answer = min { k :  zₖ ≥ max z − r max |z| }        r = 2⁻¹⁷ for float32, 2⁻³⁰ for float64

Two equal columns of a head seldom give equal scores: a BLAS adds the last columns in another order than the first. The
rest of r leaves room for a solved or fitted head, whose columns are rounded too.

K classes
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, overload

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["TIE_FLOAT32", "TIE_FLOAT64", "best_class", "best_classes", "equal_within"]

TIE_FLOAT32 = 2.0**-17  # 64 roundings of float32
TIE_FLOAT64 = 2.0**-30  # float64: far above its rounding, far below that of features, which are float32


def equal_within(scores: NDArray[Any], same: float | None = None) -> NDArray[np.float64]:
    """How far apart two scores of a row may be and still count as equal; ... K -> ... 1.

    same: as a share of the row's largest number; None is what the precision of `scores` says.
    """
    share = same or (TIE_FLOAT64 if scores.dtype == np.float64 else TIE_FLOAT32)
    return share * np.abs(scores).max(-1, keepdims=True, where=np.isfinite(scores), initial=0.0).astype(np.float64)


@overload
def best_class(scores: NDArray[Any], same: float | None = None) -> NDArray[np.int64]: ...
@overload
def best_class(scores: Tensor, same: float | None = None) -> Tensor: ...
def best_class(scores: NDArray[Any] | Tensor, same: float | None = None) -> NDArray[np.int64] | Tensor:
    """The class with the highest score, of equals the lowest; ... K -> ...  same: as in `equal_within`."""
    if isinstance(scores, np.ndarray):
        return (scores >= scores.max(-1, keepdims=True) - equal_within(scores, same)).argmax(-1)
    share = same or (TIE_FLOAT64 if scores.element_size() == 8 else TIE_FLOAT32)
    size = scores.abs()
    near = share * size.masked_fill(~size.isfinite(), 0.0).amax(-1, keepdim=True)
    return (scores >= scores.amax(-1, keepdim=True) - near).byte().argmax(-1)


def best_classes(scores: NDArray[Any], count: int, same: float | None = None) -> list[int]:
    """The first `count` classes of one row: the best, then the best of the others, and so on."""
    order = np.argsort(-scores, kind="stable")[: count + 1]
    left, near = scores.astype(np.float64), float(equal_within(scores, same)[0])
    if not (-np.diff(left[order]) <= near).any():
        return order[:count].tolist()
    found = []
    for _ in range(min(count, len(left))):
        best = int((left >= left.max() - near).argmax())
        found.append(best)
        left[best] = -np.inf
    return found
