"""A chart is a value: a few kinds of marks on a canvas of pixels, written as SVG or drawn by matplotlib.

SVG takes its colours from the page: light, dark and print alike. matplotlib (the extra `plot`) makes PNG and PDF.
"""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vitreous.report.colours import INK, data_uri

Points = Sequence[tuple[float, float]]
Paint = Callable[[str], str]  # a colour as SVG writes it
POINT = 72 / 96  # points of print for one pixel
PNG_PIXELS = 2  # of a PNG for one pixel of a chart
THEME = {  # colours that the page may change, by their light values
    "first": "#0b6fa4",
    "second": "#c2500a",
    "third": "#7a5195",
    "quiet": "#5a6774",
    "line": "#dde3e8",
    "paper": "#ffffff",
}


def themed(colour: str) -> str:
    """A colour that the page chooses."""
    return f"var(--{colour}, {THEME[colour]})" if colour in THEME else colour


def fixed(colour: str) -> str:
    """A colour by its light value."""
    return THEME.get(colour, colour)


def _print(colour: str) -> str:
    """A colour as matplotlib knows it."""
    return INK if colour == "currentColor" else fixed(colour)


@dataclass(frozen=True)
class Stroke:
    """A line through points."""

    points: Points
    colour: str
    width: float
    dashes: str = ""

    def svg(self, paint: Paint) -> str:
        dash = f' stroke-dasharray="{self.dashes}"' if self.dashes else ""
        line = f'stroke="{paint(self.colour)}" stroke-width="{self.width:g}"{dash}'
        return f'<path d="{_through(self.points)}" fill="none" {line}/>'

    def plot(self, axes: Any, order: int) -> None:
        from matplotlib.patches import PathPatch
        from matplotlib.path import Path

        dashes = [float(dash) / self.width for dash in self.dashes.split()]
        line: dict[str, Any] = {"lw": POINT * self.width, "ls": (0, dashes) if dashes else "solid"}
        axes.add_patch(PathPatch(Path(list(self.points)), fc="none", ec=_print(self.colour), **line, zorder=order))


@dataclass(frozen=True)
class Area:
    """What lies within points."""

    points: Points
    colour: str
    opacity: float

    def svg(self, paint: Paint) -> str:
        return f'<path d="{_through(self.points)}Z"{_filled(paint(self.colour), self.opacity)}/>'

    def plot(self, axes: Any, order: int) -> None:
        from matplotlib.patches import Polygon

        axes.add_patch(Polygon(list(self.points), fc=_print(self.colour), alpha=self.opacity, lw=0, zorder=order))


@dataclass(frozen=True)
class Squares:
    """Squares of one colour, by their upper left corners."""

    corners: Points
    side: float
    colour: str
    opacity: float

    def svg(self, paint: Paint) -> str:
        side = f"h{self.side:.1f}v{self.side:.1f}h-{self.side:.1f}z"
        squares = "".join(f"M{x:.1f} {y:.1f}{side}" for x, y in self.corners)
        return f'<path d="{squares}"{_filled(paint(self.colour), self.opacity)}/>'

    def plot(self, axes: Any, order: int) -> None:
        for x, y in self.corners:
            Box(x, y, self.side, self.side, self.colour, self.opacity).plot(axes, order)


@dataclass(frozen=True)
class Dot:
    """A filled circle."""

    x: float
    y: float
    colour: str
    opacity: float = 1.0
    radius: float = 3.0

    def svg(self, paint: Paint) -> str:
        place = f'cx="{self.x:.1f}" cy="{self.y:.1f}" r="{self.radius:g}"'
        return f"<circle {place}{_filled(paint(self.colour), self.opacity)}/>"

    def plot(self, axes: Any, order: int) -> None:
        from matplotlib.patches import Circle

        centre = (self.x, self.y)
        axes.add_patch(Circle(centre, self.radius, fc=_print(self.colour), alpha=self.opacity, lw=0, zorder=order))


@dataclass(frozen=True)
class Box:
    """A rectangle. border: the colour of its edge.  tooltip: what shows under the pointer.  round: corner radius."""

    x: float
    y: float
    width: float
    height: float
    colour: str = "none"
    opacity: float = 1.0
    border: str = ""
    dashes: str = ""
    tooltip: str = ""
    round: float = 0.0

    def svg(self, paint: Paint) -> str:
        place = f'x="{self.x:.1f}" y="{self.y:.1f}" width="{self.width:.1f}" height="{self.height:.1f}"'
        look = f' rx="{self.round:g}"' if self.round else ""
        look += _filled(paint(self.colour), self.opacity)
        look += f' stroke="{paint(self.border)}"' if self.border else ""
        look += f' stroke-dasharray="{self.dashes}"' if self.dashes else ""
        return f"<rect {place}{look}>{_title(self.tooltip)}</rect>" if self.tooltip else f"<rect {place}{look}/>"

    def plot(self, axes: Any, order: int) -> None:
        from matplotlib.colors import to_rgba
        from matplotlib.patches import Rectangle

        fill = "none" if self.colour == "none" else to_rgba(_print(self.colour), self.opacity)
        dashes = [float(dash) for dash in self.dashes.split()]
        edge = {"ec": _print(self.border), "lw": POINT} if self.border else {"ec": "none", "lw": 0}
        line: dict[str, Any] = {**edge, "ls": (0, dashes) if dashes else "solid"}
        axes.add_patch(Rectangle((self.x, self.y), self.width, self.height, fc=fill, **line, zorder=order))


