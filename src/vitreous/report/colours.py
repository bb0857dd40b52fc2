"""The colours of pages and figures: ink, paper, and a scale from dark to light for numbers."""

from __future__ import annotations

import base64
import io

import numpy as np
from numpy.typing import NDArray
from PIL import Image

INK, QUIET, PAPER = "#1c2733", "#5f6c7a", "#ffffff"
FONT = "system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', sans-serif"

# A dark-to-light scale whose lightness rises evenly: dark blue, teal, yellow. 256 × RGB.
_STOPS = np.array([[22, 18, 56], [40, 63, 120], [33, 122, 138], [82, 181, 118], [190, 222, 88], [253, 246, 178]], float)
COLOUR_SCALE: NDArray[np.uint8] = np.stack(
    [np.interp(np.linspace(0, len(_STOPS) - 1, 256), np.arange(len(_STOPS)), _STOPS[:, c]) for c in range(3)], -1
).astype(np.uint8)


def colours(values: NDArray[np.floating], top: float | None = None) -> NDArray[np.uint8]:
    """Numbers from 0 to `top` as colours; by default `top` is the largest.  H W -> H W 3."""
    top = float(values.max()) if top is None else top
    share = np.clip(values / top if top > 0 else np.zeros_like(values), 0, 1)
    return COLOUR_SCALE[(255 * share).round().astype(int)]


def data_uri(pixels: NDArray[np.uint8], *, is_photo: bool = False) -> str:
    """Pixels as an address that holds them. is_photo: JPEG, smaller and a little less exact."""
    stream, kind = io.BytesIO(), "JPEG" if is_photo else "PNG"
    Image.fromarray(pixels).save(stream, kind, quality=85)
    return f"data:image/{kind.lower()};base64," + base64.b64encode(stream.getvalue()).decode()
