"""Do late tokens know their place (P2's figures 9 to 11), and what does GAP change there?"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from statistics import fmean

from vitreous.papers.experiment import (
    POINTS,
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
    GAP,
    INSIDE,
    INSIDE_MATCHED,
    INSIDE_PILOTS,
    INSIDE_SEEDS,
    RESNET,
    VIT,
    VITS,
    between,
    look_across,
    look_into,
    looks,
    network,
)
from vitreous.papers.verdict import ONE_APART, POSITIVE, alike, share_less, unlike
from vitreous.papers.works.look import looked
from vitreous.papers.works.tokens import token_kinds

PROBED_IMAGES = 1024  # of both splits; token probes hold no more, so both kinds of probe fit on the same images


def grid(scale: ScaleName, seeds: Sequence[int]) -> Iterator[GridCell]:
    yield from looks(scale, seeds, (VIT, RESNET))
    if scale != RELEASED:
        how = INSIDE[scale]
        for seed in seeds:
            yield GridCell(VIT, seed, token_kinds(network(scale, VIT, seed), how.data, seen=how.seen))


def above_chance(table: ArmTable) -> Iterable[Effect]:
    for arm in (arm for arm in VITS if arm in table.arms):
        found, chance = (table.values(arm, name) for name in ("place_hit", "place_chance"))
        values = {seed: found[seed] - chance[seed] for seed in found if seed in chance}
        bounds = share_less(fmean(chance.values()) if chance else 0.0)
        yield Effect(f"{arm}: share − chance", values, POINTS, bounds)


def own_inputs_kept(table: ArmTable) -> Iterable[Effect]:
    readings = ("own_patches", "class_patches")
    return [between(table, VIT, readings, "CKA, patches − class token", bounds=ONE_APART)]


EXPERIMENT = Experiment(
    name="place",
    family="E-LOOK",
    title="Do last tokens know their place?",
    claims=(
        Claim(
            row="C39",
            part="a",
            words="more inner tokens of a ViT's last block than by chance are most like their own patch",
            rule=POSITIVE,
            effects=above_chance,
            published="inner tokens peak at their own patch (P2 figure 9; no digits)",
        ),
        Claim(
            row="C40",
            words="fewer places of a ResNet's last map are most like their own patch",
            rule=POSITIVE,
            effects=lambda table: [table.difference(VIT, RESNET, "place_hit", name=f"{VIT} − {RESNET}: share")],
            published="a ResNet's last map is blurred (P2 figure 9; no digits)",
            scales=TRAINED_SCALES,
        ),
        Claim(
            row="Q04b",
            words="a last patch token is more like its own input than the class token is like a patch",
            rule=POSITIVE,
            effects=own_inputs_kept,
            scales=TRAINED_SCALES,
            note="the class token's own input never changes, so its CKA has no meaning; the mean over patches stands "
            "in. It replaced the best patch after a trial on another seed, where the best patch spoke against it",
        ),
    ),
    grid=grid,
    seeds=INSIDE_SEEDS,
    pilots=INSIDE_PILOTS,
    columns=("accuracy", "place_hit", "place_percentile", "own_patches", "class_patches"),
    matched=INSIDE_MATCHED + "; ViT and ResNet end on the same grid at laptop and gpu scale",
    scales=ALL_SCALES,
)


# Class token or mean -------------------------------------------------------------------------------------------------


def readout_grid(scale: ScaleName, seeds: Sequence[int]) -> Iterator[GridCell]:
    how = INSIDE[scale]
    probed = "imagenette" if scale == "full" else how.data  # token probes of 1,000 classes would see 1 image of each
    for arm in (VIT, GAP):
        for seed in seeds:
            trained = network(scale, arm, seed)
            probes = looked(trained, probed, ("probes", "token-probes"), seen=PROBED_IMAGES)
            for cell in (trained, look_into(scale, arm, seed), look_across(scale, arm, seed), probes):
                yield GridCell(arm, seed, cell)


def tokens_classify_better(table: ArmTable) -> Iterable[Effect]:
    return [table.difference(GAP, VIT, "token_probe_last", name="GAP − class token: 10 shots on one last patch token")]


def loses_place(table: ArmTable) -> Iterable[Effect]:
    yield table.difference(VIT, GAP, "place_hit", name="class token − GAP: share of tokens at their place")


def becomes_like_resnet(table: ArmTable) -> Iterable[Effect]:
    name = "GAP − class token: CKA with a ResNet's last stage"
    yield table.difference(GAP, VIT, "match_last_stage", "", name, ONE_APART)


def one_less_pooled(table: ArmTable, arm: str) -> Iterable[Effect]:
    """10-shot accuracy of a single last token, less that of their mean, fitted and judged on the same images."""
    one, pooled = table.values(arm, "token_probe_last"), table.values(arm, "probe_10_shot_patches")
    values = {seed: float(one[seed]) - float(pooled[seed][-1]) for seed in one if seed in pooled}
    yield Effect(f"{arm}: one last token − their mean", values, POINTS, ONE_APART)


READOUTS = Experiment(
    name="readouts-inside",
    family="E-LOOK",
    title="What does GAP change inside?",
    claims=(
        Claim(
            row="C39",
            part="b",
            words="a single patch token tells the class less well with a class token than with GAP",
            rule=POSITIVE,
            effects=tokens_classify_better,
            published="6 to 10 % right by a last token with a class token, 57 to 58 % with GAP (B/32, P2 figure D.4)",
        ),
        Claim(
            row="C41",
            part="a",
            words="with GAP fewer last tokens know their place",
            rule=POSITIVE,
            effects=loses_place,
            published="localisation is much weaker with GAP (P2 figure 10; no digits)",
        ),
        Claim(
            row="C41",
            part="b",
            words="with GAP the last block is more like a ResNet's last stage",
            rule=POSITIVE,
            effects=becomes_like_resnet,
            note="study notes say so; P2 does not measure it",
        ),
        Claim(
            row="C42",
            part="a",
            words="with GAP a single last token tells the class as well as their mean, within 2 points",
            rule=alike(0.02),
            effects=lambda table: one_less_pooled(table, GAP),
            published="57 to 58 % by each token of B/32 (P2 figure D.4)",
        ),
        Claim(
            row="C42",
            part="b",
            words="with a class token it does not",
            rule=unlike(0.02),
            effects=lambda table: one_less_pooled(table, VIT),
            published="6 to 10 % by each token of B/32 (P2 figure D.4)",
        ),
    ),
    grid=readout_grid,
    seeds={scale: INSIDE_SEEDS[scale] for scale in INSIDE},
    pilots=INSIDE_PILOTS,
    columns=("accuracy", "place_hit", "match_last_stage", "token_probe_last"),
    matched="parameters but for the class token; one rate for both at laptop scale, each its own at gpu and full",
)
