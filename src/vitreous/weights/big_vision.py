"""big_vision's npz: ViT (class token, GAP or MAP; learned or sin-cos positions; layers apart or scanned) and BiT."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from vitreous.errors import CheckpointError
from vitreous.models.config import BiTConfig, Config, ResNetConfig, Size, ViTConfig
from vitreous.models.model import Model
from vitreous.models.positions import square_grid
from vitreous.models.preprocess import Preprocess
from vitreous.weights.compatibility import Difference, bit_differences, cover, token_differences, vit_differences
from vitreous.weights.formats import Draft, Format, Hints, choose_image_size
from vitreous.weights.google import (
    dense_pair,
    google_in,
    google_in_bias,
    google_out,
    group_norm_rules,
    norm_pair,
    published,
    vit_config,
    vit_rules,
    write,
)
from vitreous.weights.layouts import CHANNEL_PLANES, KERNEL, LEADING_AXIS, Rule, rule
from vitreous.weights.tensor_files import MAX_TENSORS, RawCheckpoint, Tensors, by

BIG_VISION_PREFIXES = ("params/img/", "opt/target/", "params/", "img/", "")
RECOGNISED_BY = ("embedding/kernel", "root_block/conv_root/kernel")


def prefix_of(names: Iterable[str]) -> str | None:
    """The prefix of the image model's tensors."""
    names = set(names)
    return next((p for p in BIG_VISION_PREFIXES if any(p + mark in names for mark in RECOGNISED_BY)), None)


def recognises(found: RawCheckpoint) -> bool:
    return prefix_of(found.tensors) is not None


def tidy(tensors: Tensors, hints: Hints) -> Tensors:
    """Tensors under current names, one set per block; adds an older table's class row to the class token.

    Blocks take the published names that `google` uses, so one set of rules serves both.
    """
    prefix = prefix_of(tensors)
    if prefix is None:
        raise CheckpointError(f"{tensors.path} has no {RECOGNISED_BY[0]}; is it a big_vision ViT?")
    plain = tensors.only(lambda name: name.startswith(prefix)).renamed(lambda name: name.removeprefix(prefix))
    if prefix == "":
        plain = plain.only(lambda name: not name.startswith(("opt/", "chrono/", "txt/")))
    plain = unstack(plain.renamed(with_present_parts))
    if not any("/LayerNorm_2/" in name for name in plain):
        plain = plain.renamed(published)
    return fold_class_row(plain, hints)


def with_present_parts(name: str) -> str:
    """The current name for an older name of the positions or the MAP head."""
    if name in ("Transformer/posembed_input/pos_embedding", "Transformer/pos_embedding"):
        return "pos_embedding"
    if name.split("/")[0] in ("probe", "MlpBlock_0", "MultiHeadDotProductAttention_0", "LayerNorm_0"):
        return f"MAPHead_0/{name}"
    return name


def unstack(tensors: Tensors) -> Tensors:
    """Split tensors that a scan stacked over the blocks along the first axis."""
    first = "Transformer/encoderblock/LayerNorm_0/scale"
    if first not in tensors:
        return tensors
    depth = tensors.shape(first, 2)[0]
    if depth > MAX_TENSORS // 10:
        raise CheckpointError(f"tensor {first} of {tensors.path} says {depth} blocks; do not trust this file")
    new = Tensors({}, tensors.path)
    for name, tensor in tensors.items():
        if not name.startswith("Transformer/encoderblock/"):
            new[name] = tensor
            continue
        if tensor.dim() == 0 or len(tensor) != depth:
            raise CheckpointError(
                f"tensor {name} of {tensors.path} has shape {by(tensor.shape)}; its first axis should be {depth} blocks"
            )
        for i, layer in enumerate(tensor):
            new[name.replace("encoderblock/", f"encoderblock_{i}/")] = layer
    return new


