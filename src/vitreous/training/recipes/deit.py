"""Data-efficient image Transformers (DeiT, Touvron and others 2020, arXiv 2012.12877)."""

from __future__ import annotations

from vitreous.images.pixels.augment import Augment
from vitreous.training.recipe import Epochs, Recipe
from vitreous.training.recipes.given import Given

BATCH = 1024
TOKENS = "activation=gelu token_start=normal"
TWO_HEADS = "distillation_token=true pool=cls-and-distillation distillation_head=true"


def deit(given: Given) -> Recipe:
    """A million images with strong augmentation, each shown three times an epoch.

    Source: DeiT, table 9 and its code; the schedule goes by whole epochs. Values lie in −1 … 1 here, as in P1.
    Command: vitreous fit DATA --recipe deit --model B/16
    Cost: 300 epochs of ImageNet, batch 1024; B/16 took 53 hours on 8 V100 (from memory).
    Published: Ti/16 72.2 %, S/16 79.9 %, B/16 81.8 % on ImageNet.
    """
    return Recipe(
        name="deit",
        source="arXiv 2012.12877, table 9",
        model=given.with_parts("S/16", TOKENS),
        image_size=224,
        length=Epochs(300),
        batch=BATCH,
        optimizer="adamw",
        peak_lr=5e-4 * BATCH / 512,
        weight_decay=0.05,
        clip=None,
        schedule="deit",
        warmup=Epochs(5),
        warmup_lr=1e-6,
        end_lr=1e-5,
        smoothing=0.1,
        drop_path=0.1,
        average="ema",
        average_decay=0.99996,
        repeats=3,
        augment=Augment(
            area=(0.08, 1.0),
            rand_augment=(2, 9),
            rand_augment_table="timm",
            rand_augment_deviation=0.5,
            mixup=0.8,
            cutmix=1.0,
            erase=0.25,
        ),
        dev=0.01,
    )


def distilled(given: Given) -> Recipe:
    """DeiT with a second token that learns a teacher's answers.

    Source: DeiT, section 5: half of the loss is the teacher's first answer, read off the distillation token.
    Command: vitreous fit DATA --recipe deit-distilled --set teacher=MODEL; without one, the newest run is the teacher
    Cost: that of deit, and the teacher's forward pass.
    Published: Ti/16 74.5 %, S/16 81.2 %, B/16 83.4 % on ImageNet, from a RegNetY-16GF.
    """
    return deit(given).change(
        name="deit-distilled",
        source="arXiv 2012.12877, section 5",
        model=given.with_parts("S/16", f"{TOKENS} {TWO_HEADS}"),
        teacher="last",
        distillation="hard",
        distillation_share=0.5,
    )
