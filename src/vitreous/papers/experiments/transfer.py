"""Transfer: which layers to train, how much it gains, at what size, from what (BiT, P1, and what courses teach).

The grids of the gpu scale are those of benchmarks/transfer_study.py. Its runs enter as cells that name their
origin. Their numbers were known when the claims were written here, but the claims come from the ledger, which is older.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from vitreous.papers.experiment import PILOTS, POINTS, ArmTable, Cell, Claim, Effect, Experiment, GridCell, ScaleName
from vitreous.papers.experiments import gpu_scale
from vitreous.papers.experiments.transfer_runs import (
    ALIKE,
    OWN,
    POLICIES,
    RULE,
    TRANSFER,
    UNLIKE,
    TransferScale,
    checkpoint,
    from_scratch,
    tuned,
)
from vitreous.papers.verdict import ONE_APART, POSITIVE, TWO_APART, Bounds, not_worse
from vitreous.papers.works.overfitting import on_train
from vitreous.papers.works.resizing import POSITION_MOVES, PositionMove, Resized, answers_at_size
from vitreous.papers.works.train import train

ONE_CHECKPOINT = "at gpu scale one checkpoint and one draw of images serve all seeds, so no interval covers those"
EACH_CHECKPOINT = "a checkpoint for each seed but at full scale, where one serves all"
MATCHED = "the same checkpoint, steps, batch and rate; only what is named differs"
MUCH, LITTLE = "much", "little"
SEEDS: dict[ScaleName, int] = {"laptop": 8, "gpu": 3, "full": 3}
OWN_SEEDS: dict[ScaleName, int] = SEEDS | {"gpu": gpu_scale.SEEDS}  # where each seed has its own checkpoint


# Which layers ---------------------------------------------------------------------------------------------------------


def layers_arm(case: str, amount: str, policy: str, *, is_augmented: bool = True) -> str:
    return f"{amount} {case}: {policy}" + ("" if is_augmented else ", plain")


def layers_grid(scale: ScaleName, seeds: Sequence[int]) -> Iterator[GridCell]:
    how = TRANSFER[scale]
    for name, case in how.cases.items():
        for amount, images in ((MUCH, None), (LITTLE, case.little)):
            for policy in POLICIES:
                for seed in seeds:
                    cell = tuned(how, case, seed, images=images, policy=policy)
                    yield GridCell(layers_arm(name, amount, policy), seed, cell)
                    if _wants_gap(how, amount):
                        yield GridCell(layers_arm(name, amount, policy), seed, on_train(cell))


def plain_grid(scale: ScaleName, seeds: Sequence[int]) -> Iterator[GridCell]:
    """Little data, with and without augmentation."""
    how = TRANSFER[scale]
    for name, case in how.cases.items():
        for policy in how.plain_policies:
            for is_augmented in (True, False):
                arm = layers_arm(name, LITTLE, policy, is_augmented=is_augmented)
                for seed in seeds:
                    cell = tuned(how, case, seed, images=case.little, policy=policy, is_augmented=is_augmented)
                    yield GridCell(arm, seed, cell)
                    if _wants_gap(how, LITTLE):
                        yield GridCell(arm, seed, on_train(cell))


def _wants_gap(how: TransferScale, amount: str) -> bool:
    """The study's runs did not record their accuracy on training images; new trainings do."""
    return how.has_one_checkpoint and amount == LITTLE


def gap(table: ArmTable, arm: str) -> dict[int, float]:
    """Accuracy on training images − accuracy on test images, by seed."""
    right, test = table.values(arm, "train_accuracy"), table.values(arm, "accuracy")
    return {seed: right[seed] - test[seed] for seed in right if seed in test}


def everything_over_head(table: ArmTable) -> Iterable[Effect]:
    return [table.difference(layers_arm(UNLIKE, MUCH, "all"), layers_arm(UNLIKE, MUCH, "head"), "accuracy")]


def upper_against_full(table: ArmTable) -> Iterable[Effect]:
    return [table.difference(layers_arm(ALIKE, MUCH, "upper"), layers_arm(ALIKE, MUCH, "full"), "accuracy")]


