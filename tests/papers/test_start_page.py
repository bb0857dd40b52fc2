"""The page for readers of the papers: its example shows what it says, its counts are those of our models."""

import torch
from doc_blocks import DOCS, code_blocks

from vitreous.models.catalog import blueprint, parse

PAGE = DOCS / "start" / "paper.md"


def test_the_example_cuts_a_skip_where_it_shows():
    """A fresh head is zero, so it would answer 0 with and without the skip."""
    names = {}
    for block in code_blocks(PAGE, "python"):
        exec(compile(block, PAGE.name, "exec"), names)
    assert not names["logits"].any()
    assert torch.cosine_similarity(names["whole"], names["cut"]).max() < 0.9


def test_the_parameters_of_table_1_are_those_of_our_models():
    names = {"B/16": 0, "L/16": 0, "L/32": 0, "H/14": 0, "L/32 representation=1024": 0}
    text = " ".join(PAGE.read_text("utf-8").split())
    for name in names:
        count = sum(parameter.numel() for parameter in blueprint(parse(name)).parameters())
        assert f"{count:,}" in text, name
