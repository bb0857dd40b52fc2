"""Whether labels that `vitreous fit` doubts are wrong.   python benchmarks/label_doubts.py --out FILE

Real photographs, frozen features, a closed form: every image is judged by a head fitted without it, as in `fit`.
Some labels are changed, to any other class or to the class that the features confuse it with most. For each set and
weights the JSON reports how many labels are doubted when none is changed; and of the changed labels, how many are
listed, in all and among the first ten, and how often the suggested label is the true one. `suspected` is confident
learning alone (arXiv 1911.00068), from which the list is made.
"""

import argparse
import json
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import vitreous
from vitreous.evaluation.calibration import fit_temperature, softmax
from vitreous.images.health import confident_errors, likely_errors
from vitreous.images.imageset import ImageSet
from vitreous.machine import record
from vitreous.training.recipe import L2S
from vitreous.training.run.closed_form import frozen_features, rounds, solve
from vitreous.weights import starter

SHARED = Path(os.environ.get("VITREOUS_SHARED", Path(__file__).resolve().parents[2] / "shared"))
PETS, NETTE = "oxford-pets-160-train.zip", "imagenette-128-train.zip"
CATS = ("Abyssinian", "Bengal", "British_Shorthair", "Maine_Coon", "Russian_Blue")
SETS: dict[str, tuple[str, tuple[str, ...], int]] = {  # file, classes (all without names), images of each
    "5 breeds of cats": (PETS, CATS, 62),
    "2 breeds of dogs": (PETS, ("boxer", "great_pyrenees"), 60),
    "37 breeds": (PETS, (), 30),
    "10 things": (NETTE, (), 60),
    "3 things": (NETTE, ("n01440764", "n02102040", "n03028079"), 40),
}
Labels = NDArray[np.int64]


def part(file: str, names: Sequence[str], count: int) -> ImageSet:
    """`count` images of each of these classes, drawn at random."""
    data, draw = vitreous.images.open(str(SHARED / "data" / file)), np.random.default_rng(0)
    kept = [data.classes.index(name) for name in names or data.classes]
    places = [draw.permutation(np.flatnonzero(data.labels == k))[:count] for k in kept]
    labels = np.repeat(np.arange(len(kept)), [len(own) for own in places])
    return replace(data.take(np.concatenate(places)), labels=labels, classes=tuple(data.classes[k] for k in kept))


def targets(true: Labels, scores: NDArray[np.float64], seed: int) -> dict[str, Labels]:
    """For each image the label it would be given by mistake: any other, or the one it is most like."""
    classes = scores.shape[1]
    move = np.random.default_rng(1_000 + seed).integers(1, classes, len(true))
    others = scores.copy()
    others[np.arange(len(true)), true] = -np.inf
    return {"any other": (true + move) % classes, "the likest": others.argmax(1)}


class Asked:
    """A set as weights see it."""

    def __init__(self, weights: str, data: ImageSet):
        size = starter.size_for((160, 160)) if starter.is_meant(weights) else None
        known = frozen_features(vitreous.load(weights, classes=len(data.classes), image_size=size), data)
        self.rows, self.true, self.classes = known.rows, known.images.labels, len(data.classes)
        self.groups, _ = rounds(known.images, 0)

    def scores(self, labels: Labels) -> NDArray[np.float64]:
        """Scores of each image when it, its copies and one of each other class are left out."""
        return solve(self.rows, labels, self.classes, L2S, groups=self.groups).left_out

    def doubts(self, labels: Labels) -> tuple[tuple[Labels, Labels], tuple[Labels, Labels]]:
        """Places and labels suggested: those listed, and those that confident learning suspects."""
        scores = self.scores(labels)
        p = softmax(scores, fit_temperature(scores, labels))
        return likely_errors(labels, p), confident_errors(labels, p)

    def changed(self, to: Labels, share: float, seed: int) -> dict[str, Any]:
        """What is doubted when a share of the labels is changed."""
        count = max(round(share * len(self.true)), 3)
        places = np.random.default_rng(seed).choice(len(self.true), count, replace=False)
        labels = self.true.copy()
        labels[places] = to[places]
        (listed, suggested), (suspected, _) = self.doubts(labels)
        is_hit = np.isin(listed, places)
        return {
            "changed": count,
            "listed": len(listed),
            "found": int(is_hit.sum()),
            "first_ten": [int(is_hit[:10].sum()), min(len(listed), 10)],
            "true_label_suggested": int((is_hit & (suggested == self.true[listed])).sum()),
            "suspected": len(suspected),
            "suspected_first_ten": [int(np.isin(suspected[:10], places).sum()), min(len(suspected), 10)],
        }

    def body(self, shares: Sequence[float], seeds: Sequence[int]) -> dict[str, Any]:
        scores = self.scores(self.true)
        (listed, _), (suspected, _) = self.doubts(self.true)
        return {
            "images": len(self.true),
            "named_as_labelled": int((scores.argmax(1) == self.true).sum()),
            "none_changed": {"listed": len(listed), "suspected": len(suspected)},
            "runs": [
                {"to": name, "share": share, "seed": seed, **self.changed(to, share, seed)}
                for share in shares
                for seed in seeds
                for name, to in targets(self.true, scores, seed).items()
            ],
        }


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weights", nargs="*", default=["starter", str(SHARED / "weights" / "deit-tiny")])
    parser.add_argument("--sets", nargs="*", choices=list(SETS), default=list(SETS))
    parser.add_argument("--shares", nargs="*", type=float, default=[0.02, 0.05])
    parser.add_argument("--seeds", nargs="*", type=int, default=list(range(4)))
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args(arguments)
    body = {
        "benchmark": "labels doubted",
        "sets": [
            {
                "weights": Path(weights).name,
                "set": name,
                **Asked(weights, part(*SETS[name])).body(asked.shares, asked.seeds),
            }
            for weights in asked.weights
            for name in asked.sets
        ],
        **record(),
    }
    text = json.dumps(body, indent=1)
    print(text)
    if asked.out:
        asked.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
