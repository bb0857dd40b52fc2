"""The models of the papers by name, and how to make one.

A name is a size and a patch, `B/16` (or `ViT-B/16`); with a ResNet in front, `R50+B/16`; or a BiT, `BiT-R50x1`.
Changes may follow: `"S/16 positions=none registers=4"`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import torch

from vitreous.errors import ConfigError, ModelNameError, nearest
from vitreous.models.bit import BiT
from vitreous.models.checks import unread, words
from vitreous.models.config import BiTConfig, Config, EmbeddingConfig, EncoderConfig, ResNetConfig, Size, ViTConfig
from vitreous.models.convolutions import root_width
from vitreous.models.cost import macs
from vitreous.models.model import Model, materialise, start
from vitreous.models.pooling import POOLS
from vitreous.models.vit import ViT
from vitreous.options import options_of

SIZES = {  # width, depth, heads, hidden width of the MLP
    "Ti": (192, 12, 3, 768),
    "S": (384, 12, 6, 1536),
    "B": (768, 12, 12, 3072),
    "L": (1024, 24, 16, 4096),
    "H": (1280, 32, 16, 5120),
    "g": (1408, 40, 16, 6144),
    "G": (1664, 48, 16, 8192),
}
PATCHES = (8, 14, 16, 32)
MACS = {  # multiply-accumulates of each size, one for each patch above
    "Ti": (7_035_764_736, 1_697_710_080, 1_253_683_200, 306_034_176),
    "S": (22_405_742_592, 6_123_945_984, 4_598_882_304, 1_142_909_952),
    "B": (78_148_337_664, 23_161_995_264, 17_563_828_224, 4_409_186_304),
    "L": (267_505_917_952, 81_013_006_336, 61_554_712_576, 15_377_539_072),
    "H": (544_554_403_840, 167_295_109_120, 127_314_872_320, 31_856_035_840),
    "g": (861_889_639_424, 267_031_491_584, 203_407_913_984, 50_957_671_424),
    "G": (1_543_287_329_792, 483_747_550_208, 368_981_070_848, 92_664_046_592),
}
HYBRID_STEMS = {  # units of the stem, factor on its channels, patch on its map; multiply-accumulates
    "R+Ti/16": ((), 1, 8, 433_681_920),  # named /16, but root and pool halve twice: its real stride is 32
    "R26+S/32": ((2, 2, 2, 2), 1, 1, 3_463_851_008),
    "R26+B/32": ((2, 2, 2, 2), 1, 1, 6_710_859_776),
    "R50+B/16": ((3, 4, 9), 1, 1, 21_535_358_976),
    "R50+B/32": ((3, 4, 6, 3), 1, 1, 8_457_787_392),
    "R50+L/16": ((3, 4, 9), 1, 1, 65_539_088_384),
    "R50+L/32": ((3, 4, 6, 3), 1, 1, 19_413_295_104),
    "R50x2+L/32": ((3, 4, 6, 3), 2, 1, 31_541_436_416),
}
BIT_UNITS = {"50": (3, 4, 6, 3), "101": (3, 4, 23, 3), "152": (3, 8, 36, 3), "200": (3, 24, 36, 3)}
BIT_MACS = {  # multiply-accumulates
    "R50x1": 4_089_184_256,
    "R50x3": 36_082_286_592,
    "R101x1": 7_801_405_440,
    "R101x3": 69_492_277_248,
    "R152x1": 11_513_626_624,
    "R152x2": 45_814_382_592,
    "R152x4": 182_777_282_560,
    "R200x3": 134_346_964_992,
}


@dataclass(frozen=True)
class Row:
    """One catalog model, for 224×224×3 images and 1000 classes."""

    name: str
    parameters: int
    macs: int  # multiply-accumulates of one image's forward pass
    width: int
    depth: int
    heads: int
    mlp: int
    patch: int


def names() -> list[str]:
    """Every model of the papers, smallest first in each family."""
    plain = [f"{size}/{patch}" for size in SIZES for patch in PATCHES]
    return [*plain, *HYBRID_STEMS, *(f"BiT-{name}" for name in BIT_MACS)]


def describe(name: str) -> Row:
    """Parameters and cost of a model; allocates no weights."""
    config = parse(name)
    counted, products = sum(p.numel() for p in blueprint(config).parameters()), _listed_macs(name) or macs(config)
    if isinstance(config, BiTConfig):
        units = config.resnet.units
        return Row(name, counted, products, 32 * root_width(config.resnet), 2 + 3 * sum(units), 0, 0, 0)
    e = config.encoder
    return Row(name, counted, products, e.width, e.depth, e.heads, e.mlp, config.embedding.patch[0])


def parse(name: str) -> Config:
    """The config for a name and its changes."""
    return _with_changes(*_split(name))


def is_in_catalog(name: str) -> bool:
    """True if the name, without the changes after it, is that of a network."""
    try:
        _named((name.split() or [""])[0])
    except ModelNameError:
        return False
    return True


def build(
    name: str | Config,
    *,
    image_size: int | Size | None = None,
    classes: int | None = None,
    channels: int | None = None,
    seed: int | None = None,
    **changes: Any,
) -> Model:
    """A new model, initialised as in the papers' code; by default for 224×224×3 images and 1000 classes.

        vitreous.build("B/16", classes=10)
        vitreous.build("S/16 positions=none", image_size=(64, 96), registers=4)

    changes: any option of `vitreous models --options`.  seed: fixes the initial values and leaves torch's own
    generator untouched; without a seed, torch's generator draws them.
    """
    base, stated = _split(name) if isinstance(name, str) else (name, {})
    asked = {"image_size": image_size, "classes": classes, "channels": channels}
    asked = {option: value for option, value in asked.items() if value is not None}
    config = _with_changes(base, {**stated, **asked, **changes})
    model = blueprint(config)
    materialise(model)
    with torch.random.fork_rng(devices=[], enabled=seed is not None):
        if seed is not None:
            torch.manual_seed(seed)
        start(model)
    model.preprocess = model.preprocess.with_channels(config.channels)
    model.source = {"weights": "random"}
    return model


def blueprint(config: Config) -> Model:
    """The network on the meta device: shapes, no weights."""
    with torch.device("meta"):
        return BiT(config) if isinstance(config, BiTConfig) else ViT(config)


def options() -> dict[str, tuple[Any, list[str] | str, str]]:
    """Every ViT option: its default, allowed values (or type), and meaning."""
    base = parse("B/16")
    few = words(base)
    return {
        each.name: (each.value, few.get(each.name) or type(each.value).__name__, each.meaning)
        for each in options_of(base)
    }


def _listed_macs(name: str) -> int | None:
    """Read from the tables above, so listing the models needs no forward pass."""
    if name in HYBRID_STEMS:
        return HYBRID_STEMS[name][-1]
    size, _, patch = name.partition("/")
    plain = dict(zip(map(str, PATCHES), MACS.get(size, ()), strict=False))
    return plain.get(patch) or BIT_MACS.get(name.removeprefix("BiT-"))


def _split(name: str) -> tuple[Config, dict[str, Any]]:
    """Split a model's name from the changes after it."""
    word, *pairs = name.split() or [""]
    config = _named(word)
    changes: dict[str, Any] = dict(pair.partition("=")[::2] for pair in pairs)
    if "" in changes.values():
        raise ModelNameError(f"{name!r} has a change without a value; write it as {word} option=value")
    return config, changes


