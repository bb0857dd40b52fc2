"""What a page needs to know about a model: the same facts for `vitreous serve` and for a page of `vitreous export`."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from vitreous.exports.card import terms_of
from vitreous.models import architecture
from vitreous.models.config import ViTConfig
from vitreous.models.model import Model, head_shape
from vitreous.models.pooling import find_pool
from vitreous.models.positions import POSITION_KINDS
from vitreous.models.track_record import TrackRecord
from vitreous.models.vit import ViT

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


def model_facts(model: Model) -> dict[str, Any]:
    """The facts of a loaded model, for pages and for programs."""
    config = model.config
    return {
        "classes": config.readout.classes,
        "features": feature_count(model),
        "labels": list(model.labels or ())[:MAX_LABELS_LISTED],
        "image_size": list(config.image_size),
        "channels": config.channels,
        "preprocess": model.preprocess.to_json(),
        "answers": model.answers if config.readout.classes else "features",
        "knows_unlike": model.threshold is not None,
        "record": record_facts(model.track_record),
        "terms": terms_of(model),
        "parameters": sum(p.numel() for p in model.parameters()),
        "grid": list(grid_of(model)),
        "cells": list(cells_of(model)),
        **_inside(model),
        "breaks": ["shuffle", "positions", "blocks", "hide"] if isinstance(model, ViT) else ["hide"],
        "exported": None,
    }


def feature_count(model: Model) -> int:
    """How many numbers the head reads; an encoder without a head answers with them."""
    if model.config.readout.classes:
        return head_shape(model)[1]
    return architecture.parts(model.config)[-1].shape[-1]


def record_facts(record: TrackRecord | None) -> dict[str, Any] | None:
    """How often the model is right and when it is unsure, in numbers and in words; None if nobody measured it."""
    if record is None:
        return None
    return record.to_json() | {"about_right": record.about_right, "about_unsure": record.about_unsure}


def cells_of(model: Model) -> tuple[float, float, float, float]:
    """Where the grid lies: left, top, right, bottom in shares of the image."""
    if not isinstance(model, ViT):
        return 0.0, 0.0, 1.0, 1.0
    return architecture.spread(model.stem, model.config.image_size, model.grid)


def grid_of(model: Model) -> tuple[int, int]:
    """Rows and columns of patches; for a network without patches, a grid to cover areas by."""
    return model.grid if isinstance(model, ViT) else (7, 7)


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
    """The kind of positions; if none are added to the tokens, the kind that attention uses instead."""
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
