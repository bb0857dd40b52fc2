"""Words that are not ours are answered with ours."""

import pytest

from vitreous.errors import advice, nearest

WORDS = ["length", "batch", "peak_lr", "weight_decay", "layer_decay", "policy", "teacher", "eps"]


@pytest.mark.parametrize(
    ("word", "near"),
    [
        ("lenght", ["length"]),  # two letters swapped
        ("bach", ["batch"]),  # one left out
        ("batchh", ["batch"]),  # one put in
        ("peek_lr", ["peak_lr"]),  # one changed
        ("Batch", ["batch"]),
        ("weight-decay", ["weight_decay"]),
        ("decay", ["weight_decay", "layer_decay"]),  # a part of a name
        ("epochz", []),  # far from all, so that none is offered
        ("", []),
    ],
)
def test_the_nearest_words_are_few_typing_mistakes_away(word, near):
    assert sorted(nearest(word, WORDS)) == sorted(near)


def test_fewer_mistakes_come_first_and_no_more_than_asked_for():
    assert nearest("cats", ["bats", "cat", "cats", "hats", "rats"], 2) == ["cats", "bats"]


def test_other_peoples_words_are_told_with_their_value():
    theirs = {"lr": "peak_lr={}", "epochs": 'length="{} epochs"'}
    assert advice("lr", WORDS, theirs=theirs, value=0.1) == "say peak_lr=0.1"
    assert advice("epochz", WORDS, theirs=theirs, value=30) == 'say length="30 epochs"'
    assert advice("bach", WORDS, theirs=theirs) == "near: batch"
    assert advice("frobnicate", ["a", "b"]) == "there are: a, b"
    assert advice("frobnicate", ["a", "b"], otherwise="see the docs") == "see the docs"


def test_a_word_of_ours_that_is_as_near_comes_before_one_of_theirs():
    assert advice("bats", ["bat"], theirs={"bots": "batch={}"}) == "near: bat"
