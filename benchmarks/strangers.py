"""Which score tells strangers from the images that a head was fitted to.   python benchmarks/strangers.py --out FILE

A closed-form head on frozen features of about 60 images a class: five cat breeds, five dog breeds, ten classes of
imagenette. Strangers are of four kinds: near (other breeds), other animals, objects, and blank or drawn images. Each
score is fitted on the training images alone. Prints one JSON object: for each model, task and kind of stranger, the
AUROC and the share of strangers below the score that 95 % of the task's own new images reach.
"""

import argparse
import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

import vitreous
from vitreous.evaluation.features import extract
from vitreous.images import open_data
from vitreous.images.imageset import ImageSet
from vitreous.machine import record

SHARED = Path(os.environ.get("VITREOUS_SHARED", Path(__file__).resolve().parents[2] / "shared"))
MODELS = {"starter": "starter", "deit-tiny": str(SHARED / "weights" / "deit-tiny")}
CATS = ["Abyssinian", "Bengal", "Maine_Coon", "Russian_Blue", "Siamese"]
DOGS = ["beagle", "boxer", "pug", "samoyed", "shiba_inu"]
TASKS = {  # training images, new images of the same classes, strangers by kind
    "cats": ("cats train", "cats", {"near": "other cats", "animals": "dogs", "objects": "objects", "blank": "blank"}),
    "dogs": ("dogs train", "dogs", {"near": "other dogs", "animals": "cats", "objects": "objects", "blank": "blank"}),
    "objects": ("objects train", "objects", {"near": "ImageNet", "animals": "cats", "blank": "blank"}),
}
RIDGE = 0.03  # of a standardised feature's variance
SHARPNESS = 5.0  # of the ridge's answers, −1 to 1, as logits
FALSE_ALARMS = 0.05

Rows = NDArray[np.float64]
Score = Callable[[Rows], Rows]


def sets(folder: Path) -> dict[str, ImageSet]:
    """Every set of the study, at most 60 images of each class."""
    data = SHARED / "data"
    pets, new_pets = (open_data.open(data / f"oxford-pets-160-{part}.zip") for part in ("train", "val"))
    things, new_things = (open_data.open(data / f"imagenette-128-{part}.zip") for part in ("train", "val"))
    cats = [name for name in pets.classes if name[0].isupper()]
    dogs = [name for name in pets.classes if not name[0].isupper()]
    return {
        "cats train": pick(pets, CATS, 62),
        "dogs train": pick(pets, DOGS, 62),
        "objects train": pick(things, list(things.classes), 60),
        "cats": pick(new_pets, CATS, 50),
        "dogs": pick(new_pets, DOGS, 50),
        "other cats": pick(new_pets, [name for name in cats if name not in CATS], 29),
        "other dogs": pick(new_pets, [name for name in dogs if name not in DOGS], 10),
        "objects": pick(new_things, list(new_things.classes), 40),
        "ImageNet": open_data.open(data / "imagenet-sample-1000.zip").take(range(0, 1000, 3)),
        "blank": open_data.open(blanks(folder / "blank")),
    }


def pick(data: ImageSet, classes: list[str], count: int) -> ImageSet:
    places = [np.flatnonzero(data.labels == data.classes.index(name))[:count] for name in classes]
    return data.take(np.sort(np.concatenate(places)))


