"""What the families share at the gpu scale: one small ViT and its rivals, one recipe, and a rate for each network.

The rivals have the ViT's multiply-adds within 1 %, and the ResNet's last map has the ViT's grid. Rates were chosen on
dev before any cell ran, by short trainings (`pilots`) of a seed that no experiment uses; `rates.json` has them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from vitreous.papers.experiment import Cell
from vitreous.papers.works.train import train

VIT_MODEL = "S/8 width=128 depth=6 heads=4 mlp=512 image_size=64"
RESNET_MODEL = "BiT-R50x1 units=3x4 resnet_width=0.75 image_size=64"
HYBRID_MODEL = "S/8 stem=convolutions width=128 depth=6 heads=4 mlp=416 image_size=64"
SMALL_VIT = "S/8 width=64 depth=6 heads=2 mlp=256 image_size=64"
SMALL_RESNET = "BiT-R50x1 units=3x4 resnet_width=0.375 image_size=64"
SMALL_HYBRID = "S/8 stem=convolutions width=64 depth=6 heads=2 mlp=208 image_size=64"
LARGE_VIT = "S/8 width=192 depth=6 heads=6 mlp=768 image_size=64"
LARGE_RESNET = "BiT-R50x1 units=3x4 resnet_width=1.125 image_size=64"
LARGE_HYBRID = "S/8 stem=convolutions width=192 depth=6 heads=6 mlp=616 image_size=64"
UP = "tiny-imagenet"
STEPS, MANY_STEPS, SOME_STEPS, FEW_STEPS = 700, 250, 100, 30  # of a training, and of shorter ones
RECIPE: Mapping[str, Any] = {
    "length": f"{STEPS} steps", "batch": 512, "weight_decay": 0.1, "area": [0.35, 1.0], "evaluate_every": 4.0
}  # fmt: skip
FINE_TUNING: Mapping[str, Any] = {"length": "100 steps", "batch": 256, "dev": 0.0, "peak_lr": 2e-3}
SEEDS = 5

RATES_FILE = Path(__file__).parent / "rates.json"
RATES_TRIED: Mapping[str, tuple[float, ...]] = {"adamw": (3e-4, 1e-3, 3e-3), "sgd": (0.03, 0.1, 0.3)}
PILOT_SEED = 100
PILOT_RECIPE = {**RECIPE, "length": "300 steps", "batch": 256}
ONE_RATE = ("positions=", "positions_at=", "position_start=", "token_start=")  # changes that keep the rate: see C20


def recipe_for(model: str, **changes: Any) -> dict[str, Any]:
    """The recipe at the network's rate.  changes: of its fields."""
    optimizer = str(changes.get("optimizer", "adamw"))
    return {**RECIPE, "peak_lr": rate_of(model, optimizer), **changes}


def rate_of(model: str, optimizer: str = "adamw") -> float:
    """The rate that dev chose, else the middle one of those tried."""
    tried = RATES_TRIED[optimizer]
    return _rates().get(f"{network_of(model)} {optimizer}", tried[len(tried) // 2])


@cache
def _rates() -> Mapping[str, float]:
    if not RATES_FILE.is_file():
        return {}
    found: dict[str, float] = json.loads(RATES_FILE.read_text())["rates"]
    return found


def network_of(model: str) -> str:
    """The name without position kinds and starting values: such variants share the usual rate, as in P1."""
    return " ".join(word for word in model.split() if not word.startswith(ONE_RATE))


def pilots(cells: Iterable[Cell]) -> dict[str, dict[float, Cell]]:
    """Short trainings at each rate, by network and optimizer, for all cells that train by the shared recipe."""
    found: dict[str, dict[float, Cell]] = {}
    for cell in cells:
        options = cell.options
        recipe = options.get("recipe")
        if cell.work != "train" or not isinstance(recipe, Mapping) or recipe.get("area") != RECIPE["area"]:
            continue
        optimizer, model = str(recipe.get("optimizer", "adamw")), network_of(options["model"])
        changes = {name: recipe[name] for name in ("optimizer", "weight_decay") if optimizer != "adamw"}
        found[f"{model} {optimizer}"] = {
            rate: train(model, UP, PILOT_SEED, recipe={**PILOT_RECIPE, **changes, "peak_lr": rate})
            for rate in RATES_TRIED[optimizer]
        }
    return found
