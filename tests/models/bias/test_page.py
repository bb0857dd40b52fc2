"""docs/inductive-bias.md holds what the checks measure, and names tests that exist.

To write the tables anew: VITREOUS_WRITE_DOCS=1 pytest tests/models/bias/test_page.py
"""

import os
import re
from pathlib import Path

import pytest

from .tables import SECTIONS, assumptions

HERE = Path(__file__).parent
DOCS = HERE.parents[2] / "docs"
PAGE = DOCS / "inductive-bias.md"


def split_at(text: str, section: str) -> tuple[str, str, str]:
    """What stands before, in and after a measured section."""
    begin, end = f"<!-- measured: {section} -->\n", f"<!-- end: {section} -->"
    before, rest = text.split(begin)
    inside, after = rest.split(end)
    return before + begin, inside, end + after


@pytest.mark.claim("M58", "M65", "Q05", "C15")
@pytest.mark.parametrize("section", SECTIONS)
def test_a_table_on_the_page_is_the_one_measured_now(section):
    before, inside, after = split_at(PAGE.read_text("utf-8"), section)
    fresh = SECTIONS[section]() + "\n"
    if os.environ.get("VITREOUS_WRITE_DOCS"):
        PAGE.write_text(before + fresh + after, "utf-8")
        inside = fresh
    assert inside == fresh, "measured otherwise now; see the head of this file for how to write the table anew"


@pytest.mark.claim("M65")
def test_each_kind_of_layer_has_its_own_assumptions_and_a_vit_nearly_none():
    """The table's five rows in the words of the argument."""
    rows = assumptions()
    assert list(rows) == ["fully connected", "convolutional", "recurrent", "graph", "ViT"]
    kept = {name: [move for move, word in row[2].items() if word == "holds"] for name, row in rows.items()}
    assert kept["fully connected"] == []
    assert kept["convolutional"] == ["shift on the grid"]
    assert kept["recurrent"] == ["delay in time"]
    assert kept["graph"] == ["any order", "shift on the grid"]  # a shift is one of the orders
    assert kept["ViT"] == []
    for move in ("any order", "shift on the grid"):
        assert rows["ViT"][2][move].startswith("holds without positions, fails")
    assert "attention all-to-all" in rows["ViT"][1]
    assert "MLP itself alone" in rows["ViT"][1]


@pytest.mark.parametrize("page", ["inductive-bias.md", "glossary.md"])
def test_every_test_named_on_the_page_exists(page):
    written = "\n".join(file.read_text("utf-8") for file in HERE.glob("test_*.py"))
    named = set(re.findall(r"`(test_\w+)`", (DOCS / page).read_text("utf-8")))
    assert named <= set(re.findall(r"^def (test_\w+)", written, re.MULTILINE))
    assert named or page == "glossary.md"
