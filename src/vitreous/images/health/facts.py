"""Facts about one image: 116 bytes each, computed in the workers.

Every file is decoded whole, since only that detects a truncated one. A large JPEG is decoded at a half, quarter or
eighth of its size: that reads every byte too, and changes no finding. The digest of the pixels comes later: images with
the same pixels have near hashes, so only pairs with near hashes need it (see duplicates.py); flat ones get it here.
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vitreous.errors import DataError, ShardError, TooLargeError
from vitreous.images import perceptual_hash
from vitreous.images.imageset import Source
from vitreous.images.sources import image_file

FACTS_VERSION = 3  # of these facts; facts kept by another version are computed again
FACTS = np.dtype(
    [
        ("file", "<u8", 2),  # digest of the file; 0 for decoded sources
        ("pixels", "<u8", 2),  # digest of the upright RGB pixels; 0 until it is needed
        ("hash", "<u8"),  # pHash
        ("width", "<u4"),  # upright
        ("height", "<u4"),
        ("format", "S8"),  # "JPEG", …; "pixels" where images are stored decoded
        ("traits", "<u2"),
        ("orientation", "u1"),  # EXIF: 1 is upright
        ("problem", "u1"),
        ("taken", "<i8"),  # EXIF's time in seconds since 1970, on the camera's clock; 0 if unknown
        ("camera", "<u8"),  # digest of make and model; 0 if unknown
        ("spread", "<f4"),  # standard deviation of the brightness of 16 × 16 cells, out of 255
        ("check", "<u4"),  # CRC-32 of all fields above, in a file
    ]
)
Facts = NDArray[np.void]

CMYK, SIXTEEN_BIT, ALPHA, PALETTE, ANIMATED, BLANK, HEIC = (1 << bit for bit in range(7))  # traits
READABLE, EMPTY, NOT_AN_IMAGE, TRUNCATED, NO_HEIC, BOMB, DAMAGED, UNREADABLE = range(8)  # problems

MIN_DECODED_SIDE = 512  # the smallest short side that a large JPEG is decoded to
HASHED_SIDE = 64  # images are hashed from means of whole pixels, at least this many a side
FLAT_SPREAD = 4.0  # an image with less spread may have one colour
ONE_COLOUR_DEVIATION = 6.0  # an image whose channels all deviate less has one colour


@dataclass
class Seen:
    """Facts about some images, and the errors of unreadable ones (by place)."""

    facts: Facts
    words: dict[int, str] = field(default_factory=dict)


class Problem(Exception):
    """Why an image cannot be read: one of the problems, and a message."""

    def __init__(self, problem: int, words: str):
        super().__init__(problem, words)
        self.problem, self.words = problem, words


def look(source: Source, numbers: Iterable[int], known: dict[bytes, Facts] | Any = None) -> Seen:
    """Facts about these images of a source.  known: facts by file digest, from an earlier check."""
    rows: list[Facts] = []
    words: dict[int, str] = {}
    for place, i in enumerate(numbers):
        try:
            rows.append(_look_at(source, int(i), known))
        except Problem as error:
            row = np.zeros((), FACTS)
            row["problem"] = error.problem
            rows.append(row)
            words[place] = error.words
    return Seen(np.array(rows, FACTS), words)


def _look_at(source: Source, i: int, known: Any) -> Facts:
    try:
        raw = source.raw(i)
    except ShardError:
        raise
    except OSError as error:
        raise Problem(UNREADABLE, error.strerror or str(error)) from None
    except Exception as error:  # an archive's bad checksum, a shard to be skipped
        raise Problem(DAMAGED, _line(error)) from None
    if raw is None:
        return _of_pixels(_pixels(source, i))
    if not raw:
        raise Problem(EMPTY, "the file is empty (0 bytes)")
    file = bytes.fromhex(perceptual_hash.exact(raw))
    if known is not None and (row := known.get(file)) is not None:
        return row
    try:
        row = _of_file(raw)
    except Problem:
        raise
    except Exception as error:  # a hostile file can raise anything in Pillow
        raise Problem(DAMAGED, _line(error)) from None
    row["file"] = np.frombuffer(file, "<u8")
    return row


def _pixels(source: Source, i: int) -> NDArray[np.uint8]:
    try:
        return source.read(i)
    except Exception as error:
        raise Problem(DAMAGED, _line(error)) from None


def _of_pixels(pixels: NDArray[np.uint8]) -> Facts:
    row = np.zeros((), FACTS)
    row["format"], row["orientation"] = b"pixels", 1
    row["height"], row["width"] = pixels.shape[:2]
    row["pixels"] = np.frombuffer(bytes.fromhex(perceptual_hash.exact_pixels(pixels)), "<u8")
    _measure(row, perceptual_hash.grey(pixels), lambda: pixels if pixels.ndim == 3 else pixels[:, :, None])
    return row


def _of_file(raw: bytes) -> Facts:
    row = np.zeros((), FACTS)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Pillow warns of odd metadata; only the pixels matter
        image = open_or_problem(raw)
        if not image_file.has_palette(image):
            raise Problem(DAMAGED, "its palette is missing")
        row["format"] = (image.format or "?")[:8].encode()
        row["traits"] = _traits(image, raw)
        size = image.size
        if image.format == "JPEG" and min(size) >= 2 * MIN_DECODED_SIDE:
            image.draft(image.mode, (MIN_DECODED_SIDE, MIN_DECODED_SIDE))
        _load(image, raw)
        row["orientation"] = orientation = image_file.orientation(image)
        row["taken"], row["camera"] = _taken(image)
        if (int(row["traits"]) & ALPHA) and not _is_transparent(image):
            row["traits"] &= ~np.uint16(ALPHA)
        image = pixels_of(image, raw)
    row["width"], row["height"] = size[::-1] if orientation >= 5 else size
    small = image.reduce(shrink) if (shrink := min(image.size) // HASHED_SIDE) > 1 else image
    _measure(row, small.convert("L"), lambda: np.asarray(image))
    if row["spread"] < FLAT_SPREAD:
        row["pixels"] = _digest(image)
    return row


def digest_of_pixels(source: Source, i: int) -> bytes:
    """The pixel digest, which `look` skips."""
    raw = source.raw(i)
    assert raw is not None
    return _digest(_decoded(raw)).tobytes()


def grey_cells(source: Source, i: int, side: int = 32) -> NDArray[np.uint8]:
    """The image as side × side grey cells, for the second test of near duplicates."""
    raw = source.raw(i)
    return perceptual_hash.thumbnail(source.read(i) if raw is None else _decoded(raw, is_draft=True), side)


def _decoded(raw: bytes, *, is_draft: bool = False) -> Image.Image:
    """A file as upright RGB; a JPEG at a reduced size if a draft will do."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        image = open_or_problem(raw)
        if is_draft and image.format == "JPEG":
            image.draft(image.mode, (MIN_DECODED_SIDE, MIN_DECODED_SIDE))
        _load(image, raw)
        return pixels_of(image, raw)


