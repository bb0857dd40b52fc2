"""A writer that is killed at each of its steps on the disk, in turn."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from vitreous import files

STEPS = ("fsync", "fsync_folder", "replace", "rename", "link", "exchange", "unlink", "remove")


class Killed(BaseException):
    """Raised by the step at which a process ends, and by all after it: whatever cleans up is dead too."""


def killed_at(step: int, monkeypatch: pytest.MonkeyPatch, write: Callable[[], object]) -> list[str]:
    """Let `write` do so many steps and no more; returns those that it did."""
    done: list[str] = []

    def stopping(name: str) -> Callable[..., object]:
        real = getattr(files, name)

        def call(*arguments):
            if len(done) >= step:
                raise Killed
            result = real(*arguments)
            done.append(name)
            return result

        return call

    with monkeypatch.context() as patch:
        for name in STEPS:
            patch.setattr(files, name, stopping(name))
        with suppress(Killed):
            write()
    return done


def each_kill(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    start: Callable[[Path], object],
    write: Callable[[Path], object],
) -> Iterator[Path]:
    """Folders in which `write` was killed after 0, 1, 2, … steps; the last is that in which it ended well."""
    for step in range(100):
        folder = tmp_path / str(step)
        folder.mkdir()
        start(folder)
        done = killed_at(step, monkeypatch, lambda folder=folder: write(folder))
        yield folder
        if len(done) < step:
            return
    raise AssertionError("it never ends")