def upper_over_both(table: ArmTable) -> Iterable[Effect]:
    upper = layers_arm(UNLIKE, LITTLE, "upper")
    return [table.difference(upper, layers_arm(UNLIKE, LITTLE, other), "accuracy") for other in ("all", "head")]


def head_against_all(table: ArmTable) -> Iterable[Effect]:
    return [table.difference(layers_arm(ALIKE, LITTLE, "head"), layers_arm(ALIKE, LITTLE, "all"), "accuracy")]


def gap_all_over_head(table: ArmTable) -> Iterable[Effect]:
    mine, theirs = (gap(table, layers_arm(ALIKE, LITTLE, policy)) for policy in ("all", "head"))
    values = {seed: mine[seed] - theirs[seed] for seed in mine if seed in theirs}
    return [Effect("train − test, all − head", values, POINTS, TWO_APART)]


LAYERS = Experiment(
    name="transfer-layers",
    family="E-XFER",
    title="Which layers to train on a new task?",
    seeds=SEEDS,
    pilots=PILOTS,
    claims=(
        Claim(
            row="T05",
            words="much and unlike data: training every layer beats training the head",
            rule=POSITIVE,
            effects=everything_over_head,
            note="at a tenth of the rate; the head solved in closed form reaches as much at gpu scale "
            "(docs/evidence/transfer-study.md)",
        ),
        Claim(
            row="T06",
            words="much and similar data: the upper layers at a tenth of the rate are not a point worse than all at "
            "the full rate",
            rule=not_worse(0.01),
            effects=upper_against_full,
            note="the last 3 of 8 blocks at gpu scale, the last 2 of 3 on a laptop",
        ),
        Claim(
            row="T07",
            words="little and unlike data: training the upper part beats training all, and the head alone",
            rule=POSITIVE,
            effects=upper_over_both,
        ),
        Claim(
            row="T08",
            part="a",
            words="little and similar data: the head alone is not a point worse than all layers at a tenth",
            rule=not_worse(0.01),
            effects=head_against_all,
        ),
        Claim(
            row="T08",
            part="b",
            words="little and similar data: training all layers overfits more than training the head",
            rule=POSITIVE,
            effects=gap_all_over_head,
            note="right on training images minus right on test images",
        ),
    ),
    grid=layers_grid,
    columns=("accuracy", "train_accuracy", "train_seconds"),
    matched=f"{MATCHED}; {ONE_CHECKPOINT}",
)


def mean_effect_of_augmentation(table: ArmTable) -> Iterable[Effect]:
    name = "accuracy, augmented − plain"
    return [_augmented_minus_plain(table, name, ONE_APART, lambda arm: table.values(arm, "accuracy"))]


def gap_closed_by_augmentation(table: ArmTable) -> Iterable[Effect]:
    """The claim is a smaller gap, so the sign is flipped."""
    name = "train − test, plain − augmented"
    return [_augmented_minus_plain(table, name, TWO_APART, lambda arm: gap(table, arm), sign=-1)]


def _augmented_minus_plain(
    table: ArmTable, name: str, bounds: Bounds, of: Callable[[str], dict[int, float]], sign: int = 1
) -> Effect:
    """The mean over cases and policies, for each seed that has them all."""
    pairs = [(of(arm.removesuffix(", plain")), of(arm)) for arm in table.arms if arm.endswith(", plain")]
    seeds = set.intersection(*(set(column) for pair in pairs for column in pair)) if pairs else set()
    means = {seed: sign * statistics.mean(a[seed] - p[seed] for a, p in pairs) for seed in sorted(seeds)}
    return Effect(name, means, POINTS, bounds)


