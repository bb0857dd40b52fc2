"""A runner that is stopped, or whose processes die, loses nothing that was finished."""

import json
import os
import signal
import subprocess
import sys
import time
from textwrap import dedent

import forks
import pytest

from vitreous.papers import runner
from vitreous.papers.experiment import Cell
from vitreous.papers.results import Results, read
from vitreous.papers.works import Bench
from vitreous.papers.works.episodes import episodic
from vitreous.papers.works.train import train

# A work and an experiment from outside: cells that answer at once, wait behind a gate, or end their process.
OUTSIDE = """
    import os, time
    from pathlib import Path
    from vitreous.papers.experiment import Cell, Claim, Experiment, GridCell
    from vitreous.papers.verdict import POSITIVE
    from vitreous.papers.works import Work

    GATE = Path(os.environ["GATE"])

    def answer(cell, bench):
        number = cell.options["number"]
        if number >= int(os.environ.get("WAIT_FROM", 1000)) and not GATE.exists():
            GATE.with_suffix(".waits").touch()
            time.sleep(600)
        if number == int(os.environ.get("DIE_AT", -1)) and not GATE.exists():
            os._exit(3)
        return {"accuracy": number / 100}

    ANSWER = Work(answer)

    def grid(scale, seeds):
        for arm in range(int(os.environ.get("FIRST", 0)), int(os.environ.get("LAST", 3))):
            for seed in seeds:
                yield GridCell(f"arm {arm}", seed, Cell("answer", {"number": 2 * arm + seed}))

    EXPERIMENT = Experiment(
        "outside", "E-OUT", "Numbers",
        (Claim("C17", "arms differ", POSITIVE, lambda table: [table.difference("arm 1", "arm 0", "accuracy")]),),
        grid, seeds={"laptop": 2, "gpu": 2, "full": 2},
    )
"""
ENTRY_POINTS = (
    "[vitreous.works]\nanswer = outside_work:ANSWER\n[vitreous.experiments]\noutside = outside_work:EXPERIMENT\n"
)
HEARS_CTRL_C = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"  # also in the background
PROGRAM = f"{HEARS_CTRL_C}; from vitreous.cli import main; main()"
COMMAND = [sys.executable, "-c", PROGRAM, "paper", "run", "outside", "--out", "results"]


@pytest.fixture
def outside(tmp_path):
    """A folder that looks installed, and the gate that its cells wait for."""
    (tmp_path / "outside_work.py").write_text(dedent(OUTSIDE))
    about = tmp_path / "outside_work-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: outside-work\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(ENTRY_POINTS)
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    return {**os.environ, "PYTHONPATH": path, "GATE": str(tmp_path / "gate")}


def numbers(tmp_path):
    return sorted(one.options["number"] for one in read(tmp_path / "results" / "outside.json"))


def run_again(tmp_path, outside):
    (tmp_path / "gate").touch()
    done = forks.run(
        [*COMMAND, "--jobs", "0", "--json"], env=outside, cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)["outcomes"][0]


