"""What a ViT learned before its first block: patch filters and positions (figure 7, left and middle, and 10 of P1).

P patch   C channels   D width   h w rows and columns of patches   N = h·w
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from vitreous.measures.attention import patch_distances
from vitreous.measures.drawing import column
from vitreous.measures.measure import PLURAL, Arrays, Drawn, Found, Measure, Reading, plain
from vitreous.measures.subject import Subject
from vitreous.models.positions import Positions
from vitreous.models.vit import ViT
from vitreous.report import charts
from vitreous.report.charts import Line, ShareBar, Span, Tile
from vitreous.report.files import Panel
from vitreous.words import counted

COMPONENTS_DRAWN = 28  # components that P1 draws
NO_TREND_BELOW = 0.1  # a rank correlation nearer to 0 is called no trend
NO_CHANGE_BELOW = 0.005  # a difference of cosines that two digits do not show
MAX_FILTER_NUMBERS = 32 * 32 * 4  # in one filter that a page can draw


@dataclass(frozen=True, eq=False)
class Components:
    """Orthonormal filters, the one that explains most first."""

    filters: Tensor  # PPC count
    singular_values: Tensor
    explained: Tensor  # each singular value's share of the variance


def filter_components(filters: Tensor, count: int = COMPONENTS_DRAWN) -> Components:
    """Principal components of the D columns of E, less their mean (C1). The largest number of each is positive.

    filters: PPC D.  Returns at most `count`, and every singular value.
    """
    exact = filters.detach().double()
    left, values, _ = torch.linalg.svd(exact - exact.mean(1, keepdim=True), full_matrices=False)
    left = left[:, :count]
    sign = left.gather(0, left.abs().argmax(0, keepdim=True)).sign()
    power = values.square()
    return Components(left * sign, values, power / power.sum().clamp(min=torch.finfo(torch.float64).tiny))


def subspace_likeness(a: Tensor, b: Tensor) -> float:
    """Mean squared cosine of the angles between two spaces, given by orthonormal columns: 1 for the same space."""
    return float((a.mT @ b).square().sum()) / min(a.shape[1], b.shape[1])


def position_likeness(table: Tensor, grid: tuple[int, int]) -> Tensor:
    """Cosine between the position vectors of every two patches.  N D -> h w h w; tokens in front are left out."""
    unit = F.normalize(table[-grid[0] * grid[1] :].detach().double(), dim=-1)
    return (unit @ unit.mT).reshape(*grid, *grid)


def position_structure(likeness: Tensor) -> dict[str, float | None]:
    """What the pattern is: nearness as rank correlation of likeness with −distance; and rows and columns.

    row_column: mean likeness in the same row or column, less that elsewhere.  axis_diagonal: the same between places
    at equal distance, rounded to whole steps.
    """
    h, w = likeness.shape[:2]
    flat = likeness.reshape(h * w, h * w)
    far = patch_distances((h, w), 1.0)
    pair = ~torch.eye(h * w, dtype=torch.bool)
    if not pair.any():
        return {"nearness": None, "row_column": None, "axis_diagonal": None}
    rows, columns = torch.meshgrid(torch.arange(h), torch.arange(w), indexing="ij")
    same = (rows.flatten()[:, None] == rows.flatten()) | (columns.flatten()[:, None] == columns.flatten())
    near = rank_correlation((-far[pair]).tolist(), flat[pair].tolist())
    axis, other = flat[pair & same], flat[pair & ~same]
    gaps = []
    for step in range(1, max(h, w)):
        along = flat[pair & same & (far == step)]
        across = flat[pair & ~same & ((far - step).abs() < 0.5)]
        if len(along) and len(across):
            gaps.append(float(along.mean() - across.mean()))
    return {
        "nearness": near,
        "row_column": float(axis.mean() - other.mean()) if len(axis) and len(other) else None,
        "axis_diagonal": sum(gaps) / len(gaps) if gaps else None,
    }


def position_change(a: Tensor, b: Tensor) -> float | None:
    """Correlation of two models' patterns over the pairs of places: 1 for the same pattern.  a, b: h w h w."""
    n = a.shape[0] * a.shape[1]
    pair = torch.triu(torch.ones(n, n, dtype=torch.bool), 1)
    return _correlation(*(likeness.reshape(n, n)[pair] for likeness in (a, b)))


def rank_correlation(x: Sequence[float | None], y: Sequence[float | None]) -> float | None:
    """Spearman's, ties sharing their mean rank; None if one side is constant."""
    return _correlation(*(_ranks(torch.tensor(values, dtype=torch.float64)) for values in (x, y)))


def _correlation(x: Tensor, y: Tensor) -> float | None:
    x, y = x - x.mean(), y - y.mean()
    size = float(x.norm() * y.norm())
    return float(x @ y) / size if size > 0 else None


def _ranks(values: Tensor) -> Tensor:
    _, which, counts = torch.unique(values, return_inverse=True, return_counts=True)
    last = counts.cumsum(0).double()
    return (last - (counts.double() - 1) / 2)[which]