def blanks(folder: Path, side: int = 160) -> Path:
    """Flat grey, flat colour, noise, a ramp, a chessboard, lines like text: ten of each."""
    random = np.random.default_rng(0)
    (folder / "x").mkdir(parents=True)
    for i in range(10):
        colours = random.integers(0, 256, (2, 3))
        ramp = np.linspace(0, 1, side)[None, :, None]
        squares = np.add.outer(np.arange(side) // 20, np.arange(side) // 20)[:, :, None] % 2
        lines = np.full((side, side, 3), 255)
        for row in range(15, 150, 12):
            lines[row : row + 4, 10 : 10 + int(random.integers(60, 140))] = 30
        drawn = {
            "grey": np.full((side, side, 3), 28 * i),
            "colour": np.broadcast_to(colours[0], (side, side, 3)),
            "noise": random.integers(0, 256, (side, side, 3)),
            "ramp": np.broadcast_to(ramp * colours[0], (side, side, 3)),
            "board": np.where(squares, colours[0], colours[1]),
            "lines": lines,
        }
        for name, pixels in drawn.items():
            Image.fromarray(pixels.astype(np.uint8)).save(folder / "x" / f"{name}-{i}.png")
    return folder


# Scores: larger is more like the training images --------------------------------------------------------------------


def scores(x: Rows, y: NDArray[np.int64]) -> dict[str, Score]:
    """Every score, fitted on training features.  x: N D.  y: N."""
    mean, std = x.mean(0), x.std(0) + 1e-6
    z = (x - mean) / std
    classes, number = np.unique(y, return_inverse=True)
    centres = np.stack([z[number == c].mean(0) for c in range(len(classes))])
    within, whole = (np.linalg.inv(shrunk(rows)) for rows in (z - centres[number], z))
    targets = 2.0 * (number[:, None] == np.arange(len(classes))) - 1
    gram = z.T @ z / len(z) + RIDGE * np.eye(z.shape[1])
    weight, offset = np.linalg.solve(gram, z.T @ (targets - targets.mean(0)) / len(z)), targets.mean(0)
    raw = normal(x)
    raw_centres = normal(np.stack([raw[number == c].mean(0) for c in range(len(classes))]))

    def logits(q: Rows) -> Rows:
        return SHARPNESS * ((q - mean) / std @ weight + offset)

    def distances(q: Rows) -> Rows:
        return np.stack([squared((q - mean) / std - centre, within) for centre in centres], 1).min(1)

    return {
        "largest logit": lambda q: logits(q).max(1),
        "largest probability": lambda q: -np.log(np.exp(logits(q) - logits(q).max(1, keepdims=True)).sum(1)),
        "energy": lambda q: np.log(np.exp(logits(q)).sum(1)),
        "Mahalanobis": lambda q: -distances(q),
        "relative Mahalanobis": lambda q: squared((q - mean) / std, whole) - distances(q),
        "cosine to a class mean": lambda q: (normal(q) @ raw_centres.T).max(1),
        "5th nearest neighbour": lambda q: np.sort(normal(q) @ raw.T, 1)[:, -5],
    }


def shrunk(rows: Rows) -> Rows:
    """The covariance, shrunk towards a multiple of the identity as Ledoit and Wolf say."""
    n, d = rows.shape
    rows = rows - rows.mean(0)
    found = rows.T @ rows / n
    level = np.trace(found) / d
    spread = ((found - level * np.eye(d)) ** 2).sum()
    noise = min(((rows**2).sum(1) ** 2).sum() / n**2 - (found**2).sum() / n, spread)
    return (1 - noise / spread) * found + noise / spread * level * np.eye(d)


def squared(rows: Rows, inverse: Rows) -> Rows:
    return np.einsum("nd,de,ne->n", rows, inverse, rows)


def normal(rows: Rows) -> Rows:
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def auroc(own: Rows, strangers: Rows) -> float:
    """The share of pairs whose own image scores higher; ties count half."""
    return float((np.sign(own[:, None] - strangers[None]) / 2 + 0.5).mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    out = parser.parse_args().out
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        every = sets(Path(folder))
        for name, source in MODELS.items():
            model = vitreous.load(source)
            features = {kind: extract(model, data, cache=False) for kind, data in every.items()}
            rows = {kind: np.asarray(each.only, np.float64) for kind, each in features.items()}
            found[name] = {
                task: judged(rows, features[train].labels, *TASKS[task]) for task, (train, *_) in TASKS.items()
            }
    out.write_text(json.dumps({"false_alarms": FALSE_ALARMS, "models": found, "record": record()}, indent=1) + "\n")


def judged(rows: dict[str, Rows], labels: NDArray[np.int64], train: str, own: str, strangers: dict[str, str]) -> Any:
    table = {}
    for name, score in scores(rows[train], labels).items():
        mine = score(rows[own])
        limit = np.quantile(mine, FALSE_ALARMS)
        others = {kind: score(rows[which]) for kind, which in strangers.items()}
        table[name] = {
            kind: {"auroc": round(auroc(mine, theirs), 3), "caught": round(float((theirs < limit).mean()), 3)}
            for kind, theirs in others.items()
        }
    return table


if __name__ == "__main__":
    main()
