"""The command line in a process of its own: each call's exit code and what it printed."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import forks

CALLS = """
import contextlib, io, json, sys
{before}
from vitreous.cli import main
done = []
for words in json.loads(sys.argv[1]):
    out, err, code = io.StringIO(), io.StringIO(), None
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main(words)
        except SystemExit as end:
            code = end.code
    done.append([code, out.getvalue(), err.getvalue()])
print(json.dumps(done))
"""


@dataclass(frozen=True)
class Done:
    code: int
    stdout: str
    stderr: str

    @property
    def line(self) -> str:
        """The single line of a command that could not."""
        assert self.code == 2, (self.code, self.stdout, self.stderr)
        assert self.stdout == ""
        (line,) = self.stderr.splitlines()
        assert line.startswith("vitreous: ")
        return line


TERMINAL = """
class Terminal(io.StringIO):
    def isatty(self):
        return True
io.StringIO = Terminal
"""


def run_all(
    calls: Iterable[Sequence[object]],
    *,
    before: str = "",
    environment: Mapping[str, str] | None = None,
    terminal: int | None = None,
) -> list[Done]:
    """Several calls in one process: Python and torch start once.  before: code to run first; terminal: its columns."""
    words = json.dumps([[str(word) for word in call] for call in calls])
    code = CALLS.replace("{before}", before if terminal is None else TERMINAL)
    env = {**(environment or os.environ), "NO_COLOR": "1", "COLUMNS": str(terminal or 80)}
    done = forks.run([sys.executable, "-c", code, words], capture_output=True, text=True, timeout=120, env=env)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return [Done(*each) for each in json.loads(done.stdout)]


def run(*words: object) -> Done:
    """One call, as a shell makes it."""
    call = [sys.executable, "-c", "from vitreous.cli import main; main()", *map(str, words)]
    done = forks.run(call, capture_output=True, text=True, timeout=120, env={**os.environ, "NO_COLOR": "1"})
    return Done(done.returncode, done.stdout, done.stderr)
