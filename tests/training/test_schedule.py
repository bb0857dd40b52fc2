"""The learning rate of every step: laws of the forms, then the papers' schedules as recorded."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from shared_files import ROOT
from tiny_models import line_of

from vitreous.errors import ConfigError
from vitreous.training.recipe import Epochs, Recipe, Steps
from vitreous.training.run.schedule import rate, rates, span_steps

RECORDED = json.loads((ROOT / "tests/golden/measures/lr_schedules.json").read_text())
FORMS = ("cosine", "linear", "steps", "constant", "rsqrt", "deit")


def recorded(name: str) -> tuple[Recipe, int, float]:
    """The recipe whose schedule was recorded under this name, its steps, and steps per epoch."""
    p = RECORDED[name]["params"]
    if "epochs" in p:
        recipe = Recipe(
            schedule="deit",
            peak_lr=p["base"],
            warmup=Epochs(p["warmup_epochs"]),
            warmup_lr=p["warmup_lr"],
            end_lr=p["min_lr"],
        )
        return recipe, p["epochs"], 1.0
    if "decay_epochs" in p:
        epochs = 90
        drops = tuple(e / epochs for e in p["decay_epochs"])
        peak = p["base"] * p["batch"] / 256
        recipe = Recipe(schedule="steps", peak_lr=peak, warmup=Steps(p["warmup"]), drops=drops)
        return recipe, epochs * p["steps_per_epoch"], p["steps_per_epoch"]
    if "supports" in p:
        warmup, *points, total = p["supports"]
        drops = tuple((point + 1) / total for point in points)  # at the point itself the old rate holds
        return Recipe(schedule="steps", peak_lr=p["base"], warmup=Steps(warmup), drops=drops), total, 1.0
    changes = {"end_lr": p.get("end", 0.0), "timescale": p.get("timescale", 10_000)}
    if "cooldown" in p:
        changes["cooldown"] = Steps(p["cooldown"])
    return Recipe(schedule=p["kind"], peak_lr=p["base"], warmup=Steps(p["warmup"]), **changes), p["total"], 1.0


@pytest.mark.claim("T15")
@pytest.mark.parametrize("name", RECORDED)
def test_schedules_are_those_of_the_papers(name):
    recipe, steps, per_epoch = recorded(name)
    for step, wanted in zip(RECORDED[name]["steps"], RECORDED[name]["lr"], strict=True):
        if wanted is not None:  # the run is over
            assert rate(recipe, step, steps, per_epoch) == pytest.approx(wanted, rel=1e-12, abs=1e-15)


@pytest.mark.parametrize("schedule", FORMS)
def test_one_step_and_all_steps_agree(schedule):
    recipe = Recipe(schedule=schedule, warmup=Steps(7), drops=(0.5, 0.75), cooldown=0.1)
    together = rates(recipe, 60, 10)
    assert together.shape == (60,)
    assert together.tolist() == [rate(recipe, step, 60, 10) for step in range(60)]


@given(
    st.sampled_from(FORMS),
    st.integers(1, 300),
    st.floats(0, 1),
    st.floats(0, 1),
    st.floats(0, 1),
    st.floats(0.5, 40),
)
def test_no_rate_is_negative_or_above_the_peak(schedule, steps, warmup, cooldown, end, per_epoch):
    recipe = Recipe(schedule=schedule, peak_lr=1.0, warmup=warmup, cooldown=cooldown, end_lr=end, drops=(0.3, 0.6))
    found = rates(recipe, steps, per_epoch)
    assert np.isfinite(found).all()
    assert (found >= 0).all()
    assert (found <= 1 + 1e-12).all()


@pytest.mark.claim("T15")
@pytest.mark.parametrize("schedule", ["cosine", "linear", "steps", "constant", "rsqrt"])
def test_warm_up_rises_by_equal_steps_from_zero_to_the_peak(schedule):
    found = rates(Recipe(schedule=schedule, peak_lr=0.5, warmup=Steps(5), drops=(0.5,)), 50, 10)
    np.testing.assert_allclose(found[:6], 0.5 * np.arange(6) / 5, rtol=1e-12)
    assert found.argmax() == 5


def test_without_warm_up_the_first_step_has_the_peak():
    assert rate(Recipe(peak_lr=0.3, warmup=0.0), 0, 10, 1) == pytest.approx(0.3)


@pytest.mark.parametrize("schedule", ["cosine", "linear"])
def test_the_half_way_rate_is_half_way(schedule):
    """Both forms are point-symmetric about the middle of what follows the warm-up."""
    recipe = Recipe(schedule=schedule, peak_lr=1.0, end_lr=0.2, warmup=Steps(0))
    found = np.array([rate(recipe, step, 100, 10) for step in range(101)])
    np.testing.assert_allclose(found + found[::-1], 1.2, rtol=1e-12)
    assert found[-1] == pytest.approx(0.2)


def test_a_rate_is_in_proportion_to_its_peak():
    """So each group of parameters may have its own peak and share the schedule."""
    one, three = (rates(Recipe(peak_lr=peak), 40, 10) for peak in (1.0, 3.0))
    np.testing.assert_allclose(three, 3 * one, rtol=1e-12)


def test_drops_divide_by_ten_from_their_step_on():
    found = rates(Recipe(schedule="steps", peak_lr=1.0, warmup=0.0, drops=(0.5, 0.8)), 10, 1)
    np.testing.assert_allclose(found, [1] * 5 + [0.1] * 3 + [0.01] * 2)


def test_a_cool_down_ends_at_zero():
    recipe = Recipe(schedule="constant", peak_lr=1.0, warmup=0.0, cooldown=Steps(4))
    np.testing.assert_allclose([rate(recipe, t, 10, 1) for t in range(11)], [1] * 7 + [0.75, 0.5, 0.25, 0])


def test_spans_are_steps_epochs_or_a_share():
    assert span_steps(Steps(12), 100, 7.5) == 12
    assert span_steps(Epochs(2), 100, 7.5) == 15
    assert span_steps(0.25, 100, 7.5) == 25


@pytest.mark.parametrize("name", ["warmup", "cooldown"])
def test_a_span_longer_than_the_run_is_refused(name):
    """P1's 10,000 steps on a small set would never reach the peak, and say nothing."""
    with pytest.raises(ConfigError) as caught:
        rates(Recipe().change(**{name: "10000 steps"}), 366, 1)
    line_of(caught.value, name, "10000 steps", "366", f"{name}=0.1")
