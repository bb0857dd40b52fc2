"""Images seen lately, so that looking closer at one sends nothing again. In memory alone, and only so many."""

from __future__ import annotations

import hashlib
import hmac
import secrets
import threading
from collections import OrderedDict
from dataclasses import dataclass

from vitreous.server.engine import Pixels
from vitreous.server.errors import Refusal

__all__ = ["Kept", "Shelf"]


@dataclass(frozen=True, eq=False)
class Kept:
    """An image as the model sees it. note: what its sender should know."""

    name: str
    seen: Pixels
    note: str = ""


class Shelf:
    """The images of the last uploads; those `pinned`, such as examples, stay."""

    def __init__(self) -> None:
        self._key = secrets.token_bytes(32)  # so that nobody can compute the id of an image and ask whether it was here
        self._lock = threading.Lock()
        self._kept: OrderedDict[str, Kept] = OrderedDict()
        self._pinned: dict[str, Kept] = {}

    def pin(self, number: int, kept: Kept) -> str:
        """Keep it for good."""
        key = f"example-{number}"
        self._pinned[key] = kept
        return key

    def put(self, raw: bytes, kept: Kept, limit: int) -> str:
        """Keep it until `limit` others came; the same bytes have the same id."""
        key = hmac.new(self._key, raw, hashlib.sha256).hexdigest()[:32]
        with self._lock:
            self._kept[key] = kept
            self._kept.move_to_end(key)
            while len(self._kept) > limit:
                self._kept.popitem(last=False)
        return key

    def get(self, key: str) -> Kept:
        with self._lock:
            kept = self._pinned.get(key) or self._kept.get(key)
            if key in self._kept:
                self._kept.move_to_end(key)
        if kept is None:
            raise Refusal(404, "that image is not kept any more; send it again")
        return kept