AUGMENTATION = Experiment(
    name="transfer-augmentation",
    family="E-XFER",
    title="Does augmentation help when images are few?",
    seeds=SEEDS,
    pilots=PILOTS,
    claims=(
        Claim(
            row="T09",
            part="a",
            words="with few images augmentation makes fine-tuning more accurate",
            rule=POSITIVE,
            effects=mean_effect_of_augmentation,
            note="crops, flips and MixUp; the mean over two tasks and the policies",
        ),
        Claim(
            row="T09",
            part="b",
            words="with few images augmentation narrows the gap between training and test",
            rule=POSITIVE,
            effects=gap_closed_by_augmentation,
        ),
    ),
    grid=plain_grid,
    columns=("accuracy", "train_accuracy"),
    matched=f"{MATCHED}; {ONE_CHECKPOINT}",
)


def rule_against_each(table: ArmTable) -> Iterable[Effect]:
    """The rule − another policy, the mean over the four cases."""
    cases = [(case, amount) for case in (ALIKE, UNLIKE) for amount in (MUCH, LITTLE)]

    def mean_difference(*values: float) -> float:
        half = len(values) // 2
        return statistics.mean(values[:half]) - statistics.mean(values[half:])

    effects = []
    for other in (policy for policy in POLICIES if policy != RULE):
        arms = [layers_arm(*case, policy) for policy in (RULE, other) for case in cases]
        effects.append(table.combined(f"{RULE} − {other}", arms, "accuracy", mean_difference, POINTS, ONE_APART))
    return effects


def rule_grid(scale: ScaleName, seeds: Sequence[int]) -> Iterator[GridCell]:
    return (one for one in layers_grid(scale, seeds) if one.cell.work == "train")


ONE_RULE = Experiment(
    name="transfer-rule",
    family="E-XFER",
    title="Does one rule serve all tasks?",
    pilots=PILOTS,
    claims=(
        Claim(
            row="Q12",
            words="one rule for all tasks, each layer at 0.75 of the rate above it, is not a point behind any other",
            rule=not_worse(0.01),
            effects=rule_against_each,
            untestable={"gpu": "these very runs made the rule our recipe's policy, so they cannot test that choice"},
            note="the mean over much and little, similar and unlike data; BiT's own rule is for ResNets",
        ),
    ),
    grid=rule_grid,
    seeds=SEEDS,
    matched=f"{MATCHED}; {ONE_CHECKPOINT}",
)


# How much is gained ---------------------------------------------------------------------------------------------------

TRANSFERRED, SCRATCH = "transferred", "from scratch"
LONGER = {"gpu": "4000 steps", "full": "100000 steps"}


def gain_arm(begun: str, images: int) -> str:
    return f"{begun}, {images:,} images"


def gains(scale: ScaleName, seeds: Sequence[int], steps: str) -> Iterator[GridCell]:
    how = TRANSFER[scale]
    for images in how.numbers:
        for seed in seeds:
            begun = tuned(how, how.amounts, seed, images=images, steps=steps)
            yield GridCell(gain_arm(TRANSFERRED, images), seed, begun)
            yield GridCell(gain_arm(SCRATCH, images), seed, from_scratch(how, how.amounts, seed, images, steps))


def gain_grid(scale: ScaleName, seeds: Sequence[int]) -> Iterator[GridCell]:
    return gains(scale, seeds, TRANSFER[scale].gain_steps)


def longer_gain_grid(scale: ScaleName, seeds: Sequence[int]) -> Iterator[GridCell]:
    return gains(scale, seeds, LONGER[scale])


def _numbers(table: ArmTable) -> list[int]:
    """The numbers of images that the arms have, in rising order."""
    ends = (arm.removeprefix(f"{TRANSFERRED}, ") for arm in table.arms if arm.startswith(TRANSFERRED))
    return sorted(int(end.removesuffix(" images").replace(",", "")) for end in ends)


def gain_with_fewest(table: ArmTable) -> Iterable[Effect]:
    fewest = min(_numbers(table), default=0)
    return [table.difference(gain_arm(TRANSFERRED, fewest), gain_arm(SCRATCH, fewest), "accuracy")]


