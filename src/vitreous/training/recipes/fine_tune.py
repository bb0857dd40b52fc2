"""Ours: a pre-trained network on a few thousand pictures, in seconds on a GPU."""

from __future__ import annotations

from vitreous.images.augment import Augment
from vitreous.training.recipe import Epochs, Recipe
from vitreous.training.recipes.given import Given

__all__ = ["fine_tune"]

SHOWN = 2e6  # pictures, all epochs together


def fine_tune(given: Given) -> Recipe:
    """Every layer of pre-trained weights, the lower ones more slowly.

    Source: ours. AdamW, each layer at 0.75 of the rate of the one above it, mild augmentation and MixUp.
    Command: vitreous fit DATA --weights MODEL --recipe fine-tune
    Cost: 40 epochs, at most 2 M pictures shown.
    """
    epochs = Epochs(max(2, min(40, round(SHOWN / max(given.images, 1)))))
    return Recipe(
        name="fine-tune",
        source="ours",
        length=epochs,
        evaluate_every=max(1.0, epochs.count / 10),
        batch=given.batch(128),
        optimizer="adamw",
        peak_lr=6e-4,
        weight_decay=0.05,
        policy="layer-decay",
        clip=1.0,
        schedule="cosine",
        warmup=0.1,
        smoothing=0.1,
        augment=Augment(area=(0.2, 1.0), mixup=0.2),
        dev=0.05,
    )
