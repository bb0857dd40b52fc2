"""Labels that are wrong for sure or maybe, of images that were judged and of images that were learned from.

For sure: the set has an image under two labels. Maybe: `images.health.likely_errors` doubts it, from answers of a model
that has not seen the image.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitreous.errors import DataError
from vitreous.evaluation.accuracy import is_no_better
from vitreous.evaluation.calibration import fit_temperature, softmax
from vitreous.evaluation.tie_breaking import best_class
from vitreous.images.health import Health, likely_errors
from vitreous.images.imageset import ImageSet

MAX_SUSPECTS_KEPT = 1_000  # suspects that a run writes down, the most doubtful ones


@dataclass(frozen=True)
class Suspect:
    """A label that is doubted. place: in its set; confidence: of the suggested class; own: of the given one."""

    place: int
    given: int
    suggested: int
    confidence: float
    own: float


@dataclass(frozen=True)
class LabelConflict:
    """An image that the set has twice, under two labels: at least one is wrong. places: in the set that was checked."""

    places: tuple[int, ...]
    names: tuple[str, ...]
    labels: tuple[str, ...]
    is_exact: bool  # the same pixels; else nearly

    def to_json(self) -> dict[str, Any]:
        return {"names": list(self.names), "labels": list(self.labels), "exact": self.is_exact}


def label_conflicts(health: Health | None) -> list[LabelConflict]:
    """Images that the check found under two labels, exact copies first."""
    finding = None if health is None else health.find("label-conflict")
    if health is None or finding is None or health.data is None or health.data.has_many_labels:
        return []
    copies = health.find("exact-duplicate")
    groups = [set(case.names) for case in copies.cases] if copies is not None else []
    found = [
        LabelConflict(
            case.images,
            case.names,
            tuple(health.classes[health.data.labels[place]] for place in case.images),
            any(group.issuperset(case.names) for group in groups),
        )
        for case in finding.cases
    ]
    return sorted(found, key=lambda conflict: not conflict.is_exact)


@dataclass(frozen=True)
class Doubts:
    """Doubts about labels learned from, each by a closed form on frozen features that had left the image out."""

    right: int  # images whose label it names
    images: int  # asked
    of: int  # images of the whole set, where only a part was asked
    count: int  # doubted
    suspects: tuple[Suspect, ...]  # the most doubtful; the place of each is the image's number in its source

    def without(self, ids: NDArray[np.int64]) -> Doubts:
        """Doubts about other images than these."""
        known = set(ids.tolist())
        others = tuple(s for s in self.suspects if s.place not in known)
        return replace(self, count=self.count - len(self.suspects) + len(others), suspects=others)


def from_json(data: dict[str, Any]) -> Doubts:
    return Doubts(**{**data, "suspects": tuple(Suspect(**one) for one in data["suspects"])})


def doubts_of(images: ImageSet, left_out: NDArray[np.floating[Any]], of: int | None = None) -> Doubts:
    """What the scores of left-out images (N K) say against their labels.  of: images of the whole set.

    Scores fitted to ±1 are not logits; one temperature, fitted on all of them, makes them probabilities.
    """
    labels = images.labels
    found = suspects(softmax(left_out, fit_temperature(left_out, labels)), labels)
    kept = tuple(replace(suspect, place=int(images.ids[suspect.place])) for suspect in found[:MAX_SUSPECTS_KEPT])
    right = int((best_class(left_out) == labels).sum())
    return Doubts(right, len(labels), len(labels) if of is None else of, len(found), kept)


def suspects(probabilities: NDArray[np.floating[Any]], labels: NDArray[np.integer[Any]]) -> list[Suspect]:
    """Labels that are more likely wrong than right, the most doubtful first; none if the model learned nothing.

    probabilities: N K, each row by a model that has not seen the image.  labels: N; −1 is left out.
    """
    p, y = np.asarray(probabilities, np.float64), np.asarray(labels, np.int64)
    if p.ndim != 2 or y.shape != p.shape[:1]:
        raise DataError(f"probabilities {p.shape} and labels {y.shape} do not belong together; give N×K and N")
    known = np.flatnonzero((y >= 0) & (y < p.shape[1]))
    if not len(known):
        return []
    right, frequent = (best_class(p[known]) == y[known]).sum(), np.bincount(y[known]).max()
    if is_no_better(int(right), int(frequent), len(known)):
        return []
    where, suggested = likely_errors(y[known], p[known])
    places = known[where]
    given = y[places]
    columns = places, given, suggested, p[places, suggested], p[places, given]
    return [Suspect(*row) for row in zip(*(column.tolist() for column in columns), strict=True)]
