"""Weights put to a new use: what they are worth is measured first, and decides what moves."""

import json
import math
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from small_runs import CPU, MODEL, SIDE, image_set, plan_of, rule, tinted_folder
from tiny_models import BIT, VIT, awake, images, line_of
from torch.testing import assert_close

import vitreous
from vitreous.errors import ConfigError, VitreousError
from vitreous.evaluation.accuracy import wilson
from vitreous.training.plan import estimate as estimates
from vitreous.training.plan import plan as plans
from vitreous.training.plan import starting_weights
from vitreous.training.recipe import Recipe
from vitreous.training.run import closed_form
from vitreous.training.run import folder as runs
from vitreous.training.run.network import make_network, start_model
from vitreous.weights import load_model, starter

FAST = {"device": "cpu", "workers": 0, "check": False}

pytestmark = pytest.mark.usefixtures("own_cache")


@pytest.fixture(scope="module")
def alike(tmp_path_factory):
    """260 images that frozen features tell apart."""
    return tinted_folder(tmp_path_factory.mktemp("sets") / "alike", 260, strength=70)


@pytest.fixture(scope="module")
def unlike(tmp_path_factory):
    return tinted_folder(tmp_path_factory.mktemp("sets") / "unlike", 260, strength=25)


# --------------------------------------------------------------------------------------------------- measured first


@pytest.fixture(scope="module")
def auto(alike, weights, tmp_path_factory):
    said = []
    run = vitreous.fit(
        alike,
        weights=weights,
        out=tmp_path_factory.mktemp("runs") / "auto",
        tell=lambda event: said.append(event.get("text", event["kind"])),
        **FAST,
    )
    return run, said


def test_the_number_to_beat_is_told_before_anything_is_trained(auto):
    run, said = auto
    estimate = run.metrics["estimate"]
    assert estimate["interval"] == list(wilson(estimate["right"], estimate["images"]))
    assert (estimate["images"], estimate["of"], estimate["chance"]) == (260, 260, 0.25)
    (place,) = [i for i, line in enumerate(said) if line.startswith("frozen features and a closed-form classifier")]
    assert place < said.index("solved")
    assert f"{100 * estimate['accuracy']:.1f} % (" in said[place]
    assert "of images left out, chance 25 %, LogME" in said[place]
    assert said[place][1:] in (Path(run.path) / "report.html").read_text()


def test_images_like_those_it_knows_have_the_head_solved_on_a_cpu(auto):
    """The estimate and the run's number are one, from features that were read once."""
    run, said = auto
    assert run.metrics["recipe"] == "linear-probe"
    assert run.metrics["judged"]["right"] == run.metrics["estimate"]["right"]
    assert any("small and similar (0." in line and f"{estimates.SIMILAR_ABOVE} is the border" in line for line in said)
    assert run.metrics["rivals"] == []


def test_images_unlike_those_it_knows_are_trained_on_and_the_estimate_stands_beside(unlike, weights, tmp_path):
    """A rival on the very test images, by a head that was solved on train alone."""
    run = vitreous.fit(unlike, weights=weights, out=tmp_path / "run", folds=0, **FAST)
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert run.metrics["recipe"] == "p1-finetune"
    assert config["recipe"]["policy"] == "last-1"
    assert "small and different (0." in config["reasons"][1]
    assert run.metrics["estimate"]["images"] == config["data"]["splits"]["train"], "no test label was looked at"
    (rival,) = run.metrics["rivals"]
    assert rival["seen"] == run.metrics["judged"]["images"] == config["data"]["splits"]["test"]
    probe = vitreous.fit(unlike, weights=weights, recipe="linear-probe", out=tmp_path / "probe", folds=0, **FAST)
    assert rival["right"] == pytest.approx(probe.metrics["judged"]["right"], abs=1)
    assert rival["name"] not in str(run), "a detail"
    assert any(str(event).startswith(f"{rival['name']}: ") for event in run.told if event.is_detail)
    assert rival["name"] in (tmp_path / "run" / "report.html").read_text()


