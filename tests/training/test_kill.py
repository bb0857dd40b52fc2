"""`vitreous fit`, ended at any moment and gone on with, gives the weights, numbers and events of an untouched run."""

import json
import random
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import forks
import pytest
import torch
from picture_files import class_folders
from safetensors import safe_open

from vitreous.training.run import folder as runs

STATES_ALWAYS = """
import functools, sys
from vitreous.cli import main
from vitreous.training.run import protocols
protocols.Loop = functools.partial(protocols.Loop, save_seconds=0.0)  # a state after every step, not every half minute
main(sys.argv[1:])
"""
SETTINGS = ["image_size=32", "batch=8", "average=ema", "average_decay=0.9", "dropout=0.1", "drop_path=0.1", "dev=0.2"]
SETTINGS += ["mixup=0.2", "flip=0.5", "evaluate_every=0.5", "patience=none"]
STEPS = 120
SECONDS = 200  # that a process may take on a busy machine

Moment = Callable[[subprocess.Popen[str], Path], bool]  # waits for it; False: the process came to its end before


@pytest.fixture(scope="module")
def images(tmp_path_factory) -> Path:
    return class_folders(tmp_path_factory.mktemp("images") / "pets", {"cat": 40, "dog": 40})


@pytest.fixture(scope="module")
def untouched(images, tmp_path_factory) -> dict[int, Path]:
    """The same run from end to end, with its dev split and in folds."""
    place = tmp_path_factory.mktemp("untouched")
    return Untouched(images, place)


class Untouched(dict):
    def __init__(self, images: Path, place: Path):
        super().__init__()
        self.images, self.place = images, place

    def __missing__(self, folds: int) -> Path:
        folder = self.place / f"folds-{folds}"
        with started(self.images, folder, folds) as process:
            out, err = process.communicate(timeout=SECONDS)
        assert process.returncode == 0, (out, err)
        self[folds] = folder
        return folder


@contextmanager
def started(images: Path, folder: Path, folds: int = 0, *, often: bool = False) -> Iterator[subprocess.Popen[str]]:
    """A process that begins the run in `folder`, or goes on with it."""
    program = ["-c", STATES_ALWAYS] if often else ["-m", "vitreous"]
    words = [sys.executable, *program, "fit", str(images), "--out", str(folder), "--no-check", "--device", "cpu"]
    if (folder / "config.json").exists():
        words += ["--resume"]
    else:
        words += ["--model", "Ti/8 width=32 heads=2 depth=2 mlp=64", "--steps", str(STEPS), "--folds", str(folds)]
        words += [word for setting in SETTINGS for word in ("--set", setting)]
    process = forks.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def whenever(holds: Callable[[], bool]) -> Moment:
    def wait(process: subprocess.Popen[str], folder: Path) -> bool:
        end = time.monotonic() + SECONDS
        while not holds():
            if process.poll() is not None:
                return False
            assert time.monotonic() < end
            time.sleep(0.0005)
        return True

    return wait


def after_seconds(seconds: float) -> Moment:
    end = time.monotonic() + seconds
    return whenever(lambda: time.monotonic() > end)


def after_lines(folder: Path, count: int) -> Moment:
    """When the process has written so many events."""
    file = folder / "events.jsonl"
    before = lines(file)
    return whenever(lambda: lines(file) >= before + count)


def while_saving(folder: Path, count: int) -> Moment:
    """When, so many events on, a state lies there half-written."""
    file, states = folder / "events.jsonl", folder / "state"
    before, old = lines(file), parts(states)
    return whenever(lambda: lines(file) >= before + count and bool(parts(states) - old))


def while_reporting(folder: Path) -> Moment:
    """When the page is there and the model is not."""
    return whenever((folder / "report.html").exists)


def lines(file: Path) -> int:
    return file.read_bytes().count(b"\n") if file.exists() else 0


def parts(states: Path) -> set[str]:
    return {part.name for part in states.glob(".*.part")}


def is_finished(folder: Path) -> bool:
    return (folder / "metrics.json").exists()


def end_it(images: Path, folder: Path, folds: int, make: Callable[[], Moment]) -> bool:
    """SIGKILL at a moment; whether the process was still there."""
    with started(images, folder, folds, often=True) as process:
        was_there = make()(process, folder)
        process.kill()
        out, err = process.communicate()
    if not was_there:
        assert process.returncode == 0, (out, err)
    return was_there


