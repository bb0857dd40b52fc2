"""Every model's exact parameters and products, against counts made in the sources' own code (golden/ledger.json)."""

import json
from pathlib import Path

import pytest

from vitreous.models import catalog
from vitreous.models.catalog import blueprint, parse
from vitreous.models.config import EmbeddingConfig, EncoderConfig, ViTConfig
from vitreous.models.cost import macs

LEDGER = json.loads((Path(__file__).parents[1] / "golden" / "ledger.json").read_text())
ROWS = {name: row for family in ("vit", "hybrid", "bit") for name, row in LEDGER[family].items()}
OURS = {name: name.removeprefix("BiT-") if name.startswith("BiT-") else as_recorded for name in catalog.names()
        for as_recorded in ["+".join([*name.split("+")[:-1], "ViT-" + name.split("+")[-1]])]}  # fmt: skip
SO400M = ViTConfig(
    encoder=EncoderConfig(width=1152, depth=27, heads=16, mlp=4304), embedding=EmbeddingConfig(patch=(14, 14))
)
BIG_VISION = {
    "gap learn": {"pool": "gap", "class_token": False},
    "tok learn": {"positions_cover": "patches"},
    "map learn": {"pool": "map", "class_token": False},
    "gap sincos2d": {"pool": "gap", "class_token": False, "positions": "sincos-2d"},
}


COUNTED = ("Ti/16", "S/32", "R+Ti/16", "R26+S/32", "R50+B/16", "BiT-R50x1")  # by the fast tests too


def count(config) -> int:
    return sum(p.numel() for p in blueprint(config).parameters())


def test_the_catalog_and_the_ledger_have_the_same_models():
    assert set(OURS.values()) == set(ROWS)


@pytest.mark.parametrize("name", catalog.names())
def test_parameters_are_exact(name):
    """As built; with a representation layer of the model's width; without a head."""
    row, config = ROWS[OURS[name]], parse(name)
    model = blueprint(config)
    assert sum(p.numel() for p in model.parameters()) == row["params"]
    assert count(config.change(classes=0)) == row["without_head"]
    if "with_representation" in row:
        assert count(config.change(representation=config.encoder.width)) == row["with_representation"]
    if "tokens" in row:
        rows, columns = model.grid
        assert rows * columns + config.prefix == row["tokens"]


@pytest.mark.parametrize("name", [name for name in catalog.names() if "macs" in ROWS[OURS[name]]])
def test_products_are_exact(name):
    assert catalog.describe(name).macs == ROWS[OURS[name]]["macs"]


@pytest.mark.parametrize("name", LEDGER["big_vision"])
def test_big_visions_models(name):
    """Positions cover patches only; pools bring no class token; waves are no parameters."""
    size, _, kind = name.partition(" ")
    if size == "RN50":  # a hybrid's ResNet with a head of its own
        stem = blueprint(parse("R50+B/32")).stem
        counted = sum(p.numel() for p in stem.parameters()) + 2048 * 1000 + 1000
    else:
        counted = count((SO400M if size == "So400m/14" else parse(size)).change(**BIG_VISION[kind]))
    assert counted == LEDGER["big_vision"][name]


TIMM = {
    "B/16 reg4": "B/16 registers=4",
    "B/16 avg no class token": "B/16 pool=gap pool_order=mean-first",
    "B/16 map no class token": "B/16 pool=map",
}


@pytest.mark.parametrize("name", LEDGER["timm"])
def test_timms_models(name):
    assert count(parse(TIMM[name])) == LEDGER["timm"][name]


@pytest.mark.parametrize(
    ("name", "parameters"),
    [("B/16", 103_186_515), ("L/16", 326_740_307), ("H/14", 660_385_363), ("R50+B/16", 115_277_971)],
)
def test_models_of_imagenet_21k(name, parameters):
    """21,843 classes and the representation layer."""
    config = parse(name)
    assert count(config.change(classes=21_843, representation=config.encoder.width)) == parameters


@pytest.mark.parametrize(
    ("name", "parameters"), [("S/16", 22_049_896), ("B/16", 86_566_120), ("S/32", 22_878_184), ("B/32", 88_222_696)]
)
def test_the_official_average_pool_models(name, parameters):
    assert count(parse(f"{name} pool=gap")) == parameters


@pytest.mark.claim("Q01")
@pytest.mark.parametrize(
    "name", [name if name in COUNTED else pytest.param(name, marks=pytest.mark.slow) for name in catalog.names()]
)
def test_the_table_holds_what_torch_counts(name):
    """The list of models runs no forward pass; the numbers it shows are those of one."""
    assert catalog.describe(name).macs == macs(parse(name))


