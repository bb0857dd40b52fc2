"""Which score tells strangers from the images that a head was fitted to.   python benchmarks/strangers.py --out FILE

Frozen features of about 60 images a class, as `fit` reads them: five cat breeds (also with 15 images a class), five dog
breeds, ten classes of imagenette, and three draws of five of them. Strangers are of five kinds: near (other breeds, or
classes left out), animals, objects, drawn or blank images, and clothes. Each score is fitted on the training images
alone; its threshold is the score that 95 % of them reach when left out, a fifth at a time. Prints one JSON object: for
each model, task and score the false alarms on new images, and for each kind of stranger AUROC and the share caught.
"""

import argparse
import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

import vitreous
from vitreous.evaluation.features import extract
from vitreous.images import open_data
from vitreous.images.imageset import ImageSet
from vitreous.machine import record
from vitreous.training.tell.strangers import embedded

SHARED = Path(os.environ.get("VITREOUS_SHARED", Path(__file__).resolve().parents[2] / "shared"))
MODELS = {"starter": ("starter", 96), "deit-tiny": (str(SHARED / "weights" / "deit-tiny"), None)}  # with image size
CATS = ["Abyssinian", "Bengal", "Maine_Coon", "Russian_Blue", "Siamese"]
DOGS = ["beagle", "boxer", "pug", "samoyed", "shiba_inu"]
RIDGE = 0.03  # of a standardised feature's variance
SHARPNESS = 5.0  # of the ridge's answers, −1 to 1, as logits
FALSE_ALARMS = 0.05
PARTS = 5  # of the training images, left out in turn

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
        "photos": open_data.open(data / "imagenet-sample-1000.zip").take([i for i in range(1000) if i % 3]),
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


# Tasks --------------------------------------------------------------------------------------------------------------


class Task(NamedTuple):
    train: Rows  # N D
    labels: NDArray[np.int64]
    new: Rows  # of the same classes
    strangers: dict[str, Rows]


def tasks(rows: dict[str, Rows], labels: dict[str, NDArray[np.int64]]) -> dict[str, Task]:
    easy = {"drawn": np.concatenate([rows["blank"], rows["drawn scenes"]]), "clothes": rows["photos of clothes"]}
    pets = {}
    for name, others in (("cats", "dogs"), ("dogs", "cats")):
        kinds = {"near": rows[f"other {name}"], "animals": rows[others], "objects": rows["objects"], **easy}
        pets[name] = Task(rows[f"{name} train"], labels[f"{name} train"], rows[name], kinds)
    cats, known, new = pets["cats"], labels["objects train"], labels["objects"]
    first = np.concatenate([np.flatnonzero(cats.labels == c)[:15] for c in np.unique(cats.labels)])
    pets["cats, 15 a class"] = cats._replace(train=cats.train[first], labels=cats.labels[first])
    animals = np.concatenate([rows["cats"], rows["dogs"]])
    kinds = {"near": rows["ImageNet"], "animals": animals, **easy}
    found = pets | {"ten objects": Task(rows["objects train"], known, rows["objects"], kinds)}
    every = np.unique(known)
    for name, some in (("first", every[:5]), ("last", every[5:]), ("even", every[::2])):
        here, there = np.isin(known, some), np.isin(new, some)
        kinds = {"near": rows["objects"][~there], "animals": animals, "objects": rows["ImageNet"], **easy}
        found[f"five objects, {name}"] = Task(rows["objects train"][here], known[here], rows["objects"][there], kinds)
    return found


# Scores: larger is more like the training images --------------------------------------------------------------------


def scores(x: Rows, y: NDArray[np.int64], photos: Rows) -> dict[str, Score]:
    """Every score, fitted on training features.  x: N D.  y: N.  photos: the mean of ordinary photos, D."""
    mean, std = x.mean(0), x.std(0) + 1e-6
    z = (x - mean) / std
    classes, number = np.unique(y, return_inverse=True)
    centres = np.stack([z[number == c].mean(0) for c in range(len(classes))])
    within, whole = (np.linalg.inv(shrunk(rows)) for rows in (z - centres[number], z))
    targets = 2.0 * (number[:, None] == np.arange(len(classes))) - 1
    gram = z.T @ z / len(z) + RIDGE * np.eye(z.shape[1])
    weight, offset = np.linalg.solve(gram, z.T @ (targets - targets.mean(0)) / len(z)), targets.mean(0)
    raw = normal(x)

    def logits(q: Rows) -> Rows:
        return SHARPNESS * ((q - mean) / std @ weight + offset)

    def distances(q: Rows) -> Rows:
        return np.stack([squared((q - mean) / std - centre, within) for centre in centres], 1).min(1)

    def cosine(q: Rows, start: Rows | float = 0.0) -> Rows:
        means = normal(np.stack([normal(x - start)[number == c].mean(0) for c in range(len(classes))]))
        return (normal(q - start) @ means.T).max(1)

    return {
        "largest logit": lambda q: logits(q).max(1),
        "largest probability": lambda q: -np.log(np.exp(logits(q) - logits(q).max(1, keepdims=True)).sum(1)),
        "energy": lambda q: np.log(np.exp(logits(q)).sum(1)),
        "Mahalanobis": lambda q: -np.sqrt(distances(q)),
        "relative Mahalanobis": lambda q: squared((q - mean) / std, whole) - distances(q),
        "cosine to a class mean": cosine,
        "cosine, from the mean of photos": lambda q: cosine(q, photos),
        "5th nearest neighbour": lambda q: np.sort(normal(q) @ raw.T, 1)[:, -5],
    }


