"""transformers' image processors: preprocessor_config.json to our preprocessing and back."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from vitreous.errors import CheckpointError
from vitreous.models.config import Size, ViTConfig
from vitreous.models.model import Model
from vitreous.models.preprocess import HALF_RGB, IMAGENET_MEAN, IMAGENET_STD, Preprocess
from vitreous.weights.formats import stated_preprocess
from vitreous.weights.tensor_files import RawCheckpoint, by
from vitreous.words import one_line

RESAMPLE_NAMES = {0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic", 4: "box"}
CLIP_MEAN, CLIP_STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)


def preprocess(found: RawCheckpoint, config: ViTConfig, whose: str, assumed: list[str]) -> Preprocess:
    """From preprocessor_config.json, else the default of a family.  whose: a key of FAMILY_DEFAULTS."""
    size = config.image_size
    if not found.preprocessor:
        assumed.append("preprocessing: the default of transformers' image processor")
        return default_preprocess(whose, size)
    facts = with_defaults(found.preprocessor, assumed)
    number = facts["resample"]
    if type(number) is not int or number not in RESAMPLE_NAMES:
        assumed.append(f"interpolation bilinear: resample {one_line(number)} is not built here")
        number = 2
    mean, std = normalisation(found, facts, config.channels)
    common: dict[str, Any] = {"interpolation": RESAMPLE_NAMES[number], "antialias": True, "mean": mean, "std": std}
    common |= {"centre": "floor", "source": "huggingface"}
    resized, cut = _edges(facts.get("size"), size), _edges(facts.get("crop_size"), size)
    if facts.get("do_resize", True) is False:
        assumed.append(f"images squashed to {by(size)}: do_resize is false, and the network takes no other size")
        return stated_preprocess(found, size=size, **common)
    if "shortest_edge" in resized and not facts.get("do_center_crop"):
        assumed.append(f"centre crop {by(size)}: do_center_crop is not true, and the network takes no other size")
    if not facts.get("do_center_crop") and "shortest_edge" not in resized:
        return stated_preprocess(found, size=_pair(resized), **common).at(size)
    # The processor may crop to another size than the network's (DINOv2: 224 for 518): keep the ratio.
    fit = "crop" if "shortest_edge" in resized else "squash-crop"
    side = resized["shortest_edge"] if fit == "crop" else _pair(resized)[0]
    return stated_preprocess(found, size=_pair(cut), fit=fit, short_side=side, **common).at(size)


def _squash(resample: int, mean: Any = HALF_RGB, std: Any = HALF_RGB) -> dict[str, Any]:
    return {"resample": resample, "image_mean": mean, "image_std": std}


def _crop(side: dict[str, int], mean: Any, std: Any) -> dict[str, Any]:
    cut = {"do_center_crop": True, "crop_size": {"height": 224, "width": 224}}
    return {"size": side, **cut, "resample": 3, "image_mean": mean, "image_std": std}


PROCESSOR_DEFAULTS: dict[str, dict[str, Any]] = {  # of transformers' image processors
    "ViT": _squash(2),
    "DeiT": _crop({"height": 256, "width": 256}, HALF_RGB, HALF_RGB),
    "Bit": _crop({"shortest_edge": 224}, CLIP_MEAN, CLIP_STD),
    "CLIP": _crop({"shortest_edge": 224}, CLIP_MEAN, CLIP_STD),
    "Siglip": _squash(3),
    "Beit": _squash(3),
    "DINOv3ViT": _squash(2, IMAGENET_MEAN, IMAGENET_STD),
}
FAMILY_DEFAULTS = {  # without preprocessor_config.json: a class's own defaults, or what a family's files on the hub say
    **PROCESSOR_DEFAULTS,
    "Dinov2": _crop({"shortest_edge": 256}, IMAGENET_MEAN, IMAGENET_STD),
    "MAE": _squash(3, IMAGENET_MEAN, IMAGENET_STD),
}


def default_preprocess(whose: str, size: Size) -> Preprocess:
    """A family's preprocessing for 224 pixels, at this size."""
    facts = FAMILY_DEFAULTS[whose]
    resized = facts.get("size", {})
    side = resized.get("shortest_edge", resized.get("height"))
    common: dict[str, Any] = {"size": size, "antialias": True, "centre": "floor", "source": "huggingface (assumed)"}
    common |= {"interpolation": RESAMPLE_NAMES[facts["resample"]]}
    common |= {"mean": facts["image_mean"], "std": facts["image_std"]}
    if side is None:
        return Preprocess(**common)
    fit: Any = "crop" if "shortest_edge" in resized else "squash-crop"
    return Preprocess(fit=fit, short_side=round(min(size) * side / 224), **common)


