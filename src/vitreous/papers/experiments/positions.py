"""P1's table 8: does it matter which position embedding a ViT has, and where it enters?"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations
from typing import Any

from vitreous.papers.experiment import ArmTable, Cell, Claim, Effect, Experiment, GridCell, ScaleName
from vitreous.papers.experiments import gpu_scale
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
    "gpu": {"model": gpu_scale.VIT_MODEL, "data": gpu_scale.UP, "recipe": None, "down": ["imagenette"]},
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
            trained = learned(scale, f"{how['model']} {ARMS[arm]}", seed)
            yield GridCell(arm, seed, trained)
            for data in how["down"]:
                yield GridCell(arm, seed, few_shot(trained, data))


def learned(scale: ScaleName, model: str, seed: int, **fields: Any) -> Cell:
    """A network by this scale's recipe; at gpu scale 1-D in the stem is the ViT of all families.  fields: changes."""
    how = SETTINGS[scale]
    if scale == "gpu":
        model = model.removesuffix(f" {ARMS['1-D, stem']}")
        return train(model, how["data"], seed, recipe=gpu_scale.recipe_for(model, **fields))
    return train(model, how["data"], seed, recipe={**how["recipe"], **fields})


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
            words="kinds of positions, at gpu scale also places of entry, differ by less than a point",
            rule=alike(0.01),
            effects=between_kinds,
            also=("Q09",),
            published="64.0 to 64.3 % (B/16, ImageNet 5-shot)",
        ),
    ),
    grid=grid,
    columns=("accuracy", "5_shot_imagenette"),
    matched="parameters, but for the position tables; steps and images seen; one rate, chosen for 1-D in the stem",
    seeds={"laptop": 5, "gpu": gpu_scale.SEEDS, "full": 3},
)
