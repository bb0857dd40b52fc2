"""How to train your ViT? Data, augmentation and regularisation (Steiner and others 2021, arXiv 2106.10270)."""

from __future__ import annotations

import math

from vitreous.images.pixels.augment import Augment
from vitreous.training.recipe import Epochs, Recipe, Steps
from vitreous.training.recipes.given import Given

LEVELS: dict[str, Augment] = {
    "none": Augment(),
    "light1": Augment(rand_augment=(2, 0)),  # magnitude 0 is not the identity
    "light2": Augment(rand_augment=(2, 10), mixup=0.2),
    "medium1": Augment(rand_augment=(2, 15), mixup=0.2),
    "medium2": Augment(rand_augment=(2, 15), mixup=0.5),
    "strong1": Augment(rand_augment=(2, 20), mixup=0.5),
    "strong2": Augment(rand_augment=(2, 20), mixup=0.8),
}
LARGE = 5_000_000  # images from which the choice is that of ImageNet-21k
PICKED = {  # on ImageNet, on ImageNet-21k
    "Ti/16": ("light1", "none"),
    "S/32": ("medium1", "none"),
    "S/16": ("medium2", "light1"),
    "B/32": ("medium2", "light2"),
    "B/16": ("medium2", "light2"),
    "L/16": ("medium2", "medium2"),
}


def augreg(given: Given) -> Recipe:
    """As much augmentation as the model and the number of images bear.

    Source: arXiv 2106.10270 and big_vision's configs: the level is the one picked for the model, on ImageNet or, from
    5 M images on, on ImageNet-21k; sigmoid loss whose head starts at −ln K. The paper's grid also has decay 0.03, and
    dropout and drop-path 0.1 together.
    Command: vitreous fit DATA --recipe augreg --model B/16
    Cost: 300 epochs, batch 4096: 93,835 steps of ImageNet.
    Published: pre-trained on ImageNet-21k, fine-tuned on ImageNet at 384 pixels: Ti/16 78.22 %, S/16 83.73 %, B/16
    85.49 %, L/16 85.59 %.
    """
    name = given.network("S/16")
    level = PICKED.get(name, ("medium2", "light2"))[given.images >= LARGE]
    return Recipe(
        name="augreg",
        source="arXiv 2106.10270",
        model=given.with_parts(name),
        image_size=224,
        length=Epochs(300),
        batch=4096,
        optimizer="adam",
        peak_lr=1e-3,
        weight_decay=0.1,
        clip=1.0,
        schedule="cosine",
        warmup=Steps(10_000),
        loss="sigmoid",
        head_bias=-math.log(max(given.classes, 2)),
        augment=LEVELS[level],
        dev=0.01,
    )
