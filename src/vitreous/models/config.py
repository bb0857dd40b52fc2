"""What a network is, as frozen values that go to JSON and back.

A config is grouped as the paper's equations are: `embedding` (1: an image becomes tokens), `encoder` (2, 3: what the
blocks do), `readout` (4: tokens become an answer). Every option has one name over all groups, so a change needs no
path: `config.change(positions="none", registers=4)`.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec

from vitreous.errors import ConfigError, advice

Size = tuple[int, int]  # rows, columns
THEIR_WORDS = {  # other libraries' names -> ours
    word: said
    for said, words in {
        "image_size={}": "img_size imgsz input_size resolution",
        "classes={}": "num_classes n_classes num_labels",
        "channels={}": "in_chans in_channels num_channels",
        "patch={}": "patch_size",
        "width={}": "embed_dim hidden_size hidden_dim d_model dim",
        "depth={}": "layers num_layers n_layers num_hidden_layers num_blocks",
        "heads={}": "num_heads n_heads num_attention_heads",
        "mlp={}": "mlp_dim intermediate_size",
        "mlp=…, {} times the width": "mlp_ratio",
        "pool={}": "global_pool pooling",
        "registers={}": "reg_tokens num_registers num_register_tokens",
        "class_token={}": "cls_token use_cls_token",
        "positions={}": "pos_embed position_embedding positional_encoding",
        "dropout={}": "drop_rate dropout_rate hidden_dropout_prob",
        "attention_dropout={}": "attn_drop attn_drop_rate attention_probs_dropout_prob",
        "drop_path={}": "drop_path_rate stochastic_depth",
        "activation={}": "act act_layer hidden_act",
        "norm_eps={}": "eps layer_norm_eps",
        "layer_scale={}": "init_values",
        "representation={}": "representation_size",
    }.items()
    for word in words.split()
}


def option(default: Any, meaning: str, *values: str) -> Any:
    """A config field: its default, its meaning in one line, and its allowed values if the list is fixed."""
    return field(default=default, metadata={"meaning": meaning, "values": values})


@dataclass(frozen=True, kw_only=True)
class EmbeddingConfig:
    """Equation 1: z₀ = [x_class; x₁E; …; x_N E] + E_pos."""

    stem: str = option(
        "patch", "what the patches are cut from: the image, or a feature map", "patch", "resnet", "convolutions"
    )
    patch: Size = option((16, 16), "rows and columns of a patch; on the feature map for a resnet stem")
    patch_bias: bool = option(True, "whether the patch projection has a bias")
    positions: str = option("learned", "kind of position embedding", "@positions")
    positions_at: str = option("stem", "where positions enter", "stem", "every-layer", "every-layer-shared")
    positions_cover: str = option(
        "all", "tokens that have a position: all, class (not registers), patches", "all", "class", "patches"
    )
    position_resize: str = option(
        "paper", "whose rule resizes learned positions", "paper", "timm", "huggingface", "torchvision"
    )
    class_token: bool = option(True, "whether a class token stands in front")
    distillation_token: bool = option(False, "whether DeiT's second token follows it")
    registers: int = option(0, "register tokens after those")
    mask_token: bool = option(
        False, "a learned vector for patches hidden in pre-training; no part of the plain forward"
    )
    norm_before_blocks: bool = option(False, "a norm between the tokens and the first block (CLIP)")
    token_start: str = option("zeros", "first value of the class token; normal is N(0, 0.02²)", "zeros", "normal")
    position_start: str = option(
        "normal", "first value of learned positions; normal is N(0, 0.02²)", "normal", "zeros", "unit", "sincos"
    )


@dataclass(frozen=True, kw_only=True)
class EncoderConfig:
    """Equations 2 and 3: z′ = MSA(LN(z)) + z and z = MLP(LN(z′)) + z′, depth times."""

    width: int = option(768, "D, numbers per token")
    depth: int = option(12, "blocks")
    heads: int = option(12, "attention heads; each has width / heads numbers")
    mlp: int = option(3072, "hidden width of the MLP")
    norm: str = option("pre", "norm at the branch's input, or after the sum", "pre", "post")
    norm_kind: str = option("layer", "layer norm, or batch norm over all tokens", "layer", "batch")
    norm_eps: float = option(1e-6, "added to the variance in every norm")
    activation: str = option("gelu-tanh", "inside the MLP", "gelu", "gelu-tanh", "relu", "swiglu")
    qkv_bias: bool = option(True, "whether queries, keys and values have a bias")
    qk_norm: bool = option(False, "layer norm of each query and key")
    attention_scale: float | None = option(None, "factor on q·k; none is 1/√(width / heads)")
    skips: tuple[int, ...] = option((), "numbers of the blocks whose skip connections are cut")
    layer_scale: float | None = option(None, "first value of a learned gain on each branch; none is no gain")
    dropout: float = option(0.0, "on the tokens, after attention, twice in the MLP")
    attention_dropout: float = option(0.0, "on the attention weights")
    drop_path: float = option(0.0, "share of branches left out in the last block, rising from 0 in the first")


@dataclass(frozen=True, kw_only=True)
class ReadoutConfig:
    """Equation 4: y = LN(z_L⁰), then a head."""

    classes: int = option(1000, "answers of the head; 0 is no head: the model returns its representation")
    pool: str = option("cls", "how tokens become one vector", "@pools")
    pool_order: str = option(
        "norm-first", "final norm on the tokens, or on the pooled vector", "norm-first", "mean-first"
    )
    representation: int = option(0, "width of the tanh layer before the head; 0 is none")
    distillation_head: bool = option(False, "a second head on the distillation token; the answer is their mean (DeiT)")


@dataclass(frozen=True, kw_only=True)
class ResNetConfig:
    """The convolutional part: all of a BiT, or a hybrid's stem."""

    units: tuple[int, ...] = option((3, 4, 6, 3), "bottleneck units in each stage")
    resnet_width: float = option(1.0, "factor on every channel count")
    root: str = option(
        "imagenet", "7×7 stride 2 and a pool; or small: 3×3 stride 1, for 32 and 64 pixels", "imagenet", "small"
    )
    root_pad: str = option("zeros", "what the root's pool sees beyond the border", "zeros", "infinity")
    standardise_eps: float = option(1e-10, "guards the division in weight standardisation")
    standardise_eps_at: str = option("variance", "√(variance + eps), or deviation + eps", "variance", "deviation")
    group_norm_eps: float = option(1e-5, "added to the variance in every group norm")


