"""The exported files and the model see the same images, in one walk over them.

N images   K classes
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from vitreous.errors import DataError
from vitreous.evaluation import calibration
from vitreous.evaluation.ties import best_class
from vitreous.exports.parity import Accuracy, Compared, compare
from vitreous.exports.target import Run, Target
from vitreous.images.pixels import decode, preprocess
from vitreous.models.model import Model

__all__ = ["Sample", "against"]

AT_ONCE = 8
IN_IMAGE_FORM, IN_FIXED_FORM = 200, 10  # images; both hold the same network as the tensor form


@dataclass(frozen=True)
class Sample:
    """A picture, H W C, and the model's number of its class where that is known."""

    pixels: NDArray[np.uint8]
    label: int | None = None


def against(
    model: Model,
    target: Target,
    folder: Path,
    scratch: Path,
    samples: Iterator[Sample],
    count: int,
    progress: Callable[[int, int], None] | None = None,
) -> tuple[tuple[Compared, ...], float, Accuracy | None]:
    """Each form against the model; the most grey levels that preprocessing is off; right answers of both."""
    files: dict[str, Run] = {
        form: target.open(folder / f"{form}{target.suffix}") for form in ("tensor", "fixed", "image")
    }
    prepare = target.open(scratch / f"preprocessing{target.suffix}")
    rule = model.preprocess
    ours: list[Any] = []
    theirs: dict[str, list[Any]] = {form: [] for form in files}
    labels: list[int | None] = []
    grey = 0.0
    while part := list(itertools.islice(samples, AT_ONCE)):
        images = [decode.with_channels(sample.pixels, len(rule.mean)) for sample in part]
        x = torch.stack([preprocess.normalise(decode.finish(image, rule), rule) for image in images])  # B C H W
        with torch.inference_mode():
            ours += list(model(x).numpy())
        theirs["tensor"] += list(files["tensor"](x.numpy())[0])
        for i, image in enumerate(images):
            if len(theirs["fixed"]) < IN_FIXED_FORM:
                theirs["fixed"].append(files["fixed"](x[i : i + 1].numpy())[0][0])
            if len(theirs["image"]) < IN_IMAGE_FORM:
                theirs["image"].append(files["image"](image)[0])
                grey = max(grey, _grey_levels(prepare(image)[0], x[i : i + 1].numpy(), rule.std))
        labels += [sample.label for sample in part]
        if progress is not None:
            progress(len(ours), count)
    if not ours:
        raise DataError("none of the images can be read, so nothing can be compared; name others with --data")
    logits = np.stack(ours)  # N K
    spread = calibration.sigmoid if model.answers == "several" else calibration.softmax
    wanted = {"tensor": logits, "fixed": logits, "image": spread(logits, model.temperature)}
    forms = tuple(compare(form, np.stack(rows), wanted[form][: len(rows)]) for form, rows in theirs.items())
    return forms, grey, _accuracy(np.stack(theirs["tensor"]), logits, labels)


def _grey_levels(theirs: NDArray[Any], ours: NDArray[Any], std: tuple[float, ...]) -> float:
    """The most that a pixel differs before it was normalised.  Both: 1 C H W."""
    return float((np.abs(theirs - ours) * np.array(std).reshape(-1, 1, 1) * 255).max())


def _accuracy(theirs: NDArray[Any], ours: NDArray[Any], labels: list[int | None]) -> Accuracy | None:
    known = [i for i, label in enumerate(labels) if label is not None]
    if not known:
        return None
    truth = np.array([labels[i] for i in known])
    before, after = (int((best_class(logits[known]) == truth).sum()) for logits in (ours, theirs))
    return Accuracy(len(known), before, after)
