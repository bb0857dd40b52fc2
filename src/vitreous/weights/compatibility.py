"""What a format can hold of a model: rewrites that keep the function, and the parts it cannot hold."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from vitreous.models.config import BiTConfig, Config, ViTConfig
from vitreous.options import options_of

# The paper's plain ViT. A format lists the options where it allows more: None allows any value.
PLAIN_VIT: dict[str, tuple[Any, ...] | None] = {
    "image_size": None,
    "channels": None,
    "dynamic_image_size": None,  # affects how we run the model, not its function
    "stem": ("patch",),
    "patch": None,
    "patch_bias": (True,),
    "patch_norm": (False,),
    "positions": ("learned",),
    "positions_at": ("stem",),
    "positions_cover": ("all",),
    "position_resize": None,
    "class_token": (True,),
    "distillation_token": (False,),
    "registers": (0,),
    "mask_token": None,  # not used in the forward pass
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
    "inner_norm": ("none",),
    "qkv_bias": (True,),
    "key_bias": (True,),
    "branch_bias": (True,),
    "attention_bias": ("none",),
    "attention_bias_mlp": None,
    "attention_bias_at": None,  # read by attention_bias alone
    "qk_norm": (False,),
    "attention_scale": (None,),
    "skips": ((),),
    "layer_scale": (None,),
    "dropout": None,
    "attention_dropout": None,
    "drop_path": None,
    "rotary": ("none",),
    "rotary_places": None,  # these are read by rotary alone
    "rotary_base": None,
    "rotary_pairs": None,
    "rotary_first": None,
    "rotary_start": None,
    "rotary_grid": None,
    "pool": ("cls",),
    "pool_order": ("norm-first",),
    "pool_tokens": ("patches",),
    "pool_heads": (0,),
    "pool_mlp": (0,),
    "representation": (0,),
    "representation_kind": ("tanh",),
    "classes": None,
    "distillation_head": (False,),
}
NOTHING_TO_COVER = ("positions_cover",)  # makes no difference without tokens in front


class Difference(NamedTuple):
    """A part of a model that a format cannot hold, or that its library would run differently."""

    name: str  # an option, or a description
    value: Any = ""
    why: str = ""  # follows the value

    def __str__(self) -> str:
        return f"{self.name}{'' if self.value == '' else f'={self.value}'} {self.why}".rstrip()


def vit_differences(config: Any, **allowed: tuple[Any, ...] | None) -> list[Difference]:
    """Each option that is neither plain nor allowed."""
    if not isinstance(config, ViTConfig):
        return [Difference("a BiT")]
    holds = {**PLAIN_VIT, **allowed}
    out = []
    for each in options_of(config):
        if each.group == "resnet" or (each.name in NOTHING_TO_COVER and not config.prefix):
            continue
        values = holds[each.name]
        if values is not None and each.value not in values:
            out.append(Difference(each.name, each.value))
    return out


def bit_differences(config: BiTConfig, **stated: Any) -> list[Difference]:
    """Each option of a BiT's ResNet that the format's library would run differently."""
    wanted = {"root": "imagenet", "standardise_eps_at": "variance", "group_norm_eps": 1e-5, **stated}
    return resnet_differences(config, wanted)


def resnet_differences(config: Config, wanted: Mapping[str, Any]) -> list[Difference]:
    has = {name: getattr(config.resnet, name) for name in wanted}
    return [Difference(name, has[name]) for name, value in wanted.items() if has[name] != value]


def token_differences(config: ViTConfig) -> list[Difference]:
    """For formats that infer the pool from the class token: the model has one if and only if the pool reads it."""
    pool, token = config.readout.pool, config.embedding.class_token
    return [Difference("pool", pool, f"with class_token={token}")] if pool != "cls" and token else []


State = Mapping[str, Tensor]


def cover(config: Config, state: State, which: str) -> tuple[Config, State]:
    """Make positions cover `which` tokens without changing the function: a removed row is added to its token, a new
    row is zero."""
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
