"""Charts of numbers: lines, bars, intervals, matrices, heatmaps and tiles, each a `Chart` that a page or a file shows.

A chart is about as wide as a phone, so that its words stay legible there; a page puts several side by side. Every eye
tells the hues apart, and lines differ in their dashes too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import numpy as np
from numpy.typing import ArrayLike, NDArray

from vitreous.report.colours import COLOUR_SCALE, MAX_SIDE_UNSMOOTHED, colours
from vitreous.report.marks import Area, Bitmap, Box, Chart, Dot, Mark, Squares, Stroke, Words
from vitreous.words import shortened

CHART_WIDTH, CHART_HEIGHT = 390, 250
LEFT, RIGHT, TOP, BOTTOM = 50, 20, 34, 44  # around the plot
MAX_LINE_POINTS = 240  # no screen shows more
MAX_POINTS_MARKED = 40
FIRST_HUE, SECOND_HUE = "first", "second"
HUES = (FIRST_HUE, SECOND_HUE, "third")
DASHES = ("", "7 4", "2 3")
LEVEL_DASHES = "3 3"
LEGEND_ROW = 18  # pixels
LETTER, GAP_IN_LEGEND = 6.6, 20  # pixels of a letter, and between two names
MUTED, RULE, GROUND, TEXT = "quiet", "line", "paper", "currentColor"
MAX_CLASSES_WITH_COUNTS = 15  # in the cells of a matrix
MAX_CLASSES_WITH_TOOLTIPS = 40  # a cell shows its numbers under the pointer
NAME_LETTERS = 24  # of a class
SHADES = 12  # of a large matrix
MAX_WHOLE_TICKS = 13  # steps along an axis of whole numbers: more would touch
MAX_SPAN_NAMES = 20  # along an axis of a heatmap: more would touch


@dataclass(frozen=True)
class Line:
    """A series. low, high: a band around it.  is_dots: points alone; several may share an x."""

    name: str
    x: ArrayLike
    y: ArrayLike
    low: ArrayLike | None = None
    high: ArrayLike | None = None
    has_points: bool = False
    is_dots: bool = False


@dataclass(frozen=True)
class ShareBar:
    """A named amount from 0 to 1. low, high: its interval."""

    name: str
    value: float
    low: float | None = None
    high: float | None = None
    is_ours: bool = True


@dataclass(frozen=True)
class IntervalRow:
    """A named number with its interval. text: the numbers in words.  dots: single values behind it, such as seeds."""

    name: str
    value: float
    low: float | None
    high: float | None
    text: str = ""
    dots: Sequence[float] = ()


@dataclass(frozen=True, eq=False)
class Tile:
    """A small picture with a title.  pixels: H W 3.  scale: a bar of colours under it, and the words at its ends."""

    title: str
    pixels: NDArray[np.uint8]
    scale: tuple[NDArray[np.uint8], str, str] | None = None


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


Thinned = tuple[NDArray, NDArray, NDArray | None, NDArray | None]  # x, y, low, high of a line


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
) -> Chart:
    """Lines over one x axis. is_log: of y; is_share, x_is_share: in percent; x_is_whole: x are whole numbers.

    mark: a vertical line at an x, and its word.  level: a horizontal line at a y, and its word.  y_range: the range of
    y, for charts that are compared; by default that of the numbers. No word stands within the plot, where a line could
    cross it.
    """
    thin = [(line, kept) for line in series if (kept := _thin(line, is_log=is_log)) is not None]
    if not thin:
        return _chart(
            title, [Words(CHART_WIDTH / 2, CHART_HEIGHT / 2, "nothing recorded", anchor="middle", colour=MUTED)]
        )
    every_x = np.concatenate([kept[0] for _, kept in thin])
    every_y = np.concatenate([part for _, kept in thin for part in kept[1:] if part is not None])
    x_range = _around(every_x, 0.0)
    x_axis = Axis(*(x_range if x_is_whole else _from_zero(*x_range)), LEFT, CHART_WIDTH - RIGHT)
    if level is not None:
        every_y = np.append(every_y, level[0])
    low, high = (0.0, 1.0) if is_share and every_y.min() < 0.4 else _around(every_y, 0.06, is_log=is_log)
    low, high = (low, min(high, 1.0) if is_share else high) if y_range is None else y_range
    legend, more = _legend([line for line, _ in thin], "" if level is None else level[1])
    y_axis = Axis(low, high, CHART_HEIGHT + more - BOTTOM, TOP + more, is_log)
    marks = [*_grid(x_axis, y_axis, x_title, is_share=is_share, x_is_share=x_is_share, x_is_whole=x_is_whole)]
    if level is not None:
        y = float(y_axis.at(level[0]))
        marks.append(Stroke([(x_axis.start, y), (x_axis.end, y)], MUTED, 1.2, LEVEL_DASHES))
    if mark is not None and x_axis.low <= mark[0] <= x_axis.high:
        marks += _upright(*mark, x_axis, y_axis)
    for i, (line, kept) in enumerate(thin):
        marks += _series(line, kept, x_axis, y_axis, i % 3)
    return _chart(title, [*marks, *legend], height=CHART_HEIGHT + more)


def _upright(value: float, word: str, x_axis: Axis, y_axis: Axis) -> list[Mark]:
    x = float(x_axis.at(value))
    side = "end" if x > CHART_WIDTH / 2 else "start"
    return [
        Stroke([(x, y_axis.end), (x, y_axis.start)], MUTED, 1, LEVEL_DASHES),
        Words(x, y_axis.end - 5, word, anchor=side, colour=MUTED, size=11),
    ]


def _series(line: Line, kept: Thinned, x_axis: Axis, y_axis: Axis, which: int) -> Iterator[Mark]:
    """The band, the line and its points."""
    x, y, floor, ceiling = kept
    xs, hue = x_axis.at(x), HUES[which]
    if floor is not None and ceiling is not None:
        around = [*zip(xs, y_axis.at(ceiling), strict=True), *list(zip(xs, y_axis.at(floor), strict=True))[::-1]]
        yield Area(around, hue, 0.2)
    points = list(zip(xs, y_axis.at(y), strict=True))
    if line.is_dots:
        yield from (Dot(*point, hue, 0.6) for point in points)
        return
    yield Stroke(points, hue, 2, DASHES[which])
    if len(points) == 1 or (line.has_points and len(points) <= MAX_POINTS_MARKED):
        yield from (Dot(*point, hue) for point in points)


def bars(rows: Sequence[ShareBar], *, title: str) -> Chart:
    """Shares side by side, with their intervals; ours stand out."""
    axis = Axis(0.0, 1.0, 1, CHART_WIDTH - 62)
    marks: list[Mark] = []
    for i, bar in enumerate(rows):
        y = 44 * i + 2
        x = float(axis.at(min(max(bar.value, 0.0), 1.0)))
        marks.append(Words(1, y + 10, shortened(bar.name, 56)))
        marks.append(Box(1, y + 16, axis.end - 1, 14, RULE, round=2))
        marks.append(Box(1, y + 16, max(x - 1, 1), 14, FIRST_HUE if bar.is_ours else MUTED, round=2))
        if bar.low is not None and bar.high is not None:
            a, b = map(float, axis.at([bar.low, bar.high]))
            marks.append(Stroke([(a, y + 23), (b, y + 23)], TEXT, 1.5))
            marks += [Stroke([(end, y + 19), (end, y + 27)], TEXT, 1.5) for end in (a, b)]
        marks.append(Words(CHART_WIDTH - 2, y + 28, f"{100 * bar.value:.1f} %", anchor="end", size=13, weight=600))
    return _chart(title, marks, height=44 * len(rows) + 4)


def intervals(
    rows: Sequence[IntervalRow], *, title: str, x_title: str, at: Sequence[float] = (0.0,), is_share: bool = False
) -> Chart:
    """Numbers below each other with their intervals; dashed lines at the values that decide.

    is_share: the numbers are shares, written in points of percent.
    """
    ends = [end for row in rows for end in (row.low, row.high, row.value, *row.dots) if end is not None]
    axis = Axis(*_around(np.asarray([*ends, *at]), 0.06), 12, CHART_WIDTH - 12)
    bottom = 38 * len(rows) + 6
    marks: list[Mark] = []
    for tick in axis.ticks():
        x = float(axis.at(tick))
        marks += [Stroke([(x, 0), (x, bottom)], RULE, 1)]
        marks += [
            Words(x, bottom + 16, _short(round(100 * tick, 9) if is_share else tick), anchor="middle", colour=MUTED)
        ]
    marks += [Stroke([(x, 0), (x, bottom)], MUTED, 1.2, LEVEL_DASHES) for x in map(float, axis.at(list(at)))]
    for i, row in enumerate(rows):
        y = 38 * i + 27
        marks.append(Words(2, y - 12, shortened(row.name, 40), tooltip=_whole(row.name, 40)))
        marks.append(Words(CHART_WIDTH - 2, y - 12, row.text, anchor="end", colour=MUTED))
        marks += [Dot(float(axis.at(dot)), y, MUTED, 0.7, 2.2) for dot in row.dots]
        if row.low is not None and row.high is not None:
            a, b = map(float, axis.at([row.low, row.high]))
            marks.append(Stroke([(a, y), (b, y)], FIRST_HUE, 2))
            marks += [Stroke([(end, y - 4), (end, y + 4)], FIRST_HUE, 2) for end in (a, b)]
        marks.append(Dot(float(axis.at(row.value)), y, FIRST_HUE, 1.0, 4.0))
    marks.append(Words(CHART_WIDTH / 2, bottom + 34, x_title, anchor="middle", colour=MUTED))
    return _chart(title, marks, height=bottom + 42)


def confusion(matrix: NDArray[np.integer], names: Sequence[str], *, title: str) -> Chart:
    """Labels down, answers across, each row in shares of its label: right in one hue, wrong in the other.

    matrix: K K of counts. Counts are written into the cells of a small matrix; names are cut, never left out.
    """
    k = len(names)
    cell = 34.0 if k <= 10 else 28.0 if k <= MAX_CLASSES_WITH_COUNTS else max(9.0, min(22.0, 620 / k))
    size = min(12.0, max(7.5, 0.92 * cell))
    shown = [shortened(name, NAME_LETTERS) for name in names]
    edge = 12 + 0.56 * size * max((len(name) for name in shown), default=0)  # of the longest name
    left, top = 22 + edge, 24 + edge
    counts = np.asarray(matrix, np.int64)
    shares = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    marks: list[Mark] = [
        Words(left + k * cell / 2, 13, "answered", anchor="middle", colour=MUTED),
        Words(12, top + k * cell / 2, "labelled", anchor="middle", colour=MUTED, turn=-90),
        Box(left, top, k * cell, k * cell, border=RULE),
    ]
    for i, (name, short) in enumerate(zip(names, shown, strict=True)):
        middle = (i + 0.5) * cell + 0.35 * size
        tooltip = name if short != name else ""
        marks.append(Words(left - 6, top + middle, short, anchor="end", size=size, tooltip=tooltip))
        marks.append(Words(left + middle, top - 6, short, size=size, turn=-90, tooltip=tooltip))
    if k <= MAX_CLASSES_WITH_TOOLTIPS:
        marks += _cells(counts, shares, names, cell, left, top)
    else:
        marks += _shades(shares, cell, left, top)
    width, height = left + k * cell + 6, top + k * cell + 6
    return _chart(title, marks, width, height, is_wide=k > MAX_CLASSES_WITH_COUNTS)


def reliability(
    confidence: ArrayLike, accuracy: ArrayLike, count: ArrayLike, edges: ArrayLike, *, title: str, few: int = 10
) -> Chart:
    """Accuracy by confidence; on the dashed line the model is as right as it says.

    One value a bin, edges one more. Bins of fewer than `few` images are drawn hollow.
    """
    p, a, n, e = (np.asarray(v, np.float64) for v in (confidence, accuracy, count, edges))
    top_edge, bottom = 10, CHART_HEIGHT - BOTTOM
    ceiling, floor = bottom + 48, bottom + 90
    x_axis, y_axis = Axis(0, 1, LEFT, CHART_WIDTH - RIGHT), Axis(0, 1, bottom, top_edge)
    tall = Axis(0, float(max(n.max(initial=0), 1)), floor, ceiling)
    marks: list[Mark] = [*_grid(x_axis, y_axis, "how sure it says it is", is_share=True, x_is_share=True)]
    for i in np.flatnonzero(n > 0).tolist():
        x, w = float(x_axis.at(e[i])), float(x_axis.at(e[i + 1]) - x_axis.at(e[i]))
        y, top = float(y_axis.at(a[i])), float(tall.at(n[i]))
        tooltip = f"says {_percent(p[i])}, right {_percent(a[i])}, {int(n[i]):,} images"
        is_many = n[i] >= few
        edge = ("", "") if is_many else (FIRST_HUE, "2 2")
        marks.append(Box(x + 1, y, w - 2, max(bottom - y, 0), FIRST_HUE, 0.55 if is_many else 0.08, *edge, tooltip))
        marks.append(Box(x + 1, top, w - 2, floor - top, MUTED, 0.6, tooltip=tooltip))
    marks.append(Stroke([(x_axis.start, bottom), (x_axis.end, top_edge)], SECOND_HUE, 1.5, "6 4"))
    marks.append(Stroke([(x_axis.start, floor), (x_axis.end, floor)], RULE, 1))
    most = f"images in each bar: up to {int(n.max(initial=0)):,}"
    marks.append(Words(LEFT, floor + 15, most, colour=MUTED, size=11))
    return _chart(title, marks, height=floor + 22)


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
) -> Chart:
    """A matrix in colours beside its scale: lighter is more, grey is no number.

    values: R C.  rows, columns: names of neighbours, from the first on.  path: cells (row, column) to join by a line.
    side: pixels of the longer side.
    """
    cells = np.asarray(values, np.float64)
    unit = side / max(cells.shape)
    size = 11.0
    tall, wide = (
        max(n * unit, side / 3, (size + 1.5) * min(len(names), MAX_SPAN_NAMES))
        for n, names in zip(cells.shape, (rows, columns), strict=True)
    )
    left = 26 + 0.58 * size * max((len(span.name) for span in rows), default=0)
    below = max((len(span.name) for span in columns), default=0) * 0.58 * size
    top = 8.0
    marks: list[Mark] = [Bitmap(left, top, wide, tall, colours(cells, low, high))]
    across, down = Axis(0, cells.shape[1], left, left + wide), Axis(0, cells.shape[0], top, top + tall)
    for at, name, edge in _middles(rows, down):
        marks.append(Words(left - 5, at + 0.35 * size, name, anchor="end", size=size))
        marks.append(Stroke([(left - 3, edge), (left, edge)], MUTED, 1))
    for at, name, edge in _middles(columns, across):
        marks.append(Words(at + 0.35 * size, top + tall + 6, name, anchor="end", size=size, turn=-90))
        marks.append(Stroke([(edge, top + tall), (edge, top + tall + 3)], MUTED, 1))
    if len(path) > 1:
        points = [(float(across.at(c + 0.5)), float(down.at(r + 0.5))) for r, c in path]
        marks += [Stroke(points, "#000000", 3.6), Stroke(points, "#ffffff", 1.6)]
    marks.append(Words(11, top + tall / 2, y_title, anchor="middle", colour=MUTED, turn=-90))
    marks.append(Words(left + wide / 2, top + tall + below + 24, x_title, anchor="middle", colour=MUTED))
    bar = left + wide + 12
    marks.append(Bitmap(bar, top, 12, tall, COLOUR_SCALE[::-1][:, None]))
    scale = Axis(low, high, top + tall, top)
    ticks = scale.ticks()
    marks += [Words(bar + 17, float(scale.at(tick)) + 4, f"{tick:.3g}", colour=MUTED, size=11) for tick in ticks]
    return _chart(title, marks, max(bar + 50, CHART_WIDTH), top + tall + below + 32)


def tiles(pictures: Sequence[Tile], *, title: str, columns: int) -> Chart:
    """Pictures in rows of `columns`, each over its scale and its name; small ones show their pixels."""
    gap = 8.0
    side = tile_side(columns, gap)
    letters = max(int(side / 6.2), 2)
    marks: list[Mark] = []
    y = 2.0
    for begin in range(0, len(pictures), columns):
        row = pictures[begin : begin + columns]
        tallest = max(side * min(tile.pixels.shape[0] / tile.pixels.shape[1], 1) for tile in row)
        below = y + tallest  # of the row's pictures
        for i, tile in enumerate(row):
            x, (h, w) = i * (side + gap), tile.pixels.shape[:2]
            wide, tall = side * min(w / h, 1), side * min(h / w, 1)
            marks.append(Bitmap(x, y, wide, tall, tile.pixels, is_photo=max(h, w) > MAX_SIDE_UNSMOOTHED))
            if tile.title:
                marks.append(
                    Words(x, below + 12, shortened(tile.title, letters), size=10, tooltip=_whole(tile.title, letters))
                )
            if tile.scale is not None:
                colours_of_bar, low, high = tile.scale
                marks.append(Bitmap(x, below + 17, side, 6, colours_of_bar))
                marks.append(Words(x, below + 33, low, size=9, colour=MUTED))
                marks.append(Words(x + side, below + 33, high, anchor="end", size=9, colour=MUTED))
        y = (
            below
            + gap
            + (10 if any(tile.title for tile in row) else 0)
            + (22 if any(tile.scale for tile in row) else 0)
        )
    return _chart(title, marks, height=y)


def tile_side(columns: int, gap: float = 8.0) -> float:
    """Pixels of a tile's longer side."""
    return (CHART_WIDTH - gap * (columns - 1)) / columns


