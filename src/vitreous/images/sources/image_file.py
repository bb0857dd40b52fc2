"""Decode one file to upright pixels with Pillow: the reference for every faster way.

Pillow opens images here and nowhere else: only READ_FORMATS, so no other program ever starts, and only
within the limits below, which are checked on the header before any pixel is decoded.
"""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Callable
from functools import cache
from threading import Lock
from typing import NoReturn, TypeVar

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vitreous.errors import DataError, TooLargeError

PIXEL_LIMIT = 120_000_000  # of one image, above the largest camera; in memory each costs 3 to 20 bytes
BYTE_LIMIT = 512 << 20  # of one file
SCAN_LIMIT = 200  # of one JPEG; each is a pass over all its pixels, and a photograph has about ten
SNIFFED_FORMATS = ("JPEG", "PNG", "GIF", "WEBP", "TIFF", "BMP", "AVIF", "HEIF")  # known by their first bytes
READ_FORMATS = (*SNIFFED_FORMATS, "PPM", "JPEG2000", "TGA")  # not EPS, which starts Ghostscript
JPEG_MARKER = re.compile(rb"\xff[\x01-\xcf\xd8-\xfe]")  # between markers are pixels or rubbish
END_OF_IMAGE, START_OF_SCAN, WITHOUT_LENGTH = 0xD9, 0xDA, (0x01, 0xD8)
ORIENTATION, CAMERA_MAKE, CAMERA_MODEL, EXIF_PART, TAKEN_AT = 0x0112, 0x010F, 0x0110, 0x8769, 0x9003
EXIF_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
AVIF_BRANDS = {b"avif", b"avis"}
HEIC_BRANDS = {b"heic", b"heix", b"hevc", b"hevx", b"heim", b"heis", b"hevm", b"hevs", b"mif1", b"msf1"}
T = TypeVar("T")
_quietly = Lock()  # warning filters belong to the whole process
warnings.filterwarnings("ignore", module=r"PIL\.")  # our errors say what matters


def decode(raw: bytes, what: str, channels: int = 3) -> NDArray[np.uint8]:
    """The first frame, upright, as H × W × channels (1 or 3); `what` names the file in errors.

    16-bit grey is scaled to 8, transparency laid on white, palettes and CMYK turned into RGB.
    """
    image = open_image(raw, what)
    try:
        if not has_palette(image):
            raise ValueError("its palette is missing")
        _calmly(image.load)
        plain = _plain(upright(image))
        pixels = np.array(plain.convert("L" if channels == 1 else "RGB"))  # a copy, which may be written to
    except Exception as error:
        _refuse(what, error)
    return pixels[:, :, None] if channels == 1 else pixels


def open_image(raw: bytes, what: str, pixel_limit: int = PIXEL_LIMIT) -> Image.Image:
    """Read the file's header and check the limits; decodes no pixels."""
    if not raw:
        raise DataError(f"{what} is empty (0 bytes); delete it, or fetch it again")
    check_bytes(len(raw), what)
    format = sniff(raw)
    if format == "HEIF" and not reads_heic():
        raise DataError(f"{what} is a HEIC image; pip install 'vitreous[heic]' to read it")
    if has_too_many_scans(raw):
        raise DataError(f"{what} has more than {SCAN_LIMIT} scans, which no camera writes; save it anew")
    try:
        image = _calmly(lambda: Image.open(io.BytesIO(raw), formats=[format] if format else _other_formats()))
    except Image.DecompressionBombError:
        _refuse_size(what, f"more than {2 * (Image.MAX_IMAGE_PIXELS or 0) // 10**6}", pixel_limit)
    except Exception as error:
        _refuse(what, error)
    if (size := image.width * image.height) > pixel_limit:
        _refuse_size(what, f"{size / 1e6:,.1f}", pixel_limit)
    return image


def check_bytes(count: int, what: str) -> None:
    """Refuse a file that is too large for an image, before reading it."""
    if count > BYTE_LIMIT:
        raise TooLargeError(
            f"{what} has {count:,} bytes; at most {BYTE_LIMIT >> 20} MiB are read as one image: move it away"
        )


def sniff(raw: bytes) -> str | None:
    """Pillow's name for the format, by the first bytes; None if they do not show it."""
    if raw.startswith(b"\xff\xd8\xff"):
        return "JPEG"
    if raw.startswith(b"\x89PNG\r\n\x1a\n"):
        return "PNG"
    if raw.startswith((b"GIF87a", b"GIF89a")):
        return "GIF"
    if raw[:4] == b"RIFF" and raw[8:12] == b"WEBP":
        return "WEBP"
    if raw.startswith((b"II*\0", b"MM\0*", b"II+\0", b"MM\0+", b"MM*\0", b"II\0*")):
        return "TIFF"
    if raw.startswith(b"BM"):
        return "BMP"
    if is_heic(raw):
        return "HEIF"
    return "AVIF" if _brands(raw) & AVIF_BRANDS and "AVIF" in _known_formats() else None


