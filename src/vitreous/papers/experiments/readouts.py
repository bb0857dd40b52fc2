"""Class token, mean, maximum or attention: how tokens become one vector, and what that does to them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations
from statistics import fmean

import numpy as np

from vitreous.papers.experiment import PILOTS, ArmTable, Claim, Effect, Experiment, GridCell, ScaleName
from vitreous.papers.experiments import gpu_scale
from vitreous.papers.experiments.small_vit import SAME_BUT_ONE, SETTINGS, rates_of, trained
from vitreous.papers.verdict import ONE_APART, POSITIVE, alike, share_less, unlike
from vitreous.papers.works.look import looked

CLS, MEAN_POOL, MAX, MAP = "CLS", "GAP", "max", "attention (MAP)"
FORCED, UNREAD, RESNET = "a patch", "GAP, CLS unread", "ResNet"
GAP_CHANGE = "pool=gap"
SEEDS: dict[ScaleName, int] = {"laptop": 8, "gpu": gpu_scale.SEEDS, "full": 3}

# Rates -------------------------------------------------------------------------------------------------------------


def rate_arm(pool: str, rate: float) -> str:
    return f"{pool}, rate {rate:g}"


def rates_grid(scale: ScaleName, seeds: Sequence[int]) -> Iterator[GridCell]:
    for pool, change in ((CLS, ""), (MEAN_POOL, GAP_CHANGE)):
        for rate in rates_of(scale):
            for seed in seeds:
                yield GridCell(rate_arm(pool, rate), seed, trained(scale, seed, change, rate=rate))


def best_rates(table: ArmTable, pool: str) -> dict[int, float]:
    """By seed, the rate that is best on dev."""
    rates = [float(arm.rpartition(" ")[2]) for arm in table.arms if arm.startswith(f"{pool}, rate ")]
    on_dev = {rate: table.values(rate_arm(pool, rate), "dev_accuracy") for rate in rates}
    seeds = set.intersection(*(set(column) for column in on_dev.values())) if on_dev else set()
    return {seed: max(rates, key=lambda rate: on_dev[rate][seed]) for seed in sorted(seeds)}


def _accuracy(table: ArmTable, pool: str, rate: float, seed: int) -> float:
    return float(table.values(rate_arm(pool, rate), "accuracy").get(seed, math.nan))


def worse_at_cls_rate(table: ArmTable) -> Iterable[Effect]:
    best = best_rates(table, CLS)
    values = {s: _accuracy(table, CLS, rate, s) - _accuracy(table, MEAN_POOL, rate, s) for s, rate in best.items()}
    return [Effect("CLS − GAP at the best rate of CLS", values, "points", ONE_APART)]


def alike_at_own_rates(table: ArmTable) -> Iterable[Effect]:
    cls, gap = best_rates(table, CLS), best_rates(table, MEAN_POOL)
    seeds = [seed for seed in cls if seed in gap]
    values = {s: _accuracy(table, MEAN_POOL, gap[s], s) - _accuracy(table, CLS, cls[s], s) for s in seeds}
    return [Effect("GAP − CLS, each at its best rate", values, "points", ONE_APART)]


def best_rates_apart(table: ArmTable) -> Iterable[Effect]:
    cls, gap = best_rates(table, CLS), best_rates(table, MEAN_POOL)
    values = {seed: math.log10(gap[seed] / cls[seed]) for seed in cls if seed in gap}
    return [Effect("lg of GAP's best rate over CLS's", values)]


RATES = Experiment(
    name="readout-rates",
    family="E-HEAD",
    title="Is GAP as good as a class token?",
    claims=(
        Claim(
            row="C21",
            part="a",
            words="at the class token's best rate GAP is worse",
            rule=POSITIVE,
            effects=worse_at_cls_rate,
            published="P1 figure 9 (5-shot ImageNet, over training): GAP at CLS's rate well below",
            also=("Q10",),
        ),
        Claim(
            row="C21",
            part="b",
            words="each at its own best rate, GAP and class token are within a point",
            rule=alike(0.01),
            effects=alike_at_own_rates,
            published="P1 figure 9: curves alike",
            also=("Q10",),
        ),
        Claim(
            row="C21",
            part="c",
            words="their best rates differ",
            rule=unlike(0.0),
            effects=best_rates_apart,
            published="P1 figure 9: 8e-4 for CLS, 3e-4 for GAP",
        ),
    ),
    grid=rates_grid,
    columns=("accuracy", "dev_accuracy"),
    matched="parameters within 1 %, images seen; dev chooses the rate",
    seeds=SEEDS,
    pilots=PILOTS,
)

# Kinds of pool -----------------------------------------------------------------------------------------------------


def pools_grid(scale: ScaleName, seeds: Sequence[int]) -> Iterator[GridCell]:
    # a MAP head is as large as a block, so its model has one block less
    changes = {CLS: "", MEAN_POOL: GAP_CHANGE, MAX: "pool=max", MAP: f"pool=map depth={SETTINGS[scale].depth - 1}"}
    for name, change in changes.items():
        for seed in seeds:
            yield GridCell(name, seed, trained(scale, seed, change))


def pools_alike(table: ArmTable) -> Iterable[Effect]:
    return [table.difference(one, other, "accuracy") for one, other in combinations(table.arms, 2)]


POOLS_COMPARED = Experiment(
    name="readouts",
    family="E-HEAD",
    title="Does it matter how tokens become one vector?",
    claims=(
        Claim(
            row="Q04a",
            words="class token, mean, maximum and attention pool are within a point of one another",
            rule=alike(0.01),
            effects=pools_alike,
            published="none for all four",
        ),
    ),
    grid=pools_grid,
    matched=f"{SAME_BUT_ONE}; the attention pool's model has one block less",
    seeds=SEEDS,
    pilots=PILOTS,
)

# The class token ---------------------------------------------------------------------------------------------------


def token_grid(scale: ScaleName, seeds: Sequence[int]) -> Iterator[GridCell]:
    how = SETTINGS[scale]
    for seed in seeds:
        cells = {CLS: trained(scale, seed), FORCED: trained(scale, seed, "pool=middle")}
        cells[UNREAD] = trained(scale, seed, f"{GAP_CHANGE} class_token=true")
        for name, cell in cells.items():
            yield GridCell(name, seed, cell)
            if name != FORCED:
                yield GridCell(name, seed, looked(cell, how.probed, ["probes"], seen=how.seen))


def rise_of_class_probe(table: ArmTable) -> Iterable[Effect]:
    """At the input the class token is the same for all images, so a probe there is at chance."""
    found, chance = table.values(CLS, "probe_class"), table.values(CLS, "probe_chance")
    first = {seed: by_block[0] - chance[seed] for seed, by_block in found.items() if seed in chance}
    rise = {seed: _rise(by_block) for seed, by_block in found.items()}
    bounds = share_less(fmean(chance.values()) if chance else 0.0)
    return [
        Effect("probe on CLS after the first block − chance", first, "points", bounds),
        Effect("gain of a probe on CLS, by block", rise, "points"),
    ]


def _rise(ys: Sequence[float]) -> float:
    return float(np.polyfit(range(len(ys)), ys, 1)[0])


def better_than_a_patch(table: ArmTable) -> Iterable[Effect]:
    return [table.difference(CLS, FORCED, "accuracy", name="read from CLS − read from a patch")]


def better_than_unread(table: ArmTable) -> Iterable[Effect]:
    read, unread = table.values(CLS, "probe_class"), table.values(UNREAD, "probe_class")
    values = {seed: read[seed][-1] - unread[seed][-1] for seed in read if seed in unread}
    return [Effect("last probe on a CLS that is read − on one that is not", values, "points", ONE_APART)]


CLASS_TOKEN = Experiment(
    name="class-token",
    family="E-HEAD",
    title="Why does the class token come to hold the image?",
    claims=(
        Claim(
            row="Q04d",
            part="a",
            words="a probe on the class token starts at chance and rises from block to block",
            rule=POSITIVE,
            effects=rise_of_class_probe,
        ),
        Claim(
            row="Q04d",
            part="b",
            words="a class token, which has no content of its own, is a better place to read than a patch",
            rule=POSITIVE,
            effects=better_than_a_patch,
        ),
        Claim(
            row="Q04d",
            part="c",
            words="a class token that the loss does not read holds less of the class",
            rule=POSITIVE,
            effects=better_than_unread,
        ),
    ),
    grid=token_grid,
    columns=("accuracy",),
    matched=SAME_BUT_ONE,
    seeds=SEEDS,
    pilots=PILOTS,
)

# CLS or GAP: what tokens hold --------------------------------------------------------------------------------------

TOKEN_MEASURES = ("localisation", "probes", "token-probes", "similarity-across")
SAME_METHOD, OTHER_METHOD = "CLS against CLS of another seed", "CLS against GAP"


def tokens_grid(scale: ScaleName, seeds: Sequence[int]) -> Iterator[GridCell]:
    how = SETTINGS[scale]
    cls = {seed: trained(scale, seed) for seed in seeds}
    for seed in seeds:
        gap, resnet = trained(scale, seed, GAP_CHANGE), trained(scale, seed, is_resnet=True)
        for name, cell in ((CLS, cls[seed]), (MEAN_POOL, gap)):
            yield GridCell(name, seed, cell)
            yield GridCell(name, seed, looked(cell, how.probed, TOKEN_MEASURES, against=resnet, seen=how.seen))
        yield GridCell(RESNET, seed, resnet)
        other = cls[seeds[(list(seeds).index(seed) + 1) % len(seeds)]]
        yield GridCell(SAME_METHOD, seed, looked(cls[seed], how.data, ["similarity-across"], against=other))
        yield GridCell(OTHER_METHOD, seed, looked(cls[seed], how.data, ["similarity-across"], against=gap))


def place_lost(table: ArmTable) -> Iterable[Effect]:
    return [table.difference(CLS, MEAN_POOL, "place_hit_all", name="tokens most like their own patch, CLS − GAP")]


def resnet_like(table: ArmTable) -> Iterable[Effect]:
    name = "CKA with the ResNet's last stage, GAP − CLS"
    return [table.difference(MEAN_POOL, CLS, "match_last_stage", "", name, ONE_APART)]


def one_token_and_all(pool: str, table: ArmTable) -> Iterable[Effect]:
    one, every = table.values(pool, "token_probe_last"), table.values(pool, "probe_10_shot_patches")
    values = {seed: one[seed] - every[seed][-1] for seed in one if seed in every}
    return [Effect(f"{pool}: probe on one token − on the mean of patches", values, "points", ONE_APART)]


def method_gap(table: ArmTable, is_late: bool) -> Effect:
    """Block CKA between a CLS and a GAP model, minus that between two CLS models."""
    other, same = (table.values(arm, "match_same") for arm in (OTHER_METHOD, SAME_METHOD))
    values = {}
    for seed in other:
        if seed in same:
            apart = np.subtract(other[seed], same[seed])
            part = apart[-max(len(apart) // 3, 1) :] if is_late else apart[: max(len(apart) // 2, 1)]
            values[seed] = float(part.mean())
    name = f"{'last third' if is_late else 'first half'}: CKA CLS–GAP less CKA CLS–CLS"
    return Effect(name, values, bounds=ONE_APART)


def late_blocks_part(table: ArmTable) -> Iterable[Effect]:
    found = method_gap(table, True)
    values = {seed: -value for seed, value in found.values.items()}
    return [Effect(f"minus the {found.name}", values, bounds=ONE_APART)]


TOKENS = Experiment(
    name="cls-or-gap",
    family="E-HEAD",
    title="Do tokens learn the same with a class token and with GAP?",
    claims=(
        Claim(
            row="C41",
            part="a",
            words="with GAP fewer last tokens are most like the patch they came from",
            rule=POSITIVE,
            effects=place_lost,
            published="P2 figures 9 and 10, by eye",
            also=("Q08",),
            note="all tokens, not the inner ones alone: on a laptop there are 4 inner ones",
        ),
        Claim(
            row="C41",
            part="b",
            words="with GAP the last block is more like a ResNet's last stage",
            rule=POSITIVE,
            effects=resnet_like,
            published="none: study notes say so",
        ),
        Claim(
            row="C42",
            part="a",
            words="with GAP one last token says as much as the mean of all, within 2 points",
            rule=alike(0.02),
            effects=lambda table: one_token_and_all(MEAN_POOL, table),
            published="P2 figure 11, by eye",
            also=("Q08",),
        ),
        Claim(
            row="C42",
            part="b",
            words="with a class token it does not",
            rule=unlike(0.02),
            effects=lambda table: one_token_and_all(CLS, table),
            published="P2 figure D.4: 6 to 10 % against 57 to 58 % with GAP (ViT-B, ImageNet, last tokens)",
            also=("Q08",),
        ),
        Claim(
            row="C44",
            part="a",
            words="up to the middle CLS- and GAP-models are as alike as two CLS-models",
            rule=alike(0.05),
            effects=lambda table: [method_gap(table, False)],
            published="none: P2 shows probes",
            also=("Q08",),
        ),
        Claim(
            row="C44",
            part="b",
            words="in the last third they are less alike",
            rule=POSITIVE,
            effects=late_blocks_part,
            published="none: P2 shows probes",
            also=("Q08",),
        ),
    ),
    grid=tokens_grid,
    columns=("accuracy", "place_hit_all", "token_probe_last", "match_last_stage"),
    matched=SAME_BUT_ONE,
    seeds=SEEDS,
    pilots=PILOTS,
)