def open_or_problem(raw: bytes) -> Image.Image:
    """Pillow's image, not yet decoded, or a Problem."""
    if image_file.is_heic(raw) and not image_file.reads_heic():
        raise Problem(NO_HEIC, "an HEIC image")
    try:
        image = image_file.open_image(raw, "it")
    except TooLargeError as error:
        raise Problem(BOMB, str(error)) from None
    except DataError:
        if image_file.has_too_many_scans(raw):
            raise Problem(BOMB, f"it has more than {image_file.SCAN_LIMIT} scans, which no camera writes") from None
        raise Problem(*_nature(raw, image_file.sniff(raw))) from None
    if image.width * image.height == 0:
        raise Problem(DAMAGED, "it has no pixels")
    return image


def pixels_of(image: Image.Image, raw: bytes) -> Image.Image:
    """The loaded image as a model sees it: upright RGB, in the pixels of `image_file.decode`."""
    if image.mode not in ("RGB", "L") or "transparency" in image.info:
        try:
            return Image.fromarray(image_file.decode(raw, "it"))  # one place converts CMYK, 16 bits and transparency
        except Exception as error:
            raise Problem(DAMAGED, _line(error)) from None
    image = image_file.upright(image)
    return image if image.mode == "RGB" else image.convert("RGB")