@pytest.mark.parametrize(
    ("data", "folds", "options", "times"),
    [
        ("alike", None, {}, 1),  # measured, solved
        ("unlike", 2, {}, 1),  # measured, trained three times
        ("unlike", 0, {}, 2),  # measured, trained; the frozen rival on test
        ("unlike", 0, {"dropout": 0.1, "head_bias": -1.0, "image_size": 24}, 2),
        ("unlike", 0, {"recipe": "fine-tune"}, 1),
    ],
)
def test_weights_are_read_once_and_once_more_for_the_rival(
    data, folds, options, times, weights, request, tmp_path, monkeypatch
):
    """Not again for every fold, nor to plan, to judge or to write."""
    read, reads = load_model.read, []
    monkeypatch.setattr(load_model, "read", lambda path: reads.append(path) or read(path))
    options = {"length": "2 steps", **options} if data == "unlike" else options
    folder = request.getfixturevalue(data)
    run = vitreous.fit(folder, weights=weights, out=tmp_path / "run", folds=folds, **FAST, **options)
    assert reads == [Path(weights)] * times
    assert len(run.metrics["rivals"]) == (data == "unlike" and "recipe" not in options)


def job_of(data, weights, **options):
    return plan_of(data, weights=weights, check=False, **options)


def test_what_only_steps_can_do_is_trained(alike, weights):
    for overrides in ({"length": "2 steps"}, {"mixup": 0.2}, {"peak_lr": "0.01"}):
        assert not job_of(alike, weights, changes=overrides).recipe.is_solved
    for overrides in ({"seed": 3}, {"image_size": "24"}, {"l2": "64"}):
        assert job_of(alike, weights, changes=overrides).recipe.is_solved


@pytest.mark.claim("T07")
def test_few_images_unlike_those_it_knows_are_augmented_unless_that_is_asked_for(unlike, weights):
    job = job_of(unlike, weights)
    assert "small and different" in job.reasons[1]
    assert (job.recipe.policy, job.recipe.augment.crop, job.recipe.augment.flip) == ("last-1", "inception", 0.5)
    plain = job_of(unlike, weights, changes={"crop": "none", "flip": 0.0}).recipe
    assert (plain.policy, plain.augment.crop, plain.augment.flip) == ("last-1", "none", 0.0)


def test_a_large_set_is_measured_by_a_part(alike, weights, monkeypatch):
    monkeypatch.setitem(closed_form.MEASURE_MACS, "cpu", 1.0)
    monkeypatch.setattr(closed_form, "MIN_MEASURED", 100)
    model = make_network(weights, None, Recipe(), vitreous.images.open(alike), None)
    estimate, _ = estimates.measure(model, vitreous.images.open(alike), workers=0)
    assert (estimate.images, estimate.of) == (100, 260)
    assert "left out of 100 images, chance 25 %" in str(estimate)
    assert estimates.from_json(json.loads(json.dumps(estimate.to_json()))) == estimate


def test_chance_is_worth_0_and_certainty_1():
    for right, chance, above in ((50, 0.5, 0.0), (100, 0.2, 1.0), (60, 0.2, 0.5)):
        estimate = estimates.Estimate(right, 100, 100, chance, 0.0, 1.0, 0.0)
        assert estimate.above_chance == pytest.approx(above)


@pytest.mark.claim("T04")
def test_large_and_similar_have_borders_that_are_stated():
    assert [estimates.size(n, 10) for n in (10_000, 10_001, 20_000)] == ["small", "large", "large"]
    assert estimates.size(19_999, 100) == "small"
    for share, word in ((0.49, "different"), (0.51, "similar")):
        estimate = estimates.Estimate(round(1000 * share), 1000, 1000, 0.0, 0.0, 1.0, 0.0)
        assert estimates.likeness(estimate) == word


# ------------------------------------------------------------------------------------------------------------- policies


@pytest.mark.parametrize(
    ("policy", "options", "is_solved"),
    [
        ("head", {}, True),
        ("head", {"mixup": 0.2}, False),
        ("last-1", {}, False),
        ("all", {}, False),
        ("full", {}, False),
        ("layer-decay", {}, False),
    ],
)
def test_a_policy_by_name(alike, weights, policy, options, is_solved):
    recipe = job_of(alike, weights, changes={"policy": policy, **options}).recipe
    assert (recipe.policy, recipe.is_solved) == (policy, is_solved)


