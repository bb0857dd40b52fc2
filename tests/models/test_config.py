"""What a model is, as a value: names, options and their pairs, JSON, sizes; and every one compiles and exports."""

import json
import math
import re
from itertools import combinations

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

import vitreous
from vitreous.errors import ConfigError, ImageSizeError, ModelNameError, VitreousError
from vitreous.models import config as configs
from vitreous.models import positions
from vitreous.models.catalog import build, describe, names, options, parse
from vitreous.models.checks import words
from vitreous.models.config import BiTConfig, ViTConfig
from vitreous.options import options_of

# Names


@pytest.mark.parametrize(
    ("name", "same"),
    [
        ("ViT-B/16", "B/16"),
        ("R50+ViT-B/16", "R50+B/16"),
        ("R50x1", "BiT-R50x1"),
        ("S/16 positions=none registers=4", "S/16 registers=4 positions=none"),
    ],
)
def test_two_spellings_mean_one_model(name, same):
    assert parse(name) == parse(same)


@pytest.mark.parametrize("name", names())
def test_every_name_of_the_catalog_parses(name):
    config = parse(name)
    assert isinstance(config, BiTConfig if name.startswith("BiT-") else ViTConfig)
    assert configs.from_json(json.loads(json.dumps(config.to_json()))) == config


def test_changes_stand_in_the_string_or_beside_it():
    """Words are read as what the option is."""
    text = "Ti/16 image_size=32x48 classes=7 positions=none registers=4 layer_scale=1e-5 qk_norm=true skips=0,2"
    config = vitreous.build(text, seed=0).config
    assert (
        config
        == vitreous.build(
            "Ti/16",
            image_size=(32, 48),
            classes=7,
            positions="none",
            registers=4,
            layer_scale=1e-5,
            qk_norm=True,
            skips=(0, 2),
        ).config
    )
    assert (config.image_size, config.readout.classes, config.embedding.registers) == ((32, 48), 7, 4)
    assert (config.encoder.layer_scale, config.encoder.skips) == (1e-5, (0, 2))
    assert parse("B/16 attention_scale=none").encoder.attention_scale is None


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("B/61", "B/16"),
        ("Vit-B16", "B/16"),
        ("R50+B/8", "R50+B/16"),
        ("BiT-R50", "BiT-R50x1"),
        ("R51x1", "BiT-R50x1"),
        ("", "B/16"),
    ],
)
def test_an_unknown_name_gives_near_ones(name, near):
    if name == "B/61":
        assert parse(name).embedding.patch == (61, 61)  # any patch of a known size is a model
        return
    with pytest.raises(ModelNameError, match="no model is called") as error:
        vitreous.build(name)
    assert near in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"position": "none"}, "there is no model option 'position'; near: positions"),
        ({"positions": "rotary"}, "'rotary'.* one of none, learned"),
        ({"pool": "sum"}, "'sum'.* one of cls, gap"),
        ({"stem": "vgg"}, "stem='vgg' is not one of patch, resnet, convolutions"),
        ({"width": 2.5}, "width=2.5 does not fit; give a whole number"),
        ({"width": "wide"}, "width='wide' does not fit; give a whole number"),
        ({"qk_norm": "perhaps"}, "qk_norm='perhaps' does not fit; give true or false"),
        ({"skips": "one"}, "skips='one' does not fit; give numbers with commas between"),
        ({"skips": (12,)}, "skips=.* names a block outside 0 to 11"),
        ({"image_size": "big"}, "image_size"),
        ({"image_size": (1, 2, 3)}, r"image_size=\(1, 2, 3\) is not a size"),
        ({"image_size": 0}, "image_size 0x0 is not a size"),
        ({"depth": 0}, "depth=0 must be above 0"),
        ({"classes": -1}, "classes=-1 must be 0 or more"),
        ({"dropout": 1.0}, "dropout=1.0 must be at least 0 and below 1"),
        ({"drop_path": math.nan}, "drop_path=nan must be"),
        ({"patch": (3, 4), "stem": "convolutions"}, "patch must be 2, 4, 8 or 16, not 3x4"),
    ],
)
def test_a_wrong_option_is_named_in_one_line(change, words):
    with pytest.raises(ConfigError, match=words) as error:
        vitreous.build("Ti/16", **change)
    assert "\n" not in str(error.value)


