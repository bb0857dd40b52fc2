"""One model with all that its routes work with; it knows nothing of HTTP."""

from __future__ import annotations

from typing import Any

from vitreous.images import decode
from vitreous.models.model import Model
from vitreous.models.vit import ViT
from vitreous.report.page import picture
from vitreous.server.batching import Desk
from vitreous.server.counting import Counts
from vitreous.server.engine import Pixels, grid_of
from vitreous.server.shelf import Kept, Shelf
from vitreous.server.similar import Neighbours

__all__ = ["Served", "thumbnail"]

LABELS = 1000  # of a model that are listed


class Served:
    """neighbours: of what the server was given, where it was.  examples: (label, picture)."""

    def __init__(
        self,
        desk: Desk,
        model: Model,
        neighbours: Neighbours | None = None,
        *,
        name: str,
        runtime: str = "torch",
        examples: list[tuple[str, Pixels]],
    ):
        self.desk, self.model, self.neighbours, self.name, self.runtime = desk, model, neighbours, name, runtime
        self.counts, self.shelf = Counts(), Shelf()
        self.examples = [
            {
                "image": self.shelf.pin(i, Kept(label, decode.finish(pixels, model.preprocess))),
                "label": label,
                "picture": thumbnail(pixels),
            }
            for i, (label, pixels) in enumerate(examples)
        ]

    def open(self) -> None:
        """What can wait until it answers: the features of the training images."""
        if self.neighbours is not None:
            self.neighbours.open()

    def close(self) -> None:
        """Take nothing more, and finish what was taken."""
        self.desk.close()

    def about(self) -> dict[str, Any]:
        """What the model is, for the page and for programs."""
        model, config = self.model, self.model.config
        return {
            "name": self.name,
            "runtime": self.runtime,
            "classes": config.readout.classes,
            "labels": list(model.labels or ())[:LABELS],
            "image_size": list(config.image_size),
            "channels": config.channels,
            "preprocess": model.preprocess.to_json(),
            "answers": model.answers,
            "knows_unlike": model.threshold is not None,
            "parameters": sum(p.numel() for p in model.parameters()),
            "grid": list(grid_of(model)),
            **_inside(model),
            "similar": None if self.neighbours is None else self.neighbours.to_json(),
        }


def _inside(model: Model) -> dict[str, Any]:
    """Of a Transformer its parts; of a ResNet that it has none of them."""
    if not isinstance(model, ViT):
        return {"attention": False, "depth": 0, "heads": 0, "width": 0, "tokens_in_front": 0, "positions": "none"}
    config = model.config
    return {
        "attention": True,
        "depth": config.encoder.depth,
        "heads": config.encoder.heads,
        "width": config.encoder.width,
        "tokens_in_front": config.prefix,
        "positions": config.embedding.positions,
    }


def thumbnail(pixels: Pixels) -> str | None:
    """A picture small enough to go inside an answer, as a data: address."""
    return picture(pixels, "").address
