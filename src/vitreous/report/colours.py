"""The colours of pages and figures: ink, paper, and a scale from dark to light for numbers."""

from __future__ import annotations

import base64
import io

import numpy as np
from numpy.typing import NDArray
from PIL import Image

INK, QUIET, PAPER = "#1c2733", "#5f6c7a", "#ffffff"
UNKNOWN = (128, 128, 128)  # a number that is missing
MAX_SIDE_UNSMOOTHED = 64  # pixels: a larger picture is smoothed
FONT = "system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', sans-serif"

# A dark-to-light scale whose lightness rises evenly: dark blue, teal, yellow. 256 × RGB.
_STOPS = np.array([[22, 18, 56], [40, 63, 120], [33, 122, 138], [82, 181, 118], [190, 222, 88], [253, 246, 178]], float)
COLOUR_SCALE: NDArray[np.uint8] = np.stack(
    [np.interp(np.linspace(0, len(_STOPS) - 1, 256), np.arange(len(_STOPS)), _STOPS[:, c]) for c in range(3)], -1
).astype(np.uint8)


def colours(values: NDArray[np.floating], low: float = 0.0, high: float | None = None) -> NDArray[np.uint8]:
    """Numbers as colours: dark for `low`, light for `high`, grey for NaN.  H W -> H W 3.

    high: by default the largest number.
    """
    high = float(values.max()) if high is None else high
    share = np.clip((np.nan_to_num(values) - low) / (high - low if high > low else 1.0), 0, 1)
    scaled = COLOUR_SCALE[(255 * share).round().astype(int)]
    return np.where(np.isfinite(values)[..., None], scaled, UNKNOWN).astype(np.uint8)


def data_uri(image: Image.Image, *, is_photo: bool = False, quality: int = 85, optimize: bool = False) -> str:
    """An image as an address that holds it. is_photo: JPEG, smaller and a little less exact."""
    stream, kind = io.BytesIO(), "JPEG" if is_photo else "PNG"
    image.save(stream, kind, quality=quality, optimize=optimize)
    return f"data:image/{kind.lower()};base64," + base64.b64encode(stream.getvalue()).decode()
