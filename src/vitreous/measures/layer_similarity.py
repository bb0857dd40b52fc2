"""Which layers of a model, or of two, see images alike (figures 1, 2, 5, 12 of arXiv 2108.08810)."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from vitreous.measures.attention import attention_distance
from vitreous.measures.drawing import BLOCK_AXIS, block_name, column, layer_name, short_names, spans
from vitreous.measures.filters_and_positions import NO_TREND_BELOW, rank_correlation
from vitreous.measures.measure import Arrays, Averages, Drawn, Found, Measure, Reading, plain
from vitreous.measures.similarity import (
    ENOUGH_IMAGES,
    Likeness,
    best_match,
    caution_of_likeness,
    centred_gram,
    is_whole,
    uniformity,
)
from vitreous.measures.subject import Subject, needs_batches
from vitreous.models.vit import ViT
from vitreous.report import charts
from vitreous.report.charts import Line
from vitreous.report.files import Cells, Panel
from vitreous.words import counted

ENOUGH_HEADS = 6  # for a rank correlation to be a finding
SCALE_FLOOR = 0.5  # a heatmap begins here, unless a number lies below
BLOCK_PARTS = ("norm1", "attention.output", "residual1", "norm2", "mlp.hidden", "output")
UNIT_PARTS = ("conv1", "conv2", "branch", "output")
TAPS = {
    "stem": ("stem.root", *(f"stem.stages.*.units.*.{part}" for part in UNIT_PARTS)),
    "vit": ("embedding.tokens", *(f"blocks.*.{part}" for part in BLOCK_PARTS)),
    "bit": ("root", *(f"stages.*.units.*.{part}" for part in UNIT_PARTS)),
}


def is_block(tap: str) -> bool:
    """True for the output of a whole block or unit."""
    parts = tap.removeprefix("stem.").split(".")
    return parts[-1] == "output" and len(parts) in (3, 5)


class _Grams(Reading):
    """All pairs of layers of one model, or of two."""

    def __init__(self, subject: Subject, other: Subject | None = None):
        super().__init__(subject, other)
        self.likeness = Likeness()
        self.left_out = 0  # images in batches that were too small
        self.images = self.size = self.largest = 0

    def see(self, tap: str, x: Tensor, side: int = 0) -> None:
        if self.subject.settings.layers == "blocks" and not is_block(tap):
            return
        self.size = len(x)
        if is_whole(self.size, self.largest):
            self.batch[f"{side}:{tap}"] = self.gram(tap, x, side)

    def gram(self, tap: str, x: Tensor, side: int) -> Tensor:
        """The Gram matrix of this batch, computed once for all readings."""
        subject = self.other if side and self.other is not None else self.subject
        kept: dict[str, Tensor] = subject.of_batch.setdefault("grams", {})
        if tap not in kept:
            kept[tap] = centred_gram(x.detach())
        return kept[tap]

    def update(self) -> None:
        if self.batch:
            self.likeness.add_grams(self.batch)
            self.images += self.size
            self.largest = max(self.largest, self.size)
        else:
            self.left_out += self.size
        self.batch = {}

    def layers(self, side: int) -> list[str]:
        return [name for name in self.likeness.names if name.startswith(f"{side}:")]

    def about(self, rows: list[str], columns: list[str]) -> Found:
        matrix = self.likeness.matrix(rows, columns)
        return {
            "rows_of_matrix": [name[2:] for name in rows],
            "columns_of_matrix": [name[2:] for name in columns],
            "cka": plain(matrix, 4),
            "error": plain(self.likeness.error(rows, columns), 2),
            "constant": [name[2:] for name in self.likeness.constant if name in {*rows, *columns}],
            "images": self.images,
            "left_out": self.left_out,
            "batches": self.likeness.batches,
        }


def _long(found: Found) -> list[dict[str, Any]]:
    error = found["error"]
    return [
        {"row": row, "column": column, "cka": found["cka"][i][j], "error": error[i][j] if error else None}
        for i, row in enumerate(found["rows_of_matrix"])
        for j, column in enumerate(found["columns_of_matrix"])
    ]


class _Within(_Grams):
    def finish(self) -> Found:
        names = self.layers(0)
        found = self.about(names, names)
        blocks = [i for i, name in enumerate(names) if is_block(name[2:])]
        of_blocks = [[found["cka"][i][j] for j in blocks] for i in blocks]
        return found | plain(uniformity(found["cka"])) | {"of_blocks": plain(uniformity(of_blocks))}


def _say_within(found: Found) -> str:
    mean, ends = found["uniformity"], found["low_high"]
    text = "layers cannot be compared"
    if mean is not None:
        text = f"two layers are alike by {mean:.2f} on average (1 is the same)"
        text += "" if ends is None else f", the first third and the last by {ends:.2f}"
    return text + (f"; constant: {', '.join(map(layer_name, found['constant'][:3]))}" if found["constant"] else "")


def _matrix(found: Found) -> NDArray[np.float64]:
    return np.asarray(found["cka"], np.float64)  # NaN for None


def _floor(*matrices: NDArray[np.float64]) -> float:
    """Where the heatmap's scale begins."""
    known = np.concatenate([matrix[np.isfinite(matrix)] for matrix in matrices])
    return SCALE_FLOOR if len(known) and known.min() >= SCALE_FLOOR else 0.0


