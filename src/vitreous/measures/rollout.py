"""Where information came from, through all layers (attention rollout, arXiv 2005.00928; figures 6 and 14 of P1).

It says nothing about why the answer was given.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from vitreous.measures.drawing import over_photos
from vitreous.measures.measure import Arrays, Averages, Drawn, Found, Measure, plain
from vitreous.measures.subject import Subject, needs_attention
from vitreous.models.pooling import Pool, find_pool
from vitreous.report import charts
from vitreous.report.charts import Span
from vitreous.report.files import Panel
from vitreous.words import counted

ATTENTION = "blocks.*.attention.weights"
HEAD_JOINS = ("mean", "max", "min")
TOP_SHARE = 0.1  # of the patches: "the tenth that gives most"
NEARLY_EVEN = 0.9  # of the patches: an answer that comes from more tells little


def rollout(
    weights: Tensor | Sequence[Tensor], *, residual: bool = True, heads: Literal["mean", "max", "min"] = "mean"
) -> Tensor:
    """How much of every input token is in every output token, if attention alone mixed them.

        Aₗ = heads(weightsₗ) + I, each row divided by its sum;    rollout = A_L … A₂ A₁

    weights: L of B H N N, the first layer first.  residual: add the I of the skip connection; else the attention
    as it is.  heads: how a layer's heads become one.  Returns B N N, each row summing to 1.
    """
    if len(weights) == 0:
        raise ValueError("no layers to roll out; give the attention weights of one layer or more")
    joined: Tensor | None = None
    for layer in weights:  # B H N N
        mixed = mixing(layer, residual=residual, heads=heads)
        joined = mixed if joined is None else mixed @ joined
    assert joined is not None
    return joined  # B N N


def mixing(weights: Tensor, *, residual: bool = True, heads: Literal["mean", "max", "min"] = "mean") -> Tensor:
    """One layer's part of a rollout: Aₗ, B N N, each row summing to 1.  weights: B H N N."""
    if heads not in HEAD_JOINS:
        raise ValueError(f"heads={heads!r} does not join heads; give {', '.join(HEAD_JOINS)}")
    mixed = weights.mean(1) if heads == "mean" else weights.amax(1) if heads == "max" else weights.amin(1)
    if residual:
        mixed = mixed + torch.eye(mixed.shape[-1], dtype=mixed.dtype, device=mixed.device)
    return mixed / mixed.sum(-1, keepdim=True)


def read_patches(pool: Pool, flow: Tensor, weights: Tensor | None = None) -> Tensor:
    """How much of every patch is in what the head reads.  flow: B N N.  Returns B P, summing to at most 1.

    The tokens in front of the patches have the rest.  weights: of the pool's tap, if it has one.
    """
    return pool.reads(flow, weights)[:, pool.prefix :]


def relevance_map(rows: Tensor, grid: tuple[int, int], size: tuple[int, int] | None = None) -> Tensor:
    """Rows of a rollout as maps, each divided by its largest value (C5).  rows: B h·w.  size: bilinear to that size."""
    maps = rows.unflatten(-1, grid)
    maps = maps / maps.amax((1, 2), keepdim=True).clamp(min=torch.finfo(maps.dtype).tiny)
    if size is None:
        return maps
    return F.interpolate(maps[:, None], size, mode="bilinear", align_corners=False)[:, 0]


class Flow:
    """A rollout that grows as layers come, for what one model's head reads."""

    def __init__(self, subject: Subject, **how: Any):
        self.pool, self.how = find_pool(subject.model)[0], how
        self.flow: Tensor | None = None
        self.weights: Tensor | None = None  # of the pool, B H 1 P

    def see(self, tap: str, x: Tensor) -> None:
        if tap.endswith("pool.weights"):
            self.weights = x.float()
            return
        mixed = mixing(x.float(), **self.how)
        self.flow = mixed if self.flow is None or tap.startswith("blocks.0.") else mixed @ self.flow

    def rows(self) -> Tensor:
        assert self.flow is not None
        return read_patches(self.pool, self.flow, self.weights)