@pytest.mark.claim("Q01")
@pytest.mark.parametrize(
    ("changes", "products"),
    [
        ({}, 66_704),
        ({"pool": "map", "registers": 3}, 90_832),
        ({"pool": "gap", "class_token": False, "image_size": (8, 20)}, 50_000),
        ({"positions": "relative"}, 77_104),
        ({"positions": "learned-2d", "positions_at": "every-layer"}, 66_704),
        ({"activation": "swiglu"}, 76_688),
        ({"stem": "convolutions", "image_size": (13, 18)}, 145_336),
        ({"stem": "resnet", "patch": 1, "image_size": (33, 26)}, 1_513_728),
        ({"stem": "resnet", "patch": (2, 1), "root": "small", "units": (2, 1), "image_size": (12, 10)}, 2_153_168),
        ({"stem": "resnet", "units": (), "image_size": 32}, 638_096),
        ({"representation": 7}, 66_771),
        ({"pool": "cls-and-gap", "pool_order": "mean-first"}, 66_784),
        ({"pool": "cls-and-distillation", "distillation_token": True, "distillation_head": True}, 72_096),
        ({"qk_norm": True, "norm": "post", "layer_scale": 0.1, "skips": (1,)}, 66_704),
        ({"classes": 0, "channels": 1}, 60_480),
    ],
    ids=str,
)
def test_every_part_is_counted(vit_config, changes, products):
    """Numbers of a formula by hand, part by part."""
    assert macs(vit_config.change(**changes)) == products


@pytest.mark.claim("Q01")
@pytest.mark.parametrize(
    ("changes", "products"),
    [
        ({}, 1_238_656),
        ({"root": "small"}, 12_915_328),
        ({"units": (1, 1, 2), "image_size": (37, 50)}, 4_890_896),
        ({"classes": 0}, 1_238_016),
    ],
    ids=str,
)
def test_every_part_of_a_bit_is_counted(bit_config, changes, products):
    assert macs(bit_config.change(**changes)) == products


@pytest.mark.parametrize("name", ["Ti/16", "S/14", "L/32"])
def test_a_plain_vit_costs_what_the_formula_says(name):
    """depth · (4 L D² + 2 L² D + 2 L D M) + N · C P² · D + D · K"""
    e, patch = parse(name).encoder, parse(name).embedding.patch[0]
    n = (224 // patch) ** 2
    tokens, d = n + 1, e.width
    blocks = e.depth * (4 * tokens * d**2 + 2 * tokens**2 * d + 2 * tokens * d * e.mlp)
    assert macs(parse(name)) == blocks + n * 3 * patch**2 * d + d * 1000


def plain(width: int, patches: int, depth: int) -> ViTConfig:
    """No head, no class token, patches of one pixel: what is left besides blocks is patches · width."""
    return ViTConfig(image_size=(1, patches), channels=1).change(
        patch=1, width=width, mlp=4 * width, depth=depth, heads=1, classes=0, pool="gap", class_token=False
    )


@pytest.mark.claim("Q01")
@pytest.mark.parametrize(("tokens", "width"), [(50, 8), (9, 16), (196, 32)])
def test_a_layer_is_a_linear_part_and_a_quadratic_part(tokens, width):
    """T(4D² + 2D·4D) + 2T²D products a layer, equal at T = 6D."""
    a_layer = macs(plain(width, tokens, 2)) - macs(plain(width, tokens, 1))
    linear, attention = tokens * 12 * width**2, 2 * tokens**2 * width
    assert a_layer == linear + attention
    assert (linear > attention) == (tokens < 6 * width)


@pytest.mark.claim("Q01")
def test_the_linear_part_dominates_until_six_times_the_width():
    """At T = 6D (4608 for D = 768) attention is exactly half; pixels as tokens multiply its cost by P⁴."""

    def parts(width, tokens):
        a_layer = macs(plain(width, tokens, 2)) - macs(plain(width, tokens, 1))
        return tokens * 12 * width**2, a_layer - tokens * 12 * width**2

    for tokens, sign in [(4607, 1), (4608, 0), (4609, -1)]:
        linear, attention = parts(768, tokens)
        assert (linear > attention) - (linear < attention) == sign
    (_, patches), (_, pixels) = parts(768, 196), parts(768, 196 * 16 * 16)
    assert pixels == 16**4 * patches
