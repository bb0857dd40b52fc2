"""The page's attention viewer: the maps it holds, and its controls."""

from __future__ import annotations

import base64
import json
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitreous.measures.drawing import PHOTO_SIDE, WHOLE_BOX, photos_of
from vitreous.measures.inspection import Inspection
from vitreous.measures.measure import PLURAL
from vitreous.report.colours import COLOUR_SCALE
from vitreous.report.page import picture

ALL_STEPS = 256  # of a weight; fewer steps take its square root, so that small weights stay visible
COARSER_STEPS = (ALL_STEPS, 64, 32)  # tried before images are left out
LAST_STEPS = (16, 8)  # tried when one image is left
ROLLOUT_NAMES = {
    "rollout": "rollout through all blocks",
    "rollout_plain": "rollout without skips",
    "rollout_max": "rollout, largest of heads",
    "rollout_min": "rollout, smallest of heads",
}


def fitting(inspection: Inspection, limit: int) -> dict[str, str]:
    """What the page's script reads, id -> text; empty without maps.

    The maps of both models take at most `limit` bytes: first in coarser steps, then of fewer images.
    """
    sides = [
        (inspection.arrays[key], found["attention-maps"], model, name)
        for name, key, found, model in _both(inspection)
        if "attention-maps" in found and "maps" in inspection.arrays.get(key, {})
    ]
    if not sides:
        return {}
    most = min(len(arrays["maps"]) for arrays, *_ in sides)
    options = [(most, steps) for steps in COARSER_STEPS]
    options += [(count, COARSER_STEPS[-1]) for count in range(most - 1, 0, -1)] + [(1, steps) for steps in LAST_STEPS]
    for count, steps in options:
        packed = [_packed(arrays, count, steps) for arrays, *_ in sides]
        if sum(map(len, packed)) <= limit:
            break
    models = [_about(arrays, found, model, count) | {"name": name} for arrays, found, model, name in sides]
    scale = ["#{:02x}{:02x}{:02x}".format(*colour) for colour in COLOUR_SCALE[::51].tolist()]
    told = {"models": models, "steps": steps, "scale": scale}
    data = {"attention": json.dumps(told, separators=(",", ":"))}
    return data | {f"maps{i}": json.dumps(text) for i, text in enumerate(packed)}


def _both(inspection: Inspection) -> list[tuple[str, str, dict[str, Any], dict[str, Any]]]:
    """Name, key of the arrays, numbers and facts of each model."""
    keys = "attention-maps", "attention-maps-against"
    founds, models = (inspection.found, inspection.found_against), (inspection.model, inspection.against or {})
    return list(zip(inspection.names, keys, founds, models, strict=False))


def _packed(arrays: dict[str, NDArray[Any]], count: int, steps: int) -> str:
    """maps (images layers heads queries keys), peaks (two bytes each, of 65535), rollouts: deflated, as text.

    A weight w of its query's largest is the byte 255 w; in fewer steps it is (steps − 1) √w.
    """
    coarser = ((steps - 1) * np.sqrt(np.arange(256) / 255)).round().astype(np.uint8)
    maps = arrays["maps"][:count] if steps == ALL_STEPS else coarser[arrays["maps"][:count]]
    peaks = np.clip(arrays["peaks"][:count].astype(np.float32), 0, 1)
    parts = [maps.tobytes(), (65535 * peaks).round().astype("<u2").tobytes()]
    parts += [_bytes(arrays[name][:count]) for name in ROLLOUT_NAMES if name in arrays]
    return base64.b64encode(zlib.compress(b"".join(parts))).decode()


def _bytes(heat: NDArray[Any]) -> bytes:
    exact = heat.astype(np.float32)
    return (255 * exact / np.maximum(exact.max((1, 2), keepdims=True), 1e-12)).round().astype(np.uint8).tobytes()


def _about(arrays: dict[str, NDArray[Any]], found: dict[str, Any], model: dict[str, Any], count: int) -> dict[str, Any]:
    maps, photos = arrays["maps"], photos_of(arrays)[:count]
    return {
        "images": [picture(photo.pixels, "", side=PHOTO_SIDE).address for photo in photos],
        "cells": [round(float(edge), 5) for edge in arrays.get("cells", WHOLE_BOX)],
        "boxes": [[round(edge, 5) for edge in photo.box] for photo in photos],
        "layers": maps.shape[1],
        "heads": maps.shape[2],
        "queries": maps.shape[3],
        "small": found["pooled_to"],
        "grid": found["grid"],
        "front": _front(model, found["front_tokens"]),
        "place": found["place"],
        "places": PLURAL[found["place"]],
        "rollouts": [name for name in ROLLOUT_NAMES if name in arrays],
    }


def _front(model: dict[str, Any], count: int) -> list[str]:
    """Names of the tokens in front of the patches."""
    embedding = model.get("config", {}).get("embedding", {})
    names = ["class token"] if embedding.get("class_token") else []
    names += ["distillation token"] if embedding.get("distillation_token") else []
    names += [f"register {i + 1}" for i in range(count - len(names))]
    return names[:count]


def looker(inspection: Inspection) -> str:
    """The controls, and a picture to click for each model; the page's script makes them work."""
    import jinja2  # only when a page is made

    sides = [
        (name, key, found["attention-maps"]) for name, key, found, _ in _both(inspection) if "attention-maps" in found
    ]
    place = sides[0][2]["place"]
    ways = {"looks": "where this token looks", "seen": f"who looks at this {place}", **ROLLOUT_NAMES}
    boxes = [edge for _, key, _ in sides for edge in inspection.arrays[key]["photo_boxes"].tolist()]
    text = (Path(__file__).parent / "looker.html").read_text("utf-8")
    return (
        jinja2.Environment(autoescape=True)
        .from_string(text)
        .render(
            names=[name for name, *_ in sides],
            ways=ways,
            is_pair=inspection.against is not None,
            place=place,
            places=PLURAL[place],
            has_grey=any(min(left, top) > 0 or max(right, bottom) < 1 for left, top, right, bottom in boxes),
        )
    )
