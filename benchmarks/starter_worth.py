"""What the starter is worth on 300 photos, against from scratch in the same time.

    python benchmarks/starter_worth.py --data FOLDER --out benchmarks/results/starter_worth.json

FOLDER: the zips of oxford-pets-160 and imagenette-128. For each seed 300 images are drawn from train, evenly over the
classes; three arms learn from them and are judged on the set's own second split, whole:

probe       the starter frozen, the closed-form probe on top; its l2 (and the size, of several --sizes) by leave-one-out
fine-tune   every layer of the starter, for --seconds
scratch     a new network by the recipe that `fit` takes without weights, for --seconds, which is more than probe needs

An arm earns the starter its place with at least 5 points above scratch, the mean of the seeds, on both sets. The JSON
has every run, mean gains with 95 % intervals (Student, paired by seed), and the machine. --toy rehearses on a CPU.
"""

import argparse
import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import numpy as np

import vitreous
from vitreous.evaluation import extract, ridge
from vitreous.evaluation.ridge_regression import decompose
from vitreous.evaluation.student import quantile
from vitreous.files import digest
from vitreous.images import splits
from vitreous.images.imageset import ImageSet
from vitreous.machine import choose_device, record
from vitreous.training.plan import auto_recipe
from vitreous.training.recipe import Seconds
from vitreous.weights import starter

SETS = ("oxford-pets-160", "imagenette-128")
DRAWN = 300
GAIN = 0.05  # that earns a place in the package
L2S = [4.0**k for k in range(-1, 9)]


def draw(data: ImageSet, count: int, seed: int) -> ImageSet:
    """`count` training images, evenly over the classes, and all of the second split."""
    kept = splits.subset(data.split("train"), limit=count, seed=seed).ids
    return data.take(np.isin(data.ids, kept) | (data.splits == "test"))


def probe(data: ImageSet, seed: int, asked: argparse.Namespace) -> dict[str, Any]:
    """Nothing here is chosen by the images that judge."""
    begin = time.monotonic()
    best: tuple[float, int, Any] | None = None
    for size in asked.sizes:
        model = vitreous.load(asked.weights, image_size=size)
        found = extract(model, data.split("train"), device=asked.device, cache=False)
        parts = decompose(found.only, found.labels, len(data.classes))
        for l2 in L2S:
            right = float((parts.left_out(l2).argmax(1) == found.labels).mean())
            if best is None or right > best[0]:
                best = right, model.config.image_size[0], ridge(found.only, found.labels, data.classes, l2=l2)
    assert best is not None
    left_out, pixels, made = best
    learned = time.monotonic() - begin
    model = vitreous.load(asked.weights, image_size=pixels)
    test = extract(model, data.split("test"), device=asked.device, cache=False)
    return {
        "accuracy": made.right(test.only, test.labels) / len(test),
        "left_out": left_out,
        "pixels": pixels,
        "l2": made.l2,
        "seconds": learned,
    }


def fine_tune(data: ImageSet, seed: int, asked: argparse.Namespace) -> dict[str, Any]:
    return fitted(data, seed, asked, recipe=asked.recipe, weights=asked.weights)


def scratch(data: ImageSet, seed: int, asked: argparse.Namespace) -> dict[str, Any]:
    """The recipe by name, so that `fit` does not start from the starter by itself."""
    place = choose_device(asked.device)
    pixels = np.median([data.read(i).shape[:2] for i in range(16)], axis=0).astype(int).tolist()
    train = int((data.splits == "train").sum())
    recipe = auto_recipe.choose(train, len(data.classes), tuple(pixels), device_kind=place.type).recipe
    return fitted(data, seed, asked, recipe=recipe.name, model=recipe.model)


def fitted(data: ImageSet, seed: int, asked: argparse.Namespace, **options: Any) -> dict[str, Any]:
    """The last state of a training for the given time; no image is set aside, since nothing is chosen."""
    with tempfile.TemporaryDirectory() as folder:
        run = vitreous.fit(
            data,
            out=Path(folder) / "run",
            check=False,
            folds=0,
            device=asked.device,
            dev=0.0,
            seed=seed,
            length=Seconds(asked.seconds),
            **options,
        )
    m = run.metrics
    names = ("recipe", "parameters", "steps", "seconds", "images_per_second")
    return {"accuracy": m["judged"]["top1"], **{name: m[name] for name in names}}


