"""The images that a request carries, or names by the id they were given."""

from __future__ import annotations

import errno
import logging
import os
import tempfile

from fastapi import Request
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException

from vitreous.server.errors import Refusal
from vitreous.server.images.cache import Kept
from vitreous.server.limits import Limits, read_upload, shown_name
from vitreous.server.queue import Worker
from vitreous.server.served import Served

__all__ = ["Given", "images_of", "single"]

log = logging.getLogger("vitreous.server")


class Given:
    """One image of a request: bytes, or the id of one that is kept."""

    def __init__(self, served: Served, limits: Limits, name: str, raw: bytes | None = None, key: str = ""):
        self.served, self.limits, self.name, self.raw, self.key = served, limits, name, raw, key

    def kept(self, worker: Worker) -> tuple[str, Kept]:
        """Its id, and what the model sees of it; work for a worker."""
        if self.raw is None:
            return self.key, self.served.shelf.get(self.key)
        upload = read_upload(self.raw, self.name, self.limits)
        kept = Kept(upload.name, worker.engine.pixels(upload.pixels), upload.note)
        return self.served.shelf.put(self.raw, kept, self.limits.kept), kept


async def images_of(request: Request, served: Served, limits: Limits, keys: list[str]) -> list[Given]:
    """The images that a request names or carries."""
    limit = limits.files
    given = [Given(served, limits, "the image", key=key) for key in keys]
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind == "multipart/form-data":
        try:
            async with request.form(max_files=limit, max_fields=16) as form:
                parts = [part for _, part in form.multi_items() if isinstance(part, UploadFile)]
                given += [Given(served, limits, shown_name(part.filename), await part.read()) for part in parts]
        except HTTPException as error:
            if "Too many files" in str(error.detail):
                raise Refusal(413, f"one request takes at most {limit} images; send them in parts") from None
            raise Refusal(400, "the form is broken; send multipart/form-data with images as files") from None
        except OSError as error:  # a form of more than 1 MB lies in a file while it is taken
            raise await _no_room(request, error) from None
    elif raw := await request.body():
        given.append(Given(served, limits, "the image", raw))
    if not given:
        raise Refusal(422, "no image came; send one as the body, in a form, or name one by ?image=ID")
    if len(given) > limit:
        raise Refusal(413, f"one request takes at most {limit} images; send them in parts")
    return given


async def _no_room(request: Request, error: OSError) -> Refusal:
    """Reads the upload to its end, else its sender would see a broken connection and not our line."""
    why = os.strerror(error.errno or errno.EIO)  # the error's own words may name folders of ours
    log.warning("no room for an upload in %s: %s", tempfile.tempdir or "any temporary folder", why)
    async for _ in request.stream():
        pass
    return Refusal(
        507,
        f"the server has no room for this form in its temporary folder ({why}); send one image as the body, which "
        f"needs none, or ask again later",
    )


def single(given: list[Given]) -> Given:
    if len(given) > 1:
        raise Refusal(422, f"{len(given)} images came; this takes one")
    return given[0]
