"""torchrun on the CPU: a run of two processes that is killed goes on, and learning without labels works there too."""

import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from small_runs import MODEL, assert_equal_states, picture_folder

from vitreous.training.run import folder as runs
from vitreous.weights.load_model import load

STATES_ALWAYS = """
import functools, sys
from vitreous.cli import main
from vitreous.training.run import protocols
protocols.Loop = functools.partial(protocols.Loop, save_seconds=0.0)
main(sys.argv[1:])
"""
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
SECONDS = 200  # that a run may take on a busy machine


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return picture_folder(tmp_path_factory.mktemp("sets") / "shapes", 80)


@contextmanager
def started(words, program=("-m", "vitreous"), devices=2):
    start = TORCHRUN if devices == 2 else []
    call = [sys.executable, *start, *program, *words, "--device", "cpu", "--workers", "0", "--no-check"]
    with subprocess.Popen(call, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                kill_all(words[words.index("--out") + 1])


def finished(words, devices=2):
    with started(words, devices=devices) as process:
        said, _ = process.communicate(timeout=SECONDS)
    assert process.returncode == 0, said


def changed(**settings):
    return [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]


@pytest.mark.slow
def test_two_processes_killed_together_go_on_to_the_weights_of_a_run_that_was_not(folder, tmp_path):
    """A sum of two numbers is the same in either order, so here they are bit for bit the same."""
    words = ["fit", str(folder), "--model", MODEL, "--recipe", "small-data", "--steps", "300", "--folds", "0"]
    words += changed(image_size=16, batch=8, dev=0.2, mixup=0.3, drop_path=0.2, average="ema", evaluate_every=1)
    finished([*words, "--out", str(tmp_path / "whole")])
    script = tmp_path / "often.py"
    script.write_text(STATES_ALWAYS)
    cut = tmp_path / "cut"
    for count in (12, 14):
        again = ["fit", str(folder), "--resume"] if cut.exists() else words
        with started([*again, "--out", str(cut)], [str(script)]) as process:
            wait_for(cut / "events.jsonl", count, process)
            kill_all(str(cut))
            process.communicate()
    finished(["fit", str(folder), "--resume", "--out", str(cut)])
    ours, theirs = (load(tmp_path / name / "model.safetensors").state_dict() for name in ("cut", "whole"))
    assert_equal_states(ours, theirs)
    ours, theirs = (runs.without_clocks(runs.read(tmp_path / name)) for name in ("cut", "whole"))
    assert [e for e in ours if e["kind"] in ("step", "dev")] == [e for e in theirs if e["kind"] in ("step", "dev")]


def kill_all(word):
    """Everything that was called with this word: torchrun, and its ranks, which lie in sessions of their own."""
    for place in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if word in (place / "cmdline").read_bytes().decode(errors="replace").split("\0"):
                os.kill(int(place.name), signal.SIGKILL)


def wait_for(events, count, process):
    """Until the run has written so many more events."""
    before, end = lines(events), time.monotonic() + SECONDS
    while lines(events) < before + count:
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < end
        time.sleep(0.01)


def lines(events):
    return events.read_bytes().count(b"\n") if events.exists() else 0


@pytest.mark.slow
def test_two_processes_learn_masked_patches_as_one_does(folder, tmp_path):
    words = ["fit", str(folder), "--model", MODEL, "--recipe", "masked-patches", "--steps", "4"]
    words += changed(image_size=16, batch=8, optimizer="sgd", peak_lr=0.1)
    for devices in (1, 2):
        finished([*words, "--out", str(tmp_path / str(devices))], devices)
    one, two = (
        [event["loss"] for event in runs.read(tmp_path / str(devices)) if event["kind"] == "step"] for devices in (1, 2)
    )
    assert len(one) == 4
    assert two == pytest.approx(one, rel=1e-4)


def test_two_processes_agree_on_a_name_of_ours(folder, tmp_path, monkeypatch):
    """Without --out rank 0 chooses the folder, and the other learns its name."""
    monkeypatch.chdir(tmp_path)
    finished(["fit", str(folder), "--model", MODEL, "--steps", "2", "--folds", "0", *changed(image_size=16, batch=8)])
    assert (tmp_path / "runs" / "shapes-1" / "model.safetensors").is_file()
