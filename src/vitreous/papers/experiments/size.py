"""BiT's and P1's question of size: do data and model have to grow together, and which network buys most with compute?

Three experiments on one grid: `size` (T18, T20, T21, C08), `size-small` (T19) and `compute` (C10, C11).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from vitreous.papers.experiment import PILOTS, POINTS, ArmTable, Claim, Effect, Experiment, GridCell, ScaleName
from vitreous.papers.experiments import gpu_scale
from vitreous.papers.experiments.data import TOO_FEW_DATA
from vitreous.papers.experiments.networks import (
    ALL,
    EQUAL_COMPUTE,
    HYBRID,
    KINDS,
    LARGE,
    LEARNING,
    MEDIUM,
    NETWORKS,
    RESNET,
    SIZE_NAMES,
    SMALL,
    VIT,
    arm_of,
    by_data,
    downstream,
    learned,
    shares_in,
    with_transfer,
)
from vitreous.papers.verdict import ONE_APART, POSITIVE, TWO_APART, alike

SIZED_SHARES = LEAST, MORE, MOST = ("3 %", "30 %", ALL)
PAIR = (VIT, RESNET)
SEEDS: dict[ScaleName, int] = {"laptop": 8, "gpu": gpu_scale.SEEDS, "full": 3}


def grid(scale: ScaleName, seeds: Sequence[int], shares: Sequence[str] = SIZED_SHARES) -> Iterator[GridCell]:
    for seed in seeds:
        for size in SIZE_NAMES:
            for kind in KINDS:
                for share in asked(scale, kind, size, shares):
                    trained = learned(scale, NETWORKS[scale][size][kind], share, seed)
                    yield from with_transfer(scale, arm_of(kind, share, size), seed, trained)


def asked(scale: ScaleName, kind: str, size: str, shares: Sequence[str]) -> Sequence[str]:
    """Except at full scale, small and large networks learn from the least and all data, hybrids from all (C11)."""
    fewer = (ALL,) if kind == HYBRID else (LEAST, ALL)
    return [share for share in shares if scale == "full" or size == MEDIUM or share in fewer]


def by_seed(table: ArmTable, arms: Sequence[str], reading: str) -> dict[int, list[float]]:
    """The reading of each arm, for every seed that has them all."""
    columns = [downstream(table).values(arm, reading) for arm in arms]
    seeds = [seed for seed in (columns[0] if columns else ()) if all(seed in column for column in columns)]
    return {seed: [float(column[seed]) for column in columns] for seed in seeds}


def by_size(kind: str, share: str = ALL) -> list[str]:
    return [arm_of(kind, share, size) for size in SIZE_NAMES]


def slope(xs: Sequence[float], ys: Sequence[float]) -> float:
    return float(np.polyfit(xs, ys, 1)[0])


# size ----------------------------------------------------------------------------------------------------------------


def data_helps_each(table: ArmTable) -> Iterable[Effect]:
    found = downstream(table)
    return [
        found.slope(f"{size} {kind}, per ten times the data", by_data(table, kind, size), "transfer", POINTS)
        for size in SIZE_NAMES
        for kind in KINDS
        if len(shares_in(table, kind, size)) > 1
    ]


def data_helps_large_more(table: ArmTable) -> Iterable[Effect]:
    """How the slope over log data changes with log compute: again a slope."""
    return [
        Effect(f"{kind}: gain by ten times the data, per ten times the compute", _interaction(table, kind), POINTS)
        for kind in PAIR
    ]


def _interaction(table: ArmTable, kind: str) -> dict[int, float]:
    shares = shares_in(table, kind, SMALL)  # the middle size has one more
    logs = list(shares.values())
    cells = by_seed(table, [arm_of(kind, share, size) for size in SIZE_NAMES for share in shares], "transfer")
    costs = by_seed(table, by_size(kind), "macs")
    out = {}
    for seed in (seed for seed in cells if seed in costs):
        rows = np.reshape(cells[seed], (len(SIZE_NAMES), -1))
        out[seed] = slope([math.log10(cost) for cost in costs[seed]], [slope(logs, list(row)) for row in rows])
    return out


def alone_may_hurt(table: ArmTable) -> Iterable[Effect]:
    found = downstream(table)
    small, large = ([arm_of(RESNET, share, size) for share in (LEAST, MOST)] for size in (SMALL, LARGE))
    yield found.difference(small[0], large[0], "transfer", POINTS, f"small − large ResNet, {LEAST}")

    def more(low: float, high: float, large_low: float, large_high: float) -> float:
        return (large_high - large_low) - (high - low)

    name = "gain by data, large − small ResNet"
    yield found.combined(name, [*small, *large], "transfer", more, POINTS, TWO_APART)


def grows_with_both(table: ArmTable) -> Iterable[Effect]:
    for kind in PAIR:
        yield table.slope(f"{kind}, per ten times the data", by_data(table, kind), "accuracy", POINTS)
    for kind in PAIR:
        accuracy, cost = by_seed(table, by_size(kind), "accuracy"), by_seed(table, by_size(kind), "macs")
        values = {seed: slope(np.log10(cost[seed]).tolist(), accuracy[seed]) for seed in accuracy if seed in cost}
        yield Effect(f"{kind}, per ten times the compute", values, POINTS)


def log_fits_better(table: ArmTable) -> Iterable[Effect]:
    """Variance that a line over log data explains, minus that of a line over data."""
    for kind in PAIR:
        logs = list(shares_in(table, kind).values())
        found = by_seed(table, list(by_data(table, kind)), "accuracy")
        values = {seed: explained(logs, ys) - explained([10**log for log in logs], ys) for seed, ys in found.items()}
        yield Effect(f"{kind}, explained by log data − by data", values, bounds=ONE_APART)


def explained(xs: Sequence[float], ys: Sequence[float]) -> float:
    """The share of the variance that a line explains; NaN without variance."""
    rest = np.asarray(ys) - np.polyval(np.polyfit(xs, ys, 1), xs)
    whole = float(np.var(ys))
    return 1 - float(np.mean(rest**2)) / whole if whole > 0 else math.nan


# size-small ----------------------------------------------------------------------------------------------------------


def grid_small(scale: ScaleName, seeds: Sequence[int]) -> Iterator[GridCell]:
    """The smallest ResNet; at 30 % also for as many epochs as at 100 %, which takes fewer steps."""
    network = NETWORKS[scale][SMALL][RESNET]
    for seed in seeds:
        for share in (MORE, MOST):
            yield from with_transfer(scale, arm_of(RESNET, share, SMALL), seed, learned(scale, network, share, seed))
        fewer = learned(scale, network, MORE, seed, length=f"{same_epochs(scale)} steps")
        yield from with_transfer(scale, SAME_EPOCHS, seed, fewer)


SAME_EPOCHS = f"{arm_of(RESNET, MORE, SMALL)}, as many epochs"


def same_epochs(scale: ScaleName) -> int:
    """The steps that give 30 % as many epochs as 100 % has."""
    how = LEARNING[scale]
    steps = int(how["recipe"]["length"].split()[0])
    return round(steps * how["shares"][MORE] / how["shares"][MOST])


def hurt_by_data(table: ArmTable) -> Iterable[Effect]:
    found, most = downstream(table), arm_of(RESNET, MOST, SMALL)
    same = arm_of(RESNET, MORE, SMALL)
    yield found.difference(same, most, "transfer", POINTS, f"{MORE} − {MOST}, as many steps")
    yield found.difference(SAME_EPOCHS, most, "transfer", POINTS, f"{MORE} − {MOST}, as many epochs")


# compute -------------------------------------------------------------------------------------------------------------


def grid_compute(scale: ScaleName, seeds: Sequence[int]) -> Iterator[GridCell]:
    return grid(scale, seeds, (ALL,))


def compute_ratio(table: ArmTable) -> Iterable[Effect]:
    """log10 of a ResNet's compute over a ViT's at equal accuracy: two parallel lines over log compute, seed by seed."""
    accuracy, cost = (
        {kind: by_seed(table, by_size(kind), reading) for kind in PAIR} for reading in ("transfer", "macs")
    )
    seeds = [
        seed for seed in accuracy[VIT] if all(seed in column[kind] for column in (accuracy, cost) for kind in PAIR)
    ]
    of_seed = {seed: _ratio({kind: (cost[kind][seed], accuracy[kind][seed]) for kind in PAIR}) for seed in seeds}
    return [Effect("log10 of ResNet's compute over ViT's, at equal accuracy", of_seed)]


def _ratio(lines: Mapping[str, tuple[Sequence[float], Sequence[float]]]) -> float:
    """NaN if more compute does not help: then no compute makes them equal."""
    rows = [
        (1.0 * (kind == VIT), 1.0 * (kind == RESNET), math.log10(cost), right)
        for kind, (costs, rights) in lines.items()
        for cost, right in zip(costs, rights, strict=True)
    ]
    numbers = np.asarray(rows)
    vit, resnet, gain = np.linalg.lstsq(numbers[:, :3], numbers[:, 3], rcond=None)[0]
    return float((vit - resnet) / gain) if gain > 0 else math.nan


def hybrid_gap(table: ArmTable, size: str) -> Effect:
    hybrid, vit = (arm_of(kind, ALL, size) for kind in (HYBRID, VIT))
    return downstream(table).difference(hybrid, vit, "transfer", POINTS, f"hybrid − ViT, {size}")


def hybrid_gap_shrinks(table: ArmTable) -> Iterable[Effect]:
    gaps = [hybrid_gap(table, size).values for size in SIZE_NAMES]
    costs = by_seed(table, by_size(VIT), "macs")
    values = {
        seed: -slope(np.log10(costs[seed]).tolist(), [gap[seed] for gap in gaps])
        for seed in costs
        if all(seed in gap for gap in gaps)
    }
    return [Effect("fall of hybrid − ViT, per ten times the compute", values, POINTS)]


LAPTOP_TRANSFER = "laptop: transfer is least squares by 100 images of each of 4 kinds of clothes that were not learned"
FIGURE_5 = "P1 figure 5: hybrids ahead at small budgets, level at large ones"

SIZE = Experiment(
    name="size",
    family="E-SIZE",
    title="Do data and model have to grow together?",
    claims=(
        Claim(
            row="T18",
            words="for every network more data to learn from improve what it does downstream",
            rule=POSITIVE,
            effects=data_helps_each,
            note=LAPTOP_TRANSFER,
        ),
        Claim(
            row="T20",
            words="larger networks gain more from more data",
            rule=POSITIVE,
            effects=data_helps_large_more,
            note=LAPTOP_TRANSFER,
        ),
        Claim(
            row="T21",
            words="with least data the large ResNet is worse than the small one, and it gains more from data",
            rule=POSITIVE,
            effects=alone_may_hurt,
            note=f"BiT's claim is on ResNets; {LAPTOP_TRANSFER}",
        ),
        Claim(
            row="C08",
            part="a",
            words="accuracy grows with data and with the size of the network",
            rule=POSITIVE,
            effects=grows_with_both,
        ),
        Claim(
            row="C08",
            part="b",
            words="with diminishing returns: the log of the data explains accuracy better than the data",
            rule=POSITIVE,
            effects=log_fits_better,
        ),
    ),
    grid=grid,
    columns=("accuracy", "100_shot_fashion", "parameters", "macs"),
    matched=EQUAL_COMPUTE,
    seeds=SEEDS | {"laptop": 3},
)

SIZE_SMALL = Experiment(
    name="size-small",
    family="E-SIZE",
    title="Is a small ResNet hurt by much data?",
    claims=(
        Claim(
            row="T19",
            words="the smallest ResNet is worse after learning from all data than from 30 %",
            rule=POSITIVE,
            effects=hurt_by_data,
            note=f"the row says may: it depends on the steps, so both lengths are asked; {LAPTOP_TRANSFER}",
        ),
    ),
    grid=grid_small,
    columns=("accuracy", "100_shot_fashion", "steps"),
    matched="the network; steps, and then epochs",
    seeds=SEEDS,
    pilots=PILOTS,
)

COMPUTE = Experiment(
    name="compute",
    family="E-SIZE",
    title="Which network buys most with its compute?",
    claims=(
        Claim(
            row="C10",
            words="a ViT reaches a ResNet's accuracy with less compute",
            rule=POSITIVE,
            effects=compute_ratio,
            published="2 to 4 times less (P1, all from JFT)",
            note="compute is multiply-adds; the seconds in the table are of trainings that shared a machine",
            untestable=TOO_FEW_DATA,
        ),
        Claim(
            row="C11",
            part="a",
            words="at the smallest budget a hybrid is better than a ViT of equal compute",
            rule=POSITIVE,
            effects=lambda table: [hybrid_gap(table, SMALL)],
            published=FIGURE_5,
        ),
        Claim(
            row="C11",
            part="b",
            words="at the largest budget they differ by less than a point",
            rule=alike(0.01),
            effects=lambda table: [hybrid_gap(table, LARGE)],
            published=FIGURE_5,
        ),
        Claim(
            row="C11",
            part="c",
            words="the hybrid's lead shrinks as compute grows",
            rule=POSITIVE,
            effects=hybrid_gap_shrinks,
            published=FIGURE_5,
        ),
    ),
    grid=grid_compute,
    columns=("accuracy", "100_shot_fashion", "macs", "train_seconds"),
    matched=EQUAL_COMPUTE,
    seeds=SEEDS,
    pilots=PILOTS,
)
