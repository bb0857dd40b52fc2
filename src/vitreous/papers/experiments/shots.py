"""Few shots of unseen classes: how accuracy depends on the classes, the examples, and what the features hold."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from vitreous.evaluation.accuracy import above_chance
from vitreous.papers.experiment import (
    POINTS,
    ArmTable,
    Cell,
    Claim,
    Effect,
    Experiment,
    GridCell,
    ScaleName,
    rank_correlation,
)
from vitreous.papers.experiments import gpu_scale
from vitreous.papers.experiments.transfer_runs import MIXED, OWN, THEIR_KIN, TRANSFER, TransferScale, checkpoint
from vitreous.papers.verdict import ONE_APART, POSITIVE
from vitreous.papers.works.episodes import episodic, reading_name
from vitreous.papers.works.train import train

UNTRAINED, RELEASED = "untrained", "DeiT-Ti, released"


@dataclass(frozen=True)
class ShotScale:
    """data, unseen: the classes of the episodes.  learned: those of the checkpoints.  untrained: their network."""

    data: str
    unseen: tuple[str, ...] | None
    learned: tuple[str, ...] | None
    untrained: str
    ways: tuple[int, ...]
    shots: tuple[int, ...]
    lengths: tuple[int, ...]  # of the checkpoints


SHOTS: dict[ScaleName, ShotScale] = {
    "laptop": ShotScale(
        "fashion", THEIR_KIN, MIXED, TRANSFER["laptop"].model, (2, 3, 4), (1, 2, 5, 10, 20), (10, 30, 100, 200)
    ),
    "gpu": ShotScale(
        "imagenette",
        None,
        None,
        f"{gpu_scale.VIT_MODEL} classes=100",
        (2, 5, 10),
        (1, 2, 5, 10, 20),
        (gpu_scale.FEW_STEPS, gpu_scale.SOME_STEPS, gpu_scale.MANY_STEPS, gpu_scale.STEPS),
    ),
    "full": ShotScale("pets", None, None, "B/16 classes=21843", (2, 5, 10, 20), (1, 2, 5, 10, 20), (3, 10, 30, 90)),
}


def shot_checkpoint(how: TransferScale, seed: int, learned: tuple[str, ...] | None, length: int) -> Cell:
    """Like the checkpoints of transfer, but each seed has its own at every scale."""
    if how.has_shared_recipe:
        return checkpoint(how, seed, learned, length=length)
    return train(how.model, how.up, seed, classes=learned, length=f"{length} {how.length_unit}", **how.pretraining)


def grid(scale: ScaleName, seeds: Sequence[int]) -> Iterator[GridCell]:
    how, runs = SHOTS[scale], OWN[scale]
    drawn: dict[str, Any] = {"ways": how.ways, "shots": how.shots, "classes": how.unseen}
    for seed in seeds:
        yield GridCell(UNTRAINED, seed, episodic(how.untrained, how.data, seed=seed, **drawn))
        for length in how.lengths:
            trained = shot_checkpoint(runs, seed, how.learned, length)
            yield GridCell(f"{length} {runs.length_unit}", seed, trained)
            yield GridCell(f"{length} {runs.length_unit}", seed, episodic(trained, how.data, **drawn))
    if scale == "gpu":
        yield GridCell(RELEASED, 0, released_episodes())


def released_episodes() -> Cell:
    """What benchmarks/ways_shots.py measured. ImageNet has many of the breeds, so they are not unseen."""
    return episodic("deit-tiny", "pets", ways=(2, 5, 10, 20), shots=(1, 2, 5, 10, 20))


def _ours(table: ArmTable) -> list[str]:
    return [arm for arm in table.arms if arm != RELEASED]


def _drawn(table: ArmTable) -> tuple[list[int], list[int]]:
    """The ways and shots in the readings of our own networks."""
    names = {name for arm in _ours(table) for row in table.rows[arm].values() for name in row if "_way_" in name}
    pairs = [name.removesuffix("_shot").split("_way_") for name in names]
    return sorted({int(ways) for ways, _ in pairs}), sorted({int(shots) for _, shots in pairs})


def _slopes(
    table: ArmTable, name: str, points: list[tuple[str, float]], of: Callable[[float, int], float]
) -> list[Effect]:
    """For each checkpoint, the slope of a function of its readings over `points`, seed by seed."""
    effects = []
    for arm in _ours(table):
        columns = [table.values(arm, reading) for reading, _ in points]
        seeds = [seed for seed in columns[0] if all(seed in column for column in columns)] if columns else []
        xs = [x for _, x in points]
        ys = {seed: [of(column[seed], i) for i, column in enumerate(columns)] for seed in seeds}
        slopes = {seed: float(np.polyfit(xs, y, 1)[0]) for seed, y in ys.items()}
        effects.append(Effect(f"{arm}: {name}", slopes, POINTS))
    return effects


def falls_with_ways(table: ArmTable) -> Iterable[Effect]:
    ways, shots = _drawn(table)
    points = [(reading_name(k, _middle(shots)), math.log2(k)) for k in ways]
    return _slopes(table, "fall for twice the classes", points, lambda right, i: -right)


def corrected_falls_with_ways(table: ArmTable) -> Iterable[Effect]:
    ways, shots = _drawn(table)
    points = [(reading_name(k, _middle(shots)), math.log2(k)) for k in ways]
    return _slopes(table, "fall for twice the classes", points, lambda right, i: -above_chance(right, 1 / ways[i]))


def rises_with_shots(table: ArmTable) -> Iterable[Effect]:
    ways, shots = _drawn(table)
    points = [(reading_name(ways[1], n), math.log2(n)) for n in shots] if ways else []
    return _slopes(table, "rise for twice the examples", points, lambda right, i: right)


def _middle(shots: Sequence[int]) -> int:
    return shots[len(shots) // 2] if shots else 0


def accuracy_goes_with_likeness(table: ArmTable) -> Iterable[Effect]:
    """Rank correlation over the checkpoints of each seed."""
    ways, shots = _drawn(table)
    arms = _ours(table)
    reading = reading_name(ways[1], _middle(shots)) if ways else ""
    right, alike = ([table.values(arm, name) for arm in arms] for name in (reading, "likeness_gap"))
    seeds = [seed for seed in alike[0] if all(seed in column for column in (*right, *alike))] if arms else []
    values = {
        seed: rank_correlation([column[seed] for column in right], [column[seed] for column in alike]) for seed in seeds
    }
    return [Effect("rank correlation over checkpoints", values, bounds=ONE_APART)]


EXPERIMENT = Experiment(
    name="shots",
    family="E-SHOT",
    title="Few shots of unseen classes",
    claims=(
        Claim(
            row="F04",
            part="a",
            words="accuracy falls as the classes of a task grow",
            rule=POSITIVE,
            effects=falls_with_ways,
            note="5 examples of each class; chance falls too, from 1/2",
        ),
        Claim(
            row="F04",
            part="b",
            words="accuracy falls as the classes grow, chance taken off",
            rule=POSITIVE,
            effects=corrected_falls_with_ways,
            note="0 for guessing, 1 for all right",
        ),
        Claim(
            row="F05",
            words="accuracy rises as the examples of each class grow",
            rule=POSITIVE,
            effects=rises_with_shots,
        ),
        Claim(
            row="F07",
            words="the better a checkpoint with few shots, the more alike the images of a class are to it",
            rule=POSITIVE,
            effects=accuracy_goes_with_likeness,
            note="mean cosine within classes minus between classes, on unseen classes",
        ),
    ),
    grid=grid,
    seeds={"laptop": 3, "gpu": gpu_scale.SEEDS, "full": 3},
    columns=("2_way_5_shot", "3_way_5_shot", "5_way_5_shot", "10_way_5_shot", "likeness_gap"),
    matched="the same 600 episodes for every checkpoint; network and recipe",
)
