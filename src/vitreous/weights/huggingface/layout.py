"""Our tensors and theirs: one set of rules for every way in which transformers names its tensors."""

from __future__ import annotations

import torch

from vitreous.models.config import ViTConfig
from vitreous.weights.huggingface.families import Names
from vitreous.weights.layouts import LEADING_AXIS, STACKED_QKV, Move, Rule, pair, patch_kernel, rule

FIRST_ROW = Move(lambda t: t[0][None], lambda x: [x[0]])  # one vector <-> a table of one row
STACKED_HALVES = Move(lambda t: torch.cat(t), lambda x: list(x.chunk(2)))  # gate and value, stacked


def rules_of(config: ViTConfig, names: Names) -> list[Rule]:
    """Rules for the parts that a model has, under these names."""
    b, r = config.embedding, config.readout
    kernel = patch_kernel(config.channels, b.patch, theirs="torch")
    out = pair("embedding.projection", names.patch, weight=kernel)[: 2 if b.patch_bias else 1]
    if b.class_token:
        out.append(rule("embedding.class_token", names.class_token, move=FIRST_ROW if names.is_flat else LEADING_AXIS))
    if b.distillation_token:
        out.append(rule("embedding.distillation_token", names.distillation_token, move=LEADING_AXIS))
    out += [rule("embedding.registers", names.registers, move=LEADING_AXIS)] if b.registers else []
    if b.mask_token:
        out.append(rule("embedding.mask_token", names.mask_token, move=LEADING_AXIS if names.mask_axes == 3 else None))
    if b.positions == "learned":
        out.append(rule("embedding.positions.table", names.positions, move=None if names.is_flat else LEADING_AXIS))
    out += pair("embedding.norm", names.first_norm) if b.norm_before_blocks else []
    for i in range(config.encoder.depth):
        out += block_rules(config, names, i)
    out += bias_rules(config, names) if config.encoder.attention_bias == "table" else []
    out += pair("norm", names.norm) if r.pool_order == "norm-first" else []
    out += pair("pool.norm", names.pooled_norm) if r.pool_order == "mean-first" else []
    out += map_rules(names.map_pool) if r.pool == "map" else []
    if r.representation:
        out += pair("representation.linear", names.representation)[: 2 if r.representation_kind == "tanh" else 1]
    if r.distillation_head:
        out += pair("head.class_head", "cls_classifier") + pair("head.distillation_head", "distillation_classifier")
    elif r.classes:
        out += pair("head", names.head)
    return out


def block_rules(config: ViTConfig, names: Names, i: int) -> list[Rule]:
    e, ours = config.encoder, f"blocks.{i}"
    is_gated = e.activation == "swiglu"

    def mapped(mine: str, theirs: str) -> list[Rule]:
        return pair(f"{ours}.{mine}", names.in_block(theirs, i))[: 2 if e.branch_bias else 1]

    out = [rule(f"{ours}.attention.qkv.weight", *names.of_qkv("weight", i), move=STACKED_QKV)]
    if e.qkv_bias and e.key_bias:
        out.append(rule(f"{ours}.attention.qkv.bias", *names.of_qkv("bias", i), move=STACKED_QKV))
    elif e.qkv_bias:
        query, _, value = names.of_qkv("bias", i)
        out.append(rule(f"{ours}.attention.qkv.bias", query, value, move=STACKED_HALVES))
    out += mapped("attention.merge", names.merge)
    for k in (0, 1):
        out += pair(f"{ours}.norm{k + 1}", names.in_block(names.norms[k], i))
    if is_gated and len(names.gated) == 2:
        for kind in ("weight", "bias")[: 2 if e.branch_bias else 1]:
            parts = [names.in_block(f"{part}.{kind}", i) for part in names.gated]
            out.append(rule(f"{ours}.mlp.expand.{kind}", *parts, move=STACKED_HALVES))
    else:
        out += mapped("mlp.expand", names.gated[0] if is_gated else names.mlp[0])
    out += mapped("mlp.contract", names.gated_out if is_gated else names.mlp[1])
    if e.layer_scale is not None:
        out.append(rule(f"{ours}.attention.end.scale.gain", names.in_block(names.gains[0], i)))
        out.append(rule(f"{ours}.mlp.end.scale.gain", names.in_block(names.gains[1], i)))
    return out


def bias_rules(config: ViTConfig, names: Names) -> list[Rule]:
    at, depth = config.encoder.attention_bias_at, config.encoder.depth
    own = range(depth if at in ("every-layer", "both") else 0)
    out = [rule(f"places.bias.layers.{i}.table", names.in_block(names.bias_table, i)) for i in own]
    return out + ([rule("places.bias.shared.0.table", names.shared_bias_table)] if at in ("shared", "both") else [])


def map_rules(theirs: str) -> list[Rule]:
    """The MAP head; `split_map` splits their stacked q, k, v into a query and a stacked key and value."""
    out = [rule("pool.probe", f"{theirs}.probe", move=LEADING_AXIS)]
    for kind in ("weight", "bias"):
        out.append(rule(f"pool.query.{kind}", f"{theirs}.attention.query_{kind}"))
        out.append(rule(f"pool.key_value.{kind}", f"{theirs}.attention.key_value_{kind}"))
    out += pair("pool.merge", f"{theirs}.attention.out_proj") + pair("pool.norm", f"{theirs}.layernorm")
    return out + pair("pool.expand", f"{theirs}.mlp.fc1") + pair("pool.contract", f"{theirs}.mlp.fc2")


def split_map(tensors: dict[str, torch.Tensor], map_pool: str) -> None:
    """One stacked tensor of q, k and v in files becomes the two that `map_rules` names."""
    for kind in ("weight", "bias"):
        stacked = tensors.pop(f"{map_pool}.attention.in_proj_{kind}", None)
        if stacked is not None:
            third = len(stacked) // 3
            tensors[f"{map_pool}.attention.query_{kind}"] = stacked[:third]
            tensors[f"{map_pool}.attention.key_value_{kind}"] = stacked[third:]


def join_map(tensors: dict[str, torch.Tensor], map_pool: str) -> None:
    """The inverse of `split_map`."""
    for kind in ("weight", "bias"):
        if f"{map_pool}.attention.query_{kind}" in tensors:
            parts = [tensors.pop(f"{map_pool}.attention.{part}_{kind}") for part in ("query", "key_value")]
            tensors[f"{map_pool}.attention.in_proj_{kind}"] = torch.cat(parts)
