"""The small ViT of the families E-POS, E-HEAD and E-ABL, which change one switch of it at a time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from vitreous.papers.experiment import Cell, ScaleName
from vitreous.papers.experiments import gpu_scale
from vitreous.papers.works.train import train


@dataclass(frozen=True)
class Setting:
    """What all arms of one scale have in common."""

    model: str
    resnet: str  # as many parameters, within 10 %; at gpu scale as many multiply-adds
    data: str
    recipe: Mapping[str, Any]
    rates: tuple[float, ...]  # dev chooses among these for each arm; empty: the recipe's
    depth: int
    patch: int  # pixels
    probed: str  # the set that probes read, of few classes
    seen: int = 1024  # of its images


LAPTOP_RATES = (1e-3, 3e-3, 1e-2)
FULL_RATES = (3e-4, 1e-3, 3e-3)
SETTINGS: dict[ScaleName, Setting] = {
    "laptop": Setting(
        model="S/7 width=64 depth=3 heads=4 mlp=128 image_size=28 channels=1",
        resnet="BiT-R50x1 units=1x1x1 resnet_width=0.22 image_size=28 channels=1",
        data="fashion",
        recipe={"length": "200 steps", "batch": 64, "peak_lr": 3e-3, "weight_decay": 0.05, "crop": "none", "flip": 0.0},
        rates=(),
        depth=3,
        patch=7,
        probed="fashion",
    ),
    "gpu": Setting(
        model=gpu_scale.VIT_MODEL,
        resnet=gpu_scale.RESNET_MODEL,
        data=gpu_scale.UP,
        recipe=gpu_scale.RECIPE,
        rates=(),
        depth=6,
        patch=8,
        probed="imagenette",
    ),
    "full": Setting(
        model="B/16",
        resnet="BiT-R50x2 resnet_width=1.9",
        data="imagenet",
        recipe={"length": "300 epochs", "batch": 4096, "peak_lr": 1e-3, "weight_decay": 0.3},
        rates=FULL_RATES,
        depth=12,
        patch=16,
        probed="imagenette",
    ),
}
SAME_BUT_ONE = (
    "parameters within 10 % (gpu: multiply-adds, of the ResNet), images seen; its own rate for each network at gpu and "
    "full scale, one rate on a laptop"
)


def trained(
    scale: ScaleName,
    seed: int,
    change: str = "",
    *,
    view: str = "",
    rate: float | None = None,
    is_resnet: bool = False,
    **fields: Any,
) -> Cell:
    """The small ViT with options changed.  view: of the images.  rate: this one alone.  fields: of the recipe."""
    how = SETTINGS[scale]
    model = how.resnet if is_resnet else f"{how.model} {change}".strip()
    usual = gpu_scale.recipe_for(model) if scale == "gpu" else how.recipe
    recipe = {**usual, **fields} | ({} if rate is None else {"peak_lr": rate})
    data = f"{how.data}:{view}" if view else how.data
    return train(model, data, seed, recipe=recipe, rates=how.rates if rate is None else ())


def usual_rate(scale: ScaleName, change: str = "") -> float:
    """The rate for trainings that are too short to choose their own."""
    how = SETTINGS[scale]
    rate = gpu_scale.rate_of(f"{how.model} {change}".strip()) if scale == "gpu" else how.recipe["peak_lr"]
    return float(rate)


def rates_of(scale: ScaleName) -> tuple[float, ...]:
    """The rates of grids that train once at each rate."""
    return {"laptop": LAPTOP_RATES, "gpu": gpu_scale.RATES_TRIED["adamw"]}.get(scale, FULL_RATES)
