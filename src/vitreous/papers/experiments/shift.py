"""Does an answer survive a shift of the image by a few pixels?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from vitreous.papers.experiment import Claim, Experiment, GridCell, ScaleName
from vitreous.papers.experiments.inside import INSIDE, INSIDE_MATCHED, INSIDE_PILOTS, INSIDE_SEEDS, RESNET, VIT, network
from vitreous.papers.verdict import POSITIVE
from vitreous.papers.works.shift import shift

PATCH_PIXELS = {"laptop": 4, "gpu": 8, "full": 16}


def grid(scale: ScaleName, seeds: Sequence[int]) -> Iterator[GridCell]:
    how, pixels = INSIDE[scale], range(1, PATCH_PIXELS[scale] + 1)
    for arm in (VIT, RESNET):
        for seed in seeds:
            trained = network(scale, arm, seed)
            yield GridCell(arm, seed, trained)
            yield GridCell(arm, seed, shift(trained, how.data, pixels, seen=how.seen))


EXPERIMENT = Experiment(
    name="shift",
    family="E-LOOK",
    title="Does an answer survive a shift?",
    claims=(
        Claim(
            row="C28",
            words="more of a ResNet's answers than of a ViT's stay the same under shifts of one pixel to a patch",
            rule=POSITIVE,
            effects=lambda table: [
                table.difference(RESNET, VIT, "same_answer", name=f"{RESNET} − {VIT}: answers that stay")
            ],
            note="same_answer_by_shift has every shift; over shares of the data: experiment data-inside",
        ),
    ),
    grid=grid,
    seeds={scale: INSIDE_SEEDS[scale] for scale in INSIDE},
    pilots=INSIDE_PILOTS,
    columns=("accuracy", "same_answer"),
    matched=INSIDE_MATCHED,
)
