"""Google's npz: the official ViT and hybrid (vision_transformer), and BiT (big_transfer).

A block's parts have two generations of names: (attention, second norm, MLP) = (1, 2, 3) in the published files, and
(0, 1, 0) in what the current code writes. We read both and write the published ones, which every reader knows.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vitreous.errors import CheckpointError
from vitreous.models.config import (
    HYBRID_RESNET,
    BiTConfig,
    Config,
    EmbeddingConfig,
    EncoderConfig,
    ResNetConfig,
    ViTConfig,
)
from vitreous.models.model import Model
from vitreous.models.preprocess import google as google_preprocess
from vitreous.weights.compatibility import (
    Difference,
    bit_differences,
    cover,
    resnet_differences,
    token_differences,
    vit_differences,
)
from vitreous.weights.formats import Draft, Format, Hints, choose_image_size, stem_of
from vitreous.weights.layouts import (
    KERNEL,
    LEADING_AXIS,
    TRANSPOSED,
    VECTOR,
    Move,
    Rule,
    google_in,
    google_in_bias,
    google_out,
    pair,
    patch_kernel,
    rule,
)
from vitreous.weights.tensor_files import RawCheckpoint, Tensors

SCALE_AND_BIAS = ("scale", "bias")
KERNEL_AND_BIAS = ("kernel", "bias")
norm_pair = partial(pair, names=SCALE_AND_BIAS, join="/")
dense_pair = partial(pair, weight=TRANSPOSED, names=KERNEL_AND_BIAS, join="/")
POSITION_TABLE = "Transformer/posembed_input/pos_embedding"  # big_vision keeps its own elsewhere


def recognises(found: RawCheckpoint) -> bool:
    names = {strip_prefix(name) for name in found.tensors}
    is_big_vision = names & {"probe", "MAPHead_0/probe"}  # its older files keep the table where Google's do
    return (POSITION_TABLE in names and not is_big_vision) or any(
        name.startswith("resnet/root_block/") for name in names
    )


def strip_prefix(name: str) -> str:
    return name.removeprefix("opt/target/").removeprefix("params/")


def tidy(tensors: Tensors) -> Tensors:
    """Tensors under the published names."""
    if any(name.startswith("opt/target/") for name in tensors):  # other opt/… keys belong to the optimiser
        tensors = tensors.only(lambda name: name.startswith("opt/target/"))
    plain = tensors.renamed(strip_prefix)
    is_new = not any("/LayerNorm_2/" in name for name in plain)
    return plain.renamed(published) if is_new else plain


def published(name: str) -> str:
    """The published name for the current name of a block's part."""
    for now, then in (
        ("MultiHeadDotProductAttention_0", "MultiHeadDotProductAttention_1"),
        ("LayerNorm_1", "LayerNorm_2"),
        ("MlpBlock_0", "MlpBlock_3"),
    ):
        if name.startswith("Transformer/encoderblock"):
            name = name.replace(f"/{now}/", f"/{then}/")
    return name


def draft(found: RawCheckpoint, hints: Hints) -> Draft:
    if any(strip_prefix(name).startswith("resnet/") for name in found.tensors):
        return draft_bit(found, hints)
    tensors = tidy(found.tensors)
    config, assumed = vit_config(tensors, found, hints, pool="cls" if "cls" in tensors else "gap")
    table = tensors.shape(POSITION_TABLE, 3)
    grid_of = None if config.embedding.stem == "patch" else stem_of(config).grid
    size = choose_image_size(
        table[1] - config.prefix, stem_cell(config), found, hints, grid_of=grid_of, assumed=assumed
    )
    config = config.change(image_size=size)
    assumed.append("preprocessing: Google's (squash, bilinear without antialias, -1 to 1)")
    return Draft(config, google_preprocess(size), tensors, assumed=assumed)


def stem_cell(config: ViTConfig) -> tuple[int, int]:
    """Image pixels that one patch covers."""
    p = config.embedding.patch
    stride = 1 if config.embedding.stem == "patch" else 4 * 2 ** max(len(config.resnet.units) - 1, 0)
    return p[0] * stride, p[1] * stride


