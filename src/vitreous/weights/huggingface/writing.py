"""A model of ours becomes a folder that `from_pretrained` reads."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vitreous.models.config import Config, Size, ViTConfig
from vitreous.models.model import Model
from vitreous.weights.compatibility import Difference, cover
from vitreous.weights.formats import write_hub_folder
from vitreous.weights.huggingface.families import TRANSFORMERS_ACTIVATIONS, Family, fitting
from vitreous.weights.huggingface.layout import join_map, rules_of
from vitreous.weights.huggingface.processors import hf_preprocessor
from vitreous.weights.layouts import Rule

OUTSIDE_THE_ENCODER = ("classifier.", "cls_classifier.", "distillation_classifier.", "visual_projection.")


def rules(config: Config) -> list[Rule]:
    assert isinstance(config, ViTConfig)
    return rules_of(config, fitting(config).names)


def refuses(config: Config) -> list[Difference]:
    return fitting(config).differences(config)


def to_hold(config: Config, state: Mapping[str, Tensor]) -> tuple[Config, Mapping[str, Tensor]]:
    """Class and distillation tokens have positions here; registers have none."""
    return cover(config, state, fitting(config).positions_cover)


def write(model: Model, tensors: Mapping[str, Tensor], path: Path) -> list[Path]:
    """config.json, preprocessor_config.json, model.safetensors."""
    config = model.config
    assert isinstance(config, ViTConfig)
    family = fitting(config)
    named = dict(tensors)
    join_map(named, family.names.map_pool)
    has_more = any(name.startswith(OUTSIDE_THE_ENCODER) for name in named)
    prefix = family.prefix if has_more else ""
    named = {n if n.startswith(OUTSIDE_THE_ENCODER) else prefix + n: t for n, t in named.items()}
    for name, tensor in unread(config, family).items():
        named.setdefault(prefix + name, tensor)
    return write_hub_folder(path, named, config=hf_config(model, family), preprocessor_config=hf_preprocessor(model))


def unread(config: ViTConfig, family: Family) -> dict[str, Tensor]:
    """Tensors that the class has and the function does not use."""
    names, width = family.names, config.encoder.width
    out: dict[str, Tensor] = {}
    if names.mask_token:
        out[names.mask_token] = torch.zeros([1] * (names.mask_axes - 1) + [width])
    if family.model_type == "dinov3_vit":
        out[names.registers] = torch.zeros(1, 0, width)
    if config.readout.pool_order == "no-norm" and family.whole_classifier:
        out |= {f"{names.norm}.weight": torch.ones(width), f"{names.norm}.bias": torch.zeros(width)}
    return out


def hf_config(model: Model, family: Family) -> dict[str, Any]:
    config = model.config
    assert isinstance(config, ViTConfig)
    e, r = config.encoder, config.readout
    back = {ours: theirs for theirs, ours in reversed(TRANSFORMERS_ACTIVATIONS.items())}
    tower: dict[str, Any] = {
        "model_type": family.model_type,
        "hidden_size": e.width,
        "num_hidden_layers": e.depth,
        "num_attention_heads": e.heads,
        "hidden_act": back.get(e.activation, "gelu"),
        "layer_norm_eps": e.norm_eps,
        "image_size": _plain(config.image_size),
        "patch_size": _plain(config.embedding.patch),
        "num_channels": config.channels,
        "dtype": "float32",
        **family.words(config),
    }
    out = {"architectures": [class_name(config, family)], **tower}
    if r.classes and family.whole_classifier:
        out |= {"model_type": family.whole_classifier, "vision_config": tower}
    if r.classes:
        named = model.labels or tuple(f"LABEL_{i}" for i in range(r.classes))
        out |= {"id2label": {str(i): n for i, n in enumerate(named)}, "label2id": {n: i for i, n in enumerate(named)}}
    return out


def class_name(config: ViTConfig, family: Family) -> str:
    r = config.readout
    if r.classes:
        title = family.title.removesuffix("Vision") if family.whole_classifier else family.title
        return f"{title}ForImageClassification{'WithTeacher' if r.distillation_head else ''}"
    return f"{family.title}Model{'WithProjection' if r.representation_kind == 'linear' else ''}"


def _plain(size: Size) -> int | list[int]:
    return size[0] if size[0] == size[1] else list(size)