ARMS = {"probe": probe, "fine-tune": fine_tune, "scratch": scratch}


def summary(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Means, and each arm's gain on scratch, set by set."""
    found: dict[str, Any] = {}
    for name in dict.fromkeys(run["set"] for run in runs):
        of = {
            arm: np.array([run["accuracy"] for run in runs if run["set"] == name and run["arm"] == arm]) for arm in ARMS
        }
        of = {arm: values for arm, values in of.items() if len(values)}
        found[name] = {arm: spread(values) for arm, values in of.items()}
        for arm in ("probe", "fine-tune"):
            if arm in of and "scratch" in of and len(of[arm]) == len(of["scratch"]):
                found[name][f"{arm} above scratch"] = spread(of[arm] - of["scratch"])
    return found


def spread(values: np.ndarray) -> dict[str, Any]:
    mean, interval = float(values.mean()), None
    if len(values) > 1:
        half = quantile(0.95, len(values) - 1) * float(values.std(ddof=1)) / len(values) ** 0.5
        interval = [mean - half, mean + half]
    return {"mean": mean, "interval_95": interval, "each": values.tolist()}


def verdict(found: dict[str, Any]) -> dict[str, bool]:
    """Whether an arm gains enough on every set."""
    gains = {arm: [one.get(f"{arm} above scratch") for one in found.values()] for arm in ("probe", "fine-tune")}
    return {arm: all(g["mean"] >= GAIN for g in gs) for arm, gs in gains.items() if all(gs) and len(gs) == len(SETS)}


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--data", type=Path, required=True)
    arguments.add_argument("--weights", default=starter.STARTER_NAME)
    arguments.add_argument("--sizes", nargs="*", type=int, default=[None], help="pixels the probe may choose from")
    arguments.add_argument("--seeds", nargs="*", type=int, default=[0, 1, 2])
    arguments.add_argument("--seconds", type=float, default=30.0)
    arguments.add_argument("--arms", nargs="*", choices=ARMS, default=list(ARMS))
    arguments.add_argument("--recipe", default="fine-tune", help="of the arm fine-tune")
    arguments.add_argument("--device")
    arguments.add_argument("--toy", action="store_true")
    arguments.add_argument("--out", type=Path)
    asked = arguments.parse_args()
    if asked.toy:
        asked.seconds, asked.seeds, asked.device = min(asked.seconds, 2.0), asked.seeds[:2], "cpu"
    runs = []
    for name in SETS:
        data = vitreous.images.open(str(asked.data / f"{name}-*.zip"))
        if asked.toy:
            data = vitreous.images.open(data, limit=8 * len(data.classes))
        for seed in asked.seeds:
            drawn = draw(data, min(DRAWN, 4 * len(data.classes)) if asked.toy else DRAWN, seed)
            for arm in asked.arms:
                begin = time.monotonic()
                one = ARMS[arm](drawn, seed, asked) | {"wall_seconds": time.monotonic() - begin}
                runs.append({"set": name, "seed": seed, "arm": arm, **one})
                print(json.dumps(runs[-1]), flush=True)
            body = {
                "benchmark": "starter_worth",
                "weights": asked.weights,
                "sha256": digest(starter.STARTER_FILE) if asked.weights == starter.STARTER_NAME else None,
                "images_drawn": DRAWN,
                "seconds_allowed": asked.seconds,
                "summary": (found := summary(runs)),
                "earns_its_place": verdict(found),
                "is_rehearsal": asked.toy,
                "runs": runs,
                **record(),
            }
            if asked.out:
                asked.out.write_text(json.dumps(body, indent=2) + "\n")
    print(json.dumps({"summary": body["summary"], "earns_its_place": body["earns_its_place"]}, indent=2))


if __name__ == "__main__":
    main()
