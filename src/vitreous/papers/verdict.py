"""Verdicts by rules fixed before the run: Student's t over seeds, Holm over the claims of a family.

A claim may rest on several effects and then needs every one of them, so its least certain effect decides. One effect
that points clearly the other way contradicts it; since there are several chances for that, the level is shared.
Seeds that agree exactly have no spread to test by; then only their number counts, as in a sign test.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from vitreous.evaluation.student import interval_of_mean, quantile, two_sided

ALPHA = 0.05
NO_SPREAD_BELOW = 1e-6  # of the mean: readings are rounded to six digits
INCONCLUSIVE, NOT_RUN = "INCONCLUSIVE", "NOT RUN"


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

    @property
    def numbers(self) -> list[float]:
        return [value for value in self.values.values() if math.isfinite(value)]

    def interval(self, level: float) -> tuple[float, float] | None:
        return interval_of_mean(self.numbers, level)


@dataclass(frozen=True)
class Judgement:
    """A claim's verdict, and the level of the intervals that decided it."""

    verdict: str
    p: float  # the smallest level at which the claim would be decided
    alpha: float
    effects: tuple[Effect, ...]

    @property
    def level(self) -> float:
        return 1 - self.alpha

    @property
    def is_decided(self) -> bool:
        return self.verdict not in (INCONCLUSIVE, NOT_RUN)


def judge(claims: Sequence[tuple[VerdictRule, Sequence[Effect]]], seeds: Sequence[int] = ()) -> list[Judgement]:
    """The verdict on each claim of a family.  seeds: planned for each claim; with fewer finite values it stays open.

    Holm: of m claims the k-th smallest p is judged at 0.05 / (m − k + 1), and after the first open claim all stay open.
    A claim without effects has not run; it counts among the m.
    """
    planned = seeds or [2] * len(claims)
    found = [_evidence(rule, effects, least) for (rule, effects), least in zip(claims, planned, strict=True)]
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
        judged[i] = Judgement(verdict, min(holds, fails), alpha, tuple(effects))
    return [judged[i] for i in range(len(claims))]


def smallest_effect(spread: float, seeds: int, claims: int) -> float:
    """The effect that this many seeds can tell from 0 at the strictest level.  spread: its deviation over seeds."""
    return math.inf if seeds < 2 else quantile(1 - ALPHA / max(claims, 1), seeds - 1) * spread / math.sqrt(seeds)


def _evidence(rule: VerdictRule, effects: Sequence[Effect], seeds: int) -> tuple[float, float]:
    """The error levels at which the claim holds, and at which it fails."""
    if not effects or any(len(effect.numbers) < seeds for effect in effects):
        return 1.0, 1.0
    distances = [_tested(rule, effect) for effect in effects]
    holds = max(p if distance > 0 else 1.0 for distance, p in distances)
    fails = min(len(effects) * p if distance < 0 else 1.0 for distance, p in distances)
    return holds, min(fails, 1.0)


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
