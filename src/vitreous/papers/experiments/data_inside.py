"""P2's sections on data: what a ViT lacks inside when it has learned from too little."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from vitreous.papers.experiment import (
    POINTS,
    ArmTable,
    Claim,
    Effect,
    Experiment,
    GridCell,
    ScaleName,
    rank_correlation,
)
from vitreous.papers.experiments import gpu_scale
from vitreous.papers.experiments.networks import (
    ALL,
    EQUAL_COMPUTE,
    LEARNING,
    MEDIUM,
    NETWORKS,
    VIT,
    arm_of,
    by_data,
    kinds_of,
    learned,
    shares_in,
)
from vitreous.papers.verdict import ONE_APART, POSITIVE, TWO_APART
from vitreous.papers.works.likeness import likeness
from vitreous.papers.works.look import looked
from vitreous.papers.works.shift import shift

PROBED_ON = {"laptop": "fashion", "gpu": "imagenette", "full": "imagenet"}
PROBED_IMAGES = 2048
PATCH = {"laptop": 8, "gpu": 8, "full": 32}  # shifts go from 1 pixel to a patch
BASELINE = f"{VIT}, {ALL}, another seed"
LITTLE = ("3 %", "10 %")


def grid(scale: ScaleName, seeds: Sequence[int]) -> Iterator[GridCell]:
    """Each model is compared with the full-data model of the next seed, so no pair starts from the same weights."""
    data = LEARNING[scale]["data"]
    for share in LEARNING[scale]["shares"]:
        for kind in kinds_of(scale, share):
            for seed in seeds:
                arm, trained = arm_of(kind, share), learned(scale, NETWORKS[scale][MEDIUM][kind], share, seed)
                yield GridCell(arm, seed, trained)
                yield GridCell(arm, seed, shift(trained, data, pixels(scale)))
                if kind == VIT:
                    yield GridCell(arm, seed, looked(trained, data, ["attention-distance"]))
                    yield GridCell(arm, seed, looked(trained, PROBED_ON[scale], ["probes"], seen=PROBED_IMAGES))
    for share in LEARNING[scale]["shares"]:
        for seed, other in zip(seeds, [*seeds[1:], *seeds[:1]], strict=True):
            less, most = (
                learned(scale, NETWORKS[scale][MEDIUM][VIT], *which) for which in ((share, seed), (ALL, other))
            )
            yield GridCell(BASELINE if share == ALL else arm_of(VIT, share), seed, likeness(less, most, data))


def pixels(scale: ScaleName) -> list[int]:
    """Eight shifts, the last by a whole patch."""
    return [step * PATCH[scale] // 8 for step in range(1, 9)]


def derived(table: ArmTable) -> ArmTable:
    """The table with numbers that sum up its lists by block."""
    rows: dict[str, dict[int, dict[str, Any]]] = {}
    for arm, seeds in table.rows.items():
        rows[arm] = {seed: dict(row) | _derived(row) for seed, row in seeds.items()}
    return ArmTable(rows)


def _derived(row: Any) -> dict[str, float]:
    out: dict[str, float] = {}
    if probes := row.get("probe_10_shot_patches"):
        middle = probes[len(probes) // 3 : len(probes) - len(probes) // 3]
        out |= {"probe_first": probes[0], "probe_middle": sum(middle) / len(middle)}
    if "distance_min" in row:
        out["distance_nearest"] = min(row["distance_min"][:2])
    if "likeness_low" in row:
        out["likeness_fall"] = row["likeness_low"] - row["likeness_high"]
    return out


def local_heads(table: ArmTable) -> list[Effect]:
    """How much nearer heads of the lowest two blocks look with more data: the nearest, and the nearest quarter."""
    arms, names = by_data(table, VIT), {"distance_nearest": "nearest head", "distance_low_quarter": "nearest quarter"}
    return [
        derived(table).slope(f"fall of the {name}, per ten times the data", arms, reading, is_falling=True)
        for reading, name in names.items()
    ]


def cnn_traits(table: ArmTable) -> Iterable[Effect]:
    name = "answers that survive a shift, per ten times the data"
    return [table.slope(name, by_data(table, VIT), "same_answer", POINTS), local_heads(table)[0]]


def lower_layers_alike(table: ArmTable) -> Iterable[Effect]:
    found = derived(table)
    names = {share: f"lowest third − highest third, {share}" for share in LITTLE}
    return [found.one(arm_of(VIT, share), "likeness_fall", name, bounds=ONE_APART) for share, name in names.items()]


def more_than_between_seeds(table: ArmTable) -> Iterable[Effect]:
    return [
        derived(table).difference(
            arm_of(VIT, share), BASELINE, "likeness_fall", "", f"{share} − all data, two seeds", TWO_APART
        )
        for share in LITTLE
    ]


def middle_by_data(table: ArmTable) -> Iterable[Effect]:
    name = "middle probes, per ten times the data"
    return [derived(table).slope(name, by_data(table, VIT), "probe_middle", POINTS)]


def middle_gains_most(table: ArmTable) -> Iterable[Effect]:
    found, (less, more) = derived(table), (arm_of(VIT, "10 %"), arm_of(VIT, ALL))
    middle, first = (found.difference(more, less, reading) for reading in ("probe_middle", "probe_first"))
    values = {seed: middle.values[seed] - first.values[seed] for seed in middle.values if seed in first.values}
    return [Effect("gain from 10 % to all data, middle − first block", values, POINTS, TWO_APART)]


def middle_and_accuracy(table: ArmTable) -> Iterable[Effect]:
    """Rank correlation over the shares of each seed."""
    found, arms = derived(table), list(by_data(table, VIT))
    columns = [(found.values(arm, "probe_middle"), found.values(arm, "accuracy")) for arm in arms]
    seeds = [seed for seed in (columns[0][0] if columns else ()) if all(seed in x and seed in y for x, y in columns)]
    values = {seed: rank_correlation([x[seed] for x, _ in columns], [y[seed] for _, y in columns]) for seed in seeds}
    return [Effect(f"rank correlation over {len(shares_in(table, VIT))} shares", values, bounds=ONE_APART)]


P2_SHARES = "P2, at 3, 10, 30 and 100 % of JFT"

EXPERIMENT = Experiment(
    name="data-inside",
    family="E-DATA",
    title="What is missing inside a ViT that learned from little data?",
    claims=(
        Claim(
            row="C06",
            words="with more data a ViT's answers survive shifts better and its low heads look nearer, as a CNN does",
            rule=POSITIVE,
            effects=cnn_traits,
            note="the CNN's own shares are in the table",
        ),
        Claim(
            row="C34",
            words="with more data the nearest heads of the lowest two blocks look nearer",
            rule=POSITIVE,
            effects=local_heads,
            published="trained on ImageNet alone, low layers of L/16 and H/14 do not attend locally (P2)",
        ),
        Claim(
            row="C45",
            part="a",
            words="models of little data are like full-data ones in low blocks, less so in high ones",
            rule=POSITIVE,
            effects=lower_layers_alike,
            published=P2_SHARES,
            note="compared with the full-data model of another seed: pairs of one seed share their first weights",
        ),
        Claim(
            row="C45",
            part="b",
            words="and they fall off more than two full-data models of different seeds do",
            rule=POSITIVE,
            effects=more_than_between_seeds,
            published=P2_SHARES,
        ),
        Claim(
            row="C46",
            part="a",
            words="the more data, the more of the class can be read from middle blocks",
            rule=POSITIVE,
            effects=middle_by_data,
            published="about 30 points between JFT and ImageNet, middle layers of large models",
        ),
        Claim(
            row="C46",
            part="b",
            words="from 10 % to all data middle blocks gain more than the first",
            rule=POSITIVE,
            effects=middle_gains_most,
            published=P2_SHARES,
        ),
        Claim(
            row="C46",
            part="c",
            words="the better the middle blocks, the better the model",
            rule=POSITIVE,
            effects=middle_and_accuracy,
        ),
    ),
    grid=grid,
    columns=("accuracy", "same_answer", "distance_low_quarter", "likeness_low", "likeness_high"),
    matched=EQUAL_COMPUTE,
    seeds={"laptop": 5, "gpu": gpu_scale.SEEDS, "full": 3},
)
