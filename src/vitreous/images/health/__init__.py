"""What is wrong with a set of images, before a model learns it.

facts       facts about one image
scan        facts about all images, in several processes, resumable
duplicates  exact and near duplicates
label_noise which labels are more likely wrong than right
judge       from facts and duplicates to findings, each rule stated
page        the findings with their pictures, as a page
"""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike

from vitreous.errors import DataError
from vitreous.files import claim
from vitreous.images.health.duplicates import DEFAULT_DISTANCE, last_scan, scan_set
from vitreous.images.health.facts import READABLE, Facts
from vitreous.images.health.findings import Case, Finding, Health
from vitreous.images.health.judge import check_probabilities, judge, rules
from vitreous.images.health.label_noise import confident_errors, likely_errors
from vitreous.images.health.scan import Progress, cache_file
from vitreous.images.imageset import ImageSet
from vitreous.randomness import uniform

__all__ = ["Case", "Finding", "Health", "check", "confident_errors", "likely_errors"]

SAMPLE_SEED = 0


def check(
    data: ImageSet | str | os.PathLike[str],
    *,
    probabilities: ArrayLike | None = None,
    near: int = DEFAULT_DISTANCE,
    sample: int | None = None,
    workers: int | None = None,
    cache: bool | str | os.PathLike[str] = True,
    out: str | os.PathLike[str] | None = None,
    force: bool = False,
    progress: Progress | None = None,
    again: bool = True,
) -> Health:
    """Report what is wrong with a set of images; change nothing.

    probabilities: N K, out-of-fold, to suspect label errors.  near: of 64 bits, how many may differ in near duplicates.
    sample: read that many images drawn at random instead of all.  cache: whether, or where, to keep facts about a large
    set, so an interrupted check resumes.  out: a page with the pictures.  progress: called with (done, total).
    again: read every file of an open set again; without it, what opening the set has read serves.
    """
    claim(out, force=force)
    again = again and isinstance(data, ImageSet)  # a path is opened now
    whole = data if isinstance(data, ImageSet) else _open(data, progress)
    if len(whole) == 0:
        raise DataError(f"{whole.path} has no images; nothing to check")
    p = None if probabilities is None else check_probabilities(whole, probabilities)
    chosen = _sample(whole, sample)
    some = whole if chosen is None else whole.take(chosen)
    kept = None if cache is False else cache_file(whole) if cache is True else Path(cache)
    found = last_scan(some) if not again and cache is True and near == DEFAULT_DISTANCE else None
    seen, twins = found or scan_set(some, kept, workers=workers, distance=near, progress=progress)
    findings = judge(whole, some, seen, twins, p if p is None or chosen is None else p[chosen])
    known = rules(near, with_labels=p is not None)
    health = _health(whole, some, seen.facts, findings, known, is_sample=chosen is not None)
    if out is not None:
        from vitreous.images.health.page import write

        write(health, out, force=force)
    return health


def _open(path: str | os.PathLike[str], progress: Progress | None) -> ImageSet:
    from vitreous.images.open_data import open as open_images

    return open_images(path, progress=progress)


def _sample(data: ImageSet, size: int | None) -> np.ndarray | None:
    """Sorted places of a random sample; None for all."""
    if size is None or size >= len(data):
        return None
    if size < 1:
        raise DataError(f"sample is {size}; give 1 or more images, or leave it out to read all")
    return np.sort(np.argsort(uniform(SAMPLE_SEED, "health sample", 0, data.ids)[:, 0], kind="stable")[:size])


def _health(
    whole: ImageSet,
    some: ImageSet,
    facts: Facts,
    findings: tuple[Finding, ...],
    known: dict[str, str],
    *,
    is_sample: bool,
) -> Health:
    from vitreous.images.open_data import without_split  # it imports this room

    fine = facts[facts["problem"] == READABLE]
    sizes = {
        side: (int(fine[side].min()), int(np.median(fine[side])), int(fine[side].max()))
        for side in ("width", "height")
        if len(fine)
    }
    return Health(
        path=whole.path,
        kind=whole.kind,
        content_id=whole.content_id,
        images=len(whole),
        checked=len(some),
        sample_seed=SAMPLE_SEED if is_sample else None,
        splits=whole.split_counts,
        classes=whole.classes,
        counts=tuple(int(n) for n in whole.counts[: len(whole.classes)]),
        formats=dict(sorted(Counter(name.decode() for name in fine["format"].tolist()).items())),
        sizes=sizes,
        findings=findings,
        rules=known,
        notes=without_split(whole.notes) if whole.split_was_made else whole.notes,
        data=some,
        is_split_made=whole.split_was_made,
        is_encoded=whole.is_encoded,
    )