def vit_config(tensors: Tensors, found: RawCheckpoint, hints: Hints, *, pool: str) -> tuple[ViTConfig, list[str]]:
    """The config that the tensors of an official or big_vision ViT imply: all but image size, activation and eps."""
    p, q, channels, width = tensors.shape("embedding/kernel", 4)
    depth = tensors.depth("Transformer/encoderblock_{}/")
    first = "Transformer/encoderblock_0/"
    _, heads, _ = tensors.shape(first + "MultiHeadDotProductAttention_1/query/kernel", 3)
    if hints.heads not in (None, heads):
        raise CheckpointError(f"{found.path} has {heads} heads, not {hints.heads}; leave heads= out")
    _, mlp = tensors.shape(first + "MlpBlock_3/Dense_0/kernel", 2)
    resnet, stem = HYBRID_RESNET, "patch"
    if "conv_root/kernel" in tensors:
        _, _, channels, root = tensors.shape("conv_root/kernel", 4)
        units = tensors.units(r"block(\d{1,3})/unit(\d{1,3})/", 1)
        resnet = ResNetConfig(**{**vars(HYBRID_RESNET), "units": units, "resnet_width": root / 64})
        stem = "resnet"
    representation = tensors.shape("pre_logits/kernel", 2)[1] if "pre_logits/kernel" in tensors else 0
    classes = tensors.shape("head/kernel", 2)[1] if "head/kernel" in tensors else 0
    embedding = EmbeddingConfig(patch=(p, q), class_token="cls" in tensors, stem=stem)
    encoder = EncoderConfig(width=width, depth=depth, heads=heads, mlp=mlp, norm_eps=1e-6, activation="gelu-tanh")
    config = ViTConfig(image_size=(0, 0), channels=channels, embedding=embedding, encoder=encoder, resnet=resnet)
    config = config.change(pool=pool, representation=representation, classes=classes, **hints.of_encoder())
    assumed = [] if hints.activation else ["activation gelu-tanh: Google's code"]
    return config, assumed + (["norm_eps 1e-6: Google's code"] if hints.norm_eps is None else [])


def rules(config: Config) -> list[Rule]:
    if isinstance(config, BiTConfig):
        return bit_rules(config)
    return [*vit_rules(config), rule("embedding.positions.table", POSITION_TABLE, move=LEADING_AXIS)]


def vit_rules(config: ViTConfig) -> list[Rule]:
    """Rules for all but the positions, which the official code and big_vision name differently."""
    e, r = config.encoder, config.readout
    stem = stem_of(config)
    kernel = patch_kernel(stem.channels, stem.patch, theirs="google")
    out = dense_pair("embedding.projection", "embedding", weight=kernel)
    if config.embedding.class_token:
        out.append(rule("embedding.class_token", "cls", move=LEADING_AXIS))
    if config.embedding.stem == "resnet":
        out += stem_rules(config)
    for i in range(e.depth):
        theirs = f"Transformer/encoderblock_{i}"
        out += norm_pair(f"blocks.{i}.norm1", f"{theirs}/LayerNorm_0")
        out += attention_rules(f"blocks.{i}.attention", f"{theirs}/MultiHeadDotProductAttention_1", e.heads)
        out += norm_pair(f"blocks.{i}.norm2", f"{theirs}/LayerNorm_2")
        out += dense_pair(f"blocks.{i}.mlp.expand", f"{theirs}/MlpBlock_3/Dense_0")
        out += dense_pair(f"blocks.{i}.mlp.contract", f"{theirs}/MlpBlock_3/Dense_1")
    out += norm_pair("norm", "Transformer/encoder_norm")
    out += dense_pair("representation.linear", "pre_logits") if r.representation else []
    out += dense_pair("head", "head") if r.classes else []
    return out


def attention_rules(ours: str, theirs: str, heads: int) -> list[Rule]:
    qkv = ("query", "key", "value")
    return [
        rule(f"{ours}.qkv.weight", *(f"{theirs}/{n}/kernel" for n in qkv), move=google_in(heads, 3)),
        rule(f"{ours}.qkv.bias", *(f"{theirs}/{n}/bias" for n in qkv), move=google_in_bias(heads, 3)),
        rule(f"{ours}.merge.weight", f"{theirs}/out/kernel", move=google_out(heads)),
        rule(f"{ours}.merge.bias", f"{theirs}/out/bias"),
    ]


def group_norm_rules(
    ours: str, theirs: str, names: tuple[str, str] = SCALE_AND_BIAS, move: Move = VECTOR
) -> list[Rule]:
    parts = zip(("weight", "bias"), names, strict=True)
    return [rule(f"{ours}.{mine}", f"{theirs}/{name}", move=move) for mine, name in parts]


