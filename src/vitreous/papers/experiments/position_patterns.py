"""What position embeddings learn: grids of other sizes, rates against kinds, nearness, and where they start."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import product

from vitreous.papers.experiment import PILOTS, ArmTable, Cell, Claim, Effect, Experiment, GridCell, ScaleName
from vitreous.papers.experiments import gpu_scale, positions
from vitreous.papers.experiments.small_vit import SAME_BUT_ONE, rates_of, trained
from vitreous.papers.verdict import ONE_APART, POSITIVE, TWO_APART, alike
from vitreous.papers.works.look import looked, looked_at_start
from vitreous.papers.works.patterns import patterns

# Grid sizes --------------------------------------------------------------------------------------------------------

KINDS = ("1-D, stem", "2-D, stem", "relative")
SIDES = {"laptop": (4, 7), "gpu": (2, 4, 8), "full": (7, 14, 28)}  # patches in a row of the image
PIXELS = {"laptop": 28, "gpu": 64, "full": 224}
GRID_LENGTH = {"laptop": "200 steps", "gpu": f"{gpu_scale.STEPS} steps", "full": "90 epochs"}


def arm_of(kind: str, side: int) -> str:
    return f"{kind}, {side} × {side}"


def sizes_grid(scale: ScaleName, seeds: Sequence[int]) -> Iterator[GridCell]:
    how = positions.SETTINGS[scale]
    _, _, rest = how["model"].partition(" ")
    size = how["model"].partition("/")[0]
    for side in SIDES[scale]:
        for kind in KINDS:
            name = f"{size}/{PIXELS[scale] // side} {rest} {positions.ARMS[kind]}".replace("  ", " ")
            for seed in seeds:
                cell = positions.learned(scale, name, seed, length=GRID_LENGTH[scale])
                yield GridCell(arm_of(kind, side), seed, cell)


def spread_by_size(table: ArmTable) -> Iterable[Effect]:
    sides = sorted({int(arm.split("× ")[1]) for arm in table.arms})
    by_side = [
        table.combined("", [arm_of(kind, side) for kind in KINDS], "accuracy", lambda *each: max(each) - min(each))
        for side in sides
    ]
    seeds = set.intersection(*(set(effect.values) for effect in by_side)) if by_side else set()
    logs = [math.log2(side * side) for side in sides]
    values = {seed: slope(logs, [effect.values[seed] for effect in by_side]) for seed in sorted(seeds)}
    return [Effect("gain of the spread between kinds for twice the patches", values, "points")]


def slope(xs: Sequence[float], ys: Sequence[float]) -> float:
    mean = sum(xs) / len(xs)
    return sum((x - mean) * y for x, y in zip(xs, ys, strict=True)) / sum((x - mean) ** 2 for x in xs)


SIZES = Experiment(
    name="position-grids",
    family="E-POS",
    title="Do kinds of positions differ more on a larger grid?",
    claims=(
        Claim(
            row="C19",
            words="the more patches, the further kinds of positions lie apart",
            rule=POSITIVE,
            effects=spread_by_size,
            published="P1 supposes it and gives no numbers",
            also=("Q09",),
            note="spread: best kind less worst, of three kinds; slope over the binary logarithm of the patches",
        ),
    ),
    grid=sizes_grid,
    matched="parameters within 10 % at one grid size, but for the position tables; images seen",
    seeds={"laptop": 8, "gpu": gpu_scale.SEEDS, "full": 3},
    pilots=PILOTS,
)

# Rates, kinds and settings -----------------------------------------------------------------------------------------

MAP_KINDS = {"1-D": "", "2-D": "positions=learned-2d"}  # relative positions have no vectors to compare
PATTERNS_ARM, SETTINGS_ARM, NEAR_ARM, START_ARM = "patterns", "settings", "1-D", "1-D, at the start"
BETWEEN_RATES, BETWEEN_KINDS = "likeness_between_rates", "likeness_between_kinds"
BETWEEN_SEEDS, BETWEEN_SETTINGS = "likeness_between_seeds", "likeness_between_settings"
SHORT = {"gpu": f"{gpu_scale.MANY_STEPS} steps", "full": "90 epochs"}


def mapped(scale: ScaleName, seed: int) -> dict[tuple[str, float], Cell]:
    """A training for each kind and rate."""
    rates = rates_of(scale)
    return {
        (kind, rate): trained(scale, seed, change, rate=rate) for kind, change in MAP_KINDS.items() for rate in rates
    }


def settings(scale: ScaleName, seed: int) -> dict[str, Cell]:
    """1-D positions by rate; beyond a laptop also by weight decay and length."""
    rates = rates_of(scale)
    found = {f"1-D, rate {rate:g}": trained(scale, seed, rate=rate) for rate in rates}
    if scale == "laptop":
        return found
    found["1-D, decay 0.5"] = trained(scale, seed, rate=rates[1], weight_decay=0.5)
    return found | {"1-D, shorter": trained(scale, seed, rate=rates[1], length=SHORT[scale])}


def patterns_grid(scale: ScaleName, seeds: Sequence[int]) -> Iterator[GridCell]:
    by_seed = {seed: settings(scale, seed) for seed in seeds}
    for seed in seeds:
        for name, cell in by_seed[seed].items():
            yield GridCell(name, seed, cell)
        grid = mapped(scale, seed)
        for (kind, rate), cell in grid.items():
            yield GridCell(f"{kind}, rate {rate:g}", seed, cell)
        other = mapped(scale, seeds[(list(seeds).index(seed) + 1) % len(seeds)])
        both = [*grid.values(), *other.values()]
        yield GridCell(PATTERNS_ARM, seed, patterns(both, rate_and_kind_pairs(list(grid))))
        yield GridCell(SETTINGS_ARM, seed, _against_seeds(seed, by_seed))
        near = trained(scale, seed)
        yield GridCell(NEAR_ARM, seed, looked(near, near.options["data"], ["positions"], seen=64))
        start = looked_at_start(near.options["model"], seed, near.options["data"], ["positions"], seen=64)
        yield GridCell(START_ARM, seed, start)


def rate_and_kind_pairs(places: Sequence[tuple[str, float]]) -> dict[str, list[tuple[int, int]]]:
    """Pairs that differ only in the rate, and pairs that differ only in the kind; each pair has two seeds.

    Trainings of one seed and kind share their first positions, which alone would make them alike.
    """
    count = len(places)
    pairs = [(i, j) for i, j in product(range(count), repeat=2) if i != j]
    same = {(i, j): [places[i][part] == places[j][part] for part in (0, 1)] for i, j in pairs}
    return {
        BETWEEN_RATES: [(i, count + j) for (i, j), (kind, rate) in same.items() if kind and not rate],
        BETWEEN_KINDS: [(i, count + j) for (i, j), (kind, rate) in same.items() if rate and not kind],
    }


def _against_seeds(seed: int, by_seed: dict[int, dict[str, Cell]]) -> Cell:
    """Pair each setting with other settings of other seeds, and with the same setting of other seeds."""
    own = list(by_seed[seed].values())
    others = [cell for other, cells in by_seed.items() if other != seed for cell in cells.values()]
    count = len(own)
    groups = {
        BETWEEN_SETTINGS: [(j, i) for i in range(count, count + len(others)) for j in range(count) if j != i % count],
        BETWEEN_SEEDS: [(i % count, i) for i in range(count, count + len(others))],
    }
    return patterns([*own, *others], groups)


def rate_over_kind(table: ArmTable) -> Iterable[Effect]:
    rates, kinds = (table.values(PATTERNS_ARM, name) for name in (BETWEEN_RATES, BETWEEN_KINDS))
    values = {seed: math.log((1 - rates[seed]) / max(1 - kinds[seed], 1e-9)) for seed in rates if seed in kinds}
    return [Effect("ln of change with the rate over change with the kind", values)]


def seeds_over_settings(table: ArmTable) -> Iterable[Effect]:
    seeds, between = (table.values(SETTINGS_ARM, name) for name in (BETWEEN_SEEDS, BETWEEN_SETTINGS))
    values = {seed: seeds[seed] - between[seed] for seed in seeds if seed in between}
    return [Effect("likeness between seeds − between settings", values, bounds=TWO_APART)]


def nearness(table: ArmTable) -> Iterable[Effect]:
    return [
        table.one(NEAR_ARM, "position_nearness", "rank correlation of likeness with nearness", bounds=ONE_APART),
        table.difference(NEAR_ARM, START_ARM, "position_nearness", "", "its gain over the start", TWO_APART),
    ]


PATTERNS = Experiment(
    name="position-patterns",
    family="E-POS",
    title="What pattern do positions learn, and what decides it?",
    claims=(
        Claim(
            row="C20",
            words="the learning rate changes the position pattern more than the kind of positions does",
            rule=POSITIVE,
            effects=rate_over_kind,
            published="P1 says so of its figure 10, without numbers",
            note="change: 1 − correlation of two patterns; kinds 1-D and 2-D, since relative ones have no vectors",
        ),
        Claim(
            row="I05",
            words="the position pattern differs between settings more than between seeds",
            rule=POSITIVE,
            effects=seeds_over_settings,
            published="P1 figure 10: three settings, by eye",
            note="a seed's number compares it with all others, so numbers of seeds are not quite independent",
        ),
        Claim(
            row="I04",
            words="the nearer two positions, the more alike their vectors, and more than at the start",
            rule=POSITIVE,
            effects=nearness,
            published="P1 figure 7, by eye",
        ),
    ),
    grid=patterns_grid,
    columns=("accuracy", "position_nearness", BETWEEN_RATES, BETWEEN_KINDS, BETWEEN_SEEDS, BETWEEN_SETTINGS),
    matched="parameters within 10 %, images seen but for the shorter arm",
    seeds={"laptop": 8, "gpu": gpu_scale.SEEDS, "full": 3},
    pilots=PILOTS,
)

# Start -------------------------------------------------------------------------------------------------------------

STARTS = {"N(0, 0.02²)": "", "zeros": "position_start=zeros", "N(0, 1)": "position_start=unit"}
STARTS |= {"sinusoid": "position_start=sincos"}
USUAL_START = "N(0, 0.02²)"


def starts_grid(scale: ScaleName, seeds: Sequence[int]) -> Iterator[GridCell]:
    for seed in seeds:
        cells = {name: trained(scale, seed, change) for name, change in STARTS.items()}
        for name, cell in cells.items():
            yield GridCell(name, seed, cell)
        pairs = {f"likeness to {name}": [(0, i)] for i, name in enumerate(STARTS) if name != USUAL_START}
        yield GridCell(USUAL_START, seed, patterns(list(cells.values()), pairs))


def starts_alike(table: ArmTable) -> Iterable[Effect]:
    return [table.difference(name, USUAL_START, "accuracy") for name in STARTS if name != USUAL_START]


POSITION_STARTS = Experiment(
    name="position-starts",
    family="E-POS",
    title="Does it matter what positions start from?",
    claims=(
        Claim(
            row="Q03",
            words="zeros, N(0, 1) or a sinusoid as first positions end within a point of N(0, 0.02²)",
            rule=alike(0.01),
            effects=starts_alike,
            published="none; the released code starts from N(0, 0.02²)",
        ),
    ),
    grid=starts_grid,
    columns=("accuracy", "likeness to zeros", "likeness to N(0, 1)", "likeness to sinusoid"),
    matched=SAME_BUT_ONE,
    seeds={"laptop": 8, "gpu": gpu_scale.SEEDS, "full": 3},
    pilots=PILOTS,
)
