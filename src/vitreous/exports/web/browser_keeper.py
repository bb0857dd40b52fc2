"""Run a browser that ends when the process that asked for it ends, even if that one was killed.

    python browser_keeper.py PROFILE COMMAND…

The asking process holds the other end of standard input. When it closes, or is closed by the system because the process
is gone, the browser and all its children end, and its profile folder is removed. The exit status is the browser's.
A separate program with the standard library alone: a killed process cannot clean up after itself.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

TERM_SECONDS = 5  # that a browser has to end by itself


def keep(profile: Path, command: list[str]) -> int:
    """Wait for the browser, or for the end of standard input."""
    try:
        browser = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    except OSError:
        return 126  # as a shell reports what it cannot run
    threading.Thread(target=_end_with_input, args=(browser,), daemon=True).start()
    try:
        return browser.wait()
    finally:
        _kill(browser)
        _remove(profile)


def _remove(profile: Path) -> None:
    """The profile, and Chromium's folder for the socket that the profile points to."""
    with suppress(OSError):  # an orderly end has removed it
        beside = (profile / "SingletonSocket").readlink().parent
        if beside.name.startswith("org.chromium."):
            shutil.rmtree(beside, ignore_errors=True)
    shutil.rmtree(profile, ignore_errors=True)


def _end_with_input(browser: subprocess.Popen[bytes]) -> None:
    while os.read(0, 1024):
        pass
    browser.terminate()
    try:
        browser.wait(TERM_SECONDS)
    except subprocess.TimeoutExpired:
        _kill(browser)


def _kill(browser: subprocess.Popen[bytes]) -> None:
    """The browser and the children that it left behind."""
    if os.name == "nt":
        browser.kill()
        return
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(browser.pid, signal.SIGKILL)


if __name__ == "__main__":
    for deaf in (signal.SIGINT, signal.SIGTERM):  # the pipe alone decides; a browser would inherit SIG_IGN
        signal.signal(deaf, lambda number, frame: None)
    sys.exit(keep(Path(sys.argv[1]), sys.argv[2:]))
