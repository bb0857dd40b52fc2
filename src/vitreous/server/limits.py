"""What a client may send: sizes, formats, numbers. Content is looked at; names and declared types are never trusted."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vitreous.errors import DataError, TooLargeError
from vitreous.images.sources import picture
from vitreous.server.errors import Refusal

__all__ = ["Limits", "Upload", "read_upload", "shown_name"]

FORMATS = "JPEG, PNG, WebP, GIF, BMP, TIFF or AVIF"
NAME = 60  # letters of a file's name that we say again


@dataclass(frozen=True, kw_only=True)
class Limits:
    """All that bounds what one client can cost."""

    upload: int = 20 * 2**20  # bytes of one request
    pixels: int = picture.PIXEL_LIMIT  # of one image, unpacked
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
    kind = picture.sniff(raw)
    if kind is None:
        raise Refusal(415, f"{name} is no image that is read here; send {FORMATS}")
    if kind == "HEIF" and not picture.reads_heic():
        raise Refusal(415, f"{name} is a HEIC picture, which is not read here; send {FORMATS}")
    try:
        image = picture.open_image(raw, name, limits.pixels)
        has_more = getattr(image, "is_animated", False)  # to count all frames could take long
        image.close()
        pixels = picture.decode(raw, name)
    except TooLargeError as error:
        raise Refusal(413, str(error)) from None
    except DataError as error:
        raise Refusal(422, f"{_plain(str(error))}; send it again, or another") from None
    except Exception:  # whatever Pillow meets while it looks for a second frame
        raise Refusal(422, f"{name} is broken; send it again, or another") from None
    first = "its first page was looked at" if kind == "TIFF" else "it moves: its first frame was looked at"
    return Upload(name, pixels, first if has_more else "")


def shown_name(name: str | None) -> str:
    """A client's name for its file, short and printable, without folders."""
    last = re.split(r"[/\\]", name or "")[-1]
    clean = "".join(c if c.isprintable() else "?" for c in last).strip()
    return (clean if len(clean) <= NAME else clean[: NAME - 1] + "…") or "the image"


def _plain(line: str) -> str:
    """Of our own line, what is wrong; the advice in it is for those who own the file's folder."""
    return line.partition(";")[0]
