"""A whole image, encoded for a page: small enough to send, sharp enough to look at."""

from __future__ import annotations

import io

from PIL import Image

from vitreous.server.engine import Pixels

PHOTO_SIDE = 1024  # pixels of the longer side; the page shows it at 448, phones have two or three pixels for each
LOSSLESS_SIDE = 256  # up to here as PNG, so that single pixels stay visible


def encoded_photo(pixels: Pixels) -> bytes:
    """PNG if small, else JPEG, of at most PHOTO_SIDE."""
    image = Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels)
    image = image if image.mode == "L" else image.convert("RGB")
    stream = io.BytesIO()
    if max(image.size) <= LOSSLESS_SIDE:
        image.save(stream, "PNG")
    else:
        image.thumbnail((PHOTO_SIDE, PHOTO_SIDE), Image.Resampling.BICUBIC, reducing_gap=2.0)
        image.save(stream, "JPEG", quality=88)
    return stream.getvalue()
