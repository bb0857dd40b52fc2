"""The small ViT that the families E-POS, E-HEAD and E-ABL change one switch of at a time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from vitreous.papers.experiment import Cell, ScaleName
from vitreous.papers.works.train import train


@dataclass(frozen=True)
class Setting:
    """What an arm changes nothing of, at one scale."""

    model: str
    resnet: str  # as many parameters, within 10 %
    data: str
    recipe: Mapping[str, Any]
    rates: tuple[float, ...]  # of which dev chooses, for each arm by itself; empty: the recipe's
    depth: int
    patch: int  # pixels
    probed: str  # the set that probes read, of few classes
    seen: int = 1024  # of its images


LAPTOP_RATES = (1e-3, 3e-3, 1e-2)
GPU_RATES = (3e-4, 1e-3, 3e-3)
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
        model="S/8 width=256 depth=8 heads=4 mlp=1024 image_size=64",
        resnet="BiT-R50x1 units=2x2x2x2 resnet_width=0.67 root=small image_size=64",
        data="tiny-imagenet",
        recipe={"length": "15 epochs", "batch": 512, "peak_lr": 1e-3, "weight_decay": 0.1},
        rates=GPU_RATES,
        depth=8,
        patch=8,
        probed="imagenette",
    ),
    "full": Setting(
        model="B/16",
        resnet="BiT-R50x2 resnet_width=1.9",
        data="imagenet",
        recipe={"length": "300 epochs", "batch": 4096, "peak_lr": 1e-3, "weight_decay": 0.3},
        rates=GPU_RATES,
        depth=12,
        patch=16,
        probed="imagenette",
    ),
}
SAME_BUT_ONE = (
    "parameters within 10 %, images seen; its own rate for each arm at gpu and full scale, one rate on a laptop"
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
    recipe = {**how.recipe, **fields} | ({} if rate is None else {"peak_lr": rate})
    model = how.resnet if is_resnet else f"{how.model} {change}".strip()
    data = f"{how.data}:{view}" if view else how.data
    return train(model, data, seed, recipe=recipe, rates=how.rates if rate is None else ())


def rates_of(scale: ScaleName) -> tuple[float, ...]:
    """A grid in which every rate is a training of its own."""
    return SETTINGS[scale].rates or LAPTOP_RATES
