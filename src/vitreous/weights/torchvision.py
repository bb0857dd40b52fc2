"""torchvision's ViT: one file of tensors; the image size shows how it was trained."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from vitreous.models.config import Config, ViTConfig
from vitreous.models.model import Model
from vitreous.models.preprocess import IMAGENET_MEAN, IMAGENET_STD, Preprocess
from vitreous.weights.compatibility import Difference, cover, vit_differences
from vitreous.weights.formats import Draft, Format, Hints, choose_heads, choose_image_size
from vitreous.weights.layouts import LEADING_AXIS, Rule, pair, patch_kernel, rule
from vitreous.weights.tensor_files import RawCheckpoint, Tensors, by

LAYER_PATH = "encoder.layers.encoder_layer_{}"


def recognises(found: RawCheckpoint) -> bool:
    names = found.tensors
    return "conv_proj.weight" in names and any(name.startswith(LAYER_PATH.format(0)) for name in names)


def tidy(tensors: Tensors) -> Tensors:
    """Rename an MLP from before torchvision's version 2 (linear_1, linear_2)."""
    return tensors.renamed(lambda name: name.replace(".mlp.linear_1.", ".mlp.0.").replace(".mlp.linear_2.", ".mlp.3."))


def draft(found: RawCheckpoint, hints: Hints) -> Draft:
    tensors = tidy(found.tensors)
    width, channels, p, q = tensors.shape("conv_proj.weight", 4)
    heads, assumed = choose_heads(width, found, hints, None)
    first = LAYER_PATH.format(0)
    config = ViTConfig().change(
        width=width,
        depth=tensors.depth(LAYER_PATH + "."),
        heads=heads,
        mlp=tensors.shape(f"{first}.mlp.0.weight", 2)[0],
        channels=channels,
        patch=(p, q),
        activation=hints.activation or "gelu",
        norm_eps=1e-6 if hints.norm_eps is None else hints.norm_eps,
        position_resize="torchvision",
        representation=tensors.shape("heads.pre_logits.weight", 2)[0] if "heads.pre_logits.weight" in tensors else 0,
        classes=tensors.shape("heads.head.weight", 2)[0] if "heads.head.weight" in tensors else 0,
    )
    rows = tensors.shape("encoder.pos_embedding", 3)[1]
    config = config.change(image_size=choose_image_size(rows - 1, (p, q), found, hints, assumed=assumed))
    assumed += [] if hints.activation else ["activation gelu: torchvision's code"]
    assumed += ["norm_eps 1e-6: torchvision's code"] if hints.norm_eps is None else []
    assumed.append("preprocessing: that of torchvision's published weights of this size")
    return Draft(config, preprocess(config), tensors, assumed=assumed)


def preprocess(config: ViTConfig) -> Preprocess:
    """IMAGENET1K_V1: short side 256 (L/16: 242), crop 224, bilinear; larger images are SWAG's: no margin, bicubic."""
    size = config.image_size
    common: dict[str, Any] = {"mean": IMAGENET_MEAN, "std": IMAGENET_STD, "antialias": True}
    common |= {"size": size, "fit": "crop", "source": "torchvision (assumed)"}
    if size != (224, 224):
        return Preprocess(short_side=min(size), interpolation="bicubic", **common)
    is_l16 = config.encoder.width == 1024 and config.embedding.patch == (16, 16)
    return Preprocess(short_side=242 if is_l16 else 256, interpolation="bilinear", **common)


def rules(config: Config) -> list[Rule]:
    assert isinstance(config, ViTConfig)
    e, r = config.encoder, config.readout
    out = [
        rule("embedding.class_token", "class_token", move=LEADING_AXIS),
        *pair(
            "embedding.projection",
            "conv_proj",
            weight=patch_kernel(config.channels, config.embedding.patch, theirs="torch"),
        ),
        rule("embedding.positions.table", "encoder.pos_embedding", move=LEADING_AXIS),
    ]
    for i in range(e.depth):
        ours, theirs = f"blocks.{i}", LAYER_PATH.format(i)
        out += pair(f"{ours}.norm1", f"{theirs}.ln_1") + pair(f"{ours}.norm2", f"{theirs}.ln_2")
        out += pair(f"{ours}.attention.qkv", f"{theirs}.self_attention.in_proj", join="_")
        out += pair(f"{ours}.attention.merge", f"{theirs}.self_attention.out_proj")
        out += pair(f"{ours}.mlp.expand", f"{theirs}.mlp.0") + pair(f"{ours}.mlp.contract", f"{theirs}.mlp.3")
    out += pair("norm", "encoder.ln")
    out += pair("representation.linear", "heads.pre_logits") if r.representation else []
    return out + (pair("head", "heads.head") if r.classes else [])


def refuses(config: Config) -> list[Difference]:
    out = vit_differences(config, representation=None)
    if isinstance(config, ViTConfig):
        sizes = {"image_size": config.image_size, "patch": config.embedding.patch}
        out += [Difference(name, by((h, w)), "(square only)") for name, (h, w) in sizes.items() if h != w]
        out += [Difference("channels", config.channels, "(3 only)")] if config.channels != 3 else []
    return out


def write(model: Model, tensors: Mapping[str, Tensor], path: Path) -> list[Path]:
    plain = {name: tensor.to(torch.float32) for name, tensor in tensors.items()}
    if path.suffix in (".pth", ".pt"):
        torch.save(plain, path)
    else:
        save_file(plain, path)
    return [path]


TORCHVISION_FORMAT = Format(
    name="torchvision",
    holds="ViT of torchvision, one file (.safetensors or .pth)",
    recognises=recognises,
    draft=draft,
    rules=rules,
    refuses=refuses,
    to_hold=lambda config, state: cover(config, state, "all"),
    write=write,
    suffixes=(".safetensors", ".pth", ".pt"),
)
