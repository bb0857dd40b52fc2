"""The demo: the main job on the embedded pictures."""

import json
import os
import subprocess
import sys

import vitreous
from vitreous.training import runs


def test_the_demo_trains_judges_and_reports_beside_its_rival(tmp_path):
    told = []
    result = vitreous.demo(tmp_path / "run", seconds=2, tell=told.append)
    judged, rival = result.run.metrics["judged"], result.rival
    assert judged["images"] == rival["seen"] == 2200
    assert 0.80 < rival["right"] / 2200 < 0.86  # logistic regression needs no luck
    assert judged["right"] > 0.15 * 2200  # two seconds are no training, but no chance either
    assert (tmp_path / "run" / "report.html").is_file()
    assert "logistic regression" in (tmp_path / "run" / "report.html").read_text()
    assert "Now try:" in str(result)
    steps = [event for event in runs.read(tmp_path / "run") if event["kind"] == "steps"]
    assert len(steps) == 1, "the budget in seconds is written down as a number of steps"
    assert steps[0]["steps"] == result.run.metrics["steps"]


def test_the_command_runs_from_any_folder_and_again(tmp_path):
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-m", "vitreous", "demo", "--seconds", "1", "--json"],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            env=os.environ,
            check=True,
        )
        assert json.loads(done.stdout)["schema"] == "vitreous.demo/1"
    assert (tmp_path / "runs" / "demo" / "model.safetensors").is_file()
