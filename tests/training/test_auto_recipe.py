"""`--recipe auto`: for every kind of set and machine a recipe that can run, and a reason."""

import itertools

import pytest
from small_runs import MODEL

from vitreous.models.catalog import blueprint, parse
from vitreous.training.plan.auto_recipe import choose
from vitreous.training.plan.estimate import Estimate
from vitreous.training.recipe import Epochs, Seconds, Steps
from vitreous.training.run.schedule import rates

VIT, BIT = (blueprint(parse(name)) for name in (MODEL, "BiT-R50x1 resnet_width=0.25 units=1-1-1-1"))
COUNTS = (10, 40, 312, 2_000, 50_000, 1_281_167, 14_000_000)
SIZES = (28, 32, 64, 128, 224, (3000, 4000))


def worth(share: float, *, images: int = 1000, chance: float = 0.1) -> Estimate:
    return Estimate(right=round(share * images), images=images, of=images, chance=chance, logme=0.5, l2=64.0, seconds=6)


@pytest.mark.parametrize(
    ("images", "size", "weights", "device"), [*itertools.product(COUNTS, SIZES, [None, VIT], ["cpu", "cuda"])]
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
    if weights is None:
        blueprint(parse(f"{recipe.model} image_size={recipe.image_size} classes=5"))


@pytest.mark.parametrize(
    ("images", "size", "weights", "device", "name"),
    [
        (8_000, 28, None, "cpu", "small-hybrid"),
        (312, (3000, 4000), None, "cpu", "small-hybrid"),
        (50_000, 32, None, "cuda", "small-data"),
        (6_704, 128, None, "cuda", "small-data"),
        (1_281_167, 224, None, "cuda", "plain-vit"),
        (14_000_000, 224, None, "cuda", "augreg"),
        (3_680, 160, VIT, "cuda", "fine-tune"),
        (312, (3000, 4000), VIT, "cpu", "p1-finetune"),
    ],
)
def test_what_suits_whom(images, size, weights, device, name):
    assert choose(images, 10, size, weights, device).recipe.name == name


@pytest.mark.parametrize(
    ("images", "share", "device", "name", "policy", "words"),
    [
        (150, 0.30, "cuda", "linear-probe", "head", "fewer than 200"),
        (150, 0.30, "cpu", "linear-probe", "head", "fewer than 200"),
        (199, 0.50, "cpu", "linear-probe", "head", "fewer than 200"),
        (200, 0.50, "cpu", "p1-finetune", "last-1", "small and different"),
        (5_000, 0.995, "cuda", "linear-probe", "head", "99 % already"),
        (1_000, 0.90, "cpu", "linear-probe", "head", "small and similar (0.89"),
        (50_000, 0.90, "cpu", "linear-probe", "head", "large and similar"),
        (1_000, 0.50, "cpu", "p1-finetune", "last-1", "small and different (0.44"),
        (50_000, 0.50, "cpu", "p1-finetune", "all", "large and different"),
        (1_000, 0.90, "cuda", "fine-tune", "layer-decay", "small and similar"),
        (50_000, 0.50, "cuda", "fine-tune", "layer-decay", "large and different"),
    ],
)
def test_what_frozen_features_are_worth_decides_what_moves(images, share, device, name, policy, words):
    """The number to beat comes first, then the choice with the numbers it was made by."""
    choice = choose(images, 10, 160, VIT, device, estimate=worth(share))
    assert (choice.recipe.name, choice.recipe.policy) == (name, policy)
    first, second = choice.reasons
    assert f"{100 * share:.1f} %" in first
    assert "left out, chance 10 %, LogME 0.50; 6 s" in first
    assert words in second


@pytest.mark.claim("T07", "T09")
@pytest.mark.parametrize("weights", [VIT, BIT], ids=["vit", "bit"])
@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("images", [1_000, 50_000])
@pytest.mark.parametrize("share", [0.5, 0.9])
def test_whatever_is_trained_is_augmented_in_all_four_cases(images, share, device, weights):
    """A policy chooses layers alone; a solved head sees each picture as it is."""
    for may_solve in (True, False):
        choice = choose(images, 10, 160, weights, device, estimate=worth(share), may_solve=may_solve)
        augment, is_plain = choice.recipe.augment, choice.recipe.is_solved
        assert (augment.crop == "none", augment.flip == 0) == (is_plain, is_plain)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_what_only_steps_can_do_is_trained_however_good_frozen_features_are(device):
    assert not choose(1_000, 10, 160, VIT, device, estimate=worth(0.995), may_solve=False).recipe.is_solved


@pytest.mark.parametrize(
    ("images", "share", "policy", "first"),
    [
        (1_000, 0.90, "layer-decay", "solved"),
        (150, 0.30, "layer-decay", "solved"),
        (1_000, 0.50, "last-1", "new"),  # nothing was asked for that would not be done anyway
        (50_000, 0.90, "last-2", "new"),  # to read them all would be most of the work
    ],
)
def test_steps_in_the_place_of_a_solved_head_begin_from_it(images, share, policy, first):
    choice = choose(images, 10, 160, VIT, "cpu", estimate=worth(share), may_solve=False)
    assert (choice.recipe.policy, choice.recipe.first_head) == (policy, first)
    assert ("steps begin from the solved head" in choice.reasons[-1]) == (first == "solved")
    cramped = choose(images, 10, 160, VIT, "cpu", estimate=worth(share), has_room=False).recipe
    assert (cramped.first_head, cramped.is_solved) == ("new", False)


def test_who_gets_a_solved_head_hears_what_steps_would_do_where_they_would_begin_from_it():
    few, many = (choose(images, 10, 160, VIT, "cpu", estimate=worth(0.9)) for images in (1_000, 50_000))
    known = choose(1_000, 10, 160, VIT, "cpu", estimate=worth(0.9), knows_classes=True)
    assert [choice.recipe.is_solved for choice in (few, many, known)] == [True] * 3
    assert ["--steps 100" in choice.reasons[-1] for choice in (few, many, known)] == [True, False, False]


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_policy_that_was_asked_for_is_kept(device):
    """The head is solved, unless something was asked for that needs steps."""
    found = {name: choose(1_000, 10, 160, VIT, device, asked=name).recipe for name in ("head", "last-1", "all", "full")}
    assert {name: recipe.policy for name, recipe in found.items()} == {name: name for name in found}
    assert [recipe.is_solved for recipe in found.values()] == [True, False, False, False]
    trained = choose(1_000, 10, 160, VIT, device, asked="head", may_solve=False).recipe
    assert (trained.policy, trained.is_solved) == ("head", False)


def test_bit_weights_are_fine_tuned_by_bits_rule():
    for estimate in (None, worth(0.9)):
        recipe = choose(3_680, 37, 160, BIT, "cuda", estimate=estimate).recipe
        assert recipe.name == "bit-hyperrule"
        assert recipe.image_size is None  # the weights' own
    recipe = choose(50_000, 10, 32, BIT, "cuda").recipe
    assert (recipe.length, recipe.batch, recipe.peak_lr) == (Steps(10_000), 512, 0.003)


def test_a_cpu_shows_fewer_pictures():
    cpu, gpu = (choose(3_680, 37, 160, BIT, device).recipe for device in ("cpu", "cuda"))
    assert cpu.length.count * cpu.batch < gpu.length.count * gpu.batch


def test_fewer_pictures_are_not_shown_more_often_than_100_times():
    recipe = choose(312, 5, 224, BIT, "cuda").recipe
    assert recipe.length.count * recipe.batch <= 100 * 312


def test_several_labels_are_judged_one_by_one():
    choice = choose(5_000, 20, 64, None, "cuda", several_labels=True)
    assert choice.recipe.loss == "sigmoid"
    assert choice.recipe.smoothing == 0
    assert "sigmoid" in choice.reasons[-1]


def test_a_network_that_was_asked_for_is_kept():
    choice = choose(5_000, 20, 64, None, "cuda", model="B/8 registers=4")
    assert choice.recipe.model == "B/8 registers=4"
    assert isinstance(choice.recipe.length, Epochs)
