"""vitreous check, as a command."""

import json
import os
import subprocess
import sys

import forks
import pytest
from pictures_in_memory import clean_files, encode, noise_picture
from small_runs import tinted_folder

ENVIRONMENT = {k: v for k, v in os.environ.items() if k not in {"VITREOUS_DEBUG", "FORCE_COLOR"}}
ENVIRONMENT |= {"COLUMNS": "80", "NO_COLOR": "1", "PYTHONIOENCODING": "utf-8"}
CALL = [sys.executable, "-c", "from vitreous.cli import main; main()", "check"]


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return forks.run([*CALL, *words], capture_output=True, text=True, env=ENVIRONMENT)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A set of class folders with one file cut short and one PNG named .jpg."""
    root = tmp_path_factory.mktemp("set") / "photos"
    files = clean_files(40) | {
        "train/ant/cut.jpg": encode(noise_picture(301))[:-500],
        "train/ant/png.jpg": encode(noise_picture(302), "PNG"),
    }
    for name, raw in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(raw)
    return root


def test_faults_end_with_one_only_under_strict(folder):
    plain, strict = run(str(folder)), run(str(folder), "--strict")
    assert (plain.returncode, strict.returncode) == (0, 1)
    assert plain.stdout == strict.stdout
    assert plain.stderr == ""
    assert "FAULT   truncated: 1 file is cut short" in plain.stdout
    assert "cut.jpg" in plain.stdout
    assert plain.stdout.endswith("labels: not looked at (after a fit: --weights last)\n")
    assert max(map(len, plain.stdout.splitlines())) <= 80


def test_one_json_object_and_a_page(folder, tmp_path):
    page = tmp_path / "health.html"
    done = run(str(folder), "--json", "--out", str(page), "--sample", "42", "--near", "4")
    body = json.loads(done.stdout)
    assert next(iter(body.items())) == ("schema", "vitreous.check/1")
    assert {f["kind"]: f["count"] for f in body["findings"]} == {"truncated": 1, "wrong-extension": 1}
    assert "at most 4 of 64 bits" in body["rules"]["near-duplicate"]
    assert page.read_text().startswith("<!doctype html>")
    again = run(str(folder), "--out", str(page))
    assert (again.returncode, again.stdout) == (2, "")
    assert "--force" in again.stderr


def test_a_model_suspects_labels_that_are_wrong_and_no_others(folder, tmp_path):
    """Its frozen features are enough: it knows none of these classes. Images of noise tell it nothing."""
    tints = tinted_folder(tmp_path / "tints", 200, strength=200)
    swapped = set()
    for i in range(0, 200, 21):
        was, to = (("red", "green", "blue", "none")[k % 4] for k in (i, i + 1))
        (tints / was / f"{i:04}.png").rename(tints / to / f"{i:04}.png")
        swapped.add(f"{to}/{i:04}.png")
    asked = ["--weights", "starter", "--json", "--fresh"]
    (found,) = [f for f in json.loads(run(str(tints), *asked).stdout)["findings"] if f["kind"] == "label-error"]
    listed = {name for case in found["cases"] for name in case["files"]}
    assert len(listed & swapped) >= 6  # of 10
    assert len(listed - swapped) <= 1
    kinds = {f["kind"] for f in json.loads(run(str(folder), *asked).stdout)["findings"]}
    assert "label-error" not in kinds


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["absent"], "absent"),
        (["{folder}", "--near", "99"], "near is 99; give"),
        (["{folder}", "--weights", "absent.npz"], "absent.npz is not there"),
    ],
)
def test_bad_input_is_one_line(words, line, folder):
    done = run(*(word.format(folder=folder) for word in words))
    assert (done.returncode, done.stdout) == (2, "")
    (said,) = done.stderr.splitlines()
    assert said.startswith("vitreous: ")
    assert line in said
