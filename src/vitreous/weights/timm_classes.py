"""timm's classes of ViT: how their arguments match our options, and how their tensors are named.

vit     VisionTransformer: most names           eva     Eva: EVA, EVA-02, DINOv3, PE and timm's rope models
beit    Beit: tables of offsets on q·k          relpos  VisionTransformerRelPos: an MLP of offsets on q·k
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from vitreous.errors import CheckpointError, FormatError
from vitreous.models.config import ViTConfig
from vitreous.weights.formats import stated_size
from vitreous.weights.tensor_files import RawCheckpoint, Tensors
from vitreous.words import one_line

Facts = Mapping[str, Any]  # arguments of timm's, from a name and from a config
EVA_BASE = 10_000.0  # Eva's rope_temperature, unless stated
BLOCK_PATTERN = re.compile(r"blocks\.(\d{1,6})\.")


def class_of(config: ViTConfig) -> str:
    """timm's class that can hold this model."""
    e = config.encoder
    if config.rotation.rotary != "none":
        return "eva"
    if e.attention_bias != "none":
        return {"table": "beit", "mlp": "relpos"}[e.attention_bias]
    return "eva" if e.qkv_bias and not e.key_bias else "vit"


# Arguments -----------------------------------------------------------------------------------------------------------


def rotation_options(facts: Facts, found: RawCheckpoint) -> dict[str, Any]:
    """Our options of rotary positions, from Eva's arguments."""
    if not facts.get("use_rot_pos_emb"):
        return {}
    kind, is_half = facts.get("rope_type") or "cat", bool(facts.get("rope_rotate_half"))
    if kind not in ("cat", "mixed", "dinov3") or is_half != (kind == "dinov3"):
        raise FormatError(
            f"{found.path} says rope_type={one_line(kind)} with rope_rotate_half={is_half}, which no model of timm's "
            f"has; mend config.json"
        )
    first = "columns" if facts.get("rope_grid_indexing") == "xy" and kind != "dinov3" else "rows"
    out = {"rotary_base": _number(facts, "rope_temperature", EVA_BASE, found), "rotary_first": first}
    if kind == "mixed":
        return {"rotary": "mixed", **out}
    out |= {"rotary": "axial", "rotary_start": _number(facts, "rope_grid_offset", 0.0, found)}
    if kind == "dinov3":
        return {**out, "rotary_places": "image", "rotary_pairs": "halves"}
    stretched = facts.get("ref_feat_shape")
    return {**out, "rotary_grid": None if stretched is None else stated_size(stretched, found)}


def rotation_arguments(config: ViTConfig) -> dict[str, Any]:
    """Eva's arguments, from our options of rotary positions."""
    r = config.rotation
    if r.rotary == "none":
        return {"use_rot_pos_emb": False}
    is_dino = r.rotary_places == "image"
    kind = "mixed" if r.rotary == "mixed" else "dinov3" if is_dino else "cat"
    grid = None if r.rotary_grid is None or kind != "cat" else list(r.rotary_grid)
    return {
        "use_rot_pos_emb": True,
        "rope_type": kind,
        "rope_temperature": r.rotary_base,
        "rope_rotate_half": is_dino,
        "rope_grid_indexing": "xy" if r.rotary_first == "columns" else "ij",
        "rope_grid_offset": r.rotary_start,
        "ref_feat_shape": grid,
    }


def _number(facts: Facts, name: str, default: float, found: RawCheckpoint) -> float:
    value = facts.get(name, default)
    if type(value) not in (int, float) or not math.isfinite(value):
        raise CheckpointError(f"the config of {found.path} says {name} {one_line(value)}; give a number")
    return float(value)


def hidden_ratio(width: int, hidden: int) -> float:
    """The mlp_ratio for which ⌊width · mlp_ratio⌋ is `hidden` again, even in floating point."""
    ratio = hidden / width
    while int(width * ratio) < hidden:
        ratio = math.nextafter(ratio, math.inf)
    return ratio


# Tensors: read under one set of names, VisionTransformer's, and written under the class's own ---------------------


def in_one_set(tensors: Tensors) -> Tensors:
    """Tensors of any of the classes as VisionTransformer names them, queries, keys and values stacked.

    Keys and values that several heads share (Sapiens2) are repeated for each head. If only the first branch has a gain,
    the second gets a gain of ones. The function stays the same.
    """
    new = tensors.renamed(lambda name: name.replace(".gamma_1", ".ls1.gamma").replace(".gamma_2", ".ls2.gamma"))
    for i in sorted({found[0] for name in new if (found := BLOCK_PATTERN.match(name))}):
        at = f"{i}attn."
        if f"{at}q_proj.weight" in new:
            _stack_attention(new, at)
        if f"{i}mlp.fc1_g.weight" in new:
            _stack(new, f"{i}mlp.fc1.", [f"{i}mlp.fc1_g.", f"{i}mlp.fc1_x."])
        if f"{i}ls1.gamma" in new and f"{i}ls2.gamma" not in new:
            new[f"{i}ls2.gamma"] = torch.ones_like(new[f"{i}ls1.gamma"])
    return new


def _stack(tensors: Tensors, to: str, parts: list[str]) -> None:
    for kind in ("weight", "bias"):
        if f"{parts[0]}{kind}" in tensors:
            tensors[f"{to}{kind}"] = torch.cat([tensors.pop(f"{part}{kind}") for part in parts])


def _stack_attention(tensors: Tensors, at: str) -> None:
    rows = tensors.shape(f"{at}q_proj.weight", 2)[0]
    shared, over = divmod(rows, tensors.shape(f"{at}k_proj.weight", 2)[0])
    if shared > 1 and not over and f"{at}q_norm.weight" in tensors:
        d = tensors.shape(f"{at}q_norm.weight", 1)[0]
        for part in [f"{at}{one}_proj.{kind}" for one in "kv" for kind in ("weight", "bias")]:
            if part in tensors:
                tensors[part] = tensors[part].unflatten(0, (-1, d)).repeat_interleave(shared, 0).flatten(0, 1)
    if f"{at}q_proj.bias" in tensors and f"{at}k_proj.bias" not in tensors:
        for one in "qv":
            tensors[f"{at}{one}_bias"] = tensors.pop(f"{at}{one}_proj.bias")
    _stack(tensors, f"{at}qkv.", [f"{at}{one}_proj." for one in "qkv"])


def as_class(config: ViTConfig, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors under the names of the class that holds this model."""
    kind, out = class_of(config), dict(tensors)
    if kind in ("eva", "beit"):
        names = {".ls1.gamma": ".gamma_1", ".ls2.gamma": ".gamma_2"}
        out = {re.sub(r"\.ls[12]\.gamma", lambda part: names[part[0]], name): value for name, value in out.items()}
    if config.encoder.activation == "swiglu" and is_apart(config):
        for name in [name for name in out if ".mlp.fc1." in name]:
            gate, value = out.pop(name).chunk(2)
            out[name.replace(".fc1.", ".fc1_g.")], out[name.replace(".fc1.", ".fc1_x.")] = gate.clone(), value.clone()
    return out


def is_apart(config: ViTConfig) -> bool:
    """True if the class has a layer of its own for the gate of a SwiGLU."""
    return class_of(config) == "beit" or (class_of(config) == "eva" and config.encoder.inner_norm in ("mlp", "both"))
