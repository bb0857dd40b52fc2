"""A sweep of rates: each trains on the same images, dev chooses, and the chosen one is the model."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from small_runs import MODEL, SIDE, assert_equal_states, image_set, network, plan_of
from tiny_models import line_of

import vitreous
from vitreous.cli.training_display import display
from vitreous.errors import ConfigError, NotFiniteError
from vitreous.training.recipe import Recipe
from vitreous.training.run import folder as runs
from vitreous.training.run.events import known
from vitreous.training.run.protocols import at_rate
from vitreous.training.run.stage import stage_of
from vitreous.training.run.trained import Trial, best

RATES = (1e-4, 3e-3, 0.3)
SMALL = Recipe(name="small", batch=8, weight_decay=0.05).change(length="8 steps", image_size=SIDE, dev=0.2)
FAST = {"model": MODEL, "recipe": SMALL, "device": "cpu", "workers": 0, "check": False}


@pytest.fixture(scope="module")
def data():
    """Whether a picture is light: a thing that a few steps teach."""
    found = image_set(120, test=40)
    light = found.source.pixels.mean((1, 2, 3))
    return replace(found, labels=(light > np.median(light)).astype(np.int64), classes=("dark", "light"))


@pytest.fixture(scope="module")
def run(data, tmp_path_factory):
    return vitreous.fit(data, sweep=RATES, out=tmp_path_factory.mktemp("runs") / "sweep", **FAST)


def test_the_best_on_dev_is_kept_and_is_not_trained_again(run, data, tmp_path):
    trials = run.metrics["sweep"]
    assert [trial["rate"] for trial in trials] == list(RATES)
    best = max(trials, key=lambda trial: (trial["accuracy"], -trial["loss"]))
    assert [trial["rate"] for trial in trials if trial["is_kept"]] == [best["rate"]]
    events = [event for event in runs.read(run.path) if event["kind"] == "trial"]
    assert [(event["rate"], event["accuracy"]) for event in events] == [(t["rate"], t["accuracy"]) for t in trials]
    stages = {event["stage"] for event in runs.read(run.path)}
    assert stages == {stage_of(rate) for rate in RATES}
    alone = vitreous.fit(data, peak_lr=best["rate"], folds=0, out=tmp_path / "alone", **FAST)
    assert_equal_states(run.load().state_dict(), alone.load().state_dict())
    for name in ("temperature", "threshold", "kept_step", "dev"):
        assert run.metrics[name] == alone.metrics[name], name
    assert run.metrics["judged"]["right"] == alone.metrics["judged"]["right"]


def test_every_trial_is_on_the_page(run):
    page = (Path(run.path) / "report.html").read_text()
    assert "the sweep of learning rates" in page
    for trial in run.metrics["sweep"]:
        assert f"{trial['rate']:.3g}" in page
    assert "The curves of the 2 other rates" in page


def test_test_images_have_no_say(run, data, tmp_path):
    """With other labels there the same rate is chosen, and the weights are the same bit for bit."""
    labels = np.where(data.splits == "test", 1 - data.labels, data.labels)
    other = vitreous.fit(replace(data, labels=labels), sweep=RATES, out=tmp_path / "run", **FAST)
    assert other.metrics["sweep"] == run.metrics["sweep"]
    assert_equal_states(other.load().state_dict(), run.load().state_dict())


class Death(Exception):
    """An end that nobody foresaw."""


@pytest.mark.parametrize("rate", RATES[1:])
def test_ended_anywhere_a_sweep_goes_on_to_the_same_end(run, data, rate, tmp_path):
    def tell(event):
        if event["kind"] == "step" and (event["stage"], event["step"]) == (stage_of(rate), 3):
            raise Death

    out = tmp_path / "run"
    with pytest.raises(Death):
        vitreous.fit(data, sweep=RATES, out=out, tell=tell, **FAST)
    with pytest.raises(ConfigError, match="sweep"):
        vitreous.fit(data, sweep=True, out=out, resume=True)
    again = vitreous.fit(data, out=out, resume=True, device="cpu")
    assert_equal_states(again.load().state_dict(), run.load().state_dict())
    assert again.metrics["sweep"] == run.metrics["sweep"]
    assert runs.without_clocks(runs.read(out)) == runs.without_clocks(runs.read(run.path))


def test_a_rate_that_breaks_the_loss_is_passed_over_and_said(data, tmp_path):
    said = []
    asked = FAST | {"recipe": SMALL.change(optimizer="sgd", clip=None)}
    tell = lambda event: said.append(event.get("text", ""))  # noqa: E731
    run = vitreous.fit(data, sweep=(0.01, 1e12), out=tmp_path / "run", tell=tell, **asked)
    assert [trial["rate"] for trial in run.metrics["sweep"]] == [0.01]
    assert any(line.startswith("rate 1e+12 is too high") for line in said)
    with display() as show:  # the command's own lines have no number of it to tell
        for event in known(runs.read(run.path)):
            show(event)
    with pytest.raises(NotFiniteError):
        vitreous.fit(data, sweep=(1e12, 1e13), out=tmp_path / "none", **asked)


def test_seconds_are_for_all_rates_together_and_each_takes_as_many_steps(data, tmp_path):
    run = vitreous.fit(data, sweep=RATES, out=tmp_path / "run", **FAST | {"recipe": SMALL.change(length="3 seconds")})
    last = {event["stage"]: event["step"] for event in runs.read(run.path) if event["kind"] == "step"}
    assert len(last) == len(RATES)
    assert len(set(last.values())) == 1


# ---------------------------------------------------------------------------------------------------------- which rates


@pytest.mark.parametrize("asked", ["0.1,0.2", ("a",), 0.1, (), (0.0,), (float("nan"),)])
def test_what_are_no_rates_are_refused_in_a_line(data, asked):
    with pytest.raises(ConfigError, match="are not learning rates"):
        vitreous.fit(data, sweep=asked, **FAST)


def test_no_two_rates_share_a_stage():
    assert len({stage_of(rate) for rate in (0.01, 0.01004, 1e3, 1234567.0)}) == 4
    assert "+" not in stage_of(1e30)


def test_sgd_is_swept_over_the_papers_rates_and_others_around_their_own(data):
    def planned(rates, **changes):
        return plan_of(data, model=MODEL, recipe=SMALL.change(**changes), check=False, rates=rates).rates

    assert planned(True, optimizer="sgd") == (0.001, 0.003, 0.01, 0.03)
    assert planned(True, peak_lr=3e-3) == pytest.approx((1e-3, 3e-3, 9e-3))
    assert planned((0.1, 0.01, 0.1)) == (0.01, 0.1)
    assert planned(False) == ()


def test_rates_of_head_and_muon_follow():
    recipe = at_rate(SMALL.change(peak_lr=0.01, head_lr=0.1, muon_lr=0.02), 0.02)
    assert (recipe.peak_lr, recipe.head_lr, recipe.muon_lr) == pytest.approx((0.02, 0.2, 0.04))


def test_of_equals_on_dev_the_smaller_rate_is_kept():
    trials = [Trial(rate, 0.5, 1.0, 3) for rate in (0.1, 0.01)]
    assert best(trials).rate == 0.01


def test_a_closed_form_says_that_it_has_no_rate(data, tmp_path, monkeypatch):
    monkeypatch.setenv("VITREOUS_CACHE", str(tmp_path / "cache"))
    vitreous.save(network(classes=7), tmp_path / "model.safetensors")
    said = []
    run = vitreous.fit(
        data,
        weights=tmp_path / "model.safetensors",
        recipe="linear-probe",
        sweep=True,
        out=tmp_path / "run",
        tell=lambda event: said.append(event.get("text")),
        **{name: FAST[name] for name in ("device", "workers", "check")},
    )
    assert run.metrics["sweep"] == []
    assert any(line and "no rate to sweep" in line and "among 9" in line for line in said)
    assert json.loads((tmp_path / "run" / "config.json").read_text())["rates"] == []


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"folds": 5}, ["5 folds leave none", "--folds or --sweep"]),
        ({"dev": 0.0}, ["dev=0 leaves none", "--set dev=0.1"]),
        ({"sweep": (0.1, -1.0)}, ["(0.1, -1.0)", "above 0"]),
        ({"sweep": ()}, ["not learning rates"]),
        ({"task": "masked-patches", "model": f"{MODEL} mask_token=true"}, ["task=masked-patches", "leave --sweep out"]),
    ],
)
def test_a_sweep_that_cannot_be_is_one_line(data, options, words, tmp_path):
    with pytest.raises(ConfigError) as error:
        vitreous.fit(data, out=tmp_path / "run", **{**FAST, "sweep": True, **options})
    line_of(error.value, *words)
    assert not (tmp_path / "run").exists()
