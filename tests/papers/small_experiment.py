"""An experiment of a few seconds: a tiny ViT with and without positions, three steps each."""

from vitreous.papers.experiment import Claim, Experiment, GridCell
from vitreous.papers.verdict import POSITIVE, alike
from vitreous.papers.works.probe import few_shot
from vitreous.papers.works.train import train

TINY = "S/7 width=16 depth=1 heads=2 mlp=16 image_size=28 channels=1"
STEPS = {"length": "3 steps", "batch": 32, "crop": "none", "flip": 0.0}
ARMS = {"with": "positions=learned", "without": "positions=none"}


def grid(scale, seeds):
    for arm, positions in ARMS.items():
        for seed in seeds:
            trained = train(f"{TINY} {positions}", "fashion", seed, images=200, recipe=STEPS)
            yield GridCell(arm, seed, trained)
            if scale == "gpu":
                yield GridCell(arm, seed, few_shot(trained, "fashion", images=200))


def gain(table):
    return [table.difference("with", "without", "accuracy")]


EXPERIMENT = Experiment(
    name="small",
    family="E-TEST",
    title="Do positions help?",
    claims=(
        Claim("C17", "positions help", POSITIVE, gain, published="2.6 points"),
        Claim("C18", "positions change nothing", alike(0.5), gain),
    ),
    grid=grid,
    seeds={"laptop": 2, "gpu": 2, "full": 2},
)