@pytest.mark.claim("T03")
@pytest.mark.parametrize("policy", ["head", "last-1"])
def test_frozen_means_bit_for_bit_after_50_steps_with_momentum_and_decay(policy, tmp_path):
    """Statistics of batch norm too."""
    model = vitreous.build(f"{MODEL} norm_kind=batch", image_size=SIDE, classes=4, seed=1)
    model.preprocess = rule()
    vitreous.save(model, tmp_path / "model.safetensors")
    recipe = Recipe(name="sgd", optimizer="sgd", momentum=0.9, weight_decay=0.1, peak_lr=0.5, batch=8)
    recipe = recipe.change(length="50 steps", dev=0.0)
    data = image_set(40, test=8)
    run = vitreous.fit(
        data,
        weights=tmp_path / "model.safetensors",
        recipe=recipe,
        policy=policy,
        out=tmp_path / "run",
        folds=0,
        **FAST,
    )
    before, after = model.state_dict(), run.load().state_dict()
    moved = {name for name, tensor in after.items() if not torch.equal(tensor, before[name])}
    assert "head.weight" in moved
    upper = ("head.", "norm.", "blocks.1.", "pool.") if policy == "last-1" else ("head.",)
    assert all(name.startswith(upper) for name in moved), sorted(moved)
    assert policy == "head" or {"blocks.1.norm1.running_mean", "blocks.1.mlp.hidden.weight"} & moved


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"policy": "upper"}, ["'upper'", "head, last-K, all, layer-decay, full"]),
        ({"policy": "last-9"}, ["last-9", "last-1 to last-2"]),
        ({"policy": "head", "weights": None, "recipe": "small-hybrid"}, ["--weights MODEL"]),
        ({"policy": "head", "weights": "none"}, ["--weights MODEL"]),
    ],
)
def test_a_policy_that_means_nothing_is_one_line_before_anything_is_read(alike, weights, options, words, tmp_path):
    with pytest.raises(ConfigError) as error:
        vitreous.fit(alike, out=tmp_path / "run", **{"weights": weights, **FAST, **options})
    line_of(error.value, *words)
    assert not (tmp_path / "run").exists()


def test_a_policy_with_then_is_that_of_the_second_run(alike, tmp_path):
    small = Recipe(name="small", batch=8).change(length="2 steps", image_size=SIDE, dev=0.2)
    run = vitreous.fit(
        image_set(40, test=8),
        model=MODEL,
        recipe=small,
        then=alike,
        policy="head",
        out=tmp_path / "run",
        folds=0,
        **FAST,
    )
    assert run.metrics["recipe"] == "linear-probe"
    assert json.loads((tmp_path / "run-first" / "config.json").read_text())["recipe"]["policy"] == "full"


# ------------------------------------------------------------------------------------------------- the head, the size


@pytest.mark.claim("T01", "M44")
@pytest.mark.parametrize(
    "config",
    [VIT, VIT.change(stem="convolutions", patch=(8, 8), image_size=(32, 32)), BIT],
    ids=["vit", "hybrid", "bit"],
)
def test_a_new_head_says_nothing_and_its_loss_is_ln_k(config, tmp_path):
    """Logits exactly 0, softmax loss ln K; every other tensor is the checkpoint's, bit for bit."""
    model = awake(config)
    vitreous.save(model, tmp_path / "model.safetensors")
    data = replace(image_set(12), classes=tuple("abcdefghij"))
    made = make_network(str(tmp_path / "model.safetensors"), None, Recipe(), data, None)
    before = model.state_dict()
    for name, tensor in made.state_dict().items():
        assert name.startswith("head.") or torch.equal(tensor, before[name]), name
    with torch.inference_mode():
        logits = made(images(made, 6))
    assert torch.equal(logits, torch.zeros(6, 10))
    assert F.cross_entropy(logits, torch.arange(6)).item() == pytest.approx(math.log(10), abs=1e-5)


