"""What a format can hold of a model: folds that change tensors but not the function, and refusals by part and value."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from vitreous.models.config import BiTConfig, Config, ViTConfig, options

# What a plain ViT of the paper is. A format says where it can have more: None is anything, else the values it holds.
PLAIN: dict[str, tuple[Any, ...] | None] = {
    "image_size": None,
    "channels": None,
    "dynamic_image_size": None,  # how we run it, not what it is
    "stem": ("patch",),
    "patch": None,
    "patch_bias": (True,),
    "positions": ("learned",),
    "positions_at": ("stem",),
    "positions_cover": ("all",),
    "position_resize": None,
    "class_token": (True,),
    "distillation_token": (False,),
    "registers": (0,),
    "mask_token": None,  # no part of the function
    "norm_before_blocks": (False,),
    "token_start": None,
    "position_start": None,
    "width": None,
    "depth": None,
    "heads": None,
    "mlp": None,
    "norm": ("pre",),
    "norm_kind": ("layer",),
    "norm_eps": (1e-6,),
    "activation": ("gelu",),
    "qkv_bias": (True,),
    "qk_norm": (False,),
    "attention_scale": (None,),
    "skips": ((),),
    "layer_scale": (None,),
    "dropout": None,
    "attention_dropout": None,
    "drop_path": None,
    "pool": ("cls",),
    "pool_order": ("norm-first",),
    "representation": (0,),
    "classes": None,
    "distillation_head": (False,),
}
NOTHING_TO_COVER = ("positions_cover",)  # no difference where there are no tokens in front


def vit_differences(config: Any, **allowed: tuple[Any, ...] | None) -> list[str]:
    """`option=value` for each part that is neither plain nor allowed."""
    if not isinstance(config, ViTConfig):
        return ["a BiT"]
    holds = {**PLAIN, **allowed}
    out = []
    for group, name, _, value in options(config):
        if group == "resnet" or (name in NOTHING_TO_COVER and not config.prefix):
            continue
        values = holds[name]
        if values is not None and value not in values:
            out.append(f"{name}={value}")
    return out


def bit_differences(config: BiTConfig, **stated: Any) -> list[str]:
    """`option=value` for each part of a BiT's ResNet that the format's library would run differently."""
    wanted = {"root": "imagenet", "standardise_eps_at": "variance", "group_norm_eps": 1e-5, **stated}
    return [
        f"{name}={getattr(config.resnet, name)}"
        for name, value in wanted.items()
        if getattr(config.resnet, name) != value
    ]


State = Mapping[str, Tensor]


def cover(config: Config, state: State, which: str) -> tuple[Config, State]:
    """Let positions cover `which` tokens, the function unchanged: a row that must go is added to its token; a token
    that must have one gets zeros."""
    if (
        not isinstance(config, ViTConfig)
        or config.embedding.positions != "learned"
        or config.embedding.positions_at != "stem"
    ):
        return config, state
    new = config.change(positions_cover=which)
    had, gets, table = config.covered, new.covered, state["embedding.positions.table"]
    out = {
        **state,
        "embedding.positions.table": torch.cat(
            [table[: min(had, gets)], table.new_zeros(max(gets - had, 0), table.shape[1]), table[had:]]
        ),
    }
    at = 0
    for name in ("class_token", "distillation_token", "registers"):
        if f"embedding.{name}" in state:
            token = state[f"embedding.{name}"]
            rows = table[at : min(at + len(token), had)] if at >= gets else table[:0]
            if len(rows):
                out[f"embedding.{name}"] = token + rows
            at += len(token)
    return new, out