def stem_rules(config: ViTConfig) -> list[Rule]:
    out = [
        rule("stem.root.conv.weight", "conv_root/kernel", move=KERNEL),
        *group_norm_rules("stem.root.norm", "gn_root"),
    ]
    for s, units in enumerate(config.resnet.units):
        for u in range(units):
            ours, theirs = f"stem.stages.{s}.units.{u}", f"block{s + 1}/unit{u + 1}"
            for k in (1, 2, 3):
                out.append(rule(f"{ours}.conv{k}.weight", f"{theirs}/conv{k}/kernel", move=KERNEL))
                out += group_norm_rules(f"{ours}.norm{k}", f"{theirs}/gn{k}")
            if u == 0:
                out.append(rule(f"{ours}.shortcut.weight", f"{theirs}/conv_proj/kernel", move=KERNEL))
                out += group_norm_rules(f"{ours}.shortcut_norm", f"{theirs}/gn_proj")
    return out


def tidy_bit(tensors: Tensors) -> Tensors:
    """Strip the numbers that some files give their layers: standardized_conv2d_7."""
    return tensors.renamed(lambda name: re.sub(r"(standardized_conv2d|group_norm)_\d+", r"\1", strip_prefix(name)))


def draft_bit(found: RawCheckpoint, hints: Hints) -> Draft:
    tensors = tidy_bit(found.tensors)
    _, _, channels, root = tensors.shape("resnet/root_block/standardized_conv2d/kernel", 4)
    units = tensors.units(r"resnet/block(\d{1,3})/unit(\d{1,3})/", 1)
    size = hints.image_size or (224, 224)
    config = BiTConfig(image_size=size, channels=channels, resnet=ResNetConfig(units=units, resnet_width=root / 64))
    head = "resnet/head/conv2d/kernel"
    config = config.change(classes=tensors.shape(head, 4)[3] if head in tensors else 0)
    return Draft(
        config, google_preprocess(size), tensors, assumed=["preprocessing: big_transfer's (squash, bilinear, -1 to 1)"]
    )


HEAD_KERNEL = Move(lambda t: t[0][0, 0].mT, lambda x: [x.mT[None, None]])  # 1 1 C K <-> K C


def bit_rules(config: BiTConfig) -> list[Rule]:
    conv, norm = "standardized_conv2d/kernel", ("gamma", "beta")
    out = [rule("root.conv.weight", f"resnet/root_block/{conv}", move=KERNEL)]
    for s, units in enumerate(config.resnet.units):
        for u in range(units):
            ours, theirs = f"stages.{s}.units.{u}", f"resnet/block{s + 1}/unit{u + 1:02d}"
            for k, letter in enumerate("abc", 1):
                out.append(rule(f"{ours}.conv{k}.weight", f"{theirs}/{letter}/{conv}", move=KERNEL))
                out += group_norm_rules(f"{ours}.norm{k}", f"{theirs}/{letter}/group_norm", norm)
            if u == 0:
                out.append(rule(f"{ours}.shortcut.weight", f"{theirs}/a/proj/{conv}", move=KERNEL))
    out += group_norm_rules("last_norm", "resnet/group_norm", norm)
    if config.readout.classes:
        out += dense_pair("head", "resnet/head/conv2d", weight=HEAD_KERNEL)
    return out


def refuses(config: Config) -> list[Difference]:
    if isinstance(config, BiTConfig):
        return bit_differences(config, root_pad="zeros", standardise_eps=1e-10)
    pools = ("cls", "gap")
    out = vit_differences(
        config,
        stem=("patch", "resnet"),
        class_token=None,
        pool=pools,
        representation=None,
        activation=("gelu-tanh",),
        norm_eps=(1e-6,),
    )
    out += token_differences(config) if config.readout.pool in pools else []
    if config.embedding.stem == "resnet":
        stem = {n: v for n, v in vars(HYBRID_RESNET).items() if n not in ("units", "resnet_width")}
        out += resnet_differences(config, stem)
    return out


def to_hold(config: Config, state: Mapping[str, Tensor]) -> tuple[Config, Mapping[str, Tensor]]:
    """In this format every token has a position."""
    return cover(config, state, "all")


def write(model: Model, tensors: Mapping[str, Tensor], path: Path) -> list[Path]:
    with path.open("wb") as file:
        arrays: Any = {name: tensor.to(torch.float32).numpy() for name, tensor in tensors.items()}
        np.savez(file, **arrays)
    return [path]


GOOGLE_FORMAT = Format(
    name="google",
    holds="ViT, hybrid and BiT of Google's vision_transformer and big_transfer, npz",
    recognises=recognises,
    draft=draft,
    rules=rules,
    refuses=refuses,
    to_hold=to_hold,
    write=write,
    suffixes=(".npz",),
    ignores=lambda name: name.startswith(("opt/", "chrono/")) or name in ("resnet/global_step", "global_step"),
)
