"""Charts as SVG that takes its colours from the page: light, dark and print alike, and no script.

A chart is about as wide as a phone, so that its words stay legible there; a page puts several side by side. Hues are
two that every eye tells apart, and lines differ in their dashes too.
"""

from __future__ import annotations

import html
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import ArrayLike, NDArray

from vitreous.report.colours import SCALE, data_uri
from vitreous.report.colours import Picture as Tile

__all__ = ["Axis", "Bar", "Line", "Span", "bars", "confusion", "heatmap", "lines", "reliability", "shaded", "tiles"]

WIDTH, HEIGHT = 390, 250
LEFT, RIGHT, TOP, BOTTOM = 50, 20, 34, 44  # around the plot
POINTS = 240  # of a line: no screen shows more
FIRST, SECOND, THIRD = "var(--first, #0b6fa4)", "var(--second, #c2500a)", "var(--third, #7a5195)"
HUES = (FIRST, SECOND, THIRD)
DASHES = ("", "7 4", "2 3")
QUIET, RULE, PAPER = "var(--quiet, #5a6774)", "var(--line, #dde3e8)", "var(--paper, #ffffff)"
WRITTEN = 15  # classes up to which counts stand in the cells
NAMED = 40  # classes up to which a cell says its numbers when pointed at
NAME = 24  # letters of a class that are shown
LEVELS = 12  # shades of a large matrix
UNKNOWN = (128, 128, 128)  # a cell without a number
EXACT = 64  # pixels a side up to which a tile is shown as it is
SPANS = 20  # names along an axis of a heatmap: more would touch


@dataclass(frozen=True)
class Line:
    """A series. low, high: a band around it.  is_dots: points alone, which several may share an x."""

    name: str
    x: ArrayLike
    y: ArrayLike
    low: ArrayLike | None = None
    high: ArrayLike | None = None
    has_points: bool = False
    is_dots: bool = False


@dataclass(frozen=True)
class Bar:
    """A named amount from 0 to 1. low, high: its interval."""

    name: str
    value: float
    low: float | None = None
    high: float | None = None
    is_ours: bool = True


@dataclass(frozen=True)
class Span:
    """Neighbouring rows or columns of a heatmap that share a name."""

    name: str
    count: int = 1


@dataclass(frozen=True)
class Axis:
    """Values low … high on pixels start … end."""

    low: float
    high: float
    start: float
    end: float
    is_log: bool = False

    def at(self, value: ArrayLike) -> NDArray[np.float64]:
        v, low, high = np.asarray(value, np.float64), self.low, self.high
        if self.is_log:
            v, low, high = np.log10(v), math.log10(low), math.log10(high)
        return self.start + (v - low) / (high - low) * (self.end - self.start)

    def ticks(self) -> list[float]:
        return _powers(self.low, self.high) if self.is_log else _steps(self.low, self.high)


