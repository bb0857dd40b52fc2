"""timm's ViT in its many forms, distilled DeiT, hybrid and BiT: a folder with config.json, or the file alone."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from vitreous.errors import CheckpointError, FormatError
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
from vitreous.weights.layouts import LEADING_AXIS, ONE_BY_ONE_CONV, Rule, pair, patch_kernel, rule
from vitreous.weights.tensor_files import RawCheckpoint, Tensors, by
from vitreous.weights.timm_names import BIT_BY_HAND, HYBRID_BY_HAND, Implied, implied, runs
from vitreous.words import one_line

TIMM_HYBRID = ResNetConfig(root_pad="infinity", standardise_eps=1e-8, group_norm_eps=1e-5)
TIMM_ACTIVATIONS = {"gelu": "gelu", "gelu_tanh": "gelu-tanh", "relu": "relu"}
TIMM_POOLS = {"token": "cls", "avg": "gap", "map": "map", "max": "max"}
TIMM_HYBRIDS = {  # units of the stem and patch on its map
    ((), 8): "vit_tiny_r_s16_p8_224",
    ((2, 2, 2, 2), 1): "vit_small_r26_s32_224",
    ((3, 4, 9), 1): "vit_base_r50_s16_224",
    ((3, 4, 6, 3), 1): "vit_large_r50_s32_224",
}
PROJECTION_WEIGHT = "patch_embed.proj.weight"
Facts = Mapping[str, Any]  # what a config tells
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
    """Tensors under current names: wrappers removed, DeiT-3 and DINOv2 parts renamed, flat patch kernels reshaped."""
    new = tensors.renamed(lambda name: strip(name).replace(".gamma_1", ".ls1.gamma").replace(".gamma_2", ".ls2.gamma"))
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
        implies = {"global_pool": known.pool, "no_embed_class": known.no_embed_class}
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
}  # fmt: skip
IGNORED_ARGUMENTS = {
    "dynamic_img_size", "dynamic_img_pad", "strict_img_size", "drop_rate", "pos_drop_rate", "patch_drop_rate",
    "proj_drop_rate", "attn_drop_rate", "drop_path_rate", "weight_init", "fix_init", "zero_init_last",
}  # fmt: skip
ONLY_VALUES: dict[str, tuple[Any, ...]] = {
    "pos_embed": ("learn", "none", ""),
    "final_norm": (True,),
    "proj_bias": (True,),
    "scale_attn_norm": (False,),
    "scale_mlp_norm": (False,),
    "pool_include_prefix": (False,),
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
    check_keys(tensors, found, hints, known)
    if "stem.conv.weight" in tensors:
        return draft_bit(found, tensors, facts, hints, assumed)
    width, channels, p, q = tensors.shape(PROJECTION_WEIGHT, 4)
    q_norm = "blocks.0.attn.q_norm.weight"
    told = width // tensors.shape(q_norm, 1)[0] if q_norm in tensors else stated_heads(facts, known, width)
    heads, note = choose_heads(width, found, hints, told)
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
        "patch_bias": "patch_embed.proj.bias" in tensors,
        "class_token": "cls_token" in tensors,
        "distillation_token": "dist_token" in tensors,
        "registers": tensors.shape("reg_token", 3)[1] if "reg_token" in tensors else 0,
        "norm_before_blocks": "norm_pre.weight" in tensors,
        "qkv_bias": "blocks.0.attn.qkv.bias" in tensors,
        "qk_norm": q_norm in tensors,
        "layer_scale": 1e-5 if "blocks.0.ls1.gamma" in tensors else None,
        "position_resize": "timm",
        "representation": tensors.shape("pre_logits.fc.weight", 2)[0] if "pre_logits.fc.weight" in tensors else 0,
        "classes": tensors.shape("head.weight", 2)[0] if "head.weight" in tensors else 0,
    }
    changes |= choose_pool(found, tensors, facts, assumed)
    config = ViTConfig().change(**changes)
    config = add_stem(config, tensors)
    config = place_positions(config, tensors, found, hints, facts, assumed)
    return Draft(config, preprocess(found, facts, config.image_size, assumed), tensors, labels(facts), assumed)


FOREIGN_TENSORS = {  # parts that tensor names reveal in a file without a config
    "rope": "rotary positions are",
    "freqs": "rotary positions are",
    "relative_position": "relative position biases are",
    "rel_pos": "relative position biases are",
    "storage_tokens": "DINOv3 is",
    "q_bias": "attention with a bias for queries and values alone is",
    "decoder_": "a masked autoencoder's decoder is",
    "lambda_q": "differential attention is",
}


def check_keys(tensors: Tensors, found: RawCheckpoint, hints: Hints, known: Implied | None) -> None:
    """Refuse a file whose tensors contradict its name, or do not make a plain ViT."""
    for name in tensors:
        if why := next((why for word, why in FOREIGN_TENSORS.items() if word in name), None):
            raise FormatError(f"{found.path} has the tensor {name}: {why} not built here; run it with its own code")
    is_bit = "stem.conv.weight" in tensors
    if known is not None and is_bit != (known.family == "bit"):
        here, there = ("BiT", "ViT") if is_bit else ("ViT", "BiT")
        raise FormatError(f"{found.path} has the tensors of a {here} and the name of a {there}; mend config.json")
    takes_the_blame = hints.architecture is not None and known is not None and known.family == "vit"
    if "dist_token" in tensors and "head_dist.weight" not in tensors and not takes_the_blame:
        raise FormatError(
            f"{found.path} is a distilled DeiT without its heads, whose answer is the mean of two tokens, and no pool "
            f"here gives that; to read the class token alone, say architecture=deit_base_patch16_224"
        )
    if known is None and PROJECTION_WEIGHT in tensors and "pos_embed" not in tensors:
        raise FormatError(
            f"{found.path} has no pos_embed: its positions may be rotary, which leave no tensor; if it has none at "
            f"all, say architecture= (such as vit_base_patch16_224)"
        )


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
    activation = hints.activation or (TIMM_ACTIVATIONS[stated] if stated else usual.activation)
    return activation, usual.norm_eps if hints.norm_eps is None else hints.norm_eps


def choose_pool(found: RawCheckpoint, tensors: Tensors, facts: Facts, assumed: list[str]) -> dict[str, Any]:
    """The pool, from the tensors (attn_pool, fc_norm, a second head), the config or timm's default, in this order."""
    order = "mean-first" if "fc_norm.weight" in tensors else "norm-first"
    if "head_dist.weight" in tensors:
        return {"pool": "cls-and-distillation", "distillation_head": True}
    if "attn_pool.latent" in tensors:
        return {"pool": "map", "pool_order": order}
    default = "gap" if order == "mean-first" or "cls_token" not in tensors else "cls"
    stated = facts.get("global_pool")
    if stated == "":
        assumed.append(f"pool {default}: the config says none, and a model here has one")
    if not stated:
        return {"pool": default, "pool_order": order}
    if not isinstance(stated, str) or stated not in TIMM_POOLS or stated == "map":
        why = "there is no attn_pool in the file" if stated == "map" else f"it is not one of {', '.join(TIMM_POOLS)}"
        raise FormatError(f"{found.path} says global_pool {one_line(stated)!r}, and {why}; mend config.json")
    return {"pool": TIMM_POOLS[stated], "pool_order": order}


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
        size = (224, 224) if stated is None else stated_size(stated, found)
        return config.change(positions="none", image_size=hints.image_size or size)
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
    """The crop_pct for which ⌊size / crop_pct⌋ is `side` again, in floating point too."""
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
    out += pair("embedding.norm", "norm_pre") if b.norm_before_blocks else []
    for i in range(e.depth):
        at = f"blocks.{i}"
        out += pair(f"{at}.norm1", f"{at}.norm1") + pair(f"{at}.norm2", f"{at}.norm2")
        out += pair(f"{at}.attention.qkv", f"{at}.attn.qkv")[: 2 if e.qkv_bias else 1]
        out += pair(f"{at}.attention.merge", f"{at}.attn.proj")
        out += pair(f"{at}.mlp.expand", f"{at}.mlp.fc1") + pair(f"{at}.mlp.contract", f"{at}.mlp.fc2")
        if e.qk_norm:
            out += pair(f"{at}.attention.query_norm", f"{at}.attn.q_norm")
            out += pair(f"{at}.attention.key_norm", f"{at}.attn.k_norm")
        if e.layer_scale is not None:
            out.append(rule(f"{at}.attention.end.scale.gain", f"{at}.ls1.gamma"))
            out.append(rule(f"{at}.mlp.end.scale.gain", f"{at}.ls2.gamma"))
    out += pair("norm", "norm") if r.pool_order == "norm-first" else pair("pool.norm", "fc_norm")
    out += map_rules("pool" if r.pool_order == "norm-first" else "pool.pool") if r.pool == "map" else []
    out += pair("representation.linear", "pre_logits.fc") if r.representation else []
    if r.distillation_head:
        out += pair("head.class_head", "head") + pair("head.distillation_head", "head_dist")
    elif r.classes:
        out += pair("head", "head")
    return out