def needs_reads(subject: Subject, other: Subject | None = None) -> str | None:
    """Why the patches behind an answer are unknown, or None."""
    return needs_attention(subject) or find_pool(subject.model)[0].silence or None


def _top_patches(patches: int) -> int:
    """A tenth of the patches, or one."""
    return max(round(TOP_SHARE * patches), 1)


class _Rollout(Averages):
    def __init__(self, subject: Subject, other: Subject | None = None):
        super().__init__(subject)
        self.flow = Flow(subject)

    def see(self, tap: str, x: Tensor, side: int = 0) -> None:
        self.flow.see(tap, x)

    def update(self) -> None:
        rows = self.flow.rows()
        rows = rows / rows.sum(-1, keepdim=True)
        ordered = rows.sort(-1, descending=True).values
        most = _top_patches(rows.shape[1])
        self.gather("map", rows)
        self.gather("most", ordered[:, :most].sum(-1))
        self.gather("spread", torch.special.entr(rows).sum(-1).exp())
        super().update()

    def finish(self) -> Found:
        table = plain(self.mean("map").unflatten(0, self.subject.grid))
        return {
            "held_by_top_tenth": plain(self.mean("most").item()),
            "held_by_top_tenth_error": plain(self.error("most").item()),
            "spread_patches": plain(self.mean("spread").item()),
            "patches": math.prod(self.subject.grid),
            "place": self.subject.place,
            "mean_map": table,
            "images": self.images,
            "rows": [{"row": r, "column": c, "share": v} for r, line in enumerate(table) for c, v in enumerate(line)],
        }


def _say(found: Found) -> str:
    most, place = _top_patches(found["patches"]), found["place"]
    return (
        f"by rollout, the answer comes from about {found['spread_patches']:.0f} of {counted(found['patches'], place)}; "
        f"{100 * found['held_by_top_tenth']:.0f} % of it from the {counted(most, place)} "
        f"that give{'s' if most == 1 else ''} most, {100 * most / found['patches']:.0f} % if all gave alike"
    )


def _draw(found: Found, beside: Found | None, arrays: Arrays) -> list[Drawn]:
    ways = {"rollout": "rollout", "rollout_plain": "no skips", "rollout_max": "largest", "rollout_min": "smallest"}
    maps = {word: arrays[key] for key, word in ways.items() if key in arrays}
    heading = "Where the answer came from, by rollout; 1 is the most"
    panels = over_photos(arrays, maps, heading=heading, says=lambda share: f"{share:.2f}", most=found["images"])
    mean = np.asarray(found["mean_map"], np.float64)
    rows, columns = ([Span(str(i + 1)) for i in range(count)] for count in mean.shape)
    heat = charts.heatmap(
        mean * mean.size, title="mean rollout over images", rows=rows, columns=columns, y_title="row",
        x_title="column", high=max(float(mean.max()) * mean.size, 1.0), side=220,
    )  # fmt: skip
    several = "Mean over images" if found["images"] > 1 else "Rollout by place"
    return [Drawn([*panels, Panel(heat, f"{several}; 1 is an even share")], paper="P1-fig6")]


ROLLOUT = Measure(
    name="rollout",
    sentence="Rollout, attention through all layers: where information came from, not why the answer was given.",
    figure="P1 figures 6 and 14",
    saw="On images of its classes, a trained ViT attends to the parts that matter for the class.",
    start=_Rollout,
    says=_say,
    taps={"vit": (ATTENTION,), "map": ("**pool.weights",)},
    why_not=needs_reads,
    draw=_draw,
    method=lambda found: (
        "Attention of every block, mean over heads, plus the identity of the skip, rows divided by their sum, and all "
        f"blocks multiplied; then what the head reads, over {counted(found['images'], 'image')}. Beside it: without "
        "the skips, and with the largest or the smallest share of all heads in place of their mean."
    ),
    rank=8,
    says_little=lambda found: found["spread_patches"] > NEARLY_EVEN * found["patches"],
    arrays_of="attention-maps",
)
