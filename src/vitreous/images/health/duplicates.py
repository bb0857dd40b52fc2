"""Exact and near duplicates in a set of images.

Exact: the same upright RGB pixels, in whatever file. Near: pHashes at most `distance` of 64 bits apart. Flat or
simple images share hashes, so a second test follows on 32 × 32 grey cells: their 16 × 16 means must correlate, and
so must the fine detail that is left after subtracting the 8 × 8 means. Images below SMALL_IMAGE_SIDE pixels show so
little that shirts and digits look alike, so they must correlate more.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from vitreous.errors import DataError
from vitreous.images import perceptual_hash
from vitreous.images.health.facts import (
    BLANK,
    FLAT_SPREAD,
    READABLE,
    Facts,
    Problem,
    Seen,
    digest_of_pixels,
    grey_cells,
)
from vitreous.images.health.scan import Progress, Readers, cache_file, choose_workers, gather
from vitreous.images.imageset import ImageSet, Source

DEFAULT_DISTANCE = 6  # bits; on Oxford-IIIT Pets 42 of 42 known pairs lie within 4, and chance pairs begin at 6
MAX_DISTANCE = 16  # bits; beyond, chance pairs outnumber the set
SMALL_IMAGE_SIDE = 64  # pixels of the short side
MIN_CORRELATION, MIN_CORRELATION_SMALL = (0.95, 0.8), (0.995, 0.93)  # correlation of the means, of the detail
PAIRS_AT_ONCE = 4096  # pairs measured at once


@dataclass(frozen=True)
class NearPair:
    """Two near-duplicate images (places in the set, i < j)."""

    i: int
    j: int
    bits: int
    correlation: float


@dataclass(frozen=True)
class Twins:
    """exact: groups of two or more places, ascending. near: pairs of first members of different groups."""

    exact: list[list[int]]
    near: list[NearPair]

    def pairs(self) -> Iterable[tuple[list[int], list[int], NearPair | None]]:
        """Every relation as two lists of places: a group with itself, or the two groups of a near pair."""
        members = {group[0]: group for group in self.exact}
        yield from ((group, group, None) for group in self.exact)
        yield from ((members.get(n.i, [n.i]), members.get(n.j, [n.j]), n) for n in self.near)


def facts_and_twins(data: ImageSet, progress: Progress | None = None) -> tuple[Facts, Twins]:
    """Facts and duplicates of these images, from their set's last scan if it holds them all, else from a new one."""
    seen, twins = last_scan(data) or scan_set(data, cache_file(data), progress=progress)
    return seen.facts, twins


def last_scan(data: ImageSet) -> tuple[Seen, Twins] | None:
    """What the last scan of the set found about these images; None if it left out any of them."""
    found = data.scan.last
    if found is None or found[0]() is not data.source or not np.isin(data.ids, found[1]).all():
        return None
    _, ids, seen, whole = found
    order = np.argsort(ids, kind="stable")
    places = order[np.searchsorted(ids, data.ids, sorter=order)]
    here = dict(zip(places.tolist(), range(len(places)), strict=True))
    exact, near = [], []
    for one, other, pair in whole.pairs():
        a, b = (sorted(here[place] for place in group if place in here) for group in (one, other))
        if pair is None:
            exact += [a] if len(a) > 1 else []
        elif a and b:
            near.append(replace(pair, i=min(a[0], b[0]), j=max(a[0], b[0])))
    words = {here[place]: text for place, text in seen.words.items() if place in here}
    return Seen(seen.facts[places], words), Twins(exact, near)


def scan_set(
    data: ImageSet,
    cache: Path | None,
    *,
    workers: int | None = None,
    distance: int = DEFAULT_DISTANCE,
    progress: Progress | None = None,
) -> tuple[Seen, Twins]:
    """Read every image, find duplicates, and keep both with the set."""
    with Readers(data.source, choose_workers(data, workers)) as readers:
        seen = gather(readers, data, cache, progress)
        twins = find_twins(readers, data, seen.facts, distance)
    if distance == DEFAULT_DISTANCE:
        data.scan.last = weakref.ref(data.source), data.ids, seen, twins
    return seen, twins


def known_digests(data: ImageSet) -> NDArray[np.uint64] | None:
    """A digest of each image's file, or of its pixels if stored decoded; None if no scan has read the set."""
    if data.scan.last is None:
        return None
    facts, _ = facts_and_twins(data)
    return np.where(facts["file"][:, 0] != 0, facts["file"][:, 0], facts["pixels"][:, 0])


def find_twins(readers: Readers, data: ImageSet, facts: Facts, distance: int = DEFAULT_DISTANCE) -> Twins:
    """All exact and near duplicates. Fills in the pixel digests that it needs."""
    if not 0 <= distance <= MAX_DISTANCE:
        raise DataError(
            f"near is {distance}; give 0 to {MAX_DISTANCE} bits (0: equal hashes alone; {DEFAULT_DISTANCE} is usual)"
        )
    exact = exact_groups(facts)
    near = _near(readers, data, facts, exact, distance)
    if _fill_digests(readers, data, facts, near):
        exact = exact_groups(facts)
        first = {place: group[0] for group in exact for place in group}
        near = _between_groups(near, first)
    return Twins(exact, near)


