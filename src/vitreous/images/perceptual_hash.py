"""Digests for exact copies, 64-bit perceptual hashes for near ones.

The distance of two hashes is the number of bits in which they differ (0 … 64). Copies that were resized, recompressed
or lightly retouched stay within a few bits; other images lie about 32 apart. Near hashes are candidates; the one rule
for near duplicates, in `vitreous check` and in splits, is in health/duplicates.py.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from functools import cache
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray
from PIL import Image

Hashes = NDArray[np.uint64]
SHARED_BY_MANY = 64  # a hash that more images share comes from flat images; each pairs only with the first


def exact(raw: bytes) -> str:
    """A digest of a file's bytes: equal for exact copies."""
    return hashlib.blake2b(raw, digest_size=16).hexdigest()


def exact_pixels(pixels: NDArray[np.uint8]) -> str:
    """A digest of an image: equal for the same pixels in any lossless format."""
    shape = ",".join(map(str, pixels.shape)).encode()
    return hashlib.blake2b(np.ascontiguousarray(pixels).data, digest_size=16, key=shape).hexdigest()


def grey(pixels: NDArray[np.uint8]) -> Image.Image:
    """H×W×3, H×W×1 or H×W as a grey Pillow image."""
    if pixels.ndim == 2 or pixels.shape[2] == 1:
        return Image.fromarray(pixels if pixels.ndim == 2 else pixels[:, :, 0])
    return Image.fromarray(pixels).convert("L")


def phash(pixels: NDArray[np.uint8] | Image.Image) -> np.uint64:
    """Bit (u, v) is 1 where the 8 × 8 lowest DCT coefficients of 32 × 32 grey cells lie above their median."""
    cells = _cells(pixels, 32, 32)
    low = _cosines() @ cells @ _cosines().T  # 8 8
    return np.uint64(int.from_bytes(np.packbits(low > np.median(low)).tobytes(), "big"))


def thumbnail(pixels: NDArray[np.uint8] | Image.Image, side: int = 16) -> NDArray[np.uint8]:
    """side × side grey cells: enough to confirm that two near hashes are one image (see `alike`)."""
    return _cells(pixels, side, side).astype(np.uint8)


def alike(a: NDArray[np.generic], b: NDArray[np.generic]) -> NDArray[np.float64]:
    """Correlation of thumbnails, pair by pair (… × side × side each); of two flat ones, 1 if equally bright, else 0."""
    x, y = (np.asarray(t, np.float64).reshape(*t.shape[:-2], t.shape[-2] * t.shape[-1]) for t in (a, b))
    same = (np.abs(x - y) <= 2).all(-1)
    x, y = (v - v.mean(-1, keepdims=True) for v in (x, y))
    size = np.sqrt((x * x).sum(-1) * (y * y).sum(-1))
    return np.where(same, 1.0, (x * y).sum(-1) / np.where(size > 1e-9, size, np.inf))


def distances(a: Hashes, b: Hashes) -> NDArray[np.int64]:
    """Bits in which hashes differ, pair by pair."""
    return _count_bits(np.bitwise_xor(a, b))


def near_pairs(hashes: Hashes, distance: int) -> NDArray[np.int64]:
    """All pairs i < j of hashes at most `distance` bits apart, sorted.  Returns P × 2.

    Of distance + 1 bands of bits, two near hashes agree in at least one. So only hashes that share a band are compared,
    a block at a time: memory grows with the answer, not with N². A hash that more than SHARED_BY_MANY images share
    (flat images) gives pairs only with its first image, so the answer stays linear in N.
    """
    hashes = np.asarray(hashes, np.uint64)
    if distance < 0 or len(hashes) < 2:
        return np.zeros((0, 2), np.int64)
    unique, inverse, counts = np.unique(hashes, return_inverse=True, return_counts=True)
    members = np.split(np.argsort(inverse, kind="stable"), np.cumsum(counts)[:-1])  # each ascending
    found = [_same(m) for m in members if len(m) > 1]
    for a, b in _near_unique(unique, distance):
        found += [_across(members[i], members[j]) for i, j in zip(a.tolist(), b.tolist(), strict=True)]
    if not found:
        return np.zeros((0, 2), np.int64)
    pairs = np.sort(np.concatenate(found), axis=1)
    return pairs[np.lexsort((pairs[:, 1], pairs[:, 0]))]


