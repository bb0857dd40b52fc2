"""Hugging Face's ViT, DeiT and DINOv2 (with or without registers): a folder with config.json, or the file alone."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vitreous.errors import CheckpointError, FormatError
from vitreous.models.config import Config, Size, ViTConfig
from vitreous.models.model import Model
from vitreous.models.preprocess import HALF_RGB, IMAGENET_MEAN, IMAGENET_STD, Preprocess
from vitreous.weights.compatibility import Difference, cover, vit_differences
from vitreous.weights.formats import (
    Draft,
    Format,
    Hints,
    choose_heads,
    choose_image_size,
    stated_preprocess,
    write_hub_folder,
)
from vitreous.weights.layouts import LEADING_AXIS, STACKED_QKV, Rule, pair, patch_kernel, rule
from vitreous.weights.tensor_files import RawCheckpoint, Tensors, by
from vitreous.words import one_line

TRANSFORMERS_PREFIXES = ("vit.", "deit.", "dinov2.", "dinov2_with_registers.")
TRANSFORMERS_ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_pytorch_tanh": "gelu-tanh",
    "gelu_new": "gelu-tanh",
    "relu": "relu",
}
RESAMPLE_NAMES = {0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic", 4: "box"}
CLIP_MEAN, CLIP_STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
PROJECTION_PATH = "embeddings.patch_embeddings.projection"
QKV = {"q": "query", "k": "key", "v": "value"}
MODULE_TO_FILE_NAMES = (  # module names in transformers 5 -> names in its files
    (r"^layers\.", "encoder.layer."),
    (r"\.attention\.(q|k|v)_proj\.", lambda m: f".attention.attention.{QKV[m[1]]}."),
    (r"\.attention\.o_proj\.", ".attention.output.dense."),
    (r"\.mlp\.down_proj\.", ".mlp.weights_out."),
)


def recognises(found: RawCheckpoint) -> bool:
    return any(strip(name) == f"{PROJECTION_PATH}.weight" for name in found.tensors)


def strip(name: str) -> str:
    for prefix in TRANSFORMERS_PREFIXES:
        name = name.removeprefix(prefix)
    return name


def tidy(tensors: Tensors) -> Tensors:
    """Tensors under the names in files, without the model's prefix."""
    is_dino = any(strip(n).endswith(".layer_scale1.lambda1") for n in tensors)

    def on_disk(name: str) -> str:
        plain = strip(name)
        for pattern, to in MODULE_TO_FILE_NAMES:
            plain = re.sub(pattern, to, plain)
        if not is_dino:
            plain = re.sub(r"(encoder\.layer\.\d+)\.mlp\.fc1\.", r"\1.intermediate.dense.", plain)
            plain = re.sub(r"(encoder\.layer\.\d+)\.mlp\.fc2\.", r"\1.output.dense.", plain)
        return plain

    new = tensors.renamed(on_disk)
    for gate in [name for name in new if ".mlp.gate_proj." in name]:  # one matrix on disk
        up = gate.replace("gate_proj", "up_proj")
        if up in new:
            new[gate.replace("gate_proj", "weights_in")] = torch.cat([new.pop(gate), new.pop(up)])
    return new


EPS_BY_MODEL_TYPE = {  # the eps of their config class, for the model types that we can build
    "vit": 1e-12,
    "deit": 1e-12,
    "vit_msn": 1e-6,
    "dinov2": 1e-6,
    "dinov2_with_registers": 1e-6,
}
REFUSED_MODEL_TYPES = {
    "vit_mae": "it hides three quarters of the patches at random, which is",
    "ijepa": "a mean of patches without a class token is, in this format,",
    "beit": "relative position biases are",
    "data2vec-vision": "relative position biases are",
    "dinov3_vit": "rotary positions are",
    "dpt": "a network that answers with depths is",
    "yolos": "detection tokens are",
    "audio-spectrogram-transformer": "sound is",
    "vilt": "text is",
}


