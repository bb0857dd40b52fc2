"""What a cell can do, by name."""

from vitreous.papers.works.bench import Bench, Readings, Work
from vitreous.papers.works.episodes import EPISODES
from vitreous.papers.works.overfitting import ON_TRAIN
from vitreous.papers.works.probe import FEW_SHOT
from vitreous.papers.works.resizing import AT_SIZE
from vitreous.papers.works.train import TRAINING
from vitreous.registry import Registry

__all__ = ["WORKS", "Bench", "Readings", "Work"]

WORKS: Registry[Work] = Registry(
    "works",
    {
        "train": TRAINING,
        "on-train": ON_TRAIN,
        "few-shot": FEW_SHOT,
        "episodes": EPISODES,
        "at-size": AT_SIZE,
    },
)