HYBRID_RESNET = ResNetConfig(
    root_pad="infinity", standardise_eps=1e-5, standardise_eps_at="deviation", group_norm_eps=1e-6
)  # as the official code runs a hybrid's stem


@dataclass(frozen=True, kw_only=True)
class ViTConfig:
    """A Vision Transformer, plain or hybrid."""

    image_size: Size = option((224, 224), "rows and columns of an image, in pixels")
    channels: int = option(3, "numbers per pixel")
    dynamic_image_size: bool = option(False, "resize positions on the fly for images of another size")
    embedding: EmbeddingConfig = field(default_factory=EmbeddingConfig)
    encoder: EncoderConfig = field(default_factory=EncoderConfig)
    readout: ReadoutConfig = field(default_factory=ReadoutConfig)
    resnet: ResNetConfig = HYBRID_RESNET

    @property
    def prefix(self) -> int:
        """Tokens in front of the patches."""
        e = self.embedding
        return e.class_token + e.distillation_token + e.registers

    @property
    def covered(self) -> int:
        """Tokens in front of the patches that have a row in the position table."""
        e = self.embedding
        return {"all": self.prefix, "class": e.class_token + e.distillation_token, "patches": 0}[e.positions_cover]

    def change(self, **changes: Any) -> ViTConfig:
        return _change(self, changes)

    def to_json(self) -> dict[str, Any]:
        return {"family": "vit", **msgspec.to_builtins(self)}


@dataclass(frozen=True, kw_only=True)
class BiTReadoutConfig:
    classes: int = option(1000, "answers of the head; 0 is no head: the model returns its representation")


@dataclass(frozen=True, kw_only=True)
class BiTConfig:
    """A BiT ResNet-v2."""

    image_size: Size = option((224, 224), "rows and columns of an image, in pixels")
    channels: int = option(3, "numbers per pixel")
    resnet: ResNetConfig = field(default_factory=ResNetConfig)
    readout: BiTReadoutConfig = field(default_factory=BiTReadoutConfig)

    def change(self, **changes: Any) -> BiTConfig:
        return _change(self, changes)

    def to_json(self) -> dict[str, Any]:
        return {"family": "bit", **msgspec.to_builtins(self)}


