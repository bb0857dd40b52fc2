"""Which layers are alike (P2's figures 1 and 2): within a ViT and a ResNet, and between them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from vitreous.papers.experiment import (
    RELEASED,
    TRAINED_SCALES,
    ArmTable,
    Claim,
    Effect,
    Experiment,
    GridCell,
    ScaleName,
)
from vitreous.papers.experiments.inside import (
    ALL_SCALES,
    INSIDE_MATCHED,
    INSIDE_PILOTS,
    INSIDE_SEEDS,
    RELEASED_IMAGES,
    RELEASED_SET,
    RESNET,
    VIT,
    VITS,
    between,
    look_across,
    looks,
    of_each,
)
from vitreous.papers.verdict import ONE_APART, POSITIVE
from vitreous.papers.works.look import looked

RELEASED_RESNET = "bit-r50"


def grid(scale: ScaleName, seeds: Sequence[int]) -> Iterator[GridCell]:
    yield from looks(scale, seeds, (VIT, RESNET))
    for seed in seeds:
        if scale == RELEASED:
            cell = looked(RELEASED_RESNET, RELEASED_SET, ["similarity"], seen=RELEASED_IMAGES, group=seed)
            yield GridCell(RESNET, seed, cell)
        else:
            yield GridCell(VIT, seed, look_across(scale, VIT, seed))


def more_uniform(table: ArmTable) -> Iterable[Effect]:
    there = [arm for arm in VITS if arm in table.arms]
    return [
        table.difference(arm, RESNET, "cka_low_high", "", f"{arm} − {RESNET}: CKA of low and high", ONE_APART)
        for arm in there
    ]


def late_has_no_match(table: ArmTable) -> Iterable[Effect]:
    readings = ("match_before_last_third", "match_last_third")
    name = "best CKA with a ResNet layer, first two thirds − last"
    return [between(table, VIT, readings, name, bounds=ONE_APART)]


def early_is_enough(table: ArmTable) -> Iterable[Effect]:
    return of_each(
        table, "match_slope", lambda slope: 1 - slope, "1 − slope of depth in the ViT on depth in the ResNet"
    )


EXPERIMENT = Experiment(
    name="uniformity",
    family="E-LOOK",
    title="Which layers are alike?",
    claims=(
        Claim(
            row="C30",
            words="a ViT's low and high layers are more alike than a ResNet's",
            rule=POSITIVE,
            effects=more_uniform,
            published="a ViT's layers are alike throughout, a ResNet's fall into stages (P2 figure 1; no digits)",
            note="CKA of the lowest and the highest third of all captured sub-layers",
        ),
        Claim(
            row="C31",
            words="a ViT's last third is less like any ResNet layer than its first two thirds",
            rule=POSITIVE,
            effects=late_has_no_match,
            published="the top of a ViT is like no ResNet layer (P2 figure 2; no digits)",
            scales=TRAINED_SCALES,
        ),
        Claim(
            row="C32",
            words="the lower half of a ResNet is matched by a smaller part of a ViT",
            rule=POSITIVE,
            effects=early_is_enough,
            published="half of a ResNet's layers are like the lowest quarter of a ViT's (P2 figure 2)",
            scales=TRAINED_SCALES,
        ),
    ),
    grid=grid,
    seeds=INSIDE_SEEDS,
    pilots=INSIDE_PILOTS,
    columns=("accuracy", "cka_low_high", "cka_mean", "match_last_third", "match_slope"),
    matched=INSIDE_MATCHED,
    scales=ALL_SCALES,
)
