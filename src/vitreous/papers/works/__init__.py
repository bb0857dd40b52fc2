"""What a cell can do, by name."""

from vitreous.papers.works.bench import Bench, Readings, Work
from vitreous.papers.works.channels import CHANNELS
from vitreous.papers.works.episodes import EPISODES
from vitreous.papers.works.gradients import GRADIENTS
from vitreous.papers.works.likeness import LIKENESS
from vitreous.papers.works.look import LOOK
from vitreous.papers.works.overfitting import ON_TRAIN
from vitreous.papers.works.patterns import PATTERNS
from vitreous.papers.works.probe import FEW_SHOT
from vitreous.papers.works.resizing import AT_SIZE
from vitreous.papers.works.shift import SHIFT_WORK
from vitreous.papers.works.speed import SPEED
from vitreous.papers.works.text import LETTERS_WORK, PATCHES_WORK, WORDS
from vitreous.papers.works.tokens import TOKEN_KINDS
from vitreous.papers.works.train import TRAINING
from vitreous.registry import Registry

__all__ = ["WORKS", "Bench", "Readings", "Work"]

OUR_WORKS = {
    "train": TRAINING,
    "on-train": ON_TRAIN,
    "at-size": AT_SIZE,
    "episodes": EPISODES,
    "few-shot": FEW_SHOT,
    "look": LOOK,
    "tokens": TOKEN_KINDS,
    "likeness": LIKENESS,
    "shift": SHIFT_WORK,
    "words": WORDS,
    "patches": PATCHES_WORK,
    "letters": LETTERS_WORK,
    "speed": SPEED,
    "gradients": GRADIENTS,
    "patterns": PATTERNS,
    "channels": CHANNELS,
}
WORKS: Registry[Work] = Registry("works", OUR_WORKS)
