"""What a network is, as frozen values that go to JSON and back.

A config is grouped as the paper's equations are: `embedding` (1: an image becomes tokens), `encoder` (2, 3: what the
blocks do), `readout` (4: tokens become an answer). The name of an option is unique over all groups, so a change needs
no path: `config.change(positions="none", registers=4)`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

import msgspec

from vitreous.errors import ConfigError
from vitreous.options import changed, check_known, json_object, option, options_of, read_json, their_words

Size = tuple[int, int]  # rows, columns
THEIR_WORDS = their_words(
    {
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
        "rotary_base={}": "rope_theta rope_temperature",
        "rotary={}": "rope rope_type use_rot_pos_emb",
        "representation={}": "representation_size",
    }
)


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


def as_grid(value: Any, name: str) -> Size | None:
    """A size in patches, or none."""
    return None if value in (None, "none") else as_size(value, name)


@dataclass(frozen=True, kw_only=True)
class EmbeddingConfig:
    """Equation 1: z₀ = [x_class; x₁E; …; x_N E] + E_pos."""

    stem: str = option(
        "patch", "what the patches are cut from: the image, or a feature map", "patch", "resnet", "convolutions"
    )
    patch: Size = option((16, 16), "rows and columns of a patch; on the feature map for a resnet stem", read=as_size)
    patch_bias: bool = option(True, "whether the patch projection has a bias")
    patch_norm: bool = option(False, "a norm of each patch, before its position (AIMv2)")
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
    registers: int = option(0, "register tokens after those", at_least=0)
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

    width: int = option(768, "D, numbers per token", above=0)
    depth: int = option(12, "blocks", above=0)
    heads: int = option(12, "attention heads; each has width / heads numbers", above=0)
    mlp: int = option(3072, "hidden width of the MLP", above=0)
    norm: str = option("pre", "norm at the branch's input, at its end, or after the sum", "pre", "branch", "post")
    norm_kind: str = option("layer", "layer norm, RMS norm, or batch norm over all tokens", "layer", "rms", "batch")
    inner_norm: str = option(
        "none", "a norm before the last map of a branch (EVA-02's sub-LN)", "none", "attention", "mlp", "both"
    )
    norm_eps: float = option(1e-6, "added to the variance in every norm", above=0)
    activation: str = option("gelu-tanh", "inside the MLP", "gelu", "gelu-tanh", "quick-gelu", "silu", "relu", "swiglu")
    qkv_bias: bool = option(True, "whether queries, keys and values have a bias")
    key_bias: bool = option(True, "whether keys have one too (not in BEiT, EVA and DINOv3)")
    branch_bias: bool = option(True, "whether the other maps of attention and MLP have a bias")
    qk_norm: bool = option(False, "a norm of each query and key")
    attention_bias: str = option(
        "none", "on q·k, by the offset of two patches: a table (BEiT), or an MLP of it", "none", "table", "mlp"
    )
    attention_bias_at: str = option(
        "every-layer", "one for each layer, one for all, or both", "every-layer", "shared", "both"
    )
    attention_bias_mlp: int = option(128, "hidden width of attention_bias=mlp", above=0)
    attention_scale: float | None = option(None, "factor on q·k; none is 1/√(width / heads)")
    skips: tuple[int, ...] = option((), "numbers of the blocks whose skip connections are cut")
    layer_scale: float | None = option(None, "first value of a learned gain on each branch; none is no gain")
    dropout: float = option(0.0, "on the tokens, after attention, twice in the MLP", at_least=0, below=1)
    attention_dropout: float = option(0.0, "on the attention weights", at_least=0, below=1)
    drop_path: float = option(
        0.0, "share of branches left out in the last block, rising from 0 in the first", at_least=0, below=1
    )


@dataclass(frozen=True, kw_only=True)
class RotaryConfig:
    """Queries and keys turn by angles that grow with the row and the column of their patch (arXiv 2104.09864)."""

    rotary: str = option(
        "none", "turn queries and keys by the patch's row and column, or by learned mixes", "none", "axial", "mixed"
    )
    rotary_places: str = option(
        "patches", "places count patches, or run from -1 to 1 across the image (DINOv3)", "patches", "image"
    )
    rotary_base: float = option(100.0, "how much slower the slowest pair turns than the fastest", above=0)
    rotary_pairs: str = option(
        "neighbours", "numbers that turn together: 0 and 1, or 0 and d/2", "neighbours", "halves"
    )
    rotary_first: str = option("rows", "whose angles come first", "rows", "columns")
    rotary_start: float = option(0.0, "place of the first patch")
    rotary_grid: Size | None = option(
        None, "rows and columns that the grid is stretched to (EVA-02); none counts patches", read=as_grid
    )


@dataclass(frozen=True, kw_only=True)
class ReadoutConfig:
    """Equation 4: y = LN(z_L⁰), then a head."""

    classes: int = option(1000, "answers of the head; 0 is no head: the model returns its representation", at_least=0)
    pool: str = option("cls", "how tokens become one vector", "@pools")
    pool_order: str = option(
        "norm-first", "final norm on the tokens, on the pooled vector, or none", "norm-first", "mean-first", "no-norm"
    )
    pool_tokens: str = option("patches", "tokens that gap, max and map read", "patches", "all")
    pool_heads: int = option(0, "heads of pool=map; 0 is the encoder's", at_least=0)
    pool_mlp: int = option(0, "hidden width of the MLP in pool=map; 0 is the encoder's", at_least=0)
    representation: int = option(0, "width of the layer before the head; 0 is none", at_least=0)
    representation_kind: str = option(
        "tanh", "that layer: tanh (the paper's), or linear without a bias (CLIP's projection)", "tanh", "linear"
    )
    distillation_head: bool = option(False, "a second head on the distillation token; the answer is their mean (DeiT)")


@dataclass(frozen=True, kw_only=True)
class ResNetConfig:
    """The convolutional part: all of a BiT, or a hybrid's stem."""

    units: tuple[int, ...] = option((3, 4, 6, 3), "bottleneck units in each stage", at_least=1)
    resnet_width: float = option(1.0, "factor on every channel count", above=0)
    root: str = option(
        "imagenet", "7×7 stride 2 and a pool; or small: 3×3 stride 1, for 32 and 64 pixels", "imagenet", "small"
    )
    root_pad: str = option("zeros", "what the root's pool sees beyond the border", "zeros", "infinity")
    standardise_eps: float = option(1e-10, "guards the division in weight standardisation", above=0)
    standardise_eps_at: str = option("variance", "√(variance + eps), or deviation + eps", "variance", "deviation")
    group_norm_eps: float = option(1e-5, "added to the variance in every group norm", above=0)