def _draw_within(found: Found, beside: Found | None, arrays: Arrays) -> list[Drawn]:
    values = _matrix(found)
    names = spans(found["rows_of_matrix"])
    chart = charts.heatmap(
        values, title="CKA of all pairs of layers", rows=names, columns=names, y_title="layer", x_title="layer",
        low=_floor(*([values] if beside is None else [values, _matrix(beside)])),
    )  # fmt: skip
    return [Drawn([Panel(chart, "CKA of every two layers", cells=_cells(found))], paper="P2-fig1")]


def _cells(found: Found) -> Cells:
    rows, columns = (list(map(layer_name, found[f"{side}_of_matrix"])) for side in ("rows", "columns"))
    return Cells(rows, columns, found["cka"])


def _cka_method(found: Found) -> str:
    batches = "one batch"
    if found["batches"] > 1:
        batches = f"{found['batches']:,} batches: HSIC is averaged over batches first and the ratio taken last"
    return (
        f"Linear CKA, unbiased, on {counted(found['images'], 'image')} in {batches}; all tokens of a layer are one "
        "vector."
    )


WITHIN = Measure(
    name="similarity",
    sentence="How alike any two layers of the model see the same images (CKA, 1 is the same).",
    figure="P2 figure 1",
    saw="A ViT's layers are alike from bottom to top; a ResNet's fall into stages that differ.",
    start=_Within,
    says=_say_within,
    taps=TAPS,
    why_not=needs_batches,
    caution=caution_of_likeness,
    least_images=ENOUGH_IMAGES,
    rows=_long,
    draw=_draw_within,
    method=_cka_method,
    rank=2,
)


def names_of(pair: Reading) -> Found:
    """What people call the two models."""
    assert pair.other is not None
    return {"models": short_names([pair.subject.name, pair.other.name])}