PAIRS = {  # of two scores, each 0 at the median of the images left out and −1 at their threshold
    "smaller of cosine and Mahalanobis": (np.minimum, "cosine to a class mean", "Mahalanobis"),
    "mean of cosine and Mahalanobis": (np.add, "cosine to a class mean", "Mahalanobis"),
    "smaller of cosine and neighbour": (np.minimum, "cosine to a class mean", "5th nearest neighbour"),
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
        for name, (source, size) in MODELS.items():
            model = vitreous.load(source, image_size=size)
            features = {kind: extract(model, data, cache=False) for kind, data in every.items()}
            rows = {kind: np.asarray(each.only, np.float64) for kind, each in features.items()}
            for kind, images in embedded(has_clothes=False).items():
                with torch.inference_mode():
                    rows[kind] = model.features(model.preprocess(images)).double().numpy()
            found[name] = study(rows, {kind: each.labels for kind, each in features.items()})
    out.write_text(json.dumps(result(found), indent=1) + "\n")


def result(found: dict[str, Any]) -> dict[str, Any]:
    means = {name: {score: mean_of(by_task, score) for score in by_task["cats"]} for name, by_task in found.items()}
    return {"false_alarms": FALSE_ALARMS, "mean_of_tasks": means, "models": found, "record": record()}


def study(rows: dict[str, Rows], labels: dict[str, NDArray[np.int64]]) -> dict[str, Any]:
    return {name: judged(task, rows["photos"].mean(0)) for name, task in tasks(rows, labels).items()}


def judged(task: Task, photos: Rows) -> dict[str, Any]:
    """All scores of one task, single and in pairs."""
    groups = {"left out": left_out(task, photos)}
    fitted = scores(task.train, task.labels, photos)
    for kind, rows in {"new": task.new, **task.strangers}.items():
        groups[kind] = {name: score(rows) for name, score in fitted.items()}
    for pair, (join, *both) in PAIRS.items():
        known = [groups["left out"][name] for name in both]
        scale = [(np.median(k), np.median(k) - np.quantile(k, FALSE_ALARMS)) for k in known]
        for group in groups.values():
            group[pair] = join(*((group[name] - m) / s for name, (m, s) in zip(both, scale, strict=True)))
    return {name: caught({kind: group[name] for kind, group in groups.items()}) for name in groups["new"]}


def left_out(task: Task, photos: Rows) -> dict[str, Rows]:
    """The scores of each training image, fitted without its part."""
    part, draw = np.zeros(len(task.labels), int), np.random.default_rng(0)
    for c in np.unique(task.labels):
        here = np.flatnonzero(task.labels == c)
        part[here] = draw.permutation(len(here)) % PARTS
    found: dict[str, Rows] = {}
    for number in range(PARTS):
        here = part == number
        for name, score in scores(task.train[~here], task.labels[~here], photos).items():
            found.setdefault(name, np.zeros(len(part)))[here] = score(task.train[here])
    return found


def caught(by_group: dict[str, Rows]) -> dict[str, Any]:
    known, new = by_group.pop("left out"), by_group.pop("new")
    limit = np.sort(known)[int(FALSE_ALARMS * len(known))]
    kinds = {
        kind: {"auroc": round(auroc(new, rows), 3), "caught": round(float((rows < limit).mean()), 3)}
        for kind, rows in by_group.items()
    }
    return {"false_alarms": round(float((new < limit).mean()), 3), **kinds}


def mean_of(by_task: dict[str, Any], score: str) -> dict[str, Any]:
    """Means over the tasks, kind by kind, and the lowest share caught."""
    found: dict[str, Any] = {
        "false_alarms": round(np.mean([row[score]["false_alarms"] for row in by_task.values()]), 3)
    }
    for kind in ("near", "animals", "objects", "drawn", "clothes"):
        rows = [row[score][kind] for row in by_task.values() if kind in row[score]]
        found[kind] = {name: round(float(np.mean([row[name] for row in rows])), 3) for name in ("auroc", "caught")}
        found[kind]["least_caught"] = min(row["caught"] for row in rows)
    return found


if __name__ == "__main__":
    main()
