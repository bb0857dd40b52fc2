"""Small runs: generated pictures, a network of a few thousand numbers, recipes of a few steps."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from picture_sets import Arrays
from PIL import Image
from torch import Tensor

import vitreous
from vitreous.images.batches.batches import Batch
from vitreous.images.embedded import shapes
from vitreous.images.imageset import ImageSet
from vitreous.models.model import Model
from vitreous.models.preprocess import Preprocess
from vitreous.training.plan import plan as plans
from vitreous.training.plan.plan import Plan
from vitreous.training.plan.request import Request
from vitreous.training.recipe import Recipe
from vitreous.training.run.loop import Loop
from vitreous.training.run.runtime import Runtime
from vitreous.training.run.stage import TrainingStage
from vitreous.training.run.tasks.classify import Classify

SIDE = 16
CPU = torch.device("cpu")
MODEL = "Ti/4 width=16 depth=2 heads=2 mlp=32"
PLAIN = Recipe(name="small", batch=8, peak_lr=3e-3, weight_decay=0.05).change(length="6 steps", crop="none", flip=0.0)
SMALL = PLAIN.change(image_size=SIDE, dev=0.2, length="4 steps")
BUSY = PLAIN.change(  # all that is drawn, and all that is kept beside the weights
    drop_path=0.2, dropout=0.1, mixup=0.4, flip=0.5, crop="shift", margin=2, smoothing=0.1, average="ema"
)


def plan_of(data: Any, *, say: Any = None, device: torch.device = CPU, workers: int | None = 0, **asked: Any) -> Plan:
    """The plan of a run on the CPU.  say: called with every line."""
    tell = (lambda event: say(event["text"]) if event["kind"] == "say" else None) if say else lambda event: None
    return plans.make(Request(data=data, **asked), Runtime(device, workers=workers, tell=tell))


def make_loop(task: Any, recipe: Recipe, train: ImageSet, dev: ImageSet | None = None, **options: Any) -> Loop:
    """A loop on the CPU; options go to the loop, its stage or its runtime."""
    own = {name: options.pop(name) for name in ("folder", "captured", "save_seconds") if name in options}
    stage = TrainingStage(task, task.network, recipe, train, rule(), dev, options.pop("stage", "fit"))
    return Loop(stage, Runtime(CPU, **{"workers": 0, **options}), **own)


def pixels(count: int, side: int = SIDE, channels: int = 3, first: int = 0) -> tuple[NDArray[np.uint8], NDArray[Any]]:
    """Generated pictures, N H W C, and the kinds of their shapes."""
    drawn, kinds = shapes.batch(range(first, first + count))
    small = [np.asarray(Image.fromarray(one).resize((side, side), Image.Resampling.BOX)) for one in drawn]
    return np.stack(small)[..., :channels], kinds


def image_set(count: int, *, test: int = 0, channels: int = 3, labels: Any = None, **about: Any) -> ImageSet:
    """Those pictures as a set, the last `test` of them its test split."""
    images, kinds = pixels(count, channels=channels)
    labels = kinds if labels is None else np.asarray(labels, np.int64)
    classes = shapes.SHAPE_NAMES if labels.ndim == 1 else tuple(f"fact {k}" for k in range(labels.shape[1]))
    splits = np.where(np.arange(count) < count - test, "train", "test")
    name = hashlib.sha256(images.tobytes() + labels.tobytes()).hexdigest()[:32]
    found = ImageSet(Arrays(images), np.arange(count), labels, classes, splits, "shapes", "memory", name)
    return replace(found, channels=channels, groups=np.arange(count), **about)


def picture_folder(root: Path, count: int, *, channels: int = 3, side: int = SIDE, first: int = 0) -> Path:
    """Those pictures as PNG files, a folder for each kind."""
    images, kinds = pixels(count, side, channels, first)
    for i, (image, kind) in enumerate(zip(images, kinds, strict=True)):
        file = root / shapes.SHAPE_NAMES[kind] / f"{first + i:04}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image if channels == 3 else image[..., 0]).save(file)
    return root


def tinted_folder(root: Path, count: int, *, strength: float = 40.0, seed: int = 0) -> Path:
    """Noise with a tint that is the class, told apart by any network; the weaker the strength, the worse."""
    draw = np.random.default_rng(seed)
    for i in range(count):
        colour = draw.normal(strength * np.eye(4)[i % 4, :3], 20)
        noise = draw.normal(110, 25, (SIDE, SIDE, 3)) + colour
        file = root / ("red", "green", "blue", "none")[i % 4] / f"{i:04}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(noise.clip(0, 255).astype(np.uint8)).save(file)
    return root


def sized(recipe: Recipe, side: int = SIDE) -> Recipe:
    """As `fit` makes it for pictures of this side."""
    return replace(recipe, augment=replace(recipe.augment, size=(side, side), margin=min(recipe.augment.margin, 4)))


def rule(channels: int = 3, side: int = SIDE) -> Preprocess:
    half = (0.5,) * channels
    return Preprocess(size=(side, side), fit="squash", antialias=True, mean=half, std=half, source="vitreous")


def network(recipe: Recipe = PLAIN, *, classes: int = 4, channels: int = 3, seed: int = 0) -> Model:
    """With the recipe's dropout; its head is no longer zero, so that every weight has a gradient."""
    model = vitreous.build(
        MODEL,
        image_size=SIDE,
        classes=classes,
        channels=channels,
        dropout=recipe.dropout or 0.0,
        drop_path=recipe.drop_path or 0.0,
        seed=seed,
    )
    with torch.no_grad():
        model.head.weight.normal_(0, 0.1, generator=torch.Generator().manual_seed(seed))
    model.preprocess = rule(channels)
    return model


class Poisoned(Classify):
    """A batch with one of these pictures has a loss, or a gradient, that is no number."""

    def __init__(self, model: Model, recipe: Recipe, ids: Any, where: str = "loss"):
        super().__init__(model, recipe)
        self.ids, self.where = np.asarray(ids), where

    def host(self, batch: Batch) -> dict[str, NDArray[Any]]:
        return {"poison": np.where(np.isin(batch.ids, self.ids), np.float32(1), np.float32(0))}

    def loss(self, images: Tensor, targets: Tensor, extra: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        loss, right = super().loss(images, targets, extra)
        poison = extra["poison"].sum()
        if self.where == "loss":
            return (loss * float("nan") if poison > 0 else loss), right
        slopeless = (0 * self.network.head.bias.sum()).sqrt()  # 0, and √ has no slope there
        return (loss + slopeless if poison > 0 else loss), right


def assert_equal_states(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> None:
    """Bit for bit."""
    assert ours.keys() == theirs.keys()
    for name, tensor in theirs.items():
        assert torch.equal(ours[name], tensor), name


def fitted(data, out, **options):
    return vitreous.fit(
        data,
        **{"model": MODEL, "recipe": SMALL, "device": "cpu", "workers": 0, "check": False, "folds": 0, **options},
        out=out,
    )


class Death(Exception):
    """An end that nobody foresaw."""


def die_at(step, stage="fit"):
    def tell(event):
        if event["kind"] == "step" and (event["step"], event["stage"]) == (step, stage):
            raise Death

    return tell
