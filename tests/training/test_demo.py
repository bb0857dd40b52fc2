"""The demo: the main job on the embedded pictures."""

import json
import shlex
import shutil
import signal
import subprocess
import sys
import time

import forks
import pytest
from small_runs import Death, die_at
from tiny_models import line_of

import vitreous
from vitreous.errors import ConfigError, RunError
from vitreous.training import demo
from vitreous.training.run import folder as runs


def command(folder, *words):
    """The command in `folder`, under way."""
    call = [sys.executable, "-m", "vitreous", "demo", *words]
    return forks.Popen(call, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_the_command_trains_judges_and_reports_beside_its_rival(tmp_path):
    """From any folder, in place of an older demo."""
    where = tmp_path / "runs" / "demo"
    runs.RunFolder.create(where, {"asked": {}}).close()
    with command(tmp_path, "--seconds", "2", "--json") as process:
        out, said = process.communicate(timeout=100)
    assert process.returncode == 0, said
    metrics = json.loads(out)
    judged, (rival,) = metrics["judged"], metrics["rivals"]
    assert metrics["schema"] == "vitreous.demo/1"
    assert judged["images"] == rival["seen"] == 2200
    assert 0.84 < rival["right"] / 2200 < 0.87  # logistic regression needs no luck, and is well set
    assert "logistic regression" in (where / "report.html").read_text()
    assert (where / "model.safetensors").is_file()
    steps = [event for event in runs.read(where) if event["kind"] == "steps"]
    assert len(steps) == 1, "the budget in seconds is written down as a number of steps"
    assert steps[0]["steps"] == metrics["steps"]


@pytest.mark.slow
def test_the_demo_takes_a_number_of_steps_and_says_the_time_left(tmp_path):
    """So that a slow or busy machine takes longer and is no worse; --seconds is for those who want a clock."""
    for seconds, length in ((None, f"{demo.DEMO_STEPS} steps"), (3.0, "3 seconds")):
        where = tmp_path / length.replace(" ", "-")
        with pytest.raises(Death):
            vitreous.demo(where, seconds=seconds, tell=dies_where_time_is_left)
        assert runs.config_of(where)["recipe"]["length"] == length


def dies_where_time_is_left(event):
    """At the first step that is told."""
    if event["kind"] == "step":
        assert event["seconds_left"] > 0
        raise Death


@pytest.mark.slow
def test_the_demo_is_right_on_86_percent_and_beats_logistic_regression(tmp_path):
    result = vitreous.demo(tmp_path / "run", seed=3)
    judged, rival = result.run.metrics["judged"], result.rival
    assert result.run.metrics["steps"] == demo.DEMO_STEPS
    assert judged["top1"] >= 0.86
    assert judged["right"] > rival["right"]


# ----------------------------------------------------------------------------------------------------- stopped, gone on


def stopped(folder, number, seconds="4"):
    """A demo that a signal stops after a few steps; its exit code and its last line."""
    with command(folder, "--seconds", seconds) as process:
        try:
            end = time.monotonic() + 100
            events = folder / "runs" / "demo" / "events.jsonl"
            while not events.exists() or events.read_text().count('"kind": "step"') < 3:
                assert process.poll() is None, process.communicate()
                assert time.monotonic() < end
                time.sleep(0.01)
            process.send_signal(number)
            _, said = process.communicate(timeout=100)
        finally:
            process.kill()
    return process.returncode, said.splitlines()[-1]


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_demo_that_is_stopped_goes_on_to_its_comparison(tmp_path, number, code):
    ended, line = stopped(tmp_path, number)
    assert ended == code
    step = int(line.removeprefix("vitreous: stopped and saved at step ").partition(";")[0].replace(",", ""))
    program, name, *words = shlex.split(line.partition("; go on: ")[2])
    assert (program, name, words[-1]) == ("vitreous", "demo", "--resume")
    with command(tmp_path, *words, "--json") as process:
        out, said = process.communicate(timeout=100)
    assert process.returncode == 0, said
    assert "going on with runs/demo" in said
    assert [rival["name"] for rival in json.loads(out)["rivals"]] == ["logistic regression on the same pixels"]
    steps = [event["step"] for event in runs.read(tmp_path / "runs" / "demo") if event["kind"] == "step"]
    assert steps == sorted(set(steps)), "no step was taken twice"
    assert any(later > step for later in steps)
    assert not (tmp_path / "runs" / "demo" / "state").exists()


@pytest.fixture(scope="module")
def dead(tmp_path_factory):
    where = tmp_path_factory.mktemp("demos") / "run"
    with pytest.raises(Death):
        vitreous.demo(where, seconds=1, tell=die_at(1))
    return where


@pytest.fixture
def ended(dead, tmp_path):
    """One that ended after its first step."""
    return shutil.copytree(dead, tmp_path / "run")


def test_a_demo_goes_on_as_it_began(ended, monkeypatch):
    monkeypatch.setattr(demo, "RIVAL_PENALTIES", (1.0,))
    for asked, words in (({"seconds": 9}, "length: 1 seconds then, 9 seconds now"), ({"seed": 1}, "seed: 0 then, 1")):
        with pytest.raises(ConfigError) as error:
            vitreous.demo(ended, resume=True, **asked)
        line_of(error.value, ended, words)
    result = vitreous.demo(ended, resume=True, seconds=1.0, seed=0)
    assert result.rival["seen"] == 2200
    assert "Now try:" in str(result)
    for command in (f"vitreous serve {ended}", f"vitreous look {ended}", "vitreous fit FOLDER"):
        assert f"\n  {command} " in str(result)
    share = 100 * result.run.metrics["judged"]["top1"]
    last = str(result).splitlines()[-1].lstrip()
    assert last.startswith(f"{share:.1f} % right"), "its last words, also in a pipe"
    assert last.endswith(f"a hybrid of {result.run.metrics['parameters']:,} parameters")
    assert vitreous.load(ended).config.embedding.stem != "patch"  # which a hybrid is not
    assert str(vitreous.demo(ended, resume=True)) == str(result), "a finished one shows its number again"


@pytest.mark.slow
def test_a_demo_that_fit_has_finished_shows_its_own_number(ended):
    vitreous.fit(ended, resume=True, device="cpu")
    result = vitreous.demo(ended, resume=True)
    assert result.rival is None
    assert "this model" in str(result)


def test_where_no_demo_is_none_goes_on(tmp_path):
    with pytest.raises(RunError) as error:
        vitreous.demo(tmp_path / "run", resume=True)
    line_of(error.value, tmp_path / "run", "start one: vitreous demo")
    assert not (tmp_path / "run").exists()


def test_a_run_that_is_no_demo_does_not_go_on_as_one(tmp_path):
    runs.RunFolder.create(tmp_path / "run", {"asked": {"recipe": "small-data"}, "recipe": {}}).close()
    with pytest.raises(ConfigError) as error:
        vitreous.demo(tmp_path / "run", resume=True)
    line_of(error.value, "recipe: small-data then, small-hybrid now")
