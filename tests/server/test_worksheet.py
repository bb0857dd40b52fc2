"""A worksheet's answers are the model's own numbers, and its questions are about what the model has."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import numpy as np
import pytest
import serving
import torch
from serving import encoded, picture
from tiny_models import BIT, awake
from torch.testing import assert_close

from vitreous.exports import worksheet
from vitreous.exports.worksheet import questions
from vitreous.images.pixels import decode
from vitreous.images.pixels.preprocess import normalise
from vitreous.models import architecture
from vitreous.models.taps import taps

HYBRID = {"stem": "convolutions", "pool": "gap", "image_size": 28, "channels": 1, "patch": 8}


def asked(model):
    return {each.question: each.answer for each in questions(model)}


def answer_to(model, words):
    (answer,) = [answer for question, answer in asked(model).items() if words in question]
    return answer


def count(module):
    return sum(p.numel() for p in module.parameters())


@pytest.mark.parametrize(
    "changes",
    [{}, {"registers": 2}, {"pool": "gap"}, {"patch_bias": False}, {"activation": "swiglu"}, HYBRID],
    ids=["plain", "registers", "gap", "no bias", "swiglu", "hybrid"],
)
def test_answers_are_the_numbers_of_the_model(changes):
    model = serving.tiny(**changes)
    config, block = model.config, model.blocks[0]
    tokens = config.prefix + model.grid[0] * model.grid[1]
    last = {
        "How many numbers does it get": config.channels * config.image_size[0] * config.image_size[1],
        "How many tokens are there": tokens,
        "one head work with": config.encoder.width // config.encoder.heads,
        "How many shares": config.encoder.depth * config.encoder.heads * tokens**2,
    }
    for words, number in last.items():
        assert answer_to(model, words).endswith(f"= {number:,}")
    assert answer_to(model, "One table turns").endswith(f"= {count(model.embedding.projection):,}")
    mlp = count(block.mlp.expand) + count(block.mlp.contract)
    assert answer_to(model, "The MLP of a block").endswith(f"= {mlp:,}")
    share = re.search(r"([\d,]+) ÷ ([\d,]+)", answer_to(model, "What share is that"))
    assert share[2] == f"{count(model):,}"


def test_questions_follow_what_the_model_is():
    plain, hybrid, bit = (" ".join(asked(model)) for model in (serving.tiny(), serving.tiny(**HYBRID), awake(BIT)))
    assert "cuts the image into patches of 4 × 4" in plain
    assert "puts a class token in front" in plain
    assert "convolutions come first" not in plain
    assert "3 convolutions come first" in hybrid
    assert "class token" not in hybrid
    assert "patch" not in hybrid
    assert answer_to(serving.tiny(**HYBRID), "How large is the map") == "28 × 28 → 14 × 14 → 7 × 7 → 4 × 4"
    assert "head" not in bit
    assert "After stage 2" in bit
    assert answer_to(awake(BIT), "mean over all places").endswith("each is the mean of 4 × 3 = 12")


def test_whether_a_shuffle_is_noticed_follows_from_the_positions():
    assert answer_to(serving.tiny(positions="none"), "shuffles").startswith("No.")
    assert answer_to(serving.tiny(), "shuffles").startswith("Yes, it can:")


def test_a_class_that_excludes_no_other_has_no_share_of_all():
    model = serving.tiny()
    assert answer_to(model, "what share would it give") == "1 ÷ 5 = 20 %"
    model.answers = "several"
    assert not [question for question in asked(model) if "what share would it give" in question]


def test_drawing_worksheet_and_facts_are_served():
    with serving.thread() as (caller, _, _):
        reply = caller.get("/api/architecture")
        assert reply.headers["content-type"] == "image/svg+xml"
        assert "patches to tokens" in " ".join(ElementTree.fromstring(reply.body).itertext())
        rows = caller.get("/api/worksheet").json["questions"]
        assert [row["question"] for row in rows] == list(asked(serving.tiny()))
        told = caller.get("/api/model").json["transformer"]
        assert (told["stem"], told["piece"], told["patch"], told["window"]) == ("patch", "patch", [4, 4], None)
        assert (told["front"], told["numbers"], told["pool"]) == (["class token"], 48, "cls")
        assert "no convolutions come before" in caller.send("/api/stem", encoded(picture(1))).error
        assert caller.get("/worksheet").status == 200


def test_maps_of_the_stem_are_those_of_the_model():
    model = serving.tiny(**HYBRID)
    with serving.thread(model, examples=()) as (caller, _, _):
        found = caller.send("/api/stem?maps=4", encoded(picture(1))).json["steps"]
        told = caller.get("/api/model").json["transformer"]
    seen = decode.finish(np.array(picture(1)), model.preprocess)
    with torch.inference_mode(), taps(model, "stem.layers.*") as expected:
        model(normalise(seen, model.preprocess)[None])
    assert [step["shape"] for step in found] == [list(each.shape[1:]) for each in expected.values()]
    for step, tensor in zip(found, expected.values(), strict=True):
        assert len(step["maps"]) == min(4, tensor.shape[1])
        assert_close(torch.tensor(step["maps"]), tensor[0, :4].flatten(1), rtol=1e-4, atol=1e-4)
    assert (told["stem"], told["piece"], told["front"]) == ("convolutions", "place", [])
    assert told["window"] == {"first": [-7, -7], "step": [8, 8], "size": [15, 15]}


TERMS = ("token", "patch", "place", "map", "convolution", "head", "mlp", "norm", "pool", "attention", "class token")
TERMS += ("position", "block", "skip", "bias", "parameter", "stage", "relu", "gelu", "silu", "swiglu", "table")


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"positions": "none", "pool": "gap"},
        HYBRID,
        None,
        *({"pool": "gap", "activation": kind} for kind in ("relu", "silu", "swiglu", "quick-gelu")),
    ],
    ids=str,
)
def test_each_term_of_the_sheet_and_the_drawing_is_explained(changes):
    """By a word of its own or within another's meaning; a model without a part does not explain it."""
    model = awake(BIT) if changes is None else serving.tiny(**changes)
    parts = architecture.parts(model.config)
    used = " ".join([*asked(model), *(f"{part.name} {part.about}" for part in parts)]).lower()
    told = worksheet.words(model)
    explained = " ".join(f"{word} {meaning}" for word, meaning in told.items()).lower()
    assert {term for term in TERMS if term in used and term not in explained} == set()
    assert ("class token" in told) == (changes == {})
    assert ("convolution" in told) == (changes in (HYBRID, None))