def map_rules(ours: str) -> list[Rule]:
    names = {"query": "q", "key_value": "kv", "merge": "proj"}
    names |= {"norm": "norm", "expand": "mlp.fc1", "contract": "mlp.fc2"}
    probe = rule(f"{ours}.probe", "attn_pool.latent", move=LEADING_AXIS)
    return [probe, *(r for mine, theirs in names.items() for r in pair(f"{ours}.{mine}", f"attn_pool.{theirs}"))]


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


def refuses(config: Config) -> list[Difference]:
    if isinstance(config, BiTConfig):
        return bit_differences(config, root_pad="zeros", standardise_eps=1e-8)
    out = vit_differences(
        config,
        stem=("patch", "resnet"),
        patch_bias=(not config.embedding.norm_before_blocks,),
        positions=("learned", "none"),
        positions_cover=("all", "patches"),
        class_token=None,
        distillation_token=None,
        registers=None,
        norm_before_blocks=None,
        norm_eps=(1e-6,),
        activation=("gelu", "gelu-tanh", "relu", "swiglu"),
        qkv_bias=None,
        qk_norm=None,
        layer_scale=None,
        pool=("cls", "gap", "map", "max", "cls-and-distillation"),
        pool_order=None,
        distillation_head=None,
    )
    r, b, e = config.readout, config.embedding, config.encoder
    if b.distillation_token and not r.distillation_head:
        out.append(Difference("distillation_token", True, "without its head"))
    if e.activation == "swiglu" and e.layer_scale is None:
        out.append(Difference("activation", "swiglu", "without layer_scale"))
    if r.pool_order == "mean-first" and r.pool not in ("gap", "max"):
        out.append(Difference("pool_order", "mean-first", f"with pool={r.pool}"))
    if b.patch[0] != b.patch[1]:
        out.append(Difference("patch", by(b.patch)))
    if b.stem == "resnet":
        stem = {n: v for n, v in vars(TIMM_HYBRID).items() if n not in ("units", "resnet_width")}
        out += resnet_differences(config, stem)
    return out