def with_defaults(facts: Mapping[str, Any], assumed: list[str]) -> dict[str, Any]:
    """A processor's config with its class's defaults filled in; an unknown class gets ViT's, noted in `assumed`."""
    word = facts.get("image_processor_type", facts.get("feature_extractor_type"))
    kind = re.sub(r"(ImageProcessor|FeatureExtractor)(Fast)?$", "", word) if isinstance(word, str) else "ViT"
    left_out = [name for name in PROCESSOR_DEFAULTS["ViT"] if name not in facts]
    if facts.get("do_normalize") is False:
        left_out = [name for name in left_out if name == "resample"]
    if kind not in PROCESSOR_DEFAULTS or word is None:
        assumed += [f"{', '.join(left_out)}: ViTImageProcessor's default"] if left_out else []
    return {**PROCESSOR_DEFAULTS.get(kind, PROCESSOR_DEFAULTS["ViT"]), **facts}


def _edges(facts: Any, default: Size) -> dict[str, Any]:
    """A processor's size: a number, {height, width} or {shortest_edge}; by default the network's."""
    if isinstance(facts, dict) and ("shortest_edge" in facts or {"height", "width"} <= set(facts)):
        return facts
    return {"height": default[0], "width": default[1]} if facts is None else {"height": facts, "width": facts}


def _pair(edges: Mapping[str, Any]) -> tuple[Any, Any]:
    side = edges.get("shortest_edge")
    return (edges["height"], edges["width"]) if side is None else (side, side)


def normalisation(found: RawCheckpoint, facts: Mapping[str, Any], channels: int) -> tuple[Any, Any]:
    """Mean and std for pixels in 0 … 1; the processor's apply after its own rescaling."""
    mean, std = facts["image_mean"], facts["image_std"]
    if facts.get("do_normalize") is False:
        mean, std = [0.0] * channels, [1.0] * channels
    factor = facts.get("rescale_factor", 1 / 255) if facts.get("do_rescale", True) else 1
    scale = 255 * factor if type(factor) in (int, float) else 0
    numbers = [*mean, *std] if isinstance(mean, list | tuple) and isinstance(std, list | tuple) else [None]
    if not all(type(n) in (int, float) for n in numbers) or not 0 < scale < 1e6:
        raise CheckpointError(f"the preprocessing of {found.path} makes no sense; mend preprocessor_config.json")
    if abs(scale - 1) < 1e-6:
        return mean, std
    return [n / scale for n in mean], [n / scale for n in std]


PROCESSORS = {"squash": "ViTImageProcessor", "crop": "BitImageProcessor", "squash-crop": "DeiTImageProcessor"}


def hf_preprocessor(model: Model) -> dict[str, Any]:
    pre = model.preprocess
    h, w = pre.size
    out: dict[str, Any] = {
        "image_processor_type": PROCESSORS[pre.fit],
        "do_resize": True,
        "size": {"height": h, "width": w},
        "resample": {name: number for number, name in RESAMPLE_NAMES.items()}[pre.interpolation],
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": list(pre.mean),
        "image_std": list(pre.std),
    }
    if pre.fit != "squash":
        side = pre.short_side
        out["size"] = {"shortest_edge": side} if pre.fit == "crop" else {"height": side, "width": side}
        out |= {"do_center_crop": True, "crop_size": {"height": h, "width": w}}
    return out
