"""How close the number is to new photos when photos come in series.   python benchmarks/series.py --out FILE

Frozen features and a closed-form head on 400 photos of oxford-pets-160: as they are (breeds in order, the lowest file
numbers), and as one who takes ten shots of each animal has them: 40 photos, each ten times, turned a little, cropped,
lighter or darker. Images are left out one by one, in tens of neighbouring file numbers, in groups of similar
features, and in as many at random (the mean of five draws). New photos are those of the same breeds in the set's other
split, which no number has seen. The headline is what `vitreous fit` chooses by itself. Prints one JSON object.
"""

import argparse
import io
import json
import os
import tempfile
import zipfile
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageEnhance

import vitreous
from vitreous.evaluation.accuracy import wilson
from vitreous.images import series, splits
from vitreous.images.series import Guess
from vitreous.machine import record
from vitreous.training.plan import estimate
from vitreous.training.plan.estimate import DRAWS_AT_RANDOM
from vitreous.training.recipe import L2S
from vitreous.training.run.closed_form import frozen_features, rounds, solve

SHARED = Path(os.environ.get("VITREOUS_SHARED", Path(__file__).resolve().parents[2] / "shared"))
MODELS = {"starter": ("starter", 96), "deit-tiny": (str(SHARED / "weights" / "deit-tiny"), None)}
BREEDS = ("Abyssinian", "Bengal", "Birman", "Bombay", "British_Shorthair")  # the first cats
DOGS = ("american_bulldog", "american_pit_bull_terrier", "basset_hound", "beagle", "boxer")  # and the first dogs
SHOTS = 10  # of one animal
NEW = 50  # photos of each breed


def photos(part: str, breed: str) -> list[tuple[int, bytes]]:
    """File number and file of every photo, by number."""
    with zipfile.ZipFile(SHARED / "data" / f"oxford-pets-160-{part}.zip") as archive:
        names = [name for name in archive.namelist() if name.split("/")[1] == breed]
        return sorted((int(Path(name).stem), archive.read(name)) for name in names)


def as_they_are(folder: Path, breeds: tuple[str, ...], count: int, part: str = "train") -> Path:
    """The photos with the lowest numbers."""
    for breed in breeds:
        (folder / breed).mkdir(parents=True)
        for number, raw in photos(part, breed)[:count]:
            (folder / breed / f"{number}.webp").write_bytes(raw)
    return folder


def in_shots(folder: Path, breeds: tuple[str, ...], count: int, seed: int) -> Path:
    """Photos drawn at random, each as several shots by a hand that is never quite still."""
    draw = np.random.default_rng(seed)
    for breed in breeds:
        (folder / breed).mkdir(parents=True)
        known = photos("train", breed)
        for k, chosen in enumerate(draw.choice(len(known), count, replace=False).tolist()):
            photo = Image.open(io.BytesIO(known[chosen][1])).convert("RGB")
            for shot in range(SHOTS):
                taken(photo, draw).save(folder / breed / f"IMG_{SHOTS * k + shot:04}.jpg", quality=88)
    return folder


def taken(photo: Image.Image, draw: np.random.Generator) -> Image.Image:
    """One shot: turned by up to 6 degrees, 60 to 85 % of each side, up to 30 % lighter or darker."""
    turned = photo.rotate(float(draw.uniform(-6, 6)), Image.Resampling.BICUBIC)
    width, height = (int(side * draw.uniform(0.6, 0.85)) for side in photo.size)
    left, top = (
        int(draw.integers(0, whole - part + 1)) for whole, part in zip(photo.size, (width, height), strict=True)
    )
    cropped = turned.crop((left, top, left + width, top + height))
    return ImageEnhance.Brightness(cropped).enhance(float(draw.uniform(0.7, 1.3)))


def share(right: int, images: int) -> dict[str, Any]:
    return {"right": right, "images": images, "accuracy": right / images, "interval": list(wilson(right, images))}


def one(model: str, folder: Path, new: Path) -> dict[str, Any]:
    """One set: every way to leave images out, and new photos."""
    name, size = MODELS[model]
    data, others = (vitreous.images.open(place) for place in (folder, new))
    network = vitreous.load(name, classes=len(data.classes), **({} if size is None else {"image_size": size}))
    found, unseen = (frozen_features(network, images) for images in (data, others))
    labels, copies = data.labels, splits.find_groups(data)[0]

    def left_out(groups: Any) -> dict[str, Any]:
        left, _ = rounds(replace(data, groups=groups))
        solved = solve(found.rows, labels, len(data.classes), L2S, groups=left)
        return share(solved.right[solved.probe.l2], len(labels))

    guesses: dict[str, Guess | None] = {guess.by: guess for guess in series.guesses(data)}
    guesses["features much alike"] = series.alike(found.rows, labels, copies)
    body: dict[str, Any] = {"model": model, "images": len(data), "one by one": left_out(copies)}
    for by, guess in guesses.items():
        groups = None if guess is None else series.joined(guess, copies, labels)
        if groups is None:
            continue
        body[by] = left_out(groups) | {"images_in_series": int(series.in_series(groups).sum())}
        draws = [left_out(series.shuffled(groups, labels, seed))["accuracy"] for seed in range(DRAWS_AT_RANDOM)]
        body[f"{by}, as many at random"] = {"accuracy": float(np.mean(draws)), "draws": draws}
    told, kept = estimate.measure(network, data, guesses=series.guesses(data))
    whole = solve(found.rows, labels, len(data.classes), L2S, groups=rounds(replace(data, groups=copies))[0])
    body["new photos"] = share(whole.probe.right(unseen.rows, unseen.images.labels), len(others))
    body["headline"] = {"by": "one by one" if kept is None else kept.by, "accuracy": told.accuracy}
    body["headline"]["measured"] = None if told.series is None else asdict(told.series)
    return body


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--models", nargs="*", choices=MODELS, default=list(MODELS))
    arguments.add_argument("--seeds", nargs="*", type=int, default=[0, 1, 2])
    arguments.add_argument("--out", type=Path)
    asked = arguments.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as place:
        root = Path(place)
        ten = (*BREEDS, *DOGS)
        new = {count: as_they_are(root / f"new {count}", ten[:count], NEW, "val") for count in (5, 10)}
        sets = {
            "400 photos of 5 breeds": (as_they_are(root / "five", BREEDS, 80), new[5]),
            "400 photos of 10 breeds": (as_they_are(root / "ten", ten, 40), new[10]),
        }
        for seed in asked.seeds:
            shots = in_shots(root / f"shots {seed}", BREEDS, 8, seed)
            sets[f"40 photos of 5 breeds, ten shots of each (draw {seed})"] = (shots, new[5])
        for model in asked.models:
            for name, (folder, others) in sets.items():
                rows.append({"set": name, **one(model, folder, others)})
    body = {"benchmark": "series", "rows": rows, **record()}
    print(json.dumps(body, indent=2))
    if asked.out:
        asked.out.write_text(json.dumps(body, indent=2) + "\n")


if __name__ == "__main__":
    main()
