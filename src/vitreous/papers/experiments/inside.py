"""The networks that E-LOOK looks into: a ViT, a ResNet and a hybrid, trained alike; and released weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from vitreous.papers.experiment import RELEASED, ArmTable, Cell, GridCell, ScaleName
from vitreous.papers.experiments import gpu_scale
from vitreous.papers.verdict import UNBOUNDED, Bounds, Effect
from vitreous.papers.works.look import looked
from vitreous.papers.works.train import train

VIT, RESNET, HYBRID, GAP = "ViT", "ResNet", "hybrid", "ViT, GAP"
DEIT, AUGREG = "DeiT-Ti", "ViT-Ti"
RELEASED_WEIGHTS = {DEIT: "deit-tiny", AUGREG: "vit-tiny"}  # short names of `vitreous.load`
RELEASED_NOTE = "released weights: an interval over groups of images says nothing of other trainings"
VITS = (VIT, *RELEASED_WEIGHTS)
ALL_SCALES: tuple[ScaleName, ...] = ("laptop", "gpu", "full", "released")
INSIDE_SEEDS: Mapping[ScaleName, int] = {"laptop": 8, "gpu": gpu_scale.SEEDS, "full": 3, "released": 5}
INSIDE_PILOTS: Mapping[ScaleName, int] = {"laptop": 4}
INSIDE_MATCHED = (
    "multiply-adds within 10 % (gpu: within 1 %); at laptop scale each one rate, of one or two tried on another seed, "
    "some on deeper networks; else chosen on dev, at gpu scale on that of another seed; always the same images in the "
    "same order"
)


@dataclass(frozen=True)
class InsideNetworks:
    """The arms of one scale, and what they have in common."""

    vit: str
    resnet: str
    hybrid: str
    data: str
    recipe: Mapping[str, Any]
    rates: tuple[float, ...] = ()
    seen: int = 512  # test images of a look
    early: str = ""  # a tenth of the training's length
    own_rate: Mapping[str, float] = field(default_factory=dict)  # for arms that the recipe's rate does not suit

    @property
    def models(self) -> dict[str, str]:
        return {VIT: self.vit, RESNET: self.resnet, HYBRID: self.hybrid, GAP: f"{self.vit} pool=gap"}


INSIDE: dict[ScaleName, InsideNetworks] = {
    "laptop": InsideNetworks(  # the ViT of `positions`
        vit="S/4 width=64 depth=3 heads=4 mlp=128 image_size=28 channels=1 positions=learned",
        resnet="BiT-R50x1 units=2x2x2 resnet_width=0.125 root=small image_size=28 channels=1",
        hybrid="R26+S/32 units=1x1 resnet_width=0.09375 root=small patch=2 width=64 depth=2 heads=4 mlp=128 "
        "image_size=28 channels=1 positions=learned",
        data="fashion",
        recipe={
            "length": "200 steps", "batch": 128, "peak_lr": 3e-3, "weight_decay": 0.05, "crop": "none", "flip": 0.0
        },
        seen=256,
        early="20 steps",
        own_rate={RESNET: 1e-2},  # 80 against 71 % at 3e-3, on seed 100
    ),
    "gpu": InsideNetworks(
        vit=gpu_scale.VIT_MODEL,
        resnet=gpu_scale.RESNET_MODEL,
        hybrid=gpu_scale.HYBRID_MODEL,
        data=gpu_scale.UP,
        recipe=gpu_scale.RECIPE,
        seen=1024,
        early=f"{gpu_scale.SOME_STEPS} steps",
    ),
    "full": InsideNetworks(
        vit="B/16",
        resnet="BiT-R50x2",
        hybrid="R50+B/16 depth=10",
        data="imagenet",
        recipe={"length": "300 epochs", "batch": 4096, "peak_lr": 1e-3, "weight_decay": 0.3},
        rates=(3e-4, 1e-3, 3e-3),
        seen=5000,
        early="30 epochs",
    ),
}  # fmt: skip
ONLY_VIT = (
    "attention-distance", "head-likeness", "patch-filters", "positions", "similarity", "skip-ratio", "localisation",
    "receptive-field", "skip-removal",
)  # fmt: skip
ONLY_RESNET = ("similarity", "skip-ratio", "localisation", "receptive-field", "skip-removal")
ONLY_RELEASED = ("attention-distance", "head-likeness", "similarity", "skip-ratio", "localisation")
RELEASED_IMAGES, RELEASED_SET = 64, "imagenette"


def network(scale: ScaleName, arm: str, seed: int, **fields: Any) -> Cell:
    """The training of an arm.  fields: of the recipe, changed."""
    how = INSIDE[scale]
    if scale == "gpu":
        return train(how.models[arm], how.data, seed, recipe=gpu_scale.recipe_for(how.models[arm], **fields))
    rate = {"peak_lr": how.own_rate[arm]} if arm in how.own_rate else {}
    return train(how.models[arm], how.data, seed, recipe={**how.recipe, **rate, **fields}, rates=how.rates)


def look_into(scale: ScaleName, arm: str, seed: int) -> Cell:
    """One look at an arm for all experiments, so that its forward passes run once."""
    how = INSIDE[scale]
    only = ONLY_RESNET if arm == RESNET else ONLY_VIT
    return looked(network(scale, arm, seed), how.data, only, seen=how.seen)


def look_across(scale: ScaleName, arm: str, seed: int) -> Cell:
    """An arm against the ResNet of the same seed."""
    how, pair = INSIDE[scale], ("similarity-across", "heads-against-layers")
    return looked(network(scale, arm, seed), how.data, pair, against=network(scale, RESNET, seed), seen=how.seen)


def looks(scale: ScaleName, seeds: Sequence[int], arms: Sequence[str] = (VIT,)) -> Iterator[GridCell]:
    """Each arm trained and looked into; for released weights, by groups of images."""
    if scale == RELEASED:
        for arm, name in RELEASED_WEIGHTS.items():
            for group in seeds:
                how: dict[str, Any] = {"seen": RELEASED_IMAGES, "group": group}
                yield GridCell(arm, group, looked(name, RELEASED_SET, ONLY_RELEASED, **how))
        return
    for arm in arms:
        for seed in seeds:
            yield GridCell(arm, seed, network(scale, arm, seed))
            yield GridCell(arm, seed, look_into(scale, arm, seed))


# Effects -------------------------------------------------------------------------------------------------------------


def of_each(
    table: ArmTable, reading: str, of: Callable[[Any], float], name: str, bounds: Bounds = UNBOUNDED
) -> list[Effect]:
    """of(reading) of each ViT that is there, seed by seed."""
    there = [arm for arm in VITS if arm in table.arms]
    return [table.combined(f"{arm}: {name}", [arm], reading, of, bounds=bounds) for arm in there]


def between(
    table: ArmTable,
    arm: str,
    readings: tuple[str, str],
    name: str,
    *,
    of: Callable[[Any], float] = float,
    bounds: Bounds = UNBOUNDED,
) -> Effect:
    """of(the first reading) − of(the second), of the same arm and seed."""
    mine, theirs = (table.values(arm, reading) for reading in readings)
    return Effect(name, {seed: of(mine[seed]) - of(theirs[seed]) for seed in mine if seed in theirs}, bounds=bounds)


def ends(by_depth: Sequence[float], parts: int) -> tuple[list[float], list[float]]:
    """The lowest and the highest part of a list by depth: of 8 blocks in thirds the lowest 2 and the highest 2."""
    count = max(len(by_depth) // parts, 1)
    return list(by_depth[:count]), list(by_depth[-count:])
