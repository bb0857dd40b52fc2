"""At which image size the starter's frozen features work best.   python benchmarks/starter_sizes.py --out FILE

For each seed 300 training images of imagenette-128, and of five cat breeds of oxford-pets-160, at random; the head
that `fit` would solve; judged on the set's second split. The pixels that `fit` takes for photos were chosen by this.
"""

import argparse
import json
import os
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import numpy as np
from few_photos import BREEDS, SHARED

import vitreous
from vitreous.evaluation import extract
from vitreous.images.imageset import ImageSet
from vitreous.machine import record
from vitreous.models.cost import macs
from vitreous.training.recipe import L2S
from vitreous.training.run.closed_form import solve

SETS = {"imagenette-128": None, "oxford-pets-160": BREEDS}
DRAWN = 300


def opened(name: str, only: tuple[str, ...] | None) -> tuple[ImageSet, np.ndarray]:
    """The set and its labels, of these classes alone."""
    data = vitreous.images.open(str(SHARED / "data" / f"{name}-*.zip"))
    wanted = [i for i, label in enumerate(data.classes) if only is None or label in only]
    data = data.take(np.isin(data.labels, wanted))
    return data, np.searchsorted(wanted, data.labels)


def measured(data: ImageSet, labels: np.ndarray, size: int, seeds: list[int]) -> dict[str, Any]:
    model = vitreous.load("starter", image_size=size)
    found, classes = extract(model, data, device="cpu", cache=False).only, int(labels.max()) + 1
    train, test = (np.flatnonzero((data.splits == "train") == is_train) for is_train in (True, False))
    right = []
    for seed in seeds:
        drawn = np.random.default_rng(seed).choice(train, DRAWN, replace=False)
        head = solve(found[drawn], labels[drawn], classes, L2S).probe
        right.append(head.right(found[test], labels[test]) / len(test))
    mean = float(np.mean(right))
    return {"pixels": size, "multiply_adds": macs(model.config), "test": len(test), "mean": mean, "each": right}


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--sizes", nargs="*", type=int, default=[64, 96, 128])
    arguments.add_argument("--seeds", nargs="*", type=int, default=[0, 1, 2, 3, 4])
    arguments.add_argument("--out", type=Path)
    asked = arguments.parse_args()
    body: dict[str, Any] = {"benchmark": "starter_sizes", "images_drawn": DRAWN, "seeds": asked.seeds, "sets": {}}
    for name, only in SETS.items():
        data, labels = opened(name, only)
        body["sets"][name] = [measured(data, labels, size, asked.seeds) for size in asked.sizes]
        print(json.dumps(body["sets"][name]), flush=True)
    if asked.out:
        asked.out.write_text(json.dumps(body | record(), indent=2) + "\n")


if __name__ == "__main__":
    main()
