"""Whether new photos keep what a report of `fit` promises.   python benchmarks/promise.py --out FILE

Photographers fit a head on frozen features to photos of five classes, 312 drawn at random from one half of Oxford Pets
or of imagenette. The report states how many are right (left out one by one), the confidence from which answers are
trusted, and how many images of a class it never saw get a trusted answer. Each is compared with photos that no number
has seen: the rest of the same half, and the other half. Other rows draw as many of each class from both halves,
shuffled.

`agree`: report and new differ by less than 1.96 standard errors of both, which 95 of 100 draws do if photos are alike.
`promise_kept`: of draws with trusted answers, the share whose new photos above the confidence are at least 90 % right.
`lowest alone` is the earlier rule: the lowest confidence whose interval reaches 90 %. Prints one JSON object.
"""

import argparse
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

import vitreous
from vitreous.evaluation.accuracy import wilson
from vitreous.evaluation.calibration import CONFIDENCE_GRID, above, fit_temperature, fit_threshold, softmax
from vitreous.images import open_data, splits
from vitreous.images.imageset import TEST, TRAIN, ImageSet
from vitreous.machine import record
from vitreous.models.track_record import SURE_SHARE
from vitreous.training.recipe import L2S
from vitreous.training.run.closed_form import Solved, frozen_features, rounds, solve
from vitreous.training.run.none_of_these import left_out_scores
from vitreous.training.run.protocols import CALIBRATION_PARTS
from vitreous.training.tell.summary import MIN_ANSWERS, sure_from

SHARED = Path(os.environ.get("VITREOUS_SHARED", Path(__file__).resolve().parents[2] / "shared"))
MODELS = {"starter": ("starter", 96), "deit-tiny": (str(SHARED / "weights" / "deit-tiny"), None)}
PETS, THINGS = "oxford-pets-160", "imagenette-128"
ALIKE = ("Abyssinian", "Bengal", "Birman", "Maine_Coon", "Ragdoll")  # of the photographer's walk that led to this
PHOTOS, CLASSES, STRANGERS = 312, 5, 300
SIZES = (60, 150, 300)  # photos of both halves
Places = NDArray[np.int64]
Rows = NDArray[np.floating[Any]]


class Photos(NamedTuple):
    """Images with their features; copies have one group."""

    data: ImageSet
    rows: Rows

    def of(self, classes: Places, but_for: Places | None = None) -> Places:
        """Places of these classes, without those places and their copies."""
        is_here = np.isin(self.data.labels, classes)
        assert self.data.groups is not None
        return np.flatnonzero(is_here if but_for is None else is_here & ~np.isin(self.data.groups, but_for))

    def take(self, places: Places, classes: Places) -> tuple[Rows, Places]:
        """Features, and labels among these classes."""
        return self.rows[places], np.searchsorted(classes, self.data.labels[places])

    def half(self, part: str) -> "Photos":
        where = np.flatnonzero(self.data.splits == part)
        return Photos(self.data.take(where), self.rows[where])


def photos(network: Any, name: str) -> Photos:
    """Both halves of a set."""
    found = frozen_features(network, open_data.open(SHARED / "data" / f"{name}-*.zip"))
    return Photos(replace(found.images, groups=splits.find_groups(found.images)[0]), found.rows)


# As `fit` does it ---------------------------------------------------------------------------------------------------


class Fitted(NamedTuple):
    """A solved head, what the report says about it, and what its file keeps."""

    head: Solved
    labels: Places
    temperature: float
    threshold: float
    means: Rows  # K D, of the classes
    known: Rows  # calibrated answers to the images left out
    unknown: Rows  # to images of a class left out
    unknown_scores: Rows

    @property
    def right(self) -> int:
        return int((self.known.argmax(1) == self.labels).sum())

    def answers(self, rows: Rows) -> Rows:
        return softmax(self.head.probe.scores(rows), self.temperature)

    def is_unlike(self, rows: Rows) -> NDArray[np.bool_]:
        return (unit(rows) @ self.means.T).max(1) < self.threshold


