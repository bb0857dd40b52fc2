"""The images of a request: uploaded, or named by the id of an earlier upload.

The content of an upload decides; its name and declared type are never trusted.
"""

from __future__ import annotations

import errno
import logging
import os
import re
import tempfile

from fastapi import Request
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException

from vitreous.errors import DataError, TooLargeError
from vitreous.images.sources import image_file
from vitreous.server.engine import Pixels
from vitreous.server.errors import Refusal
from vitreous.server.images.cache import CachedImage
from vitreous.server.limits import Limits
from vitreous.server.served import Served
from vitreous.words import shortened

log = logging.getLogger("vitreous.server")
READABLE_FORMATS = "JPEG, PNG, WebP, GIF, BMP, TIFF or AVIF"
MAX_NAME_LETTERS = 60  # letters of a file's name that a reply repeats


class RequestImage:
    """One image of a request: bytes, or the id of a cached image."""

    def __init__(self, served: Served, limits: Limits, name: str, raw: bytes | None = None, key: str = ""):
        self.served, self.limits, self.name, self.raw, self.key = served, limits, name, raw, key

    def cached(self, *, photo: bool = False) -> tuple[str, CachedImage]:
        """Its id, and the image as the model sees it; a worker calls this.  photo: keep the whole image for a page."""
        if self.raw is None:
            return self.key, self.served.cache.get(self.key)
        pixels, note = read_upload(self.raw, self.name, self.limits)
        kept = self.served.kept(self.name, pixels, note, photo=photo)
        return self.served.cache.put(self.raw, kept, self.limits.kept), kept


async def images_of(request: Request, served: Served, limits: Limits, keys: list[str]) -> list[RequestImage]:
    """The images that a request names or carries."""
    limit = limits.files
    given = [RequestImage(served, limits, "the image", key=key) for key in keys]
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind == "multipart/form-data":
        try:
            async with request.form(max_files=limit, max_fields=16) as form:
                parts = [part for _, part in form.multi_items() if isinstance(part, UploadFile)]
                given += [RequestImage(served, limits, shown_name(part.filename), await part.read()) for part in parts]
        except HTTPException as error:
            if "Too many files" in str(error.detail):
                raise Refusal(413, f"one request takes at most {limit} images; send them in parts") from None
            raise Refusal(400, "the form is broken; send multipart/form-data with images as files") from None
        except OSError as error:  # a form above 1 MB is received into a file
            raise await _no_room(request, error) from None
    elif raw := await request.body():
        given.append(RequestImage(served, limits, "the image", raw))
    if not given:
        raise Refusal(422, "the request has no image; send one as the body or in a form, or name one with ?image=ID")
    if len(given) > limit:
        raise Refusal(413, f"one request takes at most {limit} images; send them in parts")
    return given


async def _no_room(request: Request, error: OSError) -> Refusal:
    """Read the upload to its end: otherwise its sender sees a broken connection, not our line."""
    why = os.strerror(error.errno or errno.EIO)  # the error's own text may name folders of this machine
    log.warning("no room for an upload in %s: %s", tempfile.tempdir or "any temporary folder", why)
    async for _ in request.stream():
        pass
    return Refusal(
        507,
        f"the server has no room for this form in its temporary folder ({why}); send one image as the body, which "
        f"needs no file, or try again later",
    )


# One upload -----------------------------------------------------------------------------------------------------------


def read_upload(raw: bytes, name: str, limits: Limits) -> tuple[Pixels, str]:
    """The upright pixels of an image, as `vitreous predict` sees them, and a note for its sender; or a refusal."""
    if not raw:
        raise Refusal(422, f"{name} is empty (0 bytes); send an image")
    kind = image_file.sniff(raw)
    if kind is None:
        raise Refusal(415, f"{name} is not an image that this server reads; send {READABLE_FORMATS}")
    if kind == "HEIF" and not image_file.reads_heic():
        raise Refusal(415, f"{name} is a HEIC image, which this server cannot read; send {READABLE_FORMATS}")
    try:
        image = image_file.open_image(raw, name, limits.pixels)
        has_more = getattr(image, "is_animated", False)  # counting all frames can take long
        image.close()
        pixels = image_file.decode(raw, name)
    except TooLargeError as error:
        raise Refusal(413, str(error)) from None
    except DataError as error:
        wrong = str(error).partition(";")[0]  # the advice after it is for the owner of the file's folder
        raise Refusal(422, f"{wrong}; send it again, or another") from None
    except Exception:  # anything that Pillow raises while it looks for a second frame
        raise Refusal(422, f"{name} is broken; send it again, or another") from None
    note = f"only its first {'page' if kind == 'TIFF' else 'frame'} was read" if has_more else ""
    return pixels, note


def shown_name(name: str | None) -> str:
    """The client's name for its file: short, printable, without folders."""
    last = re.split(r"[/\\]", name or "")[-1]
    clean = "".join(c if c.isprintable() else "?" for c in last).strip()
    return shortened(clean, MAX_NAME_LETTERS) or "the image"
