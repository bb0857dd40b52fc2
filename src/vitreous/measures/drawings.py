"""What each inspection found, drawn as the papers draw it. A measure that is not in DRAWINGS is shown as its table.

A drawing is a function of what was found, of what was found in the model beside it (for a common scale), and of arrays.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vitreous.measures.layer_similarity import is_block
from vitreous.measures.measure import Found
from vitreous.report import charts
from vitreous.report.charts import Bar, Line, Span, Tile
from vitreous.report.colours import colours
from vitreous.report.files import Panel

__all__ = ["DRAWINGS", "Drawn", "overlaid", "rgb", "spans"]

Arrays = Mapping[str, NDArray[Any]]
BLOCKS, LAYERS = "block", "layer, from first to last"
LEAST_SHADE = 0.5  # where no number is below it, a scale of likeness begins here
DIM, LIT = 0.8, 0.25  # share of a map's colour over the picture, where least and where most is
OVERLAY = 112  # pixels of a small picture's longer side
SHOWN = 8  # maps in a row of tiles


@dataclass(frozen=True)
class Drawn:
    """One figure. paper: where it stands there, such as P1-fig7; empty where the papers have none."""

    paper: str
    panels: Sequence[Panel]


def spans(names: Sequence[str]) -> list[Span]:
    """Neighbouring taps of one block or unit, under its name."""
    out: list[Span] = []
    for name in map(_block_name, names):
        if out and out[-1].name == name:
            out[-1] = Span(name, out[-1].count + 1)
        else:
            out.append(Span(name))
    return out


def _block_name(tap: str) -> str:
    parts = tap.removeprefix("stem.").split(".")
    before = "stem " if tap.startswith("stem.") else ""
    if parts[0] == "blocks" and len(parts) > 1:
        return f"block {parts[1]}"
    if parts[0] == "stages" and len(parts) > 3:
        return f"{before}unit {parts[1]}.{parts[3]}"
    return before + parts[-1]


def rgb(images: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Pictures of any channels as three.  B C H W -> B H W 3"""
    moved = images.transpose(0, 2, 3, 1)
    return moved[..., :3] if moved.shape[-1] > 2 else np.repeat(moved[..., :1], 3, -1)


def _small(picture: NDArray[np.uint8], side: int = OVERLAY) -> NDArray[np.uint8]:
    h, w = picture.shape[:2]
    factor = side / max(h, w)
    size = max(round(w * factor), 1), max(round(h * factor), 1)
    way = Image.Resampling.BOX if factor < 1 else Image.Resampling.NEAREST
    return np.asarray(Image.fromarray(picture).resize(size, way))


def overlaid(
    picture: NDArray[np.uint8],
    heat: NDArray[np.floating],
    *,
    side: int = OVERLAY,
    lit: float = LIT,
    tails: float = 0.0,
) -> NDArray[np.uint8]:
    """The picture, dark where the map is low and lit where it is high, on the map's own scale.  H W 3, h w -> H W 3.

    side: pixels of the longer side.  lit: share of the map's colour where most is.  tails: share of the map beyond each
    end of the scale, since one stray patch would dim all others.
    """
    below = _small(picture, side).astype(np.float32)
    size = below.shape[1], below.shape[0]
    low, high = map(float, np.quantile(heat, (tails, 1 - tails)))
    share = ((heat - low) / (high - low) if high > low else np.zeros_like(heat)).clip(0, 1).astype(np.float32)
    light = np.clip(np.asarray(Image.fromarray(share).resize(size, Image.Resampling.BILINEAR)), 0, 1)
    mix = (DIM + (lit - DIM) * light)[..., None]
    return ((1 - mix) * below + mix * colours(light, 1.0)).round().astype(np.uint8)


def _column(rows: Sequence[Mapping[str, Any]], key: str) -> NDArray[np.float64]:
    return np.array([math.nan if row.get(key) is None else row[key] for row in rows], np.float64)