Config = ViTConfig | BiTConfig
FAMILIES: dict[str, type] = {"vit": ViTConfig, "bit": BiTConfig}


def from_json(data: Any) -> Config:
    """Read what `to_json` wrote; an error names the unknown field, wrong type or unknown family."""
    if not isinstance(data, dict):
        raise ConfigError(
            f"a model config is a JSON object, not {type(data).__name__}; write one with config.to_json()"
        )
    family = data.get("family")
    if family not in FAMILIES:
        raise ConfigError(
            f"family {family!r} is not one of {', '.join(FAMILIES)}; write the config with config.to_json()"
        )
    rest = {k: v for k, v in data.items() if k != "family"}
    _refuse_unknown_fields(FAMILIES[family], rest, "config")
    try:
        return msgspec.convert(rest, FAMILIES[family])
    except msgspec.ValidationError as error:
        raise ConfigError(f"the model config does not fit: {error}; write it with config.to_json()") from None


def _refuse_unknown_fields(part: type, data: Any, path: str) -> None:
    if not isinstance(data, dict):
        return  # msgspec's own message is better
    hints = typing.get_type_hints(part)
    for name, value in data.items():
        if name not in hints:
            raise ConfigError(f"{path} has no field {name!r}; written by a newer vitreous?")
        if dataclasses.is_dataclass(hints[name]):
            _refuse_unknown_fields(typing.cast(type, hints[name]), value, f"{path}.{name}")


def options(config: Config) -> Iterator[tuple[str, str, dataclasses.Field, Any]]:
    """Every option: its group ('' for the config itself), name, field and value."""
    for f in dataclasses.fields(config):
        value = getattr(config, f.name)
        if dataclasses.is_dataclass(value):
            for inner in dataclasses.fields(value):
                yield f.name, inner.name, inner, getattr(value, inner.name)
        else:
            yield "", f.name, f, value


def _change(config: Any, changes: dict[str, Any]) -> Any:
    """`config` with options replaced by name; strings such as "4" or "8x16" are parsed as the option's type."""
    known = {name: group for group, name, _, _ in options(config)}
    grouped: dict[str, dict[str, Any]] = {}
    for name, value in changes.items():
        if name not in known:
            do = advice(name, known, theirs=THEIR_WORDS, value=value)
            raise ConfigError(f"there is no model option {name!r}; {do} (all: vitreous models --options)")
        owner = getattr(config, known[name]) if known[name] else config
        hint = typing.get_type_hints(type(owner))[name]
        grouped.setdefault(known[name], {})[name] = _read(name, value, hint)
    new = grouped.pop("", {})
    for group, values in grouped.items():
        new[group] = dataclasses.replace(getattr(config, group), **values)
    return dataclasses.replace(config, **new)


def _read(name: str, value: Any, hint: Any) -> Any:
    """Parse `value` as the option's type, or fail in one line."""
    try:
        if hint == Size:
            return as_size(value, name)
        if isinstance(value, str) and hint is not str:
            if value == "none" and types.NoneType in typing.get_args(hint):
                return None
            if typing.get_origin(hint) is tuple:
                return tuple(int(word) for word in value.replace("-", ",").split(",") if word)
            return msgspec.convert(value, hint, strict=False)
        if typing.get_origin(hint) is tuple:
            value = tuple(value)
        return msgspec.convert(value, hint)
    except (msgspec.ValidationError, ValueError, TypeError):
        wanted = getattr(hint, "__name__", str(hint))
        raise ConfigError(f"{name}={value!r} is not of type {wanted}; see: vitreous models --options") from None


def as_size(value: Any, name: str = "image_size") -> Size:
    """Rows and columns from a number, a pair, or a string such as "224" or "224x160"."""
    if isinstance(value, str):
        words = value.lower().replace("×", "x").split("x")
        value = [int(word) if word.strip().isdigit() else 0 for word in words]
        value = value[0] if len(value) == 1 else value
    if isinstance(value, int):
        value = (value, value)
    try:
        rows, columns = (int(n) for n in value)
    except (TypeError, ValueError):
        raise ConfigError(f"{name}={value!r} is not a size; give a number or (rows, columns)") from None
    if rows < 1 or columns < 1:
        raise ConfigError(f"{name} {rows}x{columns} is not a size; give positive numbers of pixels")
    return rows, columns
