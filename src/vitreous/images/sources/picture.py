"""One encoded file becomes upright pixels: the plain Pillow way, which every faster way is held against."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable
from threading import Lock
from typing import NoReturn, TypeVar

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vitreous.errors import DataError

__all__ = ["decode", "is_heic", "open_image", "taken", "upright"]

LIMIT = 178_956_970  # pixels; Pillow's own border between a warning and a refusal
ORIENTATION, MAKE, MODEL, EXIF_PART, TAKEN = 0x0112, 0x010F, 0x0110, 0x8769, 0x9003
TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
HEIC_BRANDS = {b"heic", b"heix", b"hevc", b"hevx", b"heim", b"heis", b"hevm", b"hevs", b"mif1", b"msf1"}
T = TypeVar("T")
_quietly = Lock()  # warning filters belong to the whole process


def decode(raw: bytes, what: str, channels: int = 3) -> NDArray[np.uint8]:
    """The first frame, upright, as H × W × channels (1 or 3); `what` names the file where it cannot be read.

    16-bit grey is scaled to 8, transparency laid on white, palettes and CMYK turned into RGB.
    """
    image = open_image(raw, what)
    try:
        _calmly(image.load)
        plain = _plain(upright(image))
        pixels = np.array(plain.convert("L" if channels == 1 else "RGB"))  # a copy, which may be written to
    except MemoryError:
        raise
    except Exception as error:
        _refuse(what, error)
    return pixels[:, :, None] if channels == 1 else pixels


def open_image(raw: bytes, what: str) -> Image.Image:
    """The file's header, read and within the limit; pixels are not decoded yet."""
    if not raw:
        raise DataError(f"{what} is empty (0 bytes); delete it, or fetch it again")
    if is_heic(raw):
        _register_heic(what)
    try:
        image = _calmly(lambda: Image.open(io.BytesIO(raw)))
    except Image.DecompressionBombError:
        _refuse_size(what)
    except MemoryError:
        raise
    except Exception as error:
        _refuse(what, error)
    if image.width * image.height > LIMIT:
        _refuse_size(what)
    return image


def upright(image: Image.Image) -> Image.Image:
    """Turned as the camera noted."""
    try:
        turn = TURNS.get(_calmly(image.getexif).get(ORIENTATION, 1))
    except Exception:  # damaged EXIF is no EXIF
        return image
    return image if turn is None else image.transpose(turn)


def is_heic(raw: bytes) -> bool:
    """An iPhone's usual file, by its first bytes and whatever its name."""
    if raw[4:8] != b"ftyp":
        return False
    brands = {raw[at : at + 4] for at in range(8, min(int.from_bytes(raw[:4], "big"), 64), 4)}
    return bool(brands & HEIC_BRANDS) and not brands & {b"avif", b"avis"}


def _plain(image: Image.Image) -> Image.Image:
    """8 bits a channel and no transparency: L or RGB, or a mode that Pillow turns into them exactly."""
    if image.mode.startswith("I") or image.mode == "F":
        return Image.fromarray(_eight_bits(np.asarray(image)))
    if image.mode in ("RGBA", "LA", "PA", "RGBa", "La") or "transparency" in image.info:
        with_alpha = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", image.size, "white"), with_alpha).convert("RGB")
    return image


def _eight_bits(x: NDArray[np.generic]) -> NDArray[np.uint8]:
    """16-bit numbers over 257; floats to 1 times 255; anything else cut to 0 … 255."""
    values = x.astype(np.float64)
    top = float(values.max(initial=0))
    if x.dtype.kind == "f":
        values = values * 255 if top <= 1 else values
    elif x.dtype.itemsize == 2 or 255 < top <= 65535:
        values = values / 257
    return np.nan_to_num(values).round().clip(0, 255).astype(np.uint8)


def _calmly(work: Callable[[], T]) -> T:
    """`work()`, also where somebody made warnings errors: Pillow warns of what it then reads all the same."""
    try:
        return work()
    except Warning:
        with _quietly, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return work()


def taken(image: Image.Image) -> tuple[str, str]:
    """EXIF's moment, as it is written there, and the camera; empty where they are not said."""
    try:
        exif = _calmly(image.getexif)
        moment = str(exif.get_ifd(EXIF_PART).get(TAKEN, ""))
        camera = f"{exif.get(MAKE, '')} {exif.get(MODEL, '')}".strip()
    except Exception:
        return "", ""
    return moment, camera


def _register_heic(what: str) -> None:
    try:
        import pillow_heif
    except ImportError:
        raise DataError(f"{what} is a HEIC picture; pip install 'vitreous[heic]' to read it") from None
    pillow_heif.register_heif_opener()


def _refuse(what: str, error: Exception) -> NoReturn:
    text = str(error)
    if isinstance(error, Image.UnidentifiedImageError):
        reason = "is no picture that Pillow knows"
    elif "truncated" in text or "end of" in text or "Truncated" in text:
        reason = "is cut short"
    else:
        reason = f"is broken ({' '.join(text.split())[:80] or type(error).__name__})"
    raise DataError(f"{what} {reason}; delete it, or fetch it again") from None


def _refuse_size(what: str) -> NoReturn:
    raise DataError(f"{what} unpacks to more than 178 megapixels (a decompression bomb?); shrink it if it is yours")
