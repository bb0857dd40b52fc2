"""A checkpoint of transformers becomes our config and tensors."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch

from vitreous.errors import CheckpointError, FormatError
from vitreous.models.attention_bias import CLASS_ROWS
from vitreous.models.config import ViTConfig
from vitreous.weights.formats import Draft, Hints, choose_heads, choose_image_size, stated_size
from vitreous.weights.huggingface.families import (
    BARE_MEAN,
    CLASS_TOKEN,
    DINOV3_NAMES,
    FAMILIES,
    FOREIGN_PARTS,
    LEFT_OUT,
    MEAN,
    MEAN_THEN_NORM,
    REFUSED_MODEL_TYPES,
    SCHEMES,
    TRANSFORMERS_ACTIVATIONS,
    TWO_TOWERS,
    Family,
    Names,
    Readout,
    file_name,
    lacks,
    strip,
)
from vitreous.weights.huggingface.layout import rules_of, split_map
from vitreous.weights.huggingface.processors import preprocess
from vitreous.weights.tensor_files import RawCheckpoint, Tensors
from vitreous.words import one_line

Facts = Mapping[str, Any]  # what a config states


def recognises(found: RawCheckpoint) -> bool:
    """True for the tensors of a family, of a text tower, or for any folder whose config has a model type."""
    return "model_type" in found.config or scheme_of(found) is not None or is_text(found)


def is_text(found: RawCheckpoint) -> bool:
    return any(name.endswith("embeddings.token_embedding.weight") for name in found.tensors)


def scheme_of(found: RawCheckpoint) -> Names | None:
    """How a file names its tensors, recognised by its names for the patch projection and a block's norms."""
    plain = {strip(name) for name in found.tensors}
    for names in SCHEMES:
        norm = f"{names.norms[0]}.weight"
        if f"{names.patch}.weight" in plain and any(name.endswith(f".{norm}") for name in plain):
            return names
    return None


def draft(found: RawCheckpoint, hints: Hints) -> Draft:
    assumed: list[str] = []
    stated = model_type(found, hints, assumed)
    names = scheme_of(found)
    if names is None:
        raise without_encoder(found, stated)
    tensors, left_out = tidy(found, names)
    facts = vision_facts(found)
    config = structure(found, tensors, names, hints, facts, FAMILIES[stated].heads if stated else None, assumed)
    family = family_of(found, config, names, stated, assumed)
    config = config.change(**read_out(found, tensors, family, facts, left_out, assumed))
    activation, eps = choose_function(found, hints, facts, family, config, assumed)
    config = config.change(activation=activation, norm_eps=eps)
    config = config.change(image_size=image_size(found, tensors, names, config, hints, facts, assumed))
    check_sizes(found, facts, config, hints)
    rule = preprocess(found, config, family.processor, assumed)
    return Draft(
        config, rule, tensors, labels(found.config, config.readout.classes), assumed,
        left_out=left_out, rules=lambda made: rules_of(made, names),
    )  # fmt: skip


def model_type(found: RawCheckpoint, hints: Hints, assumed: list[str]) -> str | None:
    """The model type from the user or the config, or None if unknown; refuses types that we cannot build."""
    stated = found.config.get("model_type")
    known = ", ".join(FAMILIES)
    if hints.architecture is not None:
        if hints.architecture not in FAMILIES:
            raise FormatError(
                f"architecture={one_line(hints.architecture)} is not a transformers model_type that runs here; "
                f"take one of {known}"
            )
        instead = "" if stated in (None, hints.architecture) else f", though the config names {one_line(stated)}"
        assumed.append(f"architecture {hints.architecture}: as given{instead}")
        return hints.architecture
    if "auto_map" in found.config:
        raise FormatError(
            f"{found.path} names code of its own (auto_map), which is never run here; "
            f"if it is one of {known} all the same, say architecture="
        )
    if isinstance(stated, str) and stated in TWO_TOWERS:
        return TWO_TOWERS[stated]
    if stated is not None and (not isinstance(stated, str) or stated not in FAMILIES):
        why = REFUSED_MODEL_TYPES.get(stated) if isinstance(stated, str) else None
        why = why or "that type is not among those known to run here as they do there"
        raise FormatError(
            f"{found.path} is transformers' {one_line(stated)}: {why}; to run its tensors as another type, "
            f"say architecture=, one of {known}"
        )
    return stated


