"""The images of a look at few: each as it is, what a model gets of it, and what the model says of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitreous.errors import DataError
from vitreous.evaluation.predict import Prediction, predict
from vitreous.images.imageset import ImageSet
from vitreous.images.pixels import decode
from vitreous.images.pixels.preprocess import before_crop
from vitreous.measures.drawing import rgb, short_name
from vitreous.measures.subject import Subject, needs_head
from vitreous.models.model import is_untrained
from vitreous.models.preprocess import Preprocess
from vitreous.words import sentence

SAME_SHAPE = 0.02  # sides may differ by this share, which nobody sees


@dataclass(frozen=True, eq=False)
class GivenImage:
    """What one model gets of an image, and its answer.  pixels: H W 3.  how: what preprocessing did to the image."""

    pixels: NDArray[np.uint8]
    is_grey: bool
    how: str
    answer: Prediction | None = None  # None: without a head, or without training, it says nothing
    about_unsure: str = ""

    @property
    def said(self) -> str:
        """The answer, word for word as `predict` gives it."""
        return "" if self.answer is None else str(self.answer).removeprefix(f"{self.answer.name}: ")

    @property
    def phrase(self) -> str:
        """The answer in few words."""
        return "" if self.answer is None else f"{'unsure: ' * self.answer.is_unsure}{self.answer.phrase}"

    @property
    def about(self) -> str:
        """What a reader must know of such an answer."""
        if self.answer is None:
            return ""
        if not self.answer.said:
            return f"Below, the answer is the nearest class: {self.answer.labels[0]}."
        return sentence(self.about_unsure) if self.answer.is_unsure else ""

    def to_json(self) -> dict[str, Any]:
        return {"gets": self.how, "answer": None if self.answer is None else self.answer.to_json()}


@dataclass(frozen=True, eq=False)
class ShownImage:
    """One image.  pixels: H W 3, as it is.  given: what each model gets of it."""

    name: str
    pixels: NDArray[np.uint8]
    given: tuple[GivenImage, ...]

    def to_json(self) -> dict[str, Any]:
        return {"name": self.name, "models": [each.to_json() for each in self.given]}


def show_few(subjects: Sequence[Subject]) -> tuple[ShownImage, ...]:
    """Every image that can be read."""
    data = subjects[0].data
    answers = [_answers(subject, data) for subject in subjects]
    shown = []
    for place in range(len(data)):
        try:
            image = data.read(place)
        except (OSError, DataError):
            continue
        given = tuple(_given(*pair, image) for pair in zip(subjects, (each[place] for each in answers), strict=True))
        shown.append(ShownImage(short_name(data.name(place)), _rgb(image), given))
    return tuple(shown)


def _answers(subject: Subject, data: ImageSet) -> list[Prediction | None]:
    if is_untrained(subject.model) or needs_head(subject) is not None:
        return [None] * len(data)
    return [None if each.error else each for each in predict(subject.model, data, device=subject.device)]


def _given(subject: Subject, answer: Prediction | None, image: NDArray[np.uint8]) -> GivenImage:
    rule, record = subject.model.preprocess, subject.model.track_record
    pixels = decode.finish(image, rule)
    about = "" if record is None else record.about_unsure
    return GivenImage(_rgb(pixels), pixels.shape[2] == 1, how_changed(image, rule), answer, about)


def how_changed(image: NDArray[np.uint8], rule: Preprocess) -> str:
    """What preprocessing does to an image, in words.  H W C

    `squashed from 450 × 300 to 28 × 28 pixels and made grey`; `as it is`.
    """
    size, steps = image.shape[:2], []
    before = before_crop((size[0], size[1]), rule)
    if before != size:
        stretch = before[1] * size[0] / (before[0] * size[1])
        verb = "shrunk" if before[0] < size[0] else "enlarged"
        verb = verb if abs(stretch - 1) < SAME_SHAPE else "squashed"
        steps.append(f"{verb} from {size[1]} × {size[0]} to {before[1]} × {before[0]} pixels")
    if before != rule.size:
        verb = "cut to the middle" if min(np.subtract(before, rule.size)) >= 0 else "framed in black to"
        steps.append(f"{verb} {rule.size[1]} × {rule.size[0]}")
    if len(rule.mean) == 1 and (image != image[:, :, :1]).any():
        steps.append("made grey")
    return " and ".join(filter(None, [", ".join(steps[:-1]), *steps[-1:]])) or "as it is"


def _rgb(image: NDArray[np.uint8]) -> NDArray[np.uint8]:
    return rgb(image.transpose(2, 0, 1)[None])[0]