def fold_class_row(tensors: Tensors, hints: Hints) -> Tensors:
    """Add the class row of a table with k² + 1 rows to the class token; the sum of both is unchanged.

    No change if the image is known to have k² + 1 patches, as 2 x 5 does.
    """
    if "pos_embedding" not in tensors:
        return tensors
    rows, (p, q, _, _) = tensors.shape("pos_embedding", 3)[1], tensors.shape("embedding/kernel", 4)
    h, w = hints.image_size or (0, 0)
    if square_grid(rows - 1) is None or rows < 2 or (h // p) * (w // q) == rows:
        return tensors
    table = tensors["pos_embedding"]
    new = Tensors({**tensors, "pos_embedding": table[:, 1:]}, tensors.path)
    if "cls" in tensors and tensors["cls"].shape == table[:, :1].shape:
        new["cls"] = tensors["cls"] + table[:, :1]
    return new


def draft(found: RawCheckpoint, hints: Hints) -> Draft:
    if (prefix_of(found.tensors) or "") + RECOGNISED_BY[1] in found.tensors:
        return draft_bit(found, hints)
    tensors = tidy(found.tensors, hints)
    pool = "map" if "MAPHead_0/probe" in tensors else "cls" if "cls" in tensors else "gap"
    config, assumed = vit_config(tensors, found, hints, pool=pool)
    patch = config.embedding.patch
    if "pos_embedding" in tensors:
        config = config.change(positions_cover="patches")
        size = choose_image_size(tensors.shape("pos_embedding", 3)[1], patch, found, hints, assumed=assumed)
    else:
        config = config.change(positions="sincos-2d", positions_cover="patches")
        size = hints.image_size or (224 // patch[0] * patch[0], 224 // patch[1] * patch[1])
        assumed.append(
            "positions sincos-2d: the file has no table"
            + ("" if hints.image_size else f"; image size {size[0]}x{size[1]}")
        )
    assumed.append(f"preprocessing: {'SigLIP' if pool == 'map' else 'big_vision'}'s usual one (configs differ)")
    return Draft(config.change(image_size=size), preprocess(size, pool), tensors, assumed=assumed)


def preprocess(size: Size, pool: str) -> Preprocess:
    """SigLIP squashes; classifiers resize the small side by area and cut the centre. Both to -1 … 1."""
    if pool == "map":
        return Preprocess(size=size, source="big_vision (assumed)")
    side = round(min(size) * 256 / 224)
    common: dict[str, Any] = {"antialias": True, "source": "big_vision (assumed)"}
    return Preprocess(size=size, fit="crop", short_side=side, interpolation="box", **common)


def rules(config: Config) -> list[Rule]:
    if isinstance(config, BiTConfig):
        return bit_rules(config)
    out = vit_rules(config)
    if config.embedding.positions == "learned":
        out.append(rule("embedding.positions.table", "pos_embedding", move=LEADING_AXIS))
    if config.readout.pool == "map":
        out += map_rules(config)
    return out


def map_rules(config: ViTConfig) -> list[Rule]:
    attention, heads = "MAPHead_0/MultiHeadDotProductAttention_0", config.encoder.heads
    two = ("key", "value")
    return [
        rule("pool.probe", "MAPHead_0/probe", move=LEADING_AXIS),
        rule("pool.query.weight", f"{attention}/query/kernel", move=google_in(heads, 1)),
        rule("pool.query.bias", f"{attention}/query/bias", move=google_in_bias(heads, 1)),
        rule("pool.key_value.weight", *(f"{attention}/{n}/kernel" for n in two), move=google_in(heads, 2)),
        rule("pool.key_value.bias", *(f"{attention}/{n}/bias" for n in two), move=google_in_bias(heads, 2)),
        rule("pool.merge.weight", f"{attention}/out/kernel", move=google_out(heads)),
        rule("pool.merge.bias", f"{attention}/out/bias"),
        *norm_pair("pool.norm", "MAPHead_0/LayerNorm_0"),
        *dense_pair("pool.expand", "MAPHead_0/MlpBlock_0/Dense_0"),
        *dense_pair("pool.contract", "MAPHead_0/MlpBlock_0/Dense_1"),
    ]


def draft_bit(found: RawCheckpoint, hints: Hints) -> Draft:
    prefix = prefix_of(found.tensors) or ""
    tensors = found.tensors.only(lambda name: name.startswith(prefix)).renamed(lambda name: name.removeprefix(prefix))
    _, _, channels, root = tensors.shape("root_block/conv_root/kernel", 4)
    units = tensors.units(r"block(\d{1,3})/unit(\d{1,3})/", 1)
    resnet = ResNetConfig(units=units, resnet_width=root / 64, root_pad="infinity")
    size = hints.image_size or (224, 224)
    classes = tensors.shape("head/kernel", 2)[1] if "head/kernel" in tensors else 0
    config = BiTConfig(image_size=size, channels=channels, resnet=resnet).change(classes=classes)
    return Draft(
        config, preprocess(size, "gap"), tensors, assumed=["preprocessing: big_vision's usual one (configs differ)"]
    )


def bit_rules(config: BiTConfig) -> list[Rule]:
    out = [rule("root.conv.weight", "root_block/conv_root/kernel", move=KERNEL)]
    for s, units in enumerate(config.resnet.units):
        for u in range(units):
            ours, theirs = f"stages.{s}.units.{u}", f"block{s + 1}/unit{u + 1:02d}"
            for k in (1, 2, 3):
                out.append(rule(f"{ours}.conv{k}.weight", f"{theirs}/conv{k}/kernel", move=KERNEL))
                out += group_norm_rules(f"{ours}.norm{k}", f"{theirs}/gn{k}", move=CHANNEL_PLANES)
            if u == 0:
                out.append(rule(f"{ours}.shortcut.weight", f"{theirs}/conv_proj/kernel", move=KERNEL))
    out += group_norm_rules("last_norm", "norm-pre-head", move=CHANNEL_PLANES)
    if config.readout.classes:
        out += dense_pair("head", "head")
    return out


def present(name: str) -> str:
    """big_vision's name for the published name of a block's part."""
    if not name.startswith("Transformer/encoderblock"):
        return name
    return re.sub(
        r"/(MultiHeadDotProductAttention|LayerNorm|MlpBlock)_[123]/",
        lambda m: f"/{m[1]}_{1 if m[1] == 'LayerNorm' else 0}/",
        name,
    )


def refuses(config: Config) -> list[Difference]:
    if isinstance(config, BiTConfig):
        return bit_differences(config, root_pad="infinity", standardise_eps=1e-10)
    pools = ("cls", "gap", "map")
    out = vit_differences(
        config,
        positions=("learned", "sincos-2d"),
        positions_cover=("patches", "all"),
        pool=pools,
        class_token=None,
        representation=None,
        classes=None,
        activation=("gelu-tanh",),
        norm_eps=(1e-6,),
    )
    return out + (token_differences(config) if config.readout.pool in pools else [])


def to_hold(config: Config, state: Mapping[str, Tensor]) -> tuple[Config, Mapping[str, Tensor]]:
    """Positions cover patches only here: the class token's row is added to the class token."""
    return cover(config, state, "patches")


def write_present(model: Model, tensors: Mapping[str, Tensor], path: Path) -> list[Path]:
    return write(model, {present(name): tensor for name, tensor in tensors.items()}, path)


BIG_VISION_FORMAT = Format(
    name="big_vision",
    holds="ViT (class token, GAP, MAP; learned or sin-cos positions) and BiT of big_vision, npz",
    recognises=recognises,
    draft=draft,
    rules=rules,
    refuses=refuses,
    to_hold=to_hold,
    write=write_present,
    suffixes=(".npz",),
)
