"""What can be read from every single token by a few shots, in a few layers (figure D.4 of arXiv 2108.08810).

Memory holds float16 rows of at most 1,024 images: 5 layers of 50 tokens take 0.4 GB at width 768.

B images   T tokens probed: the class token if there is one, then places in raster order
"""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import count
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitreous.evaluation.features import Features
from vitreous.evaluation.few_shot import choose_shots
from vitreous.evaluation.probes import probe_features
from vitreous.measures.drawing import block_name, column, layer_name, lines_of
from vitreous.measures.layer_probes import BLOCK_OUTPUTS, PROBE_SEEDS, PROBE_SHOTS, Held, needs_labels
from vitreous.measures.measure import Arrays, Drawn, Found, Measure, plain
from vitreous.measures.residual import as_tokens
from vitreous.measures.subject import Subject
from vitreous.models.config import Size
from vitreous.report import charts
from vitreous.report.charts import Line, Tile
from vitreous.report.colours import colours
from vitreous.report.files import Panel

MAX_TOKEN_IMAGES_HELD = 1024
MAX_PLACES = 49  # probed in a layer; a larger layer is probed on an even grid
LARGEST_FLOAT16 = torch.finfo(torch.float16).max


def even_grid(grid: Size, most: int = MAX_PLACES) -> tuple[range, range]:
    """Rows and columns of an even grid within the grid: all of it, or every s-th, s the least that gives `most` places.

    The rest is split evenly between both sides.
    """
    step = next(s for s in count(1) if math.prod(-(-n // s) for n in grid) <= most)
    rows, columns = (range((n - 1) % step // 2, n, step) for n in grid)
    return rows, columns


def some_layers(layers: list[str]) -> dict[str, float]:
    """The first, quarter, middle, three quarters and last of them, each with its depth from 0 to 1."""
    last = len(layers) - 1
    return {layers[i]: i / max(last, 1) for i in dict.fromkeys(round(last * quarter / 4) for quarter in range(5))}


def token_accuracy(train: Features, test: Features, tap: str, seed: int) -> tuple[NDArray[Any], NDArray[np.bool_]]:
    """Accuracy of a probe on each token; and whether the token changes among the shots. If not, its accuracy is chance.

    Returns T and T.
    """
    x = train[tap]  # N T D
    shots = x[choose_shots(train.labels, len(train.classes), PROBE_SHOTS, seed)]
    changes = (shots != shots[:1]).any((0, 2))
    right = np.full(x.shape[1], 1 / len(train.classes))
    if changes.any():
        parts = [replace(half, values={tap: half[tap][:, changes]}) for half in (train, test)]
        right[changes] = probe_features(*parts, shots=PROBE_SHOTS, seed=seed).tokens(tap)
    return right, changes


class _TokenProbes(Held):
    def __init__(self, subject: Subject, other: Subject | None = None):
        super().__init__(subject, MAX_TOKEN_IMAGES_HELD)
        self.depths = some_layers(subject.taps(BLOCK_OUTPUTS))
        self.grids: dict[str, Size] = {}

    def see(self, tap: str, x: Tensor, side: int = 0) -> None:
        if self.count >= MAX_TOKEN_IMAGES_HELD or tap not in self.depths:
            return
        is_map = x.dim() == 4
        self.grids[tap] = grid = (x.shape[2], x.shape[3]) if is_map else self.subject.grid
        rows, columns = even_grid(grid)
        front = 0 if is_map else self.subject.prefix
        asked = [front + row * grid[1] + column for row in rows for column in columns]
        tokens = as_tokens(x)[:, [*([0] if self._has_class(tap) else []), *asked]]  # B T D
        self.hold(tap, tokens.float().clamp(-LARGEST_FLOAT16, LARGEST_FLOAT16).half())

    def _has_class(self, tap: str) -> bool:
        return self.subject.has_class_token and tap.startswith("blocks.")

    def finish(self) -> Found:
        layers, table = [], []
        for tap, depth in self.depths.items():
            train, test = self.release([tap])
            images = int((test.labels >= 0).sum())
            fitted_on = len(choose_shots(train.labels, len(train.classes), PROBE_SHOTS, 0))
            probed = [token_accuracy(train, test, tap, seed) for seed in range(PROBE_SEEDS)]
            right, changes = (np.mean(each, 0) for each in zip(*probed, strict=True))  # T
            first = int(self._has_class(tap))
            own = right[0] if first else None
            constant = int((changes[first:] == 0).sum())
            layers.append(_about(tap, depth, self.grids[tap], right[first:], own, images) | {"constant": constant})
            table += _rows(tap, self.grids[tap], right[first:], own)
        return {
            "images": images,
            "fitted_on": fitted_on,
            "held": self.count,
            "held_at_most": MAX_TOKEN_IMAGES_HELD,
            "shots": PROBE_SHOTS,
            "seeds": PROBE_SEEDS,
            "chance": plain(1 / len(self.subject.data.classes)),
            "places_at_most": MAX_PLACES,
            "sampled": any(layer["step"] > 1 for layer in layers),
            "layers": layers,
            "rows": table,
        }


def _about(tap: str, depth: float, grid: Size, right: np.ndarray, own: float | None, images: int) -> dict[str, Any]:
    """One layer in numbers. error: of a token's accuracy, one standard error by the draw of test images."""
    rows, columns = even_grid(grid)
    mean = float(right.mean())
    return {
        "layer": tap.removesuffix(".output"),
        "depth": plain(depth),
        "grid": list(grid),
        "asked": [len(rows), len(columns)],
        "step": rows.step,
        "lowest": plain(right.min()),
        "mean": plain(mean),
        "highest": plain(right.max()),
        "error": plain(math.sqrt(mean * (1 - mean) / images)),
        "class_token": plain(own),
    }


def _rows(tap: str, grid: Size, right: np.ndarray, own: float | None) -> list[dict[str, Any]]:
    rows, columns = even_grid(grid)
    layer = tap.removesuffix(".output")
    places = [(row, column) for row in rows for column in columns]
    table = [
        {"layer": layer, "token": "patch", "row": row, "column": column, "ten_shot": plain(value)}
        for (row, column), value in zip(places, right, strict=True)
    ]
    front = {"layer": layer, "token": "class", "row": None, "column": None, "ten_shot": plain(own)}
    return table if own is None else [front, *table]


def _say(found: Found) -> str:
    layers = found["layers"]
    told = [
        f"{100 * layer['lowest']:.0f} to {100 * layer['highest']:.0f} % right (mean {100 * layer['mean']:.0f}) after "
        f"{layer_name(layer['layer'])}"
        for layer in (layers if len(layers) < 2 else [layers[0], layers[-1]])
    ]
    own = layers[-1]["class_token"]
    return (
        f"{found['shots']} shots on one place are {' and '.join(told)}"
        + ("" if own is None else f", on the class token there {100 * own:.0f} %")
        + (f"; at most {found['places_at_most']} places of a layer, on an even grid" if found["sampled"] else "")
    )


def _draw(found: Found, beside: Found | None, arrays: Arrays) -> list[Drawn]:
    layers, tiles = found["layers"], []
    for layer in layers:
        own = [row for row in found["rows"] if (row["layer"], row["token"]) == (layer["layer"], "patch")]
        low, high = layer["lowest"], layer["highest"]
        name = block_name(f"{layer['layer']}.output").replace("stem unit", "stem")
        shades = colours(column(own, "ten_shot").reshape(layer["asked"]), low, high)
        tiles.append(Tile(f"{name}: {100 * low:.0f}–{100 * high:.0f} %", shades))
    maps = charts.tiles(tiles, title="accuracy of a probe on every place", columns=min(3, len(tiles)))
    depth, mean, lowest, highest = (column(layers, key) for key in ("depth", "mean", "lowest", "highest"))
    series = [
        Line("one place", depth, mean, lowest, highest, has_points=True),
        *lines_of(layers, depth, {"class token": "class_token"}, has_points=True),
    ]
    chart = charts.lines(
        series, title=f"accuracy of {found['shots']}-shot probes on single tokens", x_title="depth", x_is_share=True,
        is_share=True, y_range=(0.0, 1.0), level=(found["chance"], "chance"),
    )  # fmt: skip
    panels = [
        Panel(maps, "Right by place, each map on its own scale"),
        Panel(chart, "Mean of places; band: lowest to highest"),
    ]
    return [Drawn(panels, paper="P2-figD.4")]


def _method(found: Found) -> str:
    error = max(layer["error"] for layer in found["layers"])
    return (
        f"Regularised least squares on each token by itself: {found['shots']} images a class "
        f"({found['fitted_on']:,} in all), mean of {found['seeds']} draws, judged on {found['images']:,} test images, "
        f"so that one standard error of a token is about {100 * error:.0f} points. Rows of {found['held']:,} images in "
        f"float16 ({found['held_at_most']:,} at most){_thinned(found)}{_constant(found)}."
    )


def _thinned(found: Found) -> str:
    """The grids that are probed at only some of their places."""
    steps = dict.fromkeys((*layer["grid"], layer["step"]) for layer in found["layers"] if layer["step"] > 1)
    words = [f"one row and column in {step} of {h}×{w}" for h, w, step in steps]
    return f"; at most {found['places_at_most']} places are asked: {', '.join(words)}" if words else ""


def _constant(found: Found) -> str:
    layers = [f"{layer['constant']} of {layer_name(layer['layer'])}" for layer in found["layers"] if layer["constant"]]
    return f"; places that are the same in all shots count as chance: {', '.join(layers)}" if layers else ""


TOKEN_PROBES = Measure(
    name="token-probes",
    sentence="What 10 shots read of the class from each single token of a few layers (at most 49 places, evenly laid).",
    figure="P2 figure D.4",
    saw="Right on ImageNet by a last token: 6 to 10 % in ViT-B with a class token, 57 to 58 with GAP, 44 to 52 in R50.",
    start=_TokenProbes,
    says=_say,
    taps=BLOCK_OUTPUTS,
    cost="reads the shared forward; then up to 750 small fits, on 1,024 images at most",
    why_not=needs_labels(MAX_TOKEN_IMAGES_HELD),
    draw=_draw,
    method=_method,
    rank=14,
)
