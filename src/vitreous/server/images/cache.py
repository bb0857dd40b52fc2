"""The latest images, so that a second look needs no second upload. In memory only, up to a limit."""

from __future__ import annotations

import hashlib
import hmac
import secrets
import threading
from collections import OrderedDict
from dataclasses import dataclass, replace

from vitreous.server.engine import Pixels
from vitreous.server.errors import Refusal


@dataclass(frozen=True, eq=False)
class CachedImage:
    """An image as the model sees it. note: what its sender should know.

    box: the part that the model sees, in shares: left, top, right, bottom.  photo: the whole image, encoded for a page.
    """

    name: str
    seen: Pixels
    note: str = ""
    box: tuple[float, float, float, float] = (0, 0, 1, 1)
    photo: bytes | None = None


class ImageCache:
    """The images of the last uploads; pinned ones, such as examples, stay."""

    def __init__(self) -> None:
        self._key = secrets.token_bytes(32)  # nobody can compute an image's id and ask whether it was here
        self._lock = threading.Lock()
        self._kept: OrderedDict[str, CachedImage] = OrderedDict()
        self._pinned: dict[str, CachedImage] = {}

    def pin(self, number: int, kept: CachedImage) -> str:
        """Keep an image until the server ends."""
        key = f"example-{number}"
        self._pinned[key] = kept
        return key

    def put(self, raw: bytes, kept: CachedImage, limit: int) -> str:
        """Keep an image until `limit` others arrive; the same bytes have the same id."""
        key = hmac.new(self._key, raw, hashlib.sha256).hexdigest()[:32]
        with self._lock:
            if kept.photo is None and key in self._kept:
                kept = replace(kept, photo=self._kept[key].photo)
            self._kept[key] = kept
            self._kept.move_to_end(key)
            while len(self._kept) > limit:
                self._kept.popitem(last=False)
        return key

    def get(self, key: str) -> CachedImage:
        with self._lock:
            kept = self._pinned.get(key) or self._kept.get(key)
            if key in self._kept:
                self._kept.move_to_end(key)
        if kept is None:
            raise Refusal(404, "the server no longer has that image; send it again")
        return kept