def model_type(found: RawCheckpoint, hints: Hints, assumed: list[str]) -> str | None:
    """The model type from the user or the config, or None if unknown; refuses types that we cannot build."""
    stated = found.config.get("model_type")
    if hints.architecture is not None:
        if hints.architecture not in EPS_BY_MODEL_TYPE:
            raise FormatError(
                f"architecture={one_line(hints.architecture)} is not a transformers model_type that runs here; "
                f"take one of {', '.join(EPS_BY_MODEL_TYPE)}"
            )
        instead = "" if stated in (None, hints.architecture) else f", though the config names {one_line(stated)}"
        assumed.append(f"architecture {hints.architecture}: as given{instead}")
        return hints.architecture
    if "auto_map" in found.config:
        raise FormatError(
            f"{found.path} names code of its own (auto_map), which is never run here; "
            f"if it is one of {', '.join(EPS_BY_MODEL_TYPE)} all the same, say architecture="
        )
    if stated is not None and (not isinstance(stated, str) or stated not in EPS_BY_MODEL_TYPE):
        why = REFUSED_MODEL_TYPES.get(stated) if isinstance(stated, str) else None
        why = f"{why} not built here" if why else "that type is not among those known to run here as they do there"
        raise FormatError(
            f"{found.path} is transformers' {one_line(stated)}: {why}; to run its tensors as another type, "
            f"say architecture=, one of {', '.join(EPS_BY_MODEL_TYPE)}"
        )
    return stated


def draft(found: RawCheckpoint, hints: Hints) -> Draft:
    assumed: list[str] = []
    kind = model_type(found, hints, assumed)
    tensors, facts = tidy(found.tensors), found.config
    width, channels, p, q = tensors.shape(f"{PROJECTION_PATH}.weight", 4)
    is_dino = "encoder.layer.0.layer_scale1.lambda1" in tensors
    if kind is not None and is_dino != kind.startswith("dinov2"):
        raise FormatError(f"{found.path} is a {kind} by its config and not by its tensors; mend config.json")
    heads, note = choose_heads(width, found, hints, facts.get("num_attention_heads"))
    assumed += note
    is_gated = "encoder.layer.0.mlp.weights_in.weight" in tensors
    hidden_name = "mlp.weights_out" if is_gated else "mlp.fc2" if is_dino else "output.dense"
    mlp = tensors.shape(f"encoder.layer.0.{hidden_name}.weight", 2)[1]
    usual = EPS_BY_MODEL_TYPE[kind or ("dinov2" if is_dino else "vit")]
    activation, eps = choose_function(found, hints, is_gated, usual, assumed)
    has_two_heads = "distillation_classifier.weight" in tensors
    head = "cls_classifier" if has_two_heads else "classifier"
    classes = tensors.shape(f"{head}.weight", 2)[0] if f"{head}.weight" in tensors else 0
    reads_both = is_dino and classes > 0  # DINOv2's classifier reads the class token and the mean of patches
    pooler = "pooler.dense.weight"  # only the bare model has it; a classifier does not read it
    reads_pooler = pooler in tensors and not classes
    if reads_pooler and facts.get("pooler_act", "tanh") != "tanh":
        raise FormatError(
            f"{found.path} has pooler_act {one_line(facts['pooler_act'])!r}, and only tanh is built here; "
            f"take the tensors pooler.* out of the file"
        )
    rows = tensors.shape("embeddings.position_embeddings", 3)[1]
    config = ViTConfig().change(
        width=width,
        depth=tensors.depth("encoder.layer.{}."),
        heads=heads,
        mlp=mlp,
        channels=channels,
        patch=(p, q),
        activation=activation,
        norm_eps=eps,
        distillation_token="embeddings.distillation_token" in tensors,
        registers=tensors.shape("embeddings.register_tokens", 3)[1] if "embeddings.register_tokens" in tensors else 0,
        positions_cover="class" if is_dino else "all",
        position_resize="timm" if is_dino else "huggingface",
        qkv_bias="encoder.layer.0.attention.attention.query.bias" in tensors,
        layer_scale=1.0 if is_dino else None,
        mask_token=is_dino and "embeddings.mask_token" in tensors,
        pool="cls-and-distillation" if has_two_heads else "cls-and-gap" if reads_both else "cls",
        class_token=True,
        distillation_head=has_two_heads,
        classes=classes,
        representation=tensors.shape(pooler, 2)[0] if reads_pooler else 0,
    )
    size = choose_image_size(rows - config.covered, (p, q), found, hints, facts.get("image_size"), assumed=assumed)
    config = config.change(image_size=size)
    return Draft(config, preprocess(found, config, assumed), tensors, labels(facts, classes), assumed)


