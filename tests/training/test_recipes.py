"""Recipes: frozen values that build, go to JSON and back, and say what their papers say."""

import dataclasses
import json

import pytest
from shared_files import ROOT
from tiny_models import line_of

import vitreous
from vitreous.errors import ConfigError
from vitreous.images.pixels.augment import Augment
from vitreous.models.catalog import blueprint, parse
from vitreous.options import options_of
from vitreous.training import recipes
from vitreous.training.recipe import THEIR_WORDS, Epochs, Recipe, Steps, from_json, in_our_words
from vitreous.training.recipes import RECIPES, Given
from vitreous.training.recipes.augreg import LEVELS
from vitreous.training.recipes.bit import hyperrule
from vitreous.training.run.schedule import rates

RULES = json.loads((ROOT / "tests/golden/measures/bit_hyperrule.json").read_text())
SETS = [(312, (3000, 4000)), (8_000, (28, 28)), (50_000, (32, 32)), (6_704, (128, 128)), (1_281_167, (375, 500))]


@pytest.mark.parametrize("size", SETS, ids=lambda s: f"{s[0]} of {s[1][0]} pixels")
@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_builds_its_network_for_any_pictures(name, size):
    """Also: it goes to JSON and back, and is called as it is asked for."""
    images, pixels = size
    recipe = recipes.get(name, images=images, image_size=pixels, classes=7)
    assert recipe.name == name
    assert from_json(json.loads(json.dumps(recipe.to_json()))) == recipe
    if recipe.model is not None:
        side = recipe.image_size or 224
        blueprint(parse(f"{recipe.model} image_size={side} classes=7"))


def test_recipes_are_frozen_and_changed_by_name():
    recipe = recipes.get("deit")
    with pytest.raises(dataclasses.FrozenInstanceError):
        recipe.batch = 3  # type: ignore[misc]
    assert recipe.change(batch="64", mixup="0.1").augment.mixup == 0.1


def test_an_unknown_name_is_answered_with_the_nearest():
    with pytest.raises(ConfigError) as caught:
        recipes.get("dei")
    line_of(caught.value, "'dei'", "deit", "--recipe list")
    with pytest.raises(ConfigError) as caught:
        recipes.get("zzz")
    line_of(caught.value, "'zzz'", "small-data")


def test_the_list_has_every_recipe_with_source_and_one_line():
    rows = recipes.rows()
    assert [row.name for row in rows] == list(RECIPES)
    for row in rows:
        assert row.source
        assert 20 < len(row.about) < 120
        assert "\n" not in row.about


@pytest.mark.parametrize("name", RECIPES)
def test_every_docstring_has_source_command_and_cost(name):
    text = RECIPES[name].__doc__ or ""
    for word in ("Source:", f"--recipe {name}", "Cost:"):
        assert word in text, word
    assert ("Published:" in text) == (recipes.get(name).source != "ours")
    assert "Measured:" in text or "Published:" in text


def test_a_recipe_keeps_the_changes_that_were_asked_of_its_network():
    """The recipe's parts come first, so that what the user says wins."""
    recipe = recipes.get("plain-vit", model="ViT-B/16 registers=4 pool=map")
    config = parse(recipe.model)
    assert (config.encoder.width, config.embedding.registers, config.readout.pool) == (768, 4, "map")
    assert config.embedding.positions == "sincos-2d"
    assert recipes.get("small-data", model="B/16 registers=1").model == "B/16 registers=1"


# --------------------------------------------------------------------------------------------------------------- papers