def _band(rows: Sequence[Mapping[str, Any]], key: str, error: str) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Twice the standard error around the values."""
    value, spread = _column(rows, key), np.nan_to_num(_column(rows, error))
    return value - 2 * spread, value + 2 * spread


def _top(*parts: Sequence[float | None] | NDArray[np.float64] | None) -> float:
    """The largest of all numbers, with room above; for charts that stand side by side."""
    known = [float(v) for part in parts if part is not None for v in part if v is not None and math.isfinite(v)]
    return 1.16 * max(known, default=1.0) or 1.0


def _rows(found: Found | None) -> list[dict[str, Any]]:
    return [] if found is None else list(found.get("rows", []))


# Attention ---------------------------------------------------------------------------------------------------------


def _distance(found: Found, beside: Found | None, arrays: Arrays) -> list[Drawn]:
    rows = found["rows"]
    every = [row["distance_px"] for row in [*rows, *_rows(beside)]]
    span = (0.0, _top(every, [found["uniform_px"]], [beside["uniform_px"]] if beside else None))
    layers = sorted({row["layer"] for row in rows})
    level = (found["uniform_px"], f"everywhere alike: {found['uniform_px']:.0f} px")
    depth = charts.lines(
        [
            Line("a head", _column(rows, "layer"), _column(rows, "distance_px"), is_dots=True),
            Line("mean of heads", layers, found["by_layer_px"]),
        ],
        title="how far each head looks, by block", x_title=BLOCKS, x_is_whole=True, level=level, y_range=span,
    )  # fmt: skip
    series = []
    for layer in dict.fromkeys((layers[0], layers[len(layers) // 2], layers[-1])):
        own = sorted((row for row in rows if row["layer"] == layer), key=lambda row: row["distance_px"])
        low, high = _band(own, "distance_px", "error_px")
        places = np.arange(1, len(own) + 1)
        series.append(Line(f"block {layer}", places, _column(own, "distance_px"), low, high, has_points=True))
    ranked = charts.lines(
        series, title="how far the heads of three blocks look, sorted", x_title="head, the nearest first",
        x_is_whole=True, level=level, y_range=span,
    )  # fmt: skip
    return [
        Drawn("P1-fig7", [Panel(depth, "Mean attention distance, pixels")]),
        Drawn("P2-fig3", [Panel(ranked, "The same, heads sorted, pixels")]),
    ]


def _entropy(found: Found, beside: Found | None, arrays: Arrays) -> list[Drawn]:
    rows = found["rows"]
    layers = sorted({row["layer"] for row in rows})
    largest = found["largest_nats"]
    chart = charts.lines(
        [
            Line("a head", _column(rows, "layer"), _column(rows, "entropy_nats"), is_dots=True),
            Line("mean of heads", layers, found["by_layer_nats"]),
        ],
        title="entropy of attention by block", x_title=BLOCKS, x_is_whole=True,
        level=(largest, f"everywhere alike: {largest:.2f}"),
        y_range=(0.0, _top([largest], [beside["largest_nats"]] if beside else None)),
    )  # fmt: skip
    return [Drawn("", [Panel(chart, "Entropy of attention, nats")])]


def _class(found: Found, beside: Found | None, arrays: Arrays) -> list[Drawn]:
    by_layer = found["by_layer"]
    places = range(len(by_layer))
    named = {"to itself": "to_itself", "to patches": "to_patches", "from patches": "from_patches"}
    chart = charts.lines(
        [Line(name, places, _column(by_layer, key)) for name, key in named.items()],
        title="attention of the class token by block", x_title=BLOCKS, x_is_whole=True, is_share=True,
        y_range=(0.0, 1.0),
    )  # fmt: skip
    return [Drawn("", [Panel(chart, "Share of the class token's attention")])]


def _heads(found: Found, beside: Found | None, arrays: Arrays) -> list[Drawn]:
    rows = found["rows"]
    chart = charts.lines(
        [Line("mean of pairs", _column(rows, "layer"), _column(rows, "mean_cosine")),
         Line("most alike pair", _column(rows, "layer"), _column(rows, "largest_cosine"))],
        title="likeness of heads by block", x_title=BLOCKS, x_is_whole=True, y_range=(0.0, 1.05),
    )  # fmt: skip
    panels = [Panel(chart, "Cosine between heads of a block")]
    matrices = [np.asarray(matrix, np.float64) for matrix in found["heads"]]
    if len(matrices[0]) > 1:
        pictures = [Tile(f"block {row['layer']}", charts.shaded(m)) for row, m in zip(rows, matrices, strict=True)]
        columns = min(6, len(pictures))
        panels.append(Panel(charts.tiles(pictures, title="cosine of every two heads", columns=columns), "Head by head"))
    return [Drawn("", panels)]


def _maps(found: Found, beside: Found | None, arrays: Arrays) -> list[Drawn]:
    if "maps" not in arrays:
        return []
    small = tuple(found["pooled_to"])
    seen = rgb(arrays["images"])
    maps, peaks = arrays["maps"][:, -1].astype(np.float32), arrays["peaks"][:, -1].astype(np.float32)
    whole = (maps * peaks[..., None] / 255).mean(1)  # B Q K, over heads
    front = found["front_tokens"]
    rows = whole[:, 0] if front else whole.mean(1)
    pictures = [
        Tile("", shown)
        for picture, row in zip(seen, rows, strict=True)
        for shown in (_small(picture), overlaid(picture, row.reshape(small)))
    ]
    whose = "where the first token looks, last block" if front else "where the patches look, last block"
    chart = charts.tiles(pictures, title=whose, columns=4, heads=["image", "looks at"] * 2)
    return [Drawn("P1-fig6", [Panel(chart, whose[0].upper() + whose[1:])])]


def _rollout(found: Found, beside: Found | None, arrays: Arrays) -> list[Drawn]:
    panels = []
    if "rollout" in arrays:
        ways = {"rollout": "rollout", "rollout_plain": "no residual", "rollout_max": "max heads", "rollout_min": "min"}
        known = {key: word for key, word in ways.items() if key in arrays}
        pictures = []
        for i, picture in enumerate(rgb(arrays["images"])):
            pictures.append(Tile("", _small(picture)))
            pictures += [Tile("", overlaid(picture, arrays[key][i].astype(np.float32))) for key in known]
        heads = ["image", *known.values()]
        chart = charts.tiles(pictures, title="attention rollout over images", columns=len(heads), heads=heads)
        panels.append(Panel(chart, "Where the answer came from"))
    mean = np.asarray(found["mean_map"], np.float64)
    heat = charts.heatmap(
        mean * mean.size, title="mean rollout over images", rows=_numbers(mean.shape[0]),
        columns=_numbers(mean.shape[1]), y_title="row", x_title="column", high=max(float(mean.max()) * mean.size, 1.0),
        side=220,
    )  # fmt: skip
    return [Drawn("P1-fig6", [*panels, Panel(heat, "Mean over images; 1 is an even share")])]


def _numbers(count: int) -> list[Span]:
    return [Span(str(i)) for i in range(count)]


# Embeddings --------------------------------------------------------------------------------------------------------


def _filters(found: Found, beside: Found | None, arrays: Arrays) -> list[Drawn]:
    panels = []
    if found["components"] is not None:
        channels, tall, wide = found["shape"]
        pictures = []
        for component in found["components"]:
            numbers = np.asarray(component, np.float64)
            picture = _filter_picture(numbers, channels, tall, wide)
            pictures.append(Tile("", picture))
        panels.append(
            Panel(charts.tiles(pictures, title="leading components of the patch filters", columns=7), "Leading shapes")
        )
    explained = np.cumsum(_column(found["rows"], "explained"))
    chart = charts.lines(
        [Line("", np.arange(1, len(explained) + 1), explained)],
        title="variance held by components", x_title="number of components", is_share=True, y_range=(0.0, 1.0),
        mark=(28, "28 components") if len(explained) > 28 else None,
    )  # fmt: skip
    return [Drawn("P1-fig7", [*panels, Panel(chart, "Share of the variance held by the first components")])]


def _filter_picture(numbers: NDArray[np.float64], channels: int, tall: int, wide: int) -> NDArray[np.uint8]:
    """One filter in the order of a flattened patch: channels, rows, columns; grey is nothing."""
    shaped = numbers.reshape(channels, tall, wide).transpose(1, 2, 0)
    shown = shaped[..., :3] if channels > 2 else np.repeat(shaped[..., :1], 3, -1)
    top = max(float(np.abs(shown).max()), 1e-12)
    return ((shown / top + 1) * 127.5).round().astype(np.uint8)


def _positions(found: Found, beside: Found | None, arrays: Arrays) -> list[Drawn]:
    tiles = np.asarray(found["tiles"], np.float64)  # rows columns h w
    rows, columns, h, w = tiles.shape
    mosaic = np.full((rows * (h + 1) - 1, columns * (w + 1) - 1), np.nan)
    for r in range(rows):
        for c in range(columns):
            mosaic[r * (h + 1) : r * (h + 1) + h, c * (w + 1) : c * (w + 1) + w] = tiles[r, c]
    step = found["tile_step"]
    names = [[Span(str(i * step), n + 1) for i in range(count)] for count, n in ((rows, h), (columns, w))]
    chart = charts.heatmap(
        mosaic, title="cosine of position vectors", rows=names[0], columns=names[1], y_title="row of the patch",
        x_title="column of the patch", low=-1.0, high=1.0, side=290,
    )  # fmt: skip
    return [Drawn("P1-fig7", [Panel(chart, "Cosine of each place with all places")])]


def _change(found: Found, beside: Found | None, arrays: Arrays) -> list[Drawn]:
    named = {"patch filters: the same space": "filter_space", "positions: the same pattern": "position_pattern"}
    rows = [Bar(name, found[key]) for name, key in named.items() if found[key] is not None]
    if not rows:
        return []
    return [Drawn("P1-fig10", [Panel(charts.bars(rows, title="what two models share"), "What the two models share")])]


# Likeness ----------------------------------------------------------------------------------------------------------


def _matrix(found: Found) -> NDArray[np.float64]:
    cka = [[math.nan if value is None else value for value in row] for row in found["cka"]]
    return np.asarray(cka, np.float64)


def _floor(*matrices: NDArray[np.float64]) -> float:
    known = np.concatenate([matrix[np.isfinite(matrix)] for matrix in matrices])
    return LEAST_SHADE if len(known) and known.min() >= LEAST_SHADE else 0.0


def _similarity(found: Found, beside: Found | None, arrays: Arrays) -> list[Drawn]:
    values = _matrix(found)
    names = spans(found["rows_of_matrix"])
    chart = charts.heatmap(
        values, title="CKA of all pairs of layers", rows=names, columns=names, y_title="layer", x_title="layer",
        low=_floor(*([values] if beside is None else [values, _matrix(beside)])),
    )  # fmt: skip
    return [Drawn("P2-fig1", [Panel(chart, "CKA of every two layers")])]


def _across(found: Found, beside: Found | None, arrays: Arrays) -> list[Drawn]:
    values = _matrix(found)
    sides = [[i for i, tap in enumerate(found[f"{side}_of_matrix"]) if is_block(tap)] for side in ("rows", "columns")]
    path = []
    for row in sides[0]:  # sub-layers would make the line jump between two kinds of layer
        known = [(values[row, column], column) for column in sides[1] if np.isfinite(values[row, column])]
        path += [(row, max(known)[1])] if known else []
    chart = charts.heatmap(
        values, title="CKA of the layers of two models, and the best match of each", path=path,
        rows=spans(found["rows_of_matrix"]), columns=spans(found["columns_of_matrix"]), y_title="this model",
        x_title="the other model", low=_floor(values),
    )  # fmt: skip
    own, depth = (np.array([place[i] for place in path]) / max(values.shape[i] - 1, 1) for i in (0, 1))
    match = charts.lines(
        [Line("depth of the match", own, depth, has_points=True),
         Line("its CKA", own, [values[place] for place in path], has_points=True)],
        title="where each block finds its match", x_title="depth in this model", x_is_share=True, y_range=(0.0, 1.02),
    )  # fmt: skip
    out = [
        Drawn(
            "P2-fig2",
            [Panel(chart, "CKA across; the line joins best matches"), Panel(match, "The best match of each block")],
        )
    ]
    if len(found["same_name"]) > 1:
        rows = found["same_name"]
        same = charts.lines(
            [Line("CKA", range(len(rows)), _column(rows, "cka"), has_points=True)],
            title="likeness of blocks of the same number", x_title=BLOCKS, x_is_whole=True, y_range=(0.0, 1.05),
        )  # fmt: skip
        out.append(Drawn("P2-fig12", [Panel(same, "Blocks of the same number, CKA")]))
    return out


def _heads_layers(found: Found, beside: Found | None, arrays: Arrays) -> list[Drawn]:
    layers = list(dict.fromkeys(row["layer"] for row in found["rows"]))
    chosen = list(dict.fromkeys((layers[0], layers[len(layers) // 2], layers[-1]))) if layers else []
    series = []
    for layer in chosen:
        rows = [row for row in found["rows"] if row["layer"] == layer]
        name = _block_name(layer)
        series.append(Line(name, _column(rows, "distance_px"), _column(rows, "cka"), has_points=True))
    chart = charts.lines(
        series, title="likeness of heads with ResNet layers by distance", x_title="mean distance of the heads, pixels"
    )
    return [Drawn("P2-fig5", [Panel(chart, "CKA with layers of the ResNet")])]


# The stream, and what is read from it ------------------------------------------------------------------------------


def _skips(found: Found, beside: Found | None, arrays: Arrays) -> list[Drawn]:
    rows = found["rows"]
    places = np.arange(len(rows)) / 2 if all(row["branch"] in ("attention", "mlp") for row in rows) else None
    x = np.arange(len(rows)) if places is None else places
    x_title = LAYERS if places is None else "block (attention, then MLP)"
    low, high = _band(rows, "patches_ratio", "patches_error")
    patches = Line("patches", x, _column(rows, "patches_ratio"), np.maximum(low, 1e-6), high)
    own = Line("class token", x, _column(rows, "class_ratio"))
    has_class = any(row["class_ratio"] is not None for row in rows)
    every = [row[key] for row in [*rows, *_rows(beside)] for key in ("patches_ratio", "class_ratio") if row[key]]
    span = (0.8 * min(every), 1.25 * max(every)) if every else None
    ratio = charts.lines(
        [patches, *([own] if has_class else [])], title="norm of the skip over norm of the branch", x_title=x_title,
        is_log=True, x_is_whole=True, y_range=span,
    )  # fmt: skip
    cosine = charts.lines(
        [Line("patches", x, _column(rows, "patches_cosine")),
         *([Line("class token", x, _column(rows, "class_cosine"))] if has_class else [])],
        title="cosine of skip and branch", x_title=x_title, x_is_whole=True, level=(0.0, ""), y_range=(-1.0, 1.0),
    )  # fmt: skip
    panels = [Panel(ratio, "Norm of skip over norm of branch"), Panel(cosine, "Cosine of skip and branch")]
    shown = _token_ratios(found)
    if places is not None and shown is not None:
        both = [shown, *([other] if beside and (other := _token_ratios(beside)) is not None else [])]
        low_end, high_end = np.nanpercentile(np.concatenate([each.ravel() for each in both]), (1, 99))
        heat = charts.heatmap(
            shown, title="skip ratio of every token", rows=spans([row["layer"] for row in rows]),
            columns=_every(shown.shape[1]), y_title="half-block", x_title="token", low=float(low_end),
            high=float(high_end) + 1e-6,
        )  # fmt: skip
        panels.append(Panel(heat, "Every token; log₁₀ of the ratio"))
    return [Drawn("P2-fig7", panels)]


def _token_ratios(found: Found) -> NDArray[np.float64] | None:
    """log₁₀ of each half-block's ratio for every token; None where there are too many, or places of other sizes."""
    by_token = [each["ratio"] for each in found["by_token"]]
    if not by_token or not all(by_token) or len({len(each) for each in by_token}) > 1:
        return None
    table = np.asarray([[math.nan if v is None else v for v in each] for each in by_token], np.float64)
    return np.log10(np.maximum(table, 1e-6)) if np.isfinite(table).any() else None


