"""What can be read from each layer by a linear fit (figures 11 and 13 of arXiv 2108.08810)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from torch import Tensor

from vitreous.evaluation.features import Features, pooled
from vitreous.evaluation.features import PooledTap as Pooling
from vitreous.evaluation.few_shot import choose_shots
from vitreous.evaluation.probes import Probed, probe_features
from vitreous.measures.drawing import BLOCK_AXIS, LAYER_AXIS, column, layer_name
from vitreous.measures.layer_similarity import is_block
from vitreous.measures.measure import PLURAL, Arrays, Drawn, Found, Measure, Reading, plain
from vitreous.measures.subject import Subject
from vitreous.report import charts
from vitreous.report.charts import Line
from vitreous.report.files import Panel
from vitreous.words import counted

PROBE_SHOTS = 10
PROBE_SEEDS = 3
MAX_IMAGES_HELD = 2048  # their features stay in memory
MIN_TRAIN_IMAGES = 2  # labelled, of a class
MAX_TIES_NAMED = 2  # layers that are equally right


BLOCK_OUTPUTS = {  # the output of every block and unit
    "vit": ("blocks.*.output",),
    "stem": ("stem.stages.*.units.*.output",),
    "bit": ("stages.*.units.*.output",),
}


class Held(Reading):
    """Features of the first `most` images under names, to fit and judge probes on."""

    def __init__(self, subject: Subject, most: int):
        super().__init__(subject)
        self.most = most
        self.values: dict[str, list[np.ndarray]] = {}
        self.places: list[np.ndarray] = []
        self.count = 0

    def hold(self, name: str, rows: Tensor) -> None:
        """Keep the rows of a batch, one for each image."""
        self.batch[name] = rows[: self.most - self.count].cpu()

    def update(self) -> None:
        if self.batch:
            places: np.ndarray = self.subject.of_batch["places"][: self.most - self.count]
            self.places.append(places)
            self.count += len(places)
            for name, rows in self.batch.items():
                self.values.setdefault(name, []).append(rows.numpy())
        self.batch = {}

    def release(self, names: list[str]) -> tuple[Features, Features]:
        """Hand out the train and test rows under these names, and forget them."""
        data, places = self.subject.data, np.concatenate(self.places)
        values: dict[str, Any] = {name: np.concatenate(self.values.pop(name)) for name in names}
        whole = Features(
            values, data.labels[places], data.ids[places], places, data.classes, (), self.subject.digest, "", False
        )
        return whole.take(data.splits[places] == "train"), whole.take(data.splits[places] == "test")


class _Probes(Held):
    def __init__(self, subject: Subject, other: Subject | None = None):
        super().__init__(subject, MAX_IMAGES_HELD)

    def see(self, tap: str, x: Tensor, side: int = 0) -> None:
        if self.count >= MAX_IMAGES_HELD or not is_block(tap):
            return
        is_vit = tap.startswith("blocks.")
        front = self.subject.prefix if is_vit else 0
        pools = ["gap"] + (["cls"] if is_vit and self.subject.has_class_token else [])
        if is_vit:
            h, w = self.subject.grid
            pools.append(f"token-{front + h // 2 * w + w // 2}")
        for pool in pools:
            name = f"{tap}:{'middle' if pool.startswith('token-') else pool}"
            self.hold(name, pooled(x, Pooling(tap, pool), front))

    def finish(self) -> Found:
        train, test = self.release(list(self.values))
        shots = [_probed(train, test, PROBE_SHOTS, seed) for seed in range(PROBE_SEEDS)]
        full = _probed(train, test)
        chance, read = 1 / len(train.classes), {row.reading for row in full.rows}
        return {
            "images": full.images,
            "fitted_on": full.fitted_on,
            "shots": PROBE_SHOTS,
            "seeds": PROBE_SEEDS,
            "chance": plain(chance),
            "place": self.subject.place,
            "constant": [_named(name) for name in train.values if name not in read],
            "rows": [_row(name, shots, full, chance) for name in train.values],
        }


def _probed(train: Features, test: Features, shots: int | None = None, seed: int = 0) -> Probed:
    """Probes on readings that vary across the images to fit on; least squares refuse constant ones."""
    labels = train.labels
    chosen = np.flatnonzero(labels >= 0) if shots is None else choose_shots(labels, len(train.classes), shots, seed)
    changes = [name for name, x in train.values.items() if (x[chosen] != x[chosen[:1]]).any()]
    parts = [replace(half, values={name: half[name] for name in changes}) for half in (train, test)]
    return probe_features(*parts, shots=shots, seed=seed)


def _row(name: str, shots: list[Probed], full: Probed, chance: float) -> dict[str, Any]:
    """One row; a constant reading counts as chance."""
    tap, _, pool = name.partition(":")
    *few, linear = ({row.reading: row for row in probed.rows}.get(name) for probed in (*shots, full))
    right = [chance if row is None else row.accuracy for row in few]
    return {
        "layer": tap.removesuffix(".output"),
        "tokens": pool,
        "ten_shot": plain(sum(right) / len(right)),
        "ten_shot_seeds": plain(right),
        "linear": plain(chance if linear is None else linear.accuracy),
        "interval": None if linear is None else plain(linear.interval),
    }


def _named(name: str) -> str:
    tap, _, pool = name.partition(":")
    return f"{tap.removesuffix('.output')} ({pool})"


def _told(found: Found, most: int | None = None) -> str:
    """What is constant, such as `blocks.0 (cls)`, for people."""
    named, words = found["constant"][:most], _token_words(found)
    parts = (name.removesuffix(")").partition(" (") for name in named)
    return ", ".join(f"{layer_name(tap)} ({words[pool]})" for tap, _, pool in parts)


def needs_labels(most: int) -> Callable[[Subject, Subject | None], str | None]:
    """Refuse a probe unless the first `most` images have labels in both splits."""

    def why_not(subject: Subject, other: Subject | None = None) -> str | None:
        data = subject.data
        if data.labels.ndim != 1 or not data.classes:
            return f"{data.path} does not have one label for each image, which a probe needs"
        labels, splits = data.labels[:most], data.splits[:most]
        train = labels[(splits == "train") & (labels >= 0)]
        test = labels[(splits == "test") & (labels >= 0)]
        counts = np.bincount(train, minlength=len(data.classes))
        if not len(test) or (counts >= MIN_TRAIN_IMAGES).sum() < 2:
            largest = int(np.bincount(labels[labels >= 0], minlength=1).max())
            return (
                f"a probe needs {MIN_TRAIN_IMAGES} train images of two classes, and test images; the {len(labels):,} "
                f"drawn have at most {largest} of a class, {len(train):,} of them to train on"
            )
        return None

    return why_not


def _token_words(found: Found) -> dict[str, str]:
    return {"cls": "class token", "gap": f"mean of {PLURAL[found['place']]}", "middle": f"one {found['place']}"}


def _say(found: Found) -> str:
    rows, chance = found["rows"], found["chance"]
    top = max(row["linear"] for row in rows)
    if top <= chance:
        text = f"a linear fit reads the class from no layer better than by chance ({100 * chance:.0f} %)"
    else:
        best = [row for row in rows if row["linear"] == top]
        low, high = (100 * end for end in best[-1]["interval"])
        shots = sorted({f"{100 * row['ten_shot']:.0f}" for row in best}, key=float)
        text = (
            f"a linear fit reads the class best from {_names(found, best)}: {100 * top:.0f} % of "
            f"{counted(found['images'], 'test image')} right ({low:.0f} to {high:.0f} %), "
            f"{' to '.join(dict.fromkeys((shots[0], shots[-1])))} % by {found['shots']} shots"
        )
        first = rows[0]
        if first["layer"] not in {row["layer"] for row in best}:
            text += f"; from {layer_name(first['layer'])} {100 * first['linear']:.0f} %"
        text += f"; by chance {100 * chance:.0f} %"
    return text + (f"; constant: {_told(found, 3)}" if found.get("constant") else "")


def _names(found: Found, rows: list[dict[str, Any]]) -> str:
    """What is equally right; of many, the deepest and how many more."""
    words = _token_words(found)
    names = [f"{layer_name(row['layer'])} ({words[row['tokens']]})" for row in rows]
    if len(names) > MAX_TIES_NAMED:
        return f"{names[-1]} and {len(names) - 1} more alike"
    return " and ".join(names) + (" alike" if len(names) > 1 else "")


def _draw(found: Found, beside: Found | None, arrays: Arrays) -> list[Drawn]:
    rows = found["rows"]
    order = {layer: i for i, layer in enumerate(dict.fromkeys(row["layer"] for row in rows))}
    is_vit = all(layer.startswith("blocks.") for layer in order)
    few, full = [], []
    for kind, word in _token_words(found).items():
        own = [row for row in rows if row["tokens"] == kind]
        if not own:
            continue
        x = [order[row["layer"]] + 1 for row in own]
        seeds = np.asarray([row["ten_shot_seeds"] for row in own], np.float64)
        few.append(Line(word, x, column(own, "ten_shot"), seeds.min(1), seeds.max(1)))
        right = column(own, "linear")
        band = np.asarray([row["interval"] or [row["linear"]] * 2 for row in own], np.float64)
        full.append(Line(word, x, right, band[:, 0], band[:, 1]))
    how: dict[str, Any] = {"x_title": BLOCK_AXIS if is_vit else LAYER_AXIS, "x_is_whole": True, "is_share": True}
    how |= {"y_range": (0.0, 1.0), "level": (found["chance"], "chance")}
    shots = charts.lines(few, title=f"accuracy of {found['shots']}-shot probes by layer", **how)
    linear = charts.lines(full, title="accuracy of linear probes by layer", **how)
    panels = [
        Panel(shots, f"Right by {found['shots']} shots; bands: over seeds"),
        Panel(linear, f"Right by a fit on {found['fitted_on']:,} images; bands: 95 %"),
    ]
    return [Drawn(panels, paper="P2-fig13")]


def _method(found: Found) -> str:
    is_constant = bool(found.get("constant"))
    same = f"; what is the same in all images fitted on counts as chance: {_told(found)}" if is_constant else ""
    return (
        f"Regularised least squares on frozen features of each layer: {found['shots']} images a class, "
        f"{found['seeds']} draws; and all {found['fitted_on']:,}. Judged on {found['images']:,} test images; intervals "
        f"are Wilson's, 95 %{same}."
    )


PROBES = Measure(
    name="probes",
    sentence="How much of the class a linear fit can read from each layer: class token, mean of places, one place.",
    figure="P2 figures 11 and 13",
    saw="Class-token models keep the answer in the class token; in GAP models every token holds it at the end.",
    start=_Probes,
    says=_say,
    taps=BLOCK_OUTPUTS,
    why_not=needs_labels(MAX_IMAGES_HELD),
    draw=_draw,
    method=_method,
    rank=6,
)
