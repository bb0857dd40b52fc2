"""Charts as files: several under one heading, as SVG that stands alone, or as PNG and PDF by matplotlib."""

from __future__ import annotations

import html
import io
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from vitreous.errors import ConfigError
from vitreous.report.colours import FONT, INK, PAPER, QUIET
from vitreous.report.marks import PNG_PIXELS, Chart, Words, fixed

MARGIN, GAP_BETWEEN_PANELS = 20.0, 24.0
PANELS_ACROSS = 2
LETTER_WIDTH = 6.7  # pixels that a letter of the caption takes
LEAST_WIDTH = 560.0
PIXELS_PER_INCH = 96
INSTALL_PLOT = "pip install 'vitreous[plot]'"


@dataclass(frozen=True)
class Cells:
    """What the cells of a heatmap show under the pointer: names of rows and columns, and numbers."""

    rows: Sequence[str]
    columns: Sequence[str]
    values: Sequence[Sequence[float | None]]


@dataclass(frozen=True)
class Panel:
    """One chart under its heading."""

    chart: Chart
    heading: str = ""
    cells: Cells | None = None


@dataclass(frozen=True)
class Placed:
    """A chart on a sheet; x, y: its upper left corner."""

    chart: Chart
    x: float
    y: float


@dataclass(frozen=True)
class Sheet:
    """Panels side by side under a heading and over a caption, in fixed colours, light."""

    heading: str
    width: int
    height: int
    parts: Sequence[Words | Placed]

    def to_svg(self) -> str:
        """Self-contained SVG."""
        size = f'width="{self.width}" height="{self.height}"'
        top = (
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} viewBox="0 0 {self.width} {self.height}" '
            f'font-family="{FONT}" font-size="12" fill="{INK}" role="img" '
            f'aria-label="{html.escape(self.heading, quote=True)}">'
        )
        parts = [
            part.svg(fixed) if isinstance(part, Words) else part.chart.to_svg(at=(part.x, part.y), paint=fixed).rstrip()
            for part in self.parts
        ]
        return "\n".join([top, f'<rect x="0" y="0" {size} fill="{PAPER}"/>', *parts, "</svg>\n"])

    def to_png(self) -> bytes:
        """PNG_PIXELS pixels for each pixel of the sheet, smoothed."""
        how: dict[str, Any] = {"metadata": {"Software": "vitreous"}, "pil_kwargs": {"compress_level": 3}}
        return self._saved("png", dpi=PNG_PIXELS * PIXELS_PER_INCH, **how)

    def to_pdf(self, *, title: str, subject: str = "") -> bytes:
        """One page; lines stay lines and words stay words."""
        about = {"Title": title, "Subject": subject, "Creator": "vitreous", "CreationDate": None}
        return self._saved("pdf", metadata=about)

    def _saved(self, kind: str, **how: Any) -> bytes:
        need_matplotlib()
        import matplotlib as mpl
        from matplotlib.figure import Figure

        fonts = {"pdf.fonttype": 42, "font.family": "sans-serif", "font.sans-serif": ["DejaVu Sans"]}
        wide, tall = ((side + 1e-6) / PIXELS_PER_INCH for side in (self.width, self.height))  # never a pixel short
        with mpl.rc_context(fonts):
            figure = Figure(figsize=(wide, tall), facecolor=PAPER)
            words = [part for part in self.parts if isinstance(part, Words)]
            Chart(self.heading, words, self.width, self.height).to_matplotlib(figure.add_axes((0, 0, 1, 1)))
            for part in (part for part in self.parts if isinstance(part, Placed)):
                chart, below = part.chart, self.height - part.y - part.chart.height
                place = (part.x / self.width, below / self.height, chart.width / self.width, chart.height / self.height)
                chart.to_matplotlib(figure.add_axes(place))
            stream = io.BytesIO()
            figure.savefig(stream, format=kind, **how)
        return stream.getvalue()


def sheet(panels: Sequence[Panel], *, heading: str, caption: str = "") -> Sheet:
    """The panels in rows of two."""
    wide = max(panel.chart.width for panel in panels)
    columns = min(PANELS_ACROSS, len(panels))
    width = max(2 * MARGIN + columns * wide + (columns - 1) * GAP_BETWEEN_PANELS, LEAST_WIDTH)
    y = MARGIN + 34
    parts: list[Words | Placed] = [Words(MARGIN, MARGIN + 14, heading, colour=INK, size=17, weight=600)]
    for begin in range(0, len(panels), columns):
        row = panels[begin : begin + columns]
        for i, panel in enumerate(row):
            x = MARGIN + i * (wide + GAP_BETWEEN_PANELS)
            parts += [Words(x, y + 12, panel.heading, colour=INK, size=13, weight=600), Placed(panel.chart, x, y + 22)]
        y += 22 + max(panel.chart.height for panel in row) + GAP_BETWEEN_PANELS
    for line in textwrap.wrap(caption, int((width - 2 * MARGIN) / LETTER_WIDTH)):
        parts.append(Words(MARGIN, y, line, colour=QUIET))
        y += 17
    return Sheet(heading, round(width), round(y + MARGIN - 12), parts)


def has_matplotlib() -> bool:
    """True if the extra `plot` is installed."""
    return find_spec("matplotlib") is not None


def need_matplotlib() -> None:
    """Refuse PNG and PDF without the extra `plot`."""
    if not has_matplotlib():
        raise ConfigError(f"figures as PNG or PDF need matplotlib; install it: {INSTALL_PLOT}")
