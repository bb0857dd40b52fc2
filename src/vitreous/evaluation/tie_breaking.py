"""Break ties: of equal scores the lowest class wins, and scores that differ only by rounding are equal.

    answer = min { k :  zₖ ≥ max z − r max |z| }        r = 2⁻¹⁷ for float32, 2⁻³⁰ for float64

Two equal columns of a head seldom give equal scores, since BLAS sums the last columns in another order. The rest of r
allows for a solved or fitted head, whose columns are rounded too.

K classes
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, overload

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from torch import Tensor

TIE_FLOAT32 = 2.0**-17  # 64 roundings of float32
TIE_FLOAT64 = 2.0**-30  # far above float64's rounding, far below that of float32 features


def equal_within(scores: NDArray[Any], same: float | None = None) -> NDArray[np.float64]:
    """The largest difference of two equal scores in a row; ... K -> ... 1.

    same: relative to the row's largest absolute value; None follows from the precision of `scores`.
    """
    share = same or (TIE_FLOAT64 if scores.dtype == np.float64 else TIE_FLOAT32)
    return share * np.abs(scores).max(-1, keepdims=True, where=np.isfinite(scores), initial=0.0).astype(np.float64)


@overload
def best_class(scores: NDArray[Any], same: float | None = None) -> NDArray[np.int64]: ...
@overload
def best_class(scores: Tensor, same: float | None = None) -> Tensor: ...
def best_class(scores: NDArray[Any] | Tensor, same: float | None = None) -> NDArray[np.int64] | Tensor:
    """The class with the highest score; of equal ones the lowest; ... K -> ...  same: as in `equal_within`."""
    if isinstance(scores, np.ndarray):
        return (scores >= scores.max(-1, keepdims=True) - equal_within(scores, same)).argmax(-1)
    share = same or (TIE_FLOAT64 if scores.element_size() == 8 else TIE_FLOAT32)
    size = scores.abs()
    near = share * size.masked_fill(~size.isfinite(), 0.0).amax(-1, keepdim=True)
    return (scores >= scores.amax(-1, keepdim=True) - near).byte().argmax(-1)


def best_classes(scores: NDArray[Any], count: int, same: float | None = None) -> list[int]:
    """The best `count` classes of one row, best first."""
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