def _load(image: Image.Image, raw: bytes) -> None:
    try:
        image.load()
    except Exception as error:
        problem = TRUNCATED if _is_cut(raw, image.format or "", str(error)) else DAMAGED
        raise Problem(problem, _line(error)) from None
    if image.format == "WEBP" and _is_cut(raw, "WEBP", ""):
        raise Problem(TRUNCATED, "fewer bytes than its header says")


def _is_cut(raw: bytes, format: str, words: str) -> bool:
    match format:
        case "JPEG" | "MPO":
            return "truncated" in words or b"\xff\xd9" not in raw[-64:]
        case "PNG":
            return b"IEND" not in raw[-64:]
        case "GIF":
            return not raw.rstrip(b"\0").endswith(b";")
        case "WEBP":
            return len(raw) < int.from_bytes(raw[4:8], "little") + 8
    return "truncated" in words.lower() or "end of" in words.lower()


def _nature(raw: bytes, format: str | None) -> tuple[int, str]:
    """The problem of a file that Pillow cannot open: truncated, or not an image."""
    if format:
        return TRUNCATED, f"{format}, cut short or damaged ({len(raw):,} bytes)"
    if raw.lstrip()[:1] == b"<":
        return NOT_AN_IMAGE, "no image: it looks like a web page or XML"
    return NOT_AN_IMAGE, "no image in any format known here"


def _traits(image: Image.Image, raw: bytes) -> int:
    traits = CMYK * (image.mode == "CMYK")
    traits |= SIXTEEN_BIT * (image.mode in ("I", "F") or "16" in image.mode or _has_deep_tiles(image))
    traits |= ALPHA * image.has_transparency_data
    traits |= PALETTE * (image.mode in ("P", "PA"))
    traits |= ANIMATED * (image.format in ("GIF", "PNG", "WEBP", "AVIF") and bool(getattr(image, "is_animated", False)))
    traits |= HEIC * (image.format == "HEIF")
    return traits


def _has_deep_tiles(image: Image.Image) -> bool:
    """True for 16-bit RGB, which Pillow silently turns into 8 bits; only the file's layout shows it."""
    return image.format in ("PNG", "TIFF") and any(";16" in str(tile[-1]) for tile in getattr(image, "tile", ()))


def _is_transparent(image: Image.Image) -> bool:
    """True if any pixel is transparent; many files have an alpha of 255 throughout."""
    lowest, _ = image.convert("RGBA").getchannel("A").getextrema()
    return float(lowest) < 255  # type: ignore[arg-type]


def _taken(image: Image.Image) -> tuple[int, int]:
    """Time and camera, as numbers."""
    if image.format in ("JPEG", "WEBP", "PNG") and "exif" not in image.info:
        return 0, 0
    taken, camera = image_file.taken(image)
    try:
        moment = datetime.strptime(taken.strip()[:19], "%Y:%m:%d %H:%M:%S") - datetime(1970, 1, 1)
    except ValueError:
        return 0, 0
    number = hashlib.blake2b(camera.encode("utf-8", "replace"), digest_size=8).digest()
    return int(moment.total_seconds()), int.from_bytes(number, "little") if camera else 0


def _digest(image: Image.Image) -> NDArray[np.uint64]:
    """A digest of size and pixels; SHA-256 in hardware is twice as fast as BLAKE2."""
    pixels = hashlib.sha256(f"{image.width}x{image.height}".encode())
    pixels.update(image.tobytes())
    return np.frombuffer(pixels.digest()[:16], "<u8")


def _measure(row: Facts, grey: Image.Image, pixels: Any) -> None:
    row["hash"] = perceptual_hash.phash(grey)
    row["spread"] = spread = np.asarray(grey.resize((16, 16), Image.Resampling.BOX), np.float32).std()
    if spread < FLAT_SPREAD and pixels().reshape(-1, pixels().shape[2]).std(0).max() < ONE_COLOUR_DEVIATION:
        row["traits"] |= np.uint16(BLANK)


def _line(error: BaseException) -> str:
    if isinstance(error, MemoryError):
        return "it is more than the memory here holds"
    return " ".join(str(error).split())[:200] or type(error).__name__