def without_encoder(found: RawCheckpoint, stated: str | None) -> FormatError:
    """The error for a file in which no image encoder is found."""
    if is_text(found):
        return FormatError(
            f"{found.path} holds a text tower and no vision tower: it sees no images; give the whole model, or its "
            f"vision tower"
        )
    few = ", ".join(sorted(found.tensors)[:3])
    return FormatError(
        f"{found.path} is a {stated} by its config and not by its tensors ({few}, …); mend config.json, "
        f"or give the file that belongs to it"
    )


def vision_facts(found: RawCheckpoint) -> Facts:
    """What the config says about the vision tower."""
    inside = found.config.get("vision_config")
    return inside if isinstance(inside, dict) else found.config


def tidy(found: RawCheckpoint, names: Names) -> tuple[Tensors, list[str]]:
    """Tensors under the names in files, without the model's prefix; and what was left out besides the encoder."""
    left: dict[str, int] = {}
    kept = Tensors({}, found.tensors.path)
    for name, tensor in found.tensors.items():
        if part := next((part for start, part in FOREIGN_PARTS.items() if name.startswith(start)), None):
            raise FormatError(
                f"{found.path} has the tensor {name}: {part} is not built here; give the encoder without it"
            )
        what = next((what for start, what in LEFT_OUT.items() if name.startswith(start)), None)
        if what is None:
            kept[name] = tensor
        else:
            left[what] = left.get(what, 0) + 1
    new = kept.renamed(lambda name: file_name(name, names))
    if names.gated == ("mlp.weights_in",):
        for gate in [name for name in new if ".mlp.gate_proj." in name]:  # one matrix on disk
            up = gate.replace("gate_proj", "up_proj")
            if up in new:
                new[gate.replace("gate_proj", "weights_in")] = torch.cat([new.pop(gate), new.pop(up)])
    if names.map_pool:
        split_map(new, names.map_pool)
    for name in [name for name, tensor in new.items() if not tensor.numel()]:
        del new[name]  # no registers
    return new, [f"{what} ({count} tensors)" for what, count in left.items()]


def structure(
    found: RawCheckpoint, tensors: Tensors, names: Names, hints: Hints, facts: Facts, heads: int | None,
    assumed: list[str],
) -> ViTConfig:  # fmt: skip
    """The encoder, from its tensors; only heads come from the config.  heads: the config class's default."""
    width, channels, p, q = tensors.shape(f"{names.patch}.weight", 4)
    count, note = choose_heads(width, found, hints, facts.get("num_attention_heads", heads if facts else None))
    assumed += note
    first = names.in_block

    def has(name: str) -> bool:
        return bool(name) and name in tensors

    is_gated = len(names.gated) > 0 and has(first(f"{names.gated[0]}.weight"))
    hidden = names.gated_out if is_gated else names.mlp[1]
    query, key, _ = names.of_qkv("bias")
    own, shared = has(first(names.bias_table)), has(names.shared_bias_table)
    return ViTConfig().change(
        width=width,
        depth=tensors.depth(f"{names.block}.{{}}."),
        heads=count,
        mlp=tensors.shape(first(f"{hidden}.weight"), 2)[1],
        channels=channels,
        patch=(p, q),
        patch_bias=has(f"{names.patch}.bias"),
        positions="learned" if has(names.positions) else "none",
        activation="swiglu" if is_gated else "gelu",
        class_token=has(names.class_token),
        distillation_token=has(names.distillation_token),
        registers=tensors.shape(names.registers, 3)[1] if has(names.registers) else 0,
        mask_token=has(names.mask_token),
        norm_before_blocks=has(f"{names.first_norm}.weight"),
        qkv_bias=has(query),
        key_bias=has(key) or not has(query),
        branch_bias=has(first(f"{names.merge}.bias")),
        attention_bias="table" if own or shared else "none",
        attention_bias_at="both" if own and shared else "shared" if shared else "every-layer",
        layer_scale=1.0 if has(first(names.gains[0])) else None,
        pool="cls" if has(names.class_token) else "gap",
        classes=0,
        **(rotation(found, facts) if names is DINOV3_NAMES else {}),
    )


def rotation(found: RawCheckpoint, facts: Facts) -> dict[str, Any]:
    """DINOv3's: places from -1 to 1 across the image, rows first, first half of the numbers paired with the second."""
    base = facts.get("rope_theta", 100.0)
    if type(base) not in (int, float):
        raise CheckpointError(f"the config of {found.path} says rope_theta {one_line(base)}; mend config.json")
    return {"rotary": "axial", "rotary_places": "image", "rotary_pairs": "halves", "rotary_base": float(base)}


