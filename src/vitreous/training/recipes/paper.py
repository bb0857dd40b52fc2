"""The recipes of "An Image is Worth 16x16 Words" (P1, arXiv 2010.11929): tables 3 and 4."""

from __future__ import annotations

from vitreous.errors import ConfigError
from vitreous.training.recipe import Epochs, Recipe, Steps
from vitreous.training.recipes.given import Given

PRETRAINING = Recipe(
    batch=4096,
    image_size=224,
    optimizer="adam",
    betas=(0.9, 0.999),
    warmup=Steps(10_000),
    clip=None,
    dev=0.01,
)

JFT = {  # epochs, peak rate
    "B/16": (7, 8e-4),
    "B/32": (7, 8e-4),
    "L/32": (7, 6e-4),
    "L/16": (14, 4e-4),
    "H/14": (14, 3e-4),
    "BiT-R50x1": (7, 1e-3),
    "BiT-R50x2": (7, 1e-3),
    "BiT-R101x1": (7, 8e-4),
    "BiT-R152x1": (7, 6e-4),
    "BiT-R152x2": (7, 6e-4),
    "R50+B/16": (7, 8e-4),
    "R50+B/32": (7, 8e-4),
    "R50+L/32": (7, 2e-4),
    "R50+L/16": (14, 4e-4),
}
REPRESENTATION = {"B": 768, "L": 1024, "H": 1280}  # width of the tanh layer that pre-training puts before the head


def jft(given: Given) -> Recipe:
    """Supervised pre-training on hundreds of millions of images.

    Source: P1, table 3, rows JFT-300M; the row is the model's (B/16 where none is asked for).
    Command: vitreous fit DATA --recipe p1-jft --model L/16
    Cost: 7 or 14 epochs of 303 M images, batch 4096: 517,822 or 1,035,644 steps; H/14 took 2,500 TPUv3-core-days.
    Published: H/14 88.55 % on ImageNet after fine-tuning, L/16 87.76 % (table 2).
    The paper states no end of the linear decay: 0 here, as in big_vision.
    """
    name = given.network("B/16")
    if name not in JFT:
        raise ConfigError(f"P1's table 3 has no row for {name}; give --model one of {', '.join(JFT)}")
    epochs, peak = JFT[name]
    return PRETRAINING.change(
        name="p1-jft",
        source="arXiv 2010.11929, table 3",
        model=given.with_parts(name, _representation(name)),
        length=Epochs(epochs),
        peak_lr=peak,
        schedule="linear",
        weight_decay=0.1,
        dropout=0.0,
    )


def imagenet21k(given: Given) -> Recipe:
    """Supervised pre-training on some ten million images.

    Source: P1, table 3, rows ImageNet-21k (the large models: 30 or 90 epochs; here 90).
    Command: vitreous fit DATA --recipe p1-imagenet21k --model B/16
    Cost: 90 epochs of 14 M images, batch 4096: 312,011 steps; L/16 took 230 TPUv3-core-days.
    Published: after fine-tuning on ImageNet B/16 83.97 %, L/16 85.15 % (table 5).
    """
    return PRETRAINING.change(
        name="p1-imagenet21k",
        source="arXiv 2010.11929, table 3",
        model=given.with_parts("B/16", _representation(given.network("B/16"))),
        length=Epochs(90),
        peak_lr=1e-3,
        schedule="linear",
        weight_decay=0.03,
        dropout=0.1,
    )


def imagenet(given: Given) -> Recipe:
    """Supervised pre-training on a million images: strong decay, dropout and clipping.

    Source: P1, table 3, row ImageNet.
    Command: vitreous fit DATA --recipe p1-imagenet --model B/16
    Cost: 300 epochs of 1.28 M images, batch 4096: 93,835 steps, of which the warm-up is 10,000.
    Published: after fine-tuning at 384 pixels B/16 77.91 %, L/16 76.53 % on ImageNet (table 5).
    """
    return PRETRAINING.change(
        name="p1-imagenet",
        source="arXiv 2010.11929, table 3",
        model=given.with_parts("B/16", _representation(given.network("B/16"))),
        length=Epochs(300),
        peak_lr=3e-3,
        schedule="cosine",
        weight_decay=0.3,
        dropout=0.1,
        clip=1.0,
    )


def finetune(given: Given) -> Recipe:
    """Fine-tuning a pre-trained model at 384 pixels; steps and rate by the number of images.

    Source: P1, table 4: SGD with momentum, cosine, no decay, clip 1. The paper sweeps the rate on the dev split; here
    is the one its authors' code prints for such a set: ImageNet 0.03, CIFAR 0.01, Pets and Flowers 0.003. The warm-up
    is the code's. (VTAB, 1,000 images a task: 2,500 steps at 0.01.)
    Command: vitreous fit DATA --weights FILE --recipe p1-finetune
    Cost: 500 steps of 512 below 20,000 images, 10,000 below 500,000, else 20,000.
    Published: L/16 of ImageNet-21k: ImageNet 85.30 %, CIFAR-10 99.15 %, Pets 94.67 % (table 2, the first at 512 pixels
    and with average=polyak).
    """
    if given.images < 20_000:
        steps, warmup, peak, dev = 500, 100, 0.003, 0.1
    elif given.images < 500_000:
        steps, warmup, peak, dev = 10_000, 500, 0.01, 0.02
    else:
        steps, warmup, peak, dev = 20_000, 500, 0.03, 0.01
    return Recipe(
        name="p1-finetune",
        source="arXiv 2010.11929, table 4",
        image_size=384,
        length=Steps(steps),
        batch=512,
        optimizer="sgd",
        momentum=0.9,
        peak_lr=peak,
        weight_decay=0.0,
        clip=1.0,
        schedule="cosine",
        warmup=Steps(warmup),
        dropout=0.0,
        dev=dev,
    )


def _representation(name: str) -> str:
    size = name.split("+")[-1].split("/")[0]
    return f"representation={REPRESENTATION[size]}" if size in REPRESENTATION else ""
