"""Ours: a pre-trained network on a few thousand images, in seconds on a GPU."""

from __future__ import annotations

from vitreous.images.pixels.augment import Augment
from vitreous.training.recipe import Epochs, Recipe
from vitreous.training.recipes.given import Given

BATCH = 128
FEW_IMAGES_STEPS = 320  # enough for a few thousand images: of Pets 12 epochs gave what 40 did (NOTES.md)
MANY = 20_000  # images, from which more steps pay, as in BiT's rule
MAX_IMAGES_SHOWN = 2e6  # images, all epochs together


def fine_tune(given: Given) -> Recipe:
    """Every layer of pre-trained weights, the lower ones more slowly.

    Source: ours. AdamW, each layer at 0.75 of the rate of the one above it, mild augmentation and MixUp.
    Command: vitreous fit DATA --weights MODEL --recipe fine-tune
    Cost: 320 steps, in 12 to 40 epochs; of 20,000 images and more 40 epochs, at most 2 M images shown.
    Measured: Oxford Pets at 160 pixels from DeiT-Ti, one H200, 44 to 50 s in all: 88.8, 89.1, 89.2 % of test.
    """
    epochs = Epochs(_epochs(max(given.images, 1)))
    return Recipe(
        name="fine-tune",
        source="ours",
        length=epochs,
        evaluate_every=max(1.0, epochs.count / 10),
        batch=given.batch(BATCH),
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


def _epochs(images: int) -> int:
    if images < MANY:
        return max(12, min(40, round(FEW_IMAGES_STEPS * BATCH / images)))
    return max(2, min(40, round(MAX_IMAGES_SHOWN / images)))