def gain_falls(table: ArmTable) -> Iterable[Effect]:
    """How much smaller the gain becomes with ten times the images."""
    numbers = _numbers(table)
    arms = [gain_arm(begun, images) for begun in (TRANSFERRED, SCRATCH) for images in numbers]

    def fall(*right: float) -> float:
        half = len(numbers)
        gained = np.subtract(right[:half], right[half:])
        return -float(np.polyfit(np.log10(numbers), gained, 1)[0])

    return [table.combined("fall of the gain for ten times the images", arms, "accuracy", fall, POINTS)]


FALLS_WORDS = "the gain of transfer falls as the images of the new task grow"
GAIN = Experiment(
    name="transfer-gain",
    family="E-XFER",
    title="When does transfer help most?",
    pilots=PILOTS,
    claims=(
        Claim(
            row="T02",
            part="a",
            words="with 10 images of each class transfer beats training from scratch",
            rule=POSITIVE,
            effects=gain_with_fewest,
        ),
        Claim(
            row="T02",
            part="b",
            words=FALLS_WORDS,
            rule=POSITIVE,
            effects=gain_falls,
            note="equal steps for both, which at gpu scale are too few to use many images from scratch; longer "
            "trainings: transfer-gain-longer",
        ),
    ),
    grid=gain_grid,
    seeds=SEEDS,
    matched=f"network, images and steps; {ONE_CHECKPOINT}",
)

GAIN_LONGER = Experiment(
    name="transfer-gain-longer",
    family="E-XFER",
    title="When does transfer help most, both trained ten times as long?",
    claims=(Claim(row="T02", part="c", words=f"{FALLS_WORDS}, both trained long", rule=POSITIVE, effects=gain_falls),),
    grid=longer_gain_grid,
    seeds=SEEDS,
    matched=f"network, images and steps; {ONE_CHECKPOINT}",
    scales=("gpu", "full"),
)


# From how much --------------------------------------------------------------------------------------------------------

ALL_OF_UP, TENTH_OF_UP = "from all", "from a tenth"


def pretraining_grid(scale: ScaleName, seeds: Sequence[int]) -> Iterator[GridCell]:
    how = OWN[scale]
    for seed in seeds:
        tenth = checkpoint(how, seed, how.amounts.learned, images=how.tenth)
        for images in how.numbers[:2]:
            whole = tuned(how, how.amounts, seed, images=images, steps=how.gain_steps)
            part = tuned(how, how.amounts, seed, images=images, steps=how.gain_steps, start=tenth)
            yield GridCell(f"{ALL_OF_UP}, {images:,} images", seed, whole)
            yield GridCell(f"{TENTH_OF_UP}, {images:,} images", seed, part)


def all_over_tenth(table: ArmTable) -> Iterable[Effect]:
    whole = [arm for arm in table.arms if arm.startswith(ALL_OF_UP)]
    return [table.difference(arm, arm.replace(ALL_OF_UP, TENTH_OF_UP), "accuracy") for arm in whole]


PRETRAINING = Experiment(
    name="transfer-pretraining",
    family="E-XFER",
    title="Does more pre-training data help a task with few images?",
    pilots=PILOTS,
    claims=(
        Claim(
            row="C07",
            words="a ViT pre-trained on all images transfers better to few than one pre-trained on a tenth of them",
            rule=POSITIVE,
            effects=all_over_tenth,
            note="10 and 30 images of each new class; both pre-trainings take as many steps",
        ),
    ),
    grid=pretraining_grid,
    seeds=OWN_SEEDS,
    matched=f"network and steps, in pre-training and after; {EACH_CHECKPOINT}",
)


# One for many ---------------------------------------------------------------------------------------------------------

CIFAR_MANY = 10_000
LONG_SCRATCH = "S/4 width=256 depth=8 heads=4 mlp=1024 pool=gap"  # 64 tokens at 32 pixels: the same compute


def tasks_grid(scale: ScaleName, seeds: Sequence[int]) -> Iterator[GridCell]:
    how = OWN[scale]
    for case, images in how.tasks:
        name = " or ".join(case.classes) if case.classes else case.data
        steps = how.fine_tuning["length"]
        for seed in seeds:
            begun = tuned(how, case, seed, images=images, steps=steps)
            yield GridCell(f"{TRANSFERRED}: {name}", seed, begun)
            yield GridCell(f"{SCRATCH}: {name}", seed, from_scratch(how, case, seed, images, steps))


