"""A head in closed form: the backbone as it was, every image judged by a head that has not seen it."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from small_runs import SIDE, assert_equal_states, image_set, network, tinted_folder
from tiny_models import BIT, VIT, awake, images, line_of

import vitreous
from vitreous.errors import ConfigError, DataError
from vitreous.evaluation import calibration
from vitreous.evaluation.ridge_regression import BIAS_COLUMN, STD_EPS, ridge
from vitreous.training.plan import starting_weights
from vitreous.training.recipe import L2S, Recipe
from vitreous.training.run import closed_form, none_of_these
from vitreous.training.run import folder as runs

NUMBERS = ("temperature", "threshold", "judged", "how_judged")

pytestmark = pytest.mark.usefixtures("own_cache")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tinted_folder(tmp_path_factory.mktemp("sets") / "tints", 80, strength=60)


@pytest.fixture(scope="module")
def with_test(folder):
    """The same, as if its test split of 16 had come with it."""
    return replace(vitreous.images.open(folder), about={})


def solved(data, out, weights, **options):
    options = {"recipe": "linear-probe", "device": "cpu", "workers": 0, "check": False, **options}
    return vitreous.fit(data, weights=weights, out=out, **options)


@pytest.fixture(scope="module")
def run(folder, weights, tmp_path_factory):
    return solved(folder, tmp_path_factory.mktemp("runs") / "run", weights)


def features_of(weights, data):
    model = vitreous.load(weights, classes=4)
    return closed_form.frozen_features(model, data, workers=0)


def by_hand(rows, labels, classes, l2, mean, std):
    """The normal equations with the constant column, in float64: weights of D + 1 rows."""
    z = np.hstack([(rows - mean) / std, np.full((len(rows), 1), BIAS_COLUMN)])
    targets = 2.0 * np.eye(classes)[labels] - 1
    return np.linalg.solve(z.T @ z + l2 * np.eye(z.shape[1]), z.T @ targets)


# ------------------------------------------------------------------------------------------------------ what it leaves


def test_the_backbone_stays_bit_for_bit_and_the_head_answers_as_the_probe(run, folder, weights):
    before, model = vitreous.load(weights), run.load()
    state = model.state_dict()
    for name, tensor in before.state_dict().items():
        assert name.startswith("head.") or torch.equal(state[name], tensor), name
    data = vitreous.images.open(folder)
    found = features_of(weights, data)
    rows = found.rows.astype(np.float64)
    mean, std = rows.mean(0), rows.std(0) + STD_EPS
    (event,) = [event for event in runs.read(run.path) if event["kind"] == "solved"]
    weight = by_hand(rows, data.labels, 4, event["l2"], mean, std)
    wanted = np.hstack([(rows - mean) / std, np.full((len(rows), 1), BIAS_COLUMN)]) @ weight
    ours = vitreous.evaluation.inference.logits(model, data, workers=0).values
    np.testing.assert_allclose(ours, wanted, atol=1e-4)


def test_every_image_is_judged_by_a_head_that_has_not_seen_it(run, folder, weights):
    """A refit for each round, by the normal equations, gives the run's number, temperature and threshold."""
    data = vitreous.images.open(folder)
    rows = features_of(weights, data).rows.astype(np.float64)
    mean, std = rows.mean(0), rows.std(0) + STD_EPS
    groups, copies = closed_form.rounds(data)
    assert (len(np.unique(groups)), copies) == (20, 0)
    tried = {}
    for l2 in L2S:
        logits = np.zeros((80, 4))
        for group in range(20):
            here = groups == group
            weight = by_hand(rows[~here], data.labels[~here], 4, l2, mean, std)
            logits[here] = np.hstack([(rows[here] - mean) / std, np.full((int(here.sum()), 1), BIAS_COLUMN)]) @ weight
        tried[l2] = float(((logits - 2 * np.eye(4)[data.labels] + 1) ** 2).mean()), logits
    l2 = min(tried, key=lambda l2: tried[l2][0])
    assert l2 == next(event["l2"] for event in runs.read(run.path) if event["kind"] == "solved")
    kept = tried[l2][1]
    right = int((kept.argmax(1) == data.labels).sum())
    metrics = run.metrics
    assert metrics["judged_by"] == "leave-one-out"
    assert (metrics["judged"]["right"], metrics["judged"]["images"]) == (right, 80)
    assert metrics["temperature"] == pytest.approx(calibration.fit_temperature(kept, data.labels), rel=1e-4)
    scores, _ = none_of_these.left_out_scores(rows, data.labels, 4, groups % 5)
    assert metrics["threshold"] == pytest.approx(calibration.fit_threshold(scores), rel=1e-4)
    assert run.load().temperature == metrics["temperature"]


def test_the_page_the_card_and_the_numbers_say_so(run):
    page, card = (run_file(run, name).read_text() for name in ("report.html", "README.md"))
    for text in (page, card):
        assert "Measured by leave-one-out: each of the 80 images was judged by a classifier" in text.replace("\n", " ")
    assert "each judged, each learned from" in page
    assert "each image once, no steps" in page
    assert "solved in closed form" in page
    assert "solved in closed form" in card
    assert "Learning rate" not in page
    assert run.metrics["steps"] == 0
    assert run.metrics["recipe"] == "linear-probe"
    assert run.load().source["learned_from"] == "all"


