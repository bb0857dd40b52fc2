"""Which timm names we run exactly, what each implies beyond its tensors, and why others are refused.

benchmarks/timm_names.py --table makes the table from timm's own models.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any

from vitreous.errors import FormatError
from vitreous.weights.formats import Hints
from vitreous.weights.tensor_files import RawCheckpoint, one_line, read_json

NAMES_FILE = Path(__file__).with_name("timm_names.json")
BIT_BY_HAND, HYBRID_BY_HAND = "resnetv2_bit", "vit_hybrid"  # our names for sizes that timm does not name


TIMM_FAMILIES = {  # patterns of names; the first that fits counts
    "DINOv3": "*dinov3*",
    "LingBot-Vision, Sapiens2": "*lingbot *sapiens2",
    "EVA, EVA-02": "eva*",
    "BEiT, BEiT v2, BEiT-3": "beit*",
    "Perception Encoder": "vit_pe_*",
    "ViT with rotary positions": "*_rope_*",
    "ViT with biases by offset": "*vit_*relpos*",
    "RADIO": "vit_*_radio_*",
    "SigLIP": "*siglip*",
    "CLIP": "*clip*",
    "DINOv2": "*dinov2*",
    "DeiT, DeiT-3": "deit*",
    "AIMv2": "aimv2*",
    "FlexiViT": "flexivit*",
    "BiT and other ResNets": "resnetv2*",
    "SAM, ViTamin, NaFlexViT": "samvit* vitamin* naflexvit*",
    "ViT and hybrids": "*vit*",
}


def timm_family(name: str) -> str:
    """The family of a name, for people."""
    found = (family for family, words in TIMM_FAMILIES.items() if any(fnmatchcase(name, w) for w in words.split()))
    return next(found, "others")


@dataclass(frozen=True)
class Implied:
    """What a name states beyond the tensors."""

    family: str  # vit, distilled, eva, beit, relpos or bit
    activation: str = "gelu"
    norm_eps: float = 1e-6
    pool: str = "token"
    no_embed_class: bool | None = False  # None: the position table shows it
    norm: str = "pre"  # pre or branch
    pool_tokens: str = "patches"  # patches or all
    pool_heads: int = 0  # of an attention pool; 0 is the encoder's
    arguments: tuple[tuple[str, Any], ...] = ()  # other arguments of timm's
    width: int | None = None
    heads: int | None = None


@cache
def runs() -> dict[str, Implied]:
    """Every name that we run as timm does, including timm's old names."""
    table = read_json(NAMES_FILE)
    out = {BIT_BY_HAND: Implied("bit"), HYBRID_BY_HAND: Implied("vit", no_embed_class=None)}
    for group in table["runs"]:
        facts: dict[str, Any] = {key: value for key, value in group.items() if key != "names"}
        facts["arguments"] = tuple((key, _frozen(value)) for key, value in facts.get("arguments", {}).items())
        for size, names in group["names"].items():
            width, heads = map(int, size.split("/")) if size else (None, None)
            out |= {name: Implied(**facts, width=width, heads=heads) for name in names.split()}
    return out | {old: out[new] for old, new in table["renamed"].items()}


def _frozen(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


@cache
def refused() -> dict[str, str]:
    """timm's names that we do not run, and why."""
    return {name: why for why, names in read_json(NAMES_FILE)["refused"].items() for name in names.split()}


def implied(found: RawCheckpoint, hints: Hints, assumed: list[str]) -> Implied | None:
    """What the named architecture implies; None without a name in argument or config."""
    stated = found.config.get("architecture")
    if hints.architecture is not None:
        name = without_tag(hints.architecture)
        if name not in runs():
            near = ", ".join(difflib.get_close_matches(name, runs(), 3, 0.5)) or "vit_base_patch16_224"
            raise FormatError(f"architecture={one_line(name)} is not a timm name that runs here; near: {near}")
        named = stated if stated is not None else found.config.get("model_type")
        instead = "" if named in (None, name) else f", though the config names {one_line(named)}"
        assumed.append(f"architecture {name}: as given{instead}")
        return runs()[name]
    if stated is None and "model_type" in found.config:
        raise FormatError(
            f"{found.path} has timm's tensors, but its config names the model_type "
            f"{one_line(found.config['model_type'])}, which may be another function; to run it all the same, "
            f"say architecture= and a name of timm's"
        )
    if "architecture" not in found.config:
        return None
    name = without_tag(stated)
    if name not in runs():
        why = refused().get(name, "that name is not among those known to run here as they do there")
        raise FormatError(
            f"{found.path} is timm's {one_line(name)}: {why}; to run its tensors as another architecture, "
            f"say architecture= (such as vit_base_patch16_224)"
        )
    return runs()[name]


def without_tag(name: Any) -> str:
    """`vit_base_patch16_224.augreg_in21k` is a vit_base_patch16_224: the tag names weights, not a function."""
    text = name if isinstance(name, str) else one_line(name)
    return re.sub(r"^(hf[-_]hub:)?timm/", "", text).split(".")[0]
