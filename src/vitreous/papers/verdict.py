"""Verdicts by written rules: Student's t over seeds, Holm over the claims of a family.

A claim may rest on several effects and then needs every one of them, so its least certain effect decides. One effect
that points clearly the other way contradicts it; since there are several chances for that, the level is shared.
Seeds that agree exactly have no spread to test by; then only their number counts, as in a sign test.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from vitreous.evaluation.student import interval_of_mean, quantile, two_sided

ALPHA = 0.05
NO_SPREAD_BELOW = 1e-6  # of the mean: readings are rounded to six digits
INCONCLUSIVE, NOT_RUN, NOT_TESTABLE = "INCONCLUSIVE", "NOT RUN", "NOT TESTABLE"
Side = Literal["for", "against", "open"]
FOR: Side = "for"
AGAINST: Side = "against"
OPEN: Side = "open"
Bounds = tuple[float, float]
UNBOUNDED: Bounds = (-math.inf, math.inf)
ONE_APART: Bounds = (-1.0, 1.0)  # a difference of two shares or of two CKAs; a correlation
TWO_APART: Bounds = (-2.0, 2.0)  # a difference of two such


@dataclass(frozen=True)
class VerdictRule:
    """What a claim says about an effect. An interval must exclude the critical values to decide it."""

    words: str  # with {m} for the margin
    holds: str  # the verdict if the effect is as claimed
    fails: str
    margin: float = 0.0
    is_two_sided: bool = False  # critical values ±margin, not the margin alone
    is_inside: bool = False  # the claim is that the effect lies between them

    def distance(self, mean: float) -> float:
        """How far the mean is from the nearest critical value; above 0 on the claimed side."""
        far = abs(mean) - self.margin if self.is_two_sided else mean - self.margin
        return -far if self.is_inside else far


POSITIVE = VerdictRule("the effect is above 0", "SUPPORTED", "CONTRADICTED")


def alike(margin: float) -> VerdictRule:
    return VerdictRule(
        "the effect lies within ±{m}", "EQUIVALENT", "DIFFERENT", margin, is_two_sided=True, is_inside=True
    )


def unlike(margin: float) -> VerdictRule:
    return VerdictRule("the effect lies outside ±{m}", "SUPPORTED", "CONTRADICTED", margin, is_two_sided=True)


def not_worse(margin: float) -> VerdictRule:
    return VerdictRule("the effect is above −{m}", "NOT WORSE", "WORSE", -margin)


@dataclass(frozen=True)
class Effect:
    """One number for each seed: a paired difference, a slope, a correlation."""

    name: str
    values: Mapping[int, float]  # by seed
    unit: str = ""  # points: a share, shown times 100
    bounds: Bounds = UNBOUNDED  # no value can lie outside

    @property
    def numbers(self) -> list[float]:
        return [value for value in self.values.values() if math.isfinite(value)]

    @property
    def has_spread(self) -> bool:
        """False if the seeds agree exactly, or there is one alone."""
        numbers = self.numbers
        return max(numbers) - min(numbers) > NO_SPREAD_BELOW * max(map(abs, numbers))

    def interval(self, level: float) -> tuple[float, float] | None:
        """Student's, cut off where no mean can lie: that loses no coverage."""
        found = interval_of_mean(self.numbers, level)
        low, high = self.bounds
        return None if found is None else (max(found[0], low), min(found[1], high))


def share_less(number: float) -> Bounds:
    """The bounds of a share less a number, such as its chance."""
    return -number, 1 - number


@dataclass(frozen=True)
class Weighed:
    """An effect and what it says of its claim."""

    effect: Effect
    side: Side
    level: float  # of the interval that decides it: stricter on the other side, where several effects may contradict
    is_claimed_side: bool
    p: float

    @property
    def interval(self) -> tuple[float, float] | None:
        return self.effect.interval(self.level)


