"""The limits on what a client may send and what it can cost."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What one client may cost, and all together."""

    upload: int = 20 * 2**20  # bytes of one request
    pixels: int = 50_000_000  # of one image, unpacked
    files: int = 32  # images in one request
    in_flight: int = 256 * 2**20  # bytes of all requests being received or answered
    queue: int = 64  # waiting requests of all clients
    seconds: float = 30.0  # from a request's arrival to its answer
    kept: int = 128  # images in memory, so that a second look needs no second upload
