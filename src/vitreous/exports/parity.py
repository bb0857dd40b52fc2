"""Does the exported file say what the model says? Compared image by image, judged by limits, kept beside the files.

N images   K classes
"""

from __future__ import annotations

import html
import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitreous.evaluation.ties import TIE_FLOAT32, best_class

__all__ = ["LIMITS", "Accuracy", "Compared", "Limits", "Parity", "compare"]

Array = NDArray[Any]


@dataclass(frozen=True)
class Limits:
    """What is let through. difference: of logits, where it says anything.  drop: of accuracy, as a share."""

    agreement: float
    difference: float | None = None
    grey_levels: float = 1.0
    drop: float | None = None


LIMITS = {
    "float32": Limits(agreement=0.99, difference=1e-4),
    "float16": Limits(agreement=0.99),
    "int8": Limits(agreement=0.95, drop=0.01),
}


@dataclass(frozen=True)
class Compared:
    """One form against PyTorch.

    difference: max |theirs − ours| / max(1, max |ours|), of logits (tensor, fixed) or probabilities (image).
    agreement: share of images with the same first answer.
    """

    form: str
    images: int
    difference: float
    agreement: float

    @property
    def others(self) -> int:
        """Images with another first answer."""
        return round((1 - self.agreement) * self.images)

    def __str__(self) -> str:
        same = f"{100 * self.agreement:.1f} % the same answer"
        return f"{self.form:<8}{self.images:>6,} images   max difference {self.difference:.1e}   {same}"


def compare(form: str, theirs: Array, ours: Array) -> Compared:
    """Both: N K."""
    theirs, ours = np.asarray(theirs, np.float64), np.asarray(ours, np.float64)
    scale = max(1.0, float(np.abs(ours).max(initial=0)))
    difference = float(np.abs(theirs - ours).max(initial=0)) / scale
    agreement = (
        float((best_class(theirs, TIE_FLOAT32) == best_class(ours, TIE_FLOAT32)).mean()) if len(ours) else math.nan
    )
    return Compared(form, len(ours), difference if np.isfinite(theirs).all() else math.inf, agreement)


@dataclass(frozen=True)
class Accuracy:
    """Right answers of the model and of the export, on the same images."""

    images: int
    before: int
    after: int

    @property
    def drop(self) -> float:
        """As a share; below 0 where the export is right more often."""
        return (self.before - self.after) / self.images

    def __str__(self) -> str:
        before, after = (100 * n / self.images for n in (self.before, self.after))
        return f"accuracy {before:.1f} % -> {after:.1f} % on {self.images:,} images"


@dataclass(frozen=True)
class Parity:
    """What `vitreous.export` found; `passed` is its verdict."""

    target: str
    precision: str
    data: str  # which images
    forms: tuple[Compared, ...]
    limits: Limits
    grey_levels: float | None = None  # the most that a pixel of the graph's preprocessing is off
    accuracy: Accuracy | None = None
    folder: str | None = None  # None: not kept
    files: dict[str, int] = field(default_factory=dict)  # bytes

    @property
    def passed(self) -> bool:
        return not self.faults

    @property
    def faults(self) -> list[str]:
        """What is wrong, one line each."""
        return list(self._faults())

    def _faults(self) -> Iterator[str]:
        limits = self.limits
        for form in self.forms:
            bar = limits.difference if form.form != "image" else None
            if not math.isfinite(form.difference) or (bar is not None and form.difference > bar):
                yield f"{form.form} form: max difference {form.difference:.1e}, above {bar or 0:.0e}"
            if form.others > max(1, (1 - limits.agreement) * form.images + 1e-9):  # one may always lie on the edge
                least = 100 * limits.agreement
                yield f"{form.form} form: {100 * form.agreement:.1f} % the same answer, below {least:.0f} %"
        if self.grey_levels is not None and self.grey_levels > limits.grey_levels + 1e-3:
            yield f"preprocessing: a pixel is {self.grey_levels:.2f} grey levels off, above {limits.grey_levels:g}"
        if self.accuracy is not None and limits.drop is not None and self.accuracy.drop > limits.drop + 1e-9:
            yield f"{self.accuracy}: falls by {100 * self.accuracy.drop:.1f} points, above {100 * limits.drop:.0f}"

    def to_json(self) -> dict[str, Any]:
        body = asdict(self)
        return {"passed": self.passed, "faults": self.faults} | body | {"forms": [asdict(form) for form in self.forms]}

    def rows(self) -> Iterator[str]:
        verdict = "agrees with PyTorch" if self.passed else "does not agree with PyTorch"
        yield f"{self.target}, {self.precision}: {verdict}, on {self.data}"
        yield from (f"  {form}" for form in self.forms)
        if self.grey_levels is not None:
            yield f"  pixels are at most {self.grey_levels:.2f} grey levels off"
        if self.accuracy is not None:
            yield f"  {self.accuracy}"
        yield from (f"  fault: {fault}" for fault in self.faults)
        if self.folder is not None:
            size = sum(self.files.values()) / 1e6
            yield f"written to {self.folder}: {', '.join(self.files)} ({size:.1f} MB)"

    def __str__(self) -> str:
        return "\n".join(self.rows())

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(str(self))}</pre>"
