"""What passes through the skip connection and what through the branch (figures 7, 8, E.1 and E.2 of arXiv 2108.08810).

B images   T tokens, or places of a map
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from vitreous.measures.drawing import LAYER_AXIS, banded, both_rows, lines_of, spans
from vitreous.measures.measure import PLURAL, Arrays, Averages, Drawn, Found, Measure, bands, plain
from vitreous.measures.subject import Subject
from vitreous.report import charts
from vitreous.report.charts import Span
from vitreous.report.files import Panel
from vitreous.words import counted

MAX_TOKENS_LISTED = 256  # a longer sequence lists no ratio for each token
SKIPS_AND_BRANCHES = {  # where a skip and its branch meet: endings of their taps
    "skip1": ("skip1", "attention.output"),
    "skip2": ("skip2", "mlp.output"),
    "skip": ("skip", "branch"),
}


def as_tokens(x: Tensor) -> Tensor:
    """B C h w as B h·w C; tokens as they are."""
    return x.flatten(2).mT if x.dim() == 4 else x


def skip_ratio(skip: Tensor, branch: Tensor) -> Tensor:
    """‖z‖ / ‖f(z)‖ of each token; NaN where the branch adds nothing.  … D -> …"""
    size = branch.norm(dim=-1)
    return torch.where(size > 0, skip.norm(dim=-1) / size, torch.nan)


def skip_cosine(skip: Tensor, branch: Tensor) -> tuple[Tensor, Tensor]:
    """Cosine of the skip with the branch, and with their sum.  … D -> … each"""
    return F.cosine_similarity(skip, branch, dim=-1), F.cosine_similarity(skip, skip + branch, dim=-1)


class _SkipRatio(Averages):
    def __init__(self, subject: Subject, other: Subject | None = None):
        super().__init__(subject)
        self.waiting: dict[str, Tensor] = {}  # a skip whose branch has not come yet, or the other way round

    def see(self, tap: str, x: Tensor, side: int = 0) -> None:
        for half, (skip, branch) in SKIPS_AND_BRANCHES.items():
            for ending in (skip, branch):
                if tap.endswith(f".{ending}"):
                    self._meet(f"{tap.removesuffix(ending)}{half}", ending == skip, as_tokens(x).float())

    def _meet(self, place: str, is_skip: bool, x: Tensor) -> None:
        """The skip and the branch of a place come one after the other, in either order."""
        first = self.waiting.pop(place, None)
        if first is None:
            self.waiting[place] = x
            return
        skip, branch = (x, first) if is_skip else (first, x)
        ratio = skip_ratio(skip, branch)  # B T
        with_branch, with_sum = skip_cosine(skip, branch)
        front = 0 if ".units." in place else self.subject.prefix
        self.gather(f"{place} ratio", ratio)
        self.gather(f"{place} patches", ratio[:, front:].nanmean(1))
        self.gather(f"{place} cosine", with_branch[:, front:].mean(1))
        self.gather(f"{place} cosine_with_sum", with_sum[:, front:].mean(1))
        if front and self.subject.has_class_token:
            self.gather(f"{place} class_cosine", with_branch[:, 0])

    def drop(self) -> None:
        super().drop()
        self.waiting = {}

    def finish(self) -> Found:
        places = [name.removesuffix(" ratio") for name in self.sums if name.endswith(" ratio")]
        rows, tokens = [], []
        for place in places:
            is_unit = ".units." in place
            each = self.mean(f"{place} ratio")
            has_class = self.subject.has_class_token and not is_unit
            rows.append(
                {
                    "place": place,
                    "layer": place.rsplit(".", 1)[0],
                    "branch": {"skip1": "attention", "skip2": "mlp", "skip": "convolutions"}[place.split(".")[-1]],
                    "class_ratio": plain(each[0].item()) if has_class else None,
                    "patches_ratio": plain(self.mean(f"{place} patches").item()),
                    "patches_error": plain(self.error(f"{place} patches").item()),
                    "patches_cosine": plain(self.mean(f"{place} cosine").item()),
                    "patches_cosine_with_sum": plain(self.mean(f"{place} cosine_with_sum").item()),
                    "class_cosine": plain(self.mean(f"{place} class_cosine").item()) if has_class else None,
                }
            )
            tokens.append({"place": place, "ratio": plain(each, 4) if len(each) <= MAX_TOKENS_LISTED else None})
        return {"images": self.images, "place": self.subject.place, "rows": rows, "by_token": tokens}


def _half_means(rows: list[dict[str, Any]], key: str) -> tuple[float, float] | None:
    """Means of the first and of the second half of the network."""
    known = [row[key] for row in rows if row[key] is not None]
    half = len(known) // 2
    if half == 0 or len(known) < len(rows):
        return None
    return sum(known[:half]) / half, sum(known[half:]) / (len(known) - half)


def _say(found: Found) -> str:
    patches = _half_means(found["rows"], "patches_ratio")
    if patches is None:
        return "some branches add nothing, so that all goes by their skips"
    text = f"the skip is {patches[0]:.1f} times its branch in the first half and {patches[1]:.1f} in the second"
    own = _half_means([row for row in found["rows"] if row["class_ratio"] is not None], "class_ratio")
    return text + ("" if own is None else f"; for the class token {own[0]:.1f} and {own[1]:.1f}")


def _draw(found: Found, beside: Found | None, arrays: Arrays) -> list[Drawn]:
    rows, places = found["rows"], PLURAL[found["place"]]
    is_vit = all(row["branch"] in ("attention", "mlp") for row in rows)
    x = 1 + np.arange(len(rows)) / (2 if is_vit else 1)
    x_title = "block (attention, then MLP)" if is_vit else LAYER_AXIS
    patches = banded(places, rows, x, "patches_ratio", "patches_error", within=(1e-6, math.inf))
    keys = ("patches_ratio", "class_ratio")
    every = [row[key] for row in both_rows(found, beside) for key in keys if row[key]]
    span = (0.8 * min(every), 1.25 * max(every)) if every else None
    ratio = charts.lines(
        [patches, *lines_of(rows, x, {"class token": "class_ratio"})], title="norm of the skip over norm of the branch",
        x_title=x_title, is_log=True, x_is_whole=True, y_range=span,
    )  # fmt: skip
    cosine = charts.lines(
        lines_of(rows, x, {places: "patches_cosine", "class token": "class_cosine"}),
        title="cosine of skip and branch", x_title=x_title, x_is_whole=True, level=(0.0, ""), y_range=(-1.0, 1.0),
    )  # fmt: skip
    panels = [Panel(ratio, "Norm of skip over norm of branch"), Panel(cosine, "Cosine of skip and branch")]
    shown = _token_ratios(found)
    if is_vit and shown is not None:
        both = [shown, *([other] if beside and (other := _token_ratios(beside)) is not None else [])]
        has_class = rows[0]["class_ratio"] is not None
        low_end, high_end = np.nanpercentile(np.concatenate([each.ravel() for each in both]), (1, 99))
        heat = charts.heatmap(
            shown, title="skip ratio of every token", rows=spans([row["layer"] for row in rows]),
            columns=_token_spans(shown.shape[1], has_class), y_title="half-block",
            x_title="token; the first is the class token" if has_class else "token", low=float(low_end),
            high=float(high_end) + 1e-6,
        )  # fmt: skip
        panels.append(Panel(heat, "Every token; log₁₀ of the ratio"))
    return [Drawn(panels, paper="P2-fig7")]


def _token_ratios(found: Found) -> NDArray[np.float64] | None:
    """log₁₀ of each half-block's ratio for every token; None if tokens are too many, or their numbers differ."""
    by_token = [each["ratio"] for each in found["by_token"]]
    if not by_token or not all(by_token) or len({len(each) for each in by_token}) > 1:
        return None
    table = np.asarray(by_token, np.float64)  # NaN for None
    return np.log10(np.maximum(table, 1e-6)) if np.isfinite(table).any() else None


def _token_spans(count: int, has_class: bool) -> list[Span]:
    """About seven numbers along an axis of many tokens, after the class token."""
    first, step = int(has_class), max(count // 7, 1)
    begins = [i for i in range(first, count, step) if i == first or count - i >= step // 2]
    return [Span("class")] * first + [Span(str(a + 1), b - a) for a, b in pairwise([*begins, count])]


SKIP_RATIO = Measure(
    name="skip-ratio",
    sentence="How much of a layer's output is carried over and how much is new, token by token.",
    figure="P2 figures 7, E.1 and E.2",
    saw="A class token rides the skip in the first half of a ViT, patches in the second; ResNets skip less.",
    start=_SkipRatio,
    says=_say,
    taps={
        "vit": tuple(f"blocks.*.{ending}" for ending in ("skip1", "attention.output", "skip2", "mlp.output")),
        "stem": ("stem.stages.*.units.*.skip", "stem.stages.*.units.*.branch"),
        "bit": ("stages.*.units.*.skip", "stages.*.units.*.branch"),
    },
    draw=_draw,
    method=lambda found: (
        f"‖skip‖ / ‖branch‖ of every token where they meet, mean over {counted(found['images'], 'image')}"
        f"{bands(found)}."
    ),
    rank=5,
)