def position_table(model: ViT) -> Tensor | None:
    """What positions add to each patch, N D; None if they add nothing before the first block."""
    parts = [model.embedding.positions, *model.layer_positions.tables]
    added = [part for part in parts if isinstance(part, Positions) and not part.in_attention]
    if not added:
        return None
    width, tokens = model.config.encoder.width, model.config.prefix + model.grid[0] * model.grid[1]
    nothing = torch.zeros(1, tokens, width, device=next(model.parameters()).device)
    with torch.no_grad():
        table = added[-1 if len(added) == 1 else 1](nothing, model.grid)[0, model.config.prefix :]
    return table if bool(table.any()) else None


def _filters(model: ViT) -> Tensor:
    return model.embedding.projection.weight.detach().mT.cpu()  # PPC D


class _Filters(Reading):
    def finish(self) -> Found:
        model: Any = self.subject.model
        found = filter_components(_filters(model))
        rows = [
            {"component": i, "singular_value": plain(s), "explained": plain(e)}
            for i, (s, e) in enumerate(zip(found.singular_values.tolist(), found.explained.tolist(), strict=True))
        ]
        shape = [self.subject.model.config.channels, *model.embedding.patch]
        numbers = len(found.filters)
        why_no_shapes = ""
        if self.subject.is_hybrid:
            why_no_shapes = f"convolutions come first, so these filters read {numbers} of their channels, not pixels"
        elif numbers > MAX_FILTER_NUMBERS:
            why_no_shapes = f"a filter has {numbers:,} numbers, more than a page draws"
        tiles = None if why_no_shapes else plain(found.filters.mT, 4)
        held = float(found.explained[:COMPONENTS_DRAWN].sum())
        body: Found = {"shape": shape, "components": tiles, "why_no_shapes": why_no_shapes}
        return body | {"held_by_28": plain(held), "rows": rows}


def _say_filters(found: Found) -> str:
    shapes = counted(min(COMPONENTS_DRAWN, len(found["rows"])), "shape")
    text = f"{shapes} hold {100 * found['held_by_28']:.0f} % of what the patch filters look for"
    return text + (f"; the shapes are not drawn: {why}" if (why := found["why_no_shapes"]) else "")


def _needs_vit(subject: Subject, other: Subject | None = None) -> str | None:
    if isinstance(subject.model, ViT):
        return None
    return f"{subject.name} is a network of convolutions and cuts no patches"


def _draw_filters(found: Found, beside: Found | None, arrays: Arrays) -> list[Drawn]:
    panels = []
    if found["components"] is not None:
        tiles = [
            Tile("", _filter_picture(np.asarray(each, np.float64), *found["shape"])) for each in found["components"]
        ]
        shapes = charts.tiles(tiles, title="leading components of the patch filters", columns=7)
        panels.append(Panel(shapes, "Leading shapes"))
    explained = np.cumsum(column(found["rows"], "explained"))
    chart = charts.lines(
        [Line("", np.arange(1, len(explained) + 1), explained)],
        title="variance held by components", x_title="number of components", is_share=True, y_range=(0.0, 1.0),
        mark=(COMPONENTS_DRAWN, f"{COMPONENTS_DRAWN} components") if len(explained) > COMPONENTS_DRAWN else None,
    )  # fmt: skip
    return [Drawn([*panels, Panel(chart, "Share of the variance held by the first components")], paper="P1-fig7")]


def _filter_picture(numbers: NDArray[np.float64], channels: int, tall: int, wide: int) -> NDArray[np.uint8]:
    """One filter in the order of a flattened patch: channels, rows, columns; grey is 0."""
    shaped = numbers.reshape(channels, tall, wide).transpose(1, 2, 0)
    shown = shaped[..., :3] if channels > 2 else np.repeat(shaped[..., :1], 3, -1)
    top = max(float(np.abs(shown).max()), 1e-12)
    return ((shown / top + 1) * 127.5).round().astype(np.uint8)


FILTERS = Measure(
    name="patch-filters",
    sentence="The shapes that the model looks for, the most used first.",
    figure="P1 figure 7 (left)",
    saw="In ViTs that read pixels, the leading components look like basis functions for the fine structure of a patch.",
    start=_Filters,
    says=_say_filters,
    cost="reads the weights alone",
    why_not=_needs_vit,
    draw=_draw_filters,
    method=lambda found: (
        "Singular vectors of the patch projection, the mean filter taken out"
        + ("." if found["components"] is None else "; each drawn on its own scale, grey is 0.")
    ),
    rank=16,
)