def test_a_process_that_dies_is_named_and_the_next_cell_gets_a_new_one(tmp_path, outside):
    env = {**outside, "DIE_AT": "2"}  # arm 1, seed 0
    died = forks.run(
        [*COMMAND, "--jobs", "1", "--json"], env=env, cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert died.returncode == 1, died.stderr
    (outcome,) = json.loads(died.stdout)["outcomes"]
    assert outcome["failures"] == {"arm 1, seed 0": "its process ended with exit code 3"}
    assert numbers(tmp_path) == [0, 1, 3, 4, 5]
    assert run_again(tmp_path, outside)["failures"] == {}
    assert numbers(tmp_path) == [0, 1, 2, 3, 4, 5]


def test_a_stopped_experiment_keeps_its_cells_and_goes_on(tmp_path, outside):
    env = {**outside, "WAIT_FROM": "2"}
    began = forks.Popen(
        [*COMMAND, "--jobs", "1"], env=env, cwd=tmp_path, start_new_session=True, stderr=subprocess.PIPE
    )
    while not (tmp_path / "gate.waits").exists():  # cells 0 and 1 are done, 2 has begun
        assert began.poll() is None, began.stderr.read()
        time.sleep(0.05)
    os.killpg(began.pid, signal.SIGINT)  # as Ctrl-C in a terminal: the runner and its processes
    began.communicate()
    assert began.returncode == 130
    with pytest.raises(ProcessLookupError):  # nothing of it runs on
        while True:
            os.killpg(began.pid, 0)
            time.sleep(0.05)
    before = {one.key: one for one in read(tmp_path / "results" / "outside.json")}
    assert numbers(tmp_path) == [0, 1]
    outcome = run_again(tmp_path, outside)
    assert outcome["cells"]["finished"] == outcome["cells"]["of"] == 6
    after = {one.key: one for one in read(tmp_path / "results" / "outside.json")}
    assert {key: after[key] for key in before} == before  # not computed again
    assert numbers(tmp_path) == [0, 1, 2, 3, 4, 5]


def test_two_runs_at_once_on_one_results_file_lose_nothing(tmp_path, outside):
    (tmp_path / "gate").touch()
    halves = [{"FIRST": "0", "LAST": "12"}, {"FIRST": "12", "LAST": "24"}]
    running = [
        forks.Popen([*COMMAND, "--jobs", "0"], env=outside | half, cwd=tmp_path, stdout=subprocess.DEVNULL)
        for half in halves
    ]
    assert [one.wait() for one in running] == [0, 0]
    assert numbers(tmp_path) == list(range(48))


MODEL = "S/7 width=32 depth=2 heads=2 mlp=64 image_size=28 channels=1"


def test_models_that_cells_need_are_made_once_and_before_them(tmp_path):
    up = train(MODEL, "fashion", 0, recipe={"length": "2 steps", "batch": 8})
    tuned = train(None, "fashion", 0, recipe="fine-tune", weights=up, length="2 steps")
    readings = [episodic(tuned, "fashion", ways=(2,), shots=(shots,)) for shots in (1, 2)]
    bench = Bench(models=tmp_path)
    assert [one.key for one in runner.models_to_make(readings, bench)] == [up.key, tuned.key]
    assert [one.key for one in runner.models_to_make([up, *readings], bench)] == [tuned.key]
    (tmp_path / f"{up.key}.safetensors").touch()
    assert [one.key for one in runner.models_to_make(readings, bench)] == [tuned.key]


def test_a_model_that_is_made_again_does_not_replace_the_measurement(tmp_path, monkeypatch):
    """An imported training has readings and no model; its model is made, its readings stay."""
    up = Cell("train", {"data": "fashion", "seed": 0})
    reading = Cell("episodes", {"data": "fashion"}, (up,))
    placed = [runner.GridCell("arm", seed, cell) for seed, cell in enumerate((up, reading))]
    results = Results(tmp_path, committed=tmp_path)
    results.add("before", runner.new_record(up, {"accuracy": 0.5}, "done", 1.0))
    asked: list[str] = []

    def answered(cells, settings, at_once, **how):
        for cell in cells:
            asked.append(cell.work)
            yield cell, {"readings": {"accuracy": 0.25}, "status": "done", "seconds": 1.0}

    monkeypatch.setattr(runner, "computed", answered)
    monkeypatch.setattr(runner, "Results", lambda out=None, committed=None: Results(tmp_path, committed=None))
    monkeypatch.setattr(runner, "new_bench", lambda settings: Bench(models=tmp_path))
    experiment = runner.Experiment("now", "E", "Now", (), lambda scale, seeds: placed)
    runner.run(experiment, out=tmp_path)
    assert asked == ["train", "episodes"]
    assert [one.key for one in read(tmp_path / "now.json")] == [reading.key]
    kept = Results(tmp_path, committed=tmp_path)
    assert kept.get(up).readings == {"accuracy": 0.5}
    assert kept.get(reading).readings == {"accuracy": 0.25}