def mean_gain_over_tasks(table: ArmTable) -> Iterable[Effect]:
    begun = [arm for arm in table.arms if arm.startswith(TRANSFERRED)]
    arms = [*begun, *(arm.replace(TRANSFERRED, SCRATCH) for arm in begun)]

    def mean_gain(*right: float) -> float:
        return statistics.mean(right[: len(begun)]) - statistics.mean(right[len(begun) :])

    name = "transferred − from scratch, mean of three tasks"
    return [table.combined(name, arms, "accuracy", mean_gain, POINTS, ONE_APART)]


TASKS = Experiment(
    name="transfer-tasks",
    family="E-XFER",
    title="Is one pre-trained model worth many?",
    pilots=PILOTS,
    claims=(
        Claim(
            row="T16",
            words="one checkpoint, fine-tuned on three tasks, beats a model from scratch for each",
            rule=POSITIVE,
            effects=mean_gain_over_tasks,
            note="the mean over the tasks; on a laptop three pairs of unseen clothes, 10 images of each",
        ),
    ),
    grid=tasks_grid,
    seeds=OWN_SEEDS,
    matched=f"network, images and steps of the task; {EACH_CHECKPOINT}",
)

SHORT_BEGUN, SHORT_SCRATCH = "transferred, 400 steps", "from scratch, 400 steps"
LONG_BEGUN, LONG_ALONE = "transferred, 40 epochs", "from scratch, 195 seconds"


def cifar_grid(scale: ScaleName, seeds: Sequence[int]) -> Iterator[GridCell]:
    how = TRANSFER["gpu"] if scale == "gpu" else TRANSFER["full"]
    for seed in seeds:
        short = how.fine_tuning["length"]
        yield GridCell(SHORT_BEGUN, seed, tuned(how, how.amounts, seed, images=CIFAR_MANY, steps=short))
        yield GridCell(SHORT_SCRATCH, seed, from_scratch(how, how.amounts, seed, CIFAR_MANY, short))
        yield GridCell(LONG_BEGUN, seed, tuned(how, how.amounts, seed, steps="40 epochs"))
        yield GridCell(LONG_ALONE, seed, cifar_alone(seed))


def cifar_alone(seed: int) -> Cell:
    """A full training on all of CIFAR-10 from scratch, as benchmarks/real.py ran it."""
    return train(LONG_SCRATCH, "cifar10", seed, recipe="small-data", length="195 seconds")


CIFAR10 = Experiment(
    name="transfer-cifar10",
    family="E-XFER",
    title="CIFAR-10, transferred or from scratch",
    claims=(
        Claim(
            row="C12",
            part="a",
            words="on 10,000 images of CIFAR-10 transfer beats training from scratch for as many steps",
            rule=POSITIVE,
            effects=lambda table: [table.difference(SHORT_BEGUN, SHORT_SCRATCH, "accuracy")],
            published="99.15 to 99.50 % transferred (L/16 of ImageNet-21k to H/14 of JFT)",
            note="10,000 test images: as to these, each number is right within 1 point (95 %); some of its classes "
            "are among those of pre-training",
        ),
        Claim(
            row="C12",
            part="b",
            words="on all of CIFAR-10 transfer beats a network from scratch that is trained to its end",
            rule=POSITIVE,
            effects=lambda table: [table.difference(LONG_BEGUN, LONG_ALONE, "accuracy")],
            note="40 epochs after 100 of pre-training are half of the images that the other is shown",
        ),
    ),
    grid=cifar_grid,
    seeds=SEEDS,
    matched=f"compute of a forward pass; {ONE_CHECKPOINT}",
    scales=("gpu", "full"),
)


# Another resolution ---------------------------------------------------------------------------------------------------