def lines(
    series: Sequence[Line],
    *,
    title: str,
    x_title: str,
    is_log: bool = False,
    is_share: bool = False,
    x_is_share: bool = False,
    x_is_whole: bool = False,
    mark: tuple[float, str] | None = None,
    level: tuple[float, str] | None = None,
    y_range: tuple[float, float] | None = None,
) -> str:
    """Lines over one x axis. is_log: of y; is_share, x_is_share: in percent; x_is_whole: x are whole numbers.

    mark: an upright at an x, and its word.  level: a horizontal at a y, and its word.  y_range: what y spans, where
    charts are compared; by default what is drawn.
    """
    kept = [line for line in series if _thin(line, is_log=is_log) is not None]
    drawn = [thin for line in kept if (thin := _thin(line, is_log=is_log)) is not None]
    if not drawn:
        return _frame(title, [_text(WIDTH / 2, HEIGHT / 2, "nothing recorded", anchor="middle", fill=QUIET)])
    every_x = np.concatenate([line[0] for line in drawn])
    every_y = np.concatenate([part for line in drawn for part in line[1:] if part is not None])
    x_axis = Axis(*_from_zero(*_around(every_x, 0.0)), LEFT, WIDTH - RIGHT)
    if level is not None:
        every_y = np.append(every_y, level[0])
    low, high = (0.0, 1.0) if is_share and every_y.min() < 0.4 else _around(every_y, 0.06, is_log=is_log)
    low, high = (low, min(high, 1.0) if is_share else high) if y_range is None else y_range
    y_axis = Axis(low, high, HEIGHT - BOTTOM, TOP, is_log)
    parts = [*_grid(x_axis, y_axis, x_title, is_share=is_share, x_is_share=x_is_share, x_is_whole=x_is_whole)]
    if level is not None:
        y = float(y_axis.at(level[0]))
        parts.append(_path([(x_axis.start, y), (x_axis.end, y)], QUIET, 1.2, "3 3"))
        parts.append(_text(x_axis.end, y - 4 if y > TOP + 14 else y + 13, level[1], anchor="end", fill=QUIET, size=11))
    if mark is not None and x_axis.low <= mark[0] <= x_axis.high:
        x = float(x_axis.at(mark[0]))
        side = "end" if x > WIDTH / 2 else "start"
        parts.append(_path([(x, TOP), (x, HEIGHT - BOTTOM)], QUIET, 1, "3 3"))
        parts.append(_text(x, TOP - 5, mark[1], anchor=side, fill=QUIET, size=11))
    for i, (x_values, y_values, floor, ceiling) in enumerate(drawn):
        xs, hue, dash = x_axis.at(x_values), HUES[i % 3], DASHES[i % 3]
        if floor is not None and ceiling is not None:
            around = [*zip(xs, y_axis.at(ceiling), strict=True), *list(zip(xs, y_axis.at(floor), strict=True))[::-1]]
            parts.append(f'<path d="{_through(around)}Z" fill="{hue}" fill-opacity=".2"/>')
        points = list(zip(xs, y_axis.at(y_values), strict=True))
        if kept[i].is_dots:
            parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{hue}" fill-opacity=".6"/>' for x, y in points]
            continue
        parts.append(_path(points, hue, 2, dash))
        if len(points) == 1 or (kept[i].has_points and len(points) <= 40):
            parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{hue}"/>' for x, y in points]
    return _frame(title, [*parts, *_legend(kept)])


def bars(rows: Sequence[Bar], *, title: str) -> str:
    """Shares side by side, with their intervals; ours stand out."""
    height = 44 * len(rows) + 4
    axis = Axis(0.0, 1.0, 1, WIDTH - 62)
    parts = []
    for i, bar in enumerate(rows):
        y = 44 * i + 2
        x = float(axis.at(min(max(bar.value, 0.0), 1.0)))
        parts.append(_text(1, y + 10, _cut(bar.name, 56)))
        parts.append(f'<rect x="1" y="{y + 16}" width="{axis.end - 1:.1f}" height="14" rx="2" fill="{RULE}"/>')
        hue = FIRST if bar.is_ours else QUIET
        parts.append(f'<rect x="1" y="{y + 16}" width="{max(x - 1, 1):.1f}" height="14" rx="2" fill="{hue}"/>')
        if bar.low is not None and bar.high is not None:
            a, b = axis.at([bar.low, bar.high])
            parts.append(_path([(a, y + 23), (b, y + 23)], "currentColor", 1.5))
            parts += [_path([(end, y + 19), (end, y + 27)], "currentColor", 1.5) for end in (a, b)]
        parts.append(_text(WIDTH - 2, y + 28, f"{100 * bar.value:.1f} %", anchor="end", size=13, weight=600))
    return _frame(title, parts, height=height)


def confusion(matrix: NDArray[np.integer], names: Sequence[str], *, title: str) -> str:
    """Labels down, answers across, each row in shares of its label: right in one hue, wrong in the other.

    matrix: K K of counts. Counts are written into the cells of a small matrix; names are cut, never left out.
    """
    k = len(names)
    cell = 34.0 if k <= 10 else 28.0 if k <= WRITTEN else max(9.0, min(22.0, 620 / k))
    size = min(12.0, max(7.5, 0.92 * cell))
    shown = [_cut(name) for name in names]
    edge = 12 + 0.56 * size * max((len(name) for name in shown), default=0)  # of the longest name
    left, top = 22 + edge, 24 + edge
    width, height = left + k * cell + 6, top + k * cell + 6
    counts = np.asarray(matrix, np.int64)
    shares = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    parts = [
        _text(left + k * cell / 2, 13, "answered", anchor="middle", fill=QUIET),
        _text(0, 0, "labelled", anchor="middle", fill=QUIET, turn=(12, top + k * cell / 2, -90)),
        f'<rect x="{left}" y="{top}" width="{k * cell:.1f}" height="{k * cell:.1f}" fill="none" stroke="{RULE}"/>',
    ]
    for i, (name, short) in enumerate(zip(names, shown, strict=True)):
        middle = (i + 0.5) * cell
        told = f"<title>{html.escape(name)}</title>" if short != name else ""
        parts.append(_text(left - 6, top + middle + 0.35 * size, short, anchor="end", size=size, told=told))
        turned = (left + middle + 0.35 * size, top - 6, -90)
        parts.append(_text(0, 0, short, size=size, turn=turned, told=told))
    if k <= NAMED:
        parts += _cells(counts, shares, names, cell, left, top)
    else:
        parts += _shades(shares, cell, left, top)
    return _svg(title, parts, width, height, is_wide=k > WRITTEN)