@pytest.mark.claim("T10", "T11")
@pytest.mark.parametrize("recipe", ["linear-probe", Recipe(name="two", batch=8).change(length="2 steps", dev=0.2)])
def test_images_of_any_rows_and_columns(alike, weights, recipe, tmp_path):
    """Positions move to a grid of 6 by 8; the picture is resized and cropped to it, and all else stays."""
    options = {} if isinstance(recipe, str) else {"folds": 0}
    run = vitreous.fit(
        alike, weights=weights, recipe=recipe, image_size="24x32", out=tmp_path / "run", **options, **FAST
    )
    model, before = run.load(), vitreous.load(weights)
    assert model.config.image_size == model.preprocess.size == (24, 32)
    table, old = (m.embedding.positions.table for m in (model, before))
    assert (old.shape[0], table.shape[0]) == (1 + 4 * 4, 1 + 6 * 8)
    if isinstance(recipe, str):
        moved = vitreous.load(weights, image_size=(24, 32)).state_dict()
        ours = model.state_dict()
        assert all(name.startswith("head.") or torch.equal(tensor, moved[name]) for name, tensor in ours.items())
    (answer,) = vitreous.predict(model, np.zeros((40, 50, 3), np.uint8), workers=0)
    assert answer.error is None
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert config["recipe"]["augment"]["size"] == [24, 32]


def test_a_new_network_takes_rows_and_columns_too(tmp_path):
    small = Recipe(name="small", batch=8).change(length="2 steps", image_size="16x24", dev=0.2)
    run = vitreous.fit(image_set(40, test=8), model=MODEL, recipe=small, out=tmp_path / "run", folds=0, **FAST)
    assert run.load().config.image_size == (16, 24)


@pytest.mark.parametrize("size", ["17x32", "0", "24x32x3", "wide", "x"])
def test_a_size_that_is_none_is_one_line(alike, weights, size, tmp_path):
    with pytest.raises(VitreousError) as error:
        vitreous.fit(alike, weights=weights, image_size=size, out=tmp_path / "run", **FAST)
    line_of(error.value, size.partition("x")[0])
    assert not (tmp_path / "run").exists()


# ---------------------------------------------------------------------------------------------------------- the starter


@pytest.fixture
def packed(weights, monkeypatch):
    """As if the package carried these weights."""
    monkeypatch.setattr(
        starter, "suits", lambda images, channels: channels == 3 and images < starter.FROM_SCRATCH_ABOVE
    )
    monkeypatch.setattr(starter, "STARTER_NAME", weights)
    monkeypatch.setattr(starter, "STARTER_FILE", Path(weights))


def test_without_a_word_about_weights_few_images_begin_from_the_starter(alike, weights, packed):
    job = job_of(alike, None)
    assert job.weights == weights
    assert job.recipe.is_solved
    for options in ({"weights": "none"}, {"weights": None, "recipe": "small-hybrid"}):
        assert job_of(alike, **options).weights is None


@pytest.mark.parametrize("has_hub", [True, False])
def test_that_it_begins_from_the_starter_is_said_with_what_else_there_is(alike, weights, packed, monkeypatch, has_hub):
    monkeypatch.setattr(starting_weights, "find_spec", lambda name: has_hub or None)
    said = job_of(alike, None).reasons[0]
    assert "begun from the starter" in said
    assert "--weights none is from scratch" in said
    assert ("--weights deit-tiny" in said) == has_hub
    assert not any("no weights were named" in line for line in job_of(alike, weights).reasons)


def test_pictures_that_have_them_begin_from_the_starter_with_more_pixels(alike, weights, packed, monkeypatch):
    """Unless another size is asked for; and the positions are those of the larger one in training too."""
    own = vitreous.load(weights).config.image_size
    assert job_of(alike, None).config.image_size == own
    monkeypatch.setattr(starter, "FROZEN_IMAGE_SIZE", 2 * own[0])
    monkeypatch.setattr(starter, "size_for", lambda pictures: starter.FROZEN_IMAGE_SIZE)
    job = job_of(alike, None)
    assert job.config.image_size == job.preprocess.size == (2 * own[0], 2 * own[1])
    assert start_model(job, CPU).config == job.config
    assert job_of(alike, None, changes={"image_size": str(own[0])}).config.image_size == own


def test_a_starter_that_knows_nothing_of_the_images_is_left_out_and_said(tmp_path, packed):
    job = job_of(tinted_folder(tmp_path / "noise", 80, strength=0), None)
    assert (job.weights, job.estimate, job.recipe.name) == (None, None, "small-hybrid")
    assert "the starter knows little of these images" in job.reasons[0]


