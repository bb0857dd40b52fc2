"""How much of the image a place depends on, by depth (P2's figure 6)."""

from __future__ import annotations

from vitreous.papers.experiment import Claim, Experiment
from vitreous.papers.experiments.inside import INSIDE, INSIDE_MATCHED, INSIDE_PILOTS, INSIDE_SEEDS, RESNET, VIT, looks
from vitreous.papers.verdict import POSITIVE

EXPERIMENT = Experiment(
    name="receptive-field",
    family="E-LOOK",
    title="How much of the image does a place depend on?",
    claims=(
        Claim(
            row="I09",
            words="in the lower half of the depth a ViT's effective receptive field is wider than a ResNet's",
            rule=POSITIVE,
            effects=lambda table: [
                table.difference(VIT, RESNET, "field_low", "", f"{VIT} − {RESNET}: radius, share of an even field's")
            ],
            published="a ResNet's field is small and grows slowly, a ViT's is larger early (P2 figure 6; no digits)",
            note="radius that holds half of the absolute gradient, after the skip was added, mean over the lower half. "
            "Three ViTs of 8 and 12 blocks, on photographs, are not wider after a quarter of their depth "
            "(docs/guide/look.md, row 5): there a token is still mostly its own patch",
        ),
    ),
    grid=lambda scale, seeds: looks(scale, seeds, (VIT, RESNET)),
    seeds={scale: INSIDE_SEEDS[scale] for scale in INSIDE},
    pilots=INSIDE_PILOTS,
    columns=("accuracy", "field_low"),
    matched=INSIDE_MATCHED,
)