def fitted(here: Photos, places: Places, classes: Places) -> Fitted:
    rows, labels = here.take(places, classes)
    data = replace(here.data.take(places), labels=labels, classes=tuple(here.data.classes[k] for k in classes))
    groups, _ = rounds(data)
    head = solve(rows, labels, len(classes), L2S, groups=groups)
    temperature = fit_temperature(head.left_out, labels)
    scores, unknown = left_out_scores(rows, labels, len(classes), groups % CALIBRATION_PARTS)
    means = unit(np.stack([unit(rows[labels == k]).mean(0) for k in range(len(classes))]))
    answers = (softmax(each, temperature) for each in (head.left_out, head.without_own_class(labels)))
    return Fitted(head, labels, temperature, fit_threshold(scores), means, *answers, unknown)


def unit(rows: Rows) -> Rows:
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def lowest_alone(probabilities: Rows, labels: Places) -> float:
    """The earlier rule."""
    confidence, is_right = probabilities.max(1), probabilities.argmax(1) == labels
    rows = (above(confidence, is_right, limit) for limit in CONFIDENCE_GRID)
    enough = (r for r in rows if r.answered >= MIN_ANSWERS and wilson(r.right, r.answered)[0] >= SURE_SHARE)
    return next((row.confidence for row in enough), 1.0)


RULES: dict[str, Callable[[Rows, Places], float | None]] = {"all surer ones": sure_from, "lowest alone": lowest_alone}


# One draw -----------------------------------------------------------------------------------------------------------


def drawn(here: Photos, places: Places, classes: Places, new: dict[str, tuple[Photos, Places]]) -> dict[str, Any]:
    """What the report says, and what new photos show.  new: photos of these classes, by where they come from."""
    model = fitted(here, places, classes)
    body: dict[str, Any] = {"images": len(places), "right": model.right}
    asked = {name: (model.answers(there.rows[w]), there.take(w, classes)[1]) for name, (there, w) in new.items()}
    for name, (p, y) in asked.items():
        body[name] = {"images": len(y), "right": int((p.argmax(1) == y).sum())}
    for rule, choose in RULES.items():
        line = choose(model.known, model.labels)
        assert line is not None
        body[rule] = {"confidence": line}
        if line < 1:
            for name, (p, y) in {"told": (model.known, model.labels), **asked}.items():
                row = above(p.max(1), p.argmax(1) == y, line)
                body[rule][name] = [row.right, row.answered]
    return body | {"model": model}


def of_strangers(model: Fitted, line: float, rows: Rows) -> dict[str, Any]:
    """Images of unseen classes with a trusted answer: estimated on classes left out, and seen on other classes."""
    told = (model.unknown_scores >= model.threshold) & (model.unknown.max(1) >= line)
    seen = ~model.is_unlike(rows) & (model.answers(rows).max(1) >= line)
    return {"told": [int(told.sum()), len(told)], "seen": [int(seen.sum()), len(seen)]}


def from_a_half(
    whole: Photos, kinds: dict[str, Places], parts: tuple[str, ...], draws: int
) -> Iterator[dict[str, Any]]:
    """Photos of one half; new ones from the rest of it and from the other.  kinds: the classes to draw from."""
    for kind, pool in kinds.items():
        for part in parts:
            here, there = (whole.half(name) for name in (part, TEST if part == TRAIN else TRAIN))
            for seed in range(draws):
                draw = np.random.default_rng(seed)
                classes = np.sort(draw.choice(pool, CLASSES, replace=False))
                chosen = np.sort(draw.choice(here.of(classes), PHOTOS, replace=False))
                taken = here.data.groups[chosen]
                new = {"rest": (here, here.of(classes, taken)), "other half": (there, there.of(classes, taken))}
                body = drawn(here, chosen, classes, new)
                model, line = body.pop("model"), body["all surer ones"]["confidence"]
                if len(others := np.setdiff1d(pool, classes)) and line < 1:
                    strange = draw.choice(there.of(others), STRANGERS, replace=False)
                    body["sure of strangers"] = of_strangers(model, line, there.rows[strange])
                yield {"set": kind, "half": part, "seed": seed, **body}