def test_a_folder_of_its_name_does_not_take_the_starters_place(alike, weights, packed, tmp_path, monkeypatch):
    """Nobody said the word, so nobody meant the folder; who says it does."""
    monkeypatch.setattr(starter, "STARTER_NAME", "starter")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "starter").mkdir()
    assert job_of(alike, None).weights == weights
    with pytest.raises(VitreousError) as error:
        job_of(alike, "starter")
    line_of(error.value, "starter holds no weights")


@pytest.mark.parametrize("length", [{}, {"length": "2 steps"}])
def test_the_terms_of_the_starter_go_with_what_is_begun_from_it(alike, packed, tmp_path, monkeypatch, length):
    """Onto the page, the card and into the file; and from there on, when that is begun from."""
    monkeypatch.setattr(starter, "terms", lambda: "for learning only")
    first = vitreous.fit(alike, out=tmp_path / "first", folds=0, **length, **FAST)
    second = vitreous.fit(alike, weights=first.path, out=tmp_path / "second", folds=0, **length, **FAST)
    for run in (first, second):
        assert run.load().source["terms"] == "for learning only"
        for name in ("README.md", "report.html"):
            told = (Path(run.path) / name).read_text()
            assert "erms of what the weights have learned from: for learning only" in told
    card = (Path(first.path) / "README.md").read_text()
    assert f"{starter.network()}, " in card
    assert "parameters, from the starter" in card
    new = vitreous.fit(alike, weights="none", length="1 steps", out=tmp_path / "new", folds=0, **FAST)
    assert "terms" not in new.load().source


def test_a_policy_without_weights_is_of_the_starter(alike, weights, packed):
    job = job_of(alike, None, changes={"policy": "last-1"})
    assert (job.weights, job.recipe.policy) == (weights, "last-1")


# ------------------------------------------------------------------------------------------------------ several devices


@pytest.mark.slow
@pytest.mark.parametrize("judged", ["leave-one-out", "test"])
def test_the_first_of_two_processes_measures_and_solves(alike, weights, auto, tmp_path, judged):
    words = ["fit", str(alike), "--weights", weights, "--device", "cpu", "--workers", "0", "--no-check"]
    words += ["--folds", "0"] if judged == "test" else []
    two = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    call = [sys.executable, *two, "-m", "vitreous", *words, "--out", str(tmp_path / "two"), "--json"]
    with subprocess.Popen(
        call, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as job:
        try:
            said, wrong = job.communicate(timeout=120)
        finally:
            if job.poll() is None:
                os.killpg(job.pid, signal.SIGKILL)
    assert job.returncode == 0, wrong
    body = json.loads(said)
    assert body["judged_by"] == judged
    assert [event["kind"] for event in runs.read(tmp_path / "two")] == ["solved"]
    if judged == "leave-one-out":
        assert body["judged"]["right"] == auto[0].metrics["judged"]["right"]
        ours, theirs = (vitreous.load(path).state_dict() for path in (tmp_path / "two", auto[0].path))
        for name, tensor in theirs.items():
            if name.startswith("head."):  # solved with as many threads as a process has there
                assert_close(ours[name], tensor, rtol=1e-3, atol=1e-5)
            else:
                assert torch.equal(ours[name], tensor), name


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here")
def test_a_gpu_solves_the_same_head_and_trains_every_layer(alike, weights, auto, tmp_path):
    asked = {"weights": weights, "device": "cuda", "workers": 0, "check": False}
    solved = vitreous.fit(alike, recipe="linear-probe", out=tmp_path / "solved", **asked)
    ours, theirs = (run.load().head.weight for run in (solved, auto[0]))
    torch.testing.assert_close(ours, theirs, rtol=1e-2, atol=1e-3)
    trained = vitreous.fit(alike, length="2 epochs", folds=0, out=tmp_path / "trained", **asked)
    assert trained.metrics["recipe"] == "fine-tune"
    assert trained.metrics["estimate"]["right"] == pytest.approx(0.8 * auto[0].metrics["estimate"]["right"], rel=0.1)
    assert [rival["seen"] for rival in trained.metrics["rivals"]] == [trained.metrics["judged"]["images"]]


def test_a_plan_that_trains_names_the_quick_way_and_what_it_is_worth(unlike, weights, alike):
    trained = job_of(unlike, weights)
    assert f"quicker: --policy head, about {100 * trained.estimate.accuracy:.0f} % right in seconds" in plans._in_words(
        trained
    )
    assert "--policy head" not in plans._in_words(job_of(alike, weights))
