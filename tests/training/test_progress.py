"""A run of several trainings knows which it is at, and how long all that are left will take."""

import re
import sys

import pytest
from live_bars import drawn, step
from small_runs import SMALL, Death, die_at, fitted, image_set

import vitreous
from vitreous.cli.training_display import display
from vitreous.training.recipe import Recipe
from vitreous.training.run import folder as runs
from vitreous.training.run import stage as stages
from vitreous.training.run.events import Fact, from_json
from vitreous.training.run.runtime import listener
from vitreous.training.run.stage import Stages, stages_of


@pytest.fixture
def clock(monkeypatch):
    """Seconds that a test sets."""
    now = [100.0]
    monkeypatch.setattr(stages.time, "monotonic", lambda: now[0])
    return now


def steps_of(where):
    return [event for event in runs.read(where) if event["kind"] == "step"]


# ------------------------------------------------------------------------------------------------------- which of them


def test_one_training_says_nothing_of_others():
    assert Stages().after("fit", 1, 10) == {}
    for recipe, folds in ((Recipe(), 0), (Recipe().change(task="masked-patches"), 0)):
        assert stages_of(recipe, folds, ()).after("fit", 1, 10) == {}


def test_the_last_of_a_cross_validation_has_more_steps_only_where_epochs_count():
    assert stages_of(SMALL, 2, ()).lengths == {"fold-1": 1.0, "fold-2": 1.0, "fit": 1.0}
    assert stages_of(SMALL.change(length="4 epochs"), 2, ()).lengths["fit"] == 2.0
    assert stages_of(SMALL.change(length="4 epochs"), 5, ()).lengths["fit"] == pytest.approx(60 / 48)


@pytest.mark.parametrize("length", ["4 steps", "2 epochs"])
def test_every_step_of_a_cross_validation_tells_its_place_in_the_whole(tmp_path, length):
    fitted(image_set(60), tmp_path / "run", folds=2, length=length)
    told = steps_of(tmp_path / "run")
    by_stage = {event["stage"]: event for event in told}
    assert [(e["stage_number"], e["stages"]) for e in by_stage.values()] == [(1, 3), (2, 3), (3, 3)]
    assert told[0]["run_seconds_left"] is None, "one step has no time yet"
    assert told[-1]["run_seconds_left"] == 0
    assert told[-1]["run_share"] == pytest.approx(1)
    shares = [event["run_share"] for event in told]
    assert shares == sorted(shares)
    steps = [by_stage[name]["steps"] for name in ("fold-1", "fit")]
    assert by_stage["fold-1"]["run_share"] == pytest.approx(steps[0] / (2 * steps[0] + steps[1]), abs=0.04)


def test_a_sweep_counts_its_rates(tmp_path):
    fitted(image_set(60), tmp_path / "run", sweep=(1e-3, 1e-2, 1e-1))
    places = [(event["stage_number"], event["stages"]) for event in steps_of(tmp_path / "run")]
    assert sorted(set(places)) == [(1, 3), (2, 3), (3, 3)]


def test_a_run_of_one_training_has_the_events_it_had(tmp_path):
    fitted(image_set(60), tmp_path / "run")
    assert not any("stages" in event for event in steps_of(tmp_path / "run"))


# ---------------------------------------------------------------------------------------------------- how long the rest


def test_what_is_left_is_all_steps_to_come_at_the_pace_so_far(clock):
    whole = Stages({"fold-1": 1.0, "fold-2": 1.0, "fit": 2.0})
    assert whole.after("fold-1", 1, 11)["run_seconds_left"] is None
    clock[0] += 20.0  # ten steps of 2 s
    assert whole.after("fold-1", 11, 11)["run_seconds_left"] == pytest.approx(2 * 33)
    clock[0] += 30.0  # judging takes its time, and belongs to a training
    assert whole.after("fold-2", 10, 11)["run_seconds_left"] == pytest.approx(50 / 20 * 23)


def test_a_run_that_goes_on_counts_the_steps_of_this_process_alone(clock):
    whole = Stages({"fold-1": 1.0, "fold-2": 1.0})
    assert whole.after("fold-1", 50, 100)["run_seconds_left"] is None
    clock[0] += 10.0
    assert whole.after("fold-1", 60, 100)["run_seconds_left"] == pytest.approx(140)


def test_a_batch_passed_over_makes_no_time(clock):
    """The count of steps goes back, and on again."""
    whole = Stages({"fold-1": 1.0, "fold-2": 1.0})
    for at in (1, 5, 3):
        whole.after("fold-1", at, 10)
        clock[0] += 1.0
    assert whole.after("fold-1", 4, 10)["run_seconds_left"] > 0


def test_a_run_gone_on_with_in_its_second_fold_says_so(tmp_path):
    data, told = image_set(60), []
    with pytest.raises(Death):
        fitted(data, tmp_path / "run", folds=2, tell=die_at(2, "fold-2"))
    vitreous.fit(data, out=tmp_path / "run", resume=True, device="cpu", workers=0, tell=told.append)
    first = next(event for event in told if event["kind"] == "step")
    assert (first["stage"], first["stage_number"], first["stages"]) == ("fold-2", 2, 3)


# ------------------------------------------------------------------------------------------------------ what people see


WHOLE = {"stage_number": 2, "stages": 6, "run_share": 0.25, "run_seconds_left": 3000.0}
STEP = step(6_000, "rate-0.009000000000000001", memory=None, seconds_left=10.0, **WHOLE)


@pytest.mark.parametrize(
    ("width", "last"), [(30, "left"), (60, "12,000"), (80, "loss 1.234"), (100, "loss 1.234"), (200, "images/s")]
)
def test_the_bar_tells_share_and_time_of_the_whole_run_first(width, last):
    (line,) = drawn(width, STEP)
    assert len(line) <= width
    said = re.sub(r"^[━╸╺ ]*", "", line)
    whole = "25 %, 50 min left, training 2 of 6, step 6,000/12,000, epoch 3.2, loss 1.234, train 50 % right, lr 1.0e-03"
    assert f"{whole}, 1,234 images/s".startswith(said)
    assert said.endswith(last)


def test_plain_lines_tell_the_same(capsys):
    first = {**STEP, "stage": "fold-1", "stage_number": 1, "step": 1, "run_seconds_left": None}
    last = {**STEP, "stage": "fit", "stage_number": 6, "step": 12_000, "run_seconds_left": 0.0}
    for event in (first, {**STEP, "stage": "fold-2", "step": 12_000}, last):
        with display() as tell:
            tell(from_json(event))
    lines = capsys.readouterr().err.splitlines()
    assert [line.partition(", epoch")[0] for line in lines] == [
        "fold-1, training 1 of 6: step 1 of 12,000",
        "fold-2, training 2 of 6: step 12,000 of 12,000",
        "fit, training 6 of 6: step 12,000 of 12,000",
    ]
    assert [line.rpartition(", ")[2] for line in lines] == ["1,234 images/s", "about 50 min left", "1,234 images/s"]


def test_python_on_a_terminal_tells_in_lines(monkeypatch, capsys):
    """Elsewhere it is silent, so that a script's log holds what the script says."""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    tell = listener()
    tell(Fact("found", "60 images"))
    tell(from_json(STEP))
    assert [line.split()[0] for line in capsys.readouterr().err.splitlines()] == ["found", STEP["stage"] + ","]
    monkeypatch.setattr(sys.stderr, "isatty", lambda: False)
    listener()(Fact("found", "60 images"))
    assert capsys.readouterr().err == ""
