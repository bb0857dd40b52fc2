"""How far, how widely and how alike the heads look (figures 7 and 11 of arXiv 2010.11929; 3 and 4 of arXiv 2108.08810).

B images   H heads   T tokens; the last N = h·w are the patches
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitreous.measures.drawing import (
    BLOCK_AXIS,
    banded,
    blocks_of,
    both_rows,
    column,
    lines_of,
    looks_of,
    over_photos,
    share_of_look,
    top_with_room,
)
from vitreous.measures.measure import PLURAL, Arrays, Averages, Drawn, Found, Measure, number_of, on_few_places, plain
from vitreous.measures.subject import Subject, needs_attention, needs_class_token
from vitreous.report import charts
from vitreous.report.charts import Line, Tile
from vitreous.report.colours import colours
from vitreous.report.files import Panel
from vitreous.report.marks import Chart
from vitreous.words import counted

Pixels = float | tuple[float, float]  # of a patch; two numbers if rows and columns differ


def patch_distances(grid: tuple[int, int], patch: Pixels) -> Tensor:
    """‖pᵢ − pⱼ‖ in pixels, between the places of a grid in raster order.  Returns N N."""
    tall, wide = patch if isinstance(patch, tuple) else (patch, patch)
    rows, columns = (torch.arange(n, dtype=torch.float64) for n in grid)
    places = torch.cartesian_prod(tall * rows, wide * columns).reshape(-1, 2)  # N 2
    return (places[:, None] - places).square().sum(-1).sqrt()


def uniform_distance(grid: tuple[int, int], patch: Pixels, *, prefix: int = 0) -> float:
    """The distance of a head with even attention; prefix: tokens in front that take their share."""
    places = grid[0] * grid[1]
    return float(patch_distances(grid, patch).sum()) / (places * (places + prefix))


def attention_distance(weights: Tensor, grid: tuple[int, int], patch: Pixels, *, renormalise: bool = False) -> Tensor:
    """How far each head looks, in pixels (arXiv 2010.11929, figure 7).

        distance[b, h] = mean over patches i of  Σⱼ weights[b, h, i, j] · ‖pᵢ − pⱼ‖

    weights: B H T T.  Tokens in front are left out, as queries and as keys; what a patch gives them counts as distance
    0, or, with `renormalise`, not at all.  patch: pixels from one patch to the next.  Returns B H.
    """
    n, tokens = grid[0] * grid[1], weights.shape[-1]
    pixels = torch.zeros(tokens, tokens, dtype=torch.float64)
    pixels[-n:, -n:] = patch_distances(grid, patch)
    pixels = pixels.to(weights)
    if renormalise:
        per_query = (weights * pixels).sum(-1)[..., -n:]
        to_patches = weights[..., -n:, -n:].sum(-1).clamp(min=torch.finfo(weights.dtype).tiny)
        return (per_query / to_patches).mean(-1)
    return weights.flatten(2) @ pixels.flatten() / n  # one product, no copy of B H T T


def attention_entropy(weights: Tensor) -> Tensor:
    """−Σⱼ a ln a, mean over queries, in nats: 0 for one token, ln T for all alike.  B H T T -> B H."""
    return torch.special.entr(weights).sum(-1).mean(-1)


def class_attention(weights: Tensor, places: int) -> Tensor:
    """What the class token (the first) gives itself, other tokens in front, and the patches; and what patches give it.

    weights: B H T T.  places: patches.  Returns B H 4; the first three sum to 1.
    """
    own, row = weights[:, :, 0, 0], weights[:, :, 0]
    patches = row[..., -places:].sum(-1)
    return torch.stack([own, 1 - own - patches, patches, weights[:, :, -places:, 0].mean(-1)], -1)


def head_likeness(weights: Tensor) -> Tensor:
    """Cosine between the attention of every two heads, each as one vector.  B H T T -> B H H."""
    unit = torch.nn.functional.normalize(weights.flatten(2), dim=-1)
    return unit @ unit.mT


class _Distance(Averages):
    def __init__(self, subject: Subject, other: Subject | None = None):
        super().__init__(subject)
        self.among_patches = Averages()  # without the look at tokens in front

    def see(self, tap: str, x: Tensor, side: int = 0) -> None:
        grid, patch = self.subject.grid, self.subject.patch
        self.gather(tap, attention_distance(x.float(), grid, patch))
        if self.subject.prefix:
            self.among_patches.gather(tap, attention_distance(x.float(), grid, patch, renormalise=True))

    def update(self) -> None:
        super().update()
        self.among_patches.update()

    def drop(self) -> None:
        super().drop()
        self.among_patches.drop()

    def finish(self) -> Found:
        grid, patch, prefix = self.subject.grid, self.subject.patch, self.subject.prefix
        uniform = uniform_distance(grid, patch)
        first = self.mean(next(iter(self.sums)))  # H
        return {
            "uniform_px": uniform,
            "uniform_with_front_tokens_px": uniform_distance(grid, patch, prefix=prefix),
            "grid": list(grid),
            "patch_px": list(patch),
            "place": self.subject.place,
            "in_front": _in_front(self.subject),
            "images": self.images,
            "local_share_first_block": float((first < uniform / 2).double().mean()),
            "by_layer_px": self.by_layer(),
            "rows": self._rows(),
        }

    def _rows(self) -> list[dict[str, Any]]:
        """A row for each head.  among_patches_px: each row of attention divided by its share on patches."""
        rows = self.by_head("distance_px", "error_px")
        sums = self.among_patches.by_head("px", "error") or [{"px": row["distance_px"]} for row in rows]
        return [row | {"among_patches_px": other["px"]} for row, other in zip(rows, sums, strict=True)]


def _in_front(subject: Subject) -> str:
    """What stands before the patches, in words; empty if nothing does."""
    if not subject.prefix:
        return ""
    return "class token" if subject.prefix == 1 and subject.has_class_token else "tokens in front"


def _say_distance(found: Found) -> str:
    first = [row for row in found["rows"] if row["layer"] == 0]
    by_layer, uniform, front = found["by_layer_px"], found["uniform_px"], found["in_front"]
    text = f"heads of the first block look {_pixel_range(first, 'distance_px')} far"
    text += f", the last block's {by_layer[-1]:.0f} px on average" if len(by_layer) > 1 else ""
    if front:
        last = [row["among_patches_px"] for row in found["rows"] if row["layer"] == len(by_layer) - 1]
        text += f", a look at the {front} counted as 0 px; among {PLURAL[found['place']]} alone "
        text += _pixel_range(first, "among_patches_px")
        text += f" and {sum(last) / len(last):.0f} px" if len(by_layer) > 1 else ""
    return f"{text}; looking everywhere alike would be {uniform:.0f} px{on_few_places(found['grid'])}"


def _pixel_range(rows: list[dict[str, Any]], key: str) -> str:
    low, high = (f"{pick(row[key] for row in rows):.0f}" for pick in (min, max))
    return f"{low} px" if low == high else f"{low} to {high} px"


ATTENTION_TAPS = {"vit": ("blocks.*.attention.weights",)}


def _heads_by_block(
    found: Found, key: str, by_layer: str, *, title: str, level: tuple[float, str], y_range: tuple[float, float]
) -> Chart:
    """A dot for every head, and a line through the means of the blocks."""
    rows = found["rows"]
    heads = Line("a head", blocks_of(rows), column(rows, key), is_dots=True)
    means = Line("mean of heads", sorted(set(blocks_of(rows))), found[by_layer])
    return charts.lines([heads, means], title=title, x_title=BLOCK_AXIS, x_is_whole=True, level=level, y_range=y_range)


def _draw_distance(found: Found, beside: Found | None, arrays: Arrays) -> list[Drawn]:
    rows = found["rows"]
    every = [row["distance_px"] for row in both_rows(found, beside)]
    span = (0.0, top_with_room(every, [found["uniform_px"]], [beside["uniform_px"]] if beside else None))
    layers = sorted({row["layer"] for row in rows})
    level = (found["uniform_px"], f"everywhere alike: {found['uniform_px']:.0f} px")
    title = "how far each head looks, by block"
    depth = _heads_by_block(found, "distance_px", "by_layer_px", title=title, level=level, y_range=span)
    series = []
    for layer in dict.fromkeys((layers[0], layers[len(layers) // 2], layers[-1])):
        own = sorted((row for row in rows if row["layer"] == layer), key=lambda row: row["distance_px"])
        places = np.arange(1, len(own) + 1)
        series.append(banded(f"block {layer + 1}", own, places, "distance_px", "error_px", has_points=True))
    ranked = charts.lines(
        series, title="how far the heads of three blocks look, sorted", x_title="head, the nearest first",
        x_is_whole=True, level=level, y_range=span,
    )  # fmt: skip
    counts = f" ({found['in_front']}: 0)" if found["in_front"] else ""
    over = over_photos(
        arrays, of_three_blocks(arrays, "distance"), heading=f"How far each {found['place']} looks{counts}",
        says=lambda px: f"{px:.0f} px",
    )  # fmt: skip
    return [
        Drawn([Panel(depth, f"Mean distance, pixels{counts}"), *over], paper="P1-fig7"),
        Drawn([Panel(ranked, f"The same, heads sorted, pixels{counts}")], paper="P2-fig3"),
    ]


def of_three_blocks(arrays: Arrays, name: str) -> dict[str, NDArray[np.floating]]:
    """Maps of the first, the middle and the last block; empty without them.  B h w each"""
    if name not in arrays:
        return {}
    blocks = arrays[name].shape[1]
    return {f"block {b + 1}": arrays[name][:, b] for b in dict.fromkeys((0, blocks // 2, blocks - 1))}


def _distance_method(found: Found) -> str:
    tall, wide = found["patch_px"]
    apart = f"{tall:g} px" if tall == wide else f"{tall:g} and {wide:g} px"
    zero = f"; a look at the {front} counts as 0 px: rows are not renormalised" if (front := found["in_front"]) else ""
    return (
        f"Mean over {counted(found['images'], 'image')} and all {PLURAL[found['place']]} of Σ attention × distance, "
        f"neighbours {apart} apart{zero}."
    )


ATTENTION_DISTANCE = Measure(
    name="attention-distance",
    sentence="How far each head looks, in pixels, against a head that looks everywhere alike.",
    figure="P1 figure 7 (right) and 11; P2 figures 3 and 4",
    saw="Low layers mix heads that look locally with heads that span the image; high layers look globally.",
    start=_Distance,
    says=_say_distance,
    taps=ATTENTION_TAPS,
    why_not=needs_attention,
    draw=_draw_distance,
    method=_distance_method,
    rank=1,
    arrays_of="attention-maps",
)


class _Entropy(Averages):
    def see(self, tap: str, x: Tensor, side: int = 0) -> None:
        self.gather(tap, attention_entropy(x.float()))

    def finish(self) -> Found:
        tokens = math.prod(self.subject.grid) + self.subject.prefix
        body: Found = {"largest_nats": math.log(tokens), "images": self.images, "by_layer_nats": self.by_layer()}
        return body | {"place": self.subject.place, "rows": self.by_head("entropy_nats", "error_nats")}


def _say_entropy(found: Found) -> str:
    by_layer = found["by_layer_nats"]
    first, last, every = (math.exp(nats) for nats in (by_layer[0], by_layer[-1], found["largest_nats"]))
    text = f"a token of the first block spreads its look as over {first:.0f} tokens"
    return text + (f", one of the last block as over {last:.0f}" if len(by_layer) > 1 else "") + f", of {every:.0f}"


def _draw_entropy(found: Found, beside: Found | None, arrays: Arrays) -> list[Drawn]:
    largest = found["largest_nats"]
    chart = _heads_by_block(
        found, "entropy_nats", "by_layer_nats", title="entropy of attention by block",
        level=(largest, f"everywhere alike: {largest:.2f}"),
        y_range=(0.0, top_with_room([largest], [beside["largest_nats"]] if beside else None)),
    )  # fmt: skip
    over = over_photos(
        arrays, of_three_blocks(arrays, "spread"), heading=f"Over how many tokens each {found['place']} looks",
        says=lambda tokens: f"{tokens:.0f}",
    )  # fmt: skip
    return [Drawn([Panel(chart, "Entropy of attention, nats"), *over])]


ENTROPY = Measure(
    name="attention-entropy",
    sentence="Over how many tokens each head spreads its look.",
    figure="not in P1 or P2; beside P1 figure 7",
    saw="Not measured there.",
    start=_Entropy,
    says=_say_entropy,
    taps=ATTENTION_TAPS,
    why_not=needs_attention,
    draw=_draw_entropy,
    method=lambda found: (
        f"−Σ a ln a over all tokens, mean over all queries of {counted(found['images'], 'image')}, each head by itself."
    ),
    rank=17,
    arrays_of="attention-maps",
)


class _ClassAttention(Averages):
    PARTS = ("to_itself", "to_front", "to_patches", "from_patches")

    def see(self, tap: str, x: Tensor, side: int = 0) -> None:
        self.gather(tap, class_attention(x.float(), math.prod(self.subject.grid)))

    def finish(self) -> Found:
        rows = [
            {"layer": number_of(tap), "head": head, **dict(zip(self.PARTS, plain(values.tolist()), strict=True))}
            for tap in self.sums
            for head, values in enumerate(self.mean(tap))
        ]
        by_layer = [dict(zip(self.PARTS, plain(self.mean(tap).mean(0).tolist()), strict=True)) for tap in self.sums]
        return {"images": self.images, "place": self.subject.place, "by_layer": by_layer, "rows": rows}


def _say_class(found: Found) -> str:
    first, last = found["by_layer"][0], found["by_layer"][-1]
    return (
        f"the class token gives itself {100 * first['to_itself']:.0f} % of its look in the first block and "
        f"{100 * last['to_itself']:.0f} % in the last, where {PLURAL[found['place']]} give it "
        f"{100 * last['from_patches']:.0f} %"
    )


def _draw_class(found: Found, beside: Found | None, arrays: Arrays) -> list[Drawn]:
    by_layer, places = found["by_layer"], PLURAL[found["place"]]
    named = {"to itself": "to_itself", f"to {places}": "to_patches", f"from {places}": "from_patches"}
    chart = charts.lines(
        lines_of(by_layer, range(1, len(by_layer) + 1), named),
        title="attention of the class token by block", x_title=BLOCK_AXIS, x_is_whole=True, is_share=True,
        y_range=(0.0, 1.0),
    )  # fmt: skip
    over = over_photos(
        arrays, of_three_blocks(arrays, "to_class"), says=share_of_look,
        heading=f"How much each {found['place']} looks at the class token",
    )  # fmt: skip
    return [Drawn([Panel(chart, "Share of the class token's attention"), *over])]


CLASS = Measure(
    name="class-attention",
    sentence="How much the class token looks at itself and at the image, and how much the image looks at it.",
    figure="not in P1 or P2; beside P1 figure 6",
    saw="Not measured there.",
    start=_ClassAttention,
    says=_say_class,
    taps=ATTENTION_TAPS,
    why_not=needs_class_token,
    draw=_draw_class,
    method=lambda found: (
        f"Row and column of the class token, mean over heads and {counted(found['images'], 'image')}; from "
        f"{PLURAL[found['place']]}: mean over them."
    ),
    rank=13,
    arrays_of="attention-maps",
)


class _Likeness(Averages):
    def see(self, tap: str, x: Tensor, side: int = 0) -> None:
        self.gather(tap, head_likeness(x.float()))

    def finish(self) -> Found:
        matrices = [self.mean(tap) for tap in self.sums]  # each H H
        rows = []
        for tap, matrix in zip(self.sums, matrices, strict=True):
            others = matrix[~torch.eye(len(matrix), dtype=torch.bool)]
            mean, top = (others.mean().item(), others.max().item()) if len(others) else (1.0, 1.0)
            rows.append({"layer": number_of(tap), "mean_cosine": plain(mean), "largest_cosine": plain(top)})
        return {"images": self.images, "rows": rows, "heads": [plain(matrix, 4) for matrix in matrices]}


def _say_likeness(found: Found) -> str:
    if len(found["heads"][0]) == 1:
        return "each block has one head, which has no other to be like"
    most = max(found["rows"], key=lambda row: row["mean_cosine"])
    least = min(found["rows"], key=lambda row: row["mean_cosine"])
    if most is least:
        return f"heads look alike by a cosine of {most['mean_cosine']:.2f}"
    return (
        f"heads look most alike in block {most['layer'] + 1} (cosine {most['mean_cosine']:.2f}) and least in block "
        f"{least['layer'] + 1} ({least['mean_cosine']:.2f})"
    )


def _draw_likeness(found: Found, beside: Found | None, arrays: Arrays) -> list[Drawn]:
    rows = found["rows"]
    named = {"mean of pairs": "mean_cosine", "most alike pair": "largest_cosine"}
    chart = charts.lines(
        lines_of(rows, blocks_of(rows), named),
        title="likeness of heads by block", x_title=BLOCK_AXIS, x_is_whole=True, y_range=(0.0, 1.05),
    )  # fmt: skip
    panels = [Panel(chart, "Cosine between heads of a block")]
    matrices = [np.asarray(matrix, np.float64) for matrix in found["heads"]]
    if len(matrices[0]) > 1:
        shown = [Tile(f"block {row['layer'] + 1}", colours(m, 0.0, 1.0)) for row, m in zip(rows, matrices, strict=True)]
        pairs = charts.tiles(shown, title="cosine of every two heads", columns=min(6, len(shown)))
        panels.append(Panel(pairs, "Head by head: dark is 0, light is 1"))
        if "maps" in arrays:
            block = int(np.argmin(column(rows, "mean_cosine")))
            looks = {f"head {h + 1}": each for h, each in enumerate(looks_of(arrays)[:, block].swapaxes(0, 1))}
            heading = f"Where each head of block {block + 1} looks, the least alike"
            panels += over_photos(arrays, looks, heading=heading, says=share_of_look, is_root=True)
    return [Drawn(panels)]


LIKENESS = Measure(
    name="head-likeness",
    sentence="Whether the heads of a layer look at different things or all at the same.",
    figure="not in P1 or P2; beside P1 figure 7",
    saw="Not measured there.",
    start=_Likeness,
    says=_say_likeness,
    taps=ATTENTION_TAPS,
    why_not=needs_attention,
    draw=_draw_likeness,
    method=lambda found: (
        "Cosine between the whole attention matrices of two heads of a block, mean over "
        f"{counted(found['images'], 'image')}."
    ),
    rank=18,
    arrays_of="attention-maps",
)