@pytest.mark.claim("T15")
@pytest.mark.parametrize(
    ("name", "model", "epochs", "peak", "schedule", "decay", "dropout", "clip"),
    [
        ("p1-jft", "B/16", 7, 8e-4, "linear", 0.1, 0.0, None),
        ("p1-jft", "L/32", 7, 6e-4, "linear", 0.1, 0.0, None),
        ("p1-jft", "L/16", 14, 4e-4, "linear", 0.1, 0.0, None),
        ("p1-jft", "H/14", 14, 3e-4, "linear", 0.1, 0.0, None),
        ("p1-jft", "BiT-R50x1", 7, 1e-3, "linear", 0.1, 0.0, None),
        ("p1-jft", "R50+L/32", 7, 2e-4, "linear", 0.1, 0.0, None),
        ("p1-imagenet21k", "B/16", 90, 1e-3, "linear", 0.03, 0.1, None),
        ("p1-imagenet", "B/16", 300, 3e-3, "cosine", 0.3, 0.1, 1.0),
    ],
)
def test_table_3(name, model, epochs, peak, schedule, decay, dropout, clip):
    """P1: Adam (0.9, 0.999), batch 4096, 10,000 warm-up steps, 224 pixels; the tanh layer in a ViT's head."""
    recipe = recipes.get(name, model=model)
    assert recipe.optimizer == "adam"
    assert recipe.betas == (0.9, 0.999)
    assert (recipe.batch, recipe.warmup, recipe.image_size) == (4096, Steps(10_000), 224)
    assert (recipe.length, recipe.peak_lr, recipe.schedule) == (Epochs(epochs), peak, schedule)
    assert (recipe.weight_decay, recipe.dropout, recipe.clip) == (decay, dropout, clip)
    config = parse(recipe.model)
    if not model.startswith("BiT"):
        assert config.readout.representation == config.encoder.width


def test_a_model_without_a_row_in_table_3_is_refused():
    with pytest.raises(ConfigError) as caught:
        recipes.get("p1-jft", model="Ti/16")
    line_of(caught.value, "Ti/16", "B/16", "H/14")


@pytest.mark.claim("T15")
@pytest.mark.parametrize(
    ("images", "steps", "peak", "dev"),
    [
        (3_680, 500, 0.003, 0.1),
        (19_999, 500, 0.003, 0.1),
        (20_000, 10_000, 0.01, 0.02),
        (50_000, 10_000, 0.01, 0.02),
        (1_281_167, 20_000, 0.03, 0.01),
    ],
)
def test_table_4(images, steps, peak, dev):
    """P1: fine-tuning by SGD with momentum 0.9, cosine, clip 1, no decay, 384 pixels."""
    recipe = recipes.get("p1-finetune", images=images)
    assert (recipe.optimizer, recipe.momentum, recipe.schedule) == ("sgd", 0.9, "cosine")
    assert (recipe.clip, recipe.weight_decay, recipe.batch, recipe.image_size) == (1.0, 0.0, 512, 384)
    assert (recipe.length, recipe.peak_lr, recipe.dev) == (Steps(steps), peak, dev)