def _every(count: int) -> list[Span]:
    """Numbers along an axis of many, about seven of them."""
    step = max(count // 7, 1)
    begins = [i for i in range(0, count, step) if i == 0 or count - i >= step // 2]
    return [Span(str(a), b - a) for a, b in pairwise([*begins, count])]


def _localisation(found: Found, beside: Found | None, arrays: Arrays) -> list[Drawn]:
    pictures, top = [], 1e-6
    heats = [(each, np.asarray(each["cka"], np.float64)) for each in found["heat"]]
    top = max([top, *(float(heat.max()) for _, heat in heats)])
    for each, heat in heats:
        pictures.append(Tile(f"row {each['row']}, col {each['column']}", charts.shaded(heat, 0.0, top)))
    maps = charts.tiles(pictures, title="likeness of four tokens with every patch", columns=max(len(pictures), 1))
    rows = [row for row in found["rows"] if row["by"] == "cka"]
    words = {"all": "all tokens", "interior": "inside", "edge": "at the edge"}
    bars = [Bar(f"{words[row['tokens']]}: own patch is the most alike", row["hit"]) for row in rows]
    bars += [
        Bar(f"{words[row['tokens']]}: others less alike than the own", row["percentile"], is_ours=False) for row in rows
    ]
    return [
        Drawn(
            "P2-fig9",
            [
                Panel(maps, f"CKA of four last tokens with each patch, 0 to {top:.2f}"),
                Panel(charts.bars(bars, title="how many tokens keep their place"), "Do tokens keep their place?"),
            ],
        )
    ]


def _probes(found: Found, beside: Found | None, arrays: Arrays) -> list[Drawn]:
    rows = found["rows"]
    words = {"cls": "class token", "gap": "mean patch", "middle": "one patch"}
    order = {layer: i for i, layer in enumerate(dict.fromkeys(row["layer"] for row in rows))}
    is_vit = all(layer.startswith("blocks.") for layer in order)
    few, full = [], []
    for kind, word in words.items():
        own = [row for row in rows if row["tokens"] == kind]
        if not own:
            continue
        x = [order[row["layer"]] for row in own]
        seeds = np.asarray([row["ten_shot_seeds"] for row in own], np.float64)
        few.append(Line(word, x, _column(own, "ten_shot"), seeds.min(1), seeds.max(1)))
        full.append(Line(word, x, _column(own, "linear")))
    how: dict[str, Any] = {"x_title": BLOCKS if is_vit else LAYERS, "x_is_whole": True, "is_share": True}
    how |= {"y_range": (0.0, 1.0), "level": (found["chance"], "chance")}
    shots = charts.lines(few, title=f"accuracy of {found['shots']}-shot probes by layer", **how)
    linear = charts.lines(full, title="accuracy of linear probes by layer", **how)
    return [
        Drawn("P2-fig13", [Panel(shots, f"Right by {found['shots']} shots; bands: over seeds"),
                           Panel(linear, f"Right by a fit on {found['fitted_on']:,} images")]),
    ]  # fmt: skip


def _token_probes(found: Found, beside: Found | None, arrays: Arrays) -> list[Drawn]:
    layers, pictures = found["layers"], []
    for layer in layers:
        own = [row for row in found["rows"] if (row["layer"], row["token"]) == (layer["layer"], "patch")]
        low, high = layer["lowest"], layer["highest"]
        name = _block_name(f"{layer['layer']}.output").replace("stem unit", "stem")
        shades = charts.shaded(_column(own, "ten_shot").reshape(layer["asked"]), low, high)
        pictures.append(Tile(f"{name}: {100 * low:.0f}–{100 * high:.0f} %", shades))
    maps = charts.tiles(pictures, title="accuracy of a probe on every place", columns=min(3, len(pictures)))
    depth = _column(layers, "depth")
    low, high = _column(layers, "lowest"), _column(layers, "highest")
    series = [Line("one place", depth, _column(layers, "mean"), low, high, has_points=True)]
    if any(layer["class_token"] is not None for layer in layers):
        series.append(Line("class token", depth, _column(layers, "class_token"), has_points=True))
    chart = charts.lines(
        series, title=f"accuracy of {found['shots']}-shot probes on single tokens", x_title="depth", x_is_share=True,
        is_share=True, y_range=(0.0, 1.0), level=(found["chance"], "chance"),
    )  # fmt: skip
    return [
        Drawn("P2-figD.4", [Panel(maps, "Right by place, each map on its own scale"),
                            Panel(chart, "Mean of places; band: lowest to highest")]),
    ]  # fmt: skip


def _lens(found: Found, beside: Found | None, arrays: Arrays) -> list[Drawn]:
    rows = found["rows"]
    x = _column(rows, "layer")
    low, high = _band(rows, "same_answer", "same_answer_error")
    series = [
        Line("same answer", x, _column(rows, "same_answer"), np.clip(low, 0, 1), np.clip(high, 0, 1)),
        Line("chance given it", x, _column(rows, "chance_of_answer")),
    ]
    if any(row["accuracy"] is not None for row in rows):
        series.append(Line("right", x, _column(rows, "accuracy")))
    chart = charts.lines(
        series, title="the final answer, read early", x_title=BLOCKS, x_is_whole=True, is_share=True, y_range=(0.0, 1.0)
    )
    return [Drawn("", [Panel(chart, "Share of images")])]


def _field(found: Found, beside: Found | None, arrays: Arrays) -> list[Drawn]:
    rows = found["rows"]
    after = [row for row in rows if row["when"] == "after"]
    halves = {"attention.output": "attention", "mlp.output": "MLP", "branch": "branch"}
    alone = {word: [row for row in rows if row["tap"].endswith(f".{end}")] for end, word in halves.items()}
    alone = {word: [row for row in own if row["when"] == "before"] for word, own in alone.items()}
    if alone["branch"] and alone["MLP"]:  # a hybrid: four lines would be one too many
        alone = {"branches": [row for row in rows if row["when"] == "before"]}
    whole = found["whole_image_radius_px"]
    span = (0.0, _top([row["radius_px"] for row in [*rows, *_rows(beside)]], [whole]))
    series = []
    for word, own in (("after the skip", after), *alone.items()):
        if own:
            low, high = _band(own, "radius_px", "error_px")
            x = np.linspace(0, 1, len(own)) if len(own) > 1 else np.zeros(1)
            series.append(Line(word, x, _column(own, "radius_px"), low, high))
    chart = charts.lines(
        series, title="radius that holds half of the gradient", x_title="depth", x_is_share=True,
        level=(whole, f"whole image alike: {whole:.0f} px"), y_range=span,
    )  # fmt: skip
    panels = [Panel(chart, "Radius of half of the field, pixels")]
    known = [row for row in after if row["tap"] in found["maps"]]
    picked = [known[i] for i in sorted({round(v) for v in np.linspace(0, len(known) - 1, SHOWN)})] if known else []
    pictures = []
    for row in picked:
        field = np.asarray(found["maps"][row["tap"]], np.float64)
        pictures.append(Tile(_block_name(row["tap"]), charts.shaded((field / max(float(field.max()), 1e-30)) ** 0.25)))
    if pictures:
        maps = charts.tiles(pictures, title="receptive fields of the centre", columns=min(4, len(pictures)))
        panels.append(Panel(maps, "What the centre depends on (fourth root)"))
    return [Drawn("P2-fig6", panels)]


def _removal(found: Found, beside: Found | None, arrays: Arrays) -> list[Drawn]:
    rows = found["rows"]
    is_vit = all(row["block"].startswith("blocks.") for row in rows)
    named = {"same answer": "same_answer", "likeness of features": "features_cka"}
    series = [
        Line(name, range(len(rows)), _column(rows, key), has_points=True)
        for name, key in named.items()
        if any(row[key] is not None for row in rows)
    ]
    chart = charts.lines(
        series, title="what is left without the skips of one block", is_share=True, x_is_whole=True,
        x_title="block that lost its skips" if is_vit else "unit that lost its skip", y_range=(0.0, 1.0),
    )  # fmt: skip
    return [Drawn("", [Panel(chart, "What is left without its skips")])]


def _shift(found: Found, beside: Found | None, arrays: Arrays) -> list[Drawn]:
    rows = found["rows"]
    x = _column(rows, "shift_px")
    low, high = _band(rows, "feature_cosine", "feature_cosine_error")
    series = [Line("cosine of features", x, _column(rows, "feature_cosine"), low, high)]
    if any(row["same_answer"] is not None for row in rows):
        series.append(Line("same answer", x, _column(rows, "same_answer")))
    every = [row[key] for row in [*rows, *_rows(beside)] for key in ("feature_cosine", "same_answer")]
    least = min((v for v in every if v is not None), default=0.0)
    chart = charts.lines(
        series, title="what a shift changes", x_title="shift, pixels", x_is_whole=True,
        y_range=(math.floor(10 * max(least - 0.02, -1)) / 10, 1.02),
    )  # fmt: skip
    return [Drawn("", [Panel(chart, "What stays under a shift")])]


DRAWINGS: dict[str, Callable[[Found, Found | None, Arrays], list[Drawn]]] = {
    "attention-distance": _distance,
    "attention-entropy": _entropy,
    "class-attention": _class,
    "head-likeness": _heads,
    "attention-maps": _maps,
    "rollout": _rollout,
    "patch-filters": _filters,
    "positions": _positions,
    "embeddings-change": _change,
    "similarity": _similarity,
    "similarity-across": _across,
    "heads-against-layers": _heads_layers,
    "skip-ratio": _skips,
    "localisation": _localisation,
    "probes": _probes,
    "token-probes": _token_probes,
    "logit-lens": _lens,
    "receptive-field": _field,
    "skip-removal": _removal,
    "shift": _shift,
}