def finish_it(images: Path, folder: Path) -> str:
    with started(images, folder) as process:
        out, err = process.communicate(timeout=SECONDS)
    assert process.returncode == 0, (out, err)
    return str(err)


def assert_same_run(folder: Path, untouched: Path) -> None:
    with (
        safe_open(folder / "model.safetensors", "pt") as ours,
        safe_open(untouched / "model.safetensors", "pt") as theirs,
    ):
        assert set(ours.keys()) == set(theirs.keys())
        for name in theirs.keys():  # noqa: SIM118
            assert torch.equal(ours.get_tensor(name), theirs.get_tensor(name)), name
    events, wanted = (runs.without_clocks(runs.read(place)) for place in (folder, untouched))
    assert events == wanted
    assert len([event for event in wanted if event["kind"] == "step"]) >= STEPS
    metrics, wanted = (
        runs.without_clocks([json.loads((place / "metrics.json").read_text())]) for place in (folder, untouched)
    )
    assert metrics == wanted


def test_killed_three_times_a_run_ends_as_if_it_had_not_been(images, untouched, tmp_path):
    """Also while a state is being written, and if the newest is then damaged; average, dropout, best on dev and all."""
    folder = tmp_path / "run"
    assert end_it(images, folder, 0, lambda: after_lines(folder, 20))
    assert end_it(images, folder, 0, lambda: while_saving(folder, 15))
    assert end_it(images, folder, 0, lambda: after_lines(folder, 15))
    newest = max((folder / "state").glob("*.safetensors"))
    whole = newest.read_bytes()
    newest.write_bytes(whole[:-1] + bytes([whole[-1] ^ 255]))
    said = " ".join(finish_it(images, folder).split())
    assert f"{newest} is damaged (its digest does not fit); passed over for the state before it" in said, said
    assert_same_run(folder, untouched[0])
    kinds = [json.loads(line)["kind"] for line in (folder / "events.jsonl").read_text().splitlines()]
    assert kinds.count("restore") == 3


def test_asked_to_stop_a_run_saves_and_says_where_it_stands(images, untouched, tmp_path):
    """No state is due for half a minute: the one that is there was saved for the signal."""
    folder, told = tmp_path / "run", []
    for number, code in ((signal.SIGTERM, 143), (signal.SIGINT, 130)):
        with started(images, folder) as process:
            assert after_lines(folder, 5)(process, folder)
            process.send_signal(number)
            out, err = process.communicate(timeout=SECONDS)
        assert process.returncode == code, (out, err)
        assert out == ""
        with runs.RunFolder.open(folder) as held:
            step = held.latest_state().step
        line = err.splitlines()[-1]
        assert line.startswith(f"vitreous: stopped and saved at step {step}; go on: vitreous fit {images} ")
        assert line.endswith(" --resume")
        told.append(shlex.split(line.partition("; go on: ")[2])[1:])
        assert [event["step"] for event in runs.read(folder) if event["kind"] == "step"] == list(range(1, step + 1))
    forks.run([sys.executable, "-m", "vitreous", *told[0]], check=True, capture_output=True)
    assert_same_run(folder, untouched[0])


@pytest.mark.slow
@pytest.mark.parametrize("folds", [0, 2])
def test_killed_at_twenty_random_moments_a_run_ends_as_if_it_had_not_been(images, untouched, tmp_path, folds):
    """At the start, between steps, while saving, at the end of a stage, while reporting."""
    folder, chance = tmp_path / "run", random.Random(folds)
    reach = 4 if folds else 2  # events between two kills, so that twenty come before the end
    unfinished = 0
    for number in range(19):
        kind = chance.choice(["seconds", "lines", "lines", "saving", "saving"])
        if kind == "seconds":
            seconds = chance.uniform(0, 1.8)  # an idle machine is past its imports by then
            end_it(images, folder, folds, lambda s=seconds: after_seconds(s))
        elif kind == "lines":
            count = chance.randint(1, 2 * reach)
            end_it(images, folder, folds, lambda c=count: after_lines(folder, c))
        else:
            count = chance.randint(1, reach)
            end_it(images, folder, folds, lambda c=count: while_saving(folder, c))
        unfinished += bool(parts(folder / "state"))
        assert not is_finished(folder), f"only {number} kills before the end; let them come sooner"
    end_it(images, folder, folds, lambda: while_reporting(folder))
    finish_it(images, folder)
    assert_same_run(folder, untouched[folds])
    assert unfinished, "no kill came while a state was being written"
