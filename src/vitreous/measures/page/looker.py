"""Attention to choose and to point at: what the page holds of the maps, and the controls."""

from __future__ import annotations

import base64
import json
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitreous.measures.drawing import rgb
from vitreous.measures.figures import short_name
from vitreous.measures.inspection import Inspection
from vitreous.report.colours import SCALE
from vitreous.report.page import picture

__all__ = ["Shown", "fitting", "looker"]

WHOLE = 256  # steps of a weight as it was kept; fewer go by its square root, so that small weights stay
STEPS = (WHOLE, 64, 32)  # of all images, before images are left out
LAST = (16, 8)  # of a single image
ROLLOUTS = {
    "rollout": "rollout through all blocks",
    "rollout_plain": "rollout without skips",
    "rollout_max": "rollout, largest of heads",
    "rollout_min": "rollout, smallest of heads",
}
SIDE = 320  # pixels of a picture's longer side


@dataclass(frozen=True)
class Shown:
    """What the page's script reads: id -> text."""

    data: dict[str, str]


def fitting(inspection: Inspection, limit: int) -> Shown | None:
    """The maps of both models in at most `limit` bytes: first in coarser steps, then of fewer images."""
    sides = [
        (inspection.arrays[key], found["attention-maps"], model)
        for key, found, model in (
            ("attention-maps", inspection.found, inspection.model),
            ("attention-maps-against", inspection.found_against, inspection.against),
        )
        if model is not None and "maps" in inspection.arrays.get(key, {})
    ]
    if not sides:
        return None
    most = min(len(arrays["maps"]) for arrays, _, _ in sides)
    options = [(most, steps) for steps in STEPS]
    options += [(count, STEPS[-1]) for count in range(most - 1, 0, -1)] + [(1, steps) for steps in LAST]
    for count, steps in options:
        packed = [_packed(arrays, count, steps) for arrays, _, _ in sides]
        if sum(map(len, packed)) <= limit:
            break
    models = [_about(arrays, found, model, count) for arrays, found, model in sides]
    scale = ["#{:02x}{:02x}{:02x}".format(*colour) for colour in SCALE[::51].tolist()]
    told = {"models": models, "steps": steps, "scale": scale}
    data = {"attention": json.dumps(told, separators=(",", ":"))}
    return Shown(data | {f"maps{i}": json.dumps(text) for i, text in enumerate(packed)})


def _packed(arrays: dict[str, NDArray[Any]], count: int, steps: int) -> str:
    """maps (images layers heads queries keys), peaks (two bytes each, of 65535), rollouts: deflated, as text.

    A weight w of its query's largest is the byte 255 w; in fewer steps it is (steps − 1) √w.
    """
    coarser = ((steps - 1) * np.sqrt(np.arange(256) / 255)).round().astype(np.uint8)
    maps = arrays["maps"][:count] if steps == WHOLE else coarser[arrays["maps"][:count]]
    peaks = np.clip(arrays["peaks"][:count].astype(np.float32), 0, 1)
    parts = [maps.tobytes(), (65535 * peaks).round().astype("<u2").tobytes()]
    parts += [_bytes(arrays[name][:count]) for name in ROLLOUTS if name in arrays]
    return base64.b64encode(zlib.compress(b"".join(parts))).decode()


def _bytes(heat: NDArray[Any]) -> bytes:
    exact = heat.astype(np.float32)
    return (255 * exact / np.maximum(exact.max((1, 2), keepdims=True), 1e-12)).round().astype(np.uint8).tobytes()


def _about(arrays: dict[str, NDArray[Any]], found: dict[str, Any], model: dict[str, Any], count: int) -> dict[str, Any]:
    maps = arrays["maps"]
    pictures = [picture(each, "", side=SIDE).address for each in rgb(arrays["images"][:count])]
    return {
        "name": short_name(model["name"]),
        "images": pictures,
        "layers": maps.shape[1],
        "heads": maps.shape[2],
        "queries": maps.shape[3],
        "small": found["pooled_to"],
        "grid": found["grid"],
        "front": _front(model, found["front_tokens"]),
        "rollouts": [name for name in ROLLOUTS if name in arrays],
    }


def _front(model: dict[str, Any], count: int) -> list[str]:
    """Names of the tokens in front of the patches."""
    embedding = model.get("config", {}).get("embedding", {})
    names = ["class token"] if embedding.get("class_token") else []
    names += ["distillation token"] if embedding.get("distillation_token") else []
    names += [f"register {i}" for i in range(count - len(names))]
    return names[:count]


def looker(inspection: Inspection) -> str:
    """The controls and, for each model, a picture to click; dead until the script of the page wakes them."""
    import jinja2  # only when a page is made

    models = [(inspection.model, "attention-maps"), (inspection.against, "attention-maps-against")]
    names = [short_name(model["name"]) for model, key in models if model is not None and key in inspection.arrays]
    ways = {"looks": "where this token looks", "seen": "who looks at this patch", **ROLLOUTS}
    text = (Path(__file__).parent / "looker.html").read_text("utf-8")
    return (
        jinja2.Environment(autoescape=True)
        .from_string(text)
        .render(names=names, ways=ways, is_pair=inspection.against is not None)
    )