def family_of(found: RawCheckpoint, config: ViTConfig, names: Names, stated: str | None, assumed: list[str]) -> Family:
    """The model type that the config names, which must fit the tensors; else the one that fits them best."""
    if stated is None:
        rows = [row for row in FAMILIES.values() if row.names is names]
        family = min(rows, key=lambda row: lacks(row, config))
        assumed.append(f"model type {family.model_type}: by its tensors")
        return family
    family = FAMILIES[stated]
    parts = [] if family.names is names else [f"tensors named like {names.patch}"]
    parts += [
        str(part) for part in family.differences(config) if part.name not in ("pool", "pool_order", "positions_cover")
    ]
    if parts:
        raise FormatError(
            f"{found.path} is a {stated} by its config and not by its tensors ({', '.join(parts)}); mend config.json"
        )
    return family


def read_out(
    found: RawCheckpoint, tensors: Tensors, family: Family, facts: Facts, left_out: list[str], assumed: list[str]
) -> dict[str, Any]:
    """How the answer is read: by a classifier, by the family's pooled vector, or by what its paper reads."""
    names = family.names
    out: dict[str, Any] = {
        "positions_cover": family.positions_cover,
        "position_resize": family.position_resize,
    }
    if "distillation_classifier.weight" in tensors:
        classes = tensors.shape("cls_classifier.weight", 2)[0]
        return out | {"classes": classes, "pool": "cls-and-distillation", "distillation_head": True}
    has_map = bool(names.map_pool) and f"{names.map_pool}.probe" in tensors
    if f"{names.head}.weight" in tensors:
        if not family.classifies:
            raise FormatError(
                f"{found.path} has a classifier, which transformers' {family.model_type} has not; "
                f"take the tensors {names.head}.* out of the file"
            )
        out |= choose_readout(family.classifies, tensors, names, facts)
        if has_map:
            drop(tensors, f"{names.map_pool}.")
            left_out.append("MAP head, which its classifier does not read")
        if out["pool_order"] == "no-norm" and f"{names.norm}.weight" in tensors:
            drop(tensors, f"{names.norm}.")
            left_out.append("last norm, which its classifier does not read")
        return out | {"classes": tensors.shape(f"{names.head}.weight", 2)[0]}
    out |= choose_readout(family.answers, tensors, names, facts)
    if family.answers[0][0] == "map" and not has_map:
        assumed.append("pool gap: the file has no MAP head, and transformers gives no pooled vector then")
        return out | {"pool": "gap"}
    if family.why and (out["pool"], out["pool_order"]) == family.answers[0]:
        assumed.append(f"pool {out['pool']}: {family.why}")
    return out | representation(found, tensors, names, facts)


def choose_readout(readouts: tuple[Readout, ...], tensors: Tensors, names: Names, facts: Facts) -> dict[str, Any]:
    """The family's usual readout, unless the file has the norms of another: BEiT with or without mean pooling."""
    usual = readouts[0]
    if len(readouts) > 1 and usual[0] == "gap":
        has_norm, has_pooled = f"{names.norm}.weight" in tensors, f"{names.pooled_norm}.weight" in tensors
        if has_pooled and facts.get("use_mean_pooling") is False:
            raise FormatError(
                f"the config of {tensors.path} says use_mean_pooling false and its tensors have {names.pooled_norm}; "
                f"mend config.json"
            )
        if has_norm and not has_pooled:
            usual = MEAN if facts.get("use_mean_pooling") is True else CLASS_TOKEN
        elif has_pooled:
            usual = MEAN_THEN_NORM
        else:
            usual = BARE_MEAN
    return {"pool": usual[0], "pool_order": usual[1]}


def drop(tensors: Tensors, start: str) -> None:
    for name in [name for name in tensors if name.startswith(start)]:
        del tensors[name]


