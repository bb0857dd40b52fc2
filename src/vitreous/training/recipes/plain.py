"""Better plain ViT baselines for ImageNet-1k (Beyer, Zhai and Kolesnikov 2022, arXiv 2205.01580)."""

from __future__ import annotations

from vitreous.images.pixels.augment import Augment
from vitreous.training.recipe import Epochs, Recipe, Steps
from vitreous.training.recipes.given import Given


def plain_vit(given: Given) -> Recipe:
    """A plain ViT on a million images: mean of the patches, fixed positions, mild augmentation.

    Source: arXiv 2205.01580 and big_vision's vit_s16_i1k (its decay of 1e-4 by the relative rate is 0.1 here).
    Command: vitreous fit DATA --recipe plain-vit
    Cost: 90 epochs of ImageNet, batch 1024: 111,476 steps; with --set length="300 epochs" 371,000.
    Published: S/16 76.5 % on ImageNet in 90 epochs, 80.0 % in 300.
    """
    return Recipe(
        name="plain-vit",
        source="arXiv 2205.01580",
        model=given.with_parts("S/16", "pool=gap positions=sincos-2d"),
        image_size=224,
        length=Epochs(90),
        batch=1024,
        optimizer="adam",
        peak_lr=1e-3,
        weight_decay=0.1,
        clip=1.0,
        schedule="cosine",
        warmup=Steps(10_000),
        augment=Augment(rand_augment=(2, 10), mixup=0.2),
        dev=0.01,
    )
