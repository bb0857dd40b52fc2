"""Refuse configs that make no sense, naming the option in one line."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from vitreous.errors import ConfigError
from vitreous.models.config import Config, ViTConfig
from vitreous.models.convolutions import root_width
from vitreous.models.pooling import POOLS
from vitreous.models.positions import POSITION_KINDS
from vitreous.options import check_ranges, options_of

REGISTRIES: dict[str, Iterable[str]] = {"@positions": POSITION_KINDS, "@pools": POOLS}


def words(config: Config) -> dict[str, list[str]]:
    """The allowed values of each option that has a fixed list."""
    return {
        each.name: [word for entry in each.words for word in REGISTRIES.get(entry, [entry])]
        for each in options_of(config)
        if each.words
    }


def check_each(config: Config) -> None:
    """Refuse an option whose word is not in its list, or whose number is out of its range."""
    allowed = words(config)
    for each in options_of(config):
        if each.words and each.value not in allowed[each.name]:
            raise ConfigError(f"{each.name}={each.value!r} is not one of {', '.join(allowed[each.name])}")
    check_ranges(config)
    if not root_width(config.resnet):
        raise ConfigError(f"resnet_width={config.resnet.resnet_width} leaves no channels; take 1/64 or more")


def check(config: ViTConfig) -> None:
    """Refuse a ViT that cannot be built."""
    check_each(config)
    for why in _contradictions(config):
        raise ConfigError(why)


def _contradictions(config: ViTConfig) -> Iterator[str]:
    """Options that make no sense together."""
    e, b, r = config.encoder, config.embedding, config.readout
    kind, pool = POSITION_KINDS[b.positions], POOLS[r.pool]
    if e.width % e.heads:
        yield f"width {e.width} is not divisible by heads {e.heads}"
    if b.positions_at != "stem" and not kind.can_repeat:
        yield f"positions={b.positions}: positions_at={b.positions_at} has no meaning; use positions_at=stem"
    if kind.in_attention and config.dynamic_image_size:
        yield f"positions={b.positions} cannot be resized: dynamic_image_size=True has no meaning"
    if kind.in_attention and b.position_start == "sincos":
        yield f"position_start=sincos has no meaning for positions={b.positions}; take normal, zeros or unit"
    if config.rotation.rotary != "none" and e.width // e.heads % 4:
        yield f"rotary positions need heads of 4, 8, 12, … numbers, not {e.width // e.heads}; change width or heads"
    if e.attention_bias == "table" and config.prefix > b.class_token:
        yield "attention_bias=table has rows for a class token alone; take registers=0 and distillation_token=False"
    if r.pool == "map" and r.pool_heads and e.width % r.pool_heads:
        yield f"width {e.width} is not divisible by pool_heads {r.pool_heads}"
    if pool.needs_class_token and not b.class_token:
        yield f"pool={r.pool} reads the class token: class_token=False has no meaning; take pool=gap"
    if b.distillation_token and not b.class_token:
        yield "distillation_token=True stands beside a class token: class_token=False has no meaning"
    if "distillation" in r.pool and not b.distillation_token:
        yield f"pool={r.pool} needs distillation_token=True"
    if r.distillation_head and r.pool != "cls-and-distillation":
        yield f"distillation_head=True reads two tokens: pool={r.pool} has no meaning; take pool=cls-and-distillation"
    if r.distillation_head and not r.classes:
        yield "distillation_head=True with classes=0 has no meaning"
    if r.distillation_head and r.representation:
        yield "distillation_head=True has no representation layer; take representation=0"
    if e.norm == "post" and r.pool_order == "mean-first":
        yield "norm=post has no final norm: pool_order=mean-first has no meaning"
    if any(not 0 <= i < e.depth for i in e.skips):
        yield f"skips={e.skips} names a block outside 0 to {e.depth - 1}"


def unread(config: ViTConfig) -> dict[str, str]:
    """Options that this model ignores, and why."""
    b = config.embedding
    read = {"resnet": tuple(vars(config.resnet)), "convolutions": ("group_norm_eps",)}.get(b.stem, ())
    out = {name: f"stem={b.stem}" for name in vars(config.resnet) if name not in read}
    if b.positions in ("none", "sincos-2d"):
        out["position_start"] = f"positions={b.positions}, which learn nothing"
    if not config.readout.representation:
        out["representation_kind"] = "representation=0"
    if not b.class_token:
        out["token_start"] = "class_token=False"
    if config.rotation.rotary == "none":
        out |= {name: "rotary=none" for name in vars(config.rotation) if name != "rotary"}
    if config.rotation.rotary_places == "image":
        out["rotary_grid"] = "rotary_places=image"
    if config.encoder.attention_bias == "none":
        out["attention_bias_at"] = "attention_bias=none"
    if config.encoder.attention_bias != "mlp":
        out["attention_bias_mlp"] = f"attention_bias={config.encoder.attention_bias}"
    if not config.encoder.qkv_bias:
        out["key_bias"] = "qkv_bias=False"
    if config.readout.pool != "map":
        out |= dict.fromkeys(("pool_heads", "pool_mlp"), f"pool={config.readout.pool}")
    if config.readout.pool not in ("gap", "max", "map"):
        out["pool_tokens"] = f"pool={config.readout.pool}"
    return out
