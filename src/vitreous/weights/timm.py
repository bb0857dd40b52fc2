"""timm's ViT in its many forms, DeiT, BEiT, EVA, DINOv3, PE, hybrid and BiT: a folder with config.json, or the file."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from vitreous.errors import CheckpointError, FormatError
from vitreous.models.attention_bias import CLASS_ROWS
from vitreous.models.catalog import BIT_UNITS
from vitreous.models.config import BiTConfig, Config, ResNetConfig, Size, ViTConfig
from vitreous.models.model import Model
from vitreous.models.positions import square_grid
from vitreous.models.preprocess import HALF_RGB, Preprocess
from vitreous.weights.compatibility import Difference, bit_differences, cover, resnet_differences, vit_differences
from vitreous.weights.formats import (
    Draft,
    Format,
    Hints,
    choose_heads,
    choose_image_size,
    stated_preprocess,
    stated_size,
    stem_of,
    write_hub_folder,
)
from vitreous.weights.google import stem_cell
from vitreous.weights.layouts import LEADING_AXIS, ONE_BY_ONE_CONV, STACKED_PAIR, Rule, pair, patch_kernel, rule
from vitreous.weights.tensor_files import RawCheckpoint, Tensors, by
from vitreous.weights.timm_classes import (
    Facts,
    as_class,
    class_of,
    hidden_ratio,
    in_one_set,
    rotation_arguments,
    rotation_options,
)
from vitreous.weights.timm_names import BIT_BY_HAND, HYBRID_BY_HAND, Implied, implied, runs
from vitreous.words import one_line

TIMM_HYBRID = ResNetConfig(root_pad="infinity", standardise_eps=1e-8, group_norm_eps=1e-5)
TIMM_ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_tanh": "gelu-tanh",
    "quick_gelu": "quick-gelu",
    "quickgelu": "quick-gelu",
    "relu": "relu",
    "silu": "silu",
}
TIMM_POOLS = {"token": "cls", "avg": "gap", "map": "map", "max": "max"}
TIMM_HYBRIDS = {  # units of the stem and patch on its map
    ((), 8): "vit_tiny_r_s16_p8_224",
    ((2, 2, 2, 2), 1): "vit_small_r26_s32_224",
    ((3, 4, 9), 1): "vit_base_r50_s16_224",
    ((3, 4, 6, 3), 1): "vit_large_r50_s32_224",
}
PROJECTION_WEIGHT = "patch_embed.proj.weight"
UNIT_PATTERN = r"stages\.(\d{1,3})\.blocks\.(\d{1,3})\."


def recognises(found: RawCheckpoint) -> bool:
    names = {strip(name) for name in found.tensors}
    is_vit = PROJECTION_WEIGHT in names and any(name.startswith("blocks.0.attn.") for name in names)
    return is_vit or ("stem.conv.weight" in names and any(name.startswith("stages.0.blocks.0.") for name in names))


def strip(name: str) -> str:
    for wrapper in ("model.", "backbone."):
        name = name.removeprefix(wrapper)
    return name


def tidy(tensors: Tensors) -> Tensors:
    """Tensors under one set of names: wrappers removed, parts of other classes renamed, flat patch kernels reshaped."""
    new = in_one_set(tensors.renamed(strip))
    if is_original_dinov2(new):
        new = new.renamed(
            lambda name: re.sub("|".join(map(re.escape, DINOV2_NAMES)), lambda part: DINOV2_NAMES[part[0]], name)
        )
        del new["mask_token"]  # not used in the forward pass
    kernel = new.get(PROJECTION_WEIGHT)
    if kernel is not None and kernel.dim() == 2:
        side = square_grid(kernel.shape[1] // 3)
        if side is None or kernel.shape[1] % 3:
            raise CheckpointError(
                f"{PROJECTION_WEIGHT} of {tensors.path} has {kernel.shape[1]} columns; no square patches of 3 colours"
            )
        new[PROJECTION_WEIGHT] = kernel.unflatten(1, (3, *side))
    return new


DINOV2_NAMES = {"register_tokens": "reg_token", ".mlp.w12.": ".mlp.fc1.", ".mlp.w3.": ".mlp.fc2."}


def is_original_dinov2(tensors: Mapping[str, Tensor]) -> bool:
    """True for a file of DINOv2's own code: timm's names, except registers, gated MLP and mask token."""
    return {"mask_token", "pos_embed", "blocks.0.ls1.gamma"} <= {strip(name) for name in tensors}


def settings(found: RawCheckpoint, known: Implied | None) -> dict[str, Any]:
    """The arguments from config.json, model_args first, then what the architecture implies."""
    config = found.config if "architecture" in found.config else {}
    implies: dict[str, Any] = {}
    if known is not None and known.family != "bit":
        implies = {"global_pool": known.pool, "no_embed_class": known.no_embed_class, **dict(known.arguments)}
    args, pretrained = config.get("model_args"), config.get("pretrained_cfg")
    plain = {k: v for k, v in config.items() if k in ("architecture", "global_pool", "num_classes", "label_names")}
    return {
        "pretrained": pretrained if isinstance(pretrained, dict) else {},
        **implies,
        **plain,
        **(args if isinstance(args, dict) else {}),
    }


# What model_args may hold. READ_ARGUMENTS: tensors show them, or we read them. IGNORED_ARGUMENTS: no effect on a
# trained model at its own size. ONLY_VALUES: must have one of these values. Any other may change the function.
READ_ARGUMENTS = {
    "img_size", "patch_size", "in_chans", "num_classes", "embed_dim", "depth", "num_heads", "mlp_ratio",
    "qkv_bias", "qk_norm", "init_values", "class_token", "reg_tokens", "no_embed_class", "pre_norm", "fc_norm",
    "global_pool", "act_layer", "label_names", "layers", "channels", "stem_chs", "width_factor",
    "num_reg_tokens", "final_norm", "proj_bias", "scale_attn_norm", "scale_mlp_norm", "pool_include_prefix",
    "use_abs_pos_emb", "use_rot_pos_emb", "rope_type", "rope_temperature", "rope_grid_offset", "rope_grid_indexing",
    "rope_rotate_half", "ref_feat_shape", "qkv_fused", "swiglu_mlp", "swiglu_align_to", "scale_mlp", "scale_attn_inner",
    "attn_type", "use_post_norm", "use_pre_transformer_norm", "use_post_transformer_norm", "use_fc_norm",
    "attn_pool_num_heads", "attn_pool_mlp_ratio", "num_kv_heads", "attn_only_layer_scale", "use_rel_pos_bias",
    "use_shared_rel_pos_bias", "rel_pos_dim", "shared_rel_pos",
}  # fmt: skip
IGNORED_ARGUMENTS = {
    "dynamic_img_size", "dynamic_img_pad", "strict_img_size", "drop_rate", "pos_drop_rate", "patch_drop_rate",
    "proj_drop_rate", "attn_drop_rate", "drop_path_rate", "weight_init", "fix_init", "zero_init_last",
    "head_init_scale", "rope_shift_coords", "rope_jitter_coords", "rope_rescale_coords",
}  # fmt: skip
ONLY_VALUES: dict[str, tuple[Any, ...]] = {
    "pos_embed": ("learn", "none", ""),
    "norm_layer": ("rmsnorm",),
    "rel_pos_type": ("mlp",),
    "preact": (True,),
    "avg_down": (False,),
}


def check_args(found: RawCheckpoint, hints: Hints) -> None:
    """Refuse arguments that change the function, by name."""
    args = found.config.get("model_args") if "architecture" in found.config else None
    for name, value in args.items() if isinstance(args, dict) else ():
        is_given = name == "norm_layer" and value == "layernorm" and hints.norm_eps is not None
        is_held = name in ONLY_VALUES and isinstance(value, bool | str) and value in ONLY_VALUES[name]
        if not (name in READ_ARGUMENTS or name in IGNORED_ARGUMENTS or value is None or is_held or is_given):
            end = "; say norm_eps=" if name == "norm_layer" and value == "layernorm" else ""
            raise FormatError(
                f"{found.path} says {one_line(name)}={one_line(value)} in model_args, which is not built here{end}"
            )


def draft(found: RawCheckpoint, hints: Hints) -> Draft:
    assumed: list[str] = []
    known = implied(found, hints, assumed)
    tensors, facts = tidy(found.tensors), settings(found, known)
    check_args(found, hints)
    check_keys(tensors, found, known)
    if "stem.conv.weight" in tensors:
        return draft_bit(found, tensors, facts, hints, assumed)
    width, channels, p, q = tensors.shape(PROJECTION_WEIGHT, 4)
    heads, note = choose_heads(width, found, hints, told_heads(tensors, facts, known, width))
    assumed += note
    hidden = tensors.shape("blocks.0.mlp.fc2.weight", 2)[1]
    is_gated = tensors.shape("blocks.0.mlp.fc1.weight", 2)[0] == 2 * hidden
    activation, eps = choose_function(found, hints, facts, known, "swiglu" if is_gated else "gelu", assumed)
    changes: dict[str, Any] = {
        "width": width,
        "depth": tensors.depth("blocks.{}."),
        "heads": heads,
        "mlp": hidden,
        "channels": channels,
        "patch": (p, q),
        "activation": activation,
        "norm_eps": eps,
        "position_resize": "timm",
        **parts_of(tensors),
        **rotation_options(facts, found),
    }
    changes |= {"norm": "branch"} if facts.get("use_post_norm") or (known and known.norm == "branch") else {}
    changes |= choose_pool(found, tensors, facts, known, assumed)
    config = ViTConfig().change(**changes)
    config = add_stem(config, tensors)
    config = place_positions(config, tensors, found, hints, facts, assumed)
    check_told(config, found, facts, known)
    return Draft(config, preprocess(found, facts, config.image_size, assumed), tensors, labels(facts), assumed)


TOLD: dict[str, Callable[[ViTConfig], bool]] = {  # arguments that tensors show too, and that must agree
    "final_norm": lambda c: c.readout.pool_order != "no-norm",
    "use_post_transformer_norm": lambda c: c.readout.pool_order == "norm-first",
    "use_fc_norm": lambda c: c.readout.pool_order == "mean-first",
    "use_pre_transformer_norm": lambda c: c.embedding.norm_before_blocks,
    "use_abs_pos_emb": lambda c: c.embedding.positions == "learned",
    "proj_bias": lambda c: c.encoder.branch_bias,
    "swiglu_mlp": lambda c: c.encoder.activation == "swiglu",
    "scale_attn_norm": lambda c: c.encoder.inner_norm in ("attention", "both"),
    "scale_attn_inner": lambda c: c.encoder.inner_norm in ("attention", "both"),
    "scale_mlp_norm": lambda c: c.encoder.inner_norm in ("mlp", "both"),
    "scale_mlp": lambda c: c.encoder.inner_norm in ("mlp", "both"),
    "use_rel_pos_bias": lambda c: c.encoder.attention_bias == "table" and c.encoder.attention_bias_at != "shared",
    "use_shared_rel_pos_bias": lambda c: c.encoder.attention_bias_at != "every-layer",
    "shared_rel_pos": lambda c: c.encoder.attention_bias_at == "shared",
}


def check_told(config: ViTConfig, found: RawCheckpoint, facts: Facts, known: Implied | None) -> None:
    """Refuse a name or a config that contradicts its tensors."""
    mend = "mend config.json, or give the file that belongs to it"
    kind = "vit" if known is None or known.family == "distilled" else known.family
    if known is not None and class_of(config) != kind:
        raise FormatError(
            f"{found.path} has tensors of timm's class {class_of(config)}, and its name is of the class {kind}; {mend}"
        )
    for name, value in facts.items():
        is_rms = name != "norm_layer" or config.encoder.norm_kind == "rms" or value != "rmsnorm"
        if (name in TOLD and value is not None and value != TOLD[name](config)) or not is_rms:
            raise FormatError(f"{found.path} says {name}={one_line(value)}, and its tensors say otherwise; {mend}")


def parts_of(tensors: Tensors) -> dict[str, Any]:
    """Options that the names and shapes of tensors show."""
    inside = [part for part, at in (("attention", "attn"), ("mlp", "mlp")) if f"blocks.0.{at}.norm.weight" in tensors]
    return {
        "patch_bias": "patch_embed.proj.bias" in tensors,
        "patch_norm": "patch_embed.norm.weight" in tensors,
        "class_token": "cls_token" in tensors,
        "distillation_token": "dist_token" in tensors,
        "registers": tensors.shape("reg_token", 3)[1] if "reg_token" in tensors else 0,
        "norm_before_blocks": "norm_pre.weight" in tensors,
        "norm_kind": "layer" if has_any(tensors, "norm1.bias", "norm2.bias") else "rms",
        "inner_norm": "both" if len(inside) == 2 else (inside or ["none"])[0],
        "qkv_bias": "blocks.0.attn.qkv.bias" in tensors or "blocks.0.attn.q_bias" in tensors,
        "key_bias": "blocks.0.attn.q_bias" not in tensors,
        "branch_bias": has_any(tensors, "attn.proj.bias", "mlp.fc1.bias", "mlp.fc2.bias"),
        "qk_norm": "blocks.0.attn.q_norm.weight" in tensors,
        "layer_scale": 1e-5 if "blocks.0.ls1.gamma" in tensors else None,
        "representation": tensors.shape("pre_logits.fc.weight", 2)[0] if "pre_logits.fc.weight" in tensors else 0,
        "classes": tensors.shape("head.weight", 2)[0] if "head.weight" in tensors else 0,
        **bias_of(tensors),
    }


def has_any(tensors: Tensors, *names: str) -> bool:
    """True if the first block has any of these; a file that then lacks another is not whole."""
    return any(f"blocks.0.{name}" in tensors for name in names)


OFFSET_TABLE = "relative_position_bias_table"
BIAS_NAMES = {  # of a layer's own and of the shared one: Beit's tables, VisionTransformerRelPos's MLPs
    "table": (f"blocks.{{}}.attn.{OFFSET_TABLE}", f"rel_pos_bias.{OFFSET_TABLE}"),
    "mlp": ("blocks.{}.attn.rel_pos.mlp.", "shared_rel_pos.mlp."),
}


def bias_of(tensors: Tensors) -> dict[str, Any]:
    """The bias on q·k that tensors show."""
    for kind, (own, shared) in BIAS_NAMES.items():
        end = "fc1.weight" if kind == "mlp" else ""
        found = [name for name in (own.format(0) + end, shared + end) if name in tensors]
        if found:
            at = "both" if len(found) == 2 else "shared" if found[0].startswith(shared) else "every-layer"
            width = {"attention_bias_mlp": tensors.shape(found[0], 2)[0]} if kind == "mlp" else {}
            return {"attention_bias": kind, "attention_bias_at": at, **width}
    return {}


FOREIGN_TENSORS = {  # parts that tensor names reveal
    "storage_tokens": "it is DINOv3's own file; load timm's or transformers' of the same model",
    "decoder_": "a masked autoencoder's decoder is not built here; keep the encoder's tensors alone",
    "lambda_q": "differential attention is not built here; run it with timm",
    "attn.gate.": "gated attention is not built here; run it with timm",
}
UNTOLD = {  # parts whose function no tensor shows: a name must state it
    "freqs": "rotary positions of learned frequencies",
    "q_bias": "EVA's attention, with which positions may be rotary",
    "rel_pos.": "biases by offset, with which norms may stand at the branch's end",
}


def check_keys(tensors: Tensors, found: RawCheckpoint, known: Implied | None) -> None:
    """Refuse a file whose tensors contradict its name, or do not make a ViT that we build."""
    has_tables = any(OFFSET_TABLE in name for name in tensors)
    for name in tensors:
        if why := next((why for word, why in FOREIGN_TENSORS.items() if word in name), None):
            raise FormatError(f"{found.path} has the tensor {name}: {why}")
        why = next((why for word, why in UNTOLD.items() if word in name), None)
        if why and known is None and not has_tables:
            raise FormatError(
                f"{found.path} has the tensor {name}: {why}; say which, architecture= (such as "
                f"eva02_base_patch14_224, vit_small_patch16_rope_mixed_224 or vit_relpos_base_patch16_224)"
            )
    is_bit = "stem.conv.weight" in tensors
    if known is not None and is_bit != (known.family == "bit"):
        here, there = ("BiT", "ViT") if is_bit else ("ViT", "BiT")
        raise FormatError(f"{found.path} has the tensors of a {here} and the name of a {there}; mend config.json")
    if known is None and PROJECTION_WEIGHT in tensors and "pos_embed" not in tensors and not has_tables:
        raise FormatError(
            f"{found.path} has no pos_embed: its positions may be rotary, which leave no tensor; say architecture= "
            f"(such as vit_small_patch16_dinov3, or vit_base_patch16_224 if it has none at all)"
        )


def told_heads(tensors: Tensors, facts: Facts, known: Implied | None, width: int) -> Any:
    """Heads from a tensor's shape if one shows them, else as stated."""
    for name in BIAS_NAMES["table"]:
        if name.format(0) in tensors:
            return tensors.shape(name.format(0), 2)[1]
    if "rope.freqs" in tensors:
        return tensors.shape("rope.freqs", 4)[2]
    if "blocks.0.attn.q_norm.weight" in tensors:
        return width // tensors.shape("blocks.0.attn.q_norm.weight", 1)[0]
    return stated_heads(facts, known, width)