class _Positions(Reading):
    def finish(self) -> Found:
        model: Any = self.subject.model
        table = position_table(model)
        assert table is not None
        likeness = position_likeness(table.cpu(), model.grid)
        found: Found = {"grid": list(model.grid), "place": self.subject.place}
        found |= plain(position_structure(likeness))
        step = max(1, -(-max(model.grid) // 16))  # at most 16 tiles a side, for the page
        kept = likeness[::step, ::step]
        found |= {"tile_step": step, "tiles": plain(kept, 4)}
        return found


def _tile_rows(found: Found) -> list[dict[str, Any]]:
    step = found["tile_step"]
    return [
        {"row": r * step, "column": c * step, "to_row": y, "to_column": x, "cosine": value}
        for r, line in enumerate(found["tiles"])
        for c, tile in enumerate(line)
        for y, values in enumerate(tile)
        for x, value in enumerate(values)
    ]


def _positions_why_not(subject: Subject, other: Subject | None = None) -> str | None:
    if (why := _needs_vit(subject)) is not None:
        return why
    assert isinstance(subject.model, ViT)
    if position_table(subject.model) is None:
        return f"{subject.name} adds no position vectors to its patches"
    return None


def _say_positions(found: Found) -> str:
    near, lines = found["nearness"], found["row_column"]
    if near is None:
        return "positions have no pattern"
    if abs(near) < NO_TREND_BELOW:
        text = "how near two places are hardly shows in their positions"
    else:
        text = f"the nearer two places, the {'more' if near > 0 else 'less'} alike their positions"
    text += f" (rank correlation {near:.2f})"
    if lines is None or abs(lines) < NO_CHANGE_BELOW:
        return text
    return f"{text}; those of the same row or column are {'more' if lines > 0 else 'less'} alike by {abs(lines):.2f}"


def _draw_positions(found: Found, beside: Found | None, arrays: Arrays) -> list[Drawn]:
    tiles = np.asarray(found["tiles"], np.float64)  # rows columns h w
    rows, columns, h, w = tiles.shape
    mosaic = np.full((rows * (h + 1) - 1, columns * (w + 1) - 1), np.nan)
    for r in range(rows):
        for c in range(columns):
            mosaic[r * (h + 1) : r * (h + 1) + h, c * (w + 1) : c * (w + 1) + w] = tiles[r, c]
    step = found["tile_step"]
    names = [[Span(str(i * step + 1), n + 1) for i in range(count)] for count, n in ((rows, h), (columns, w))]
    chart = charts.heatmap(
        mosaic, title="cosine of position vectors", rows=names[0], columns=names[1],
        y_title=f"row of the {found['place']}", x_title=f"column of the {found['place']}", low=-1.0, high=1.0, side=290,
    )  # fmt: skip
    return [Drawn([Panel(chart, "Cosine of each place with all places")], paper="P1-fig7")]


def _positions_method(found: Found) -> str:
    step = found["tile_step"]
    return (
        f"Cosine between the position vectors of every two {PLURAL[found['place']]}; a tile is one of them "
        f"against all, laid out as the image is{'' if step == 1 else f', one place in {step}'}."
    )


POSITIONS = Measure(
    name="positions",
    sentence="Which places of the image the model takes for near, by its position vectors.",
    figure="P1 figure 7 (middle) and 10",
    saw="Nearer patches have more similar positions, and rows and columns show.",
    start=_Positions,
    says=_say_positions,
    cost="reads the weights alone",
    why_not=_positions_why_not,
    rows=_tile_rows,
    draw=_draw_positions,
    method=_positions_method,
    rank=10,
)


class _Change(Reading):
    def finish(self) -> Found:
        assert self.other is not None
        models: list[Any] = [self.subject.model, self.other.model]
        found: Found = {"filter_space": None, "position_pattern": None}
        filters = [_filters(model) for model in models]
        if filters[0].shape[0] == filters[1].shape[0]:
            a, b = (filter_components(each).filters for each in filters)
            found["filter_space"] = plain(subspace_likeness(a, b))
        tables, grids = [position_table(model) for model in models], [model.grid for model in models]
        if tables[0] is not None and tables[1] is not None and grids[0] == grids[1]:
            a, b = (position_likeness(table.cpu(), grids[0]) for table in tables if table is not None)
            found["position_pattern"] = plain(position_change(a, b))
        return found | {"rows": [dict(found)]}


def _say_change(found: Found) -> str:
    space, pattern = found["filter_space"], found["position_pattern"]
    shapes = "patch filters of other sizes" if space is None else f"patch filters span the same space by {space:.2f}"
    return shapes + ("" if pattern is None else f", position patterns have a correlation of {pattern:.2f}")


def _draw_change(found: Found, beside: Found | None, arrays: Arrays) -> list[Drawn]:
    named = {"patch filters: the same space": "filter_space", "positions: the same pattern": "position_pattern"}
    rows = [ShareBar(name, found[key]) for name, key in named.items() if found[key] is not None]
    if not rows:
        return []
    chart = charts.bars(rows, title="what two models share")
    return [Drawn([Panel(chart, "What the two models share")], paper="P1-fig10")]


CHANGE = Measure(
    name="embeddings-change",
    sentence="How much patch filters and position patterns differ between two models.",
    figure="P1 figure 10",
    saw="The position pattern depends on rate, decay and length of training.",
    start=_Change,
    says=_say_change,
    cost="reads the weights alone",
    why_not=lambda subject, other: _needs_vit(subject) or (None if other is None else _needs_vit(other)),
    is_pair=True,
    draw=_draw_change,
    method=lambda found: (
        "Filters: mean squared cosine between the spaces of 28 components. Positions: correlation of the two cosine "
        "patterns over all pairs of places."
    ),
    rank=19,
)
