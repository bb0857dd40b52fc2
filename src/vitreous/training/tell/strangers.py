"""How many strangers a model calls "none of these": images that come with vitreous, and classes that were left out."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from vitreous.evaluation.calibration import softmax
from vitreous.evaluation.predict import predict
from vitreous.images import open_data
from vitreous.images.embedded import shapes
from vitreous.images.sources.fashion import FASHION_NAME
from vitreous.training.plan.plan import Plan
from vitreous.training.run.trained import Trained

OF_EACH_KIND = 40
BLANKS, DRAWN, CLOTHES = "blank images", "drawn scenes", "photos of clothes"
SHORT_NAMES = {DRAWN: "drawings", CLOTHES: "clothes"}
LEFT_OUT = "images of a class that was left out"  # each class in turn


class Caught(NamedTuple):
    """Counts of strangers: called none of these, shown in all, and given a class with a sure answer."""

    caught: int
    seen: int
    sure: int | None = None  # None where it is unknown which answers are sure

    @classmethod
    def of(cls, is_unlike: NDArray[np.bool_], confidence: NDArray[np.float64], sure_from: float | None) -> Caught:
        """sure_from: as `TrackRecord` has it."""
        sure = None if sure_from is None else int((~is_unlike & (confidence >= sure_from)).sum())
        return cls(int(is_unlike.sum()), len(is_unlike), sure)


def strangers_caught(plan: Plan, trained: Trained, sure_from: float | None = None) -> dict[str, Caught]:
    """By kind of stranger; empty without a threshold.  sure_from: as `TrackRecord` has it."""
    model = trained.model
    if model.threshold is None:
        return {}
    found = {}
    for kind, images in embedded(has_clothes=plan.data.path == FASHION_NAME).items():
        answers = list(predict(model, images, top=1, workers=1))
        is_unlike = np.array([answer.is_unlike for answer in answers])
        found[kind] = Caught.of(is_unlike, np.array([answer.probabilities[0] for answer in answers]), sure_from)
    if trained.unknown_scores is not None and trained.unknown_logits is not None:
        confidence = softmax(trained.unknown_logits, model.temperature).max(1)
        found[LEFT_OUT] = Caught.of(trained.unknown_scores < model.threshold, confidence, sure_from)
    return found


def easy(strangers: Mapping[str, Caught]) -> tuple[str, tuple[int, int]]:
    """The strangers that come with vitreous, in words, and how many were caught of how many.

    They look nothing like a photo, so they say little about photos. Blank images do not count: a rule catches them.
    """
    own = {kind: count for kind, count in strangers.items() if kind not in (LEFT_OUT, BLANKS)}
    counts = sum(count.caught for count in own.values()), sum(count.seen for count in own.values())
    return ", ".join(SHORT_NAMES.get(kind, kind) for kind in own), counts


@cache
def embedded(*, has_clothes: bool) -> dict[str, NDArray[np.uint8]]:
    """Strangers for any model, N H W C each.  has_clothes: the model learned clothes, so they are no strangers."""
    scenes = shapes.batch(range(OF_EACH_KIND))[0]
    kinds = {DRAWN: scenes, BLANKS: blanks()}
    if not has_clothes:
        clothes = open_data.open(FASHION_NAME, split="test")
        kinds[CLOTHES] = np.stack([clothes.read(i) for i in range(OF_EACH_KIND)])
    return kinds


def blanks(side: int = 64) -> NDArray[np.uint8]:
    """Black, greys, white and colours, each of one colour.  N H W 3."""
    levels = np.array([0, 64, 128, 192, 255])
    colours = np.array([(r, g, b) for r in (0, 128, 255) for g in (0, 128, 255) for b in (0, 128, 255)])
    colours = np.concatenate([np.repeat(levels[:, None], 3, 1), colours[: OF_EACH_KIND - len(levels)]])
    return np.broadcast_to(colours[:, None, None], (len(colours), side, side, 3)).astype(np.uint8)