def reliability(
    confidence: ArrayLike, accuracy: ArrayLike, count: ArrayLike, edges: ArrayLike, *, title: str, few: int = 10
) -> str:
    """How often it is right when it says that it is so sure; on the dashed line it says the truth.

    One value a bin, edges one more. Bins of fewer than `few` images are drawn hollow.
    """
    p, a, n, e = (np.asarray(v, np.float64) for v in (confidence, accuracy, count, edges))
    top_edge, bottom = 10, HEIGHT - BOTTOM
    ceiling, floor = bottom + 48, bottom + 90
    x_axis, y_axis = Axis(0, 1, LEFT, WIDTH - RIGHT), Axis(0, 1, bottom, top_edge)
    tall = Axis(0, float(max(n.max(initial=0), 1)), floor, ceiling)
    parts = [*_grid(x_axis, y_axis, "how sure it says it is", is_share=True, x_is_share=True)]
    for i in np.flatnonzero(n > 0).tolist():
        x, w = float(x_axis.at(e[i])), float(x_axis.at(e[i + 1]) - x_axis.at(e[i]))
        y = float(y_axis.at(a[i]))
        look = 'fill-opacity=".55"' if n[i] >= few else f'fill-opacity=".08" stroke="{FIRST}" stroke-dasharray="2 2"'
        told = f"says {_percent(p[i])}, right {_percent(a[i])}, {int(n[i]):,} images"
        parts.append(
            f'<rect x="{x + 1:.1f}" y="{y:.1f}" width="{w - 2:.1f}" height="{max(bottom - y, 0):.1f}" fill="{FIRST}" '
            f"{look}><title>{told}</title></rect>"
        )
        top = float(tall.at(n[i]))
        parts.append(
            f'<rect x="{x + 1:.1f}" y="{top:.1f}" width="{w - 2:.1f}" height="{floor - top:.1f}" fill="{QUIET}" '
            f'fill-opacity=".6"><title>{told}</title></rect>'
        )
    parts.append(_path([(x_axis.start, bottom), (x_axis.end, top_edge)], SECOND, 1.5, "6 4"))
    parts.append(_path([(x_axis.start, floor), (x_axis.end, floor)], RULE, 1))
    parts.append(_text(LEFT, floor + 15, f"images in each bar: up to {int(n.max(initial=0)):,}", fill=QUIET, size=11))
    return _svg(title, parts, WIDTH, floor + 22)