def choose_function(
    found: RawCheckpoint, hints: Hints, is_gated: bool, usual: float, assumed: list[str]
) -> tuple[str, float]:
    facts = found.config
    stated = facts.get("hidden_act")
    if is_gated:
        activation = "swiglu"
    elif hints.activation:
        activation = hints.activation
    elif stated is None:
        activation = "gelu"
        assumed.append("activation gelu: transformers' default")
    elif isinstance(stated, str) and stated in TRANSFORMERS_ACTIVATIONS:
        activation = TRANSFORMERS_ACTIVATIONS[stated]
    else:
        raise FormatError(
            f"{found.path} uses activation {one_line(stated)!r}, which is not built here; run another with activation="
        )
    eps = facts.get("layer_norm_eps") if hints.norm_eps is None else hints.norm_eps
    if eps is None:
        eps = usual
        assumed.append(f"norm_eps {usual:g}: transformers' default".replace("e-0", "e-"))
    if type(eps) not in (int, float):
        raise CheckpointError(f"the config of {found.path} says layer_norm_eps {one_line(eps)}; say norm_eps=")
    return activation, float(eps)


def labels(facts: Mapping[str, Any], classes: int) -> tuple[str, ...] | None:
    """Class names, unless they are only LABEL_0, LABEL_1, …"""
    named = facts.get("id2label")
    if not isinstance(named, dict) or sorted(named) != sorted(map(str, range(classes))) or not classes:
        return None
    words = tuple(str(named[str(i)]) for i in range(classes))
    return None if words == tuple(f"LABEL_{i}" for i in range(classes)) else words


def preprocess(found: RawCheckpoint, config: ViTConfig, assumed: list[str]) -> Preprocess:
    size = config.image_size
    if not found.preprocessor:
        assumed.append("preprocessing: the default of transformers' image processor")
        return default_preprocess(config)
    facts = with_defaults(found.preprocessor, assumed)
    number = facts["resample"]
    if type(number) is not int or number not in RESAMPLE_NAMES:
        assumed.append(f"interpolation bilinear: resample {one_line(number)} is not built here")
        number = 2
    mean, std = normalisation(found, facts, config.channels)
    common: dict[str, Any] = {"interpolation": RESAMPLE_NAMES[number], "antialias": True, "mean": mean, "std": std}
    common |= {"centre": "floor", "source": "huggingface"}
    resized, cut = _edges(facts.get("size"), size), _edges(facts.get("crop_size"), size)
    if facts.get("do_resize", True) is False:
        assumed.append(f"images squashed to {by(size)}: do_resize is false, and the network takes no other size")
        return stated_preprocess(found, size=size, **common)
    if "shortest_edge" in resized and not facts.get("do_center_crop"):
        assumed.append(f"centre crop {by(size)}: do_center_crop is not true, and the network takes no other size")
    if not facts.get("do_center_crop") and "shortest_edge" not in resized:
        return stated_preprocess(found, size=_pair(resized), **common).at(size)
    # The processor may crop to another size than the network's (DINOv2: 224 for 518): keep the ratio.
    fit = "crop" if "shortest_edge" in resized else "squash-crop"
    side = resized["shortest_edge"] if fit == "crop" else _pair(resized)[0]
    return stated_preprocess(found, size=_pair(cut), fit=fit, short_side=side, **common).at(size)