def stated_heads(facts: Facts, known: Implied | None, width: int) -> Any:
    """Heads from model_args, else from the architecture's name, if the width is the name's or model_args gives it."""
    if known is None or "num_heads" in facts:
        return facts.get("num_heads")
    return known.heads if width in (known.width, facts.get("embed_dim")) else None


def choose_function(
    found: RawCheckpoint, hints: Hints, facts: Facts, known: Implied | None, default: str, assumed: list[str]
) -> tuple[str, float]:
    """Activation and eps, from the argument, the config, the architecture or timm's convention, in this order."""
    stated = facts.get("act_layer")
    if hints.activation is None and stated is not None and not (isinstance(stated, str) and stated in TIMM_ACTIVATIONS):
        raise FormatError(
            f"{found.path} uses activation {one_line(stated)!r}, which is not built here; run another with activation="
        )
    if known is None:
        assumed += [] if hints.activation or stated else [f"activation {default}: timm's convention"]
        assumed += ["norm_eps 1e-6: timm's convention"] if hints.norm_eps is None else []
    usual = Implied("vit", activation=default) if known is None else known
    if "swiglu" in (default, usual.activation) and default != usual.activation:  # a gate shows in the tensors
        usual = dataclasses.replace(usual, activation=default)
    activation = hints.activation or (TIMM_ACTIVATIONS[stated] if stated else usual.activation)
    return activation, usual.norm_eps if hints.norm_eps is None else hints.norm_eps


