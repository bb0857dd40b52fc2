"""Works on real text: are neighbouring words alike, as neighbouring patches are; and does the encoder read letters?

The text is the first five books of the King James translation of 1611, which no copyright covers, from the Debian
package bible-kjv-text 4.38 (`bible -f gen1:1-deut34:12`) without its verse numbers: 162,000 words.

B sequences   T letters   D numbers of each
"""

from __future__ import annotations

import lzma
import re
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from vitreous.errors import DataError
from vitreous.images.imageset import TEST
from vitreous.machine import choose_device
from vitreous.measures.measure import plain
from vitreous.models.catalog import build
from vitreous.models.taps import taps
from vitreous.models.vit import ViT, patchify
from vitreous.papers.experiment import Cell
from vitreous.papers.works.bench import Bench, Readings, Work, seed_of
from vitreous.papers.works.look import dealt
from vitreous.papers.works.tokens import batches_of

TEXT_FILE = Path(__file__).parents[1] / "text" / "torah.txt.xz"
WORDS_KNOWN, WINDOW, WORD_WIDTH = 1000, 4, 64  # the most frequent; words to each side that count; numbers of a vector
FOLDS = 10  # parts of the text; a seed is judged on one, and vectors come from the others
PAIRS = 20_000  # drawn at random
LETTERS = " abcdefghijklmnopqrstuvwxyz"
TEST_SHARE = 0.1  # of the text, its end


@cache
def text() -> str:
    return lzma.decompress(TEXT_FILE.read_bytes()).decode()


# Words and patches ---------------------------------------------------------------------------------------------------


def neighbouring_words(seed: int) -> Cell:
    return Cell("words", {"seed": seed}, (), WORDS.version)


def neighbouring_patches(trained: Cell, data: str, *, seen: int) -> Cell:
    return Cell(
        "patches", {"data": data, "seen": seen, "seed": trained.options["seed"]}, (trained,), PATCHES_WORK.version
    )


def run_words(cell: Cell, bench: Bench) -> Readings:
    seed = seed_of(cell.options)
    words = re.findall(r"[a-z]+", text().lower())
    names = [name for name, _ in Counter(words).most_common(WORDS_KNOWN)]
    number = {name: i for i, name in enumerate(names)}
    whole = np.array([number.get(word, -1) for word in words])
    parts = np.array_split(whole, FOLDS)
    held = parts.pop(seed % FOLDS)
    vectors = word_vectors(np.concatenate(parts))
    pairs = np.stack([held[:-1], held[1:]], 1)
    known = held[held >= 0]
    drawn = np.random.default_rng(seed).choice(known, (PAIRS, 2))
    return neighbours("words", vectors - vectors[known].mean(0), pairs[(pairs >= 0).all(1)], drawn)


def word_vectors(numbers: NDArray[np.int64], known: int = WORDS_KNOWN, width: int = WORD_WIDTH) -> NDArray[np.float64]:
    """U √S of the positive pointwise mutual information of words within WINDOW.  numbers: -1 for an unknown word."""
    counts = np.zeros((known, known))
    for step in range(1, WINDOW + 1):
        here, there = numbers[:-step], numbers[step:]
        both = (here >= 0) & (there >= 0)
        np.add.at(counts, (here[both], there[both]), 1)
    counts += counts.T
    alone = counts.sum(0)
    with np.errstate(divide="ignore", invalid="ignore"):
        information = np.log(counts * counts.sum() / np.outer(alone, alone))
    left, values, _ = np.linalg.svd(np.where(information > 0, information, 0))
    return left[:, :width] * np.sqrt(values[:width])


def run_patches(cell: Cell, bench: Bench) -> Readings:
    model = bench.model(cell.needs[0])
    if not isinstance(model, ViT):
        raise DataError("neighbouring patches are those of a ViT; name one")
    shown = dealt(bench.sets.open(cell.options["data"]).split(TEST), cell.options["seen"])
    raw, embedded = list[Tensor](), list[Tensor]()
    for pixels, inputs, _ in batches_of(model, shown, bench):
        with torch.inference_mode(), taps(model, "embedding.patches") as seen:
            model(inputs)
        raw.append(patchify(pixels, model.stem.patch).cpu())
        embedded.append(seen["embedding.patches"].cpu())
    out: Readings = {}
    for name, each in (("raw", raw), ("embedded", embedded)):
        patches = torch.cat(each).double()  # B N D
        out |= patch_neighbours(name, patches.numpy(), model.grid, seed_of(cell.options))
    return out


def patch_neighbours(name: str, patches: NDArray[np.float64], grid: tuple[int, int], seed: int) -> Readings:
    """Patches beside and below each other, against pairs drawn from all images.  patches: B N D"""
    images, places, width = patches.shape
    numbers = np.arange(images * places).reshape(images, *grid)
    beside = np.stack([numbers[:, :, :-1].ravel(), numbers[:, :, 1:].ravel()], 1)
    below = np.stack([numbers[:, :-1].ravel(), numbers[:, 1:].ravel()], 1)
    drawn = np.random.default_rng(seed).integers(images * places, size=(PAIRS, 2))
    flat = patches.reshape(-1, width)
    return neighbours(name, flat - flat.mean(0), np.concatenate([beside, below]), drawn)


