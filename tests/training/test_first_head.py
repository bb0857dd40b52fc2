"""Steps that begin from the solved head: what they can only refine, and what was never seen to solve it."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from small_runs import CPU, MODEL, SIDE, assert_equal_states, image_set, plan_of, tinted_folder
from tiny_models import line_of

import vitreous
from vitreous.errors import ConfigError
from vitreous.evaluation import inference
from vitreous.training.recipe import Recipe
from vitreous.training.run import folder as runs
from vitreous.training.run.network import start_model
from vitreous.training.run.trained import Trial, best

FAST = {"device": "cpu", "workers": 0, "check": False}
STILL = Recipe(name="still", batch=8, optimizer="sgd", weight_decay=0.0, peak_lr=1e-12, policy="head").change(
    length="4 steps", crop="none", flip=0.0, dev=0.0, first_head="solved"
)

pytestmark = pytest.mark.usefixtures("own_cache")


@pytest.fixture(scope="module")
def alike(tmp_path_factory):
    """260 images that frozen features tell apart."""
    return tinted_folder(tmp_path_factory.mktemp("sets") / "alike", 260, strength=70)


def fit(data, weights, out, **options):
    return vitreous.fit(data, weights=weights, out=out, **{**FAST, **options})


def job_of(data, weights, recipe="auto", **options):
    return plan_of(data, weights=weights, recipe=recipe, check=False, **options)


# ---------------------------------------------------------------------------------------------------- what it begins as


def test_before_its_first_step_it_answers_as_the_solved_head(alike, weights, tmp_path):
    """The same answers, its logits divided by one number; all but the head stays, bit for bit."""
    still = fit(alike, weights, tmp_path / "still", recipe=STILL, folds=0).load()
    probe = fit(alike, weights, tmp_path / "probe", recipe="linear-probe", folds=0).load()
    data = vitreous.images.open(alike)
    ours, theirs = (inference.logits(model, data, workers=0).values for model in (still, probe))
    np.testing.assert_allclose(ours, theirs * (ours / theirs).mean(), rtol=1e-3, atol=1e-4)
    before = vitreous.load(weights).state_dict()
    for name, tensor in still.state_dict().items():
        assert name.startswith("head.") or torch.equal(tensor, before[name]), name


def test_a_recipe_by_name_begins_with_a_head_that_says_nothing(alike, weights):
    job = job_of(alike, weights, "p1-finetune", changes={"policy": "head", "warmup": 0.1})
    assert job.recipe.first_head == "new"
    head = start_model(job, CPU).head
    assert not head.weight.any()
    assert not head.bias.any()


def test_a_fold_is_judged_by_a_head_that_was_solved_without_it(weights, tmp_path):
    """Labels drawn at random: only who has seen an image can name it."""
    data = image_set(80)
    data = replace(data, labels=np.random.default_rng(0).integers(0, 2, 80), classes=("heads", "tails"))
    easy = STILL.change(l2=(1e-3,))
    run = fit(data, weights, tmp_path / "run", recipe=easy, folds=4)
    assert run.metrics["judged_by"] == "cross-validation"
    assert run.metrics["judged"]["top1"] < 0.7
    learned = vitreous.evaluate(run.load(), data, split="all", workers=0)
    assert learned.top1 > run.metrics["judged"]["top1"] + 0.1, "the saved one has learned from all"


class Death(Exception):
    """An end that nobody foresaw."""


@pytest.mark.parametrize(("stage", "folds"), [("fold-2", 2), ("fit", 0)])
def test_ended_anywhere_it_goes_on_to_the_same_end(alike, weights, stage, folds, tmp_path):
    moving = STILL.change(peak_lr=0.01, dev=0.2)
    whole = fit(alike, weights, tmp_path / "whole", recipe=moving, folds=folds)

    def tell(event):
        if event["kind"] == "step" and (event["stage"], event["step"]) == (stage, 1):
            raise Death

    with pytest.raises(Death):
        fit(alike, weights, tmp_path / "ended", recipe=moving, folds=folds, tell=tell)
    again = vitreous.fit(tmp_path / "ended", resume=True, device="cpu")
    assert_equal_states(again.load().state_dict(), whole.load().state_dict())
    assert runs.without_clocks(runs.read(again.path)) == runs.without_clocks(runs.read(whole.path))


# --------------------------------------------------------------------------------------------------- who begins with it


def test_whoever_asks_for_steps_gets_no_less_than_whoever_asks_for_nothing(alike, weights, tmp_path):
    """Both by images that their models have not seen; five of 260 is what other folds make of it."""
    run = fit(alike, weights, tmp_path / "run", length="3 steps")
    assert run.metrics["steps"] == 3
    assert run.metrics["judged_by"] == "cross-validation"
    assert run.metrics["judged"]["right"] >= run.metrics["estimate"]["right"] - 5
    assert "begin from the solved head" in json.loads((tmp_path / "run" / "config.json").read_text())["reasons"][1]


def test_it_is_for_auto_where_frozen_features_are_worth_keeping(alike, weights):
    for overrides in (
        {"length": "2 steps"},
        {"policy": "head", "mixup": 0.2},
        {"policy": "layer-decay"},
        {"policy": "full"},
    ):
        assert job_of(alike, weights, changes=overrides).recipe.first_head == "solved"
    assert job_of(alike, weights, rates=True).recipe.first_head == "solved"
    for overrides in ({}, {"policy": "full", "first_head": "new"}, {"length": "2 steps", "first_head": "new"}):
        assert job_of(alike, weights, changes=overrides).recipe.first_head == "new"


def test_weights_that_know_these_classes_go_on_from_their_own_head(alike, weights, tmp_path):
    first = fit(alike, weights, tmp_path / "first", length="2 steps", folds=0)
    job = job_of(alike, first.model, changes={"length": "2 steps"})
    assert job.recipe.first_head == "new"
    assert torch.equal(start_model(job, CPU).head.weight, first.load().head.weight)


# --------------------------------------------------------------------------------------------------------- dev chooses


def test_a_training_that_dev_calls_worse_is_not_kept(alike, weights, tmp_path):
    """Dev is asked before the first step; at a ruinous rate that state is the one kept."""
    ruinous = STILL.change(peak_lr=1e4, dev=0.2, clip=None)
    run = fit(alike, weights, tmp_path / "run", recipe=ruinous, folds=0)
    looks = [event for event in runs.read(run.path) if event["kind"] == "dev"]
    assert (looks[0]["step"], looks[0]["kept"]) == (0, True)
    assert run.metrics["kept_step"] == 0
    still = fit(alike, weights, tmp_path / "still", recipe=STILL.change(dev=0.2), folds=0)
    assert run.metrics["judged"]["right"] == still.metrics["judged"]["right"]


def test_a_sweep_has_the_solved_head_among_its_trials(alike, weights, tmp_path):
    said = []
    run = fit(
        alike,
        weights,
        tmp_path / "run",
        recipe=STILL.change(dev=0.2, clip=None),
        sweep=(1e4, 2e4),
        tell=lambda event: said.append(event.get("text", "")),
    )
    trials = run.metrics["sweep"]
    assert [trial["rate"] for trial in trials] == [0.0, 1e4, 2e4]
    assert all(trials[0]["accuracy"] >= trial["accuracy"] for trial in trials)
    kept = best([Trial(**trial) for trial in trials])
    assert (kept.rate, kept.is_kept, run.metrics["kept_step"]) == (0.0, True, 0)
    assert "the solved head, without a step, is kept, chosen on dev among 3" in said
    assert "none: the head as solved" in (Path(run.path) / "report.html").read_text()


# ------------------------------------------------------------------------------------------------------- what cannot be


def test_without_weights_there_is_nothing_to_solve(tmp_path):
    recipe = replace(STILL, policy="full", image_size=SIDE)
    with pytest.raises(ConfigError) as error:
        vitreous.fit(image_set(40), model=MODEL, recipe=recipe, out=tmp_path / "run", **FAST)
    line_of(error.value, "first_head=solved", "--weights MODEL")
    assert not (tmp_path / "run").exists()


def test_several_labels_are_refused(weights, tmp_path):
    data = image_set(40)
    data = image_set(40, labels=(data.source.pixels.mean((1, 2)) > 127).astype(np.int64))
    with pytest.raises(ConfigError) as error:
        fit(data, weights, tmp_path / "run", recipe=STILL.change(loss="sigmoid"))
    line_of(error.value, "one class an image")
