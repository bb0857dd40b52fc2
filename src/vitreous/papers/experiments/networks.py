"""The rivals of E-DATA and E-SIZE: a ViT, a hybrid and a ResNet of equal compute in three sizes, and what they learn.

Every size and scale has one cost in multiply-adds within 10 % of its ViT's; parameters follow from it and differ.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from vitreous.papers.experiment import ArmTable, Cell, GridCell, ScaleName
from vitreous.papers.experiments import gpu_scale
from vitreous.papers.works.probe import few_shot
from vitreous.papers.works.train import train

VIT, HYBRID, RESNET = KINDS = ("ViT", "hybrid", "ResNet")
SMALL, MEDIUM, LARGE = SIZE_NAMES = ("small", "middle", "large")
EQUAL_COMPUTE = "compute (multiply-adds within 10 % of the ViT's), steps, images seen, recipe"

_GREY = "image_size=32 channels=1"
NETWORKS: Mapping[ScaleName, Mapping[str, Mapping[str, str]]] = {
    "laptop": {
        SMALL: {
            VIT: f"S/8 width=32 depth=4 heads=4 mlp=64 {_GREY}",
            HYBRID: f"S/8 stem=convolutions width=32 depth=4 heads=4 mlp=40 {_GREY}",
            RESNET: f"BiT-R50x1 units=1x1x1 resnet_width=0.15625 {_GREY}",
        },
        MEDIUM: {
            VIT: f"S/8 width=48 depth=4 heads=4 mlp=96 {_GREY}",
            HYBRID: f"S/8 stem=convolutions width=48 depth=4 heads=4 mlp=56 {_GREY}",
            RESNET: f"BiT-R50x1 units=1x1x1 resnet_width=0.25 {_GREY}",
        },
        LARGE: {
            VIT: f"S/8 width=72 depth=4 heads=4 mlp=144 {_GREY}",
            HYBRID: f"S/8 stem=convolutions width=72 depth=4 heads=4 mlp=80 {_GREY}",
            RESNET: f"BiT-R50x1 units=1x1x1 resnet_width=0.375 {_GREY}",
        },
    },
    "gpu": {
        SMALL: {
            VIT: gpu_scale.SMALL_VIT,
            HYBRID: gpu_scale.SMALL_HYBRID,
            RESNET: gpu_scale.SMALL_RESNET,
        },
        MEDIUM: {VIT: gpu_scale.VIT_MODEL, HYBRID: gpu_scale.HYBRID_MODEL, RESNET: gpu_scale.RESNET_MODEL},
        LARGE: {
            VIT: gpu_scale.LARGE_VIT,
            HYBRID: gpu_scale.LARGE_HYBRID,
            RESNET: gpu_scale.LARGE_RESNET,
        },
    },
    "full": {
        SMALL: {VIT: "S/32", HYBRID: "R26+S/32 units=1x1x1x1 resnet_width=0.25", RESNET: "BiT-R50x0.5"},
        MEDIUM: {VIT: "B/32", HYBRID: "R26+B/32 units=1x1x1x1 resnet_width=0.5", RESNET: "BiT-R50x1"},
        LARGE: {VIT: "L/32", HYBRID: "R50+L/32 units=2x2x2x2 depth=20", RESNET: "BiT-R50x2"},
    },
}

# Six of the ten kinds of clothes are learned; four, two pairs of similar kinds, stay unseen for transfer.
LEARNED = ("T-shirt/top", "Trouser", "Dress", "Shirt", "Bag", "Ankle boot")
UNSEEN = ("Pullover", "Coat", "Sandal", "Sneaker")
SHARES = ("1 %", "3 %", "10 %", "30 %", "100 %")  # of UP
ALL = SHARES[-1]
LEARNING: Mapping[ScaleName, dict[str, Any]] = {
    "laptop": {
        "data": "fashion",
        "classes": LEARNED,
        "shares": {"3 %": 157, "10 %": 522, "30 %": 1566, ALL: 5220},
        "recipe": {"length": "150 steps", "batch": 64, "peak_lr": 3e-3, "weight_decay": 0.05}
        | {"crop": "none", "flip": 0.0},
        "rates": (),
        "down": ("unseen clothes",),
        "shots_of": ("fashion",),
    },
    "gpu": {
        "data": "tiny-imagenet",
        "classes": None,
        "shares": {"3 %": 1500, "10 %": 5000, "30 %": 15000, ALL: 50000},
        "recipe": gpu_scale.RECIPE,
        "rates": (),
        "down": ("imagenette",),
        "shots_of": ("imagenette",),
    },
    "full": {
        "data": "imagenet21k",
        "classes": None,
        "shares": {"1 %": 142_000, "3 %": 426_000, "10 %": 1_420_000, "30 %": 4_260_000, ALL: 14_200_000},
        "recipe": {"length": "310000 steps", "batch": 4096, "peak_lr": 1e-3, "weight_decay": 0.03},
        "rates": (3e-4, 1e-3, 3e-3),
        "down": ("imagenet", "pets", "cifar10"),
        "shots_of": ("imagenet",),
    },
}
FULL_TUNING: Mapping[str, Any] = {"length": "20000 steps", "batch": 64}
SHOTS = 5
MANY_SHOTS = 100  # of each unseen class, for the laptop's transfer, which takes no steps


def kinds_of(scale: ScaleName, share: str) -> Sequence[str]:
    """No claim of E-DATA reads a hybrid, so at gpu scale it learns only from all data; E-SIZE adds shares."""
    return KINDS if scale != "gpu" or share == ALL else (VIT, RESNET)


def learned(scale: ScaleName, network: str, share: str, seed: int, **changes: Any) -> Cell:
    """A network that learns a share of UP.  changes: of the recipe."""
    how = LEARNING[scale]
    images = None if share == ALL else how["shares"][share]
    recipe = gpu_scale.recipe_for(network, **changes) if scale == "gpu" else how["recipe"] | changes
    rates = () if "peak_lr" in changes else how["rates"]
    return train(network, how["data"], seed, images=images, classes=how["classes"], recipe=recipe, rates=rates)


def arm_of(kind: str, share: str, size: str = MEDIUM) -> str:
    """`ViT, 10 %`; sizes other than the middle one are named first."""
    return f"{kind}, {share}" if size == MEDIUM else f"{size} {kind}, {share}"


def with_transfer(scale: ScaleName, arm: str, seed: int, trained: Cell) -> Iterator[GridCell]:
    """The training, and its transfers to DOWN in separate arms: by fine-tuning, or by least squares on a laptop."""
    yield GridCell(arm, seed, trained)
    for down in LEARNING[scale]["down"]:
        yield GridCell(f"{arm} → {down}", seed, _transferred(scale, trained, seed, down))


def _transferred(scale: ScaleName, trained: Cell, seed: int, down: str) -> Cell:
    if scale == "laptop":
        return few_shots(scale, trained)[0]
    how = gpu_scale.FINE_TUNING if scale == "gpu" else FULL_TUNING
    return train(None, down, seed, recipe="fine-tune", weights=trained, **how)


def few_shots(scale: ScaleName, trained: Cell) -> list[Cell]:
    if scale == "laptop":
        return [few_shot(trained, "fashion", shots=(SHOTS, MANY_SHOTS), images=1000, classes=UNSEEN)]
    return [few_shot(trained, data, shots=(SHOTS,)) for data in LEARNING[scale]["shots_of"]]


def downstream(table: ArmTable) -> ArmTable:
    """The table with two more readings of each arm: `transfer` and `shots`, means over the sets of DOWN."""
    rows: dict[str, dict[int, dict[str, Any]]] = {}
    for arm in (arm for arm in table.arms if " → " not in arm):
        downs = [other for other in table.arms if other.startswith(f"{arm} → ")]
        for seed, row in table.rows[arm].items():
            found = [_accuracy_after(table.rows[other].get(seed, {})) for other in downs]
            shots = [value for name, value in row.items() if name.startswith(f"{SHOTS}_shot_")]
            rows.setdefault(arm, {})[seed] = dict(row) | {"transfer": _mean(found), "shots": _mean(shots)}
    return ArmTable(rows)


def _accuracy_after(row: Mapping[str, Any]) -> float | None:
    return row.get("accuracy", row.get(f"{MANY_SHOTS}_shot_fashion"))


def _mean(values: Sequence[float | None]) -> float | None:
    """None if one is missing: a mean over fewer sets would be another reading."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known and len(known) == len(values) else None


def shares_in(table: ArmTable, kind: str, size: str = MEDIUM) -> dict[str, float]:
    """The shares that the table has of a kind, smallest first, with their log10: slopes are per ten times the data."""
    return {share: math.log10(float(share.split()[0])) for share in SHARES if arm_of(kind, share, size) in table.arms}


def by_data(table: ArmTable, kind: str, size: str = MEDIUM) -> dict[str, float]:
    """The arms of a kind, with the log10 of their share."""
    return {arm_of(kind, share, size): log for share, log in shares_in(table, kind, size).items()}