def size_arm(pixels: int, positions: PositionMove) -> str:
    return f"{pixels} pixels, positions {positions}"


def resolution_grid(scale: ScaleName, seeds: Sequence[int]) -> Iterator[GridCell]:
    how = TRANSFER[scale]
    case = how.cases[ALIKE]
    for seed in seeds:
        yield GridCell("as learned", seed, tuned(how, case, seed))
    for pixels in how.pixels:
        for positions in POSITION_MOVES:
            for seed in seeds:
                resized = Resized(pixels, positions)
                yield GridCell(size_arm(pixels, positions), seed, tuned(how, case, seed, resized=resized))
                before = answers_at_size(checkpoint(how, seed, case.learned), resized)
                yield GridCell(size_arm(pixels, positions), seed, before)


def grid_over_others(reading: str) -> Callable[[ArmTable], Iterable[Effect]]:
    """Positions resized in two dimensions − each other way, at every size."""

    def effects(table: ArmTable) -> Iterable[Effect]:
        best = [arm for arm in table.arms if arm.endswith(" 2-D")]
        others = [(arm, arm.removesuffix("2-D") + other) for arm in best for other in ("1-D", "anew")]
        return [table.difference(arm, other, reading) for arm, other in others]

    return effects


RESOLUTION = Experiment(
    name="transfer-resolution",
    family="E-XFER",
    title="Positions at another resolution",
    seeds=SEEDS,
    pilots=PILOTS,
    claims=(
        Claim(
            row="T12",
            part="a",
            words="after fine-tuning at another resolution, positions resized as a grid beat a resized line and new",
            rule=POSITIVE,
            effects=grid_over_others("accuracy"),
        ),
        Claim(
            row="T12",
            part="b",
            words="before any step at another resolution, positions resized as a grid beat a resized line and new",
            rule=POSITIVE,
            effects=grid_over_others("accuracy_before"),
            scales=("laptop",),
            note="on test images of the classes it learned; at other scales one checkpoint gives no interval",
        ),
    ),
    grid=resolution_grid,
    columns=("accuracy", "accuracy_before"),
    matched=f"{MATCHED}; {ONE_CHECKPOINT}",
)


# Against a ResNet -----------------------------------------------------------------------------------------------------

CHECKPOINT = "checkpoint"
RESNET = "ResNet"
SHORT_RESNET = "study's ResNet, with 55 % of the compute"
STUDY_VIT, STUDY_HYBRID, DEIT, VIT_TINY = "study's ViT", "study's hybrid", "DeiT-Ti, released", "ViT-Ti, released"
STUDY_SEEDS = 3
GPU_HYBRID = "S/8 stem=convolutions width=256 depth=7 heads=4 mlp=1024 pool=gap"


def cost_arm(model: str, what: str) -> str:
    return f"{model}: {what}"


def cost_grid(scale: ScaleName, seeds: Sequence[int]) -> Iterator[GridCell]:
    """ViTs of several lengths of pre-training, and a ResNet; each fine-tuned with the same compute."""
    how = OWN[scale]
    tasks = (
        how.tasks if scale == "full" else [(how.cases[ALIKE], how.cases[ALIKE].little if scale == "laptop" else None)]
    )
    learned = tasks[0][0].learned
    for seed in seeds:
        starts = {
            f"ViT, {length} {how.length_unit}": checkpoint(how, seed, learned, length=length) for length in how.lengths
        }
        for length in how.resnet_lengths:
            start = checkpoint(how, seed, learned, length=length, is_resnet=True)
            starts[f"{RESNET}, {length} {how.length_unit}"] = start
        for name, start in starts.items():
            yield GridCell(cost_arm(name, CHECKPOINT), seed, start)
            for case, images in tasks:
                steps = how.resnet_steps if name.startswith(RESNET) else None
                cell = tuned(how, case, seed, images=images, start=start, steps=steps)
                yield GridCell(cost_arm(name, case.data), seed, cell)
        for name, weights in others(scale).items() if seed < STUDY_SEEDS else ():
            if name in (STUDY_VIT, STUDY_HYBRID) and isinstance(weights, Cell):
                yield GridCell(cost_arm(name, CHECKPOINT), seed, weights)
            study = TRANSFER["gpu"]
            for case, images in study.tasks:
                if name == SHORT_RESNET and case.data == "cifar10" and seed > 1:
                    continue  # the study has two seeds here; a third would train the short ResNet again
                yield GridCell(cost_arm(name, case.data), seed, tuned(study, case, seed, images=images, start=weights))


