"""Images and language: are neighbouring words as alike as neighbouring patches, and does the encoder read letters?"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from vitreous.papers.experiment import ArmTable, Claim, Effect, Experiment, GridCell, ScaleName
from vitreous.papers.experiments import gpu_scale
from vitreous.papers.experiments.inside import INSIDE, INSIDE_PILOTS, INSIDE_SEEDS, VIT, network
from vitreous.papers.verdict import POSITIVE, TWO_APART
from vitreous.papers.works.text import neighbouring_patches, neighbouring_words, next_letter

WORDS_ARM, ENCODER, NO_ORDER, BAG = "words", "encoder", "encoder without positions", "mean of letters, MLP"
PATCH_KINDS = ("raw", "embedded")


def grid(scale: ScaleName, seeds: Sequence[int]) -> Iterator[GridCell]:
    how = INSIDE[scale]
    for seed in seeds:
        trained = network(scale, VIT, seed)
        yield GridCell(VIT, seed, trained)
        yield GridCell(VIT, seed, neighbouring_patches(trained, how.data, seen=how.seen))
        yield GridCell(WORDS_ARM, seed, neighbouring_words(seed))


def patches_alike(table: ArmTable) -> Iterable[Effect]:
    names = {kind: f"{kind} patches: cosine, neighbours − random" for kind in PATCH_KINDS}
    return [table.one(VIT, f"{kind}_gap", name, bounds=TWO_APART) for kind, name in names.items()]


def more_than_words(table: ArmTable) -> Iterable[Effect]:
    """In standard deviations of random pairs."""
    words = table.values(WORDS_ARM, "words_effect")
    for kind in PATCH_KINDS:
        mine = table.values(VIT, f"{kind}_effect")
        yield Effect(f"{kind} patches − words", {seed: mine[seed] - words[seed] for seed in mine if seed in words})


EXPERIMENT = Experiment(
    name="patches-and-words",
    family="E-LOOK",
    title="Are neighbouring patches more alike than neighbouring words?",
    claims=(
        Claim(
            row="C43",
            part="a",
            words="neighbouring patches are more alike than patches drawn at random, raw and embedded",
            rule=POSITIVE,
            effects=patches_alike,
        ),
        Claim(
            row="C43",
            part="b",
            words="they are so by more than neighbouring words are",
            rule=POSITIVE,
            effects=more_than_words,
            note="in deviations of random pairs; words by PPMI and SVD, of a part of the text that gave no counts",
        ),
    ),
    grid=grid,
    seeds={scale: INSIDE_SEEDS[scale] for scale in INSIDE},
    pilots=INSIDE_PILOTS,
    columns=("raw_gap", "embedded_gap", "words_gap", "raw_effect", "embedded_effect", "words_effect"),
    matched="pairs of neighbours against random pairs of the same set; vectors with their mean taken out",
)

LETTER_MODELS = {
    "laptop": ("S/4 patch=1 image_size=1x16 width=48 depth=2 heads=4 mlp=96", "bag 16 48 520", 300),
    "gpu": ("S/4 patch=1 image_size=1x64 width=128 depth=4 heads=4 mlp=512", "bag 64 128 5000", 1500),
    "full": ("S/4 patch=1 image_size=1x256 width=768 depth=12 heads=12 mlp=3072", "bag 256 768 107000", 30000),
}


def letter_grid(scale: ScaleName, seeds: Sequence[int]) -> Iterator[GridCell]:
    model, bag, steps = LETTER_MODELS[scale]
    for arm, name in ((ENCODER, model), (NO_ORDER, f"{model} positions=none"), (BAG, bag)):
        for seed in seeds:
            yield GridCell(arm, seed, next_letter(name, seed, steps=steps))


SEQUENCE = Experiment(
    name="sequence",
    family="E-LOOK",
    title="Does the same encoder read text?",
    claims=(
        Claim(
            row="C16",
            words="the encoder with a table of letters for patches tells the next letter better than a bag of letters",
            rule=POSITIVE,
            effects=lambda table: [table.difference(ENCODER, arm, "accuracy") for arm in (NO_ORDER, BAG)],
            note="without positions the encoder is itself a bag of tokens (M14); judged on the unseen end of the text",
            untested="that a weak bias makes the model general-purpose",
        ),
    ),
    grid=letter_grid,
    seeds={"laptop": 5, "gpu": gpu_scale.SEEDS, "full": 3},
    columns=("accuracy", "parameters"),
    matched="parameters within 10 %, steps, letters seen, one rate",
)