def neighbours(name: str, vectors: NDArray[np.float64], beside: NDArray[Any], drawn: NDArray[Any]) -> Readings:
    """Mean cosine of neighbours and of random pairs; and their difference in standard deviations of random pairs."""
    unit = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
    near, random = ((unit[pairs[:, 0]] * unit[pairs[:, 1]]).sum(1) for pairs in (beside, drawn))
    apart = float(near.mean() - random.mean())
    found = {"beside": float(near.mean()), "random": float(random.mean()), "gap": apart}
    return plain({f"{name}_{key}": value for key, value in found.items()} | {f"{name}_effect": apart / random.std()})


# Letters -------------------------------------------------------------------------------------------------------------


def next_letter(model: str, seed: int, *, steps: int, batch: int = 128, rate: float = 2e-3) -> Cell:
    """Train on all but the end of the text to predict the next letter, and judge on the end.

    model: a ViT's name with `image_size=1xT patch=1`, whose blocks then read T letters; or `bag`: the mean of the
    letters' vectors, and an MLP.
    """
    options = {"model": model, "seed": seed, "steps": steps, "batch": batch, "rate": rate}
    return Cell("letters", options, (), LETTERS_WORK.version)


class LetterReader(nn.Module):
    """A ViT whose patch projection is replaced by a table of letters; all else is the ViT's own."""

    def __init__(self, vit: ViT):
        super().__init__()
        self.vit = vit
        self.table = nn.Embedding(len(LETTERS), vit.config.encoder.width)

    def forward(self, letters: Tensor) -> Tensor:  # B T
        vit = self.vit
        z = vit.encode(vit.embedding.placed(self.table(letters), vit.grid), vit.grid)
        return vit.head(vit.pool(vit.norm(z)))  # B 27


class LetterBag(nn.Module):
    """The mean of the letters' vectors, then an MLP: order is lost."""

    def __init__(self, width: int, hidden: int):
        super().__init__()
        self.table = nn.Embedding(len(LETTERS), width)
        self.mlp = nn.Sequential(nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, len(LETTERS)))

    def forward(self, letters: Tensor) -> Tensor:  # B T
        return self.mlp(self.table(letters).mean(1))  # B 27


def letter_model(name: str, seed: int) -> tuple[nn.Module, int]:
    """A network and how many letters it reads. `bag 16 64 400`: letters, width, hidden."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if name.startswith("bag "):
            count, width, hidden = (int(word) for word in name.split()[1:])
            return LetterBag(width, hidden), count
        vit = build(name, classes=len(LETTERS), channels=1, seed=seed)
        assert isinstance(vit, ViT)
        return LetterReader(vit), vit.grid[1]


def letters() -> NDArray[np.int64]:
    """The text as numbers; everything else becomes a space, and spaces do not repeat."""
    plain_text = re.sub(r"[^a-z]+", " ", text().lower())
    return np.array([LETTERS.index(letter) for letter in plain_text])


def run_letters(cell: Cell, bench: Bench) -> Readings:
    options, seed = cell.options, seed_of(cell.options)
    device = choose_device(bench.device)
    model, count = letter_model(options["model"], seed)
    model.to(device)
    whole = torch.from_numpy(letters())
    end = int(len(whole) * (1 - TEST_SHARE))
    random = np.random.default_rng(seed)
    optimiser = torch.optim.AdamW(model.parameters(), lr=options["rate"], weight_decay=0.01)
    plan = torch.optim.lr_scheduler.OneCycleLR(optimiser, options["rate"], total_steps=options["steps"])
    for _ in range(options["steps"]):
        x, y = _windows(whole, random.integers(end - count, size=options["batch"]), count, device)
        loss = F.cross_entropy(model(x), y)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        plan.step()
    places = np.random.default_rng(0).integers(end, len(whole) - count, size=PAIRS // 4)
    model.eval()
    right = 0
    with torch.inference_mode():
        for part in np.array_split(places, 10):
            x, y = _windows(whole, part, count, device)
            right += int((model(x).argmax(-1) == y).sum())
    return {"accuracy": right / len(places), "parameters": sum(each.numel() for each in model.parameters())}


def _windows(whole: Tensor, begins: NDArray[np.int64], count: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """T letters from each place on, and the letter that follows.  Returns B T and B"""
    rows = torch.from_numpy(begins[:, None] + np.arange(count + 1))
    found = whole[rows].to(device)
    return found[:, :-1], found[:, -1]


WORDS, PATCHES_WORK, LETTERS_WORK = Work(run_words), Work(run_patches), Work(run_letters)
