"""How many wrong labels of training images `vitreous fit` names.   python benchmarks/label_doubts.py --out FILE

Frozen DeiT-Ti on the 3,680 training images of oxford-pets-160. Some labels are changed, to any other class or to the
class that the features confuse it with most; every image is then asked of a closed form that was left without it, as
`fit` does before it trains. Prints one JSON object: how many were doubted, how many of those had been changed, in all
and among the first, and how often the label suggested was the true one.
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
from vitreous.images.stores.memory import find_places
from vitreous.machine import record
from vitreous.training.label_errors import Doubts, doubts_of
from vitreous.training.recipe import L2S
from vitreous.training.run.closed_form import Frozen, frozen_features, rounds, solve

SHARED = Path(os.environ.get("VITREOUS_SHARED", Path(__file__).resolve().parents[2] / "shared"))

Labels = NDArray[np.int64]


def left_out(known: Frozen, groups: Labels) -> NDArray[np.float64]:
    """What is said of each image when it, its copies and one of each other class are left out."""
    images = known.images
    return solve(known.rows, images.labels, len(images.classes), L2S, groups=groups).left_out


def changed(labels: Labels, to: Labels, share: float, seed: int) -> tuple[Labels, Labels]:
    """The labels, a share of them changed.  to: N, the label for each that is.  Returns them, and which."""
    places = np.sort(np.random.default_rng(seed).choice(len(labels), round(share * len(labels)), replace=False))
    found = labels.copy()
    found[places] = to[places]
    return found, places


def counted(doubts: Doubts, ids: Labels, true: Labels, places: Labels) -> dict[str, Any]:
    """Of the doubts, those that are about labels changed."""
    doubted = find_places(ids, [s.place for s in doubts.suspects])
    suggested = np.array([s.suggested for s in doubts.suspects], np.int64)
    is_hit = np.isin(doubted, places)
    return {
        "changed": len(places),
        "doubted": doubts.count,
        "found": int(is_hit.sum()),
        "found_of_first": {str(n): int(is_hit[:n].sum()) for n in (10, 20, 50, len(places)) if n <= len(doubted)},
        "true_label_suggested": int((is_hit & (true[doubted] == suggested)).sum()),
    }


def one(known: Frozen, true: Labels, groups: Labels, to: Labels, share: float, seed: int) -> dict[str, Any]:
    labels, places = changed(true, to, share, seed)
    images = replace(known.images, labels=labels)
    doubts = doubts_of(images, left_out(Frozen(images, known.rows), groups))
    return {"share": share, "seed": seed, **counted(doubts, images.ids, true, places)}


def targets(true: Labels, scores: NDArray[np.float64], seed: int) -> dict[str, Labels]:
    """For each image the label it would be given by mistake: any other, or the one it is most like."""
    classes = scores.shape[1]
    move = np.random.default_rng(1_000 + seed).integers(1, classes, len(true))
    others = scores.copy()
    others[np.arange(len(true)), true] = -np.inf
    return {"any other": (true + move) % classes, "the likest": others.argmax(1)}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weights", default=str(SHARED / "weights" / "deit-tiny"))
    parser.add_argument("--shares", nargs="*", type=float, default=[0.02, 0.05])
    parser.add_argument("--seeds", nargs="*", type=int, default=[0, 1, 2])
    parser.add_argument("--limit", type=int, help="images, for a rehearsal")
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args(arguments)
    data = vitreous.images.open(str(SHARED / "data" / "oxford-pets-160-*.zip")).split("train")
    data = data if asked.limit is None else data.take(np.arange(len(data))[:: len(data) // asked.limit])
    known = frozen_features(vitreous.load(asked.weights, classes=len(data.classes)), data)
    true = known.images.labels
    groups, _ = rounds(known.images, 0)
    scores = left_out(known, groups)
    plain = doubts_of(known.images, scores)
    runs = [
        {"to": name, **one(known, true, groups, to, share, seed)}
        for share in asked.shares
        for seed in asked.seeds
        for name, to in targets(true, scores, seed).items()
    ]
    body = {
        "benchmark": "labels doubted",
        "images": len(true),
        "named_as_labelled": plain.right,
        "doubted_where_none_was_changed": plain.count,
        "runs": runs,
        **record(),
    }
    text = json.dumps(body, indent=2)
    print(text)
    if asked.out:
        asked.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