def run_file(run, name):
    return Path(run.path) / name


# ------------------------------------------------------------------------------------------------------------- copies


def test_copies_are_left_out_together(weights, tmp_path):
    """Noise with labels drawn at random, every picture there twice: only who has seen one can name it."""
    draw = np.random.default_rng(0)
    for i in range(40):
        picture = Image.fromarray(draw.integers(0, 256, (SIDE, SIDE, 3), np.uint8))
        for copy in ("a", "b"):
            file = tmp_path / "noise" / f"class {i % 2}" / f"{i}{copy}.png"
            file.parent.mkdir(parents=True, exist_ok=True)
            picture.save(file)
    found = solved(tmp_path / "noise", tmp_path / "run", weights, l2=(1.0,))
    assert found.metrics["judged"]["images"] == 80
    assert found.metrics["judged"]["top1"] < 0.7, "better than a coin at noise: a head was asked what it had seen"
    data = vitreous.images.open(tmp_path / "noise")
    frozen = closed_form.frozen_features(vitreous.load(weights, classes=2), data, workers=0)
    fooled = closed_form.solve(frozen.rows, data.labels, 2, (1.0,))
    assert fooled.right[1.0] > found.metrics["judged"]["right"] + 10
    assert (
        "rounds, some of each class; 80 have copies, bursts or series, left out together"
        in run_file(found, "report.html").read_text()
    )


def test_a_group_left_out_is_a_refit_without_it():
    draw = np.random.default_rng(0)
    rows, labels, groups = draw.normal(size=(30, 8)), np.arange(30) % 3, np.arange(30) // 4
    found = closed_form.solve(rows, labels, 3, (10.0,), groups=groups)
    mean, std = rows.mean(0), rows.std(0) + STD_EPS
    for group in range(8):
        here = groups == group
        weight = by_hand(rows[~here], labels[~here], 3, 10.0, mean, std)
        z = np.hstack([(rows[here] - mean) / std, np.full((int(here.sum()), 1), BIAS_COLUMN)])
        np.testing.assert_allclose(found.left_out[here], z @ weight, atol=1e-9)


def test_a_round_leaves_out_one_image_of_each_class_with_its_copies():
    """So that no class is one short when an image of it is asked for."""
    data = replace(image_set(60), labels=np.arange(60) % 4, groups=np.r_[0, 0, np.arange(2, 60)])
    groups, copies = closed_form.rounds(data)
    assert copies == 2
    assert groups[0] == groups[1]
    counts = np.array([np.bincount(data.labels[groups == group], minlength=4) for group in np.unique(groups)])
    assert counts.max() <= 2
    assert len(counts) in (14, 15)
    assert (counts.sum(1) >= 3).all()


def test_rounds_are_not_held_against_a_class_of_few():
    """Features that say nothing: leaving out one alone is right less often than chance, a round as often."""
    draw = np.random.default_rng(0)
    rows, labels = draw.normal(size=(400, 3)), np.arange(400) % 40
    assert closed_form.solve(rows, labels, 40, (1e4,)).right[1e4] == 0
    data = replace(image_set(400), labels=labels, classes=tuple(map(str, range(40))), groups=np.arange(400))
    by_rounds = closed_form.solve(rows, labels, 40, (1e4,), groups=closed_form.rounds(data)[0]).right[1e4]
    assert 3 <= by_rounds <= 20


def test_the_penalty_kept_is_the_one_with_the_smallest_error_when_left_out():
    rows = np.array([[-2.0], [-1.9], [2.0], [2.1]]).repeat(3, 0)
    found = closed_form.solve(rows, np.repeat([0, 1], 6), 2, (1e-3, 1.0, 2.0))
    assert set(found.right.values()) == {12}
    assert found.probe.l2 == 1e-3


# ------------------------------------------------------------------------------------------------------ which number


def test_a_test_split_that_came_with_the_images_gives_the_number(with_test, weights, tmp_path):
    found = solved(with_test, tmp_path / "run", weights)
    assert found.metrics["judged_by"] == "test"
    train, test = with_test.split("train"), with_test.split("test")
    again = vitreous.evaluate(found.load(), with_test, split="test", workers=0)
    assert (again.right, again.images) == (found.metrics["judged"]["right"], 16)
    head = closed_form.solve(
        features_of(weights, train).rows, train.labels, 4, L2S, groups=closed_form.rounds(train)[0]
    )
    assert head.probe.right(features_of(weights, test).rows, test.labels) == again.right
    assert found.metrics["temperature"] == pytest.approx(
        calibration.fit_temperature(head.left_out, train.labels), rel=1e-4
    )
    assert found.load().source["learned_from"] == "train"


