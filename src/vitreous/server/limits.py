"""What a client may send: sizes, formats, numbers. Content is looked at; names and declared types are never trusted."""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib.util import find_spec
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from vitreous.errors import DataError
from vitreous.images.sources import picture
from vitreous.server.refusals import Refusal

__all__ = ["Limits", "Upload", "read_upload", "shown_name", "sniff"]

FORMATS = "JPEG, PNG, WebP, GIF, BMP, TIFF or AVIF"
SCANS = 200  # of one JPEG; each is a pass over all its pixels, and a photograph has about ten
NAME = 60  # letters of a file's name that we say again


@dataclass(frozen=True, kw_only=True)
class Limits:
    """All that bounds what one client can cost."""

    upload: int = 20 * 2**20  # bytes of one request
    pixels: int = 50_000_000  # of one image, unpacked
    files: int = 32  # images in one request
    in_flight: int = 256 * 2**20  # bytes of all requests that are being taken or answered
    queue: int = 64  # requests that wait, all clients together
    seconds: float = 30.0  # from a request's arrival to its answer
    kept: int = 128  # images that are remembered, so that looking closer sends nothing again


@dataclass(frozen=True, eq=False)
class Upload:
    """One image as it came, decoded: H W C. note: what its sender should know."""

    name: str
    pixels: NDArray[np.uint8]
    note: str = ""


def read_upload(raw: bytes, name: str, limits: Limits) -> Upload:
    """Upright pixels of an image, the same that `vitreous predict` sees; or a refusal that says what is wrong."""
    name = shown_name(name)
    if not raw:
        raise Refusal(422, f"{name} is empty (0 bytes); send an image")
    kind = sniff(raw)
    if kind is None:
        raise Refusal(415, f"{name} is no image that is read here; send {FORMATS}")
    if kind == "HEIC" and find_spec("pillow_heif") is None:
        raise Refusal(415, f"{name} is a HEIC picture, which is not read here; send {FORMATS}")
    if kind == "JPEG" and raw.count(b"\xff\xda") > SCANS:
        raise Refusal(422, f"{name} has more than {SCANS} scans, which no camera writes; save it anew")
    try:
        image = picture.open_image(raw, name)
        if (size := image.width * image.height) > limits.pixels:
            _too_large(name, size, limits)
        has_more = getattr(image, "is_animated", False)  # to count all frames could take long
        image.close()
        pixels = picture.decode(raw, name)
    except DataError as error:
        if "megapixels" in str(error):
            _too_large(name, None, limits)
        raise Refusal(422, f"{_plain(str(error))}; send it again, or another") from None
    except MemoryError:
        raise Refusal(413, f"{name} is more than the memory here holds; shrink it") from None
    except Refusal:
        raise
    except Exception:  # whatever Pillow meets while it looks for a second frame
        raise Refusal(422, f"{name} is broken; send it again, or another") from None
    first = "its first page was looked at" if kind == "TIFF" else "it moves: its first frame was looked at"
    return Upload(name, pixels, first if has_more else "")


def sniff(raw: bytes) -> str | None:
    """Which format the first bytes are of; None for every other, so that Pillow is never asked to try them all."""
    if raw.startswith(b"\xff\xd8\xff"):
        return "JPEG"
    if raw.startswith(b"\x89PNG\r\n\x1a\n"):
        return "PNG"
    if raw.startswith((b"GIF87a", b"GIF89a")):
        return "GIF"
    if raw[:4] == b"RIFF" and raw[8:12] == b"WEBP":
        return "WEBP"
    if raw.startswith((b"II*\0", b"MM\0*")):
        return "TIFF"
    if raw.startswith(b"BM"):
        return "BMP"
    if picture.is_heic(raw):
        return "HEIC"
    return "AVIF" if raw[4:12] in (b"ftypavif", b"ftypavis") else None


def shown_name(name: str | None) -> str:
    """A client's name for its file, short and printable, without folders."""
    last = re.split(r"[/\\]", name or "")[-1]
    clean = "".join(c if c.isprintable() else "?" for c in last).strip()
    return (clean if len(clean) <= NAME else clean[: NAME - 1] + "…") or "the image"


def _plain(line: str) -> str:
    """Of our own line, what is wrong; the advice in it is for those who own the file's folder."""
    return line.partition(";")[0]


def _too_large(name: str, size: int | None, limits: Limits) -> NoReturn:
    has = f"{size / 1e6:,.1f}" if size else "far more than 100"
    raise Refusal(413, f"{name} has {has} megapixels; at most {limits.pixels / 1e6:g} are read here: shrink it")