@dataclass(frozen=True)
class Judgement:
    """A claim's verdict, and the level of the intervals that decided it."""

    verdict: str
    p: float  # the smallest level at which the claim would be decided
    alpha: float
    weighed: tuple[Weighed, ...]
    why: str = ""  # no verdict can be expected

    @property
    def effects(self) -> tuple[Effect, ...]:
        return tuple(one.effect for one in self.weighed)

    @property
    def level(self) -> float:
        return 1 - self.alpha

    @property
    def is_decided(self) -> bool:
        return self.verdict not in (INCONCLUSIVE, NOT_RUN, NOT_TESTABLE)

    @property
    def is_judged(self) -> bool:
        """True if it has run where it can be tested, whether or not that decides it."""
        return self.verdict not in (NOT_RUN, NOT_TESTABLE)

    @property
    def in_words(self) -> str:
        """The verdict, why there is none, or how many of several effects are for and against."""
        about = [self.why, self.tally if self.is_judged and len(self.weighed) > 1 else ""]
        about += ["a surer claim of its family is open"] if self.is_held_back else []
        words = "; ".join(part for part in about if part)
        return f"{self.verdict}: {words}" if words else self.verdict

    @property
    def is_held_back(self) -> bool:
        """It would be decided, but Holm's rule stopped before it."""
        return self.verdict == INCONCLUSIVE and self.p < self.alpha

    @property
    def tally(self) -> str:
        """`1 of 4 effects against, 3 for`; what decides comes first."""
        counts, count = Counter(one.side for one in self.weighed), len(self.weighed)
        first, *others = sorted(counts, key=(AGAINST, OPEN, FOR).index)
        if not others:
            return f"{'both' if count == 2 else f'all {count}'} effects {first}"
        rest = [f"{counts[side]} {side}" for side in others]
        return ", ".join([f"{counts[first]} of {count} effects {first}", *rest])

    @property
    def deciding(self) -> Weighed:
        """The effect that speaks most clearly against the claim; if none does, the one that is least sure."""
        return min(self.weighed, key=lambda one: (one.is_claimed_side, -one.p if one.is_claimed_side else one.p))

    def untestable(self, why: str) -> Judgement:
        """The same effects without a verdict."""
        return replace(self, verdict=NOT_TESTABLE, why=why)


def judge(claims: Sequence[tuple[VerdictRule, Sequence[Effect]]], seeds: Sequence[int] = ()) -> list[Judgement]:
    """The verdict on each claim of a family.  seeds: planned for each claim; with fewer finite values it stays open.

    Holm: of m claims the k-th smallest p is judged at 0.05 / (m − k + 1), and after the first open claim all stay open.
    A claim without effects has not run; it counts among the m.
    """
    planned = seeds or [2] * len(claims)
    tested = [_tested_all(rule, effects, least) for (rule, effects), least in zip(claims, planned, strict=True)]
    found = [_evidence(each) for each in tested]
    order = sorted(range(len(claims)), key=lambda i: min(found[i]))
    judged: dict[int, Judgement] = {}
    is_open = False
    for k, i in enumerate(order):
        rule, effects = claims[i]
        alpha = ALPHA / (len(claims) - k)
        holds, fails = found[i]
        is_open = is_open or min(holds, fails) >= alpha
        verdict = INCONCLUSIVE if is_open else rule.holds if holds <= fails else rule.fails
        verdict = verdict if any(len(effect.numbers) > 0 for effect in effects) else NOT_RUN
        weighed = [_weighed(one, *test, alpha, len(effects)) for one, test in zip(effects, tested[i], strict=True)]
        judged[i] = Judgement(verdict, min(holds, fails), alpha, tuple(weighed))
    return [judged[i] for i in range(len(claims))]


def smallest_effect(spread: float, seeds: int, claims: int) -> float:
    """The effect that this many seeds can tell from 0 at the strictest level.  spread: its deviation over seeds."""
    return math.inf if seeds < 2 else quantile(1 - ALPHA / max(claims, 1), seeds - 1) * spread / math.sqrt(seeds)


def _tested_all(rule: VerdictRule, effects: Sequence[Effect], seeds: int) -> list[tuple[float, float]]:
    """Each effect's distance and p. While one of them waits for a seed, none is certain."""
    tested = [_tested(rule, effect) for effect in effects]
    is_whole = all(len(effect.numbers) >= seeds for effect in effects)
    return tested if is_whole else [(distance, 1.0) for distance, _ in tested]


def _evidence(distances: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """The error levels at which the claim holds, and at which it fails.  distances: each effect's, and its p."""
    if not distances:
        return 1.0, 1.0
    holds = max(p if distance > 0 else 1.0 for distance, p in distances)
    fails = min(len(distances) * p if distance < 0 else 1.0 for distance, p in distances)
    return holds, min(fails, 1.0)


def _weighed(effect: Effect, distance: float, p: float, alpha: float, effects: int) -> Weighed:
    """effects: of the claim; each of them is a chance to contradict it."""
    limit = alpha if distance > 0 else alpha / effects
    side = OPEN if p >= limit else FOR if distance > 0 else AGAINST
    return Weighed(effect, side, 1 - limit, distance > 0, p)


def _tested(rule: VerdictRule, effect: Effect) -> tuple[float, float]:
    """(distance from the critical value, its p): p < α where the interval of level 1 − α leaves the value out."""
    numbers = np.asarray(effect.numbers, np.float64)
    if len(numbers) < 2:
        return 0.0, 1.0
    distance, error = rule.distance(float(numbers.mean())), float(numbers.std(ddof=1)) / math.sqrt(len(numbers))
    if abs(distance) < NO_SPREAD_BELOW:
        return 0.0, 1.0
    if error < NO_SPREAD_BELOW * abs(distance):
        return distance, 2.0 ** (1 - len(numbers))
    return distance, two_sided(distance / error, len(numbers) - 1)