def heatmap(
    values: ArrayLike,
    *,
    title: str,
    rows: Sequence[Span],
    columns: Sequence[Span],
    y_title: str,
    x_title: str,
    low: float = 0.0,
    high: float = 1.0,
    path: Sequence[tuple[int, int]] = (),
    side: float = 252.0,
) -> str:
    """A matrix in colours whose lightness rises with the number, beside its scale; cells without a number are grey.

    values: R C.  rows, columns: names of neighbours, from the first on.  path: cells (row, column) to join by a line.
    side: pixels of the longer side.
    """
    cells = np.asarray(values, np.float64)
    unit = side / max(cells.shape)
    size = 11.0
    tall, wide = (
        max(n * unit, side / 3, (size + 1.5) * min(len(names), SPANS))
        for n, names in zip(cells.shape, (rows, columns), strict=True)
    )
    left = 26 + 0.58 * size * max((len(span.name) for span in rows), default=0)
    below = max((len(span.name) for span in columns), default=0) * 0.58 * size
    top = 8.0
    parts = [_bitmap(left, top, wide, tall, shaded(cells, low, high))]
    across, down = Axis(0, cells.shape[1], left, left + wide), Axis(0, cells.shape[0], top, top + tall)
    for at, name, edge in _middles(rows, down):
        parts.append(_text(left - 5, at + 0.35 * size, name, anchor="end", size=size))
        parts.append(_path([(left - 3, edge), (left, edge)], QUIET, 1))
    for at, name, edge in _middles(columns, across):
        parts.append(_text(0, 0, name, anchor="end", size=size, turn=(at + 0.35 * size, top + tall + 6, -90)))
        parts.append(_path([(edge, top + tall), (edge, top + tall + 3)], QUIET, 1))
    if len(path) > 1:
        points = [(float(across.at(c + 0.5)), float(down.at(r + 0.5))) for r, c in path]
        parts += [_path(points, "#000000", 3.6), _path(points, "#ffffff", 1.6)]
    parts.append(_text(0, 0, y_title, anchor="middle", fill=QUIET, turn=(11, top + tall / 2, -90)))
    parts.append(_text(left + wide / 2, top + tall + below + 24, x_title, anchor="middle", fill=QUIET))
    bar = left + wide + 12
    parts.append(_bitmap(bar, top, 12, tall, SCALE[::-1][:, None]))
    scale = Axis(low, high, top + tall, top)
    parts += [_text(bar + 17, float(scale.at(tick)) + 4, f"{tick:.3g}", fill=QUIET, size=11) for tick in scale.ticks()]
    return _svg(title, parts, max(bar + 50, WIDTH), top + tall + below + 32)


