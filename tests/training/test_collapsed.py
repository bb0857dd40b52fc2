"""A run that learned nothing is called so; a resumed run tells of the same files as one that was never stopped."""

import json
import os
import pty
import sys
from dataclasses import replace
from html import unescape
from pathlib import Path

import forks
import pytest
from small_runs import Death, die_at, fitted, picture_folder

import vitreous

ALARM = "No better than always answering "


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Sixty images, and a file of each kind that cannot be read."""
    root = picture_folder(tmp_path_factory.mktemp("sets") / "shapes", 60)
    whole = (root / "disc").glob("*.png")
    (root / "disc" / "cut.png").write_bytes(next(whole).read_bytes()[:-200])
    (root / "cross" / "torn.jpg").write_bytes(b"<!doctype html>")
    (root / "cross" / "phone.heic").write_bytes(b"\0\0\0\x18ftypheic\0\0\0\0mif1heic" + bytes(64))
    return root


@pytest.fixture(scope="module")
def run(folder, tmp_path_factory):
    """Steps too small to change anything: the new head gives every image the same answer."""
    return fitted(folder, tmp_path_factory.mktemp("runs") / "run", check=True, peak_lr=1e-12, folds=2)


def told(run) -> str:
    return unescape(Path(run.report).read_text()).replace("<wbr>", "").replace("\u00a0", " ")


def test_a_run_that_learned_nothing_says_so_first(run):
    name = run.metrics["no_better_than"]
    assert name in run.load().labels
    assert {row["name"] for row in run.metrics["judged"]["classes"] if row["said"]} == {name}
    assert run.alarm.startswith(f"{ALARM}{name}. Start from trained weights (--weights starter)")
    first, *others = run.told
    assert (first.text, first.tone) == (run.alarm, "bad")
    assert str(run).startswith(f"alarm    {run.alarm}")
    assert not {"trust", "weakest"} & {event.get("about") for event in others}
    assert json.loads((Path(run.path) / "metrics.json").read_text())["alarm"] == run.alarm
    assert f'<p class="answer bad">{ALARM}{name}.</p>' in told(run)
    assert f"**{ALARM}{name}." in (Path(run.path) / "README.md").read_text()


def test_a_run_that_learned_something_raises_no_alarm(run):
    """With a result that beats one answer, the same run tells what to trust and what is weak."""
    better = replace(run, metrics={**run.metrics, "alarm": None, "no_better_than": None})
    assert better.told[0].about == "right"
    assert "alarm" not in str(better)
    assert "weakest" in str(better)


def test_it_doubts_no_label(run):
    assert run.metrics["suspects"]["judged"]["count"] == 0
    assert "Not asked: a model that is no better than one answer knows nothing about labels." in told(run)


def test_the_alarm_is_red_on_a_terminal_and_plain_elsewhere():
    code = """
class Result:
    alarm = "No better than always answering \\x1b[5mcat."
    def __str__(self): return f"{self.alarm}\\nmodel   here"
from vitreous.cli.show import show
show("fit", Result(), json=False)
"""
    plain = "No better than always answering \\u001b[5mcat."  # a name moves no terminal
    ours = {name: value for name, value in os.environ.items() if name != "NO_COLOR"}
    for env, wanted in ((ours, f"\x1b[31m\x1b[1m{plain}\x1b[0m"), ({**ours, "NO_COLOR": "1"}, plain)):
        inner, outer = pty.openpty()
        forks.run([sys.executable, "-c", code], stdout=outer, env=env, check=True, timeout=60)
        os.close(outer)
        assert os.read(inner, 4096).decode().splitlines() == [wanted, "model   here"]
        os.close(inner)
    piped = forks.run([sys.executable, "-c", code], capture_output=True, text=True, env=ours, timeout=60)
    assert piped.stdout.splitlines() == [plain, "model   here"]


def test_a_resumed_run_tells_of_the_files_that_cannot_be_read(run, folder, tmp_path):
    out = tmp_path / "run"
    with pytest.raises(Death):
        fitted(folder, out, check=True, peak_lr=1e-12, folds=2, tell=die_at(2))
    again = vitreous.fit(folder, resume=True, out=out, device="cpu", workers=0)
    for page in (told(run), told(again)):
        for fault in ("1 file cannot be read", "1 file is cut short and cannot be read", "1 file is HEIC"):
            assert fault in page
        assert "3 of 63 files cannot be read, 60 images read" in page
        assert all(name in page for name in ("cut.png", "torn.jpg", "phone.heic"))
        assert "63 files, 3 cannot be read: 60 images, each judged and each learned from" in page
        assert "set aside as test" not in page
    section = [page.split("<h2>The data")[1].split("<section")[0] for page in (told(run), told(again))]
    assert section[0] == section[1]
