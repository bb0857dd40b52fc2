"""What the first layer learns (P1's figure 7): patch filters and position vectors, against those before training."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

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
    INSIDE,
    INSIDE_PILOTS,
    INSIDE_SEEDS,
    RELEASED_IMAGES,
    RELEASED_SET,
    RELEASED_WEIGHTS,
    VITS,
    looks,
    of_each,
)
from vitreous.papers.verdict import ONE_APART, POSITIVE, TWO_APART, Bounds
from vitreous.papers.works.look import looked, looked_at_start

START = "before training"
ONLY_EMBEDDINGS = ("patch-filters", "positions")


def grid(scale: ScaleName, seeds: Sequence[int]) -> Iterator[GridCell]:
    if scale == RELEASED:
        for group in seeds:
            images: dict[str, Any] = {"seen": RELEASED_IMAGES, "group": group}
            yield GridCell(START, group, looked_at_start("Ti/16", group, RELEASED_SET, ONLY_EMBEDDINGS, **images))
            for arm, name in RELEASED_WEIGHTS.items():
                yield GridCell(arm, group, looked(name, RELEASED_SET, ONLY_EMBEDDINGS, **images))
        return
    networks = INSIDE[scale]
    yield from looks(scale, seeds)
    for seed in seeds:
        yield GridCell(START, seed, looked_at_start(networks.vit, seed, networks.data, ONLY_EMBEDDINGS))


def against_start(table: ArmTable, reading: str, name: str, bounds: Bounds) -> list[Effect]:
    there = [arm for arm in VITS if arm in table.arms]
    return [table.difference(arm, START, reading, "", f"{arm} − {START}: {name}", bounds) for arm in there]


def structured_filters(table: ArmTable) -> Iterable[Effect]:
    yield from against_start(table, "filters_held", "variance held by few components", ONE_APART)
    yield from against_start(table, "filters_smoothness", "likeness of neighbouring weights", TWO_APART)


def near_is_alike(table: ArmTable) -> Iterable[Effect]:
    name = "rank correlation of likeness and nearness"
    yield from of_each(table, "position_nearness", float, name, bounds=ONE_APART)
    yield from against_start(table, "position_nearness", "the same", TWO_APART)


EXPERIMENT = Experiment(
    name="embeddings",
    family="E-LOOK",
    title="What does the first layer learn?",
    claims=(
        Claim(
            row="I02",
            words="training gives patch filters structure: few components hold more, neighbouring weights are alike",
            rule=POSITIVE,
            effects=structured_filters,
            published="the components look like basis functions of fine structure (P1 figure 7; no digits)",
            scales=TRAINED_SCALES,
            note="28 components, or a quarter of them where a patch has too few numbers for 28",
        ),
        Claim(
            row="I04",
            words="the nearer two places, the more alike their position vectors, and more so than before training",
            rule=POSITIVE,
            effects=near_is_alike,
            published="nearer patches have more similar embeddings; rows and columns show (P1 figure 7; no digits)",
            note="of released weights the interval is over five groups of places",
        ),
    ),
    grid=grid,
    seeds=INSIDE_SEEDS,
    pilots=INSIDE_PILOTS,
    columns=("filters_held", "filters_smoothness", "position_nearness", "position_row_column"),
    matched="the same network before and after training",
    scales=ALL_SCALES,
)