HYBRID_RESNET = ResNetConfig(
    root_pad="infinity", standardise_eps=1e-5, standardise_eps_at="deviation", group_norm_eps=1e-6
)  # as the official code runs a hybrid's stem


@dataclass(frozen=True, kw_only=True)
class NetworkConfig:
    """What all networks share."""

    family: ClassVar[str]
    image_size: Size = option((224, 224), "rows and columns of an image, in pixels", read=as_size)
    channels: int = option(3, "numbers per pixel", above=0)

    def change(self, **changes: Any) -> Self:
        """This config with options replaced by name; words such as "4" or "8x16" are read as the option's type."""
        known = [each.name for each in options_of(self)]
        see = " (all: vitreous models --options)"
        check_known(changes, known, "there is no model option", theirs=THEIR_WORDS, see=see)
        return changed(self, changes)

    def to_json(self) -> dict[str, Any]:
        return {"family": self.family, **msgspec.to_builtins(self)}


@dataclass(frozen=True, kw_only=True)
class ViTConfig(NetworkConfig):
    """A Vision Transformer, plain or hybrid."""

    family = "vit"

    dynamic_image_size: bool = option(False, "resize positions on the fly for images of another size")
    embedding: EmbeddingConfig = field(default_factory=EmbeddingConfig)
    encoder: EncoderConfig = field(default_factory=EncoderConfig)
    rotation: RotaryConfig = RotaryConfig()
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

    @property
    def knows_places(self) -> bool:
        """True if anything tells a token where it stands."""
        return (self.embedding.positions, self.rotation.rotary, self.encoder.attention_bias) != ("none",) * 3


@dataclass(frozen=True, kw_only=True)
class BiTReadoutConfig:
    classes: int = option(1000, "answers of the head; 0 is no head: the model returns its representation", at_least=0)


@dataclass(frozen=True, kw_only=True)
class BiTConfig(NetworkConfig):
    """A BiT ResNet-v2."""

    family = "bit"

    resnet: ResNetConfig = field(default_factory=ResNetConfig)
    readout: BiTReadoutConfig = field(default_factory=BiTReadoutConfig)


Config = ViTConfig | BiTConfig
FAMILIES: dict[str, type] = {"vit": ViTConfig, "bit": BiTConfig}


def from_json(data: Any) -> Config:
    """Read what `to_json` wrote; an error names the unknown field, wrong type or unknown family."""
    rest = json_object(data, "a model config")
    family = rest.pop("family", None)
    if family not in FAMILIES:
        raise ConfigError(f"family {family!r} is not one of {', '.join(FAMILIES)}; write the config with to_json()")
    return read_json(FAMILIES[family], rest, "the model config")
