"""The trainings that the experiments on transfer share: checkpoints, fine-tunings, and the same task from scratch.

laptop  six classes of clothes are learned, four others are the new task; each seed has its own checkpoint and images
gpu     one checkpoint of tiny-imagenet; exactly what benchmarks/transfer_study.py ran, so that its runs are cells. What
        the study did not ask starts from the networks of the other families, a checkpoint for each seed (OWN)
full    one checkpoint of ImageNet-21k
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from vitreous.papers.experiment import Cell, ScaleName
from vitreous.papers.experiments import gpu_scale
from vitreous.papers.works.resizing import Resized
from vitreous.papers.works.train import train

ALIKE, UNLIKE = "alike", "unlike"
POLICIES = ("head", "upper", "all", "layer-decay", "full")  # upper: the last blocks, as the scale says
PLAIN = {"crop": "none", "flip": 0.0, "mixup": 0.0, "cutmix": 0.0}
UP_IMAGES = {"tiny-imagenet": 50_000, "imagenet21k": 14_000_000}
RULE = "layer-decay"  # the policy of the recipe fine-tune: one rule for all tasks
CLOTHES = ("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Shirt")
SHOES_AND_BAGS = ("Sandal", "Sneaker", "Bag", "Ankle boot")
MIXED = ("T-shirt/top", "Trouser", "Pullover", "Sandal", "Sneaker", "Bag")
THEIR_KIN = ("Dress", "Coat", "Shirt", "Ankle boot")  # each resembles one of MIXED


@dataclass(frozen=True)
class TransferCase:
    """A new task, and what was learned before it."""

    data: str
    classes: tuple[str, ...] | None = None  # of the new task; None: all of the set
    learned: tuple[str, ...] | None = None  # of pre-training
    little: int = 300  # images that count as few


@dataclass(frozen=True)
class TransferScale:
    """What the trainings of one scale have in common."""

    model: str
    up: str
    pretraining: Mapping[str, Any]
    fine_tuning: Mapping[str, Any]  # fields of the recipe fine-tune
    scratch_model: str
    scratch: Mapping[str, Any]
    cases: Mapping[str, TransferCase]
    upper: str  # the last blocks
    amounts: TransferCase
    numbers: tuple[int, ...]  # of its images: 10, 30, 100 and 300 of each class
    tasks: tuple[tuple[TransferCase, int | None], ...]  # tasks that one checkpoint serves, and their images
    pixels: tuple[int, ...]  # larger sizes
    tenth: int  # of the images of pre-training
    lengths: tuple[int, ...]  # of pre-training, growing; the last is the usual one
    length_unit: str
    resnet: str
    resnet_pretraining: Mapping[str, Any]
    resnet_lengths: tuple[int, ...]  # the last is as much compute as the last of lengths
    resnet_steps: str  # as much compute as fine_tuning
    has_one_checkpoint: bool = True  # else one for each seed, which then draws its own images too
    has_shared_recipe: bool = False  # its pre-trainings are those of the other families
    plain_policies: tuple[str, ...] = POLICIES  # run without augmentation too
    gain_steps: str = "400 steps"  # of the fine-tunings that are compared with scratch


LAPTOP_MODEL = "S/7 width=64 depth=3 heads=4 mlp=128 image_size=28 channels=1"
LAPTOP_UP: dict[str, Any] = {"batch": 128, "peak_lr": 3e-3, "weight_decay": 0.05, "crop": "none", "flip": 0.0}
LAPTOP_KIN = TransferCase("fashion", THEIR_KIN, MIXED, little=120)
GPU_MODEL = "S/8 width=256 depth=8 heads=4 mlp=1024 pool=gap"
GPU_UP: dict[str, Any] = {"recipe": "small-data", "dev": 0.02, "crop": "inception", "area": [0.35, 1.0]}
FOR_BIT = {"optimizer": "adamw", "peak_lr": 1e-3, "weight_decay": 0.05, "clip": 1.0}
GPU_TUNING: dict[str, Any] = {"length": "400 steps", "batch": 64, "dev": 0.0}
# The study's recipe from scratch: fine-tune by Muon, without what concerns pre-trained weights.
SCRATCH_BY_MUON: dict[str, Any] = {"optimizer": "muon", "muon_lr": 0.02, "peak_lr": 1e-3, "weight_decay": 0.1}
SCRATCH_BY_MUON |= {"clip": 1.0, "schedule": "cosine", "warmup": 0.1, "smoothing": 0.1, "area": [0.2, 1.0]}
SCRATCH_BY_MUON |= {"mixup": 0.2, "batch": 64, "dev": 0.0}
SCRATCH_BY_ADAM: dict[str, Any] = {"dev": 0.0, "weight_decay": 0.05, "clip": 1.0, "schedule": "cosine", "warmup": 0.1}
SCRATCH_BY_ADAM |= {"smoothing": 0.1, "area": [0.2, 1.0], "mixup": 0.2}
CIFAR = TransferCase("cifar10")
PETS, IMAGENETTE = TransferCase("pets"), TransferCase("imagenette")

TRANSFER: dict[ScaleName, TransferScale] = {
    "laptop": TransferScale(
        model=LAPTOP_MODEL,
        up="fashion",
        pretraining={"recipe": LAPTOP_UP},
        fine_tuning={"length": "80 steps", "batch": 32, "dev": 0.0, "peak_lr": 5e-3},
        scratch_model=LAPTOP_MODEL,
        scratch=SCRATCH_BY_ADAM | {"batch": 32, "peak_lr": 3e-3},
        cases={ALIKE: LAPTOP_KIN, UNLIKE: TransferCase("fashion", SHOES_AND_BAGS, CLOTHES, little=120)},
        upper="last-2",
        amounts=LAPTOP_KIN,
        numbers=(40, 120, 400, 1200),
        tasks=tuple(
            (TransferCase("fashion", pair, MIXED), 20)
            for pair in (("Dress", "Shirt"), ("Coat", "Shirt"), ("Dress", "Coat"))
        ),
        pixels=(42,),
        tenth=520,
        lengths=(10, 30, 100, 200),
        length_unit="steps",
        resnet="BiT-R50x1 units=2,2,1 resnet_width=0.25 image_size=28 channels=1",
        resnet_pretraining={"recipe": LAPTOP_UP},
        resnet_lengths=(40, 185),
        resnet_steps="74 steps",
        has_one_checkpoint=False,
        plain_policies=("head", "upper", "all"),
        gain_steps="200 steps",
    ),
    "gpu": TransferScale(
        model=GPU_MODEL,
        up="tiny-imagenet",
        pretraining=GPU_UP,
        fine_tuning=GPU_TUNING,
        scratch_model=f"{GPU_MODEL} drop_path=0.1 image_size=64",
        scratch=SCRATCH_BY_MUON,
        cases={ALIKE: IMAGENETTE, UNLIKE: TransferCase("fashion")},
        upper="last-3",
        amounts=CIFAR,
        numbers=(100, 300, 1000, 3000),
        tasks=((PETS, None), (IMAGENETTE, None), (CIFAR, 1000)),
        pixels=(96, 128),
        tenth=5000,
        lengths=(10, 30, 100),
        length_unit="epochs",
        resnet="BiT-R50x1",
        resnet_pretraining=GPU_UP | FOR_BIT,
        resnet_lengths=(40, 126),
        resnet_steps="504 steps",
    ),
    "full": TransferScale(
        model="B/16",
        up="imagenet21k",
        pretraining={"recipe": "p1-imagenet21k"},
        fine_tuning={"length": "10000 steps", "batch": 512, "dev": 0.02},
        scratch_model="B/16",
        scratch={"batch": 512, "dev": 0.02, "peak_lr": 1e-3, "weight_decay": 0.3},
        cases={ALIKE: PETS, UNLIKE: TransferCase("fashion")},
        upper="last-4",
        amounts=CIFAR,
        numbers=(100, 300, 1000, 3000),
        tasks=((PETS, None), (CIFAR, None), (TransferCase("imagenet"), None)),
        pixels=(384,),
        tenth=1_400_000,
        lengths=(10, 30, 90),
        length_unit="epochs",
        resnet="BiT-R152x2",
        resnet_pretraining={"recipe": "bit-pretrain"},
        resnet_lengths=(10, 35),
        resnet_steps="3836 steps",
        gain_steps="10000 steps",
    ),
}


OWN: dict[ScaleName, TransferScale] = TRANSFER | {
    "gpu": TransferScale(
        model=gpu_scale.VIT_MODEL,
        up=gpu_scale.UP,
        pretraining={},
        fine_tuning=gpu_scale.FINE_TUNING,
        scratch_model=gpu_scale.VIT_MODEL,
        scratch=SCRATCH_BY_ADAM | {"batch": 256, "peak_lr": 1e-3},
        cases={ALIKE: IMAGENETTE, UNLIKE: TransferCase("fashion")},
        upper="last-2",
        amounts=IMAGENETTE,
        numbers=(100, 300, 1000, 3000),
        tasks=((IMAGENETTE, None), (PETS, None), (TransferCase("fashion"), 1000)),
        pixels=(96,),
        tenth=5000,
        lengths=(gpu_scale.SOME_STEPS, gpu_scale.MANY_STEPS, gpu_scale.STEPS),
        length_unit="steps",
        resnet=gpu_scale.RESNET_MODEL,
        resnet_pretraining={},
        resnet_lengths=(gpu_scale.SOME_STEPS, gpu_scale.MANY_STEPS, gpu_scale.STEPS),
        resnet_steps="100 steps",
        gain_steps="100 steps",
        has_one_checkpoint=False,
        has_shared_recipe=True,
    )
}


def checkpoint(
    how: TransferScale,
    seed: int,
    learned: tuple[str, ...] | None,
    *,
    length: int | None = None,
    images: int | None = None,
    is_resnet: bool = False,
) -> Cell:
    """A pre-training.  learned: its classes.  length: in the scale's unit; the usual one by default.

    images: fewer than all, seen more often, so that the steps are the same.
    """
    fields = dict(how.resnet_pretraining if is_resnet else how.pretraining)
    usual = (how.resnet_lengths if is_resnet else how.lengths)[-1]
    model = how.resnet if is_resnet else how.model
    if how.has_shared_recipe:
        recipe = gpu_scale.recipe_for(model, length=f"{length or usual} {how.length_unit}")
        return train(model, how.up, seed, images=images, recipe=recipe)
    seed, draw = (0, 0 if images else None) if how.has_one_checkpoint else (seed, None)
    count = length or usual
    if images is not None and how.length_unit == "epochs":
        count = round(count * UP_IMAGES[how.up] / images)
    said: dict[str, Any] = {"length": f"{count} {how.length_unit}", **fields}
    return train(model, how.up, seed, images=images, classes=learned, draw=draw, **said)


def tuned(
    how: TransferScale,
    case: TransferCase,
    seed: int,
    *,
    images: int | None = None,
    policy: str = RULE,
    is_augmented: bool = True,
    start: Cell | str | None = None,
    resized: Resized | None = None,
    steps: str | None = None,
) -> Cell:
    """A fine-tuning.  images: of the new task; all by default.  start: the usual checkpoint by default."""
    fields: dict[str, Any] = {**how.fine_tuning, "policy": how.upper if policy == "upper" else policy}
    fields |= {} if is_augmented else PLAIN
    fields |= {} if steps is None else {"length": steps}
    if policy == "head" and not is_augmented:
        fields["optimizer"] = "adamw"  # takes steps like the others, not the closed form
    begin = checkpoint(how, seed, case.learned) if start is None else start
    where: dict[str, Any] = {"images": images, "classes": case.classes, "draw": _draw(how, images)}
    return train(None, case.data, seed, recipe="fine-tune", weights=begin, resized=resized, **where, **fields)


def from_scratch(how: TransferScale, case: TransferCase, seed: int, images: int | None, steps: str) -> Cell:
    """The same network on the new task alone, for as many steps."""
    recipe = {**how.scratch, "length": steps}
    where: dict[str, Any] = {"images": images, "classes": case.classes, "draw": _draw(how, images)}
    return train(how.scratch_model, case.data, seed, recipe=recipe, **where)


def _draw(how: TransferScale, images: int | None) -> int | None:
    """With one checkpoint the few images are the same for all seeds too."""
    return 0 if how.has_one_checkpoint and images is not None else None