@dataclass(frozen=True)
class Words:
    """A line of text; x, y: where its anchor stands. turn: degrees.  tooltip: the full text, if it is cut.

    passes_pointer: the pointer reaches what lies below.
    """

    x: float
    y: float
    text: str
    anchor: str = "start"
    colour: str = "currentColor"
    size: float = 12
    weight: int = 400
    turn: float = 0.0
    tooltip: str = ""
    passes_pointer: bool = False

    def svg(self, paint: Paint) -> str:
        place = f'x="{self.x:.1f}" y="{self.y:.1f}"'
        if self.turn:
            place = f'transform="translate({self.x:.1f} {self.y:.1f}) rotate({self.turn:g})"'
        look = "" if self.weight == 400 else f' font-weight="{self.weight}"'
        look += "" if self.size == 12 else f' font-size="{self.size:.1f}"'
        look += "" if self.anchor == "start" else f' text-anchor="{self.anchor}"'
        look += ' pointer-events="none"' if self.passes_pointer else ""
        return f'<text {place} fill="{paint(self.colour)}"{look}>{html.escape(self.text)}{_title(self.tooltip)}</text>'

    def plot(self, axes: Any, order: int) -> None:
        side = {"start": "left", "middle": "center", "end": "right"}[self.anchor]
        weight = "bold" if self.weight >= 600 else "normal"
        line = {"ha": side, "va": "baseline", "rotation": -self.turn, "rotation_mode": "anchor", "weight": weight}
        line |= {"size": POINT * self.size, "color": _print(self.colour), "parse_math": False}
        axes.text(self.x, self.y, self.text, **line, zorder=order)


@dataclass(frozen=True, eq=False)
class Bitmap:
    """Pixels stretched over a rectangle. is_photo: smoothed, and JPEG inside SVG; else each pixel is seen."""

    x: float
    y: float
    width: float
    height: float
    pixels: NDArray[np.uint8]  # H W 3
    is_photo: bool = False

    def svg(self, paint: Paint) -> str:
        place = f'x="{self.x:.1f}" y="{self.y:.1f}" width="{self.width:.1f}" height="{self.height:.1f}"'
        look = "" if self.is_photo else 'style="image-rendering:pixelated" '
        address = data_uri(Image.fromarray(self.pixels), is_photo=self.is_photo)
        return f'<image {place} preserveAspectRatio="none" {look}href="{address}"/>'

    def plot(self, axes: Any, order: int) -> None:
        edges = (self.x, self.x + self.width, self.y + self.height, self.y)
        axes.imshow(self._smooth(), extent=edges, aspect="auto", interpolation="none", zorder=order)

    def _smooth(self) -> NDArray[np.uint8]:
        """The pixels of a PNG, antialiased: matplotlib repeats or drops whole ones."""
        size = math.ceil(PNG_PIXELS * self.width), math.ceil(PNG_PIXELS * self.height)
        if self.is_photo:
            return np.asarray(Image.fromarray(self.pixels).resize(size, Image.Resampling.LANCZOS))
        times = [math.ceil(4 * wanted / has) for wanted, has in zip(size[::-1], self.pixels.shape[:2], strict=True)]
        fine = self.pixels.repeat(times[0], 0).repeat(times[1], 1)  # each cell in many pixels, then their mean
        return np.asarray(Image.fromarray(fine).resize(size, Image.Resampling.BOX))


Mark = Stroke | Area | Squares | Dot | Box | Words | Bitmap


@dataclass(frozen=True)
class Chart:
    """Marks on a canvas, from the lowest to the highest. title: for those who cannot see it."""

    title: str
    marks: Sequence[Mark]
    width: int
    height: int
    is_wide: bool = False

    @property
    def has_photos(self) -> bool:
        return any(isinstance(mark, Bitmap) and mark.is_photo for mark in self.marks)

    def to_svg(self, *, at: tuple[float, float] | None = None, paint: Paint = themed) -> str:
        """SVG for a page, without script. at: its place within another SVG."""
        place = "" if at is None else f'x="{at[0]:.1f}" y="{at[1]:.1f}" '
        kind = "chart wide" if self.is_wide else "chart"
        size = f'width="{self.width}" height="{self.height}" viewBox="0 0 {self.width} {self.height}"'
        head = (
            f'<svg {place}xmlns="http://www.w3.org/2000/svg" class="{kind}" {size} '
            f'role="img" aria-label="{html.escape(self.title, quote=True)}" font-size="12" fill="currentColor">'
        )
        return "\n".join([head, *(mark.svg(paint) for mark in self.marks), "</svg>\n"])

    def to_matplotlib(self, axes: Any) -> None:
        """Every mark on axes of matplotlib, which must have the chart's shape; their units become its pixels."""
        axes.set(xlim=(0, self.width), ylim=(self.height, 0))
        axes.set_axis_off()
        for order, mark in enumerate(self.marks):
            mark.plot(axes, order)


def _through(points: Points) -> str:
    return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points)


def _filled(colour: str, opacity: float) -> str:
    share = f"{opacity:.2f}".strip("0") or "0"
    return f' fill="{colour}"' + ("" if opacity == 1 else f' fill-opacity="{share}"')


def _title(text: str) -> str:
    return f"<title>{html.escape(text)}</title>" if text else ""
