"""Find likely label errors: out-of-fold probabilities of a probe on frozen features."""

from __future__ import annotations

import html
import os
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from vitreous.errors import ConfigError, DataError
from vitreous.evaluation import calibration
from vitreous.evaluation.features import FEATURES, extract
from vitreous.evaluation.inference import Precision, Progress
from vitreous.evaluation.labelled_rows import checked, known_rows
from vitreous.evaluation.ridge_regression import DEFAULT_L2, decompose
from vitreous.evaluation.tie_breaking import best_class
from vitreous.images import open_data, splits
from vitreous.images.health import likely_errors
from vitreous.images.imageset import ImageSet

MAX_ERRORS_SHOWN = 20


@dataclass(frozen=True, eq=False)
class LabelErrors:
    """Suspected label errors; `check(data, probabilities=found.probabilities)` shows them with their images."""

    probabilities: NDArray[np.float64]  # N K, out of fold; rows of images that could not be read are uniform
    places: NDArray[np.int64]  # suspects within the set, most likely errors first
    names: tuple[str, ...]
    labels: tuple[str, ...]
    likelier: tuple[str, ...]
    right: int  # images where the probe agrees with the label
    images: int

    def to_json(self) -> dict[str, Any]:
        rows = zip(self.places.tolist(), self.names, self.labels, self.likelier, strict=True)
        suspects = [{"place": i, "name": n, "label": a, "likelier": b} for i, n, a, b in rows]
        return {"images": self.images, "agree": self.right, "suspects": suspects}

    def __str__(self) -> str:
        first = f"{len(self.names):,} of {self.images:,} labels look wrong; the probe agrees with {self.right:,}"
        rows = zip(self.names[:MAX_ERRORS_SHOWN], self.labels, self.likelier, strict=False)
        return "\n".join([first, *(f"{name}: {label}, likelier {other}" for name, label, other in rows)])

    __repr__ = __str__  # at a prompt

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(str(self))}</pre>"


def label_errors(
    model: nn.Module,
    data: str | os.PathLike[str] | ImageSet,
    *,
    taps: str = FEATURES,
    folds: int = 5,
    seed: int = 0,
    l2: float = DEFAULT_L2,
    batch: int | None = None,
    device: torch.device | str | None = None,
    workers: int | None = None,
    precision: Precision = "auto",
    cache: bool | str | os.PathLike[str] = True,
    progress: Progress | None = None,
) -> LabelErrors:
    """Suspected label errors of a set, by the closed-form probe on features of a model not trained on it.

    Copies and near copies of an image share its fold, so none confirms another.
    """
    images = open_data.open(data)
    if images.labels.ndim != 1:
        raise DataError(f"{images.path} gives several labels to an image; label errors are found for one label alone")
    how: dict[str, Any] = {"batch": batch, "device": device, "workers": workers, "precision": precision}
    found = extract(model, images, taps, cache=cache, progress=progress, **how)
    fold = splits.folds(images, folds, seed)[found.places]
    count = len(images.classes)
    probabilities = np.full((len(images), count), 1 / count)
    probabilities[found.places] = out_of_fold(found.only, found.labels, count, fold, l2=l2)
    judged = found.places[found.labels >= 0]
    wrong, likelier = likely_errors(images.labels[judged], probabilities[judged])
    suspects = judged[wrong]
    return LabelErrors(
        probabilities,
        suspects,
        tuple(images.name(int(i)) for i in suspects),
        tuple(images.classes[int(images.labels[i])] for i in suspects),
        tuple(images.classes[int(k)] for k in likelier),
        int((best_class(probabilities) == images.labels)[judged].sum()),
        len(judged),
    )


def out_of_fold(
    x: NDArray[Any], y: NDArray[Any], classes: int, fold: NDArray[Any], *, l2: float = DEFAULT_L2
) -> NDArray[np.float64]:
    """Out-of-fold probabilities of each row: N K.

    One decomposition gives the scores of all folds exactly; one temperature, fitted on them, turns them into
    probabilities. Rows labelled −1 are scored by the probe on all labelled rows.
    """
    rows, labels = checked(x, y, classes)
    if len(np.unique(fold)) < 2:
        raise ConfigError("all rows are in one fold, so none can be left out; give 2 or more folds")
    kept, others = known_rows(labels), np.flatnonzero(labels < 0)
    parts = decompose(rows[kept], labels[kept], classes)
    scores = np.empty((len(rows), classes))
    scores[kept] = parts.left_out(l2, np.asarray(fold)[kept])
    if len(others):
        scores[others] = parts.at(l2).scores(rows[others])
    temperature = calibration.fit_temperature(scores[kept], labels[kept])
    return calibration.softmax(scores, temperature)
