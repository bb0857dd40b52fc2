"""From an encoded file to the pixels of a batch, on one core; tests bound the difference from Pillow.

Evaluation takes Pillow's own pixels. Training may take two shortcuts, each bounded by tests/images/test_decode.py:
simplejpeg for JPEG files (the same pixels as Pillow's), and torch's antialiased uint8 resize (within 2 of 255 of
Pillow's). A photograph much larger than needed is decoded at a half, quarter or eighth of its size, as Pillow's `draft`
does. `fast=False`, or VITREOUS_EXACT=1 in the environment, turns all of them off.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cache
from types import ModuleType

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from PIL import Image

from vitreous.errors import DataError
from vitreous.images.pixels import preprocess
from vitreous.images.sources import image_file
from vitreous.models.config import Size
from vitreous.models.preprocess import Preprocess

Pixels = NDArray[np.uint8]  # H W C
Box = tuple[float, float, float, float]  # left, top, right, bottom, in pixels

PIXELS_PER_WANTED = 2  # a reduced decode keeps this many pixels per wanted pixel, in both directions


def is_fast(fast: bool | None = None) -> bool:
    """True if shortcuts are allowed: as given, else unless VITREOUS_EXACT=1."""
    return os.environ.get("VITREOUS_EXACT") != "1" if fast is None else fast


@dataclass(frozen=True)
class Header:
    """The header of a JPEG file that simplejpeg decodes as Pillow does; rows and columns of the upright image."""

    rows: int
    columns: int
    is_grey: bool
    turn: int  # EXIF orientation; 1 is upright


def header(raw: bytes) -> Header | None:
    """Read a JPEG's header; None for anything else, or without simplejpeg."""
    jpeg = _simplejpeg()
    if jpeg is None or raw[:2] != b"\xff\xd8":
        return None
    try:
        rows, columns, space, _ = jpeg.decode_jpeg_header(raw)
    except ValueError:
        return None  # Pillow names the fault, or forgives it
    if space not in ("YCbCr", "Gray") or rows * columns > image_file.PIXEL_LIMIT:
        return None  # Pillow's path refuses what is too large
    if image_file.has_too_many_scans(raw):
        return None
    try:
        turn = image_file.orientation(image_file.open_image(raw, "")) if _has_exif(raw) else 1
    except DataError:
        turn = 1
    return Header(*((columns, rows) if turn > 4 else (rows, columns)), space == "Gray", turn)


def decode(raw: bytes, what: str, channels: int = 3, *, fast: bool | None = None) -> Pixels:
    """A whole image, upright.  Returns H W C."""
    found = header(raw) if is_fast(fast) else None
    pixels = _jpeg(raw, found, channels) if found else None
    return image_file.decode(raw, what, channels) if pixels is None else pixels


def decode_crop(
    raw: bytes,
    what: str,
    box: Box,
    size: Size,
    channels: int = 3,
    *,
    fast: bool | None = None,
    known: Header | None = None,
) -> Pixels:
    """The part of an image inside `box`, resized.  known: its header, where it was read already.  Returns size C."""
    left, top, right, bottom = box
    scale = PIXELS_PER_WANTED * max(size[0] / (bottom - top), size[1] / (right - left))
    part = next((part for part in (8, 4, 2) if scale * part <= 1), 1)  # libjpeg is fast at these scales
    found = (known or header(raw)) if is_fast(fast) else None
    pixels = _jpeg(raw, found, channels, part) if found else None
    if pixels is None or found is None:
        return crop(image_file.decode(raw, what, channels), box, size, fast=fast)
    y, x = pixels.shape[0] / found.rows, pixels.shape[1] / found.columns
    return crop(pixels, (left * x, top * y, right * x, bottom * y), size, fast=True)


def crop(pixels: Pixels, box: Box, size: Size, *, filter: str = "bilinear", fast: bool | None = None) -> Pixels:
    """The part inside `box`, resized with antialias.  Returns size C, sometimes as a view of C size."""
    if not is_fast(fast) or filter not in ("bilinear", "bicubic"):
        image = preprocess.as_image(pixels, pixels.shape[2])
        return preprocess.as_array(image.resize((size[1], size[0]), preprocess.PILLOW_RESAMPLE[filter], box=box))
    left, top, right, bottom = (round(edge) for edge in box)
    inside = pixels[top : max(bottom, top + 1), left : max(right, left + 1)]
    if inside.shape[:2] == size:
        return np.ascontiguousarray(inside)
    x = torch.from_numpy(np.ascontiguousarray(inside)).permute(2, 0, 1)[None]
    return F.interpolate(x, size, mode=filter, antialias=True)[0].permute(1, 2, 0).numpy()


def shrink(pixels: Pixels, short_side: int) -> Pixels:
    """The whole image with its short side at most `short_side`: resized by Pillow's bicubic; a small one stays."""
    rows, columns = pixels.shape[:2]
    if min(rows, columns) <= short_side:
        return pixels
    scale = short_side / min(rows, columns)
    size = max(round(columns * scale), short_side), max(round(rows * scale), short_side)
    return preprocess.as_array(preprocess.as_image(pixels, pixels.shape[2]).resize(size, Image.Resampling.BICUBIC))


def finish(pixels: Pixels, rule: Preprocess) -> Pixels:
    """Preprocess an image up to normalisation, as uint8.  Returns size C.

    With antialiasing the result is whole numbers anyway; without, it is rounded by at most half a level.
    """
    found = preprocess.pixels(pixels, rule)
    return found if found.dtype == np.uint8 else found.round().clip(0, 255).astype(np.uint8)


def with_channels(pixels: Pixels, channels: int) -> Pixels:
    """Convert grey to RGB, or RGB to grey as Pillow does."""
    return pixels if pixels.shape[2] == channels else preprocess.as_array(preprocess.as_image(pixels, channels))


def _has_exif(raw: bytes) -> bool:
    """True if a segment before the pixels is EXIF."""
    at = 2
    while raw[at : at + 1] == b"\xff" and at + 4 <= len(raw):
        kind, length = raw[at + 1], int.from_bytes(raw[at + 2 : at + 4], "big")
        if kind == 0xE1 and raw[at + 4 : at + 10] == b"Exif\0\0":
            return True
        if kind == 0xDA or length < 2:  # the pixels begin
            return False
        at += 2 + length
    return False


def _jpeg(raw: bytes, head: Header, channels: int, part: int = 1) -> Pixels | None:
    """Decode at 1 / part of the size; None if Pillow must."""
    jpeg = _simplejpeg()
    if jpeg is None or (channels == 1 and not head.is_grey):
        return None  # Pillow's grey of a colour image is not the file's own luma
    rows, columns = (head.columns, head.rows) if head.turn > 4 else (head.rows, head.columns)
    least = {"min_height": -(-rows // part), "min_width": -(-columns // part)} if part > 1 else {}
    try:
        return _upright(jpeg.decode_jpeg(raw, "Gray" if channels == 1 else "RGB", **least), head.turn)
    except ValueError:
        return None


def _upright(pixels: Pixels, turn: int) -> Pixels:
    """Turn upright as Pillow does; a view."""
    if turn > 4:
        pixels = pixels.swapaxes(0, 1)
    rows = -1 if turn in (3, 4, 7, 8) else 1
    columns = -1 if turn in (2, 3, 6, 7) else 1
    return pixels[::rows, ::columns]


@cache
def _simplejpeg() -> ModuleType | None:
    try:
        import simplejpeg
    except ImportError:
        return None
    return simplejpeg
