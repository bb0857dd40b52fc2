"""Does the suite see a planted bug?   python tests/mutations/run.py [WORDS] [--jobs 2]

Every `*.toml` beside this file lists mutants: one wrong edit of one source file, and the tests that must fail with it.
Each mutant is planted in a copy of `src`, and its tests run on that copy.  WORDS: only mutants whose name has them.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDER = Path(__file__).resolve().parent
TIME_LIMIT_S = 900  # for the tests of one mutant
PASSED, FAILED = 0, 1  # exit codes of pytest; any other says that no test judged
KILLED, SURVIVED, STALE, BROKEN = "killed", "SURVIVED", "stale", "BROKEN"


class StaleError(Exception):
    """The text to replace is not in its file exactly once."""


@dataclass(frozen=True, kw_only=True)
class Mutant:
    """One planted bug.  before: text that stands once in `file`.  tests: files or names; one of them must fail."""

    name: str
    file: str
    before: str
    after: str
    tests: tuple[str, ...]


@dataclass(frozen=True)
class Verdict:
    """What became of a mutant.  why: the last line of pytest, or what was wrong with the mutant."""

    mutant: str
    word: str
    why: str
    seconds: float = 0.0


def read_mutants(folder: Path = FOLDER) -> list[Mutant]:
    """All mutants of the lists in this folder, in the order of their files."""
    found: list[Mutant] = []
    for path in sorted(folder.glob("*.toml")):
        entries = tomllib.loads(path.read_text(encoding="utf-8"))["mutant"]
        found += [Mutant(**entry | {"tests": tuple(entry["tests"])}) for entry in entries]
    return found


def planted(mutant: Mutant, root: Path = ROOT) -> str:
    """The source file with the bug in it."""
    path = root / mutant.file
    if not path.is_file():
        raise StaleError(f"{mutant.name}: {mutant.file} is gone; name the file that took its place")
    text = path.read_text(encoding="utf-8")
    if (count := text.count(mutant.before)) != 1:
        raise StaleError(f"{mutant.name}: `before` stands {count} times in {mutant.file}; make it unique")
    if mutant.before == mutant.after:
        raise StaleError(f"{mutant.name}: `after` changes nothing")
    mutated = text.replace(mutant.before, mutant.after)
    try:
        if mutant.file.endswith(".py"):
            compile(mutated, mutant.file, "exec")
    except SyntaxError as error:
        raise StaleError(f"{mutant.name}: {mutant.file} is no Python with it: {error}") from None
    return mutated


def judge(mutant: Mutant, root: Path = ROOT) -> Verdict:
    """Whether the mutant's tests fail with it."""
    begin = time.monotonic()
    try:
        mutated = planted(mutant, root)
    except StaleError as error:
        return Verdict(mutant.name, STALE, str(error))
    code, why = _tests_on(root, mutant.tests, {mutant.file: mutated})
    word = {PASSED: SURVIVED, FAILED: KILLED}.get(code, BROKEN)
    return Verdict(mutant.name, word, why, time.monotonic() - begin)


def judge_unmutated(tests: Sequence[str], root: Path = ROOT) -> Verdict:
    """A test that fails without a mutant kills nothing."""
    begin = time.monotonic()
    code, why = _tests_on(root, tests, {})
    return Verdict("no mutant at all", "passed" if code == PASSED else BROKEN, why, time.monotonic() - begin)


def _tests_on(root: Path, tests: Sequence[str], changed: dict[str, str]) -> tuple[int, str]:
    """Exit code and last line of pytest, with the sources in a copy where these files have another text."""
    with tempfile.TemporaryDirectory(prefix="mutant-") as folder:
        copy = Path(folder) / "src"
        shutil.copytree(root / "src", copy)  # keeps times, so that compiled files stay valid
        for file, text in changed.items():
            (Path(folder) / file).write_text(text, encoding="utf-8")
        around = {"PYTHONPATH": str(copy), "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
        around["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # no test here needs a plugin, and loading them takes seconds
        around["HYPOTHESIS_STORAGE_DIRECTORY"] = str(Path(folder) / "hypothesis")
        command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *tests]
        try:
            done = subprocess.run(
                command, cwd=root, env=os.environ | around, capture_output=True, text=True, timeout=TIME_LIMIT_S
            )
        except subprocess.TimeoutExpired:
            return -1, f"no verdict after {TIME_LIMIT_S} s"
    failed = [line for line in done.stdout.splitlines() if line.startswith(("FAILED ", "ERROR "))]
    lines = failed or (done.stdout + done.stderr).strip().splitlines() or ["pytest said nothing"]
    return done.returncode, lines[-1]


def _check_that_copies_are_used() -> None:
    """An installed copy before PYTHONPATH would let every mutant survive."""
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(ROOT / "src", Path(folder) / "src")
        code = "import vitreous; print(vitreous.__file__)"
        around = os.environ | {"PYTHONPATH": str(Path(folder) / "src")}
        found = subprocess.run([sys.executable, "-c", code], env=around, capture_output=True, text=True, check=True)
        if not Path(found.stdout.strip()).is_relative_to(Path(folder).resolve()):
            sys.exit(f"{sys.executable} imports {found.stdout.strip()}, not the copy with the mutant; run another one")


def main(asked: Sequence[str] | None = None) -> int:
    """Judge the mutants, print a table, and return 1 if a mutant lives or says nothing."""
    parser = argparse.ArgumentParser(description="Plant known bugs one by one, and see whether the tests fail.")
    parser.add_argument("words", nargs="*", help="only mutants with all of these words in their name or file")
    parser.add_argument("--jobs", type=int, default=1, help="mutants at a time")
    args = parser.parse_args(asked)
    if importlib.util.find_spec("pytest") is None:
        sys.exit(f"{sys.executable} has no pytest; run with .venv/bin/python")
    mutants = [m for m in read_mutants() if all(word.lower() in f"{m.name} {m.file}".lower() for word in args.words)]
    if not mutants:
        sys.exit(f"no mutant has {' '.join(args.words)!r} in its name or file; leave the words away for all")
    _check_that_copies_are_used()
    tests = tuple(dict.fromkeys(test for mutant in mutants for test in mutant.tests))
    verdicts = []
    with ThreadPoolExecutor(max(args.jobs, 1)) as pool:
        work = [pool.submit(judge_unmutated, tests), *(pool.submit(judge, mutant) for mutant in mutants)]
        for done in as_completed(work):
            verdict = done.result()
            verdicts.append(verdict)
            print(f"{verdict.word:<8}  {verdict.seconds:5.0f} s  {verdict.mutant}", flush=True)
            if verdict.word in (SURVIVED, STALE, BROKEN):
                print(f"          {verdict.why}", flush=True)
    counts = {word: sum(v.word == word for v in verdicts) for word in (KILLED, SURVIVED, STALE, BROKEN)}
    print(", ".join(f"{count} {word}" for word, count in counts.items() if count or word == KILLED))
    return 0 if counts[KILLED] == len(mutants) and not counts[BROKEN] else 1


if __name__ == "__main__":
    sys.exit(main())