def representation(found: RawCheckpoint, tensors: Tensors, names: Names, facts: Facts) -> dict[str, Any]:
    """The layer behind the pooled vector: the pooler of a bare ViT, or CLIP's projection."""
    weight = f"{names.representation}.weight"
    if not names.representation or weight not in tensors:
        return {}
    size, is_tanh = tensors.shape(weight, 2)[0], f"{names.representation}.bias" in tensors
    if is_tanh and facts.get("pooler_act", "tanh") != "tanh":
        raise FormatError(
            f"{found.path} has pooler_act {one_line(facts['pooler_act'])!r}, and only tanh is built here; "
            f"take the tensors pooler.* out of the file"
        )
    return {"representation": size, "representation_kind": "tanh" if is_tanh else "linear"}


def choose_function(
    found: RawCheckpoint, hints: Hints, facts: Facts, family: Family, config: ViTConfig, assumed: list[str]
) -> tuple[str, float]:
    """Activation and eps, from the argument, the config, or the default of the family's config class."""
    stated = facts.get("hidden_act")
    if config.encoder.activation == "swiglu":
        activation = "swiglu"
        if not family.gate_is_silu and stated not in ("silu", "swish"):
            raise FormatError(
                f"{found.path} gates its MLP by {one_line(stated or family.activation)}, and only silu is built here; "
                f"run it with transformers"
            )
    elif hints.activation:
        activation = hints.activation
    elif stated is None:
        activation = TRANSFORMERS_ACTIVATIONS[family.activation]
        assumed.append(f"activation {activation}: transformers' default")
    elif isinstance(stated, str) and stated in TRANSFORMERS_ACTIVATIONS:
        activation = TRANSFORMERS_ACTIVATIONS[stated]
    else:
        raise FormatError(
            f"{found.path} uses activation {one_line(stated)!r}, which is not built here; run another with activation="
        )
    eps = facts.get("layer_norm_eps") if hints.norm_eps is None else hints.norm_eps
    if eps is None:
        eps = family.eps
        assumed.append(f"norm_eps {eps:g}: transformers' default".replace("e-0", "e-"))
    if type(eps) not in (int, float):
        raise CheckpointError(f"the config of {found.path} says layer_norm_eps {one_line(eps)}; say norm_eps=")
    return activation, float(eps)


def image_size(
    found: RawCheckpoint, tensors: Tensors, names: Names, config: ViTConfig, hints: Hints, facts: Facts,
    assumed: list[str],
) -> tuple[int, int]:  # fmt: skip
    patch, stated = config.embedding.patch, facts.get("image_size")
    if config.embedding.positions == "learned":
        places = tensors.shape(names.positions, 2 if names.is_flat else 3)[-2] - config.covered
        return choose_image_size(places, patch, found, hints, stated, assumed=assumed)
    if config.encoder.attention_bias == "table":
        at = names.shared_bias_table if names.shared_bias_table in tensors else names.in_block(names.bias_table)
        side = (math.isqrt(tensors.shape(at, 2)[0] - CLASS_ROWS) + 1) // 2  # (2 side - 1)² offsets
        return choose_image_size(side * side, patch, found, hints, stated, assumed=assumed)
    if stated is None and hints.image_size is None:
        assumed.append("image size 224x224: transformers' default, and no tensor tells another")
    return hints.image_size or ((224, 224) if stated is None else stated_size(stated, found))


def check_sizes(found: RawCheckpoint, facts: Facts, config: ViTConfig, hints: Hints) -> None:
    """Refuse a config whose sizes are not those of its tensors, unless the user says architecture=."""
    e, b = config.encoder, config.embedding
    has: dict[str, Any] = {
        "hidden_size": e.width,
        "num_hidden_layers": e.depth,
        "num_channels": config.channels,
        "num_register_tokens": b.registers,
        "patch_size": b.patch[0] if b.patch[0] == b.patch[1] else None,
        "intermediate_size": None if "mlp_ratio" in facts else e.mlp,  # DINOv2 reads the ratio
    }
    for name, value in has.items():
        stated = facts.get(name)
        if value is not None and type(stated) is int and stated != value and hints.architecture is None:
            raise FormatError(
                f"the config of {found.path} says {name} {stated} and its tensors have {value}; mend config.json, "
                f"or give the file that belongs to it"
            )


def labels(facts: Facts, classes: int) -> tuple[str, ...] | None:
    """Class names, unless they are only LABEL_0, LABEL_1, …"""
    named = facts.get("id2label")
    if not isinstance(named, dict) or sorted(named) != sorted(map(str, range(classes))) or not classes:
        return None
    words = tuple(str(named[str(i)]) for i in range(classes))
    return None if words == tuple(f"LABEL_{i}" for i in range(classes)) else words