def choose_pool(
    found: RawCheckpoint, tensors: Tensors, facts: Facts, known: Implied | None, assumed: list[str]
) -> dict[str, Any]:
    """The pool, from the tensors (attn_pool, fc_norm, a second head), the config or timm's default, in this order."""
    has_norm = "norm.weight" in tensors or "norm.bias" in tensors
    order = "mean-first" if "fc_norm.weight" in tensors else "norm-first" if has_norm else "no-norm"
    if "head_dist.weight" in tensors:
        return {"pool": "cls-and-distillation", "distillation_head": True}
    if "dist_token" in tensors and (known is None or known.family == "distilled"):
        return {"pool": "cls-distillation-mean"}
    reads_all = facts.get("pool_include_prefix") or (known is not None and known.pool_tokens == "all")
    tokens = {"pool_tokens": "all"} if reads_all else {}
    if "attn_pool.latent" in tensors:
        heads = facts.get("attn_pool_num_heads") or (known.pool_heads if known else 0)
        hidden = tensors.shape("attn_pool.mlp.fc1.weight", 2)[0]
        is_own = hidden != tensors.shape("blocks.0.mlp.fc2.weight", 2)[1]
        own = {"pool_heads": heads, "pool_mlp": hidden if is_own else 0}
        return {"pool": "map", "pool_order": order, **tokens, **own}
    default = "gap" if order == "mean-first" or "cls_token" not in tensors else "cls"
    stated = facts.get("global_pool")
    if stated == "":
        assumed.append(f"pool {default}: the config says none, and a model here has one")
    if not stated:
        return {"pool": default, "pool_order": order, **tokens}
    if not isinstance(stated, str) or stated not in TIMM_POOLS or stated == "map":
        why = "there is no attn_pool in the file" if stated == "map" else f"it is not one of {', '.join(TIMM_POOLS)}"
        raise FormatError(f"{found.path} says global_pool {one_line(stated)!r}, and {why}; mend config.json")
    return {"pool": TIMM_POOLS[stated], "pool_order": order, **(tokens if stated != "token" else {})}