def groups(pairs: NDArray[np.int64], n: int) -> NDArray[np.int64]:
    """The smallest number that each of 0 … n − 1 is joined with through pairs (union-find).  Returns n."""
    root = np.arange(n)
    for i, j in np.asarray(pairs, np.int64).reshape(-1, 2).tolist():
        while root[i] != i:
            root[i] = root[root[i]]
            i = int(root[i])
        while root[j] != j:
            root[j] = root[root[j]]
            j = int(root[j])
        if i != j:
            root[max(i, j)] = min(i, j)
    for i in range(n):  # roots come before their members
        root[i] = root[root[i]]
    return root


def _same(members: NDArray[np.int64]) -> NDArray[np.int64]:
    if len(members) > SHARED_BY_MANY:
        return np.stack([np.full(len(members) - 1, members[0]), members[1:]], 1)
    return members[np.stack(np.triu_indices(len(members), 1), 1)]


def _across(a: NDArray[np.int64], b: NDArray[np.int64]) -> NDArray[np.int64]:
    a, b = (m[:1] if len(m) > SHARED_BY_MANY else m for m in (a, b))
    return np.stack(np.meshgrid(a, b, indexing="ij"), -1).reshape(-1, 2)


def _near_unique(
    unique: Hashes, distance: int, block: int = 1 << 20
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Places of distinct hashes within `distance`, each pair once: in the first band that it shares."""
    edges = np.linspace(0, 64, min(distance + 1, 64) + 1).astype(int)
    masks = [np.uint64((1 << int(high)) - (1 << int(low))) for low, high in pairwise(edges)]
    if distance >= 64:
        masks = [np.uint64(0)]  # everything is near everything
    for band, mask in enumerate(masks):
        keys = unique & mask
        order = np.argsort(keys, kind="stable")
        starts = np.flatnonzero(np.r_[True, keys[order][1:] != keys[order][:-1]])
        sizes = np.diff(np.r_[starts, len(order)])
        # for each hash, in sorted order: how many later ones share its bucket
        later = np.repeat(starts + sizes, sizes) - np.arange(len(order)) - 1
        ends = np.cumsum(later)
        low = 0
        while low < len(order):
            done = ends[low - 1] if low else 0
            high = max(int(np.searchsorted(ends, done + block, "right")), low + 1)
            count = later[low:high]
            first = np.repeat(np.arange(low, high), count)
            step = np.arange(len(first)) - np.repeat(np.cumsum(count) - count, count)
            a, b = order[first], order[first + 1 + step]
            differ = unique[a] ^ unique[b]
            near = _count_bits(differ) <= distance
            for earlier in masks[:band]:
                near &= (differ & earlier) != 0  # else that band found it
            if near.any():
                yield a[near], b[near]
            low = high


def _cells(pixels: NDArray[np.uint8] | Image.Image, columns: int, rows: int) -> NDArray[np.float64]:
    image = grey(pixels) if isinstance(pixels, np.ndarray) else pixels.convert("L")
    small = image.resize((columns, rows), Image.Resampling.LANCZOS, reducing_gap=3.0)
    return np.asarray(small, np.float64)


@cache
def _cosines() -> NDArray[np.float64]:
    """The first 8 rows of the 32-point DCT-II: 8 × 32."""
    k, n = np.arange(8)[:, None], np.arange(32)[None]
    return np.cos(np.pi * k * (2 * n + 1) / 64)


if hasattr(np, "bitwise_count"):  # numpy 2

    def _count_bits(x: Hashes) -> NDArray[np.int64]:
        return np.bitwise_count(x).astype(np.int64)

else:

    def _count_bits(x: Hashes) -> NDArray[np.int64]:
        table = np.array([bin(i).count("1") for i in range(256)], np.int64)
        return table[np.asarray(x, np.uint64)[..., None].view(np.uint8)].sum(-1)