PROCESSOR_DEFAULTS: dict[str, dict[str, Any]] = {  # of transformers' image processors
    "ViT": {"resample": 2, "image_mean": HALF_RGB, "image_std": HALF_RGB},
    "DeiT": {
        "size": {"height": 256, "width": 256},
        "do_center_crop": True,
        "crop_size": {"height": 224, "width": 224},
        "resample": 3,
        "image_mean": HALF_RGB,
        "image_std": HALF_RGB,
    },
    "Bit": {
        "size": {"shortest_edge": 224},
        "do_center_crop": True,
        "crop_size": {"height": 224, "width": 224},
        "resample": 3,
        "image_mean": CLIP_MEAN,
        "image_std": CLIP_STD,
    },
}
PROCESSOR_DEFAULTS["CLIP"] = PROCESSOR_DEFAULTS["Bit"]


def with_defaults(facts: Mapping[str, Any], assumed: list[str]) -> dict[str, Any]:
    """A processor's config with its class's defaults filled in; an unknown class gets ViT's, noted in `assumed`."""
    word = facts.get("image_processor_type", facts.get("feature_extractor_type"))
    kind = re.sub(r"(ImageProcessor|FeatureExtractor)(Fast)?$", "", word) if isinstance(word, str) else "ViT"
    left_out = [name for name in PROCESSOR_DEFAULTS["ViT"] if name not in facts]
    if facts.get("do_normalize") is False:
        left_out = [name for name in left_out if name == "resample"]
    if kind not in PROCESSOR_DEFAULTS or word is None:
        assumed += [f"{', '.join(left_out)}: ViTImageProcessor's default"] if left_out else []
    return {**PROCESSOR_DEFAULTS.get(kind, PROCESSOR_DEFAULTS["ViT"]), **facts}


def _edges(facts: Any, default: Size) -> dict[str, Any]:
    """A processor's size: a number, {height, width} or {shortest_edge}; by default the network's."""
    if isinstance(facts, dict) and ("shortest_edge" in facts or {"height", "width"} <= set(facts)):
        return facts
    return {"height": default[0], "width": default[1]} if facts is None else {"height": facts, "width": facts}


def _pair(edges: Mapping[str, Any]) -> tuple[Any, Any]:
    side = edges.get("shortest_edge")
    return (edges["height"], edges["width"]) if side is None else (side, side)


def normalisation(found: RawCheckpoint, facts: Mapping[str, Any], channels: int) -> tuple[Any, Any]:
    """Mean and std for pixels in 0 … 1; the processor's apply after its own rescaling."""
    mean, std = facts["image_mean"], facts["image_std"]
    if facts.get("do_normalize") is False:
        mean, std = [0.0] * channels, [1.0] * channels
    factor = facts.get("rescale_factor", 1 / 255) if facts.get("do_rescale", True) else 1
    scale = 255 * factor if type(factor) in (int, float) else 0
    numbers = [*mean, *std] if isinstance(mean, list | tuple) and isinstance(std, list | tuple) else [None]
    if not all(type(n) in (int, float) for n in numbers) or not 0 < scale < 1e6:
        raise CheckpointError(f"the preprocessing of {found.path} makes no sense; mend preprocessor_config.json")
    if abs(scale - 1) < 1e-6:
        return mean, std
    return [n / scale for n in mean], [n / scale for n in std]


def default_preprocess(config: ViTConfig) -> Preprocess:
    size = config.image_size
    common: dict[str, Any] = {"antialias": True, "centre": "floor", "source": "huggingface (assumed)"}
    side = round(min(size) * 256 / 224)
    if config.encoder.layer_scale is not None:
        common |= {"mean": IMAGENET_MEAN, "std": IMAGENET_STD}
        return Preprocess(size=size, fit="crop", short_side=side, interpolation="bicubic", **common)
    if config.embedding.distillation_token:
        return Preprocess(size=size, fit="squash-crop", short_side=side, interpolation="bicubic", **common)
    return Preprocess(size=size, **common)


