"""What travels along the skip connections (P2's figures 7 and 8): class token against patches, ViT against ResNet."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from statistics import fmean

from vitreous.papers.experiment import (
    RELEASED,
    TRAINED_SCALES,
    ArmTable,
    Claim,
    Effect,
    Experiment,
    GridCell,
    ScaleName,
)
from vitreous.papers.experiments.inside import (
    ALL_SCALES,
    INSIDE,
    INSIDE_MATCHED,
    INSIDE_PILOTS,
    INSIDE_SEEDS,
    RESNET,
    VIT,
    VITS,
    between,
    ends,
    looks,
    network,
)
from vitreous.papers.verdict import POSITIVE, TWO_APART
from vitreous.papers.works.tokens import token_kinds

EARLY = "ViT, a tenth of its training"
NO_HALVES: dict[ScaleName, str] = {"laptop": "3 blocks have no halves: in the first the class token begins at zero"}


def grid(scale: ScaleName, seeds: Sequence[int]) -> Iterator[GridCell]:
    yield from looks(scale, seeds, (VIT, RESNET))
    if scale == RELEASED:
        return
    how = INSIDE[scale]
    for seed in seeds:
        early = network(scale, VIT, seed, length=how.early)
        for arm, cell in ((EARLY, early), (VIT, network(scale, VIT, seed))):
            yield GridCell(arm, seed, token_kinds(cell, how.data, seen=how.seen))


def class_less_patches(table: ArmTable, half: int, sign: int) -> Iterable[Effect]:
    """sign × (ln ratio of the class token − that of the patches), over the first (0) or the second half (1)."""
    words = ("first half", "second half")[half]
    for arm in (arm for arm in VITS if arm in table.arms):
        for branch in ("attention", "mlp"):
            readings = (f"skip_class_{branch}", f"skip_patches_{branch}")
            order = f"{'class token − patches' if sign > 0 else 'patches − class token'}"
            yield between(
                table,
                arm,
                readings,
                f"{arm}, {words}, {branch}: {order}",
                of=lambda by: sign * fmean(ends(by, 2)[half]),
            )


def stronger_in_vit(table: ArmTable) -> Iterable[Effect]:
    return [table.difference(VIT, RESNET, "skip_mean", "", f"{VIT} − {RESNET}, mean ln ratio")]


def cuts_cost_more(table: ArmTable) -> Iterable[Effect]:
    name = f"{VIT} − {RESNET}: accuracy lost by a cut"
    return [table.difference(VIT, RESNET, "cut_accuracy_mean", name=name, bounds=TWO_APART)]


def taught_differently(table: ArmTable) -> Iterable[Effect]:
    return [table.one(arm, "gradient_apart", f"{arm}: ln gradient, class token over patch") for arm in (EARLY, VIT)]


EXPERIMENT = Experiment(
    name="skips",
    family="E-LOOK",
    title="What goes by the skip connections?",
    claims=(
        Claim(
            row="C36",
            part="a",
            words="in the first half the class token goes by the skip more than patches do",
            rule=POSITIVE,
            effects=lambda table: class_less_patches(table, 0, 1),
            published="class token high and patches low in the first half (P2 figure 7, B/16; scale 2 to 12)",
            untestable=NO_HALVES,
        ),
        Claim(
            row="C36",
            part="b",
            words="in the second half patches go by the skip more than the class token does",
            rule=POSITIVE,
            effects=lambda table: class_less_patches(table, 1, -1),
            published="the reverse in the second half (P2 figure 7)",
            untestable=NO_HALVES,
        ),
        Claim(
            row="C37",
            words="skips carry more of a ViT than of a ResNet",
            rule=POSITIVE,
            effects=stronger_in_vit,
            published="a ViT's ratios are above a ResNet's at all depths (P2 figure 7)",
            scales=TRAINED_SCALES,
        ),
        Claim(
            row="Q06",
            words="a ViT needs its skips more than a ResNet: to cut those of one block costs it more of its accuracy",
            rule=POSITIVE,
            effects=cuts_cost_more,
            published="4 points without the skips of a middle block, after training without them (P2 figure 8)",
            scales=TRAINED_SCALES,
            note="cut in the trained network, without training again; C38 trains without them",
        ),
        Claim(
            row="Q07",
            words="the class token is taught more strongly than a patch, early and late in training",
            rule=POSITIVE,
            effects=taught_differently,
            scales=TRAINED_SCALES,
            note="norm of the loss's gradient at the input of each block, mean over blocks",
        ),
    ),
    grid=grid,
    seeds=INSIDE_SEEDS,
    pilots=INSIDE_PILOTS,
    columns=("accuracy", "skip_mean", "cut_accuracy_mean", "gradient_apart"),
    matched=INSIDE_MATCHED,
    scales=ALL_SCALES,
)
