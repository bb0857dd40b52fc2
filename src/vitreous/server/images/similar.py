"""The images of a set most similar to one image, by the cosine of the features that the head reads."""

from __future__ import annotations

import sys
import threading
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitreous.evaluation import features, learned_images
from vitreous.images.examples import label_of
from vitreous.images.imageset import ImageSet
from vitreous.models.model import Model
from vitreous.server.errors import Busy, Refusal


@dataclass(frozen=True)
class Neighbour:
    """One image of the set. likeness: the cosine, 1 for the same image."""

    place: int
    name: str
    label: str
    likeness: float


class Neighbours:
    """Features of the training images, extracted in the background and cached on disk."""

    def __init__(self, model: Model, data: ImageSet):
        self.data = learned_images.of(model, data)
        self.done, self.total = 0, len(self.data)
        self._rows: NDArray[np.float32] | None = None  # N D, each of length 1
        self._places = np.zeros(0, np.int64)
        self._failed = ""
        self._thread = threading.Thread(target=self._read, args=(model,), name="vitreous-serve-features", daemon=True)

    def open(self) -> None:
        self._thread.start()

    def wait(self, seconds: float | None = None) -> None:
        self._thread.join(seconds)

    @property
    def is_ready(self) -> bool:
        return self._rows is not None

    def to_json(self) -> dict[str, Any]:
        return {"images": self.total, "read": self.done, "is_ready": self.is_ready}

    def find(self, feature: NDArray[np.float32], count: int) -> list[Neighbour]:
        """The `count` most similar images, best first."""
        if self._failed:
            raise Refusal(501, "the server could not read the training images; see its log")
        if self._rows is None:
            share = 100 * self.done // max(self.total, 1)
            raise Busy(f"the training images are still being read ({share} %); try again soon", after=5)
        near = self._rows @ unit(feature)
        best = np.argpartition(-near, min(count, len(near)) - 1)[:count]
        best = best[np.argsort(-near[best], kind="stable")]
        return [self._neighbour(int(self._places[row]), float(near[row])) for row in best]

    def _neighbour(self, place: int, likeness: float) -> Neighbour:
        name = PurePath(self.data.name(place)).name  # without folders of this machine
        return Neighbour(place, name, label_of(self.data, place), round(likeness, 4))

    def _read(self, model: Model) -> None:
        def tell(done: int, total: int) -> None:
            self.done, self.total = done, total

        try:
            found = features.extract(model, self.data, workers=1, progress=tell)  # answers have priority
        except Exception as error:  # the server works without them
            self._failed = str(error)
            print(f"vitreous: similar images are not available: {error}", file=sys.stderr, flush=True)
            return
        rows = np.asarray(found.only, np.float32)
        self._places = found.places
        self._rows = unit(rows)


def likeness(one: NDArray[np.float32], other: NDArray[np.float32]) -> float:
    """The cosine of two features, D: 1 for the same direction."""
    return round(float(unit(one) @ unit(other)), 4)


def unit(features: NDArray[np.float32]) -> NDArray[np.float32]:
    """Features of length 1.  … D."""
    return features / np.linalg.norm(features, axis=-1, keepdims=True).clip(1e-12)
