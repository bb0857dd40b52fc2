"""A browser ends with the export that started it, even if the export is killed."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import forks
import pytest
from tiny_models import VIT, awake
from web_hosting import need_runtime

import vitreous
from vitreous.exports.web.chromium import find_chromium

pytestmark = pytest.mark.skipif(os.name == "nt", reason="signals and pipes of POSIX")

# It has a child, as browsers do, and both hold the pipe open for as long as they live.
BROWSER = """#!/bin/sh
exec 3> '{pipe}'
for word; do case $word in --user-data-dir=*) echo kept > "${{word#--user-data-dir=}}/Default";; esac; done
(trap '' TERM; sleep 60; echo survived >&3) &
echo begun >&3
sleep 60
echo survived >&3
"""
ASKS = """
import sys
from pathlib import Path
from vitreous.exports.web.chromium import PageInBrowser
from vitreous.models.preprocess import Preprocess
with PageInBrowser(Path("."), {}, Preprocess(size=8)).at_work(sys.argv[1]):
    pass
"""
EXPORTS = "from vitreous.cli import main; main()"


def until(is_true, seconds=60):
    """Wait for another process; the bound only ends a broken test."""
    end = time.monotonic() + seconds
    while not is_true():
        assert time.monotonic() < end
        time.sleep(0.05)


def started(code: str, *words: object, temporary: Path) -> subprocess.Popen:
    command = [sys.executable, "-c", code, *map(str, words)]
    return forks.Popen(command, env={**os.environ, "TMPDIR": str(temporary)}, stderr=subprocess.DEVNULL)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_a_killed_export_leaves_no_browser_and_no_profile(tmp_path, number):
    pipe, browser, temporary = tmp_path / "pipe", tmp_path / "chromium", tmp_path / "temporary"
    os.mkfifo(pipe)
    temporary.mkdir()
    browser.write_text(BROWSER.format(pipe=pipe))
    browser.chmod(0o755)
    export = started(ASKS, browser, temporary=temporary)
    with pipe.open() as told:
        assert told.readline() == "begun\n"
        assert len(list(temporary.glob("vitreous-chromium-*/Default"))) == 1
        export.send_signal(number)
        assert told.read() == ""  # the pipe ends when the last of them is gone
    until(lambda: not list(temporary.glob("vitreous-chromium-*")))
    export.wait(60)


@pytest.mark.slow
@pytest.mark.skipif(
    find_chromium() is None or not Path("/proc/self/cmdline").exists(), reason="no Chromium, or no /proc"
)
def test_a_killed_export_leaves_no_chromium(tmp_path):
    runtime, temporary = need_runtime(), Path(tempfile.mkdtemp())  # Chromium's socket needs a short path
    vitreous.save(awake(VIT), tmp_path / "model.safetensors")

    def browsers() -> list[bytes]:
        """Command lines of all processes of this test's Chromium."""
        found = []
        for file in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                found.append(file.read_bytes())
            except OSError:
                continue
        return [line for line in found if str(temporary).encode() in line]

    words = ("export", tmp_path / "model.safetensors", tmp_path / "out", "--to", "web", "--runtime", runtime.dist)
    export = started(EXPORTS, *words, "--wasm-only", temporary=temporary)
    until(lambda: list(temporary.glob("vitreous-chromium-*/SingletonSocket")), seconds=240)
    assert len(browsers()) > 1
    export.kill()
    export.wait(60)
    until(lambda: not browsers() and not list(temporary.glob("*chromium*")))
    assert not (tmp_path / "out").exists()
    shutil.rmtree(temporary)
