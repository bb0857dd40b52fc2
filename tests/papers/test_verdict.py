"""Verdicts: rules, Holm, the share of false ones, and what data that flip do."""

import numpy as np
import pytest

from vitreous.papers.verdict import (
    INCONCLUSIVE,
    NOT_RUN,
    NOT_TESTABLE,
    ONE_APART,
    OPEN,
    POSITIVE,
    UNBOUNDED,
    Effect,
    alike,
    judge,
    not_worse,
    share_less,
    smallest_effect,
    unlike,
)


def effect(*values):
    return Effect("a − b", dict(enumerate(values)))


def verdict(rule, *effects):
    return judge([(rule, effects)])[0].verdict


@pytest.mark.parametrize(
    ("rule", "values", "wanted"),
    [
        (POSITIVE, (1.0, 1.1, 0.9), "SUPPORTED"),
        (POSITIVE, (-1.0, -1.1, -0.9), "CONTRADICTED"),
        (POSITIVE, (1.0, -1.1, 0.9), INCONCLUSIVE),
        (alike(1.0), (0.1, -0.1, 0.0), "EQUIVALENT"),
        (alike(1.0), (3.1, 2.9, 3.0), "DIFFERENT"),
        (alike(1.0), (-3.1, -2.9, -3.0), "DIFFERENT"),
        (alike(1.0), (0.9, 1.1, 1.3), INCONCLUSIVE),
        (unlike(1.0), (3.1, 2.9, 3.0), "SUPPORTED"),
        (unlike(1.0), (0.1, -0.1, 0.0), "CONTRADICTED"),
        (not_worse(1.0), (-0.1, 0.1, 0.0), "NOT WORSE"),
        (not_worse(1.0), (-2.1, -2.2, -2.0), "WORSE"),
        (not_worse(1.0), (-0.8, -1.2, -0.4), INCONCLUSIVE),
    ],
)
def test_a_verdict_is_where_the_interval_lies(rule, values, wanted):
    assert verdict(rule, effect(*values)) == wanted


def test_one_seed_decides_nothing_and_no_seed_has_not_run():
    assert verdict(POSITIVE, effect(5.0)) == INCONCLUSIVE
    assert judge([(POSITIVE, [])])[0].verdict == NOT_RUN


def test_seeds_that_agree_exactly_count_as_a_sign_test():
    """Without spread there is no t: three of three on one side is p = 1/4, eight of eight 1/128."""
    assert judge([(POSITIVE, [effect(2.0, 2.0, 2.0)])])[0].p == 0.25
    assert verdict(POSITIVE, effect(2.0, 2.0, 2.0)) == INCONCLUSIVE
    assert verdict(POSITIVE, effect(*[2.0] * 8)) == "SUPPORTED"
    assert verdict(alike(0.01), effect(0.0, 0.0, 0.0)) == INCONCLUSIVE


def test_a_claim_is_open_until_every_planned_seed_has_a_finite_value():
    sure = effect(1.0, 1.1, 0.9)
    assert judge([(POSITIVE, [sure])], [3])[0].verdict == "SUPPORTED"
    assert judge([(POSITIVE, [sure])], [4])[0].verdict == INCONCLUSIVE
    assert judge([(POSITIVE, [effect(1.0, 1.1, 0.9, float("nan"))])], [4])[0].verdict == INCONCLUSIVE


def test_a_claim_needs_every_effect_and_one_against_it_is_enough():
    sure, unsure, against = effect(1.0, 1.1, 0.9), effect(1.0, -1.1, 0.9), effect(-1.0, -1.01, -0.99)
    assert verdict(POSITIVE, sure, sure) == "SUPPORTED"
    assert verdict(POSITIVE, sure, unsure) == INCONCLUSIVE
    assert verdict(POSITIVE, sure, against) == "CONTRADICTED"


SURE, UNSURE, AGAINST = effect(1.0, 1.1, 0.9), effect(1.0, -1.1, 0.9), effect(-1.0, -1.01, -0.99)


@pytest.mark.parametrize(
    ("effects", "words"),
    [
        ([SURE], "SUPPORTED"),
        ([SURE, SURE], "SUPPORTED: both effects for"),
        ([SURE] * 4, "SUPPORTED: all 4 effects for"),
        ([SURE, AGAINST, SURE, SURE], "CONTRADICTED: 1 of 4 effects against, 3 for"),
        ([UNSURE, AGAINST], "CONTRADICTED: 1 of 2 effects against, 1 open"),
        ([SURE, UNSURE, UNSURE], "INCONCLUSIVE: 2 of 3 effects open, 1 for"),
        ([], "NOT RUN"),
    ],
)
def test_a_verdict_on_several_effects_counts_them(effects, words):
    assert judge([(POSITIVE, effects)])[0].in_words == words


def test_the_deciding_effect_is_the_one_against_else_the_least_sure():
    surer = effect(1.0, 1.001, 0.999)
    for others, wanted in (([SURE, AGAINST], AGAINST), ([SURE, UNSURE], UNSURE), ([SURE, surer], SURE)):
        assert judge([(POSITIVE, [surer, *others])])[0].deciding.effect == wanted


def test_a_claim_that_waits_for_a_surer_one_says_so():
    first, second = effect(1.0, 1.31, 0.7), effect(1.0, 1.36, 0.64)
    found = judge([(POSITIVE, [second]), (POSITIVE, [first])])
    words = [each.in_words for each in found]
    assert words == ["INCONCLUSIVE: a surer claim of its family is open", "INCONCLUSIVE"]


