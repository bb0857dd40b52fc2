"""One model with all that the routes need: queue, cache, metrics, neighbours. It knows nothing of HTTP."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from vitreous.exports.card import terms_of
from vitreous.images.pixels import decode
from vitreous.images.pixels.preprocess import seen_box
from vitreous.models import architecture
from vitreous.models.config import ViTConfig
from vitreous.models.model import Model
from vitreous.models.pooling import find_pool
from vitreous.models.positions import POSITION_KINDS
from vitreous.models.vit import ViT
from vitreous.report.page import picture
from vitreous.server.engine import Pixels, grid_of
from vitreous.server.errors import Refusal
from vitreous.server.exported import WHY_CLOSED, Exported
from vitreous.server.images.cache import CachedImage, ImageCache
from vitreous.server.images.photo import encoded_photo
from vitreous.server.images.similar import Neighbours
from vitreous.server.metrics import Counts
from vitreous.server.queue import WorkQueue

MAX_LABELS_LISTED = 1000
NO_TRANSFORMER = {
    "attention": False,
    "depth": 0,
    "heads": 0,
    "width": 0,
    "tokens_in_front": 0,
    "positions": "none",
    "transformer": None,
}


class Served:
    """What the routes ask. neighbours: of the training images, if any were given.  examples: (label, image H W C)."""

    def __init__(
        self,
        queue: WorkQueue,
        model: Model | Exported,
        neighbours: Neighbours | None = None,
        *,
        name: str,
        runtime: str = "torch",
        examples: list[tuple[str, Pixels]],
    ):
        self.queue, self.model, self.neighbours, self.name, self.runtime = queue, model, neighbours, name, runtime
        self.counts, self.cache = Counts(), ImageCache()
        self.rule = model.about.preprocess if isinstance(model, Exported) else model.preprocess
        self.examples = [
            {
                "image": self.cache.pin(i, self.kept(label, pixels, photo=True)),
                "label": label,
                "picture": thumbnail(pixels),
            }
            for i, (label, pixels) in enumerate(examples)
        ]

    def kept(self, name: str, pixels: Pixels, note: str = "", *, photo: bool = False) -> CachedImage:
        """An image for the cache.  photo: with the whole of it, for a page."""
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

    def about(self) -> dict[str, Any]:
        """The facts of the model, for the page and for programs."""
        whole = _of_file(self.model) if isinstance(self.model, Exported) else _of_model(self.model)
        similar = None if self.neighbours is None else self.neighbours.to_json()
        return {"name": self.name, "runtime": self.runtime, **whole, "similar": similar}


def _of_file(exported: Exported) -> dict[str, Any]:
    about = exported.about
    return {
        "classes": about.classes,
        "labels": list(exported.labels)[:MAX_LABELS_LISTED],
        "image_size": list(about.preprocess.size),
        "channels": len(about.preprocess.mean),
        "preprocess": about.preprocess.to_json(),
        "answers": about.answers,
        "knows_unlike": about.threshold is not None,
        "terms": about.terms,
        "parameters": None,
        "grid": None,
        **NO_TRANSFORMER,
        "exported": exported.to_json(),
    }


def _of_model(model: Model) -> dict[str, Any]:
    config = model.config
    return {
        "classes": config.readout.classes,
        "labels": list(model.labels or ())[:MAX_LABELS_LISTED],
        "image_size": list(config.image_size),
        "channels": config.channels,
        "preprocess": model.preprocess.to_json(),
        "answers": model.answers,
        "knows_unlike": model.threshold is not None,
        "terms": terms_of(model),
        "parameters": sum(p.numel() for p in model.parameters()),
        "grid": list(grid_of(model)),
        **_inside(model),
        "exported": None,
    }


def _inside(model: Model) -> dict[str, Any]:
    """The parts of a Transformer; a ResNet has none."""
    if not isinstance(model, ViT):
        return NO_TRANSFORMER
    config = model.config
    return {
        "attention": not find_pool(model)[0].silence,
        "depth": config.encoder.depth,
        "heads": config.encoder.heads,
        "width": config.encoder.width,
        "tokens_in_front": config.prefix,
        "positions": _positions(config),
        "transformer": _transformer(model),
    }


def _positions(config: ViTConfig) -> str:
    """The kind of positions; where none are added to the tokens, what attention is told instead."""
    told = (
        "rotary" if config.rotation.rotary != "none" else "bias" if config.encoder.attention_bias != "none" else "none"
    )
    return told if config.embedding.positions == "none" else config.embedding.positions


def _transformer(model: ViT) -> dict[str, Any]:
    """What the lesson needs to tell this model from others. map: channels, rows and columns before the tokens."""
    config, e = model.config, model.config.encoder
    seen = architecture.window(model.stem, config.image_size)
    b = config.embedding
    is_in_attention = POSITION_KINDS[b.positions].in_attention or _positions(config) != b.positions
    return {
        "stem": config.embedding.stem,
        "piece": architecture.place(config),
        "patch": list(model.embedding.patch),
        "numbers": model.embedding.projection.in_features,
        "window": None if seen is None else asdict(seen),
        "front": architecture.front_tokens(config.embedding),
        "positions_at": "attention" if is_in_attention else config.embedding.positions_at,
        "covered": 0 if config.embedding.positions == "sincos-2d" else config.covered,
        "norm_before_blocks": config.embedding.norm_before_blocks,
        "norm": e.norm,
        "scale": e.attention_scale,
        "qk_norm": e.qk_norm,
        "rotary": config.rotation.rotary != "none",
        "bias": e.attention_bias != "none",
        "layer_scale": e.layer_scale is not None,
        "skips": sorted(set(e.skips)),
        "pool": config.readout.pool,
        "distillation_head": config.readout.distillation_head,
    }


def thumbnail(pixels: Pixels) -> str | None:
    """A small picture for a JSON answer, as a data: address."""
    return picture(pixels, "").address