class _Across(_Grams):
    def finish(self) -> Found:
        rows, columns = self.layers(0), self.layers(1)
        found = self.about(rows, columns) | names_of(self)
        path = best_match(found["cka"])
        found["best_match"] = plain(path, 4)
        found["same_name"] = [
            {"layer": name[2:], "cka": found["cka"][i][columns.index(f"1:{name[2:]}")]}
            for i, name in enumerate(rows)
            if f"1:{name[2:]}" in columns and is_block(name[2:])
        ]
        third = max(len(rows) // 3, 1)
        best = [each["cka"] for each in path if each["cka"] is not None]
        found["best_of_first_third"] = plain(sum(best[:third]) / max(len(best[:third]), 1))
        found["best_of_last_third"] = plain(sum(best[-third:]) / max(len(best[-third:]), 1))
        return found


def _say_across(found: Found) -> str:
    return (
        f"layers of the first third find a match of {found['best_of_first_third']:.2f} in {found['models'][1]}, those "
        f"of the last third one of {found['best_of_last_third']:.2f}"
    )


def _draw_across(found: Found, beside: Found | None, arrays: Arrays) -> list[Drawn]:
    values = _matrix(found)
    sides = [[i for i, tap in enumerate(found[f"{side}_of_matrix"]) if is_block(tap)] for side in ("rows", "columns")]
    path = []
    for row in sides[0]:  # sub-layers would make the line jump between two kinds of layer
        known = [(values[row, column], column) for column in sides[1] if np.isfinite(values[row, column])]
        path += [(row, max(known)[1])] if known else []
    chart = charts.heatmap(
        values, title="CKA of the layers of two models, and the best match of each", path=path,
        rows=spans(found["rows_of_matrix"]), columns=spans(found["columns_of_matrix"]), y_title=found["models"][0],
        x_title=found["models"][1], low=_floor(values),
    )  # fmt: skip
    own, depth = (np.array([place[i] for place in path]) / max(values.shape[i] - 1, 1) for i in (0, 1))
    one, other = found["models"]
    match = charts.lines(
        [Line(f"depth in {other}", own, depth, has_points=True),
         Line("its CKA", own, [values[place] for place in path], has_points=True)],
        title="where each block finds its match", x_title=f"depth in {one}", x_is_share=True, y_range=(0.0, 1.02),
    )  # fmt: skip
    panels = [
        Panel(chart, "CKA across; the line joins best matches", cells=_cells(found)),
        Panel(match, "The best match of each block"),
    ]
    rows = found["same_name"]
    if len(rows) < 2:
        return [Drawn(panels, paper="P2-fig2")]
    same = charts.lines(
        [Line("CKA", range(1, len(rows) + 1), column(rows, "cka"), has_points=True)],
        title="likeness of blocks of the same number", x_title=BLOCK_AXIS, x_is_whole=True, y_range=(0.0, 1.05),
    )  # fmt: skip
    same_panels = [Panel(same, "Blocks of the same number, CKA")]
    return [Drawn(panels, paper="P2-fig2"), Drawn(same_panels, paper="P2-fig12")]


ACROSS = Measure(
    name="similarity-across",
    sentence="How alike the layers of two models see the same images, and which layer matches which.",
    figure="P2 figures 2, 12, G.1 and H.1",
    saw="Half of a ResNet's layers are like the lowest quarter of a ViT's; the top of a ViT is like no ResNet layer.",
    start=_Across,
    says=_say_across,
    taps=TAPS,
    why_not=needs_batches,
    caution=caution_of_likeness,
    least_images=ENOUGH_IMAGES,
    is_pair=True,
    rows=_long,
    draw=_draw_across,
    method=lambda found: (
        _cka_method(found) + " The line joins, for each block, the block of the other model most like it."
    ),
    rank=7,
)


class _Heads(_Grams):
    """Heads of the first block, and the first units of a ResNet."""

    def __init__(self, subject: Subject, other: Subject | None = None):
        super().__init__(subject, other)
        self.distances = Averages()

    def see(self, tap: str, x: Tensor, side: int = 0) -> None:
        if not is_whole(len(x), self.largest):
            return
        self.size = len(x)
        if side == 1 and is_block(tap) and "units" in tap:
            self.batch[f"1:{tap}"] = self.gram(tap, x, side)
        elif side == 0 and tap == "blocks.0.attention.weights":
            self.distances.gather(tap, attention_distance(x.float(), self.subject.grid, self.subject.patch))
        elif side == 0 and tap == "blocks.0.attention.per_head":
            patches = x[:, :, self.subject.prefix :].detach()  # B H N d
            self.batch |= {f"head {h}": centred_gram(patches[:, h]) for h in range(patches.shape[1])}

    def update(self) -> None:
        if self.batch:
            self.distances.update()
        super().update()

    def drop(self) -> None:
        super().drop()
        self.distances.drop()

    def finish(self) -> Found:
        distance = self.distances.mean("blocks.0.attention.weights")  # H
        order = distance.argsort().tolist()
        width = max(len(order) // 4, 1)
        windows = {str(i): order[i : i + width] for i in range(len(order) - width + 1)}
        columns = self.layers(1)
        parts = {name: [f"head {h}" for h in heads] for name, heads in windows.items()}
        joined = self.likeness.joined(parts | {name: [name] for name in columns})
        matrix = joined.matrix(list(windows), columns)
        far = [float(distance[heads].mean()) for heads in windows.values()]
        rows = [
            {"heads": " ".join(map(str, heads)), "distance_px": plain(far[i]), "layer": column[2:], "cka": plain(value)}
            for i, heads in enumerate(windows.values())
            for column, value in zip(columns, matrix[i], strict=True)
        ]
        known = [j for j in range(len(columns)) if all(row[j] is not None for row in matrix)]
        trend = [rank_correlation(far, [row[j] for row in matrix]) for j in known] if len(far) > 2 else []
        names = [columns[j][2:] for j in known]
        return names_of(self) | {
            "heads": len(order),
            "heads_joined": width,
            "rows": rows,
            "rank_correlation": dict(zip(names, plain(trend), strict=bool(trend))),
        }


def _say_heads(found: Found) -> str:
    trends = [value for value in found["rank_correlation"].values() if value is not None]
    if found["heads"] < ENOUGH_HEADS:
        return f"the first block has {counted(found['heads'], 'head')}, too few for a trend"
    if not trends:
        return "heads of the first block differ in nothing that could be ranked"
    trend = sum(trends) / len(trends)
    if abs(trend) < NO_TREND_BELOW:
        text = (
            f"how far heads of the first block look hardly tells how much they are like layers of {found['models'][1]}"
        )
    else:
        how = "less" if trend < 0 else "more"
        text = f"the further heads of the first block look, the {how} they are like layers of {found['models'][1]}"
    return f"{text} (rank correlation {trend:.2f})"


def _joined(heads: int) -> str:
    return "each by itself" if heads == 1 else f"{heads} neighbours taken together as one representation"


def _heads_why_not(subject: Subject, other: Subject | None) -> str | None:
    if (why := needs_batches(subject)) is not None:
        return why
    assert other is not None
    if not isinstance(subject.model, ViT):
        return f"{subject.name} has no heads; name the ViT first and the ResNet with --against"
    if "bit" not in other.families and "stem" not in other.families:
        return f"{other.name} has no ResNet layers; name a BiT or a hybrid with --against"
    return None


def _draw_heads(found: Found, beside: Found | None, arrays: Arrays) -> list[Drawn]:
    layers = list(dict.fromkeys(row["layer"] for row in found["rows"]))
    chosen = list(dict.fromkeys((layers[0], layers[len(layers) // 2], layers[-1]))) if layers else []
    series = []
    for layer in chosen:
        rows = [row for row in found["rows"] if row["layer"] == layer]
        series.append(Line(block_name(layer), column(rows, "distance_px"), column(rows, "cka"), has_points=True))
    chart = charts.lines(
        series, title="likeness of heads with ResNet layers by distance", x_title="mean distance of the heads, pixels"
    )
    return [Drawn([Panel(chart, f"CKA with layers of {found['models'][1]}")], paper="P2-fig5")]


HEADS_AGAINST_LAYERS = Measure(
    name="heads-against-layers",
    sentence="Whether heads that look locally see what the low layers of a ResNet see.",
    figure="P2 figure 5",
    saw="Local heads of the first block are like low ResNet layers; global ones are not.",
    start=_Heads,
    says=_say_heads,
    taps={
        "vit": ("blocks.0.attention.weights", "blocks.0.attention.per_head"),
        "stem": ("stem.stages.[01].units.*.output",),
        "bit": ("stages.[01].units.*.output",),
    },
    why_not=_heads_why_not,
    caution=caution_of_likeness,
    least_images=ENOUGH_IMAGES,
    is_pair=True,
    draw=_draw_heads,
    method=lambda found: (
        f"Heads of the first block sorted by distance, {_joined(found['heads_joined'])}; unbiased linear CKA with each "
        "unit of the first two stages."
    ),
    rank=15,
    says_little=lambda found: found["heads"] < ENOUGH_HEADS,
)
