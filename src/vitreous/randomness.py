"""Randomness with an address: a draw depends on (seed, purpose, epoch, sample id) and on nothing else.

So batch size, workers, ranks and device change nothing. Drawn on the host in float64.
"""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import ArrayLike, NDArray

_STEP = np.uint64(0x9E3779B97F4A7C15)  # 2⁶⁴ / golden ratio: counters far apart in every bit


def uniform(seed: int, purpose: str, epoch: int, ids: ArrayLike, count: int = 1) -> NDArray[np.float64]:
    """Numbers in [0, 1), `count` for each sample id.  Returns len(ids) × count."""
    return (bits(seed, purpose, epoch, ids, count) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def integers(seed: int, purpose: str, epoch: int, ids: ArrayLike, below: int, count: int = 1) -> NDArray[np.int64]:
    """Whole numbers in 0 … below − 1, `count` for each sample id."""
    return (uniform(seed, purpose, epoch, ids, count) * below).astype(np.int64)


def permutation(seed: int, purpose: str, epoch: int, n: int) -> NDArray[np.int64]:
    """An order of 0 … n − 1."""
    key = np.array([_key(seed, purpose), _mix(np.uint64((epoch + int(_STEP)) % 2**64))], np.uint64)
    return np.random.Generator(np.random.Philox(key=key)).permutation(n)


def bits(seed: int, purpose: str, epoch: int, ids: ArrayLike, count: int = 1) -> NDArray[np.uint64]:
    """64 random bits, `count` for each sample id: splitmix64's mixer, once for each part of the address."""
    numbers: NDArray[np.uint64] = np.asarray(ids, np.int64).astype(np.uint64)
    with np.errstate(over="ignore"):
        place = _mix(np.uint64((int(_key(seed, purpose)) + epoch * int(_STEP)) % 2**64))
        sample = _mix(place + numbers * _STEP)  # len(ids)
        return _mix(sample[:, None] + (np.arange(count, dtype=np.uint64) + np.uint64(1)) * _STEP)


def _key(seed: int, purpose: str) -> np.uint64:
    raw = hashlib.blake2b(f"{seed}/{purpose}".encode(), digest_size=8).digest()
    return np.uint64(int.from_bytes(raw, "little"))


def _mix(x: NDArray[np.uint64] | np.uint64) -> NDArray[np.uint64]:
    """splitmix64's finaliser: a bijection in which every input bit moves every output bit."""
    with np.errstate(over="ignore"):
        x = np.asarray(x, np.uint64)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return x ^ (x >> np.uint64(31))
