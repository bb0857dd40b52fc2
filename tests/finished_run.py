"""A finished run as a page tells it: real images, a real small network whose head is fitted by least squares."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import torch
from pictures_in_memory import Arrays

import vitreous
from vitreous.evaluation.calibration import fit_temperature, softmax
from vitreous.images.imageset import ImageSet
from vitreous.images.pixels.preprocess import apply
from vitreous.machine import record
from vitreous.measures.explain import look_at
from vitreous.models.cost import macs
from vitreous.models.model import Model
from vitreous.training.recipe import Recipe
from vitreous.training.run.events import known
from vitreous.training.run.trained import Rival
from vitreous.training.tell.summary import Summary, places_to_look_at

LEARNED, JUDGED = 1200, 400
RECIPE = Recipe(name="small-data", source="ours", batch=128, peak_lr=2e-3).change(length="12 epochs", mixup=0.2)


def story(**changes: Any) -> Summary:
    """The run on the embedded set, with fields replaced."""
    return Summary(**{**_fields(), **changes})


def invented(count: int, classes: int, *, right: float = 0.8, seed: int = 0, **changes: Any) -> Summary:
    """The same run on pictures of noise, with answers drawn at random of which about a share `right` are right."""
    draw = np.random.default_rng(seed)
    labels = np.arange(count) % classes
    names = tuple(f"class {k}" for k in range(classes))
    pixels = [draw.integers(0, 256, (12, 16, 3), np.uint8) for _ in range(count)]
    splits = np.full(count, "test")
    data = ImageSet(Arrays(pixels), np.arange(count), labels, names, splits, "noise", "arrays", "0" * 32)
    answers = np.where(draw.random(count) < right, labels, draw.integers(0, classes, count))
    logits = draw.normal(size=(count, classes)) + 5.0 * np.eye(classes)[answers]
    given = {"judged": data, "probabilities": softmax(logits), "health": None, "attention": None, "rivals": ()}
    return story(**{**given, **changes})


@cache
def _fields() -> dict[str, Any]:
    data = vitreous.images.open("fashion")
    learned, judged = _some(data.split("train"), LEARNED), _some(data.split("test"), JUDGED)
    model, probabilities = fitted(learned, judged)
    given = {
        "name": "fashion",
        "command": "vitreous fit fashion --recipe small-data --set length='12 epochs' --out runs/fashion-1",
        "judged": judged,
        "probabilities": probabilities,
        "judged_by": "test",
        "splits": {"train": LEARNED - 120, "dev": 120, "test": JUDGED},
        "recipe": RECIPE,
        "reasons": [
            "small-data: no weights were given, and 1,080 images of 28 × 28 pixels are few, so a small network with "
            "patches of 7 pixels learns most in the time there is.",
            "12 epochs, since dev stopped gaining there in our own trials.",
        ],
        "model": "ViT, 2 layers of width 192, patch 7",
        "parameters": sum(p.numel() for p in model.parameters()),
        "macs": macs(model.config),
        "image_size": model.config.image_size,
        "events": known(events()),
        "seconds": 41.3,
        "total_seconds": 63.0,
        "device": "2 CPU cores",
        "record": record(),
        "health": vitreous.check(judged, cache=False, workers=0),
        "temperature": 1.31,
        "answer_above": 0.6,
        "unlike": 18,
        "rivals": [Rival("logistic regression on pixels", int(0.72 * JUDGED), JUDGED)],
        "folder": "runs/fashion-1",
    }
    places = places_to_look_at(Summary(**given).result)
    return given | {"attention": look_at(model, judged, places)}


def _some(data: ImageSet, count: int) -> ImageSet:
    return data.take(np.linspace(0, len(data) - 1, count).astype(int))


def fitted(learned: ImageSet, judged: ImageSet) -> tuple[Model, np.ndarray]:
    """A network of random features with a ridge head, and its calibrated answers to the images judged."""
    model = vitreous.build(
        "Ti/7", image_size=28, channels=1, classes=10, width=192, depth=2, heads=3, mlp=384, pool="gap", seed=0
    ).eval()
    with torch.no_grad():
        model.embedding.positions.table.mul_(30)  # random features must know where they are
    x, z = _features(model, learned), _features(model, judged)
    middle, spread = x.mean(0), x.std(0) + 1e-6
    x, z = (x - middle) / spread, (z - middle) / spread
    y = 2.0 * torch.eye(10, dtype=torch.float64)[torch.from_numpy(learned.labels)] - 1
    x, z = (torch.cat([part, torch.ones(len(part), 1, dtype=torch.float64)], 1) for part in (x, z))
    weights = torch.linalg.solve(x.mT @ x + 30 * torch.eye(x.shape[1], dtype=torch.float64), x.mT @ y)
    with torch.no_grad():
        model.head.weight.copy_((weights[:-1] / spread[:, None]).mT)
        model.head.bias.copy_(weights[-1] - (middle / spread) @ weights[:-1])
    model.labels = learned.classes
    logits = (z @ weights).numpy()
    return model, softmax(logits, fit_temperature(logits, judged.labels))


def _features(model: Model, data: ImageSet) -> torch.Tensor:
    images = torch.stack([apply(data.read(i), model.preprocess) for i in range(len(data))])
    with torch.inference_mode():
        return torch.cat([model.features(part) for part in images.split(256)]).double()


def events() -> list[dict[str, Any]]:
    """Such as a loop leaves."""
    draw, found = np.random.default_rng(0), []
    per_epoch, epochs = 10, 12
    for step in range(1, per_epoch * epochs + 1):
        t = step / (per_epoch * epochs)
        right = 0.80 - 0.70 * np.exp(-5 * t)
        found.append(
            {
                "kind": "step",
                "stage": "fit",
                "step": step,
                "epoch": step / per_epoch,
                "loss": float(0.55 + 1.75 * np.exp(-5 * t) + 0.05 * draw.standard_normal()),
                "accuracy": float(right + 0.02 * draw.standard_normal()),
                "lr": float(2e-3 * min(step / 6, 0.5 + 0.5 * np.cos(np.pi * t))),
            }
        )
        if step % per_epoch == 0:
            dev = {"accuracy": float(right - 0.03), "loss": float(0.6 + 1.8 * np.exp(-5 * t)), "best": step < 115}
            found.append({"kind": "dev", "stage": "fit", "step": step, "epoch": step / per_epoch, **dev})
    return found