def test_a_change_without_a_value_is_refused():
    with pytest.raises(ModelNameError, match="change without a value"):
        vitreous.build("B/16 positions")


def test_the_table_of_options_says_what_each_means():
    table = options()
    assert {"positions", "pool", "norm", "skips", "standardise_eps"} <= table.keys()
    assert all(meaning for _, _, meaning in table.values())
    assert table["pool"][1][:2] == ["cls", "gap"]


def test_describe_counts_without_giving_memory():
    row = describe("R50x3")
    assert (row.parameters, row.width, row.depth) == (217_319_080, 6144, 50)
    assert describe("BiT-R50x1.5").width == 3072


# JSON


@pytest.mark.parametrize("family", ["vit", "bit"])
def test_a_config_goes_to_json_and_back(family, vit_config, bit_config):
    config = bit_config
    if family == "vit":
        config = vit_config.change(
            skips=(0,), layer_scale=0.1, patch=(2, 4), pool="map", units=(1, 2), root_pad="zeros"
        )
    assert configs.from_json(json.loads(json.dumps(config.to_json()))) == config
    assert config.to_json()["family"] == family


def test_a_config_is_frozen(vit_config):
    with pytest.raises(AttributeError):
        vit_config.image_size = (1, 1)
    changed = vit_config.change(depth=5)
    assert (changed.encoder.depth, vit_config.encoder.depth) == (5, 2)


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda d: d | {"colour": 1}, "config has no field 'colour'"),
        (lambda d: d | {"encoder": d["encoder"] | {"width2": 1}}, "config.encoder has no field 'width2'"),
        (lambda d: d | {"encoder": d["encoder"] | {"width": "16"}}, r"encoder\.width"),
        (lambda d: d | {"encoder": [1]}, "encoder"),
        (lambda d: d | {"image_size": [1]}, "image_size"),
        (lambda d: d | {"family": "gan"}, "family 'gan' is not one of vit, bit"),
        (lambda d: {}, "family None is not one of"),
        (lambda d: [d], "is a JSON object, not list"),
    ],
)
def test_a_damaged_config_is_named(vit_config, damage, words):
    with pytest.raises(ConfigError, match=words) as error:
        configs.from_json(damage(vit_config.to_json()))
    assert "\n" not in str(error.value)


# Seeds


def test_a_seed_gives_the_same_model_and_leaves_torchs_generator_alone(vit_config):
    torch.manual_seed(7)
    before = torch.random.get_rng_state()
    one, other, third = (build(vit_config, seed=seed) for seed in (3, 3, 4))
    assert torch.equal(torch.random.get_rng_state(), before)
    for name, value in one.state_dict().items():
        assert torch.equal(value, other.state_dict()[name])
    assert not torch.equal(one.embedding.projection.weight, third.embedding.projection.weight)


def test_without_a_seed_torchs_generator_decides(vit_config):
    weights = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        weights.append(build(vit_config).embedding.projection.weight)
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])


# Sizes of images


def test_an_image_of_another_size_is_refused_with_both_sizes_and_the_fix(vit):
    with pytest.raises(ImageSizeError) as error:
        vit(torch.zeros(1, 3, 16, 20).double())
    for word in ("16x20", "12x16", "image_size=(16, 20)", "dynamic_image_size=True"):
        assert word in str(error.value)


@pytest.mark.parametrize("shape", [(1, 1, 12, 16), (3, 12, 16), (12, 16), (1, 12, 16, 3)])
def test_what_is_no_batch_of_images_is_refused(vit, bit, shape):
    for model in (vit, bit):
        with pytest.raises(ImageSizeError, match="do not fit; give B x 3 x "):
            model(torch.zeros(shape).double())


