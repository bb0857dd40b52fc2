"""Splits into train and test that keep groups together, a dev split, folds, and nested subsets.

Every draw depends on the seed and the image's name, so reordering files, and adding or removing images, leaves the
others in their split (except as class sizes require).
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from vitreous.errors import DataError
from vitreous.images import perceptual_hash
from vitreous.images.health.duplicates import facts_and_twins
from vitreous.images.health.facts import Facts
from vitreous.images.health.scan import Progress
from vitreous.images.imageset import TEST, TRAIN, ImageSet
from vitreous.randomness import uniform

Places = NDArray[np.int64]
TEST_FRACTION = 0.2
DEV_FRACTION = 0.1
DRAWN_AT_ONCE = 1 << 20  # images, so that draws take little memory
MAX_DRAWN_IMAGES = 50_000  # of the test or dev split of a streamed set
MAX_IMAGES_COMPARED = 100_000  # a larger set is split without a search for near duplicates, with a note
BURST_SECONDS = 3


def make_split(
    labels: NDArray[np.int64],
    names: Sequence[str],
    groups: Places,
    *,
    fraction: float = TEST_FRACTION,
    seed: int = 0,
    purpose: str = "split",
) -> NDArray[np.bool_]:
    """Choose the second side: about `fraction` of every class, in whole groups.

    Groups move over in random order, unless one of their classes would get too many. Then each class without any
    gets its smallest group. A class never moves over whole. Returns N.
    """
    stratum = strata(labels)
    known = np.unique(stratum)
    stratum = np.searchsorted(known, stratum)
    sizes = np.bincount(stratum, minlength=len(known))
    wanted = np.where(sizes > 1, np.clip(np.round(fraction * sizes), 1, np.maximum(sizes - 1, 0)), 0).astype(np.int64)
    order = _group_order(names, groups, seed, purpose)
    members = _members(groups)
    taken = np.zeros(len(known), np.int64)
    second = np.zeros(len(labels), bool)
    for group in order:
        inside = np.bincount(stratum[members[group]], minlength=len(known)) if len(members[group]) > 1 else None
        if inside is None:
            c = stratum[members[group][0]]
            fits = taken[c] < wanted[c]
            taken[c] += fits
        else:
            fits = bool((taken + inside <= wanted)[inside > 0].all())
            taken += inside * fits
        second[members[group]] = fits
    for c in np.flatnonzero((taken == 0) & (wanted > 0)):
        rest = [g for g in order if (stratum[members[g]] == c).any() and not second[members[g]].any()]
        for group in sorted(rest, key=lambda g: len(members[g])):
            inside = np.bincount(stratum[members[group]], minlength=len(known))
            if ((taken + inside < sizes) | (inside == 0)).all():
                second[members[group]] = True
                taken += inside
                break
    return second


def draw_split(data: ImageSet, fraction: float, seed: int, purpose: str) -> tuple[NDArray[np.bool_], float]:
    """Choose the second side of a streamed set: each image by a draw of its own number, about MAX_DRAWN_IMAGES at most.

    Returns N, and the fraction that was used.
    """
    fraction = min(fraction, MAX_DRAWN_IMAGES / len(data))
    second = np.empty(len(data), bool)
    for begin in range(0, len(data), DRAWN_AT_ONCE):
        part = slice(begin, begin + DRAWN_AT_ONCE)
        second[part] = uniform(seed, purpose, 0, data.ids[part])[:, 0] < fraction
    return second, fraction


def cut_dev(data: ImageSet, fraction: float = DEV_FRACTION, seed: int = 0) -> tuple[ImageSet, ImageSet]:
    """The training images as (train, dev). A set's own validation split is its dev."""
    if not 0 < fraction < 1:
        raise DataError(f"a dev split cannot be {fraction} of train; give a fraction between 0 and 1")
    train = data.take(data.splits == TRAIN)
    if not len(train):
        raise DataError(f"{data.path} has no training images to cut a dev split from; it has only test")
    if train.own_splits is not None and (train.own_splits == "val").any() and not (train.own_splits == "val").all():
        own = train.own_splits == "val"
        note = f"dev: the set's own validation split, {int(own.sum()):,} images"
        return _noted(train.take(~own), note), _noted(train.take(own), note)
    if train.is_streamed and train.groups is None:
        second, _ = draw_split(train, fraction, seed, "dev")
        note = f"dev: {int(second.sum()):,} images drawn from train (seed {seed})"
        return _noted(train.take(~second), note), _noted(train.take(second), note)
    groups, how = (train.groups, "as in the split") if train.groups is not None else find_groups(train)
    second = make_split(train.labels, train.names, groups, fraction=fraction, seed=seed, purpose="dev")
    if not second.any():
        raise DataError(f"{data.path} has too few training images for a dev split; add images to each class")
    note = f"dev: {int(second.sum()):,} images cut from train (seed {seed}, stratified; {how})"
    return _noted(train.take(~second), note), _noted(train.take(second), note)