def test_test_images_and_their_labels_change_nothing_but_the_number(with_test, weights, tmp_path):
    labels = np.where(with_test.splits == "test", (with_test.labels + 1) % 4, with_test.labels)
    others = replace(with_test, labels=labels)
    one, two = (solved(some, tmp_path / str(i), weights) for i, some in enumerate((with_test, others)))
    assert_equal_states(two.load().state_dict(), one.load().state_dict())
    for name in ("temperature", "threshold"):
        assert two.metrics[name] == one.metrics[name], name
    assert two.metrics["judged"]["right"] != one.metrics["judged"]["right"]


def test_many_images_are_judged_on_the_split_that_was_made(folder, weights, tmp_path, monkeypatch):
    monkeypatch.setattr(starting_weights, "CROSS_VALIDATE_BELOW", 50)
    found = solved(folder, tmp_path / "run", weights)
    assert (found.metrics["judged_by"], found.metrics["judged"]["images"]) == ("test", 16)


def test_with_folds_0_a_split_judges_however_few_the_images(folder, weights, tmp_path):
    assert solved(folder, tmp_path / "run", weights, folds=0).metrics["judged_by"] == "test"


# ------------------------------------------------------------------------------------------------------------- going on


class Death(Exception):
    """An end that nobody foresaw."""


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # files that nobody could close
@pytest.mark.parametrize("at", ["features", "solved"])
def test_ended_anywhere_it_goes_on_to_the_same_end(run, folder, weights, at, tmp_path, monkeypatch):
    monkeypatch.setenv("VITREOUS_CACHE", str(tmp_path / "cache"))

    def tell(event):
        if event["kind"] == at:
            raise Death

    out = tmp_path / "run"
    with pytest.raises(Death):
        solved(folder, out, weights, tell=tell)
    again = vitreous.fit(out, resume=True, device="cpu")
    assert_equal_states(again.load().state_dict(), run.load().state_dict())
    assert {name: again.metrics[name] for name in NUMBERS} == {name: run.metrics[name] for name in NUMBERS}
    assert runs.without_clocks(runs.read(out)) == runs.without_clocks(runs.read(run.path))
    assert vitreous.fit(out, resume=True).metrics == json.loads(json.dumps(again.metrics))


# ------------------------------------------------------------------------------------------------ every kind of network


@pytest.mark.parametrize(
    "config",
    [
        VIT,
        VIT.change(pool="gap", representation=12),
        VIT.change(distillation_token=True, distillation_head=True, pool="cls-and-distillation"),
        BIT,
    ],
    ids=["vit", "representation", "distilled", "bit"],
)
def test_a_probe_becomes_the_head_of_any_network(config):
    model = awake(config)
    x = images(model, 12)
    with torch.inference_mode():
        rows = model.features(x).numpy()
    probe = ridge(rows, np.arange(12) % 5, 5, l2=1.0)
    closed_form.put_into_head(model, probe)
    with torch.inference_mode():
        np.testing.assert_allclose(model(x).numpy(), probe.scores(rows), atol=1e-4)


# ------------------------------------------------------------------------------------------------------- what cannot be


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"mixup": 0.2}, ["sees each image as it is", "leave augmentation out"]),
        ({"policy": "all"}, ["solves the head alone"]),
        ({"l2": (0.0,)}, ["l2=0.0", "above 0"]),
        ({"l2": ()}, ["no penalties"]),
        ({"teacher": "last"}, ["no teacher"]),
        ({"loss": "sigmoid"}, ["one class an image"]),
    ],
)
def test_what_a_closed_form_cannot_do_is_one_line(folder, weights, changes, words, tmp_path):
    with pytest.raises(ConfigError) as error:
        solved(folder, tmp_path / "run", weights, **changes)
    line_of(error.value, *words)
    assert not (tmp_path / "run").exists()


def test_several_labels_are_refused(weights, tmp_path):
    data = image_set(40)
    data = image_set(40, labels=(data.source.pixels.mean((1, 2)) > 127).astype(np.int64))
    with pytest.raises(ConfigError) as error:
        solved(data, tmp_path / "run", weights)
    line_of(error.value, "one class an image")


def test_more_images_than_the_memory_holds_are_refused(folder, weights, tmp_path, monkeypatch):
    monkeypatch.setattr(closed_form, "machine_memory", lambda: 10_000)
    with pytest.raises(ConfigError) as error:
        solved(folder, tmp_path / "run", weights)
    line_of(error.value, "80 images", "GiB", "--policy head")


@pytest.mark.parametrize(("value", "words"), [(float("nan"), ["not finite", "row 0"]), (0.0, ["same in every row"])])
def test_weights_whose_features_say_nothing_are_one_line(folder, value, words, tmp_path):
    model = network()
    with torch.no_grad():
        model.norm.weight.fill_(value)
    vitreous.save(model, tmp_path / "bad.safetensors")
    with pytest.raises(DataError) as error:
        solved(folder, tmp_path / "run", str(tmp_path / "bad.safetensors"))
    line_of(error.value, *words)
    assert not (tmp_path / "run").exists()


def test_the_rates_and_lengths_of_a_recipe_mean_nothing_to_it():
    assert not Recipe().is_solved
    assert vitreous.training.recipes.get("linear-probe").is_solved