@pytest.mark.parametrize("row", RULES, ids=lambda row: row["name"])
def test_hyperrule_is_the_codes(row):
    rule = hyperrule((row["height"], row["width"]), row["n"])
    assert (rule.resize, rule.crop, rule.steps, rule.mixup) == (
        row["precrop"],
        row["crop"],
        row["total_steps"],
        row["mixup_alpha"],
    )
    assert [*rule.points, rule.steps] == row["supports"]
    recipe = recipes.get("bit-hyperrule", images=row["n"], image_size=(row["height"], row["width"]))
    found = rates(recipe, rule.steps, 1)
    warmup, *points = rule.points
    assert found[warmup // 2] == pytest.approx(0.0015)
    for i, point in enumerate(points):
        assert found[point] == pytest.approx(0.003 / 10**i)
        assert found[point + 1] == pytest.approx(0.003 / 10 ** (i + 1))
    assert recipe.augment.window == row["crop"] / row["precrop"]


def test_bit_pretraining_scales_its_rate_with_the_batch():
    recipe = recipes.get("bit-pretrain")
    assert recipe.peak_lr == pytest.approx(0.48)
    found = rates(recipe, 90 * 312, 312)
    assert [found[312 * e] for e in (30, 60, 80)] == pytest.approx([0.048, 0.0048, 0.00048])
    large = recipes.get("bit-pretrain", images=303_000_000)
    assert large.length == Epochs(40)
    assert large.drops == (10 / 40, 23 / 40, 30 / 40, 37 / 40)


def test_augreg_levels_are_the_papers():
    assert LEVELS["light1"].rand_augment == (2, 0)
    assert (LEVELS["medium2"].rand_augment, LEVELS["medium2"].mixup) == ((2, 15), 0.5)
    assert recipes.get("augreg", model="Ti/16").augment == LEVELS["light1"]
    assert recipes.get("augreg", model="Ti/16", images=14_000_000).augment == LEVELS["none"]
    assert recipes.get("augreg").head_bias == pytest.approx(-6.9, abs=0.01)
    assert recipes.get("augreg", classes=21_843).head_bias == pytest.approx(-10, abs=0.01)


def test_deit_is_its_table():
    recipe = recipes.get("deit")
    assert (recipe.peak_lr, recipe.weight_decay, recipe.smoothing, recipe.drop_path) == (1e-3, 0.05, 0.1, 0.1)
    assert (recipe.augment.mixup, recipe.augment.cutmix, recipe.augment.erase, recipe.repeats) == (0.8, 1.0, 0.25, 3)
    found = rates(recipe, 300 * 1251, 1251)
    assert found[0] == 1e-6
    assert found[1251] == pytest.approx(2.008e-4)
    assert found[5 * 1251] == pytest.approx(9.99321619703514e-4)


def test_a_distilled_deit_has_two_heads_and_a_teacher():
    recipe = recipes.get("deit-distilled", model="Ti/16")
    config = parse(recipe.model)
    assert config.readout.distillation_head
    assert config.embedding.distillation_token
    assert recipe.teacher == "last"


@pytest.mark.parametrize(
    ("model", "pixels", "peak", "drop_path"),
    [("S/16", 224, 4e-3, 0.05), ("B/16", 192, 3e-3, 0.2), ("H/14", 154, 3e-3, 0.6)],
)
def test_deit3_is_its_readme(model, pixels, peak, drop_path):
    recipe = recipes.get("deit3", model=model)
    assert (recipe.image_size, recipe.peak_lr, recipe.drop_path) == (pixels, peak, drop_path)
    assert (recipe.optimizer, recipe.loss, recipe.length) == ("lamb", "sigmoid", Epochs(800))
    assert recipe.augment.three_augment


# ----------------------------------------------------------------------------------------------------------------- ours


def test_the_small_hybrid_has_sixteen_tokens_of_28_pixels():
    recipe = recipes.get("small-hybrid", images=8_000, image_size=28)
    model = vitreous.build(recipe.model, image_size=recipe.image_size, channels=1, classes=10)
    assert model.grid == (4, 4)
    assert sum(p.numel() for p in model.parameters()) < 200_000


def test_small_data_has_at_least_49_tokens_and_at_most_22_million_parameters():
    for images, size in SETS:
        recipe = recipes.get("small-data", images=images, image_size=size)
        model = blueprint(parse(f"{recipe.model} image_size={recipe.image_size} classes=10"))
        assert model.grid[0] * model.grid[1] >= 49
        assert sum(p.numel() for p in model.parameters()) < 22e6


@pytest.mark.parametrize("name", ["small-data", "small-hybrid", "masked-patches"])
@pytest.mark.parametrize("images", [10, 64, 312, 5_000, 100_000])
def test_ours_have_steps_however_few_the_pictures(name, images):
    """A batch is never more than the pictures, and an epoch has several where it can."""
    recipe = recipes.get(name, images=images, image_size=64)
    assert recipe.batch <= images
    assert images // recipe.batch >= min(8, images // 8)


def test_given_is_imagenet_unless_said():
    assert Given().images == 1_281_167
    assert Given(image_size=(30, 40)).side == 30
    assert isinstance(RECIPES["small-data"](Given()), Recipe)


@pytest.mark.parametrize(
    ("images", "epochs"), [(100, 40), (1_000, 40), (2_000, 20), (3_496, 12), (19_999, 12), (50_000, 40), (10**6, 2)]
)
def test_fine_tune_takes_320_steps_of_few_pictures_and_more_of_many(images, epochs):
    recipe = recipes.get("fine-tune", images=images, classes=37)
    assert recipe.length == Epochs(epochs)
    assert images * recipe.length.count <= 2e6


@pytest.mark.parametrize(
    ("name", "value", "say"),
    [
        ("epochs", 30, 'say length="30 epochs"'),
        ("epochz", 30, 'say length="30 epochs"'),
        ("steps", 500, 'say length="500 steps"'),
        ("seconds", 60, 'say length="60 seconds"'),
        ("lr", 0.001, "say peak_lr=0.001"),
        ("learning_rate", "3e-4", "say peak_lr=3e-4"),
        ("batch_size", 64, "say batch=64"),
        ("batch-size", 64, "say batch=64"),
        ("wd", 0.1, "say weight_decay=0.1"),
        ("img_size", 96, "say image_size=96"),
        ("optimiser", "sgd", "say optimizer=sgd"),
        ("warmup_epochs", 5, 'say warmup="5 epochs"'),
        ("label_smoothing", 0.1, "say smoothing=0.1"),
        ("peak_rl", 0.1, "near: peak_lr"),
        ("mixupp", 0.1, "near: mixup"),
        ("frobnicate", 1, "the usual ones: length, batch, peak_lr, weight_decay, image_size, seed"),
    ],
)
def test_fields_of_other_libraries_are_told_our_words(name, value, say):
    with pytest.raises(ConfigError) as error:
        Recipe().change(**{name: value})
    assert str(error.value) == f"a recipe has no field {name!r}; {say}"


def test_what_is_told_can_be_said():
    """Each of our words for theirs is a field, and what is told with a value is read."""
    for theirs, ours in THEIR_WORDS.items():
        name, _, value = ours.format("30").replace('"', "").partition("=")
        assert name in {field.name for kind in (Recipe, Augment) for field in dataclasses.fields(kind)}, theirs
        if " " in value:
            Recipe().change(**{name: value})


def test_fit_refuses_a_wrong_word_before_it_looks_at_any_image(tmp_path):
    for name, say in (("epochz", 'say length="3 epochs"'), ("wieghts", "near: weights")):
        with pytest.raises(ConfigError) as error:
            vitreous.fit(tmp_path / "nowhere", **{name: 3})
        line_of(error.value, f"a recipe has no field {name!r}; {say}")


@pytest.mark.parametrize(
    ("given", "ours"),
    [
        ({"epochs": 5}, {"length": "5 epochs"}),
        ({"epochs": 0.5, "lr": 0.1}, {"length": "0.5 epochs", "peak_lr": 0.1}),
        (
            {"steps": 9, "batch_size": 8, "image_size": (32, 48)},
            {"length": "9 steps", "batch": 8, "image_size": (32, 48)},
        ),
        ({"ema": True}, {"average": "ema"}),
        ({"ema": False}, {"ema": False}),
        ({"peak_lr": 0.1, "colour": 3}, {"peak_lr": 0.1, "colour": 3}),
    ],
)
def test_other_names_of_fields_become_ours(given, ours):
    assert in_our_words(given) == ours


def test_every_other_name_becomes_a_field_that_a_recipe_has():
    known = {each.name for each in options_of(Recipe())}
    assert all(set(in_our_words({name: True})) <= known for name in THEIR_WORDS)


def test_a_field_that_two_names_give_is_refused():
    with pytest.raises(ConfigError, match="length is given twice, by epochs and by length; give one"):
        in_our_words({"epochs": 5, "length": "3 steps"})
