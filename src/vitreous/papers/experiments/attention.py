"""How far heads look (P1's figures 7 and 11, P2's 3 to 5), and what those see that look near."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from statistics import fmean

import numpy as np

from vitreous.papers.experiment import TRAINED_SCALES, ArmTable, Claim, Effect, Experiment, GridCell, ScaleName
from vitreous.papers.experiments.inside import (
    ALL_SCALES,
    HYBRID,
    INSIDE,
    INSIDE_MATCHED,
    INSIDE_PILOTS,
    INSIDE_SEEDS,
    RELEASED_NOTE,
    RESNET,
    VIT,
    ends,
    look_across,
    looks,
    network,
    of_each,
)
from vitreous.papers.verdict import ONE_APART, POSITIVE, share_less
from vitreous.papers.works.look import LOCAL, WIDE

MOST = 0.5  # of the heads


def grid(scale: ScaleName, seeds: Sequence[int]) -> Iterator[GridCell]:
    yield from looks(scale, seeds, (VIT, HYBRID))


def both_in_first_block(table: ArmTable) -> Iterable[Effect]:
    """The margins by which the widest and the nearest head of the first block pass their limits."""
    above, below = (-WIDE, math.inf), (-math.inf, LOCAL)  # no distance lies below 0
    yield from of_each(table, "distance_max", lambda far: far[0] - WIDE, f"widest head − {WIDE}", bounds=above)
    yield from of_each(table, "distance_min", lambda far: LOCAL - far[0], f"{LOCAL} − nearest head", bounds=below)


def rises_with_depth(table: ArmTable) -> Iterable[Effect]:
    return of_each(table, "distance_mean", slope_over_depth, "slope of distance over depth")


def slope_over_depth(by_block: Sequence[float]) -> float:
    """The slope of a least-squares line, from the first block (0) to the last (1)."""
    return float(np.polyfit(np.linspace(0, 1, len(by_block)), by_block, 1)[0])


def low_mixed_high_wide(table: ArmTable) -> Iterable[Effect]:
    yield from of_each(
        table,
        "distance_spread",
        lambda s: fmean(ends(s, 3)[0]) - fmean(ends(s, 3)[1]),
        "spread of heads, low − high",
    )
    yield from of_each(
        table,
        "distance_wide",
        lambda s: fmean(ends(s, 3)[1]) - MOST,
        f"share of wide heads in high blocks − {MOST}",
        bounds=share_less(MOST),
    )


def hybrid_looks_further(table: ArmTable) -> Iterable[Effect]:
    """In pixels of the image, averaged over the lowest quarter of the blocks."""
    for reading, name in (("distance_mean", "mean"), ("distance_min", "nearest head")):
        pixels = [
            {seed: fmean(ends(far, 4)[0]) * table.values(arm, "distance_even_px")[seed] for seed, far in found.items()}
            for arm, found in ((arm, table.values(arm, reading)) for arm in (HYBRID, VIT))
        ]
        values = {seed: float(far - pixels[1][seed]) for seed, far in pixels[0].items() if seed in pixels[1]}
        yield Effect(f"{HYBRID} − {VIT}: {name}, pixels", values)


def kinds_of_heads(table: ArmTable) -> Iterable[Effect]:
    return of_each(table, "heads_apart", float, "rank correlation", bounds=ONE_APART)


EXPERIMENT = Experiment(
    name="attention",
    family="E-LOOK",
    title="How far do heads look?",
    claims=(
        Claim(
            row="I10",
            words="the first block has a head that looks over the whole image and one that stays near",
            rule=POSITIVE,
            effects=both_in_first_block,
            published="some of 16 heads of the lowest layers span the image, some stay local (P1 figure 7; no digits)",
            note="in units of even attention; the two margins are judged, since a share of seeds has no interval. "
            + RELEASED_NOTE,
        ),
        Claim(
            row="I11",
            words="the deeper a block, the further it looks",
            rule=POSITIVE,
            effects=rises_with_depth,
            published="attention distance grows with depth (P1 figure 7; no digits)",
        ),
        Claim(
            row="C33",
            words="low blocks look both near and far, high blocks almost everywhere far",
            rule=POSITIVE,
            effects=low_mixed_high_wide,
            published="blocks 0 and 1 range from local to global heads, the last two are global (P2 figure 3)",
            note="almost everywhere: more than half of the heads of the highest third pass 0.8 of even attention",
        ),
        Claim(
            row="I12",
            words="after convolutions the lowest heads look further than a plain ViT's",
            rule=POSITIVE,
            effects=hybrid_looks_further,
            published="highly localised heads are less pronounced in hybrids (P1, section 4.5)",
            scales=TRAINED_SCALES,
        ),
        Claim(
            row="Q14",
            words="heads that look differently far look at different things, so that it tells more to sort them",
            rule=POSITIVE,
            effects=kinds_of_heads,
            note="the row's other two questions are unit tests: M18 and I06",
        ),
    ),
    grid=grid,
    seeds=INSIDE_SEEDS,
    pilots=INSIDE_PILOTS,
    columns=("accuracy", "distance_low_quarter", "heads_apart"),
    matched=INSIDE_MATCHED,
    scales=ALL_SCALES,
)


def local_grid(scale: ScaleName, seeds: Sequence[int]) -> Iterator[GridCell]:
    for seed in seeds:
        yield GridCell(VIT, seed, network(scale, VIT, seed))
        yield GridCell(RESNET, seed, network(scale, RESNET, seed))
        yield GridCell(VIT, seed, look_across(scale, VIT, seed))


LOCAL_HEADS = Experiment(
    name="local-heads",
    family="E-LOOK",
    title="What do local heads see?",
    claims=(
        Claim(
            row="C35",
            words="the nearer heads of the first block look, the more they are like low layers of a ResNet",
            rule=POSITIVE,
            effects=lambda table: of_each(
                table,
                "heads_trend_low",
                lambda trend: -trend,
                "−rank correlation of distance and CKA",
                bounds=ONE_APART,
            ),
            published="CKA falls with the distance of the heads, from about 0.6 to 0.25 (P2 figure 5)",
            note="windows of a quarter of the heads; of 4 heads they are single ones",
        ),
    ),
    grid=local_grid,
    seeds={scale: INSIDE_SEEDS[scale] for scale in INSIDE},
    pilots=INSIDE_PILOTS,
    columns=("accuracy", "heads_trend_low"),
    matched=INSIDE_MATCHED,
)
