"""Big Transfer (BiT, arXiv 1912.11370): pre-training, and the one rule for every fine-tuning."""

from __future__ import annotations

from dataclasses import dataclass

from vitreous.images.pixels.augment import Augment
from vitreous.models.config import Size
from vitreous.training.recipe import Epochs, Recipe, Steps
from vitreous.training.recipes.given import Given

SMALL_SET, MEDIUM = 20_000, 500_000  # images below which a set is small, medium


def pretraining(given: Given) -> Recipe:
    """Supervised pre-training of a ResNet with group norm and standardised kernels.

    Source: BiT, section 3 and its code: SGD 0.03 · batch / 256, decay 1e-4, tenths at epochs 30, 60, 80 of 90; from
    100 M images on at 10, 23, 30, 37 of 40 (BiT-L).
    Command: vitreous fit DATA --recipe bit-pretrain --model BiT-R50x1
    Cost: 90 epochs of ImageNet, batch 4096: 28,080 steps.
    Published: R50x1 with this norm 76.0 % on ImageNet; R152x4 fine-tuned from 1.28 M images (S) 81.30 %, 14 M (M)
    85.39 %, 300 M (L) 87.54 %.
    """
    epochs, tenths = (90, (30, 60, 80)) if given.images < 100_000_000 else (40, (10, 23, 30, 37))
    return Recipe(
        name="bit-pretrain",
        source="arXiv 1912.11370, section 3",
        model=given.with_parts("BiT-R50x1"),
        image_size=224,
        length=Epochs(epochs),
        batch=4096,
        optimizer="sgd",
        momentum=0.9,
        peak_lr=0.03 * 4096 / 256,
        weight_decay=1e-4,
        clip=None,
        schedule="steps",
        drops=tuple(epoch / epochs for epoch in tenths),
        warmup=Steps(5000),
        dev=0.01,
    )


@dataclass(frozen=True)
class HyperRule:
    """What BiT's code takes from the size of the images and their number."""

    resize: int  # pixels of the square that an image is squashed to
    crop: int  # pixels of the square cut out of it
    points: tuple[int, ...]  # end of the warm-up, then steps after which the rate is a tenth
    steps: int
    mixup: float


def hyperrule(image_size: Size, images: int) -> HyperRule:
    """BiT-HyperRule. (The paper's text has 448 / 384 pixels, and other tenths of the 500 steps; this is its code.)"""
    resize, crop = (160, 128) if image_size[0] * image_size[1] < 96 * 96 else (512, 480)
    if images < SMALL_SET:
        return HyperRule(resize, crop, (100, 200, 300, 400), 500, 0.0)
    if images < MEDIUM:
        return HyperRule(resize, crop, (500, 3000, 6000, 9000), 10_000, 0.1)
    return HyperRule(resize, crop, (500, 6000, 12_000, 18_000), 20_000, 0.1)


def fine_tuning(given: Given) -> Recipe:
    """BiT-HyperRule: fine-tuning where nothing is chosen but by the number and size of the images.

    Source: BiT, section 3.3 and its code: SGD 0.003, momentum 0.9, batch 512, no decay, a head of zeros.
    Command: vitreous fit DATA --weights FILE --recipe bit-hyperrule
    Cost: 500 steps of 512 below 20,000 images, 10,000 below 500,000, else 20,000.
    Published: BiT-L CIFAR-10 99.37 %, Pets 96.62 %; BiT-M-R50x1 on ImageNet 80.68 %.
    """
    rule = hyperrule(given.image_size, given.images)
    warmup, *points = rule.points
    return Recipe(
        name="bit-hyperrule",
        source="arXiv 1912.11370, section 3.3",
        image_size=rule.crop,
        length=Steps(rule.steps),
        batch=512,
        optimizer="sgd",
        momentum=0.9,
        peak_lr=0.003,
        weight_decay=0.0,
        clip=None,
        schedule="steps",
        warmup=Steps(warmup),
        drops=tuple((point + 1) / rule.steps for point in points),  # at the point itself the old rate holds
        augment=Augment(crop="window", window=rule.crop / rule.resize, mixup=rule.mixup),
    )