def exact_groups(facts: Facts) -> list[list[int]]:
    """Places with the same pixels, or the same file if pixel digests are unknown."""
    groups: dict[bytes, list[int]] = {}
    for place in np.flatnonzero(facts["problem"] == READABLE).tolist():
        row = facts[place]
        key = row["pixels"] if row["pixels"].any() else row["file"]
        groups.setdefault(key.tobytes(), []).append(place)
    return [group for group in groups.values() if len(group) > 1]


def detail_alike(a: NDArray[np.uint8], b: NDArray[np.uint8]) -> NDArray[np.float64]:
    """Correlation of 32 × 32 cells minus their 8 × 8 means, pair by pair."""
    return perceptual_hash.alike(_detail(a), _detail(b))


def means_alike(a: NDArray[np.uint8], b: NDArray[np.uint8]) -> NDArray[np.float64]:
    """Correlation of the 16 × 16 means of 32 × 32 cells, pair by pair."""
    return perceptual_hash.alike(_means(a, 2), _means(b, 2))


def _near(readers: Readers, data: ImageSet, facts: Facts, exact: list[list[int]], distance: int) -> list[NearPair]:
    copies = np.zeros(len(facts), bool)
    copies[[place for group in exact for place in group[1:]]] = True
    is_flat = (facts["spread"] < FLAT_SPREAD) | (facts["traits"] & BLANK > 0)
    alone = np.flatnonzero((facts["problem"] == READABLE) & ~copies & ~is_flat)
    pairs = alone[perceptual_hash.near_pairs(facts["hash"][alone], distance)]
    if not len(pairs):
        return []
    places, where = np.unique(pairs, return_inverse=True)
    where = where.reshape(pairs.shape)
    chunks = [data.ids[places[at : at + 64]].tolist() for at in range(0, len(places), 64)]
    cells = np.concatenate(list(readers.each(_cells, chunks)))
    sides = np.minimum(facts["width"], facts["height"])
    found: list[NearPair] = []
    for at in range(0, len(pairs), PAIRS_AT_ONCE):
        (a, b), (i, j) = where[at : at + PAIRS_AT_ONCE].T, pairs[at : at + PAIRS_AT_ONCE].T
        means, detail = means_alike(cells[a], cells[b]), detail_alike(cells[a], cells[b])
        is_small = np.minimum(sides[i], sides[j]) < SMALL_IMAGE_SIDE
        enough = [np.where(is_small, MIN_CORRELATION_SMALL[k], MIN_CORRELATION[k]) for k in (0, 1)]
        bits = perceptual_hash.distances(facts["hash"][i], facts["hash"][j])
        found += [
            NearPair(int(i[k]), int(j[k]), int(bits[k]), round(float(means[k]), 4))
            for k in np.flatnonzero((means >= enough[0]) & (detail >= enough[1])).tolist()
        ]
    return found


def _between_groups(near: list[NearPair], first: dict[int, int]) -> list[NearPair]:
    """The nearest pair of each two groups, given by their first members."""
    kept: dict[tuple[int, int], NearPair] = {}
    for n in sorted(near, key=lambda n: (n.bits, -n.correlation)):
        i, j = sorted((first.get(n.i, n.i), first.get(n.j, n.j)))
        if i != j:
            kept.setdefault((i, j), replace(n, i=i, j=j))
    return [kept[pair] for pair in sorted(kept)]


def _cells(source: Source, numbers: list[int]) -> NDArray[np.uint8]:
    cells = np.zeros((len(numbers), 32, 32), np.uint8)
    for k, i in enumerate(numbers):
        try:
            cells[k] = grey_cells(source, i)
        except (OSError, Problem):  # the file vanished after the scan; it matches nothing
            cells[k] = np.indices((32, 32)).sum(0) % 2 * 255
    return cells


def _fill_digests(readers: Readers, data: ImageSet, facts: Facts, near: list[NearPair]) -> bool:
    known: NDArray[np.bool_] = np.any(facts["pixels"] != 0, axis=1)
    size = facts[["width", "height"]]
    doubtful = sorted(
        {place for n in near if size[n.i] == size[n.j] and not (known[n.i] and known[n.j]) for place in (n.i, n.j)}
    )
    questions = [place for place in doubtful if not known[place]]
    digests = readers.each(digest_of_pixels, data.ids[questions].tolist() if questions else [])
    for place, found in zip(questions, digests, strict=True):
        facts["pixels"][(facts["file"] == facts["file"][place]).all(1)] = np.frombuffer(found, "<u8")
    return bool(questions)


def _means(cells: NDArray[np.uint8], side: int) -> NDArray[np.float32]:
    n, rows, columns = cells.shape
    blocks = cells.reshape(n, rows // side, side, columns // side, side).astype(np.float32)
    return blocks.mean((2, 4))


def _detail(cells: NDArray[np.uint8]) -> NDArray[np.float32]:
    coarse = _means(cells, 4).repeat(4, 1).repeat(4, 2)
    return cells.astype(np.float32) - coarse
