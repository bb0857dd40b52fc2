"""One switch at a time: norm, activation, heads, scale, start, skips, neighbours, colour."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from vitreous.papers.experiment import PILOTS, ArmTable, Claim, Effect, Experiment, GridCell, ScaleName
from vitreous.papers.experiments import gpu_scale
from vitreous.papers.experiments.small_vit import SAME_BUT_ONE, SETTINGS, trained, usual_rate
from vitreous.papers.verdict import ONE_APART, POSITIVE, alike
from vitreous.papers.works.channels import channels
from vitreous.papers.works.gradients import gradients
from vitreous.papers.works.look import looked

BASE = "as it is"
SEEDS: dict[ScaleName, int] = {"laptop": 8, "gpu": gpu_scale.SEEDS, "full": 3}

# Pre-norm and post-norm --------------------------------------------------------------------------------------------

NORM_DEPTHS = {"laptop": (3, 6), "gpu": (6, 12), "full": (12, 24)}
STABLE_RATES = {"laptop": (3e-3, 1e-2, 3e-2), "gpu": (1e-3, 3e-3, 1e-2), "full": (1e-3, 3e-3, 1e-2)}
STABLE_LENGTH = {"laptop": "200 steps", "gpu": "150 steps", "full": "30 epochs"}
LEARNS = 0.5  # a rate is stable if it reaches this share of the best accuracy of both


def norm_arm(place: str, depth: int) -> str:
    return f"{place}-norm, {depth} blocks"


def stable_arm(place: str, rate: float) -> str:
    return f"{place}-norm, rate {rate:g}"


def norm_grid(scale: ScaleName, seeds: Sequence[int]) -> Iterator[GridCell]:
    depths = NORM_DEPTHS[scale]
    for place in ("pre", "post"):
        for depth in depths:
            change = _joined("" if place == "pre" else "norm=post", _depth(scale, depth))
            for seed in seeds:
                cell = trained(scale, seed, change)
                yield GridCell(norm_arm(place, depth), seed, cell)
                if depth == depths[-1]:
                    yield GridCell(norm_arm(place, depth), seed, gradients(cell))
        change = _joined("" if place == "pre" else "norm=post", _depth(scale, depths[0]))
        for rate in STABLE_RATES[scale]:
            for seed in seeds:
                cell = trained(scale, seed, change, rate=rate, length=STABLE_LENGTH[scale])
                yield GridCell(stable_arm(place, rate), seed, cell)


def _depth(scale: ScaleName, depth: int) -> str:
    return "" if depth == SETTINGS[scale].depth else f"depth={depth}"


def _joined(*changes: str) -> str:
    return " ".join(change for change in changes if change)


def _depths(table: ArmTable) -> list[int]:
    return sorted({int(arm.split(", ")[1].split()[0]) for arm in table.arms if arm.endswith(" blocks")})


def pre_better(table: ArmTable) -> Iterable[Effect]:
    return [table.difference(norm_arm("pre", d), norm_arm("post", d), "accuracy") for d in _depths(table)]


def stable_rates(table: ArmTable) -> Iterable[Effect]:
    """lg of the largest rate that learns, pre − post. If none learns, a step below the smallest rate counts."""
    rates = sorted({float(arm.rpartition(" ")[2]) for arm in table.arms if ", rate " in arm})
    found = {
        place: {rate: table.values(stable_arm(place, rate), "accuracy") for rate in rates} for place in ("pre", "post")
    }
    columns = [column for by_rate in found.values() for column in by_rate.values()]
    seeds = set.intersection(*(set(column) for column in columns)) if columns else set()
    values = {}
    for seed in sorted(seeds):
        need = LEARNS * max(column[seed] for column in columns)
        largest = [
            max((rate for rate in rates if by_rate[rate][seed] >= need), default=rates[0] / 3)
            for by_rate in found.values()
        ]
        values[seed] = math.log10(largest[0] / largest[1])
    return [Effect("lg of the largest stable rate, pre − post", values)]


def gradient_spread(table: ArmTable) -> Iterable[Effect]:
    deep = _depths(table)[-1:]
    return [
        table.difference(
            norm_arm("post", depth),
            norm_arm("pre", depth),
            f"gradient_spread_{when}",
            "",
            f"spread of ln gradient over {depth} blocks, {words}: post − pre",
        )
        for depth in deep
        for when, words in (("start", "at the start"), ("trained", "trained"))
    ]


NORM_PLACE = Experiment(
    name="norm-place",
    family="E-ABL",
    title="Norm before the branch, or after the sum?",
    claims=(
        Claim(
            row="C22",
            part="a",
            words="pre-norm is better than post-norm at two depths",
            rule=POSITIVE,
            effects=pre_better,
            published="none: study notes say much better, without figures",
        ),
        Claim(
            row="C22",
            part="b",
            words="pre-norm still learns at larger rates than post-norm",
            rule=POSITIVE,
            effects=stable_rates,
            published="none",
            note="a rate is stable if it reaches half of the best accuracy of both; rates lie a factor of 3 apart, so "
            "seeds may agree exactly",
        ),
        Claim(
            row="M37",
            words="with post-norm gradients differ more between blocks, at the start and after training",
            rule=POSITIVE,
            effects=gradient_spread,
            published="disputed; none",
            note="the zero head of a fresh ViT passes no gradient, so the reading at the start draws it",
        ),
    ),
    grid=norm_grid,
    columns=("accuracy", "diverged", "gradient_spread_start", "gradient_spread_trained"),
    matched=SAME_BUT_ONE,
    seeds=SEEDS,
    pilots=PILOTS,
)

# Switches ----------------------------------------------------------------------------------------------------------

SWITCHES = {
    BASE: "",
    "ReLU": "activation=relu",
    "batch norm": "norm_kind=batch",
    "one head": "heads=1",
    "without 1/√d": "attention_scale=1.0",
    "random class token": "token_start=normal",
}
SMALL_BATCH = {"gpu": 32, "full": 64}
SMALL_LENGTH = {"gpu": "700 steps", "full": "30 epochs"}
EARLY = {"laptop": "20 steps", "gpu": f"{gpu_scale.SOME_STEPS} steps", "full": "1000 steps"}
SMALL = ", small batch"


def switches_grid(scale: ScaleName, seeds: Sequence[int]) -> Iterator[GridCell]:
    how = SETTINGS[scale]
    for name, change in SWITCHES.items():
        for seed in seeds:
            cell = trained(scale, seed, change)
            yield GridCell(name, seed, cell)
            if name == BASE and scale != "laptop":
                yield GridCell(name, seed, looked(cell, how.data, ["head-likeness"], seen=128))
            if name in (BASE, "without 1/√d"):
                early = trained(scale, seed, change, rate=usual_rate(scale, change), length=EARLY[scale])
                yield GridCell(name, seed, looked(early, how.data, ["attention-entropy"], seen=128))
            if name in (BASE, "batch norm") and scale in SMALL_BATCH:
                rate = usual_rate(scale, change) / 3
                small: dict[str, Any] = {"batch": SMALL_BATCH[scale], "length": SMALL_LENGTH[scale]}
                yield GridCell(f"{name}{SMALL}", seed, trained(scale, seed, change, rate=rate, **small))


def activations_alike(table: ArmTable) -> Iterable[Effect]:
    return [table.difference(BASE, "ReLU", "accuracy", name="GELU − ReLU")]


def layer_norm_better(table: ArmTable) -> Iterable[Effect]:
    yield table.difference(BASE, "batch norm", "accuracy", name="layer norm − batch norm")
    if f"{BASE}{SMALL}" in table.arms:
        small = f"{BASE}{SMALL}", f"batch norm{SMALL}"
        yield table.difference(*small, "accuracy", name="the same with a small batch")


def heads_better(table: ArmTable) -> Iterable[Effect]:
    return [table.difference(BASE, "one head", "accuracy", name="4 heads − 1 head")]


def scale_better(table: ArmTable) -> Iterable[Effect]:
    with_scale, without = (table.values(arm, "entropy") for arm in (BASE, "without 1/√d"))
    early = {s: float(np.mean(with_scale[s]) - np.mean(without[s])) for s in with_scale if s in without}
    name = "entropy of attention early in training, with − without, as a share of the largest"
    return [
        table.difference(BASE, "without 1/√d", "accuracy", name="accuracy, with − without"),
        Effect(name, early, bounds=ONE_APART),
    ]


def token_starts_alike(table: ArmTable) -> Iterable[Effect]:
    return [table.difference("random class token", BASE, "accuracy", name="random − zero")]


SWITCHED = Experiment(
    name="switches",
    family="E-ABL",
    title="What do activation, norm, heads, scale and first class token matter?",
    claims=(
        Claim(
            row="C23",
            words="GELU and ReLU are within half a point",
            rule=alike(0.005),
            effects=activations_alike,
            published="none: study notes name a change, not a gain",
        ),
        Claim(
            row="C24",
            words="layer norm is better than batch norm, also with a small batch",
            rule=POSITIVE,
            effects=layer_norm_better,
            published="none",
            note="small batches run at a third of the rate, and not on a laptop",
        ),
        Claim(
            row="C25",
            words="four heads are better than one of the same parameters",
            rule=POSITIVE,
            effects=heads_better,
            published="none",
            note="the likeness of the heads' maps is a reading at gpu scale: head_likeness, by block",
        ),
        Claim(
            row="C26",
            words="without 1/√d a model learns worse, and attends to fewer tokens early in training",
            rule=POSITIVE,
            effects=scale_better,
            published="none",
        ),
        Claim(
            row="C27",
            words="a class token that starts at random ends within half a point of one that starts at zero",
            rule=alike(0.005),
            effects=token_starts_alike,
            published="none: study notes disagree on which is used",
        ),
    ),
    grid=switches_grid,
    columns=("accuracy", "train_accuracy"),
    matched=SAME_BUT_ONE,
    seeds=SEEDS,
    pilots=PILOTS,
)

# Skips -------------------------------------------------------------------------------------------------------------

PLACES = ("low", "middle", "high")
RESNET = "ResNet"


def cut_block(scale: ScaleName, place: str) -> int:
    depth = SETTINGS[scale].depth
    return {"low": 0, "middle": depth // 2, "high": depth - 1}[place]


def cut_arm(place: str, block: int) -> str:
    return f"no skips in block {block + 1} ({place})"


def skips_grid(scale: ScaleName, seeds: Sequence[int]) -> Iterator[GridCell]:
    how = SETTINGS[scale]
    cuts = {cut_arm(place, block): block for place in PLACES for block in (cut_block(scale, place),)}
    for name, block in {BASE: None, **cuts}.items():
        for seed in seeds:
            cell = trained(scale, seed, "" if block is None else f"skips={block}")
            yield GridCell(name, seed, cell)
            removal = ["skip-removal"] if name == BASE else []
            yield GridCell(name, seed, looked(cell, how.data, ["similarity", *removal]))
    for seed in seeds:
        resnet = trained(scale, seed, is_resnet=True)
        yield GridCell(RESNET, seed, resnet)
        yield GridCell(RESNET, seed, looked(resnet, how.data, ["skip-removal"]))


def _cuts(table: ArmTable) -> dict[str, int]:
    """The arms without skips, each with the number of its block, from 0."""
    return {arm: int(arm.split("block ")[1].split()[0]) - 1 for arm in table.arms if "block " in arm}


def parted_by_a_cut(table: ArmTable) -> Iterable[Effect]:
    effects = []
    full = table.values(BASE, "cka_across")
    for arm, block in _cuts(table).items():
        cut = table.values(arm, "cka_across")
        values = {seed: full[seed][block] - cut[seed][block] for seed in full if seed in cut}
        effects.append(Effect(f"CKA across block {block + 1}, with − without its skips", values, bounds=ONE_APART))
    return effects


def worse_without(table: ArmTable) -> Iterable[Effect]:
    return [table.difference(BASE, arm, "accuracy", name=f"with − {arm}") for arm in _cuts(table)]


def kept_by_resnet(table: ArmTable) -> Iterable[Effect]:
    name = "answers kept when one block loses its skips, ResNet − ViT"
    return [table.difference(RESNET, BASE, "removal_kept", name=name)]


SKIPS = Experiment(
    name="skip-removal",
    family="E-ABL",
    title="What do skip connections do?",
    claims=(
        Claim(
            row="C38",
            part="a",
            words="trained without the skips of a block, layers before and after it part",
            rule=POSITIVE,
            effects=parted_by_a_cut,
            published="P2 figure 8, by eye",
            also=("Q06",),
        ),
        Claim(
            row="C38",
            part="b",
            words="trained without the skips of a block, a ViT is worse",
            rule=POSITIVE,
            effects=worse_without,
            published="4 points lost without those of a middle block (P2)",
            also=("Q06",),
        ),
        Claim(
            row="Q06",
            words="a trained ViT keeps fewer answers than a ResNet when one block loses its skips",
            rule=POSITIVE,
            effects=kept_by_resnet,
            published="none",
            note="skips are cut after training, one block or unit at a time, in both",
        ),
    ),
    grid=skips_grid,
    columns=("accuracy", "removal_kept"),
    matched=SAME_BUT_ONE,
    seeds=SEEDS,
    pilots=PILOTS,
)

# Neighbours and skips ----------------------------------------------------------------------------------------------

SHUFFLED, DAMPED, BOTH = "shuffled patches", "damped skips", "both"
DAMPING = "layer_scale=4.0"  # every branch starts with a gain of 4, so the skip weighs a quarter as much


def neighbours_grid(scale: ScaleName, seeds: Sequence[int]) -> Iterator[GridCell]:
    how = SETTINGS[scale]
    view = f"shuffled-patches-{how.patch}"
    arms = {BASE: ("", ""), SHUFFLED: ("", view), DAMPED: (DAMPING, ""), BOTH: (DAMPING, view)}
    for name, (change, seen) in arms.items():
        for seed in seeds:
            cell = trained(scale, seed, change, view=seen)
            yield GridCell(name, seed, cell)
            yield GridCell(name, seed, looked(cell, str(cell.options["data"]), ["localisation"]))


def place_kept(table: ArmTable) -> Iterable[Effect]:
    arms = [BASE, SHUFFLED, DAMPED, BOTH]
    named = {
        "tokens most like their own patch: whole − shuffled images": lambda a, b, c, d: (a + c - b - d) / 2,
        "the same: full − damped skips": lambda a, b, c, d: (a + b - c - d) / 2,
    }
    return [table.combined(name, arms, "place_hit_all", of, "points", ONE_APART) for name, of in named.items()]


NEIGHBOURS = Experiment(
    name="neighbours-and-skips",
    family="E-ABL",
    title="Do tokens keep their place because neighbours are alike and skips are strong?",
    claims=(
        Claim(
            row="Q13",
            words="fewer tokens keep their place with shuffled patches, and with damped skips",
            rule=POSITIVE,
            effects=place_kept,
            published="none: a guess in study notes",
            note="damped: LayerScale begins at 4, so a skip weighs a quarter beside its branch",
        ),
    ),
    grid=neighbours_grid,
    columns=("accuracy", "place_hit_all", "place_percentile"),
    matched=SAME_BUT_ONE,
    seeds=SEEDS,
    pilots=PILOTS,
)

# Colour ------------------------------------------------------------------------------------------------------------

RGB, GREY, DECORRELATED = "RGB", "grey", "decorrelated"


def colour_grid(scale: ScaleName, seeds: Sequence[int]) -> Iterator[GridCell]:
    for name, view in ((RGB, ""), (GREY, "grey"), (DECORRELATED, "decorrelated")):
        for seed in seeds:
            cell = trained(scale, seed, view=view)
            yield GridCell(name, seed, cell)
            if name == RGB:
                yield GridCell(name, seed, channels(cell))


def colours_repeat(table: ArmTable) -> Iterable[Effect]:
    return [table.one(RGB, "patch_colour_correlation", "correlation of two colours inside a patch", "", ONE_APART)]


def colours_help(table: ArmTable) -> Iterable[Effect]:
    return [table.difference(RGB, GREY, "accuracy")]


def axes_alike(table: ArmTable) -> Iterable[Effect]:
    return [table.difference(DECORRELATED, RGB, "accuracy")]


COLOUR = Experiment(
    name="colour",
    family="E-ABL",
    title="Are the colours of a patch redundant?",
    claims=(
        Claim(
            row="Q02",
            part="a",
            words="the colours of a patch vary together: their correlation is above 0",
            rule=POSITIVE,
            effects=colours_repeat,
        ),
        Claim(
            row="Q02",
            part="b",
            words="they are not useless: RGB is better than grey",
            rule=POSITIVE,
            effects=colours_help,
        ),
        Claim(
            row="Q02",
            part="c",
            words="taking the correlation out changes accuracy by less than a point",
            rule=alike(0.01),
            effects=axes_alike,
        ),
    ),
    grid=colour_grid,
    columns=("accuracy", "patch_colour_correlation", "patch_first_colour_axis", "filter_colour_correlation"),
    matched="everything: only the pixels differ",
    scales=("gpu", "full"),
    seeds=SEEDS,
)
