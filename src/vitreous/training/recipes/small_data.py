"""Ours: from scratch on few pictures, on a GPU and on a CPU."""

from __future__ import annotations

from vitreous.images.augment import Augment
from vitreous.training.recipe import Epochs, Recipe
from vitreous.training.recipes.given import Given

__all__ = ["shown", "small_data", "small_hybrid"]

LOOKS = 40  # at dev, in a run of many epochs


def shown(given: Given, epochs: float, images: float) -> Epochs:
    """As many epochs as show `images` pictures, but not more than `epochs`, and at least 2."""
    return Epochs(max(2, min(epochs, round(images / max(given.images, 1)))))


def small_data(given: Given) -> Recipe:
    """A plain ViT from scratch on up to about 100,000 pictures.

    Source: ours. Small patches (64 tokens or more), the blocks' matrices by Muon, strong augmentation.
    Command: vitreous fit DATA --recipe small-data
    Cost: at most 10 M pictures shown.
    """
    pixels, patch = _pixels(given.side), _patch(given.side)
    is_small = pixels <= 80
    length = shown(given, 200, 10e6)
    crop = (
        Augment(size=(pixels, pixels), crop="shift", margin=max(2, pixels // 8), edge="reflect")
        if is_small
        else Augment(size=(pixels, pixels), area=(0.25, 1.0))
    )
    return Recipe(
        name="small-data",
        source="ours",
        model=given.model or f"S/{patch} depth=9 pool=gap",
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
    ).change(augment=crop, rand_augment=(2, 9), rand_augment_table="timm", mixup=0.2, cutmix=1.0)


def small_hybrid(given: Given) -> Recipe:
    """A few strided convolutions, then few tokens: the best of a CPU's minutes.

    Source: ours, after P1's finding that hybrids win at a small budget. 170,000 parameters; 28-pixel pictures become 16
    tokens.
    Command: vitreous fit DATA --recipe small-hybrid
    Cost: at most 250,000 pictures shown: about a minute on two cores at 28 pixels.
    """
    pixels = _pixels(min(given.side, 96))
    patch = 8 if pixels <= 40 else 16
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
        if pixels <= 40
        else Augment(size=(pixels, pixels), area=(0.35, 1.0), mixup=0.2),
    )


def _pixels(side: int) -> int:
    """The pictures' own size where it is small, else one of a few that patches divide."""
    if side <= 40:
        return max(side // 4, 2) * 4
    return next((size for size in (64, 96, 128, 160) if side <= size + 15), 224)


def _patch(side: int) -> int:
    pixels = _pixels(side)
    return 4 if pixels <= 40 else 8 if pixels <= 96 else 16