def test_a_size_that_cannot_be_cut_is_refused_when_dynamic_too(make):
    with pytest.raises(ImageSizeError, match=r"H=13, W=16 .* P=4x4"):
        make(dynamic_image_size=True)(torch.zeros(1, 3, 13, 16).double())


@pytest.mark.parametrize("rule", sorted(positions.RESIZE_METHODS))
@pytest.mark.parametrize("size", [(24, 20), (16, 12), (8, 24), (4, 4)])
def test_a_dynamic_model_is_the_model_built_at_that_size(make, rule, size):
    """With its learned table resized by its own rule, with and without gradients."""
    model, other = make(dynamic_image_size=True, position_resize=rule), make(image_size=size)
    state, name = model.state_dict(), "embedding.positions.table"
    state[name] = positions.resize_positions(state[name], (3, 4), (size[0] // 4, size[1] // 4), prefix=1, rule=rule)
    other.load_state_dict(state)
    x = torch.randn(2, 3, *size, dtype=torch.float64)
    assert_close(model(x), other(x), rtol=0, atol=1e-12)
    with torch.no_grad():
        assert_close(model(x), other(x), rtol=0, atol=1e-12)
    with torch.inference_mode():
        assert_close(model(x), other(x), rtol=0, atol=1e-12)


def test_resized_positions_are_kept_until_the_table_changes(make, monkeypatch):
    model, calls, real = make(dynamic_image_size=True), [], positions.resize_positions
    monkeypatch.setattr(positions, "resize_positions", lambda *a, **k: calls.append(1) or real(*a, **k))
    table = model.embedding.positions.table
    x, y = (torch.randn(1, 3, *size, dtype=torch.float64) for size in [(8, 8), (12, 12)])
    with torch.no_grad():
        before = model(x)
        model(x)
        assert len(calls) == 1
        model(y)
        assert len(calls) == 2  # another grid
        table.mul_(2)
        assert (model(x) - before).abs().max() > 0.01
        model.load_state_dict({k: v / 2 if v is table else v for k, v in model.state_dict().items()})
        table.div_(2)
        assert_close(model(x), before, rtol=0, atol=1e-12)
        model.float()
        assert model(x.float()).dtype == torch.float32


def test_gradients_reach_a_table_that_is_resized(make):
    model = make(dynamic_image_size=True)
    with torch.no_grad():
        model(torch.randn(1, 3, 24, 32, dtype=torch.float64))  # fills what is kept
    model(torch.randn(1, 3, 24, 32, dtype=torch.float64)).sum().backward()
    assert model.embedding.positions.table.grad.abs().amax(1).min() > 0


def test_positions_at_every_layer_are_resized_too(make):
    for at in ("every-layer", "every-layer-shared"):
        model = make(dynamic_image_size=True, positions_at=at)
        assert model(torch.randn(1, 3, 8, 20, dtype=torch.float64)).shape == (1, 5)


# Every pair of options

SOME = {  # for options that take numbers: one value besides the default
    "image_size": [(16, 8)],
    "channels": [1],
    "patch": [(4, 2)],
    "registers": [2],
    "depth": [2],
    "heads": [4],
    "mlp": [8],
    "norm_eps": [1e-3],
    "attention_scale": [0.5],
    "skips": [(0,)],
    "layer_scale": [0.1],
    "dropout": [0.1],
    "attention_dropout": [0.1],
    "drop_path": [0.1],
    "classes": [0],
    "representation": [6],
    "units": [(), (1,)],
    "resnet_width": [0.125],
    "standardise_eps": [1e-3],
    "group_norm_eps": [1e-3],
    "width": [24],
    "rotary_base": [10.0],
    "rotary_start": [1.0],
    "rotary_grid": [(2, 2)],
    "attention_bias_mlp": [6],
    "pool_heads": [4],
    "pool_mlp": [6],
}
ALIKE = {("activation", word) for word in ("quick-gelu", "silu", "relu")} | {
    ("position_resize", word) for word in ("huggingface", "torchvision")
}  # gelu-tanh and timm stand for them in pairs: another function at the same place
PAIRS_WITHOUT_MEANING = {
    ("positions", "positions_at"),
    ("positions", "dynamic_image_size"),
    ("positions", "position_start"),
    ("pool", "class_token"),
    ("pool", "distillation_token"),  # refused is the pool that needs one
    ("distillation_token", "class_token"),
    ("distillation_head", "pool"),
    ("norm", "pool_order"),
    ("stem", "patch"),
    ("stem", "image_size"),
    ("attention_bias", "registers"),
    ("attention_bias", "distillation_token"),
}


def values(config):
    """Every value of every option but its default."""
    few = words(config)
    for name, default in ((each.name, each.value) for each in options_of(config)):
        others = [not default] if isinstance(default, bool) else few.get(name) or SOME[name]
        for value in others:
            if value != default:
                yield name, value


def runs(config):
    """Why it cannot be, in one line; nothing if it builds and runs in training."""
    try:
        model = build(config)
    except (ConfigError, ImageSizeError) as error:
        return str(error)
    x = torch.randn(2, config.channels, *config.image_size)
    with torch.no_grad():
        y = model.train()(x)
    assert y.shape[0] == 2
    assert y.shape[1] == config.readout.classes or not config.readout.classes
    assert torch.isfinite(y).all()
    return None


@pytest.mark.parametrize("stem", ["patch", "resnet"])
def test_every_pair_of_options_runs_or_is_refused_in_one_line(vit_config, stem):
    """And refused is only what is known to have no meaning: alone, or together."""
    base = vit_config.change(image_size=(8, 8), depth=1, stem=stem)
    if stem == "resnet":
        base = base.change(patch=1, image_size=(16, 16), units=(1,), resnet_width=0.125)
    every = [pair for pair in values(base) if pair[0] != "stem" or stem == "patch"]
    resnet = {each.name for each in options_of(base) if each.group == "resnet"}
    about_stem = resnet | {"patch", "image_size"}
    refused_alone = {(name, value) for name, value in every if runs(base.change(**{name: value}))}
    surprises = []
    for (a, x), (b, y) in combinations(every, 2):
        idle = {a, b} & resnet and "stem" not in (a, b) if stem == "patch" else not {a, b} & about_stem
        if a == b or idle or {(a, x), (b, y)} & ALIKE:
            continue
        why = runs(base.change(**{a: x, b: y}))
        assert "\n" not in (why or "")
        alone = {(a, x), (b, y)} & refused_alone
        if why and not alone and not {(a, b), (b, a)} & PAIRS_WITHOUT_MEANING:
            surprises.append(f"{a}={x} {b}={y}: {why}")
        if why and not alone:
            assert any(word in why for word in (a, b, str(x), str(y))), why
    assert not surprises
    allowed = {("class_token", False), ("distillation_head", True), ("pool", "cls-and-distillation")}
    allowed |= {("pool", "cls-distillation-mean")}
    assert {pair for pair in refused_alone if pair[0] not in ("stem", "image_size", "units")} == allowed


@pytest.mark.parametrize(
    "changes",
    [
        {"positions": "relative", "dynamic_image_size": True},
        {"positions": "relative", "position_start": "sincos"},
        {"positions": "none", "positions_at": "every-layer"},
        {"pool": "cls", "class_token": False},
        {"pool": "cls-and-gap", "class_token": False},
        {"pool": "cls-and-distillation", "distillation_token": False},
        {"pool": "gap", "class_token": False, "distillation_token": True},
        {"pool": "gap", "distillation_head": True},
        {"norm": "post", "pool_order": "mean-first"},
    ],
    ids=str,
)
def test_what_has_no_meaning_is_refused_by_name(vit_config, changes):
    """Both options are in the line."""
    with pytest.raises(ConfigError) as error:
        build(vit_config.change(**changes))
    assert sum(name in str(error.value) for name in changes) >= 2


def test_a_dynamic_model_may_be_built_where_nothing_is_tracked(vit_config):
    """Under inference_mode a table has no version to remember: it is resized each time, and a change is seen."""
    with torch.inference_mode():
        model = build(vit_config.change(dynamic_image_size=True, classes=0), seed=0)
        x = torch.randn(1, 3, 8, 8)
        before = model(x)
        model.embedding.positions.table.mul_(50)
        assert (model(x) - before).abs().max() > 0.01


def test_every_pair_of_options_of_a_bit_runs(bit_config):
    base = bit_config.change(image_size=(16, 16), units=(1,))
    every = list(values(base))
    assert len(every) > 8
    for (a, x), (b, y) in combinations(every, 2):
        assert a == b or runs(base.change(**{a: x, b: y})) is None


@pytest.mark.parametrize(
    "name",
    [
        "width",
        "depth",
        "heads",
        "mlp",
        "channels",
        "resnet_width",
        "registers",
        "classes",
        "representation",
        "norm_eps",
    ],
)
@pytest.mark.parametrize("stem", ["patch", "resnet", "convolutions"])
@pytest.mark.parametrize("value", [0, -1])
def test_numbers_that_cannot_be_are_refused_whatever_the_stem(vit_config, name, stem, value):
    if value == 0 and name in ("registers", "classes", "representation"):
        return
    with pytest.raises(ConfigError, match=f"{name}={value}"):
        build(vit_config.change(**{name: value}, stem=stem))


def test_a_resnet_too_thin_to_exist_is_refused(bit_config):
    with pytest.raises(ConfigError, match="resnet_width"):
        build(bit_config.change(resnet_width=0.01))


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    grid=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    patch=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    kind=st.sampled_from(sorted(positions.POSITION_KINDS)),
    at=st.sampled_from(["stem", "every-layer", "every-layer-shared"]),
    cover=st.sampled_from(["all", "class", "patches"]),
    pool=st.sampled_from(["cls", "gap", "map", "max", "cls-and-gap"]),
    order=st.sampled_from(["norm-first", "mean-first"]),
    width=st.sampled_from([8, 12, 16]),
    heads=st.sampled_from([1, 2, 4]),
    depth=st.integers(1, 3),
    registers=st.integers(0, 2),
    channels=st.integers(1, 4),
    classes=st.integers(0, 4),
)
def test_any_shape_builds_runs_and_survives_json(
    vit_config, grid, patch, kind, at, cover, pool, order, width, heads, depth, registers, channels, classes
):
    config = vit_config.change(
        image_size=(grid[0] * patch[0], grid[1] * patch[1]),
        patch=patch,
        positions=kind,
        positions_at=at if kind not in ("none", "relative") else "stem",
        positions_cover=cover,
        pool=pool,
        pool_order=order,
        width=width,
        heads=heads,
        depth=depth,
        registers=registers,
        channels=channels,
        classes=classes,
    )
    model = build(config, seed=0).eval()
    again = build(configs.from_json(config.to_json()), seed=1).eval()
    again.load_state_dict(model.state_dict())
    x = torch.randn(2, channels, *config.image_size)
    with torch.no_grad():
        y = model(x)
        assert_close(again(x), y)
        assert model.grid == grid
        assert_close(model(x[:1]), y[:1])
    if classes:
        assert y.shape == (2, classes)


# Compiling and exporting

SHAPES = [
    {},
    {"positions": "none"},
    {"positions": "learned-2d"},
    {"positions": "relative"},
    {"positions": "sincos-2d"},
    {"positions_at": "every-layer", "registers": 2, "positions_cover": "class"},
    {"pool": "gap"},
    {"pool": "map"},
    {"pool": "max", "pool_order": "mean-first"},
    {"pool": "cls-and-gap"},
    {"activation": "swiglu", "qk_norm": True, "layer_scale": 0.1},
    {"norm": "post", "norm_kind": "batch"},
    {"stem": "convolutions", "representation": 8},
    {"stem": "resnet", "patch": 1, "image_size": (32, 24)},
    "bit",
]


def whole(make, bit_config, changes):
    model = make(bit_config) if changes == "bit" else make(depth=1, **changes)
    return model, torch.randn(2, 3, *model.config.image_size, dtype=torch.float64)


@pytest.mark.parametrize("changes", SHAPES, ids=str)
def test_every_kind_compiles_as_one_graph(make, bit_config, changes):
    model, x = whole(make, bit_config, changes)
    torch.compiler.reset()
    with torch.no_grad():
        assert_close(torch.compile(model, fullgraph=True, backend="eager")(x), model(x), rtol=0, atol=1e-12)


@pytest.mark.parametrize("changes", SHAPES, ids=str)
def test_every_kind_exports(make, bit_config, changes):
    model, x = whole(make, bit_config, changes)
    exported = torch.export.export(model, (x,))
    assert_close(exported.module()(x), model(x), rtol=0, atol=1e-12)


def test_a_model_that_recomputes_and_one_of_free_size_compile(make):
    torch.compiler.reset()
    model = make(depth=1, dynamic_image_size=True)
    x = torch.randn(2, 3, 8, 20, dtype=torch.float64)
    fast = torch.compile(model, fullgraph=True, backend="eager")
    with torch.no_grad():
        assert_close(fast(x), model(x), rtol=0, atol=1e-12)
    model = make(depth=1)
    model.gradient_checkpointing = True
    x = torch.randn(2, 3, 12, 16, dtype=torch.float64)
    torch.compile(model, fullgraph=True, backend="eager")(x).sum().backward()
    gradient = model.embedding.projection.weight.grad.clone()
    model.zero_grad()
    model(x).sum().backward()
    assert_close(model.embedding.projection.weight.grad, gradient, rtol=0, atol=1e-12)


def test_all_errors_are_ours():
    assert issubclass(ConfigError, VitreousError)
    assert issubclass(ImageSizeError, VitreousError)
    assert issubclass(ModelNameError, VitreousError)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("S/16 root=small", "root=small has no meaning for stem=patch"),
        ("S/16 units=2,2", "units=2,2 has no meaning for stem=patch"),
        ("S/16 positions=none position_start=zeros", "position_start=zeros has no meaning for positions=none"),
        ("S/16 pool=gap token_start=normal", "token_start=normal has no meaning for class_token=False"),
    ],
)
def test_an_option_that_nothing_reads_is_refused(name, words):
    with pytest.raises(ConfigError, match=re.escape(words)):
        vitreous.build(name)


