"""P1's appendix D.5 and question Q01: how fast networks are and what memory they need, by resolution and batch.

Numbers of one machine: every record names its hardware. Networks of equal multiply-adds are compared.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from vitreous.papers.experiment import ArmTable, Claim, Effect, Experiment, GridCell, ScaleName
from vitreous.papers.experiments.networks import RESNET, VIT
from vitreous.papers.verdict import POSITIVE, not_worse
from vitreous.papers.works.speed import speed

SETTINGS: dict[str, dict[str, Any]] = {
    "laptop": {
        "networks": {VIT: "Ti/16", RESNET: "BiT-R50x0.53125"},
        "sides": (64, 96, 128),
        "side": 64,
        "batches": (1, 4, 16),
        "batch": 8,
        "widths": {"Ti/16": 192, "S/16": 384},
        "depths": (6, 12),
    },
    "gpu": {
        "networks": {VIT: "B/16", RESNET: "BiT-R50x2.125"},
        "sides": (128, 224, 384),
        "side": 224,
        "batches": (1, 16, 256),
        "batch": 64,
        "widths": {"Ti/16": 192, "S/16": 384, "B/16": 768},
        "depths": (),  # no claim asks
    },
}
SETTINGS["full"] = SETTINGS["gpu"]
FACTOR = 1.5  # times slower that is still comparable


def at_side(kind: str, side: int) -> str:
    return f"{kind}, {side} pixels"


def grid(scale: ScaleName, seeds: Sequence[int]) -> Iterator[GridCell]:
    how = SETTINGS[scale]
    side, batch = how["side"], how["batch"]
    for repeat in seeds:
        for kind, network in how["networks"].items():
            for each in how["sides"]:
                yield GridCell(at_side(kind, each), repeat, speed(f"{network} image_size={each}", batch, repeat))
            for count in how["batches"]:
                yield GridCell(f"{kind}, batch {count}", repeat, speed(f"{network} image_size={side}", count, repeat))
        for network, width in how["widths"].items():
            yield GridCell(f"ViT, width {width}", repeat, speed(f"{network} image_size={side}", batch, repeat))
        for depth in how["depths"]:
            name = f"{how['networks'][VIT]} depth={depth} image_size={side}"
            yield GridCell(f"ViT, depth {depth}", repeat, speed(name, batch, repeat))


def numbered(table: ArmTable, prefix: str) -> dict[str, float]:
    """Arms that start with the prefix, each with the number after it."""
    rest = {arm: arm.removeprefix(prefix).split() for arm in table.arms if arm.startswith(prefix)}
    return {arm: float(words[0]) for arm, words in rest.items() if words and words[0].isdigit()}


def log_ratio(table: ArmTable, arm: str, other: str, reading: str) -> Effect:
    """ln of the reading of arm over that of other."""
    mine, theirs = table.values(arm, reading), table.values(other, reading)
    values = {seed: math.log(mine[seed] / theirs[seed]) for seed in mine if seed in theirs}
    return Effect(f"ln {arm} / {other}", values)


def sides_in(table: ArmTable) -> list[int]:
    return sorted(int(side) for side in numbered(table, f"{VIT}, ").values() if at_side(VIT, int(side)) in table.arms)


def vit_keeps_up(table: ArmTable) -> Iterable[Effect]:
    return [
        log_ratio(table, at_side(VIT, side), at_side(RESNET, side), "images_per_second") for side in sides_in(table)
    ]


def vit_saves_memory(table: ArmTable) -> Iterable[Effect]:
    return [log_ratio(table, at_side(RESNET, side), at_side(VIT, side), "saved_mib") for side in sides_in(table)]


def not_yet_quadratic(table: ArmTable) -> Iterable[Effect]:
    """1.5 less the slope of ln seconds over ln pixels: 1 where the linear part rules, 2 where attention does."""
    arms = [at_side(VIT, side) for side in sides_in(table)]
    logs = {arm: 2 * math.log(side) for arm, side in zip(arms, sides_in(table), strict=True)}
    return [_slope_of_log(table, "1.5 − power of the pixels in the time of an image", logs, lambda s: 1.5 + s)]


def wide_is_efficient(table: ArmTable) -> Iterable[Effect]:
    logs = {arm: math.log(width) for arm, width in numbered(table, f"{VIT}, width ").items()}
    return [_slope_of_log(table, "ln multiply-adds a second, by ln width", logs, lambda s: s, "macs_per_second")]


def batches_are_efficient(table: ArmTable) -> Iterable[Effect]:
    logs = {arm: math.log(count) for arm, count in numbered(table, f"{VIT}, batch ").items()}
    return [_slope_of_log(table, "ln images a second, by ln batch", logs, lambda s: s)]


def _slope_of_log(
    table: ArmTable, name: str, arms: dict[str, float], of: Any, reading: str = "images_per_second"
) -> Effect:
    logs = {arm: {seed: {"log": math.log(value)} for seed, value in table.values(arm, reading).items()} for arm in arms}
    found = ArmTable(logs).slope(name, arms, "log")
    return Effect(name, {seed: of(value) for seed, value in found.values.items()})


EXPERIMENT = Experiment(
    name="speed",
    family="E-SIZE",
    title="How fast are a ViT and a ResNet of equal multiply-adds, and what memory do they need?",
    claims=(
        Claim(
            row="P1-D.5",
            part="a",
            words="a ViT answers as many images a second as a ResNet of equal multiply-adds, within a factor of 1.5",
            rule=not_worse(math.log(FACTOR)),
            effects=vit_keeps_up,
            published="comparable on TPUv3 (P1 figure 12)",
        ),
        Claim(
            row="P1-D.5",
            part="b",
            words="in training it keeps less in memory for each image",
            rule=POSITIVE,
            effects=vit_saves_memory,
            published="large ViTs fit larger batches on a core than ResNets (P1 figure 12)",
            note="measured is what the forward pass keeps for the backward pass, published the largest batch that fits",
        ),
        Claim(
            row="P1-D.5",
            part="c",
            words="attention, quadratic in pixels, is hardly seen: time grows by less than pixels to the power 1.5",
            rule=POSITIVE,
            effects=not_yet_quadratic,
            published="barely seen for the largest models at the largest resolutions (P1 D.5)",
        ),
        Claim(
            row="Q01",
            part="a",
            words="larger matrices are faster: multiply-adds a second grow with width",
            rule=POSITIVE,
            effects=wide_is_efficient,
        ),
        Claim(
            row="Q01",
            part="b",
            words="tokens and images are computed at once: images a second grow with the batch",
            rule=POSITIVE,
            effects=batches_are_efficient,
        ),
    ),
    grid=grid,
    columns=("images_per_second", "train_images_per_second", "saved_mib", "peak_mib", "macs"),
    matched="multiply-adds within 10 %; numbers of the machine that each record names, with nothing beside them",
)
