"""One model with all that the routes need: queue, cache, metrics, neighbours. It knows nothing of HTTP."""

from __future__ import annotations

from typing import Any

from vitreous.exports.facts import MAX_LABELS_LISTED, NO_TRANSFORMER, model_facts, record_facts
from vitreous.images.pixels import decode
from vitreous.images.pixels.preprocess import seen_box
from vitreous.models.model import Model
from vitreous.report.page import picture
from vitreous.server.engine import Pixels
from vitreous.server.errors import Refusal
from vitreous.server.exported import WHY_CLOSED, Exported
from vitreous.server.images.cache import CachedImage, ImageCache
from vitreous.server.images.photo import encoded_photo
from vitreous.server.images.similar import Neighbours
from vitreous.server.metrics import Counts
from vitreous.server.queue import WorkQueue


class Served:
    """What the routes ask. neighbours: of the training images, if any were given.  examples: (label, image H W C).

    learned: whether the model has learned from the examples.
    """

    def __init__(
        self,
        queue: WorkQueue,
        model: Model | Exported,
        neighbours: Neighbours | None = None,
        *,
        name: str,
        runtime: str = "torch",
        examples: list[tuple[str, Pixels]],
        learned: bool = False,
    ):
        self.queue, self.model, self.neighbours, self.name, self.runtime = queue, model, neighbours, name, runtime
        self.counts, self.cache, self.has_learned = Counts(), ImageCache(), learned
        self.rule = model.about.preprocess if isinstance(model, Exported) else model.preprocess
        self._facts = _of_file(model) if isinstance(model, Exported) else model_facts(model)
        self.examples = [
            {
                "image": self.cache.pin(i, self.kept(label, pixels, photo=True)),
                "label": label,
                "picture": thumbnail(pixels),
            }
            for i, (label, pixels) in enumerate(examples)
        ]

    def kept(self, name: str, pixels: Pixels, note: str = "", *, photo: bool = False) -> CachedImage:
        """An image for the cache.  photo: keep the whole image too, for a page."""
        rows, columns = pixels.shape[:2]
        return CachedImage(
            name,
            decode.finish(pixels, self.rule),
            note,
            seen_box((rows, columns), self.rule),
            encoded_photo(pixels) if photo else None,
        )

    def open(self) -> None:
        """Start what can wait until the server answers: the features of the training images."""
        if self.neighbours is not None:
            self.neighbours.open()

    def close(self) -> None:
        """Refuse new jobs, and finish the accepted ones."""
        self.queue.close()

    def look_inside(self) -> Model:
        """The model; an exported file is refused."""
        if isinstance(self.model, Exported):
            raise Refusal(501, WHY_CLOSED)
        return self.model

    @property
    def has_head(self) -> bool:
        """Whether the model names classes; an encoder without a head gives features."""
        return bool(self._facts["classes"])

    def about(self) -> dict[str, Any]:
        """The facts of the model, for the page and for programs."""
        similar = None if self.neighbours is None else self.neighbours.to_json()
        return {"name": self.name, "runtime": self.runtime, **self._facts, "similar": similar}


def _of_file(exported: Exported) -> dict[str, Any]:
    about = exported.about
    return {
        "classes": about.classes,
        "features": 0,
        "labels": list(exported.labels)[:MAX_LABELS_LISTED],
        "image_size": list(about.preprocess.size),
        "channels": len(about.preprocess.mean),
        "preprocess": about.preprocess.to_json(),
        "answers": about.answers,
        "knows_unlike": about.threshold is not None,
        "record": record_facts(about.track_record),
        "terms": about.terms,
        "parameters": None,
        "grid": None,
        "cells": None,
        **NO_TRANSFORMER,
        "breaks": [],
        "exported": exported.to_json(),
    }


def thumbnail(pixels: Pixels) -> str | None:
    """A small picture for a JSON answer, as a data: address."""
    return picture(pixels, "").address
