"""DeiT III: Revenge of the ViT (Touvron, Cord and Jégou 2022, arXiv 2204.07118)."""

from __future__ import annotations

from vitreous.images.pixels.augment import Augment
from vitreous.training.recipe import Epochs, Recipe
from vitreous.training.recipes.given import Given

PUBLISHED_ROWS = {  # pixels, peak rate, drop-path, and drop-path at the higher resolution
    "S/16": (224, 4e-3, 0.05, 0.05),
    "B/16": (192, 3e-3, 0.2, 0.2),
    "L/16": (192, 3e-3, 0.45, 0.45),
    "H/14": (154, 3e-3, 0.6, 0.55),  # the readme has 160, which 14 does not divide
}
PARTS = "activation=gelu token_start=normal positions_cover=patches layer_scale=1e-4"  # its start is from memory


def deit3(given: Given) -> Recipe:
    """Long training with LAMB, layer scale and three simple augmentations.

    Source: arXiv 2204.07118 and its readme; each class by itself (sigmoid). Clip 1 is its LAMB's own.
    Command: vitreous fit DATA --recipe deit3 --model B/16
    Cost: 800 epochs of ImageNet, batch 2048.
    Published: on ImageNet S/16 81.4 %, B/16 83.8 %, L/16 84.9 %, H/14 85.2 %, all but S/16 after 20 epochs of
    deit3-finetune.
    """
    name = given.network("S/16")
    pixels, peak, drop_path, _ = PUBLISHED_ROWS.get(name, PUBLISHED_ROWS["S/16"])
    return Recipe(
        name="deit3",
        source="arXiv 2204.07118",
        model=given.with_parts(name, PARTS),
        image_size=pixels,
        length=Epochs(800),
        batch=2048,
        optimizer="lamb",
        peak_lr=peak,
        weight_decay=0.05,
        clip=1.0,  # from memory
        schedule="deit",
        warmup=Epochs(5),
        warmup_lr=1e-6,
        end_lr=1e-5,
        loss="sigmoid",
        drop_path=drop_path,
        repeats=3,
        augment=Augment(area=(0.08, 1.0), three_augment=True, colour_jitter=0.3, mixup=0.8, cutmix=1.0),
        dev=0.01,
    )


def higher_resolution(given: Given) -> Recipe:
    """The last 20 epochs of DeiT III, at 224 pixels.

    Source: arXiv 2204.07118 and its readme.
    Command: vitreous fit DATA --weights RUN --recipe deit3-finetune
    Cost: 20 epochs, batch 512.
    Published: with deit3 before it B/16 83.8 %, L/16 84.9 %, H/14 85.2 % on ImageNet.
    """
    return Recipe(
        name="deit3-finetune",
        source="arXiv 2204.07118",
        image_size=224,
        length=Epochs(20),
        batch=512,
        optimizer="adamw",
        peak_lr=1e-5,
        weight_decay=0.1,
        clip=None,
        schedule="deit",
        warmup=Epochs(5),
        warmup_lr=1e-6,
        end_lr=1e-5,
        smoothing=0.1,
        drop_path=PUBLISHED_ROWS.get(given.network("S/16"), PUBLISHED_ROWS["S/16"])[3],
        augment=Augment(
            area=(0.08, 1.0),
            rand_augment=(2, 9),
            rand_augment_table="timm",
            rand_augment_deviation=0.5,
            mixup=0.8,
            cutmix=1.0,
        ),
        dev=0.01,
    )
