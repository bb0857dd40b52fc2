"""Figures as SVG that needs nothing beside itself."""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image

INK, QUIET, PAPER = "#1c2733", "#5f6c7a", "#ffffff"
FONT = "system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', sans-serif"

# A dark-to-light scale whose lightness rises evenly: dark blue, teal, yellow. 256 × RGB.
_STOPS = np.array([[22, 18, 56], [40, 63, 120], [33, 122, 138], [82, 181, 118], [190, 222, 88], [253, 246, 178]], float)
SCALE: NDArray[np.uint8] = np.stack(
    [np.interp(np.linspace(0, len(_STOPS) - 1, 256), np.arange(len(_STOPS)), _STOPS[:, c]) for c in range(3)], -1
).astype(np.uint8)


@dataclass(frozen=True)
class Picture:
    """An H×W×3 picture of bytes with a title."""

    title: str
    pixels: NDArray[np.uint8]


def colours(values: NDArray[np.floating], top: float | None = None) -> NDArray[np.uint8]:
    """Numbers from 0 to `top` (their largest) as colours.  H W -> H W 3."""
    top = float(values.max()) if top is None else top
    share = np.clip(values / top if top > 0 else np.zeros_like(values), 0, 1)
    return SCALE[(255 * share).round().astype(int)]


def strip(pictures: Sequence[Picture], *, heading: str, caption: str, side: int = 132) -> str:
    """Pictures side by side under a heading."""
    gap, margin, top = 14, 20, 62
    width = 2 * margin + len(pictures) * side + (len(pictures) - 1) * gap
    height = top + side + 26 + 30
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        f'font-family="{FONT}" role="img" aria-label="{html.escape(heading, quote=True)}">',
        f'<rect width="{width}" height="{height}" fill="{PAPER}"/>',
        f'<text x="{margin}" y="34" font-size="17" font-weight="600" fill="{INK}">{html.escape(heading)}</text>',
    ]
    for i, picture in enumerate(pictures):
        x = margin + i * (side + gap)
        parts.append(
            f'<image x="{x}" y="{top - 8}" width="{side}" height="{side}" preserveAspectRatio="none" '
            f'style="image-rendering:pixelated" href="{data_uri(picture.pixels)}"/>'
        )
        parts.append(
            f'<text x="{x}" y="{top + side + 10}" font-size="12.5" fill="{INK}">{html.escape(picture.title)}</text>'
        )
    parts.append(
        f'<text x="{margin}" y="{height - 14}" font-size="12" fill="{QUIET}">{html.escape(caption)}</text></svg>'
    )
    return "\n".join(parts) + "\n"


def data_uri(pixels: NDArray[np.uint8], *, is_photo: bool = False) -> str:
    """A picture inside the text that shows it. is_photo: as JPEG, small and a little less than exact."""
    stream, kind = io.BytesIO(), "JPEG" if is_photo else "PNG"
    Image.fromarray(pixels).save(stream, kind, quality=85)
    return f"data:image/{kind.lower()};base64," + base64.b64encode(stream.getvalue()).decode()