def from_both(whole: Photos, draws: int) -> Iterator[dict[str, Any]]:
    """As many photos of each class, the halves shuffled; all others are new."""
    for count in SIZES:
        for seed in range(draws):
            draw = np.random.default_rng(seed)
            classes = np.sort(draw.choice(len(whole.data.classes), CLASSES, replace=False))
            each = [draw.choice(whole.of(np.array([k])), count // CLASSES, replace=False) for k in classes]
            chosen = np.sort(np.concatenate(each))
            body = drawn(whole, chosen, classes, {"rest": (whole, whole.of(classes, whole.data.groups[chosen]))})
            del body["model"]
            yield {"set": f"5 breeds, {count} photos", "half": "both", "seed": seed, **body}


# All draws ----------------------------------------------------------------------------------------------------------


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Means over the draws of one model, set and half."""
    told = np.array([row["right"] / row["images"] for row in rows])
    found: dict[str, Any] = {"draws": len(rows), "told": mean(told)}
    for name in ("rest", "other half"):
        if name in rows[0]:
            new = np.array([row[name]["right"] / row[name]["images"] for row in rows])
            found[name] = {"right": mean(new), "told_minus_new": mean(told - new)}
            found[name]["deviation"] = round(float((told - new).std(ddof=1)), 4) if len(rows) > 1 else None
            found[name]["agree"] = mean([agree(row, row[name]) for row in rows])
    for rule in RULES:
        some = [row[rule] for row in rows if "told" in row[rule]]
        found[rule] = {"draws_with_one": len(some)}
        for name in ("told", "rest", "other half") if some else ():
            if name in some[0]:
                given = [row[name] for row in some if row[name][1]]
                found[rule][name] = {"right": mean([right / seen for right, seen in given])}
                found[rule][name] |= {"promise_kept": mean([right / seen >= SURE_SHARE for right, seen in given])}
    strange = [row["sure of strangers"] for row in rows if "sure of strangers" in row]
    if strange:
        found["sure of strangers"] = {
            name: mean([s[name][0] / s[name][1] for s in strange]) for name in ("told", "seen")
        }
    return found


def agree(told: dict[str, int], new: dict[str, int]) -> bool:
    both = (told["right"] + new["right"]) / (told["images"] + new["images"])
    error = (both * (1 - both) * (1 / told["images"] + 1 / new["images"])) ** 0.5
    return abs(told["right"] / told["images"] - new["right"] / new["images"]) <= 1.96 * error


def mean(values: Any) -> float:
    return round(float(np.mean(values)), 4)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--models", nargs="*", choices=MODELS, default=list(MODELS))
    arguments.add_argument("--draws", type=int, default=20)
    arguments.add_argument("--out", type=Path)
    asked = arguments.parse_args()
    rows: list[dict[str, Any]] = []
    for name in asked.models:
        source, size = MODELS[name]
        network = vitreous.load(source, **({} if size is None else {"image_size": size}))
        pets, things = (photos(network, each) for each in (PETS, THINGS))
        breeds = np.array(pets.data.classes)
        cats = np.flatnonzero([breed[0].isupper() for breed in breeds])
        kinds = {"5 breeds of cats": cats, "5 breeds": np.arange(len(breeds))}
        kinds |= {"5 cats much alike": np.flatnonzero(np.isin(breeds, ALIKE))}
        kinds_of_things = {"5 things (imagenette)": np.arange(len(things.data.classes))}
        for found in (
            from_a_half(pets, kinds, (TRAIN, TEST), asked.draws),
            from_a_half(things, kinds_of_things, (TRAIN,), asked.draws),
            from_both(pets, asked.draws),
        ):
            rows += [{"weights": name, **row} for row in found]
    arms = list(dict.fromkeys((row["weights"], row["set"], row["half"]) for row in rows))
    table = [
        {"weights": w, "set": s, "half": h}
        | summary([row for row in rows if (row["weights"], row["set"], row["half"]) == (w, s, h)])
        for w, s, h in arms
    ]
    body = {"benchmark": "promise", "photos": PHOTOS, "classes": CLASSES, "table": table, **record()}
    print(json.dumps(body, indent=1))
    if asked.out:
        draws = [json.dumps(row) for row in rows]
        text = json.dumps(body, indent=1)[:-2] + ',\n "draws": [\n  ' + ",\n  ".join(draws) + "\n ]\n}\n"
        asked.out.write_text(text)


if __name__ == "__main__":
    main()
