"""What a cell can do, by name."""

from vitreous.papers.works.bench import Bench, Readings, Work
from vitreous.papers.works.look import LOOK
from vitreous.papers.works.probe import FEW_SHOT
from vitreous.papers.works.tokens import TOKENS
from vitreous.papers.works.train import TRAINING
from vitreous.registry import Registry

__all__ = ["WORKS", "Bench", "Readings", "Work"]

WORKS: Registry[Work] = Registry("works", {"train": TRAINING, "few-shot": FEW_SHOT, "look": LOOK, "tokens": TOKENS})
