"""How close leave-one-out is to the truth, by images a class.   python benchmarks/leave_one_out.py --out FILE

Frozen DeiT-Ti on oxford-pets-160: n images of each of 37 breeds, several draws; the share right when one image alone is
left out, when one of each class is (what `vitreous fit` reports), and on the 3,669 test images that no draw has seen.
The penalty is the one with the smallest error when left out. Prints one JSON object.
"""

import argparse
import json
import os
from pathlib import Path
from typing import Any

import numpy as np

import vitreous
from vitreous.evaluation.few_shot import choose_shots
from vitreous.machine import record
from vitreous.training.recipe import L2S
from vitreous.training.run.closed_form import Frozen, frozen_features, rounds, solve

SHARED = Path(os.environ.get("VITREOUS_SHARED", Path(__file__).resolve().parents[2] / "shared"))


def one(train: Frozen, test: Frozen, shots: int, seed: int) -> dict[str, Any]:
    """One draw of `shots` images a class."""
    chosen = choose_shots(train.images.labels, len(train.images.classes), shots, seed)
    some, rows = train.images.take(chosen), train.rows[chosen]
    found: dict[str, Any] = {"images_a_class": shots, "seed": seed, "images": len(chosen)}
    for name, groups in (("one alone", None), ("one of each class", rounds(some, seed)[0])):
        solved = solve(rows, some.labels, len(some.classes), L2S, groups=groups)
        found[name] = {
            "l2": solved.probe.l2,
            "left_out": solved.right[solved.probe.l2] / len(chosen),
            "test": solved.probe.right(test.rows, test.images.labels) / len(test.images),
        }
    return found


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--weights", default=str(SHARED / "weights" / "deit-tiny"))
    arguments.add_argument("--shots", nargs="*", type=int, default=[5, 10, 20, 50, 90])
    arguments.add_argument("--seeds", nargs="*", type=int, default=[0, 1, 2])
    arguments.add_argument("--out", type=Path)
    asked = arguments.parse_args()
    data = vitreous.images.open(str(SHARED / "data" / "oxford-pets-160-*.zip"))
    model = vitreous.load(asked.weights, classes=len(data.classes))
    train, test = (frozen_features(model, data.split(name)) for name in ("train", "test"))
    draws = [one(train, test, shots, seed) for shots in asked.shots for seed in asked.seeds]
    means = {
        str(shots): {
            way: {
                name: float(np.mean([d[way][name] for d in draws if d["images_a_class"] == shots]))
                for name in ("left_out", "test")
            }
            for way in ("one alone", "one of each class")
        }
        for shots in asked.shots
    }
    body = {"benchmark": "leave_one_out", "means": means, "draws": draws, **record()}
    print(json.dumps(body, indent=2))
    if asked.out:
        asked.out.write_text(json.dumps(body, indent=2) + "\n")


if __name__ == "__main__":
    main()