def folds(data: ImageSet, count: int = 5, seed: int = 0, progress: Progress | None = None) -> Places:
    """The fold, 0 … count − 1, of each image: classes spread evenly, groups kept together.

    The largest groups come first, then class by class in random order. Each goes to the fold with the fewest of its
    class; among equals, to the smallest. Returns N.
    """
    if not isinstance(count, int) or count < 2:
        raise DataError(f"folds={count} splits nothing; give 2 or more")
    groups = data.groups if data.groups is not None else find_groups(data, progress=progress)[0]
    members = _members(groups)
    if len(members) < count:
        raise DataError(f"{data.path} has {len(members)} images or groups of copies, too few for {count} folds")
    _, stratum = np.unique(strata(data.labels), return_inverse=True)
    taken = np.zeros((count, int(stratum.max()) + 1), np.int64)
    sizes = np.zeros(count, np.int64)
    found = np.empty(len(data), np.int64)
    order = _group_order(data.names, groups, seed, "folds")
    for group in sorted(order, key=lambda group: (-len(members[group]), int(stratum[members[group][0]]))):
        inside, counts = np.unique(stratum[members[group]], return_counts=True)
        crowd = taken[:, inside] @ counts
        fold = int(np.lexsort((sizes, crowd))[0])
        taken[fold, inside] += counts
        sizes[fold] += len(members[group])
        found[members[group]] = fold
    return found


def dev_groups(data: ImageSet, progress: Progress | None = None) -> Places | None:
    """The group of every image that `cut_dev` would keep together; None if the set has its own dev split."""
    train = np.flatnonzero(data.splits == TRAIN)
    given = None if data.own_splits is None else data.own_splits[train] == "val"
    if data.groups is not None or not len(train) or (given is not None and given.any() and not given.all()):
        return data.groups
    groups = np.arange(len(data))
    groups[train] = train[find_groups(data.take(train), progress=progress)[0]]
    return groups


def subset(data: ImageSet, *, limit: int | None = None, fraction: float | None = None, seed: int = 0) -> ImageSet:
    """`limit` images, or a fraction, spread over splits and classes; smaller subsets lie inside larger ones."""
    check_subset(limit, fraction)
    if limit is None and fraction is None:
        return data
    count = limit if limit is not None else max(1, round(float(fraction or 0) * len(data)))
    if count >= len(data):
        return data
    part = f"{count:,} images" if limit is not None else f"{100 * float(fraction or 0):g} %"
    return _noted(data.take(np.sort(nested_order(data, seed)[:count])), f"a stratified subset of {part} (seed {seed})")


def check_subset(limit: object, fraction: object) -> None:
    """Refuse a limit or fraction that makes no subset."""
    if limit is not None and fraction is not None:
        raise DataError("limit and fraction were both given; give one")
    if limit is not None:
        if not isinstance(limit, int | np.integer) or isinstance(limit, bool):
            raise DataError(f"limit={limit!r} is not a whole number; say how many images, 1 or more")
        if limit < 1:
            raise DataError(f"limit={limit} leaves no image; say 1 or more")
    if fraction is not None:
        if not isinstance(fraction, int | float | np.integer | np.floating) or isinstance(fraction, bool):
            raise DataError(f"fraction={fraction!r} is not a number; say one above 0 and at most 1")
        if not 0 < fraction <= 1:
            raise DataError(f"fraction={fraction} is not above 0 and at most 1")


def nested_order(data: ImageSet, seed: int) -> Places:
    """An order of the images whose every prefix is stratified.

    Image r of n in its split and class (in random order) comes at (r + ½) / n; the first of each class and split come
    before all others, those of train before those of test.
    """
    stratum = strata(data.labels) * 2 + (data.splits == TEST)
    key = uniform(seed, "subset", 0, data.ids if data.is_streamed else _addresses(data.names))[:, 0]
    order = np.lexsort((key, stratum))
    _, starts, sizes = np.unique(stratum[order], return_index=True, return_counts=True)
    rank = np.arange(len(order)) - np.repeat(starts, sizes)
    when = (rank + 0.5) / np.repeat(sizes, sizes)
    is_first = rank == 0
    late = stratum[order] % 2  # test's first after train's
    when = np.where(is_first, late - 2.0, when)
    return order[np.lexsort((key[order], when))]


def keep_classes(data: ImageSet, classes: Sequence[str]) -> ImageSet:
    """The images of some classes, renumbered in the set's order."""
    if isinstance(classes, str):
        classes = [classes]
    if unknown := sorted(set(classes) - set(data.classes)):
        raise DataError(
            f"{data.path} has no class {unknown[0]!r}; it has: {', '.join(data.classes[:12])}"
            f"{' …' if len(data.classes) > 12 else ''}"
        )
    if not classes:
        raise DataError("classes= names no class; name some, or leave it out")
    places = [i for i, name in enumerate(data.classes) if name in set(classes)]
    names = tuple(data.classes[i] for i in places)
    if data.has_many_labels:
        columns = data.labels[:, places]
        kept = replace(data, labels=columns, classes=names).take(np.flatnonzero(columns.any(1)))
    else:
        number = np.full(len(data.classes) + 1, -1, np.int64)
        number[places] = np.arange(len(places))
        labels = number[data.labels]  # −1 takes the last, which is −1
        kept = replace(data, labels=labels, classes=names).take(labels >= 0)
    return _noted(kept, f"only {len(names):,} of {len(data.classes):,} classes")


