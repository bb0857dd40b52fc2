"""Self-supervised: the mean colour of hidden patches (P1, section 4.6 and appendix B.1.2)."""

from __future__ import annotations

from vitreous.images.pixels.augment import Augment
from vitreous.models.config import as_size
from vitreous.training.recipe import Recipe, Steps
from vitreous.training.recipes.given import Given
from vitreous.training.recipes.small_data import shown, small_data

LARGE_IMAGE = 1_000_000  # images from which the paper's own numbers make sense


def masked_patches(given: Given) -> Recipe:
    """Learn from images without labels: half of the patches are hidden or exchanged, their mean colour is asked for.

    Source: P1, appendix B.1.2: 80 % of the chosen patches become a learned vector, 10 % another patch, 10 % stay; the
    answer is one of 512 colours. Below a million images the network is small-data's, and rate and length are ours.
    Command: vitreous fit DATA --recipe masked-patches --then DATA
    Cost: the paper's million steps of 4096; gains saturate after 100,000, which is the length here.
    Published: B/16 79.9 % on ImageNet after fine-tuning, 2 points above no pre-training and 4 below supervised.
    Measured: 8 epochs of tiny-imagenet100, then 4 with labels: 24.6 % of val; 12 with labels 31.7 %.
    """
    common = Recipe(
        name="masked-patches",
        source="arXiv 2010.11929, appendix B.1.2",
        task="masked-patches",
        masked=0.5,
        schedule="cosine",
        clip=1.0,
        dev=0.0,
    )
    if given.images >= LARGE_IMAGE:
        return common.change(
            model=given.with_parts("B/16", "mask_token=true"),
            image_size=224,
            length=Steps(100_000),
            batch=4096,
            optimizer="adam",
            peak_lr=2e-4,
            weight_decay=0.1,
            warmup=Steps(10_000),
        )
    small = small_data(given)
    rows, columns = as_size(small.image_size or 224)
    return common.change(
        model=f"{small.model} mask_token=true",
        image_size=rows,
        length=shown(given, 200, 10e6),
        batch=small.batch,
        optimizer="adamw",
        peak_lr=1e-3,
        betas=(0.9, 0.98),
        weight_decay=0.05,
        warmup=0.1,
        augment=Augment(size=(rows, columns), area=(0.35, 1.0)),
    )