def add_stem(config: ViTConfig, tensors: Tensors) -> ViTConfig:
    at = "patch_embed.backbone."
    root = next((n for n in (f"{at}stem.conv.weight", f"{at}conv.weight") if n in tensors), None)
    if root is None:
        return config
    root_width, channels, _, _ = tensors.shape(root, 4)
    units = tensors.units(re.escape(at) + UNIT_PATTERN, 0)
    stem = {**vars(TIMM_HYBRID), "units": units, "resnet_width": root_width / 64}
    return config.change(stem="resnet", channels=channels, **stem)


def stated_image_size(facts: Facts) -> Any:
    """The config's image size, the network's first: preprocessing may use another."""
    stated = facts.get("img_size")
    of_input = facts["pretrained"].get("input_size")
    return of_input[-2:] if stated is None and isinstance(of_input, list) else stated


def place_positions(
    config: ViTConfig, tensors: Tensors, found: RawCheckpoint, hints: Hints, facts: Facts, assumed: list[str]
) -> ViTConfig:
    """The table's grid, and whether it covers the tokens in front (timm's no_embed_class)."""
    stated = stated_image_size(facts)
    if "pos_embed" not in tensors:
        size = size_of_table(config, tensors, found, hints, stated, assumed)
        if size is None:
            size = hints.image_size or ((224, 224) if stated is None else stated_size(stated, found))
        return config.change(positions="none", image_size=size)
    rows = tensors.shape("pos_embed", 3)[1]
    grid_of = stem_of(config).grid if config.embedding.stem == "resnet" else None
    leaves_out = facts.get("no_embed_class") if config.prefix else False
    covers: tuple[str, ...] = ("all", "patches")
    if leaves_out in (True, False):
        covers = ("patches",) if leaves_out else ("all",)
    if is_original_dinov2(found.tensors):
        covers = ("class",)
    drafts = [config.change(positions_cover=cover) for cover in covers]
    cell, (h, w) = stem_cell(config), hints.image_size or (0, 0)
    asked = math.prod(grid_of((h, w)) if grid_of and h else (h // cell[0], w // cell[1]))  # places; 0: not known
    fitting = [draft for draft in drafts if asked and asked == rows - draft.covered]
    square = [draft for draft in drafts if square_grid(rows - draft.covered)]
    draft = (fitting or square or drafts)[0]
    size = choose_image_size(rows - draft.covered, cell, found, hints, stated, grid_of, assumed)
    return draft.change(image_size=size)


def size_of_table(
    config: ViTConfig, tensors: Tensors, found: RawCheckpoint, hints: Hints, stated: Any, assumed: list[str]
) -> Size | None:
    """The image size behind a table of (2h − 1)(2w − 1) offsets: the config's, the user's if it fits, or a square."""
    name = next((name.format(0) for name in BIAS_NAMES["table"] if name.format(0) in tensors), None)
    if name is None:
        return None
    patch, offsets = config.embedding.patch, tensors.shape(name, 2)[0] - (CLASS_ROWS if config.prefix else 0)
    given = [] if hints.image_size is None else [hints.image_size]
    for h, w in [*([] if stated is None else [stated_size(stated, found)]), *given]:
        if (2 * (h // patch[0]) - 1) * (2 * (w // patch[1]) - 1) == offsets:
            return h, w
    side = math.isqrt(max(offsets, 0))
    if side * side != offsets or side % 2 == 0:
        raise CheckpointError(
            f"{found.path} has a table of {offsets} offsets, which make no square; "
            f"say image_size=(rows, columns) of the images it was made for"
        )
    rows = (side + 1) // 2
    if stated is not None:
        assumed.append(f"image size {by((rows * patch[0], rows * patch[1]))}: the config's does not fit its table")
    return rows * patch[0], rows * patch[1]


def preprocess(
    found: RawCheckpoint, facts: Facts, size: Size, assumed: list[str], *, crop: float = 0.9, how: str = "bicubic"
) -> Preprocess:
    """From pretrained_cfg: short side to ⌊size / crop_pct⌋, centre crop; else timm's for Google's weights."""
    cfg = facts["pretrained"]
    if not cfg:
        assumed.append(f"preprocessing: timm's for Google's weights (crop_pct {crop}, {how}, -1 to 1)")
    share = cfg.get("crop_pct", crop)
    if type(share) not in (int, float) or not 0.01 < share < 100:
        raise CheckpointError(
            f"the config of {found.path} says crop_pct {one_line(share)}; give a share of the image such as 0.9"
        )
    interpolation = cfg.get("interpolation", how)
    common: dict[str, Any] = {
        "size": size,
        "interpolation": "bicubic" if interpolation == "random" else interpolation,
        "antialias": True,
        "mean": cfg.get("mean", HALF_RGB),
        "std": cfg.get("std", HALF_RGB),
        "source": "timm" if cfg else "timm (assumed)",
    }
    side, mode = math.floor(min(size) / share), cfg.get("crop_mode") or "center"
    if mode not in ("center", "squash"):
        assumed.append(f"crop_mode center: {one_line(mode)} is not built here")
    if mode == "squash" and share == 1:
        return stated_preprocess(found, fit="squash", **common)
    return stated_preprocess(found, fit="squash-crop" if mode == "squash" else "crop", short_side=side, **common)


def crop_share(size: int, side: int) -> float:
    """The crop_pct for which ⌊size / crop_pct⌋ is `side` again, even in floating point."""
    share = size / side
    while math.floor(size / share) < side:
        share = math.nextafter(share, 0)
    return share


def labels(facts: Facts) -> tuple[str, ...] | None:
    names = facts.get("label_names")
    return tuple(map(str, names)) if isinstance(names, list) and names else None


def rules(config: Config) -> list[Rule]:
    if isinstance(config, BiTConfig):
        return bit_rules(config)
    b, e, r = config.embedding, config.encoder, config.readout
    stem = stem_of(config)
    kernel = patch_kernel(stem.channels, stem.patch, theirs="torch")
    out = pair("embedding.projection", "patch_embed.proj", weight=kernel)[: 2 if b.patch_bias else 1]
    out += stem_rules(config) if b.stem == "resnet" else []
    out += [rule("embedding.class_token", "cls_token", move=LEADING_AXIS)] if b.class_token else []
    out += [rule("embedding.distillation_token", "dist_token", move=LEADING_AXIS)] if b.distillation_token else []
    out += [rule("embedding.registers", "reg_token", move=LEADING_AXIS)] if b.registers else []
    out += [rule("embedding.positions.table", "pos_embed", move=LEADING_AXIS)] if b.positions == "learned" else []
    out += norm_rules(config, "embedding.patch_norm", "patch_embed.norm") if b.patch_norm else []
    out += norm_rules(config, "embedding.norm", "norm_pre") if b.norm_before_blocks else []
    for i in range(e.depth):
        out += block_rules(config, f"blocks.{i}")
    out += bias_rules(config) if e.attention_bias != "none" else []
    out += [rule("places.rotation.frequencies", "rope.freqs")] if config.rotation.rotary == "mixed" else []
    if r.pool_order != "no-norm":
        is_first = r.pool_order == "norm-first"
        out += norm_rules(config, *(("norm", "norm") if is_first else ("pool.norm", "fc_norm")))
    out += map_rules(config, "pool.pool" if r.pool_order == "mean-first" else "pool") if r.pool == "map" else []
    out += pair("representation.linear", "pre_logits.fc") if r.representation else []
    if r.distillation_head:
        out += pair("head.class_head", "head") + pair("head.distillation_head", "head_dist")
    elif r.classes:
        out += pair("head", "head")
    return out


def norm_rules(config: ViTConfig, ours: str, theirs: str) -> list[Rule]:
    """A norm's gain, and its bias if it has one."""
    return pair(ours, theirs)[: 1 if config.encoder.norm_kind == "rms" else 2]


def block_rules(config: ViTConfig, at: str) -> list[Rule]:
    e = config.encoder
    is_at_end = e.norm == "branch"
    out: list[Rule] = []
    for ours, theirs in (("attention", "norm1"), ("mlp", "norm2")):
        out += norm_rules(config, f"{at}.{ours}.end.norm" if is_at_end else f"{at}.{theirs}", f"{at}.{theirs}")
    out += pair(f"{at}.attention.qkv", f"{at}.attn.qkv")[: 2 if e.qkv_bias and e.key_bias else 1]
    if e.qkv_bias and not e.key_bias:
        out.append(rule(f"{at}.attention.qkv.bias", f"{at}.attn.q_bias", f"{at}.attn.v_bias", move=STACKED_PAIR))
    maps = {"attention.merge": "attn.proj", "mlp.expand": "mlp.fc1", "mlp.contract": "mlp.fc2"}
    for ours, theirs in maps.items():
        out += pair(f"{at}.{ours}", f"{at}.{theirs}")[: 2 if e.branch_bias else 1]
    norms = {"query_norm": "q_norm", "key_norm": "k_norm"} if e.qk_norm else {}
    norms |= {"norm": "norm"} if e.inner_norm in ("attention", "both") else {}
    for ours, theirs in norms.items():
        out += norm_rules(config, f"{at}.attention.{ours}", f"{at}.attn.{theirs}")
    out += norm_rules(config, f"{at}.mlp.norm", f"{at}.mlp.norm") if e.inner_norm in ("mlp", "both") else []
    if e.layer_scale is not None:
        out.append(rule(f"{at}.attention.end.scale.gain", f"{at}.ls1.gamma"))
        out.append(rule(f"{at}.mlp.end.scale.gain", f"{at}.ls2.gamma"))
    return out


def bias_rules(config: ViTConfig) -> list[Rule]:
    e = config.encoder
    own, shared = BIAS_NAMES[e.attention_bias]
    places = {} if e.attention_bias_at == "every-layer" else {"shared.0": shared}
    if e.attention_bias_at != "shared":
        places |= {f"layers.{i}": own.format(i) for i in range(e.depth)}
    if e.attention_bias == "table":
        return [rule(f"places.bias.{ours}.table", theirs) for ours, theirs in places.items()]
    maps = {"expand": "fc1", "contract": "fc2"}
    return [
        one
        for ours, theirs in places.items()
        for mine, its in maps.items()
        for one in pair(f"places.bias.{ours}.{mine}", f"{theirs}{its}")
    ]


def map_rules(config: ViTConfig, ours: str) -> list[Rule]:
    names = {"query": "q", "key_value": "kv", "merge": "proj", "expand": "mlp.fc1", "contract": "mlp.fc2"}
    probe = rule(f"{ours}.probe", "attn_pool.latent", move=LEADING_AXIS)
    maps = [one for mine, theirs in names.items() for one in pair(f"{ours}.{mine}", f"attn_pool.{theirs}")]
    return [probe, *maps, *norm_rules(config, f"{ours}.norm", "attn_pool.norm")]


def stem_rules(config: ViTConfig) -> list[Rule]:
    at = "patch_embed.backbone"
    root = f"{at}.stem" if config.resnet.units else at
    out = [rule("stem.root.conv.weight", f"{root}.conv.weight"), *pair("stem.root.norm", f"{root}.norm")]
    for s, units in enumerate(config.resnet.units):
        out += stage_rules(f"stem.stages.{s}", f"{at}.stages.{s}", units)
        out += pair(f"stem.stages.{s}.units.0.shortcut_norm", f"{at}.stages.{s}.blocks.0.downsample.norm")
    return out


def stage_rules(ours: str, theirs: str, units: int) -> list[Rule]:
    """The units of one ResNet stage; the first has a shortcut."""
    out = [rule(f"{ours}.units.0.shortcut.weight", f"{theirs}.blocks.0.downsample.conv.weight")]
    for u in range(units):
        for k in (1, 2, 3):
            out.append(rule(f"{ours}.units.{u}.conv{k}.weight", f"{theirs}.blocks.{u}.conv{k}.weight"))
            out += pair(f"{ours}.units.{u}.norm{k}", f"{theirs}.blocks.{u}.norm{k}")
    return out


def draft_bit(found: RawCheckpoint, tensors: Tensors, facts: Facts, hints: Hints, assumed: list[str]) -> Draft:
    root, channels, _, _ = tensors.shape("stem.conv.weight", 4)
    units = tensors.units(UNIT_PATTERN, 0)
    if facts.get("global_pool") not in (None, "", "avg"):
        raise FormatError(f"{found.path} says global_pool {one_line(facts['global_pool'])!r}, and a BiT here has avg")
    stated = stated_image_size(facts)
    size = hints.image_size or ((224, 224) if stated is None else stated_size(stated, found))
    resnet = ResNetConfig(units=units, resnet_width=root / 64, standardise_eps=1e-8)
    classes = tensors.shape("head.fc.weight", 4)[0] if "head.fc.weight" in tensors else 0
    config = BiTConfig(channels=channels, resnet=resnet).change(image_size=size, classes=classes)
    rule = preprocess(found, facts, config.image_size, assumed, crop=0.875, how="bilinear")
    return Draft(config, rule, tensors, labels(facts), assumed)


def bit_rules(config: BiTConfig) -> list[Rule]:
    out = [rule("root.conv.weight", "stem.conv.weight"), *pair("last_norm", "norm")]
    for s, units in enumerate(config.resnet.units):
        out += stage_rules(f"stages.{s}", f"stages.{s}", units)
    return out + (pair("head", "head.fc", weight=ONE_BY_ONE_CONV) if config.readout.classes else [])


HELD: dict[
    str, dict[str, tuple[Any, ...] | None]
] = {  # what each class of timm's holds beyond the plain ViT; None is any value
    "vit": {
        "stem": ("patch", "resnet"),
        "positions": ("learned", "none"),
        "distillation_token": None,
        "norm": ("pre", "branch"),
        "norm_kind": ("layer", "rms"),
        "norm_eps": (1e-6, 1e-5),
        "activation": ("gelu", "gelu-tanh", "quick-gelu", "silu", "relu", "swiglu"),
        "inner_norm": None,
        "branch_bias": None,
        "qk_norm": None,
        "pool": ("cls", "gap", "map", "max", "cls-and-distillation", "cls-distillation-mean"),
        "pool_order": None,
        "pool_tokens": None,
        "distillation_head": None,
    },
    "eva": {
        "positions": ("learned", "none"),
        "norm": ("pre", "branch"),
        "norm_kind": ("layer", "rms"),
        "norm_eps": (1e-6, 1e-5),
        "activation": ("gelu", "swiglu"),
        "inner_norm": None,
        "key_bias": None,
        "qk_norm": None,
        "rotary": None,
        "pool": ("cls", "gap", "map", "max"),
        "pool_order": None,
        "pool_tokens": None,
        "pool_heads": None,
        "pool_mlp": None,
    },
    "beit": {
        "positions": ("learned", "none"),
        "activation": ("gelu", "swiglu"),
        "inner_norm": ("none", "mlp"),
        "key_bias": None,
        "attention_bias": ("table",),
        "pool": ("cls", "gap"),
        "pool_order": None,
    },
    "relpos": {
        "positions": ("none",),
        "norm": ("pre", "branch"),
        "activation": ("gelu", "gelu-tanh", "relu"),
        "qk_norm": None,
        "attention_bias": ("mlp",),
        "attention_bias_at": ("every-layer", "shared"),
        "pool": ("cls", "gap"),
        "pool_order": ("norm-first", "mean-first"),
    },
}


def refuses(config: Config) -> list[Difference]:
    if isinstance(config, BiTConfig):
        return bit_differences(config, root_pad="zeros", standardise_eps=1e-8)
    kind, b = class_of(config), config.embedding
    covers = ("all", "patches") if kind in ("vit", "eva") else ("all",)
    everywhere: dict[str, Any] = {
        "patch_bias": (not b.norm_before_blocks,),
        "positions_cover": covers if b.positions == "learned" else None,
        "class_token": None if kind != "beit" else (True,),
        "registers": None if kind in ("vit", "eva") else (0,),
        "norm_before_blocks": None if kind in ("vit", "eva") else (False,),
        "qkv_bias": None,
        "layer_scale": None,
    }
    return [*vit_differences(config, **everywhere, **HELD[kind]), *combinations(config, kind)]


def combinations(config: ViTConfig, kind: str) -> list[Difference]:
    """Parts that a class of timm's holds, but not together."""
    r, b, e, out = config.readout, config.embedding, config.encoder, list[Difference]()
    if b.distillation_token and not (r.distillation_head or (r.pool == "cls-distillation-mean" and not r.classes)):
        out.append(Difference("distillation_token", True, f"with pool={r.pool}"))
    if kind == "vit" and e.activation == "swiglu" and (e.layer_scale is None or e.norm_eps != 1e-6):
        out.append(Difference("activation", "swiglu", "without layer_scale, or with another norm_eps than 1e-6"))
    if kind == "vit" and (e.norm == "branch" or e.norm_kind == "rms" or b.stem == "resnet") and e.norm_eps != 1e-6:
        out.append(Difference("norm_eps", e.norm_eps, "with these parts"))
    if kind == "vit" and sum([e.norm == "branch", e.activation == "swiglu", b.stem == "resnet"]) > 1:
        out.append(Difference("norm, activation and stem", "", "of names that timm has no common one for"))
    if e.norm == "branch" and e.layer_scale is not None:
        out.append(Difference("norm", "branch", "with layer_scale"))
    if kind == "eva" and e.norm_kind == "rms" and (e.norm_eps, e.norm, e.layer_scale is None) != (1e-6, "pre", False):
        out.append(Difference("norm_kind", "rms", "without layer_scale, or with other norms than Sapiens2's"))
    if kind == "eva" and config.rotation.rotary == "axial":
        is_image, is_half = config.rotation.rotary_places == "image", config.rotation.rotary_pairs == "halves"
        if is_image != is_half or (is_image and config.rotation.rotary_first == "columns"):
            out.append(Difference("rotary_pairs", config.rotation.rotary_pairs, "with these places"))
        is_free = config.rotation.rotary_grid is None and not is_image
        if is_free and e.norm_eps == 1e-5 and e.layer_scale is None:
            out.append(Difference("norm_eps", 1e-5, "without rotary_grid and layer_scale"))
    if config.rotation.rotary == "mixed" and (
        config.rotation.rotary_pairs, config.rotation.rotary_start, config.rotation.rotary_grid,
        config.rotation.rotary_places,
    ) != ("neighbours", 0.0, None, "patches"):  # fmt: skip
        out.append(Difference("rotary", "mixed", "with other places or pairs than timm's"))
    if kind == "eva" and r.pool == "map" and r.pool_tokens != "all" and config.prefix:
        out.append(Difference("pool", "map", "of the patches alone"))
    if kind == "eva" and r.pool != "map" and r.pool_tokens == "all":
        out.append(Difference("pool_tokens", "all", f"with pool={r.pool}"))
    if kind == "beit" and (r.pool == "gap") != (r.pool_order == "mean-first"):
        out.append(Difference("pool_order", r.pool_order, f"with pool={r.pool}"))
    if kind == "vit" and r.pool_order == "mean-first" and r.pool not in ("gap", "max"):
        out.append(Difference("pool_order", "mean-first", f"with pool={r.pool}"))
    if b.patch[0] != b.patch[1]:
        out.append(Difference("patch", by(b.patch)))
    if b.stem == "resnet":
        stem = {n: v for n, v in vars(TIMM_HYBRID).items() if n not in ("units", "resnet_width")}
        out += resnet_differences(config, stem)
    return out


def to_hold(config: Config, state: Mapping[str, Tensor]) -> tuple[Config, Mapping[str, Tensor]]:
    """Here positions cover all tokens or only patches; adds DINOv2's class row to the class token."""
    between = isinstance(config, ViTConfig) and config.covered not in (0, config.prefix)
    return cover(config, state, "patches") if between else (config, state)


def write(model: Model, tensors: Mapping[str, Tensor], path: Path) -> list[Path]:
    if isinstance(model.config, ViTConfig):
        tensors = as_class(model.config, tensors)
    return write_hub_folder(path, tensors, config=timm_config(model))


def timm_config(model: Model) -> dict[str, Any]:
    config, pre = model.config, model.preprocess
    pretrained = {
        "input_size": [config.channels, *config.image_size],
        "interpolation": pre.interpolation,
        "crop_pct": 1.0 if pre.short_side is None else crop_share(min(pre.size), pre.short_side),
        "crop_mode": "center" if pre.fit == "crop" else "squash",
        "mean": list(pre.mean),
        "std": list(pre.std),
        "num_classes": config.readout.classes,
        "first_conv": "patch_embed.proj",
        "classifier": "head",
    }
    names = {"label_names": list(model.labels)} if model.labels else {}
    if isinstance(config, BiTConfig):
        depth = next((name for name, units in BIT_UNITS.items() if units == config.resnet.units), None)
        name = f"resnetv2_{depth}x{config.resnet.resnet_width:g}_bit"
        name = name if name in runs() else BIT_BY_HAND
        pretrained |= {"first_conv": "stem.conv", "classifier": "head.fc"}
        return {"architecture": name, "num_classes": config.readout.classes, **names, "pretrained_cfg": pretrained}
    kind, pool = class_of(config), {ours: theirs for theirs, ours in TIMM_POOLS.items()}.get(config.readout.pool)
    return {
        "architecture": base_name(config),
        "num_classes": config.readout.classes,
        "num_features": config.encoder.width,
        "global_pool": pool or "token",
        **names,
        "model_args": {**common_arguments(config, pool or "token"), **OWN_ARGUMENTS[kind](config)},
        "pretrained_cfg": pretrained,
    }


def base_name(config: ViTConfig) -> str:
    """A name whose norms and blocks are the model's; model_args hold the rest."""
    b, e, kind = config.embedding, config.encoder, class_of(config)
    if kind == "eva":
        if e.norm_kind == "rms":
            return "vit_base_patch16_sapiens2"
        with_gain = "vit_small_patch16_dinov3" if e.layer_scale is not None else "vit_pe_core_base_patch16_224"
        return with_gain if e.norm_eps == 1e-5 else "eva_giant_patch14_224"
    if kind == "beit":
        return "beit_base_patch16_224"
    if kind == "relpos":
        return "vit_relpos_small_patch16_rpn_224" if e.norm == "branch" else "vit_relpos_small_patch16_224"
    if b.distillation_token:
        return "deit_base_distilled_patch16_224"
    if e.norm == "branch":
        return "vit_base_patch16_rpn_224"
    if e.activation == "swiglu":
        return "vit_giant_patch14_dinov2"
    if b.stem == "resnet":
        return TIMM_HYBRIDS.get((config.resnet.units, b.patch[0]), HYBRID_BY_HAND)
    return "vit_base_patch16_clip_224" if e.norm_eps == 1e-5 else "vit_base_patch16_224"


def common_arguments(config: ViTConfig, pool: str) -> dict[str, Any]:
    b, e = config.embedding, config.encoder
    args = {
        "img_size": list(config.image_size),
        "patch_size": b.patch[0],
        "in_chans": config.channels,
        "embed_dim": e.width,
        "depth": e.depth,
        "num_heads": e.heads,
        "mlp_ratio": hidden_ratio(e.width, e.mlp),
        "qkv_bias": e.qkv_bias,
        "global_pool": pool,
    }
    return args | ({"init_values": e.layer_scale} if e.layer_scale is not None else {})


def vit_arguments(config: ViTConfig) -> dict[str, Any]:
    b, e, r = config.embedding, config.encoder, config.readout
    args: dict[str, Any] = {
        "qk_norm": e.qk_norm,
        "class_token": b.class_token,
        "reg_tokens": b.registers,
        "no_embed_class": b.positions_cover == "patches" and config.prefix > 0,
        "pre_norm": b.norm_before_blocks,
    }
    if e.activation == "swiglu":
        args["mlp_ratio"] = hidden_ratio(e.width, 2 * e.mlp)
    if r.pool in ("gap", "max"):
        args["fc_norm"] = r.pool_order == "mean-first"
    if e.activation in ("gelu-tanh", "quick-gelu", "relu", "silu"):
        args["act_layer"] = e.activation.replace("-", "_")
    plain = {
        "pos_embed": ("none", b.positions == "none"),
        "norm_layer": ("rmsnorm", e.norm_kind == "rms"),
        "scale_attn_norm": (True, e.inner_norm in ("attention", "both")),
        "scale_mlp_norm": (True, e.inner_norm in ("mlp", "both")),
        "proj_bias": (False, not e.branch_bias),
        "pool_include_prefix": (True, r.pool_tokens == "all"),
        "final_norm": (False, r.pool_order == "no-norm"),
    }
    return args | {name: value for name, (value, is_needed) in plain.items() if is_needed}


def eva_arguments(config: ViTConfig) -> dict[str, Any]:
    b, e, r = config.embedding, config.encoder, config.readout
    return {
        "qkv_fused": True,
        "qk_norm": e.qk_norm,
        "attn_type": "rope" if e.key_bias or not e.qkv_bias else "eva",
        "swiglu_mlp": e.activation == "swiglu",
        "swiglu_align_to": 0,
        "scale_mlp": e.inner_norm in ("mlp", "both"),
        "scale_attn_inner": e.inner_norm in ("attention", "both"),
        "class_token": b.class_token,
        "num_reg_tokens": b.registers,
        "no_embed_class": b.positions_cover == "patches" and config.prefix > 0,
        "use_abs_pos_emb": b.positions == "learned",
        "use_pre_transformer_norm": b.norm_before_blocks,
        "use_post_transformer_norm": r.pool_order == "norm-first",
        "use_fc_norm": r.pool_order == "mean-first",
        "use_post_norm": e.norm == "branch",
        "attn_pool_num_heads": r.pool_heads or e.heads,
        "attn_pool_mlp_ratio": hidden_ratio(e.width, r.pool_mlp or e.mlp),
        "dynamic_img_size": False,
        **({"num_kv_heads": e.heads, "attn_only_layer_scale": False} if e.norm_kind == "rms" else {}),
        **rotation_arguments(config),
    }


def beit_arguments(config: ViTConfig) -> dict[str, Any]:
    e = config.encoder
    return {
        "swiglu_mlp": e.activation == "swiglu",
        "scale_mlp": e.inner_norm == "mlp",
        "init_values": e.layer_scale or 0.0,  # timm drops an argument of None, and 0 is no gain
        "use_abs_pos_emb": config.embedding.positions == "learned",
        "use_rel_pos_bias": e.attention_bias_at != "shared",
        "use_shared_rel_pos_bias": e.attention_bias_at != "every-layer",
    }


def relpos_arguments(config: ViTConfig) -> dict[str, Any]:
    e = config.encoder
    args: dict[str, Any] = {
        "qk_norm": e.qk_norm,
        "init_values": e.layer_scale or 0.0,
        "class_token": config.embedding.class_token,
        "fc_norm": config.readout.pool_order == "mean-first",
        "rel_pos_dim": e.attention_bias_mlp,
        "shared_rel_pos": e.attention_bias_at == "shared",
    }
    if e.activation in ("gelu-tanh", "relu"):
        args["act_layer"] = e.activation.replace("-", "_")
    return args


OWN_ARGUMENTS = {"vit": vit_arguments, "eva": eva_arguments, "beit": beit_arguments, "relpos": relpos_arguments}


TIMM_FORMAT = Format(
    name="timm",
    holds="ViT, DeiT, BEiT, EVA, DINOv3, PE, hybrid and BiT of timm, a folder with config.json",
    recognises=recognises,
    draft=draft,
    rules=rules,
    refuses=refuses,
    to_hold=to_hold,
    write=write,
    is_folder=True,
    names_architectures=True,
)