@pytest.mark.parametrize(
    ("name", "value", "say"),
    [
        ("img_size", 384, "say image_size=384"),
        ("num_classes", 10, "say classes=10"),
        ("patch_size", 8, "say patch=8"),
        ("embed_dim", 192, "say width=192"),
        ("num_layers", 6, "say depth=6"),
        ("num_heads", 3, "say heads=3"),
        ("global_pool", "map", "say pool=map"),
        ("num_clases", 10, "say classes=10"),
        ("hads", 3, "near: heads"),
    ],
)
def test_options_of_other_libraries_are_told_our_words(name, value, say):
    with pytest.raises(ConfigError) as error:
        vitreous.build("Ti/16", **{name: value})
    assert str(error.value) == f"there is no model option {name!r}; {say} (all: vitreous models --options)"


def test_each_of_our_words_for_theirs_is_an_option():
    known = {each.name for each in options_of(ViTConfig())}
    assert {said.partition("=")[0] for said in configs.THEIR_WORDS.values()} <= known
    assert not known & configs.THEIR_WORDS.keys(), "a word of ours is no word of theirs"


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("resnet50", "BiT-R50x1"),
        ("resnetv2_101x1_bit", "BiT-R101x1"),
        ("vit_base_patch16_224", "B/16"),
        ("vit_huge_patch14_clip", "H/14"),
        ("deit-tiny", "Ti/16"),
        ("ViT-Large-32", "L/32"),
    ],
)
def test_a_name_of_another_library_suggests_ours(theirs, ours):
    with pytest.raises(ModelNameError, match=rf"near: {ours} \(all: vitreous models\)$"):
        parse(theirs)