def of_other_libraries(word: str) -> list[str]:
    """resnet50 -> BiT-R50x1; vit_base_patch16_224, ViT-Base-16 or deit-base -> B/16."""
    name = word.lower()
    if match := re.search(r"resnet(?:v2)?\D*(50|101|152)(?!\d)", name):
        return [f"BiT-R{match[1]}x1"]
    sizes = {"tiny": "Ti", "small": "S", "base": "B", "large": "L", "huge": "H"}
    if match := re.search(rf"({'|'.join(sizes)})(?:\D*[_/-](?:patch)?(8|14|16|32)(?!\d))?", name):
        return [f"{sizes[match[1]]}/{match[2] or (14 if match[1] == 'huge' else 16)}"]
    return []


def _named(word: str) -> Config:
    plain = re.sub(r"(^|\+)ViT-", r"\1", word)
    if match := re.fullmatch(r"(?:BiT-)?R(50|101|152|200)x(\d+(?:\.\d+)?)", plain):
        return BiTConfig(resnet=ResNetConfig(units=BIT_UNITS[match[1]], resnet_width=float(match[2])))
    front, _, rest = plain.rpartition("+")
    match = re.fullmatch(r"([A-Za-z]+)/(\d+)", rest)
    if not match or match[1] not in SIZES or (front and plain not in HYBRID_STEMS) or int(match[2]) < 1:
        alike = [name for name in names() if name.lower() == plain.lower()]
        bare = {name.removeprefix("BiT-"): name for name in names()}
        near = alike or of_other_libraries(word) or [bare[name] for name in nearest(plain.removeprefix("BiT-"), bare)]
        raise ModelNameError(f"no model is called {word!r}; near: {', '.join(near) or 'B/16'} (all: vitreous models)")
    width, depth, heads, mlp = SIZES[match[1]]
    patch = int(match[2])
    config = ViTConfig(
        encoder=EncoderConfig(width=width, depth=depth, heads=heads, mlp=mlp),
        embedding=EmbeddingConfig(patch=(patch, patch)),
    )
    if front:
        units, factor, patch, _ = HYBRID_STEMS[plain]
        config = config.change(stem="resnet", units=units, resnet_width=factor, patch=patch)
    return config


def _with_changes(config: Config, changes: dict[str, Any]) -> Config:
    """Drop the class token if the pool does not read it, unless the caller asked for one."""
    pool = str(changes.get("pool"))
    if pool in POOLS and "class_token" not in changes and isinstance(config, ViTConfig):
        changes = {**changes, "class_token": POOLS[pool].needs_class_token}
    config = config.change(**changes)
    if isinstance(config, ViTConfig):
        for name, why in unread(config).items():
            if name in changes:
                raise ConfigError(f"{name}={changes[name]} has no meaning for {why}")
    return config