def strata(labels: NDArray[np.int64]) -> NDArray[np.int64]:
    """The class of each image; the rarest of several; −1 for none."""
    if labels.ndim == 1:
        return labels
    rarest_first = np.argsort(labels.sum(0), kind="stable")
    has = labels[:, rarest_first] > 0
    return np.where(has.any(1), rarest_first[has.argmax(1)], -1)


def find_groups(data: ImageSet, known: Places | None = None, progress: Progress | None = None) -> tuple[Places, str]:
    """Groups of images that must stay together: copies, near copies, bursts and known groups; and a note.

    Uses the facts and rule of `vitreous check`: no split separates what it calls a duplicate.
    """
    n = len(data)
    pairs = [] if known is None else [linked(known)]
    if n > MAX_IMAGES_COMPARED:
        groups = perceptual_hash.groups(np.concatenate(pairs), n) if pairs else np.arange(n)
        return groups, f"more than {MAX_IMAGES_COMPARED:,} images, so near duplicates were not looked for"
    facts, twins = facts_and_twins(data, progress)
    copies = _pairs((group[0], i) for group in twins.exact for i in group[1:])
    near, bursts = _pairs((pair.i, pair.j) for pair in twins.near), _bursts(facts)
    groups = perceptual_hash.groups(np.concatenate([*pairs, copies, near, bursts]), n)
    told = [f"{_joined(copies, n):,} exact copies", f"{_joined(np.concatenate([copies, near]), n):,} with near copies"]
    told += [f"{_joined(bursts, n):,} in bursts"] if len(bursts) else []
    is_any = len(copies) + len(near) + len(bursts) > 0
    return groups, f"kept together: {', '.join(told)}" if is_any else "no duplicates found"


def _bursts(facts: Facts) -> Places:
    """Pairs from one camera that are close in time; a time shared by a tenth of its images means an unset clock."""
    pairs: list[tuple[int, int]] = []
    by_camera: dict[int, list[int]] = {}
    taken = facts["taken"]
    for i in np.flatnonzero((taken != 0) & (facts["camera"] != 0)).tolist():
        by_camera.setdefault(int(facts["camera"][i]), []).append(i)
    for places in by_camera.values():
        often = Counter(taken[places].tolist())
        unset = {moment for moment, count in often.items() if count > max(20, len(places) // 10)}
        timed = sorted((i for i in places if int(taken[i]) not in unset), key=lambda i: (int(taken[i]), i))
        gaps = np.diff(taken[timed]) <= BURST_SECONDS
        pairs += [(timed[k], timed[k + 1]) for k in np.flatnonzero(gaps)]
    return _pairs(pairs)


def linked(groups: Places) -> Places:
    """Pairs that link the same images as the group numbers do, whatever those are."""
    _, first, number = np.unique(groups, return_index=True, return_inverse=True)
    return np.stack([first[number], np.arange(len(groups))], 1)


def _pairs(found: Iterable[tuple[int, int]]) -> Places:
    return np.array(list(found), np.int64).reshape(-1, 2)


def _joined(pairs: Places, n: int) -> int:
    """Images that share their group with another."""
    sizes = np.bincount(perceptual_hash.groups(pairs, n), minlength=n)
    return int(sizes[sizes > 1].sum())


def _addresses(names: Sequence[str]) -> NDArray[np.int64]:
    """A number for each name, for draws; repeated names get different ones."""
    seen: Counter[str] = Counter()
    found = np.empty(len(names), np.int64)
    for i, name in enumerate(names):
        raw = hashlib.blake2b(f"{name}\0{seen[name]}".encode(), digest_size=8).digest()
        found[i] = int.from_bytes(raw, "little") >> 1
        seen[name] += 1
    return found


def _group_order(names: Sequence[str], groups: Places, seed: int, purpose: str) -> list[int]:
    """Group numbers in random order: a group's draw is the smallest of its members'."""
    key = uniform(seed, purpose, 0, _addresses(names))[:, 0]
    least: dict[int, float] = {}
    for group, value in zip(groups.tolist(), key.tolist(), strict=True):
        least[group] = min(value, least.get(group, 1.0))
    return sorted(least, key=lambda group: (least[group], group))


def _members(groups: Places) -> dict[int, Places]:
    order = np.argsort(groups, kind="stable")
    numbers, starts = np.unique(groups[order], return_index=True)
    return dict(zip(numbers.tolist(), np.split(order, starts[1:]), strict=True))


def _noted(data: ImageSet, note: str) -> ImageSet:
    return replace(data, notes=(*data.notes, note))
