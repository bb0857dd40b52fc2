"""Charts as files: several under one caption, as SVG that stands alone, as PNG by Pillow, as PDF by matplotlib.

All three show one drawing: `shapes` reads our own SVG back, and only ours, which has few kinds of parts.
"""

from __future__ import annotations

import base64
import html
import io
import math
import re
import textwrap
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
from PIL import Image, ImageColor, ImageDraw, ImageFont

from vitreous.errors import ConfigError
from vitreous.report.colours import FONT, INK, PAPER, QUIET

__all__ = ["Cells", "Panel", "Shape", "need_matplotlib", "pdf", "png", "shapes", "sheet"]

MARGIN, GAP = 20.0, 24.0
ACROSS = 2  # panels side by side
LETTERS = 6.7  # pixels that a letter of the caption takes
OWN_FORMATS = ("JPEG", "PNG")  # of the pixels that charts.py puts into a drawing
FINE = 2  # pixels of a PNG for one of the drawing
INSTALL = "pip install 'vitreous[plot]'"


@dataclass(frozen=True)
class Cells:
    """What the cells of a heatmap tell a pointer: names of rows and columns, and numbers. title: the chart's."""

    title: str
    rows: Sequence[str]
    columns: Sequence[str]
    values: Sequence[Sequence[float | None]]


@dataclass(frozen=True)
class Panel:
    """One chart (see `charts`) under its heading."""

    svg: str
    heading: str = ""
    cells: Cells | None = None


@dataclass(frozen=True)
class Shape:
    """A part of a drawing, in its pixels.

    kind: path (points), circle (one point, size its radius), text (one point, size its letters) or image (a corner and
    its opposite).
    """

    kind: str
    points: tuple[tuple[float, float], ...]
    fill: str | None = None
    stroke: str | None = None
    size: float = 1.0
    opacity: float = 1.0
    dashes: tuple[float, ...] = ()
    text: str = ""
    anchor: str = "start"
    turn: float = 0.0
    is_bold: bool = False
    pixels: bytes = b""


def sheet(panels: Sequence[Panel], *, heading: str, caption: str = "") -> str:
    """Panels side by side under a heading and over a caption, as one SVG in fixed colours, light."""
    sizes = [_size(panel.svg) for panel in panels]
    wide = max(w for w, _ in sizes)
    columns = min(ACROSS, len(panels))
    width = max(2 * MARGIN + columns * wide + (columns - 1) * GAP, 560.0)
    y, parts = MARGIN + 34, []
    for begin in range(0, len(panels), columns):
        row = list(zip(panels, sizes, strict=True))[begin : begin + columns]
        for i, (panel, _) in enumerate(row):
            x = MARGIN + i * (wide + GAP)
            parts.append(_words(x, y + 12, panel.heading, 13, INK, is_bold=True))
            parts.append(_placed(panel.svg, x, y + 22))
        y += 22 + max(h for _, (_, h) in row) + GAP
    for line in textwrap.wrap(caption, int((width - 2 * MARGIN) / LETTERS)):
        parts.append(_words(MARGIN, y, line, 12, QUIET))
        y += 17
    height = y + MARGIN - 12
    top = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" '
        f'viewBox="0 0 {width:.0f} {height:.0f}" font-family="{FONT}" font-size="12" fill="{INK}" role="img" '
        f'aria-label="{html.escape(heading, quote=True)}">'
    )
    ground = f'<rect x="0" y="0" width="{width:.0f}" height="{height:.0f}" fill="{PAPER}"/>'
    return "\n".join([top, ground, _words(MARGIN, MARGIN + 14, heading, 17, INK, is_bold=True), *parts, "</svg>\n"])


def png(svg: str) -> bytes:
    """The drawing as PNG, FINE pixels for one."""
    width, height = _size(svg)
    canvas = Image.new("RGBA", (round(FINE * width), round(FINE * height)), PAPER)
    for shape in shapes(svg):
        _paint(canvas, shape)
    stream = io.BytesIO()
    canvas.convert("RGB").save(stream, "PNG", compress_level=3, dpi=(96 * FINE, 96 * FINE))
    return stream.getvalue()


