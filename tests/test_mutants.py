"""The list of planted bugs stays true; whether the suite sees them is for `python tests/mutations/run.py`."""

import sys

import pytest
from mutations import run
from mutations.run import BROKEN, KILLED, ROOT, STALE, SURVIVED, Mutant, StaleError, judge, planted, read_mutants

MUTANTS = read_mutants()
LAW = "def test_one_and_one():\n    from vitreous import small\n\n    assert small.add(1, 1) == 2\n"


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_every_mutant_can_still_be_planted(mutant):
    """Its text stands once in its file, and what must fail with it exists."""
    planted(mutant)
    for test in mutant.tests:
        file, _, name = test.partition("::")
        assert f"def {name.partition('[')[0]}(" in (ROOT / file).read_text(encoding="utf-8") if name else file
        assert (ROOT / file).is_file(), test


def test_mutants_are_told_apart_by_their_names():
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)


@pytest.fixture
def project(tmp_path):
    """A package with one law."""
    package = tmp_path / "src" / "vitreous"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "small.py").write_text("def add(a, b):\n    return a + b\n\n\ndef unseen(a, b):\n    return a - b\n")
    (tmp_path / "test_small.py").write_text(LAW)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    return tmp_path


def change(before, after, **other):
    return Mutant(
        **{"name": "m", "file": "src/vitreous/small.py", "before": before, "after": after, "tests": ("test_small.py",)}
        | other
    )


@pytest.mark.parametrize(
    ("mutant", "words"),
    [
        (change("a * b", "a"), "stands 0 times"),
        (change("return a", "return b"), "stands 2 times"),
        (change("a + b", "a + b"), "changes nothing"),
        (change("a + b", "a +"), "no Python"),
        (change("a + b", "a", file="src/vitreous/gone.py"), "is gone"),
    ],
)
def test_a_mutant_that_no_longer_fits_is_named(project, mutant, words):
    with pytest.raises(StaleError, match=f"^m: .*{words}"):
        planted(mutant, project)
    assert judge(mutant, project).word == STALE


def test_a_mutant_is_killed_by_a_test_that_fails_and_by_nothing_else(project):
    assert judge(change("a + b", "a - b"), project).word == KILLED
    assert judge(change("a - b", "a + b"), project).word == SURVIVED
    assert judge(change("a + b", "a - b", tests=("test_gone.py",)), project).word == BROKEN
    assert (project / "src" / "vitreous" / "small.py").read_text().startswith("def add(a, b):\n    return a + b\n")


def test_words_that_name_no_mutant_are_answered(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["run.py"])
    with pytest.raises(SystemExit, match="no mutant has 'no such words'"):
        run.main(["no such words"])
