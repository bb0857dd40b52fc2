"""docs/evidence/inductive-bias.md holds what the checks measure, and names tests that exist."""

import re
from pathlib import Path

import pytest
from doc_blocks import DOCS, assert_block

from .tables import SECTIONS, assumptions

HERE = Path(__file__).parent
PAGE = DOCS / "evidence" / "inductive-bias.md"


@pytest.mark.claim("M58", "M65", "Q05", "C15")
@pytest.mark.parametrize("section", SECTIONS)
def test_a_table_on_the_page_is_the_one_measured_now(section):
    assert_block(PAGE, section, SECTIONS[section]() + "\n")


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


@pytest.mark.parametrize("page", ["evidence/inductive-bias.md", "reference/glossary.md"])
def test_every_test_named_on_the_page_exists(page):
    written = "\n".join(file.read_text("utf-8") for file in HERE.glob("test_*.py"))
    named = set(re.findall(r"`(test_\w+)`", (DOCS / page).read_text("utf-8")))
    assert named <= set(re.findall(r"^def (test_\w+)", written, re.MULTILINE))
    assert named or page == "reference/glossary.md"