def test_a_claim_that_cannot_be_tested_keeps_its_effects_and_decides_nothing():
    found = judge([(POSITIVE, [AGAINST])])[0].untestable("at laptop scale all data are few")
    assert found.in_words == "NOT TESTABLE: at laptop scale all data are few"
    assert found.verdict == NOT_TESTABLE
    assert not found.is_decided
    assert found.effects == (AGAINST,)


def test_an_interval_leaves_out_the_critical_value_where_its_effect_is_decided():
    """Also among several effects, where one against them is judged at a stricter level."""
    rng = np.random.default_rng(2)
    for _ in range(200):
        effects = [effect(*rng.normal(rng.normal(), 0.4, 4)) for _ in range(3)]
        for one in judge([(POSITIVE, effects), (POSITIVE, effects[:1])])[0].weighed:
            low, high = one.interval
            assert (low <= 0 <= high) == (one.side == OPEN)


def test_an_interval_ends_where_its_numbers_do_and_the_verdict_does_not_change():
    """A mean outside the bounds is impossible, so cutting it off loses no coverage."""
    values = {0: 0.9, 1: 0.1, 2: -0.2}
    free, share, less = (Effect("a − b", values, "", bounds) for bounds in (UNBOUNDED, ONE_APART, share_less(0.3)))
    low, high = free.interval(0.95)
    assert low < -1
    assert high > 1
    assert share.interval(0.95) == ONE_APART
    assert less.interval(0.95) == (-0.3, 0.7)
    found = [judge([(POSITIVE, [one])])[0] for one in (free, share, less)]
    assert len({(each.verdict, each.p) for each in found}) == 1
    narrow = Effect("a − b", {0: 0.1, 1: 0.11, 2: 0.12}, "points", ONE_APART)
    assert narrow.interval(0.95) == Effect("a − b", narrow.values).interval(0.95)


def test_a_verdict_flips_when_the_data_flip():
    rng = np.random.default_rng(0)
    for _ in range(50):
        values = rng.normal(rng.normal(), 0.3, 4)
        words = {"SUPPORTED": "CONTRADICTED", "CONTRADICTED": "SUPPORTED", INCONCLUSIVE: INCONCLUSIVE}
        assert verdict(POSITIVE, effect(*-values)) == words[verdict(POSITIVE, effect(*values))]


def test_holm_asks_more_of_a_claim_among_many():
    one = effect(1.0, 1.3, 0.7)  # p = 0.029
    open_claims = [(POSITIVE, [effect(1.0, -1.0, 0.1)])] * 3
    assert verdict(POSITIVE, one) == "SUPPORTED"
    assert judge([(POSITIVE, [one]), *open_claims])[0].verdict == INCONCLUSIVE
    found = judge([(POSITIVE, [effect(1.0, 1.001, 0.999)]), (POSITIVE, [one])])
    assert [each.verdict for each in found] == ["SUPPORTED", "SUPPORTED"]  # the second at the full level
    assert [round(each.alpha, 3) for each in found] == [0.025, 0.05]


def test_after_the_first_open_claim_all_are_open():
    """p of 0.030 and 0.041: the second would pass alone at 0.05, but the first is open at 0.025."""
    first, second = effect(1.0, 1.31, 0.7), effect(1.0, 1.36, 0.64)
    found = judge([(POSITIVE, [second]), (POSITIVE, [first])])
    assert 0.025 < found[1].p < found[0].p < 0.05
    assert [each.verdict for each in found] == [INCONCLUSIVE, INCONCLUSIVE]


@pytest.mark.parametrize("seeds", [3, 5])
@pytest.mark.parametrize("claims", [1, 4])
def test_null_effects_are_found_in_at_most_one_of_twenty_experiments(seeds, claims):
    """Over 2,000 experiments of null effects, the share with any false verdict stays near 5 % (± 1.5)."""
    rng = np.random.default_rng(7)
    values = rng.normal(0, 1, (2000, claims, seeds))
    wrong = sum(
        any(found.is_decided for found in judge([(POSITIVE, [effect(*one)]) for one in each])) for each in values
    )
    assert wrong / 2000 < 0.065


@pytest.mark.parametrize("seeds", [3, 5])
def test_planted_effects_of_known_size_are_found(seeds):
    """An effect of twice what the seeds can tell from 0 is found in most experiments, with the right sign."""
    rng = np.random.default_rng(1)
    size = 2 * smallest_effect(1.0, seeds, 1)
    verdicts = [verdict(POSITIVE, effect(*rng.normal(size, 1, seeds))) for _ in range(500)]
    assert verdicts.count("SUPPORTED") > 400
    assert verdicts.count("CONTRADICTED") == 0


def test_a_true_difference_of_the_margin_is_rarely_called_equivalent():
    rng = np.random.default_rng(3)
    wrong = sum(verdict(alike(1.0), effect(*rng.normal(1.0, 0.5, 3))) == "EQUIVALENT" for _ in range(1000))
    assert wrong / 1000 < 0.04  # one side of a two-sided interval of 95 %


def test_the_smallest_effect_falls_with_seeds_and_rises_with_claims():
    assert smallest_effect(1.0, 5, 1) < smallest_effect(1.0, 3, 1) < smallest_effect(1.0, 3, 4)
    assert smallest_effect(1.0, 1, 1) == float("inf")
