"""The ledger of claims: every marked test names a row of it, and shown rows are never lost again."""

import ast
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from shared_files import ROOT

from vitreous.papers.page import rows_without_home

LEDGER = tomllib.loads((ROOT / "src" / "vitreous" / "papers" / "claims.toml").read_text())
CLAIMS = {name: row for section in LEDGER["claims"].values() for name, row in section.items()}


def marks(file: Path) -> Iterator[tuple[str, str]]:
    """(place, id) of every pytest.mark.claim("id", ...) in a file, wherever it stands."""
    text = file.read_text()
    for node in ast.walk(ast.parse(text)) if "mark.claim" in text else ():
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.mark.claim":
            place = f"{file.name}:{node.lineno}"
            for argument in node.args:
                assert isinstance(argument, ast.Constant), f"{place}: write the claim's id out"
                yield place, argument.value


@pytest.fixture(scope="module")
def all_marks():
    return [mark for file in sorted((ROOT / "tests").rglob("test_*.py")) for mark in marks(file)]


def test_every_row_has_a_statement_and_known_tags():
    for name, row in CLAIMS.items():
        assert set(row) == {"tags", "statement"}, name
        assert row["statement"].strip(), name
        assert row["tags"], name
        assert set(row["tags"]) <= {"U", "G", "D"}, name


def test_no_row_stands_in_two_sections():
    assert len(CLAIMS) == sum(len(section) for section in LEDGER["claims"].values())


def test_every_mark_names_a_row(all_marks):
    unknown = [f"{place}: {name}" for place, name in all_marks if name not in CLAIMS]
    assert not unknown, f"not in src/vitreous/papers/claims.toml: {unknown}"


def test_the_number_of_shown_rows_is_the_one_written_down(all_marks):
    rows = [name for name, row in CLAIMS.items() if "U" in row["tags"]]
    shown = {name for _, name in all_marks}
    missing = [name for name in rows if name not in shown]
    covered = len(rows) - len(missing)
    print(f"U rows without a test ({len(missing)} of {len(rows)}): {' '.join(missing)}")
    assert covered >= LEDGER["covered"], "rows have lost their test; give it back"
    assert covered <= LEDGER["covered"], f"more rows are shown; set covered = {covered} in claims.toml"


def test_every_g_row_has_an_experiment_and_every_d_row_an_answer():
    """With the U rows above, every row of the ledger has a home."""
    assert [row.name for row in rows_without_home()] == []


def test_marks_are_found_wherever_they_stand(tmp_path):
    file = tmp_path / "test_example.py"
    file.write_text(
        "pytestmark = pytest.mark.claim('M01')\n"
        "@pytest.mark.claim('M02', 'M03')\ndef test_a(): ...\n"
        "@pytest.mark.parametrize('x', [pytest.param(1, marks=pytest.mark.claim('M04'))])\ndef test_b(x): ...\n"
    )
    assert sorted(name for _, name in marks(file)) == ["M01", "M02", "M03", "M04"]
    file.write_text("@pytest.mark.claim(ID)\ndef test_c(): ...\n")
    with pytest.raises(AssertionError, match="write the claim's id out"):
        list(marks(file))
