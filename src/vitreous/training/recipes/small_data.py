"""Ours: from scratch on few images, on a GPU and on a CPU."""

from __future__ import annotations

from vitreous.images.pixels.augment import Augment
from vitreous.training.recipe import Epochs, Recipe
from vitreous.training.recipes.given import Given

LOOKS = 40  # at dev, in a run of many epochs
TINY, SMALL_IMAGE = 40, 80  # pixels of a side


def shown(given: Given, epochs: float, images: float) -> Epochs:
    """As many epochs as show `images` images, but not more than `epochs`, and at least 2."""
    return Epochs(max(2, min(epochs, round(images / max(given.images, 1)))))


def small_data(given: Given) -> Recipe:
    """A plain ViT from scratch on up to about 100,000 images.

    Source: ours. Small patches (64 tokens or more), the blocks' matrices by Muon, MixUp and CutMix; images of up to
    40 pixels get a narrow network and no RandAugment, which fell behind there in the time of a run.
    Command: vitreous fit DATA --recipe small-data
    Cost: at most 12.5 M images shown: 3.5 minutes at 32 pixels on an H200.
    Measured: CIFAR-10, 6.4 M parameters, 192 s of training: 95.52, 95.25, 95.17 % of test (seeds 0, 1, 2).
    """
    pixels, patch = _pixels(given.side), _patch(given.side)
    length = shown(given, 250, 12.5e6)
    if pixels <= TINY:
        network = f"S/{patch} width=256 depth=8 heads=4 mlp=1024 pool=gap"
    else:
        network = f"S/{patch} depth=9 pool=gap"
    if pixels <= SMALL_IMAGE:
        crop = Augment(size=(pixels, pixels), crop="shift", margin=max(2, pixels // 8), edge="reflect")
    else:
        crop = Augment(size=(pixels, pixels), area=(0.25, 1.0))
    return Recipe(
        name="small-data",
        source="ours",
        model=given.model or network,
        image_size=pixels,
        length=length,
        evaluate_every=max(1.0, length.count / LOOKS),
        batch=given.batch(512),
        optimizer="muon",
        muon_lr=0.02,
        momentum=0.95,
        peak_lr=1e-3,
        betas=(0.9, 0.98),
        weight_decay=0.1,
        clip=1.0,
        schedule="cosine",
        warmup=0.1,
        smoothing=0.1,
        drop_path=0.1,
    ).change(
        augment=crop,
        rand_augment=None if pixels <= TINY else (2, 9),
        rand_augment_table="timm",
        mixup=0.2,
        cutmix=1.0,
    )


def small_hybrid(given: Given) -> Recipe:
    """A few strided convolutions, then few tokens: the best of a CPU's minutes.

    Source: ours, after P1's finding that hybrids win at a small budget. 170,000 parameters; 28-pixel images become 16
    tokens.
    Command: vitreous fit DATA --recipe small-hybrid
    Cost: at most 250,000 images shown: about a minute on two cores at 28 pixels.
    Measured: 8,700 clothes, 1,200 steps: 87.6, 87.1, 88.0 % of 2,200 test images (seeds 0, 1, 2).
    """
    pixels = _pixels(min(given.side, 96))
    patch = 8 if pixels <= TINY else 16
    length = shown(given, 60, 250e3)
    return Recipe(
        name="small-hybrid",
        source="ours",
        model=given.model or f"Ti/{patch} stem=convolutions width=64 depth=4 heads=2 mlp=128 pool=gap",
        image_size=pixels,
        length=length,
        evaluate_every=max(1.0, length.count / LOOKS),
        batch=given.batch(128),
        optimizer="adamw",
        peak_lr=3e-3,
        betas=(0.9, 0.98),
        weight_decay=0.05,
        clip=1.0,
        schedule="cosine",
        end_lr=3e-5,
        warmup=0.1,
        smoothing=0.05,
        augment=Augment(size=(pixels, pixels), crop="none", mixup=0.2)
        if pixels <= TINY
        else Augment(size=(pixels, pixels), area=(0.35, 1.0), mixup=0.2),
    )


def _pixels(side: int) -> int:
    """The images' own size where it is small, else one of a few that patches divide."""
    if side <= TINY:
        return max(side // 4, 2) * 4
    return next((size for size in (64, 96, 128, 160) if side <= size + 15), 224)


def _patch(side: int) -> int:
    pixels = _pixels(side)
    return 4 if pixels <= TINY else 8 if pixels <= 96 else 16