def to_hold(config: Config, state: Mapping[str, Tensor]) -> tuple[Config, Mapping[str, Tensor]]:
    """Here positions cover all tokens or patches alone; adds DINOv2's class row to the class token."""
    between = isinstance(config, ViTConfig) and config.covered not in (0, config.prefix)
    return cover(config, state, "patches") if between else (config, state)


def write(model: Model, tensors: Mapping[str, Tensor], path: Path) -> list[Path]:
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
    b, e, r = config.embedding, config.encoder, config.readout
    pool = {ours: theirs for theirs, ours in TIMM_POOLS.items()}.get(r.pool, "token")
    args = {
        "img_size": list(config.image_size),
        "patch_size": b.patch[0],
        "in_chans": config.channels,
        "embed_dim": e.width,
        "depth": e.depth,
        "num_heads": e.heads,
        "mlp_ratio": e.mlp / e.width * (2 if e.activation == "swiglu" else 1),
        "qkv_bias": e.qkv_bias,
        "qk_norm": e.qk_norm,
        "class_token": b.class_token,
        "reg_tokens": b.registers,
        "no_embed_class": b.positions_cover == "patches" and config.prefix > 0,
        "pre_norm": b.norm_before_blocks,
        "global_pool": pool,
    }
    if r.pool in ("gap", "max"):
        args["fc_norm"] = r.pool_order == "mean-first"
    if e.layer_scale is not None:
        args["init_values"] = e.layer_scale
    if e.activation in ("gelu-tanh", "relu"):
        args["act_layer"] = {"gelu-tanh": "gelu_tanh", "relu": "relu"}[e.activation]
    if b.positions == "none":
        args["pos_embed"] = "none"
    architecture = "vit_base_patch16_224"  # model_args hold the rest
    if r.distillation_head:
        architecture = "deit_base_distilled_patch16_224"
    elif e.activation == "swiglu":
        architecture = "vit_giant_patch14_dinov2"
    elif b.stem == "resnet":
        architecture = TIMM_HYBRIDS.get((config.resnet.units, b.patch[0]), HYBRID_BY_HAND)
    return {
        "architecture": architecture,
        "num_classes": r.classes,
        "num_features": e.width,
        "global_pool": pool,
        **names,
        "model_args": args,
        "pretrained_cfg": pretrained,
    }


TIMM_FORMAT = Format(
    name="timm",
    holds="ViT, distilled DeiT, hybrid and BiT of timm, a folder with config.json",
    recognises=recognises,
    draft=draft,
    rules=rules,
    refuses=refuses,
    to_hold=to_hold,
    write=write,
    is_folder=True,
    names_architectures=True,
)