def _middles(spans: Sequence[Span], axis: Axis) -> Iterator[tuple[float, str, float]]:
    """Middle, name and beginning of each span; of many spans, every second, third …"""
    every, begin = -(-len(spans) // MAX_SPAN_NAMES), 0
    for i, span in enumerate(spans):
        if i % every == 0:
            yield float(axis.at(begin + span.count / 2)), span.name, float(axis.at(begin))
        begin += span.count


def _cells(
    counts: NDArray[np.int64], shares: NDArray[np.float64], names: Sequence[str], cell: float, left: float, top: float
) -> Iterator[Mark]:
    for i, j in zip(*np.nonzero(counts), strict=True):
        n, share = int(counts[i, j]), float(shares[i, j])
        depth = float(_depth(share))
        x, y = left + j * cell, top + i * cell
        tooltip = f"{names[i]}, answered {names[j]}: {n:,} ({_percent(share)})"
        yield Box(x, y, cell, cell, FIRST_HUE if i == j else SECOND_HUE, depth, tooltip=tooltip)
        if len(names) <= MAX_CLASSES_WITH_COUNTS:
            size = min(12.0, 1.5 * cell / max(len(f"{n}"), 2))
            middle = (x + cell / 2, y + cell / 2 + 0.36 * size)
            colour = GROUND if depth > 0.55 else TEXT
            yield Words(*middle, f"{n}", anchor="middle", colour=colour, size=size, passes_pointer=True)


def _shades(shares: NDArray[np.float64], cell: float, left: float, top: float) -> Iterator[Mark]:
    """A large matrix as one mark for each shade: thousands of cells stay small."""
    level = np.ceil(SHADES * _depth(shares)).astype(int) * (shares > 0)
    right = np.eye(len(shares), dtype=bool)
    for which, hue in ((right, FIRST_HUE), (~right, SECOND_HUE)):
        for shade in range(1, SHADES + 1):
            places = np.argwhere(which & (level == shade)).tolist()
            if places:
                yield Squares([(left + j * cell, top + i * cell) for i, j in places], cell, hue, shade / SHADES)


def _depth(share: NDArray[np.float64] | float) -> NDArray[np.float64] | float:
    """Opacity of a cell: small shares are seen too."""
    return 0.08 + 0.87 * share**0.6


def _thin(line: Line, *, is_log: bool) -> Thinned | None:
    """x, mean, lowest and highest of neighbours taken together: at most MAX_LINE_POINTS. None: nothing to draw."""
    x, y = np.asarray(line.x, np.float64), np.asarray(line.y, np.float64)
    good = np.isfinite(x) & np.isfinite(y) & ((y > 0) if is_log else True)
    if not good.any():
        return None
    x, y = x[good], y[good]
    low, high = (None if end is None else np.asarray(end, np.float64)[good] for end in (line.low, line.high))
    if len(x) <= MAX_LINE_POINTS or line.is_dots:
        return x, y, low, high
    pieces = list(pairwise(np.linspace(0, len(x), MAX_LINE_POINTS + 1).astype(int).tolist()))

    def joined(values: NDArray, how: Callable[[NDArray], float]) -> NDArray:
        return np.array([how(values[a:b]) for a, b in pieces])

    least, most = y if low is None else low, y if high is None else high
    return joined(x, np.mean), joined(y, np.mean), joined(least, np.min), joined(most, np.max)


def _around(values: NDArray[np.float64], margin: float, *, is_log: bool = False) -> tuple[float, float]:
    """The range of the numbers, widened by a share `margin`; never empty."""
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
    """Powers of ten between low and high, also times 2 and 5 over a short range; if one or none fits, round numbers."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    leads = (1, 2, 5) if last - first <= 3 else (1,)
    every = max(1, (last - first) // 6)
    ticks = [n * 10.0**p for p in range(first, last + 1, every) for n in leads if low <= n * 10.0**p <= high]
    return ticks if len(ticks) > 1 else [tick for tick in _steps(low, high) if low <= tick <= high]


def _grid(
    x: Axis, y: Axis, x_title: str, *, is_share: bool, x_is_share: bool = False, x_is_whole: bool = False
) -> Iterator[Mark]:
    write = _percent if is_share else _short
    for tick in y.ticks():
        at = float(y.at(tick))
        yield Stroke([(x.start, at), (x.end, at)], RULE, 1)
        yield Words(x.start - 7, at + 4, write(tick), anchor="end", colour=MUTED)
    for tick in _whole_numbers(x) if x_is_whole else x.ticks():
        at = float(x.at(tick))
        yield Stroke([(at, y.start), (at, y.start + 4)], MUTED, 1)
        yield Words(at, y.start + 17, _percent(tick) if x_is_share else _short(tick), anchor="middle", colour=MUTED)
    yield Words((x.start + x.end) / 2, y.start + 35, x_title, anchor="middle", colour=MUTED)


def _whole_numbers(axis: Axis) -> list[float]:
    """Every whole number on a short axis; on a long one, the first and the round ones."""
    first, last = math.ceil(axis.low), math.floor(axis.high)
    if last - first <= MAX_WHOLE_TICKS:
        return [float(n) for n in range(first, last + 1)]
    round_ones = [tick for tick in axis.ticks() if tick == round(tick)]
    return [float(first), *(tick for tick in round_ones if tick - first > (round_ones[1] - round_ones[0]) / 2)]


def _legend(series: Sequence[Line], level: str) -> tuple[list[Mark], float]:
    """Signs and names above the plot, and the pixels that they take beyond one row.  level: the level line's name."""
    entries: list[tuple[str, Callable[[float, float], Mark]]] = []
    for i, line in enumerate(series):
        entries += [(line.name, partial(_sign, HUES[i % 3], DASHES[i % 3], line.is_dots))] if line.name else []
    entries += [(level, lambda x, y: Stroke([(x, y), (x + 22, y)], MUTED, 1.2, LEVEL_DASHES))] if level else []
    rows: list[list[float]] = [[]]  # the widths of the names
    for name, _ in entries:
        wide = 28 + LETTER * len(name)
        if rows[-1] and sum(rows[-1]) + GAP_IN_LEGEND * len(rows[-1]) + wide > CHART_WIDTH - 2:
            rows.append([])
        rows[-1].append(wide)
    marks, left = [], iter(entries)
    for i, row in enumerate(rows):
        x = max(min(float(LEFT), CHART_WIDTH - sum(row) - GAP_IN_LEGEND * (len(row) - 1)), 2.0)
        for wide, (name, sign) in zip(row, left, strict=False):
            marks += [sign(x, 16.0 + LEGEND_ROW * i), Words(x + 28, 20 + LEGEND_ROW * i, name)]
            x += wide + GAP_IN_LEGEND
    return marks, LEGEND_ROW * (len(rows) - 1.0)


def _sign(hue: str, dashes: str, is_dots: bool, x: float, y: float) -> Mark:
    return Dot(x + 11, y, hue, 0.6) if is_dots else Stroke([(x, y), (x + 22, y)], hue, 2.5, dashes)


def _chart(
    title: str,
    marks: Sequence[Mark],
    width: float = CHART_WIDTH,
    height: float = CHART_HEIGHT,
    *,
    is_wide: bool = False,
) -> Chart:
    return Chart(title, tuple(marks), round(width), round(height), is_wide)


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


def _whole(name: str, letters: int) -> str:
    """For a tooltip: the full name, if it is cut."""
    return name if len(name) > letters else ""