def tiles(pictures: Sequence[Tile], *, title: str, columns: int, heads: Sequence[str] = ()) -> str:
    """Pictures in rows of so many, each over its name; small ones show their pixels.  heads: names of the columns."""
    gap, has_names = 6.0, any(tile.title for tile in pictures)
    side = (WIDTH - gap * (columns - 1)) / columns
    top, step = 18.0 if heads else 2.0, side + (19.0 if has_names else gap)
    parts = [_text(i * (side + gap), 12, head, size=11, fill=QUIET) for i, head in enumerate(heads)]
    letters = max(int(side / 6.2), 2)
    for i, tile in enumerate(pictures):
        x, y = i % columns * (side + gap), top + i // columns * step
        h, w = tile.pixels.shape[:2]
        wide, tall = side * min(w / h, 1), side * min(h / w, 1)
        parts.append(_bitmap(x, y, wide, tall, tile.pixels, is_photo=max(h, w) > EXACT))
        if tile.title:
            parts.append(_text(x, y + side + 12, _cut(tile.title, letters), size=10))
    return _svg(title, parts, WIDTH, top + -(-len(pictures) // columns) * step)


def shaded(values: NDArray[np.floating], low: float = 0.0, high: float = 1.0) -> NDArray[np.uint8]:
    """Numbers as colours, dark for low; grey for what is no number.  H W -> H W 3."""
    share = np.clip((np.nan_to_num(values) - low) / (high - low if high > low else 1.0), 0, 1)
    return np.where(np.isfinite(values)[..., None], SCALE[(255 * share).round().astype(int)], UNKNOWN).astype(np.uint8)


def _bitmap(x: float, y: float, wide: float, tall: float, pixels: NDArray[np.uint8], *, is_photo: bool = False) -> str:
    look = "" if is_photo else 'style="image-rendering:pixelated" '
    return (
        f'<image x="{x:.1f}" y="{y:.1f}" width="{wide:.1f}" height="{tall:.1f}" preserveAspectRatio="none" '
        f'{look}href="{data_uri(pixels, is_photo=is_photo)}"/>'
    )


def _middles(spans: Sequence[Span], axis: Axis) -> Iterator[tuple[float, str, float]]:
    """Where a span's name stands, the name, and where the span begins; of many, every second, third …"""
    every, begin = -(-len(spans) // SPANS), 0
    for i, span in enumerate(spans):
        if i % every == 0:
            yield float(axis.at(begin + span.count / 2)), span.name, float(axis.at(begin))
        begin += span.count


def _cells(
    counts: NDArray[np.int64], shares: NDArray[np.float64], names: Sequence[str], cell: float, left: float, top: float
) -> Iterator[str]:
    for i, j in zip(*np.nonzero(counts), strict=True):
        n, share, right = int(counts[i, j]), float(shares[i, j]), i == j
        depth = _depth(share)
        x, y = left + j * cell, top + i * cell
        told = f"{names[i]}, answered {names[j]}: {n:,} ({_percent(share)})"
        yield (
            f'<rect x="{x:.1f}" y="{y:.1f}" width="{cell:.1f}" height="{cell:.1f}" fill="{FIRST if right else SECOND}" '
            f'fill-opacity="{depth:.2f}"><title>{html.escape(told)}</title></rect>'
        )
        if len(names) <= WRITTEN:
            size = min(12.0, 1.5 * cell / max(len(f"{n}"), 2))
            fill = PAPER if depth > 0.55 else "currentColor"
            yield _text(
                x + cell / 2, y + cell / 2 + 0.36 * size, f"{n}", anchor="middle", size=size, fill=fill, still=True
            )


def _shades(shares: NDArray[np.float64], cell: float, left: float, top: float) -> Iterator[str]:
    """A large matrix as one path for each shade: thousands of cells stay small."""
    level = np.ceil(LEVELS * _depth(shares)).astype(int) * (shares > 0)
    right = np.eye(len(shares), dtype=bool)
    for which, hue in ((right, FIRST), (~right, SECOND)):
        for shade in range(1, LEVELS + 1):
            places = np.argwhere(which & (level == shade))
            if len(places):
                squares = "".join(
                    f"M{left + j * cell:.1f} {top + i * cell:.1f}h{cell:.1f}v{cell:.1f}h-{cell:.1f}z" for i, j in places
                )
                yield f'<path d="{squares}" fill="{hue}" fill-opacity="{shade / LEVELS:.2f}"/>'


def _depth(share: NDArray[np.float64] | float) -> NDArray[np.float64] | float:
    """Opacity of a cell: small shares are seen too."""
    return 0.08 + 0.87 * np.asarray(share) ** 0.6 if isinstance(share, np.ndarray) else 0.08 + 0.87 * share**0.6


def _thin(line: Line, *, is_log: bool) -> tuple[NDArray, NDArray, NDArray | None, NDArray | None] | None:
    """x, mean, lowest and highest of neighbours taken together, so that at most POINTS are left; None for no line."""
    x, y = np.asarray(line.x, np.float64), np.asarray(line.y, np.float64)
    low = None if line.low is None else np.asarray(line.low, np.float64)
    high = None if line.high is None else np.asarray(line.high, np.float64)
    good = np.isfinite(x) & np.isfinite(y) & ((y > 0) if is_log else True)
    x, y = x[good], y[good]
    low, high = (None if v is None else v[good] for v in (low, high))
    if len(x) == 0:
        return None
    if len(x) <= POINTS or line.is_dots:
        return x, y, low, high
    cuts = np.linspace(0, len(x), POINTS + 1).astype(int)
    pieces = list(pairwise(cuts.tolist()))
    least = y if low is None else low
    most = y if high is None else high
    return (
        np.array([x[a:b].mean() for a, b in pieces]),
        np.array([y[a:b].mean() for a, b in pieces]),
        np.array([least[a:b].min() for a, b in pieces]),
        np.array([most[a:b].max() for a, b in pieces]),
    )


def _around(values: NDArray[np.float64], margin: float, *, is_log: bool = False) -> tuple[float, float]:
    """The range of some numbers, with a margin as a share of it; never empty."""
    low, high = float(values.min()), float(values.max())
    if is_log:
        room = (high / low) ** margin if high > low else 2.0
        return low / room, high * room
    room = margin * (high - low) if high > low else max(abs(high), 1.0) * 0.5
    return low - room, high + room


def _from_zero(low: float, high: float) -> tuple[float, float]:
    """An axis that nearly begins at 0 begins there."""
    return (0.0 if 0 < low < 0.2 * high else low), high


def _steps(low: float, high: float, wanted: int = 5) -> list[float]:
    """Round numbers between low and high, 1, 2 or 5 of a power of ten apart."""
    rough = (high - low) / wanted
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * n for n in (1, 2, 5, 10) if power * n >= rough)
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [n * step for n in range(first, last + 1)]


def _powers(low: float, high: float) -> list[float]:
    """Powers of ten between low and high; with 2 and 5 of them where there are few; or other round numbers."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    leads = (1, 2, 5) if last - first <= 3 else (1,)
    every = max(1, (last - first) // 6)
    ticks = [n * 10.0**p for p in range(first, last + 1, every) for n in leads if low <= n * 10.0**p <= high]
    return ticks if len(ticks) > 1 else [tick for tick in _steps(low, high) if low <= tick <= high]


def _grid(
    x: Axis, y: Axis, x_title: str, *, is_share: bool, x_is_share: bool = False, x_is_whole: bool = False
) -> Iterator[str]:
    write = _percent if is_share else _short
    for tick in y.ticks():
        at = float(y.at(tick))
        yield _path([(x.start, at), (x.end, at)], RULE, 1)
        yield _text(x.start - 7, at + 4, write(tick), anchor="end", fill=QUIET)
    for tick in x.ticks():
        if x_is_whole and tick != round(tick):
            continue
        at = float(x.at(tick))
        yield _path([(at, y.start), (at, y.start + 4)], QUIET, 1)
        yield _text(at, y.start + 17, _percent(tick) if x_is_share else _short(tick), anchor="middle", fill=QUIET)
    yield _text((x.start + x.end) / 2, y.start + 35, x_title, anchor="middle", fill=QUIET)


def _legend(series: Sequence[Line]) -> Iterator[str]:
    wide = sum(28 + 6.6 * len(line.name) + 20 for line in series) - 20
    x = max(min(float(LEFT), WIDTH - wide), 2.0)
    for i, line in enumerate(series):
        if not line.name:
            continue
        if line.is_dots:
            yield f'<circle cx="{x + 11:.1f}" cy="16" r="3" fill="{HUES[i % 3]}" fill-opacity=".6"/>'
        else:
            yield _path([(x, 16), (x + 22, 16)], HUES[i % 3], 2.5, DASHES[i % 3])
        yield _text(x + 28, 20, line.name)
        x += 28 + 6.6 * len(line.name) + 20


def _frame(title: str, parts: Sequence[str], *, height: float = HEIGHT) -> str:
    return _svg(title, parts, WIDTH, height)


def _svg(title: str, parts: Sequence[str], width: float, height: float, *, is_wide: bool = False) -> str:
    said = html.escape(title, quote=True)
    kind = "chart wide" if is_wide else "chart"
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" class="{kind}" width="{width:.0f}" height="{height:.0f}" '
            f'viewBox="0 0 {width:.0f} {height:.0f}" role="img" aria-label="{said}" font-size="12" '
            'fill="currentColor">',
            *parts,
            "</svg>\n",
        ]
    )


def _text(
    x: float,
    y: float,
    words: str,
    *,
    anchor: str = "start",
    fill: str = "currentColor",
    size: float = 12,
    weight: int = 400,
    turn: tuple[float, float, float] | None = None,
    told: str = "",
    still: bool = False,
) -> str:
    """turn: x, y and degrees, in place of x and y.  still: the pointer passes through."""
    place = f'x="{x:.1f}" y="{y:.1f}"'
    if turn is not None:
        place = f'transform="translate({turn[0]:.1f} {turn[1]:.1f}) rotate({turn[2]:g})"'
    look = "" if weight == 400 else f' font-weight="{weight}"'
    look += "" if size == 12 else f' font-size="{size:.1f}"'
    look += "" if anchor == "start" else f' text-anchor="{anchor}"'
    look += ' pointer-events="none"' if still else ""
    return f'<text {place} fill="{fill}"{look}>{html.escape(words)}{told}</text>'


def _path(points: Sequence[tuple[float, float]], hue: str, width: float, dashes: str = "") -> str:
    dash = f' stroke-dasharray="{dashes}"' if dashes else ""
    return f'<path d="{_through(points)}" fill="none" stroke="{hue}" stroke-width="{width:g}"{dash}/>'


def _through(points: Sequence[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points)


def _percent(share: float) -> str:
    return f"{100 * share:.4g} %" if abs(share) < 0.0995 or share > 0.995 else f"{100 * share:.3g} %"


def _short(value: float) -> str:
    """A tick in few letters: 25k, 0.003, 2e-5."""
    if value == 0:
        return "0"
    size = abs(value)
    if size >= 1e6:
        return f"{value / 1e6:g}M"
    if size >= 1e4:
        return f"{value / 1e3:g}k"
    return f"{value:g}" if size >= 1e-3 else f"{value:.0e}".replace("e-0", "e-")


def _cut(name: str, letters: int = NAME) -> str:
    return name if len(name) <= letters else name[: letters - 1] + "…"
