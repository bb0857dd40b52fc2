"""All images once through a model, or two, while every measure reads what it needs on the way."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitreous.errors import DataError
from vitreous.evaluation.inference import Progress, at_work, make_batches
from vitreous.measures.jobs import Job, Store
from vitreous.measures.measure import Reading
from vitreous.measures.subject import Subject
from vitreous.models.taps import taps
from vitreous.ranks import Ranks
from vitreous.words import counted

Tell = Callable[[str], None]
Listeners = dict[str, list[tuple[Reading, int]]]  # tap -> its readings, each with its side of the model
TIMED_FORWARDS = 16  # before the remaining time is reported: the first ones are slow
READ_COST = 2  # a forward that measures read, in plain forwards


def count_forwards(jobs: list[Job], subjects: list[Subject]) -> tuple[int, int]:
    """How many forwards all measures share, and how many more single measures need."""
    sides = [side for side in range(len(subjects)) if any(job.taps(subjects, side) for job in jobs)]
    more = sum(job.measure.forwards(subjects[job.side]) for job in jobs)
    return len(sides) * len(subjects[0].data), round(more)


def run(
    jobs: list[Job],
    subjects: list[Subject],
    workers: int | None,
    store: Store | None,
    progress: Progress | None,
    tell: Tell,
) -> list[str]:
    """Finish every job: those that read taps together, then the others one by one. Returns notes for the user."""
    shared, more = count_forwards(jobs, subjects)
    notes: list[str] = []
    clock = _Countdown(READ_COST * shared + more, progress, tell)
    streamed = [job for job in jobs if any(job.taps(subjects, side) for side in range(len(subjects)))]
    with ExitStack() as stack:
        for subject in subjects:
            normalised, _ = stack.enter_context(at_work(subject.model, subject.device, "float32"))
            subject.normalised = _cast(normalised, next(subject.model.parameters()).dtype)
            subject.tick = clock.tick
        if jobs:
            readings = {job.key: job.start(subjects) for job in jobs}
            seen = _stream(streamed, readings, subjects, workers, clock, notes, tell) if shared or more else 0
            for job in [*streamed, *(job for job in jobs if job not in streamed)]:
                job.found, job.arrays = readings[job.key].finish(), readings[job.key].arrays()
                job.read = seen if job in streamed else _sampled(job, subjects[job.side])
                if store is not None:
                    store.save(job)
    return notes


def _sampled(job: Job, subject: Subject) -> int:
    """How many images a measure with forwards of its own has at hand; 0 if it reads weights alone."""
    return len(subject.sample) if subject.sample is not None and job.measure.forwards(subject) else 0


def _cast(normalised: Callable[[Tensor], Tensor], kind: torch.dtype) -> Callable[[Tensor], Tensor]:
    return lambda images: normalised(images).to(kind)


def _stream(
    jobs: list[Job],
    readings: dict[str, Reading],
    subjects: list[Subject],
    workers: int | None,
    clock: _Countdown,
    notes: list[str],
    tell: Tell,
) -> int:
    """Send all images once through all models; keep the first as the sample. Returns how many could be read."""
    parts: list[list[Tensor]] = [[] for _ in subjects]
    order: list[NDArray[np.int64]] = []
    listeners = [_listeners(jobs, readings, subjects, side) for side in range(len(subjects))]
    few = max(subjects[0].settings.few, subjects[0].settings.field_images)
    seen = 0
    limit: int | None = None
    for images, places in _batches(subjects, workers):
        order.append(places)
        clock.start()
        for side, pixels in enumerate(images):
            if sum(map(len, parts[side])) < few:
                parts[side].append(pixels[: few - sum(map(len, parts[side]))].cpu())
        seen += len(images[0])
        if not any(listeners):
            if seen >= few:
                break
            continue
        smaller = _pass(images, places, subjects, listeners, [readings[job.key] for job in jobs], limit)
        if smaller != limit:
            limit = smaller
            line = f"memory was too small for {len(images[0])} images at a time; went on with {limit}"
            notes.append(line)
            tell(line)
        clock.tick(READ_COST * sum(len(pixels) for pixels, heard in zip(images, listeners, strict=True) if heard))
    if not seen:
        raise DataError(f"no image of {subjects[0].data.path} could be read; see: vitreous check DATA")
    if seen < len(subjects[0].data) and any(listeners):
        notes.append(f"left out: {counted(len(subjects[0].data) - seen, 'image')} that could not be read")
    for subject, sample in zip(subjects, parts, strict=True):
        subject.sample = torch.cat(sample)
        subject.sample_places = np.concatenate(order)[: len(subject.sample)]
    return seen


def _listeners(jobs: list[Job], readings: dict[str, Reading], subjects: list[Subject], side: int) -> Listeners:
    """Which readings want which tap of the model on that side. A reading of one model calls it side 0."""
    out: Listeners = {}
    for job in jobs:
        for tap in dict.fromkeys(job.taps(subjects, side)):
            out.setdefault(tap, []).append((readings[job.key], side if job.measure.is_pair else 0))
    return out


def _batches(subjects: list[Subject], workers: int | None) -> Iterator[tuple[list[Tensor], NDArray[np.int64]]]:
    """The same images for each model, as bytes, each by its own preprocessing; and their numbers within the set."""
    first = subjects[0]
    feeds = [make_batches(s.model, s.data, s.device, s.settings.batch, workers, True, Ranks(0, 1)) for s in subjects]
    size = min(feed.order.batch for feed in feeds)
    if len({_resizing(subject) for subject in subjects}) == 1:
        feeds = feeds[:1]
    for feed in feeds:
        feed.order = replace(feed.order, batch=size)
    assert first.data is feeds[0].data
    for parts in zip(*feeds, strict=True):
        places = parts[0].places
        for part in parts[1:]:
            places = np.intersect1d(places, part.places)
        pixels = [part.images[torch.from_numpy(np.isin(part.places, places)).to(part.images.device)] for part in parts]
        if len(places):
            yield [pixels[min(side, len(pixels) - 1)] for side in range(len(subjects))], places


def _resizing(subject: Subject) -> Any:
    """A model's preprocessing without its mean and deviation."""
    rule = subject.model.preprocess
    count = len(rule.mean)
    return replace(rule, mean=(0.0,) * count, std=(1.0,) * count, source=""), subject.device