def others(scale: ScaleName) -> dict[str, Cell | str]:
    """The other networks of the study; no claim reads them."""
    if scale != "gpu":
        return {}
    how = TRANSFER["gpu"]
    vit = checkpoint(how, 0, None)
    hybrid = train(GPU_HYBRID, how.up, 0, length="100 epochs", **how.pretraining)
    short = checkpoint(how, 0, None, length=70, is_resnet=True)
    return {STUDY_VIT: vit, STUDY_HYBRID: hybrid, SHORT_RESNET: short, DEIT: "deit-tiny", VIT_TINY: "vit-tiny"}


def vit_over_resnet(table: ArmTable) -> Iterable[Effect]:
    """ViTs − ResNets at equally good checkpoints; each ViT's value is interpolated between two ViTs."""
    vits, resnets = (
        [arm for arm in table.arms if arm.startswith(f"{kind}, ") and arm.endswith(CHECKPOINT)]
        for kind in ("ViT", RESNET)
    )
    first = resnets[0].removesuffix(CHECKPOINT) if resnets else " "
    tasks = [arm.removeprefix(first) for arm in table.arms if arm.startswith(first) and arm not in resnets]
    count = len(resnets)

    def difference(*values: float) -> float:
        begun, right = np.array(values[: 2 * count]).reshape(2, count)
        return _at_equal_checkpoints(begun, right, *np.array(values[2 * count :]).reshape(2, len(vits)))

    effects = []
    for task in tasks:
        arms = [
            arm.replace(CHECKPOINT, what) for kind in (resnets, vits) for what in (CHECKPOINT, task) for arm in kind
        ]
        effects.append(table.combined(f"ViT − ResNet, {task}", arms, "accuracy", difference, POINTS, ONE_APART))
    return effects


def _at_equal_checkpoints(begun: Any, right: Any, vits_begun: Any, vits_right: Any) -> float:
    """The mean over ResNets whose checkpoint lies between the worst and the best ViT's; NaN if there are none."""
    order = vits_begun.argsort()
    alike = np.interp(begun, vits_begun[order], vits_right[order], left=math.nan, right=math.nan)
    known = np.isfinite(alike)
    return float((alike - right)[known].mean()) if known.any() else math.nan


COST = Experiment(
    name="transfer-cost",
    family="E-XFER",
    title="ViT or ResNet, at equal compute of fine-tuning?",
    claims=(
        Claim(
            row="C09",
            part="b",
            words="from equally good checkpoints, at equal compute of fine-tuning, a ViT reaches more than a ResNet",
            rule=POSITIVE,
            effects=vit_over_resnet,
            published="P1 speaks of pre-training: 2.5k TPUv3-core-days for H/14, 9.9k for BiT-L",
            untested="C09a, pre-training, which is P1's own claim; C10 asks for its compute",
            note="the ViT at the ResNet's accuracy lies between ViTs of several lengths of pre-training; the networks "
            "of transfer_study, whose ResNet had 55 % of the others' compute in pre-training, are shown, not judged",
        ),
    ),
    grid=cost_grid,
    seeds=OWN_SEEDS | {"laptop": 3},
    matched=f"multiply-adds of pre-training (the longest ViT and the ResNet) and of fine-tuning; {EACH_CHECKPOINT}",
)

TRANSFER_EXPERIMENTS = (
    LAYERS,
    AUGMENTATION,
    ONE_RULE,
    GAIN,
    GAIN_LONGER,
    PRETRAINING,
    TASKS,
    CIFAR10,
    RESOLUTION,
    COST,
)