def rules(config: Config) -> list[Rule]:
    assert isinstance(config, ViTConfig)
    b, e, r = config.embedding, config.encoder, config.readout
    is_dino, is_gated = e.layer_scale is not None, e.activation == "swiglu"
    out = pair("embedding.projection", PROJECTION_PATH, weight=patch_kernel(config.channels, b.patch, theirs="torch"))
    out.append(rule("embedding.class_token", "embeddings.cls_token", move=LEADING_AXIS))
    if b.distillation_token:
        out.append(rule("embedding.distillation_token", "embeddings.distillation_token", move=LEADING_AXIS))
    out += [rule("embedding.registers", "embeddings.register_tokens", move=LEADING_AXIS)] if b.registers else []
    out += [rule("embedding.mask_token", "embeddings.mask_token")] if b.mask_token else []
    out.append(rule("embedding.positions.table", "embeddings.position_embeddings", move=LEADING_AXIS))
    norms, mlp = ("layernorm_before", "layernorm_after"), ("intermediate.dense", "output.dense")
    if is_dino:
        norms, mlp = ("norm1", "norm2"), ("mlp.fc1", "mlp.fc2")
    if is_gated:
        mlp = ("mlp.weights_in", "mlp.weights_out")
    for i in range(e.depth):
        ours, theirs = f"blocks.{i}", f"encoder.layer.{i}"
        for kind in ("weight", "bias")[: 2 if e.qkv_bias else 1]:
            three = [f"{theirs}.attention.attention.{n}.{kind}" for n in ("query", "key", "value")]
            out.append(rule(f"{ours}.attention.qkv.{kind}", *three, move=STACKED_QKV))
        out += pair(f"{ours}.attention.merge", f"{theirs}.attention.output.dense")
        out += pair(f"{ours}.norm1", f"{theirs}.{norms[0]}") + pair(f"{ours}.norm2", f"{theirs}.{norms[1]}")
        out += pair(f"{ours}.mlp.expand", f"{theirs}.{mlp[0]}") + pair(f"{ours}.mlp.contract", f"{theirs}.{mlp[1]}")
        if is_dino:
            out.append(rule(f"{ours}.attention.end.scale.gain", f"{theirs}.layer_scale1.lambda1"))
            out.append(rule(f"{ours}.mlp.end.scale.gain", f"{theirs}.layer_scale2.lambda1"))
    out += pair("norm", "layernorm")
    if r.representation:
        out += pair("representation.linear", "pooler.dense")
    if r.distillation_head:
        out += pair("head.class_head", "cls_classifier") + pair("head.distillation_head", "distillation_classifier")
    elif r.classes:
        out += pair("head", "classifier")
    return out


def refuses(config: Config) -> list[Difference]:
    if not isinstance(config, ViTConfig):
        return [Difference("a BiT")]
    b, e, r = config.embedding, config.encoder, config.readout
    is_dino = e.layer_scale is not None
    pools = ("cls", "cls-and-distillation") if b.distillation_token else ("cls",)
    if is_dino and r.classes:
        pools = ("cls-and-gap",)
    out = vit_differences(
        config,
        positions_cover=("class",) if is_dino else ("all",),
        distillation_token=(b.distillation_token and not is_dino,),
        registers=None if is_dino else (0,),
        norm_eps=None,
        activation=("gelu", "gelu-tanh", "relu", *(("swiglu",) if is_dino else ())),
        qkv_bias=None,
        layer_scale=None,
        pool=pools,
        distillation_head=None,
        representation=(0,) if r.classes or is_dino else None,
    )
    if is_dino and b.patch[0] != b.patch[1]:
        out.append(Difference("patch", by(b.patch)))
    return out


def to_hold(config: Config, state: Mapping[str, Tensor]) -> tuple[Config, Mapping[str, Tensor]]:
    """Class and distillation tokens have positions here; DINOv2's registers have none."""
    is_dino = isinstance(config, ViTConfig) and config.encoder.layer_scale is not None
    return cover(config, state, "class" if is_dino else "all")


def kind_of(config: ViTConfig) -> str:
    if config.encoder.layer_scale is not None:
        return "dinov2_with_registers" if config.embedding.registers else "dinov2"
    return "deit" if config.embedding.distillation_token else "vit"


ARCHITECTURES = {"vit": "ViT", "deit": "DeiT", "dinov2": "Dinov2", "dinov2_with_registers": "Dinov2WithRegisters"}


