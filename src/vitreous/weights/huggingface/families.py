"""What transformers calls each vision transformer: one row per model type, one `Names` per way of naming tensors.

To add a model type whose parts are built, add a row in FAMILIES. A row says what a config may leave out, how the answer
is read, and which options its class can hold; reading checks a file against it, writing takes the first row that fits.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from vitreous.models.config import Config, ViTConfig
from vitreous.weights.compatibility import Difference, vit_differences
from vitreous.weights.tensor_files import by


@dataclass(frozen=True)
class Names:
    """Where a file keeps each part; an empty name: the part does not exist there."""

    patch: str = "embeddings.patch_embeddings.projection"
    class_token: str = "embeddings.cls_token"
    distillation_token: str = "embeddings.distillation_token"
    registers: str = "embeddings.register_tokens"
    mask_token: str = "embeddings.mask_token"
    positions: str = "embeddings.position_embeddings"
    first_norm: str = ""
    block: str = "encoder.layer"
    qkv: tuple[str, str, str] = ("attention.attention.query", "attention.attention.key", "attention.attention.value")
    merge: str = "attention.output.dense"
    norms: tuple[str, str] = ("layernorm_before", "layernorm_after")
    mlp: tuple[str, str] = ("intermediate.dense", "output.dense")
    gated: tuple[str, ...] = ()  # the maps into a gated MLP: one for both halves, or two
    gated_out: str = ""
    gains: tuple[str, str] = ("lambda_1", "lambda_2")
    bias_table: str = "attention.attention.relative_position_bias.relative_position_bias_table"
    shared_bias_table: str = "encoder.relative_position_bias.relative_position_bias_table"
    norm: str = "layernorm"
    pooled_norm: str = "pooler.layernorm"
    representation: str = "pooler.dense"
    map_pool: str = ""
    head: str = "classifier"
    is_flat: bool = False  # class token and positions have no leading axis of length 1
    mask_axes: int = 2  # of the mask token
    in_memory: tuple[tuple[str, str], ...] = ()  # patterns of a module's names in transformers 5, and names in files

    def in_block(self, part: str, i: int = 0) -> str:
        return f"{self.block}.{i}.{part}"

    def of_qkv(self, kind: str, i: int = 0) -> list[str]:
        return [self.in_block(f"{part}.{kind}", i) for part in self.qkv]


OF_VIT_IN_MEMORY = (
    (r"^shared_position_bias\.", "encoder.relative_position_bias."),
    (r"^layers\.(\d+)\.relative_position_bias\.", r"encoder.layer.\1.attention.attention.relative_position_bias."),
    (r"^layers\.", "encoder.layer."),
    (r"\.attention\.q_proj\.", ".attention.attention.query."),
    (r"\.attention\.k_proj\.", ".attention.attention.key."),
    (r"\.attention\.v_proj\.", ".attention.attention.value."),
    (r"\.attention\.o_proj\.", ".attention.output.dense."),
)
VIT_NAMES = Names(
    mask_token="",
    in_memory=(
        *OF_VIT_IN_MEMORY,
        (r"(encoder\.layer\.\d+)\.mlp\.fc1\.", r"\1.intermediate.dense."),
        (r"(encoder\.layer\.\d+)\.mlp\.fc2\.", r"\1.output.dense."),
    ),
)
DINOV2_NAMES = Names(
    norms=("norm1", "norm2"),
    mlp=("mlp.fc1", "mlp.fc2"),
    gated=("mlp.weights_in",),
    gated_out="mlp.weights_out",
    gains=("layer_scale1.lambda1", "layer_scale2.lambda1"),
    representation="",
    in_memory=(*OF_VIT_IN_MEMORY, (r"\.mlp\.down_proj\.", ".mlp.weights_out.")),
)
CLIP_NAMES = Names(
    patch="embeddings.patch_embedding",
    class_token="embeddings.class_embedding",
    distillation_token="",
    registers="",
    mask_token="",
    positions="embeddings.position_embedding.weight",
    first_norm="pre_layrnorm",
    block="encoder.layers",
    qkv=("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    merge="self_attn.out_proj",
    norms=("layer_norm1", "layer_norm2"),
    mlp=("mlp.fc1", "mlp.fc2"),
    norm="post_layernorm",
    representation="visual_projection",
    map_pool="head",
    is_flat=True,
)
DINOV3_NAMES = Names(
    patch="embeddings.patch_embeddings",
    distillation_token="",
    positions="",
    block="layer",
    qkv=("attention.q_proj", "attention.k_proj", "attention.v_proj"),
    merge="attention.o_proj",
    norms=("norm1", "norm2"),
    mlp=("mlp.up_proj", "mlp.down_proj"),
    gated=("mlp.gate_proj", "mlp.up_proj"),
    gated_out="mlp.down_proj",
    gains=("layer_scale1.lambda1", "layer_scale2.lambda1"),
    norm="norm",
    representation="",
    mask_axes=3,
    in_memory=((r"^model\.layer\.", "layer."),),
)
SCHEMES = (VIT_NAMES, DINOV2_NAMES, DINOV3_NAMES, CLIP_NAMES)

TRANSFORMERS_ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_pytorch_tanh": "gelu-tanh",
    "gelu_new": "gelu-tanh",
    "gelu_fast": "gelu-tanh",
    "gelu_accurate": "gelu-tanh",
    "gelu_python_tanh": "gelu-tanh",
    "quick_gelu": "quick-gelu",
    "silu": "silu",
    "swish": "silu",
    "relu": "relu",
}
ANY_ACTIVATION = tuple(dict.fromkeys(TRANSFORMERS_ACTIVATIONS.values()))


Readout = tuple[str, str]  # pool and pool_order
CLASS_TOKEN, MEAN, BOTH = ("cls", "norm-first"), ("gap", "norm-first"), ("cls-and-gap", "norm-first")
MEAN_THEN_NORM, BARE_MEAN = ("gap", "mean-first"), ("gap", "no-norm")


@dataclass(frozen=True)
class Family:
    """A model type of transformers."""

    model_type: str
    title: str  # how the names of its classes begin
    names: Names
    prefix: str  # of the encoder's tensors in a file that holds more
    eps: float  # the config class's default
    activation: str = "gelu"  # the config class's default
    heads: int = 12  # the config class's default
    processor: str = "ViT"  # whose preprocessing goes without preprocessor_config.json
    answers: tuple[Readout, ...] = (CLASS_TOKEN,)  # of an encoder without a classifier, the usual one first
    why: str = ""  # if transformers itself names no such vector: why the first of `answers`
    classifies: tuple[Readout, ...] = (CLASS_TOKEN,)  # what the classifier reads; empty without one
    positions_cover: str = "all"
    position_resize: str = "huggingface"
    has_gains: bool | None = False  # None: with or without
    square: tuple[str, ...] = ()  # options with a single side in its config: patch, image_size
    holds: Mapping[str, tuple[Any, ...] | None] = field(default_factory=dict)  # options beyond a plain ViT's
    words: Callable[[ViTConfig], dict[str, Any]] = lambda config: {}  # of config.json, beyond those that all share
    adds_pooler: bool = False  # its bare class has a pooler, random if the file holds none
    whole_classifier: str = ""  # the model type whose classifier holds this tower
    gate_is_silu: bool = True  # whatever hidden_act says
    runs_as: str = ""  # the model type to write instead, if transformers runs this one with random parts

    def differences(self, config: Config) -> list[Difference]:
        """The options of a model that this model type cannot hold."""
        if not isinstance(config, ViTConfig):
            return [Difference("a BiT")]
        b, e, r = config.embedding, config.encoder, config.readout
        readouts = self.classifies if r.classes else self.answers
        allowed: dict[str, tuple[Any, ...] | None] = {
            "norm_eps": None,
            "activation": ANY_ACTIVATION,
            "qkv_bias": None,
            "positions_cover": (self.positions_cover,),
            "layer_scale": None,
            "pool": ("cls-and-distillation",) if r.distillation_head else tuple(pool for pool, _ in readouts),
            "pool_order": tuple(order for pool, order in readouts if pool == r.pool) or None,
            **self.holds,
        }
        if r.classes:
            allowed["representation"] = (0,)
        out = vit_differences(config, **allowed)
        sides = {"patch": b.patch, "image_size": config.image_size}
        out += [Difference(name, by(sides[name])) for name in self.square if sides[name][0] != sides[name][1]]
        if self.has_gains is not None and self.has_gains != (e.layer_scale is not None):
            out.append(Difference("layer_scale", e.layer_scale))
        if self.words is words_of_dinov2 and whole_ratio(config) is None:
            out.append(Difference("mlp", e.mlp, f"at width={e.width}"))
        return out


def words_of_vit(config: ViTConfig) -> dict[str, Any]:
    e, r = config.encoder, config.readout
    pooler = {"pooler_output_size": r.representation, "pooler_act": "tanh"} if r.representation else {}
    return {
        "qkv_bias": e.qkv_bias,
        "intermediate_size": e.mlp,
        "encoder_stride": config.embedding.patch[0],
        **words_of_dropout(config),
        **pooler,
    }


def words_of_dropout(config: ViTConfig) -> dict[str, Any]:
    e = config.encoder
    return {"hidden_dropout_prob": e.dropout, "attention_probs_dropout_prob": e.attention_dropout}


def whole_ratio(config: ViTConfig) -> int | None:
    """DINOv2's mlp_ratio, a whole number; its gated MLP has two thirds of it, rounded up to a multiple of 8."""
    e = config.encoder
    if e.activation != "swiglu":
        return e.mlp // e.width if e.mlp % e.width == 0 else None
    ratios = range(1, 2 * e.mlp // e.width + 2)
    return next((ratio for ratio in ratios if (int(e.width * ratio * 2 / 3) + 7) // 8 * 8 == e.mlp), None)


def words_of_dinov2(config: ViTConfig) -> dict[str, Any]:
    e = config.encoder
    registers = {"num_register_tokens": config.embedding.registers} if config.embedding.registers else {}
    return {
        "qkv_bias": e.qkv_bias,
        "mlp_ratio": whole_ratio(config),
        "use_swiglu_ffn": e.activation == "swiglu",
        "layerscale_value": e.layer_scale,
        **words_of_dropout(config),
        **registers,
    }


def words_of_clip(config: ViTConfig) -> dict[str, Any]:
    e, size = config.encoder, config.readout.representation
    projection = {"projection_dim": size} if size else {}
    return {"intermediate_size": e.mlp, "attention_dropout": e.attention_dropout, **projection}


def words_of_dinov3(config: ViTConfig) -> dict[str, Any]:
    e = config.encoder
    gate = {"hidden_act": "silu"} if e.activation == "swiglu" else {}
    return {
        "intermediate_size": e.mlp,
        "use_gated_mlp": bool(gate),
        **gate,
        "num_register_tokens": config.embedding.registers,
        "query_bias": e.qkv_bias,
        "key_bias": e.qkv_bias and e.key_bias,
        "value_bias": e.qkv_bias,
        "proj_bias": e.branch_bias,
        "mlp_bias": e.branch_bias,
        "layerscale_value": e.layer_scale,
        "rope_theta": config.rotation.rotary_base,
        "attention_dropout": e.attention_dropout,
        "drop_path_rate": e.drop_path,
    }


def words_of_beit(config: ViTConfig) -> dict[str, Any]:
    e = config.encoder
    at = e.attention_bias_at if e.attention_bias == "table" else ""
    return {
        "intermediate_size": e.mlp,
        "use_absolute_position_embeddings": config.embedding.positions == "learned",
        "use_relative_position_bias": at in ("every-layer", "both"),
        "use_shared_relative_position_bias": at in ("shared", "both"),
        "use_mean_pooling": config.readout.pool == "gap",
        "layer_scale_init_value": e.layer_scale or 0.0,
        "drop_path_rate": e.drop_path,
        **words_of_dropout(config),
    }


OF_BEIT: dict[str, tuple[Any, ...] | None] = {
    "positions": ("learned", "none"),
    "attention_bias": ("none", "table"),
    "qkv_bias": (True,),
    "key_bias": (False,),
}
TWO_TOWERS = {"clip": "clip_vision_model", "siglip": "siglip_vision_model"}  # of text and images
FAMILIES = {
    row.model_type: row
    for row in (
        Family(
            "vit", "ViT", VIT_NAMES, "vit.", 1e-12, words=words_of_vit, adds_pooler=True,
            holds={"representation": None},
        ),
        Family(
            "deit", "DeiT", VIT_NAMES, "deit.", 1e-12, processor="DeiT", words=words_of_vit, adds_pooler=True,
            holds={"distillation_token": (True,), "distillation_head": None, "representation": None},
        ),
        Family("vit_msn", "ViTMSN", VIT_NAMES, "vit.", 1e-6, words=words_of_vit),
        Family(
            "vit_mae", "ViTMAE", VIT_NAMES, "vit.", 1e-12, processor="MAE", classifies=(), runs_as="vit",
            why="an MAE has no pooled vector, and its linear probe reads the class token",
        ),
        Family(
            "ijepa", "IJepa", VIT_NAMES, "ijepa.", 1e-12, answers=(MEAN,), classifies=(MEAN,),
            why="an I-JEPA has no pooled vector, and its classifier reads this mean",
            words=words_of_vit, holds={"class_token": (False,)},
        ),
        Family(
            "dinov2", "Dinov2", DINOV2_NAMES, "dinov2.", 1e-6, processor="Dinov2", classifies=(BOTH,), has_gains=True,
            positions_cover="class", position_resize="timm", square=("patch",),
            words=words_of_dinov2, holds={"activation": (*ANY_ACTIVATION, "swiglu")},
        ),
        Family(
            "dinov2_with_registers", "Dinov2WithRegisters", DINOV2_NAMES, "dinov2_with_registers.", 1e-6,
            processor="Dinov2", classifies=(BOTH,), has_gains=True, positions_cover="class", position_resize="timm",
            square=("patch",), words=words_of_dinov2,
            holds={"registers": None, "activation": (*ANY_ACTIVATION, "swiglu")},
        ),
        Family(
            "clip_vision_model", "CLIPVision", CLIP_NAMES, "vision_model.", 1e-5, "quick_gelu", processor="CLIP",
            classifies=(BARE_MEAN,), whole_classifier="clip", square=("patch", "image_size"), words=words_of_clip,
            holds={
                "patch_bias": (False,), "norm_before_blocks": (True,), "qkv_bias": (True,), "representation": None,
                "representation_kind": ("linear", "tanh"),
            },
        ),
        Family(
            "siglip_vision_model", "SiglipVision", CLIP_NAMES, "vision_model.", 1e-6, "gelu_pytorch_tanh",
            processor="Siglip", answers=(("map", "norm-first"), MEAN), classifies=(MEAN,),
            square=("patch", "image_size"), words=words_of_clip,
            holds={"class_token": (False,), "qkv_bias": (True,)},
        ),
        Family(
            "dinov3_vit", "DINOv3ViT", DINOV3_NAMES, "", 1e-5, heads=6, processor="DINOv3ViT", classifies=(),
            has_gains=True, gate_is_silu=False, words=words_of_dinov3,
            holds={
                "positions": ("none",), "positions_cover": None, "rotary": ("axial",), "rotary_places": ("image",),
                "rotary_pairs": ("halves",), "rotary_first": ("rows",), "rotary_start": (0.0,),
                "rotary_grid": (None,), "registers": None, "key_bias": None, "branch_bias": None,
                "activation": (*ANY_ACTIVATION, "swiglu"),
            },
        ),
        Family(
            "beit", "Beit", VIT_NAMES, "beit.", 1e-12, processor="Beit", answers=(MEAN_THEN_NORM, CLASS_TOKEN),
            classifies=(MEAN_THEN_NORM, CLASS_TOKEN), square=("patch", "image_size"), words=words_of_beit,
            has_gains=None, holds=OF_BEIT,
        ),
        Family(
            "data2vec-vision", "Data2VecVision", VIT_NAMES, "data2vec_vision.", 1e-12, processor="Beit",
            answers=(BARE_MEAN, CLASS_TOKEN), classifies=(MEAN_THEN_NORM, CLASS_TOKEN),
            why="a Data2Vec encoder has no pooled vector and no last norm, and its classifier reads this mean",
            square=("patch", "image_size"), words=words_of_beit, has_gains=None, holds=OF_BEIT,
        ),
    )
}  # fmt: skip
NOT_BUILT = "not built here"
REFUSED_MODEL_TYPES = {
    "siglip2": f"NaFlex, patches of any number and shape, is {NOT_BUILT}; a SigLIP 2 of fixed size has the type siglip",
    "siglip2_vision_model": f"NaFlex, patches of any number and shape, is {NOT_BUILT}",
    "clip_text_model": "a text tower sees no images; take the folder of the whole CLIP, or of its vision tower",
    "siglip_text_model": "a text tower sees no images; take the folder of the whole SigLIP, or of its vision tower",
    "siglip2_text_model": "a text tower sees no images; take the folder of a vision tower",
    "dpt": f"a network that answers with depths is {NOT_BUILT}",
    "depth_anything": f"a network that answers with depths is {NOT_BUILT}",
    "zoedepth": f"a network that answers with depths is {NOT_BUILT}",
    "yolos": f"detection is {NOT_BUILT}",
    "detr": f"detection is {NOT_BUILT}",
    "vitdet": f"detection is {NOT_BUILT}",
    "owlvit": f"detection is {NOT_BUILT}",
    "owlv2": f"detection is {NOT_BUILT}",
    "segformer": f"segmentation is {NOT_BUILT}",
    "clipseg": f"segmentation is {NOT_BUILT}",
    "sam": f"segmentation is {NOT_BUILT}",
    "vivit": f"video is {NOT_BUILT}",
    "videomae": f"video is {NOT_BUILT}",
    "timesformer": f"video is {NOT_BUILT}",
    "vjepa2": f"video is {NOT_BUILT}",
    "xclip": f"video is {NOT_BUILT}",
    "swin": f"attention in windows is {NOT_BUILT}",
    "swinv2": f"attention in windows is {NOT_BUILT}",
    "audio-spectrogram-transformer": f"sound is {NOT_BUILT}",
    "vilt": f"text is {NOT_BUILT}",
}

# What a file may hold besides the encoder: parts that the function does not need, or another network.
LEFT_OUT = {
    "text_model.": "text tower",
    "text_projection.": "text tower",
    "logit_scale": "text tower",
    "logit_bias": "text tower",
    "decoder.": "decoder of hidden patches",
    "lm_head.": "head for hidden patches",
}
FOREIGN_PARTS = {"decode_head.": "segmentation", "auxiliary_head.": "segmentation", "neck.": "a dense head"}
PREFIXES = tuple(dict.fromkeys(row.prefix for row in FAMILIES.values() if row.prefix))


def is_ignored(name: str) -> bool:
    """True for a tensor that no forward pass of images reads."""
    last = name.rpartition(".")[2]
    return last in ("mask_token", "position_ids", "relative_position_index") or name.startswith("pooler.")


def strip(name: str) -> str:
    for prefix in PREFIXES:
        name = name.removeprefix(prefix)
    return name


def file_name(name: str, names: Names) -> str:
    """A tensor's name in files, without the model's prefix; `name` may be that of a module in memory."""
    plain = strip(name)
    for pattern, to in names.in_memory:
        plain = re.sub(pattern, to, plain)
    return plain


def lacks(family: Family, config: ViTConfig) -> int:
    """How many options of a model a family cannot hold; positions can be moved to the tokens that it covers."""
    return len(family.differences(config.change(positions_cover=family.positions_cover)))


def fitting(config: Config) -> Family:
    """The model type that holds a model, or that lacks the least of it; preferably one that adds no pooler."""
    rows = [row for row in FAMILIES.values() if not row.runs_as]
    if not isinstance(config, ViTConfig):
        return rows[0]
    is_bare = not (config.readout.classes or config.readout.representation)
    return min(rows, key=lambda row: (lacks(row, config), row.adds_pooler and is_bare))
