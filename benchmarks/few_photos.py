"""312 photos of 5 cat breeds, as a user has them: `vitreous fit` with weights, plain, and from scratch.

    python benchmarks/few_photos.py --arms weights plain --out benchmarks/results/few_photos.json

Draws the photos from oxford-pets-160 (seeded) into five folders, and runs the whole command on them with an empty
cache. Besides the command's own number (images it was not trained on), it judges each model on the photos of those
breeds that were never drawn, including the official test split's. Prints one JSON object.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import vitreous
from vitreous.machine import record

SHARED = Path(os.environ.get("VITREOUS_SHARED", Path(__file__).resolve().parents[2] / "shared"))
BREEDS = ("Abyssinian", "Bengal", "Birman", "Bombay", "British_Shorthair")  # the first five
PHOTOS = 312
ARMS: dict[str, Callable[[str], tuple[str, ...]]] = {  # what follows `vitreous fit PHOTOS`
    "weights": lambda weights: ("--weights", weights),
    "plain": lambda weights: (),  # from the starter, where it is worth it
    "scratch": lambda weights: ("--weights", "none"),
    "plain, steps": lambda weights: ("--steps", "100"),
    "weights, steps": lambda weights: ("--weights", weights, "--steps", "100"),
}


def draw(folder: Path, others: Path, seed: int) -> None:
    """The photos into one folder a breed; those not drawn, and the official test split's, into `others`."""
    for part in ("train", "val"):
        with zipfile.ZipFile(SHARED / "data" / f"oxford-pets-160-{part}.zip") as archive:
            names = sorted(name for name in archive.namelist() if name.split("/")[1] in BREEDS)
            chosen: set[str] = set()
            if part == "train":
                chosen = set(np.random.default_rng(seed).choice(names, PHOTOS, replace=False).tolist())
            for name in names:
                file = (folder if name in chosen else others) / name.split("/")[1] / f"{part}-{Path(name).name}"
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(archive.read(name))


def fit(folder: Path, others: Path, out: Path, *options: str) -> dict[str, Any]:
    """The command, with a cache of its own."""
    line = [sys.executable, "-m", "vitreous", "fit", str(folder), "--out", str(out), "--json", *options]
    begin = time.monotonic()
    there = os.environ | {"VITREOUS_CACHE": str(out.with_name(f"{out.name}-cache"))}
    done = subprocess.run(line, check=True, stdout=subprocess.PIPE, text=True, env=there)
    wall = time.monotonic() - begin
    found = json.loads(done.stdout)
    new = vitreous.evaluate(vitreous.load(out), others, split="all")
    return {
        "command": " ".join(["vitreous fit PHOTOS", *(Path(word).name for word in options)]),
        "recipe": found["recipe"],
        "judged_by": found["judged_by"],
        **{name: found["judged"][name] for name in ("right", "images", "top1", "interval")},
        "calibration_error": found["judged"]["calibration"]["expected_calibration_error"],
        "temperature": found["temperature"],
        "rivals": found["rivals"],
        "new_photos": {"right": new.right, "images": new.images, "top1": new.top1, "interval": list(new.interval)},
        "training_seconds": found["seconds"],
        "wall_seconds": wall,
    }


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--weights", default=str(SHARED / "weights" / "deit-tiny"))
    arguments.add_argument("--seeds", nargs="*", type=int, default=[0, 1, 2])
    arguments.add_argument("--arms", nargs="*", choices=ARMS, default=["weights"])
    arguments.add_argument("--out", type=Path)
    asked = arguments.parse_args()
    runs = []
    for seed in asked.seeds:
        with tempfile.TemporaryDirectory() as place:
            root = Path(place)
            draw(root / "photos", root / "others", seed)
            for arm, options in {name: ARMS[name](asked.weights) for name in asked.arms}.items():
                runs.append({"seed": seed, "arm": arm, **fit(root / "photos", root / "others", root / arm, *options)})
                print(f"{arm} {seed}: {runs[-1]['top1']:.3f} in {runs[-1]['wall_seconds']:.0f} s", file=sys.stderr)
    body = {"benchmark": "few_photos", "breeds": BREEDS, "runs": runs, **record()}
    print(json.dumps(body, indent=2))
    if asked.out:
        asked.out.write_text(json.dumps(body, indent=2) + "\n")


if __name__ == "__main__":
    main()
