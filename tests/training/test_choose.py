"""`--recipe auto`: for every kind of set and machine a recipe that can run, and a reason."""

import itertools

import pytest

from vitreous.models.catalog import blueprint, parse
from vitreous.training.choose import choose
from vitreous.training.recipe import Epochs, Seconds, Steps
from vitreous.training.schedule import rates

COUNTS = (10, 40, 312, 2_000, 50_000, 1_281_167, 14_000_000)
SIZES = (28, 32, 64, 128, 224, (3000, 4000))


@pytest.mark.parametrize(
    ("images", "size", "weights", "device"), [*itertools.product(COUNTS, SIZES, [False, True], ["cpu", "cuda"])]
)
def test_every_choice_can_run(images, size, weights, device):
    """It has steps, a schedule that fits into them, a network that builds, and one or two lines of reasons."""
    recipe, reasons = (choice := choose(images, 5, size, weights, device)).recipe, choice.reasons
    assert recipe.batch <= max(images, 8)
    assert not isinstance(recipe.length, Seconds)
    per_epoch = images / recipe.batch
    steps = recipe.length.count if isinstance(recipe.length, Steps) else round(recipe.length.count * per_epoch)
    assert steps >= 2
    assert rates(recipe, min(steps, 10**6) if images > 10**6 else steps, per_epoch).max() > 0
    assert 1 <= len(reasons) <= 2
    assert recipe.name in reasons[0]
    assert f"{images:,}" in reasons[0]
    assert str(choice) == "\n".join(reasons)
    assert all(line.isprintable() for line in reasons)
    if not weights:
        blueprint(parse(f"{recipe.model} image_size={recipe.image_size} classes=5"))


@pytest.mark.parametrize(
    ("images", "size", "weights", "device", "name"),
    [
        (8_000, 28, False, "cpu", "small-hybrid"),
        (312, (3000, 4000), False, "cpu", "small-hybrid"),
        (50_000, 32, False, "cuda", "small-data"),
        (6_704, 128, False, "cuda", "small-data"),
        (1_281_167, 224, False, "cuda", "plain-vit"),
        (14_000_000, 224, False, "cuda", "augreg"),
        (3_680, 160, True, "cuda", "p1-finetune"),
        (312, (3000, 4000), True, "cpu", "p1-finetune"),
    ],
)
def test_what_suits_whom(images, size, weights, device, name):
    assert choose(images, 10, size, weights, device).recipe.name == name


def test_bit_weights_are_fine_tuned_by_bits_rule():
    recipe = choose(3_680, 37, 160, True, "cuda", family="bit").recipe
    assert recipe.name == "bit-hyperrule"
    assert recipe.image_size is None  # the weights' own


def test_fine_tuning_is_the_papers_where_the_pictures_allow_it():
    recipe = choose(50_000, 10, 32, True, "cuda").recipe
    assert (recipe.length, recipe.batch, recipe.peak_lr) == (Steps(10_000), 512, 0.01)


def test_a_cpu_shows_fewer_pictures():
    cpu, gpu = (choose(3_680, 37, 160, True, device).recipe for device in ("cpu", "cuda"))
    assert cpu.length.count * cpu.batch < gpu.length.count * gpu.batch


def test_fewer_pictures_are_not_shown_more_often_than_100_times():
    recipe = choose(312, 5, 224, True, "cuda").recipe
    assert recipe.length.count * recipe.batch <= 100 * 312


def test_several_labels_are_judged_one_by_one():
    choice = choose(5_000, 20, 64, False, "cuda", several_labels=True)
    assert choice.recipe.loss == "sigmoid"
    assert choice.recipe.smoothing == 0
    assert "sigmoid" in choice.reasons[-1]


def test_a_network_that_was_asked_for_is_kept():
    choice = choose(5_000, 20, 64, False, "cuda", model="B/8 registers=4")
    assert choice.recipe.model == "B/8 registers=4"
    assert isinstance(choice.recipe.length, Epochs)
