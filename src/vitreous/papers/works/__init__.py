"""What a cell can do, by name."""

from vitreous.papers.works.bench import Bench, Readings, Work
from vitreous.papers.works.look import LOOK
from vitreous.papers.works.probe import FEW_SHOT
from vitreous.papers.works.shift import SHIFT_WORK
from vitreous.papers.works.text import LETTERS_WORK, PATCHES_WORK, WORDS
from vitreous.papers.works.tokens import TOKEN_KINDS
from vitreous.papers.works.train import TRAINING
from vitreous.registry import Registry

__all__ = ["WORKS", "Bench", "Readings", "Work"]

WORKS: Registry[Work] = Registry(
    "works",
    {
        "train": TRAINING,
        "few-shot": FEW_SHOT,
        "look": LOOK,
        "tokens": TOKEN_KINDS,
        "shift": SHIFT_WORK,
        "words": WORDS,
        "patches": PATCHES_WORK,
        "letters": LETTERS_WORK,
    },
)