def need_matplotlib() -> None:
    """Says how to get matplotlib where it is not."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise ConfigError(f"figures as PDF need matplotlib; install it: {INSTALL}") from None


def pdf(svg: str, *, title: str, subject: str = "") -> bytes:
    """The drawing as PDF, lines and words as such."""
    need_matplotlib()
    import matplotlib as mpl
    from matplotlib.figure import Figure

    width, height = _size(svg)
    with mpl.rc_context({"pdf.fonttype": 42, "font.family": "sans-serif", "font.sans-serif": ["DejaVu Sans"]}):
        figure = Figure(figsize=(width / 96, height / 96))
        axes = figure.add_axes((0, 0, 1, 1))
        axes.set(xlim=(0, width), ylim=(height, 0))
        axes.set_axis_off()
        for order, shape in enumerate(shapes(svg)):
            _plot(axes, shape, order)
        stream = io.BytesIO()
        about = {"Title": title, "Subject": subject, "Creator": "vitreous", "CreationDate": None}
        figure.savefig(stream, format="pdf", metadata=about)
    return stream.getvalue()


def shapes(svg: str) -> Iterator[Shape]:
    """The parts of our own drawing, from the lowest to the highest."""
    root = ElementTree.fromstring(_fixed(svg))  # noqa: S314  made by us, a moment ago
    yield from _walk(root, 0.0, 0.0, INK)


# Reading -----------------------------------------------------------------------------------------------------------


def _walk(element: ElementTree.Element, dx: float, dy: float, ink: str) -> Iterator[Shape]:
    for part in element:
        kind, get = part.tag.rpartition("}")[2], part.attrib.get
        x, y = float(get("x", 0)) + dx, float(get("y", 0)) + dy
        look: dict[str, Any] = {"opacity": float(get("fill-opacity", 1)), "fill": _hue(get("fill"), ink)}
        if kind == "svg":
            yield from _walk(part, x, y, ink)
        elif kind == "rect":
            w, h = float(get("width", 0)), float(get("height", 0))
            yield Shape("path", ((x, y), (x + w, y), (x + w, y + h), (x, y + h)), **look)
        elif kind == "circle":
            centre = (float(get("cx", 0)) + dx, float(get("cy", 0)) + dy)
            yield Shape("circle", (centre,), size=float(get("r", 0)), **look)
        elif kind == "path":
            points = tuple((a + dx, b + dy) for a, b in _points(get("d", "")))
            dashes = tuple(float(v) for v in get("stroke-dasharray", "").split())
            stroke = None if get("stroke") is None else _hue(get("stroke"), ink)
            yield Shape("path", points, stroke=stroke, size=float(get("stroke-width", 1)), dashes=dashes, **look)
        elif kind == "text":
            turn = re.match(r"translate\(([-\d.]+) ([-\d.]+)\) rotate\(([-\d.]+)\)", get("transform", ""))
            place, degrees = ((x, y), 0.0)
            if turn is not None:
                place, degrees = (float(turn[1]) + dx, float(turn[2]) + dy), float(turn[3])
            is_bold = int(get("font-weight", 400)) >= 600
            size, anchor = float(get("font-size", 12)), get("text-anchor", "start")
            said: dict[str, Any] = {"text": part.text or "", "anchor": anchor, "turn": degrees, "is_bold": is_bold}
            yield Shape("text", (place,), size=size, **look, **said)
        elif kind == "image":
            opposite = (x + float(get("width", 0)), y + float(get("height", 0)))
            raw = base64.b64decode(get("href", "").partition(",")[2])
            yield Shape("image", ((x, y), opposite), pixels=raw)


def _points(d: str) -> list[tuple[float, float]]:
    numbers = [float(v) for v in re.findall(r"-?\d+\.?\d*", d)]
    return list(zip(numbers[::2], numbers[1::2], strict=True))


def _hue(word: str | None, ink: str) -> str | None:
    if word == "none":
        return None
    return ink if word in (None, "currentColor") else word


def _fixed(svg: str) -> str:
    """Colours of the page by their light values."""
    return re.sub(r"var\(--[\w-]+, (#[0-9a-f]{6})\)", r"\1", svg)


def _size(svg: str) -> tuple[float, float]:
    found = re.search(r'<svg[^>]*? width="([\d.]+)" height="([\d.]+)"', svg)
    assert found is not None
    return float(found[1]), float(found[2])


def _placed(svg: str, x: float, y: float) -> str:
    return re.sub(r"<svg ", f'<svg x="{x:.1f}" y="{y:.1f}" ', _fixed(svg), count=1).rstrip()


def _words(x: float, y: float, text: str, size: float, fill: str, *, is_bold: bool = False) -> str:
    weight = ' font-weight="600"' if is_bold else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size:g}" fill="{fill}"{weight}>{html.escape(text)}</text>'


# PNG ---------------------------------------------------------------------------------------------------------------


@cache
def _font(size: int, is_bold: bool) -> Any:
    for name in ("DejaVuSans-Bold.ttf" if is_bold else "DejaVuSans.ttf", "Arial.ttf", "Helvetica.ttc"):
        try:
            return ImageFont.truetype(name, size)
        except OSError:
            continue
    return ImageFont.load_default(size)


def _paint(canvas: Image.Image, shape: Shape) -> None:
    points = [(FINE * x, FINE * y) for x, y in shape.points]
    if shape.kind == "image":
        (x, y), (right, bottom) = points
        size = max(round(right) - round(x), 1), max(round(bottom) - round(y), 1)
        picture = Image.open(io.BytesIO(shape.pixels), formats=OWN_FORMATS).convert("RGBA")
        is_fine = picture.size[0] > size[0]
        canvas.paste(picture.resize(size, Image.Resampling.BOX if is_fine else Image.Resampling.NEAREST), _whole(x, y))
    elif shape.kind == "text":
        _write(canvas, shape, points[0])
    elif shape.opacity < 1:
        room = FINE * (shape.size + 1)
        x, y = (max(math.floor(min(values) - room), 0) for values in zip(*points, strict=True))
        right, bottom = (math.ceil(max(values) + room) for values in zip(*points, strict=True))
        layer = Image.new("RGBA", (right - x, bottom - y))
        moved = [(a - x, b - y) for a, b in points]
        _stroke(ImageDraw.Draw(layer), shape, moved, round(255 * shape.opacity))
        canvas.alpha_composite(layer, (x, y))
    else:
        _stroke(ImageDraw.Draw(canvas), shape, points, 255)


def _stroke(draw: ImageDraw.ImageDraw, shape: Shape, points: list[tuple[float, float]], alpha: int) -> None:
    fill = None if shape.fill is None else (*ImageColor.getrgb(shape.fill)[:3], alpha)
    if shape.kind == "circle":
        (x, y), r = points[0], FINE * shape.size
        draw.ellipse((x - r, y - r, x + r, y + r), fill=fill)
        return
    if fill is not None and len(points) > 2:
        draw.polygon(points, fill=fill)
    if shape.stroke is not None:
        width = max(round(FINE * shape.size), 1)
        for piece in _dashed(points, [FINE * d for d in shape.dashes]):
            draw.line(piece, fill=shape.stroke, width=width, joint="curve")


def _dashed(points: list[tuple[float, float]], dashes: Sequence[float]) -> Iterator[list[tuple[float, float]]]:
    """A line as it is, or the pieces of it that a pattern of on and off leaves."""
    if not dashes or len(points) < 2:
        yield points
        return
    left, is_on, which, piece = dashes[0], True, 0, [points[0]]
    for (ax, ay), (bx, by) in pairwise(points):
        far, at = math.hypot(bx - ax, by - ay), 0.0
        while far - at > left:
            at += left
            place = (ax + (bx - ax) * at / far, ay + (by - ay) * at / far)
            if is_on:
                yield [*piece, place]
            which, is_on, piece = which + 1, not is_on, [place]
            left = dashes[which % len(dashes)]
        left -= far - at
        piece.append((bx, by))
    if is_on and len(piece) > 1:
        yield piece


def _write(canvas: Image.Image, shape: Shape, place: tuple[float, float]) -> None:
    font = _font(round(FINE * shape.size), shape.is_bold)
    side = {"start": "l", "middle": "m", "end": "r"}[shape.anchor]
    if not shape.turn:
        ImageDraw.Draw(canvas).text(place, shape.text, fill=shape.fill, font=font, anchor=f"{side}s")
        return
    left, top, right, bottom = font.getbbox(shape.text, anchor="ls")
    reach = math.ceil(max(abs(left), abs(top), abs(right), abs(bottom))) + 2
    shift = {"l": 0.0, "m": -right / 2, "r": -right}[side]
    wide = Image.new("RGBA", (4 * reach, 4 * reach))
    ImageDraw.Draw(wide).text((2 * reach + shift, 2 * reach), shape.text, fill=shape.fill, font=font, anchor="ls")
    layer = wide.rotate(-shape.turn, resample=Image.Resampling.BICUBIC)
    x, y = _whole(place[0] - 2 * reach, place[1] - 2 * reach)
    canvas.alpha_composite(layer.crop((max(-x, 0), max(-y, 0), layer.width, layer.height)), (max(x, 0), max(y, 0)))


def _whole(x: float, y: float) -> tuple[int, int]:
    return round(x), round(y)


# PDF ---------------------------------------------------------------------------------------------------------------


def _plot(axes: Any, shape: Shape, order: int) -> None:
    """One part on matplotlib's axes, whose units are the drawing's pixels; a point of print is 4/3 of them."""
    from matplotlib.patches import Circle, PathPatch
    from matplotlib.path import Path

    point = 72 / 96
    if shape.kind == "image":
        (x, y), (right, bottom) = shape.points
        picture = np.asarray(Image.open(io.BytesIO(shape.pixels), formats=OWN_FORMATS).convert("RGB"))
        axes.imshow(picture, extent=(x, right, bottom, y), interpolation="nearest", aspect="auto", zorder=order)
        axes.set(xlim=axes.get_xlim(), ylim=axes.get_ylim())
    elif shape.kind == "text":
        side = {"start": "left", "middle": "center", "end": "right"}[shape.anchor]
        look = {"ha": side, "va": "baseline", "rotation": -shape.turn, "rotation_mode": "anchor", "zorder": order}
        weight = "bold" if shape.is_bold else "normal"
        text = shape.text.replace("$", r"\$")
        axes.text(*shape.points[0], text, size=point * shape.size, color=shape.fill, weight=weight, **look)
    elif shape.kind == "circle":
        axes.add_patch(
            Circle(shape.points[0], shape.size, facecolor=shape.fill, alpha=shape.opacity, lw=0, zorder=order)
        )
    else:
        path = Path([*shape.points, *([shape.points[0]] if shape.fill else [])])
        style = (0, [d / max(shape.size, 0.1) for d in shape.dashes]) if shape.dashes else "solid"
        axes.add_patch(
            PathPatch(
                path,
                facecolor=shape.fill or "none",
                edgecolor=shape.stroke or "none",
                lw=point * shape.size if shape.stroke else 0,
                linestyle=style,
                alpha=shape.opacity,
                zorder=order,
            )
        )