def _pass(
    images: list[Tensor],
    places: NDArray[np.int64],
    subjects: list[Subject],
    listeners: list[Listeners],
    readings: list[Reading],
    limit: int | None,
) -> int | None:
    """One batch, in parts if memory is too small. Returns how many images to send at a time from now on."""
    begin, count = 0, len(images[0])
    while begin < count:
        end = count if limit is None else min(begin + limit, count)
        try:
            for side, subject in enumerate(subjects):
                if listeners[side]:
                    subject.of_batch |= {"pixels": images[side][begin:end], "places": places[begin:end]}
                    _forward(images[side][begin:end], subject, listeners[side])
        except (torch.OutOfMemoryError, RuntimeError) as error:
            if not _is_memory(error):
                raise
            for reading in readings:
                reading.drop()
            if end - begin == 1:
                raise DataError("one image needs more memory than the device has; give device=cpu") from None
            limit = max((end - begin) // 2, 1)
            torch.cuda.empty_cache() if torch.cuda.is_available() else None
        else:
            for reading in readings:
                reading.update()
            begin = end
        finally:
            for subject in subjects:
                subject.of_batch.clear()
    return limit


def _is_memory(error: BaseException) -> bool:
    return isinstance(error, torch.OutOfMemoryError) or "not enough memory" in str(error)


def _forward(pixels: Tensor, subject: Subject, listeners: Listeners) -> None:
    """The model on these images; each tap goes to its readings at once, and is not kept."""
    sums: dict[str, Tensor] = {}
    is_reading = False  # a reading may run parts of the model itself, which are not heard

    def heard(tap: str) -> Callable[[Tensor], Tensor]:
        def hear(x: Tensor) -> Tensor:
            nonlocal is_reading
            if is_reading:
                return x
            sums[tap] = x.sum(dtype=torch.float32)
            is_reading = True
            for reading, side in listeners[tap]:
                reading.see(tap, x, side)
            is_reading = False
            return x

        return hear

    with torch.inference_mode(), taps(subject.model, edit={tap: heard(tap) for tap in listeners}):
        subject.model(subject.normalised(pixels))
    finite = torch.stack(list(sums.values())).isfinite().tolist()
    if not all(finite):
        tap = list(sums)[finite.index(False)]
        raise DataError(f"{subject.name} has numbers that are not finite, first at {tap}; check its weights")


class _Countdown:
    """Counts forwards, and reports once, after the first batch, how long the rest will take."""

    def __init__(self, total: int, progress: Progress | None, tell: Tell):
        self.total, self.progress, self.tell = max(total, 1), progress, tell
        self.done = 0
        self.begin: float | None = None
        self.is_told = False

    def start(self) -> None:
        """The first images are there."""
        self.begin = time.monotonic() if self.begin is None else self.begin

    def tick(self, forwards: int) -> None:
        self.done += forwards
        if not self.is_told and self.done >= TIMED_FORWARDS and self.begin is not None:
            self.is_told = True
            seconds = (time.monotonic() - self.begin) * (self.total / self.done - 1)
            if seconds > 5:
                self.tell(f"about {seconds:.0f} seconds to go")
        if self.progress is not None:
            self.progress(min(self.done, self.total), self.total)
