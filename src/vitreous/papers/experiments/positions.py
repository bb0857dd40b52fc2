"""P1's table 8: does it matter which position embedding a ViT has, and where it enters?"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations
from typing import Any

from vitreous.papers.experiment import ArmTable, Claim, Effect, Experiment, GridCell, ScaleName
from vitreous.papers.verdict import POSITIVE, alike
from vitreous.papers.works.probe import few_shot
from vitreous.papers.works.train import train

NONE = "none"
ARMS = {
    NONE: "positions=none",
    "1-D, stem": "positions=learned",
    "1-D, every layer": "positions=learned positions_at=every-layer",
    "1-D, shared": "positions=learned positions_at=every-layer-shared",
    "2-D, stem": "positions=learned-2d",
    "2-D, every layer": "positions=learned-2d positions_at=every-layer",
    "2-D, shared": "positions=learned-2d positions_at=every-layer-shared",
    "relative": "positions=relative",
}
LAPTOP_ARMS = (NONE, "1-D, stem", "2-D, stem", "relative")
PLAIN = {"crop": "none", "flip": 0.0}
SETTINGS: dict[str, dict[str, Any]] = {
    "laptop": {
        "model": "S/4 width=64 depth=3 heads=4 mlp=128 image_size=28 channels=1",
        "data": "fashion",
        "recipe": {"length": "200 steps", "batch": 128, "peak_lr": 3e-3, "weight_decay": 0.05, **PLAIN},
        "down": [],
    },
    "gpu": {
        "model": "S/8 width=256 depth=8 heads=4 mlp=1024 image_size=64",
        "data": "tiny-imagenet",
        "recipe": {"length": "30 epochs", "batch": 512, "peak_lr": 1e-3, "weight_decay": 0.1},
        "down": ["imagenette", "pets"],
    },
    "full": {
        "model": "B/16",
        "data": "imagenet21k",
        "recipe": {"length": "90 epochs", "batch": 4096, "peak_lr": 1e-3, "weight_decay": 0.03},
        "down": ["imagenet"],
    },
}


def grid(scale: ScaleName, seeds: Sequence[int]) -> Iterator[GridCell]:
    how = SETTINGS[scale]
    for arm in LAPTOP_ARMS if scale == "laptop" else ARMS:
        for seed in seeds:
            trained = train(f"{how['model']} {ARMS[arm]}", how["data"], seed, recipe=how["recipe"])
            yield GridCell(arm, seed, trained)
            for data in how["down"]:
                yield GridCell(arm, seed, few_shot(trained, data))


def better_than_none(table: ArmTable) -> Iterable[Effect]:
    return [table.difference(arm, NONE, "accuracy") for arm in table.arms if arm != NONE]


def between_kinds(table: ArmTable) -> Iterable[Effect]:
    kinds = [arm for arm in table.arms if arm != NONE]
    return [table.difference(one, other, "accuracy") for one, other in combinations(kinds, 2)]


EXPERIMENT = Experiment(
    name="positions",
    family="E-POS",
    title="Which position embedding?",
    claims=(
        Claim(
            row="C17",
            words="without positions a ViT is clearly worse than with any kind",
            rule=POSITIVE,
            effects=better_than_none,
            published="61.4 % without, 64.0 to 64.3 % with (B/16, ImageNet 5-shot)",
        ),
        Claim(
            row="C18",
            words="kinds of positions and places of entry differ by less than a point",
            rule=alike(0.01),
            effects=between_kinds,
            also=("Q09",),
            published="64.0 to 64.3 % (B/16, ImageNet 5-shot)",
        ),
    ),
    grid=grid,
    columns=("accuracy", "5_shot_imagenette", "5_shot_pets"),
    matched="parameters, but for the position tables; steps and images seen",
    seeds={"laptop": 5, "gpu": 5, "full": 3},
)
