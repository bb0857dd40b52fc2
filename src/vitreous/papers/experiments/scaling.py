"""P1's appendix D.2: which dimension of a ViT is best to grow: depth, width, or the number of patches?"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from vitreous.papers.experiment import PILOTS, POINTS, ArmTable, Claim, Effect, Experiment, GridCell, ScaleName
from vitreous.papers.experiments import gpu_scale
from vitreous.papers.experiments.networks import (
    ALL,
    LARGE,
    MEDIUM,
    NETWORKS,
    VIT,
    downstream,
    learned,
    with_transfer,
)
from vitreous.papers.verdict import POSITIVE

BASE, DEEPER, WIDER, COARSER = "base", "twice as deep", "wider, at equal cost", "larger patches"
SHAPES: Mapping[ScaleName, Mapping[str, str]] = {
    "laptop": {
        BASE: NETWORKS["laptop"][MEDIUM][VIT],
        DEEPER: "S/8 width=48 depth=8 heads=4 mlp=96 image_size=32 channels=1",
        WIDER: "S/8 width=68 depth=4 heads=4 mlp=136 image_size=32 channels=1",
        COARSER: "S/16 width=48 depth=4 heads=4 mlp=96 image_size=32 channels=1",
    },
    "gpu": {
        BASE: NETWORKS["gpu"][MEDIUM][VIT],
        DEEPER: f"{gpu_scale.VIT_MODEL} depth=12",  # as pre-norm of 12 blocks is written in the family E-ABL
        WIDER: NETWORKS["gpu"][LARGE][VIT],
        COARSER: "S/16 width=128 depth=6 heads=4 mlp=512 image_size=64",
    },
    "full": {
        BASE: "L/32 depth=8 mlp=2048",
        DEEPER: "L/32 depth=16 mlp=2048",
        WIDER: "L/32 depth=8 width=1472 heads=16 mlp=2816",
        COARSER: "L/56 depth=8 mlp=2048",
    },
}


def grid(scale: ScaleName, seeds: Sequence[int]) -> Iterator[GridCell]:
    for shape, network in SHAPES[scale].items():
        for seed in seeds:
            yield from with_transfer(scale, shape, seed, learned(scale, network, ALL, seed))


def depth_over_width(table: ArmTable) -> Iterable[Effect]:
    return [downstream(table).difference(DEEPER, WIDER, "transfer", POINTS)]


def depth_helps(table: ArmTable) -> Iterable[Effect]:
    return [downstream(table).difference(DEEPER, BASE, "transfer", POINTS)]


def small_patches_help(table: ArmTable) -> Iterable[Effect]:
    return [downstream(table).difference(BASE, COARSER, "transfer", POINTS)]


FIGURE_8 = "P1 figure 8: depth improves most, width least; smaller patches improve without more parameters"

EXPERIMENT = Experiment(
    name="scaling",
    family="E-SIZE",
    title="Deeper, wider, or more patches?",
    claims=(
        Claim(
            row="P1-D.2",
            part="a",
            words="a deeper ViT is better than a wider one of equal cost",
            rule=POSITIVE,
            effects=depth_over_width,
            published=FIGURE_8,
            note="P1's networks learned from JFT; ours from the images of this scale",
        ),
        Claim(
            row="P1-D.2",
            part="b",
            words="a ViT of twice the depth is better",
            rule=POSITIVE,
            effects=depth_helps,
            published=FIGURE_8,
            note="P1's networks learned from JFT; ours from the images of this scale",
        ),
        Claim(
            row="P1-D.2",
            part="c",
            words="smaller patches are better",
            rule=POSITIVE,
            effects=small_patches_help,
            published=FIGURE_8,
            note="P1's networks learned from JFT; ours from the images of this scale",
        ),
    ),
    grid=grid,
    columns=("accuracy", "100_shot_fashion", "parameters", "macs"),
    matched="deeper and wider in compute within 10 % (but at gpu scale, in parameters too); steps and images seen",
    seeds={"laptop": 8, "gpu": gpu_scale.SEEDS, "full": 3},
    pilots=PILOTS,
)