def write(model: Model, tensors: Mapping[str, Tensor], path: Path) -> list[Path]:
    """A folder that `from_pretrained` reads: config.json, preprocessor_config.json, model.safetensors."""
    config = model.config
    assert isinstance(config, ViTConfig)
    kind = kind_of(config)
    prefix = f"{kind}." if config.readout.classes else ""
    named = {
        n if n.startswith(("classifier.", "cls_classifier.", "distillation_classifier.")) else prefix + n: t
        for n, t in tensors.items()
    }
    if kind.startswith("dinov2") and not config.embedding.mask_token:
        named[f"{prefix}embeddings.mask_token"] = torch.zeros(1, config.encoder.width)  # plays no part in the function
    return write_hub_folder(path, named, config=hf_config(model, kind), preprocessor_config=hf_preprocessor(model))


def hf_config(model: Model, kind: str) -> dict[str, Any]:
    config = model.config
    assert isinstance(config, ViTConfig)
    e, r = config.encoder, config.readout
    task = "ForImageClassification" if r.classes else "Model"
    task += "WithTeacher" if r.distillation_head else ""
    labels = model.labels or tuple(f"LABEL_{i}" for i in range(r.classes))
    back = {ours: theirs for theirs, ours in reversed(TRANSFORMERS_ACTIVATIONS.items())}
    out: dict[str, Any] = {
        "architectures": [ARCHITECTURES[kind] + task],
        "model_type": kind,
        "hidden_size": e.width,
        "num_hidden_layers": e.depth,
        "num_attention_heads": e.heads,
        "hidden_act": back.get(e.activation, "gelu"),
        "layer_norm_eps": e.norm_eps,
        "qkv_bias": e.qkv_bias,
        "image_size": _plain(config.image_size),
        "patch_size": _plain(config.embedding.patch),
        "num_channels": config.channels,
        "hidden_dropout_prob": e.dropout,
        "attention_probs_dropout_prob": e.attention_dropout,
        "dtype": "float32",
    }
    if kind.startswith("dinov2"):
        is_gated = e.activation == "swiglu"
        ratio = e.mlp / e.width * (1.5 if is_gated else 1)  # transformers takes two thirds for the gated form
        out |= {
            "mlp_ratio": int(ratio) if ratio == int(ratio) else ratio,
            "use_swiglu_ffn": is_gated,
            "layerscale_value": e.layer_scale,
        }
        if config.embedding.registers:
            out["num_register_tokens"] = config.embedding.registers
    else:
        out |= {"intermediate_size": e.mlp, "encoder_stride": config.embedding.patch[0]}
        if r.representation:
            out |= {"pooler_output_size": r.representation, "pooler_act": "tanh"}
    if r.classes:
        out |= {"id2label": {str(i): n for i, n in enumerate(labels)}, "label2id": {n: i for i, n in enumerate(labels)}}
    return out


PROCESSORS = {"squash": "ViTImageProcessor", "crop": "BitImageProcessor", "squash-crop": "DeiTImageProcessor"}


def hf_preprocessor(model: Model) -> dict[str, Any]:
    pre = model.preprocess
    h, w = pre.size
    out: dict[str, Any] = {
        "image_processor_type": PROCESSORS[pre.fit],
        "do_resize": True,
        "size": {"height": h, "width": w},
        "resample": {name: number for number, name in RESAMPLE_NAMES.items()}[pre.interpolation],
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": list(pre.mean),
        "image_std": list(pre.std),
    }
    if pre.fit != "squash":
        side = pre.short_side
        out["size"] = {"shortest_edge": side} if pre.fit == "crop" else {"height": side, "width": side}
        out |= {"do_center_crop": True, "crop_size": {"height": h, "width": w}}
    return out


def _plain(size: Size) -> int | list[int]:
    return size[0] if size[0] == size[1] else list(size)


HUGGINGFACE_FORMAT = Format(
    name="huggingface",
    holds="ViT, DeiT and DINOv2 of transformers, a folder with config.json",
    recognises=recognises,
    draft=draft,
    rules=rules,
    refuses=refuses,
    to_hold=to_hold,
    write=write,
    is_folder=True,
    names_architectures=True,
    ignores=lambda name: name == "embeddings.mask_token" or name.startswith("pooler."),
)