def has_too_many_scans(raw: bytes) -> bool:
    """True if a JPEG has more scans than SCAN_LIMIT. Data after its end, such as a film, does not count."""
    if sniff(raw) != "JPEG" or raw.count(b"\xff\xda") <= SCAN_LIMIT:
        return False
    at, scans = 2, 0
    while scans <= SCAN_LIMIT and (found := JPEG_MARKER.search(raw, at)):
        at, kind = found.end(), raw[found.end() - 1]
        if kind == END_OF_IMAGE:
            return False
        if kind not in WITHOUT_LENGTH:
            at += int.from_bytes(raw[at : at + 2], "big")
        scans += kind == START_OF_SCAN
    return True  # too many, or that many without an end mark


def has_palette(image: Image.Image) -> bool:
    """True if an image with palette indices has its palette."""
    return image.mode not in ("P", "PA") or image.palette is not None


def upright(image: Image.Image) -> Image.Image:
    """Turn the image upright by its EXIF orientation."""
    turn = EXIF_TURNS.get(orientation(image))
    return image if turn is None else image.transpose(turn)


def orientation(image: Image.Image) -> int:
    """EXIF's orientation, 1 to 8; 1 is upright."""
    if image.format in ("JPEG", "WEBP") and "exif" not in image.info and "xmp" not in image.info:
        return 1
    try:
        found = _calmly(image.getexif).get(ORIENTATION, 1)
        return int(found) if found in EXIF_TURNS else 1
    except Exception:  # treat damaged EXIF as missing
        return 1


def is_heic(raw: bytes) -> bool:
    """True for HEIC, an iPhone's usual format, by its first bytes."""
    brands = _brands(raw)
    return bool(brands & HEIC_BRANDS) and not brands & AVIF_BRANDS


def reads_heic() -> bool:
    """True if the extra `heic` is installed; registers it with Pillow."""
    try:
        import pillow_heif
    except ImportError:
        return False
    pillow_heif.register_heif_opener()
    return True


def _brands(raw: bytes) -> set[bytes]:
    """The brands of a file of the MP4 family."""
    if raw[4:8] != b"ftyp":
        return set()
    return {raw[at : at + 4] for at in range(8, min(int.from_bytes(raw[:4], "big"), 64), 4)}


@cache
def _known_formats() -> frozenset[str]:
    """Those of READ_FORMATS that this Pillow reads."""
    Image.init()
    return frozenset(READ_FORMATS) & frozenset(Image.OPEN)


@cache
def _other_formats() -> list[str]:
    """Formats that the first bytes do not show."""
    return [format for format in READ_FORMATS if format in _known_formats() and format not in SNIFFED_FORMATS]


def _plain(image: Image.Image) -> Image.Image:
    """8 bits a channel and no transparency: L or RGB, or a mode that Pillow turns into them exactly."""
    if image.mode.startswith("I") or image.mode == "F":
        return Image.fromarray(_eight_bits(np.asarray(image)))
    if image.mode in ("RGBA", "LA", "PA", "RGBa", "La") or "transparency" in image.info:
        with_alpha = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", image.size, "white"), with_alpha).convert("RGB")
    return image


def _eight_bits(x: NDArray[np.generic]) -> NDArray[np.uint8]:
    """16-bit numbers divided by 257; floats up to 1 times 255; anything else cut to 0 … 255."""
    values = x.astype(np.float64)
    top = float(values.max(initial=0))
    if x.dtype.kind == "f":
        values = values * 255 if top <= 1 else values
    elif x.dtype.itemsize == 2 or 255 < top <= 65535:
        values = values / 257
    return np.nan_to_num(values).round().clip(0, 255).astype(np.uint8)


def _calmly(work: Callable[[], T]) -> T:
    """`work()` with warnings ignored, even if they are errors: Pillow warns about files that it can read."""
    try:
        return work()
    except Warning:
        with _quietly, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return work()


def taken(image: Image.Image) -> tuple[str, str]:
    """EXIF's time as written, and the camera; empty if unknown."""
    try:
        exif = _calmly(image.getexif)
        moment = str(exif.get_ifd(EXIF_PART).get(TAKEN_AT, ""))
        camera = f"{exif.get(CAMERA_MAKE, '')} {exif.get(CAMERA_MODEL, '')}".strip()
    except Exception:
        return "", ""
    return moment, camera


def _refuse(what: str, error: Exception) -> NoReturn:
    text = str(error)
    if isinstance(error, MemoryError):
        raise TooLargeError(f"{what} is more than the memory here holds; shrink it") from None
    if isinstance(error, Image.UnidentifiedImageError):
        line = f"{what} is not an image in any format known here; give a JPEG or PNG, or fetch it again"
        raise DataError(line) from None
    if "truncated" in text or "end of" in text or "Truncated" in text:
        reason = "is cut short"
    else:
        reason = f"is broken ({' '.join(text.split())[:80] or type(error).__name__})"
    raise DataError(f"{what} {reason}; delete it, or fetch it again") from None


def _refuse_size(what: str, megapixels: str, limit: int) -> NoReturn:
    raise TooLargeError(
        f"{what} has {megapixels} megapixels; at most {limit / 1e6:g} are read here: shrink it"
    ) from None
