"""Numbers, names and lists are written one way everywhere."""

import math

import pytest

from vitreous import words


@pytest.mark.parametrize(("share", "text"), [(0.931, "93.1 %"), (1, "100.0 %"), (None, "–"), (math.nan, "–")])
def test_a_share_is_a_percentage(share, text):
    assert words.percent(share) == text


def test_a_percentage_may_have_other_digits_and_stay_on_one_line():
    assert words.unbroken(words.percent(0.5, 0)) == "50\u00a0%"


def test_an_interval_is_two_percentages():
    assert words.percent_range((0.9123, 1)) == "91.2 to 100.0"
    assert words.percent_range(None) == "–"


def test_columns_are_as_wide_as_their_widest_cell():
    assert words.aligned([["name", "n"], ["a", "1,000"]], "lr") == ["name      n", "a     1,000"]
    assert words.aligned([["a", "b"]], "ll") == ["a  b"]


@pytest.mark.parametrize(
    ("number", "whole", "short"),
    [
        (999_999, "999,999", "999,999"),
        (5_717_416, "5.72 million", "5.72 M"),
        (17_563_828_224, "17.6 billion", "17.6 G"),
        (1_543_287_329_792, "1.54 trillion", "1.54e+03 G"),
    ],
)
def test_a_large_number_has_three_digits_and_a_unit(number, whole, short):
    assert words.count(number) == whole
    assert words.count(number, words.SIZE_LETTERS) == short


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.4, "0 s"), (99, "99 s"), (100, "2 min"), (5999, "100 min"), (6000, "1.7 h")]
)
def test_a_time_has_the_unit_that_needs_two_digits(seconds, text):
    assert words.duration(seconds) == text


@pytest.mark.parametrize(("text", "told"), [("it is so", "It is so."), ("Is it?", "Is it?"), ("", ".")])
def test_a_sentence_has_a_capital_and_a_stop(text, told):
    assert words.sentence(text) == told


def test_a_list_is_sorted_and_shortened():
    assert words.few("cab") == "a, b, c"
    assert words.few("fedcba", 2) == "a, b and 4 more"


def test_a_list_holds_names_of_any_bytes():
    assert words.few(["é", b"\xff.png".decode("utf-8", "surrogateescape")]) == "é, \\xff.png"


def test_an_error_is_one_short_line():
    assert words.one_line("a\n  b\x1b[0m") == "a b?[0m"
    assert words.one_line(ValueError()) == "ValueError"
    assert len(words.one_line("x" * 5000)) == 160
