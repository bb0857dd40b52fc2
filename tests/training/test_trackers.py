"""Events drawn elsewhere: the numbers arrive, what a restore superseded goes, and losing a writer costs one line."""

import math
import os
import subprocess
import sys
import textwrap
from importlib.util import find_spec

import pytest

from vitreous.errors import ConfigError, MissingExtraError
from vitreous.training.run import trackers
from vitreous.training.run.trackers import Writers

EVENTS = [
    {"kind": "start", "stage": "fit", "step": 0, "loss": 9.0},
    {"kind": "data", "images": 312},
    {"kind": "step", "stage": "fit", "step": 1, "loss": 2.5, "note": "a word", "memory": None, "time": 5.0},
    {"kind": "step", "stage": "fit", "step": 2, "loss": 1.5, "best": True},
    {"kind": "dev", "stage": "fit", "step": 2, "accuracy": 0.5},
]


class Kept(list):
    """A writer that keeps what it is given."""

    closed = False

    def __init__(self, folder):
        super().__init__()

    def write(self, stage, step, numbers):
        self.append((stage, step, numbers))

    def close(self):
        self.closed = True


class Broken(Kept):
    def write(self, stage, step, numbers):
        if step == 2:
            raise OSError("its disk\nis full")
        super().write(stage, step, numbers)


def test_numbers_of_steps_are_curves_and_nothing_else_is(monkeypatch, tmp_path):
    monkeypatch.setitem(trackers.WRITERS, "kept", Kept)
    writers = Writers(["kept"], tmp_path)
    kept = writers.writers["kept"]
    for event in EVENTS:
        writers(event)
    writers.close()
    assert kept == [
        ("fit", 1, {"step/loss": 2.5}),
        ("fit", 2, {"step/loss": 1.5, "step/best": 1.0}),
        ("fit", 2, {"dev/accuracy": 0.5}),
    ]
    assert kept.closed


def test_a_writer_that_fails_is_dropped_with_one_line_and_the_others_go_on(monkeypatch, tmp_path):
    monkeypatch.setitem(trackers.WRITERS, "kept", Kept)
    monkeypatch.setitem(trackers.WRITERS, "broken", Broken)
    said = []
    writers = Writers(["broken", "kept"], tmp_path, said.append)
    kept, broken = writers.writers["kept"], writers.writers["broken"]
    for event in EVENTS:
        writers(event)
    assert said == ["the log broken is lost (its disk is full); the run goes on without it"]
    assert len(kept) == 3
    assert len(broken) == 1


def test_an_unknown_log_is_answered_with_those_there_are(tmp_path):
    with pytest.raises(ConfigError, match="there is no log 'wandb'; take one of tensorboard, trackio"):
        Writers(["wandb"], tmp_path)


@pytest.mark.parametrize("name", ["tensorboard", "trackio"])
def test_an_absent_package_is_said_before_the_run(monkeypatch, tmp_path, name):
    monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(MissingExtraError, match=rf"--log {name} needs the extra 'track'; pip install"):
        Writers([name], tmp_path)


needs_tensorboard = pytest.mark.skipif(find_spec("tensorboard") is None, reason="tensorboard is not installed")
needs_trackio = pytest.mark.skipif(find_spec("trackio") is None, reason="trackio is not installed")


def drawn(folder) -> list[tuple[int, float]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(folder))
    found.Reload()
    return [(point.step, point.value) for point in found.Scalars("step/loss")]


@needs_tensorboard
@pytest.mark.filterwarnings("ignore")  # of other packages
def test_tensorboard_draws_each_stage_and_drops_what_a_restored_run_repeats(tmp_path):
    for steps in (range(1, 6), range(4, 8)):
        writers = Writers(["tensorboard"], tmp_path)
        for step in steps:
            writers({"kind": "step", "stage": "up", "step": step, "loss": float(step)})
        writers({"kind": "step", "stage": "down", "step": 1, "loss": math.nan})
        writers.close()
    assert drawn(tmp_path / "tensorboard" / "up") == [(step, float(step)) for step in range(1, 8)]
    assert len(drawn(tmp_path / "tensorboard" / "down")) == 1


@needs_tensorboard
@pytest.mark.filterwarnings("ignore")
def test_tensorboard_without_a_place_to_write_stops_nothing(tmp_path):
    (tmp_path / "tensorboard").write_text("in the way")
    said = []
    writers = Writers(["tensorboard"], tmp_path, said.append)
    for event in EVENTS:
        writers(event)
    writers.close()
    (line,) = said
    assert line.startswith("the log tensorboard is lost (")


@needs_trackio
def test_trackio_writes_on_this_machine_alone_and_prints_nothing(tmp_path):
    """In a process without network, though the environment names a space."""
    code = """
    import sys, sqlite3, glob, os
    from pathlib import Path
    from vitreous.training.run.trackers import Writers
    said = []
    for steps in ((1, 2), (2, 3)):
        writers = Writers(["trackio"], Path(sys.argv[1]) / "pets-1", said.append)
        for step in steps:
            writers({"kind": "step", "stage": "fit", "step": step, "loss": 1.0 / step})
        writers({"kind": "step", "stage": "fit", "step": step, "loss": float("nan")})
        writers.close()
    assert not said, said
    assert os.environ["TRACKIO_SPACE_ID"] == "somebody/somewhere"
    (base,) = glob.glob(sys.argv[1] + "/*.db")
    rows = sqlite3.connect(base).execute("select run_name, step, metrics from metrics").fetchall()
    print(sorted({row[:2] for row in rows}))
    """
    environment = {**os.environ, "TRACKIO_DIR": str(tmp_path), "TRACKIO_SPACE_ID": "somebody/somewhere"}
    call = [sys.executable, "-c", textwrap.dedent(code), str(tmp_path)]
    if not subprocess.run(["unshare", "-rn", "true"], capture_output=True).returncode:
        call = ["unshare", "-rn", *call]
    done = subprocess.run(call, capture_output=True, text=True, timeout=100, env=environment)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "[('pets-1', 1), ('pets-1', 2), ('pets-1', 3)]\n"
