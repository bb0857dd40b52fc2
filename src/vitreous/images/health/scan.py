"""Facts about every image: read in several processes and kept in a file, so an interrupted check resumes."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import PIL
from numpy.typing import NDArray

from vitreous.errors import BusyError, DataError
from vitreous.files import cache_folder, digest, lock
from vitreous.images.batches import processes
from vitreous.images.health.facts import FACTS, FACTS_VERSION, READABLE, Facts, Seen, look
from vitreous.images.imageset import ImageSet, Source
from vitreous.journal import Journal
from vitreous.machine import core_count

IMAGES_PER_TASK = 64  # per call of a worker
SCAN_IN_PARALLEL_FROM = 512  # images; fewer are read sooner than two processes start
MAX_SCAN_WORKERS = 8  # more take longer to start than they save
KEEP_FACTS_FROM = 2_000  # images; smaller sets are read again as fast as facts are kept
FACTS_HEADER = f"vitreous facts {FACTS_VERSION}, Pillow {PIL.__version__}".encode().ljust(64, b" ")[:63] + b"\n"

Progress = Callable[[int, int], object]  # (done, total)
Answer = TypeVar("Answer")


def gather(readers: Readers, data: ImageSet, cache: Path | None, progress: Progress | None) -> Seen:
    """Facts about every image of `data`, in its order."""
    facts = np.zeros(len(data), FACTS)
    words: dict[int, str] = {}
    _KNOWN.clear()  # left by an earlier check in this process
    with ExitStack() as stack:
        kept = stack.enter_context(keep(cache)) if cache and len(data) >= KEEP_FACTS_FROM else None
        path = kept.path if kept else None
        done = 0
        chunks = (data.ids[at : at + IMAGES_PER_TASK] for at in range(0, len(data), IMAGES_PER_TASK))
        for seen in readers.each(_look, [(chunk, path) for chunk in chunks]):
            facts[done : done + len(seen.facts)] = seen.facts
            words |= {done + place: text for place, text in seen.words.items()}
            if kept:
                kept.add(seen.facts)
            done += len(seen.facts)
            if progress:
                progress(done, len(data))
    return Seen(facts, words)


class Readers:
    """Worker processes that hold the source, or this process without workers."""

    def __init__(self, source: Source, workers: int):
        self.source, self.workers = source, workers
        self.pool: ProcessPoolExecutor | None = None

    def __enter__(self) -> Readers:
        return self

    def __exit__(self, *error: object) -> None:
        if self.pool:
            self.pool.shutdown(cancel_futures=True)

    def each(self, function: Callable[[Source, Any], Answer], questions: Sequence[Any]) -> Iterator[Answer]:
        """function(source, question) in order, a few in flight at a time."""
        if not self.workers or len(questions) < 2:
            yield from (function(self.source, question) for question in questions)
            return
        if self.pool is None:
            self.pool = processes.start(self.workers, _start, self.source)
        try:
            yield from processes.in_order(self.pool, partial(_ask, function), questions, 2 * self.workers + 2)
        except BrokenProcessPool:
            raise DataError(
                "a process that read images was ended from outside (often: out of memory); "
                "try again with fewer workers (workers=0 reads in this process)"
            ) from None


def choose_workers(data: ImageSet, workers: int | None) -> int:
    """The number of workers: as given, else by cores; 0 if this process is faster."""
    if workers is not None:
        if workers < 0:
            raise DataError(f"workers is {workers}; give 0 (this process) or more")
        return workers
    is_of_main = type(data.source).__module__ == "__main__"  # a worker could not find its class
    if len(data) < SCAN_IN_PARALLEL_FROM or is_of_main or getattr(data.source, "stays_here", False):
        return 0
    return min(max(core_count(), 2), MAX_SCAN_WORKERS, -(-len(data) // SCAN_IN_PARALLEL_FROM) + 1)


def cache_file(data: ImageSet) -> Path:
    """The file of facts about a set, by the set's name; rows are keyed by each file's content."""
    return cache_folder() / "health" / f"{digest(os.fsencode(Path(data.path).absolute()))[:24]}.facts"


class KeptFacts:
    """An append-only file of facts. Checksums detect damaged rows, whose facts are computed again."""

    def __init__(self, path: Path):
        self.path = path
        self._journal = _journal(path)
        self._journal.repair()
        self.known = {row.tobytes() for row in read_kept(path)["file"]}

    def add(self, facts: Facts) -> None:
        rows = [row for row in facts if row["problem"] == READABLE and row["file"].any()]
        new = [row for row in rows if row["file"].tobytes() not in self.known]
        if new:
            self.known |= {row["file"].tobytes() for row in new}
            self._journal.append(*(row.tobytes()[:-4] for row in new), sync=False)


@contextmanager
def keep(path: Path) -> Iterator[KeptFacts | None]:
    """The file of facts at `path`, locked; None if it cannot be locked or written."""
    with ExitStack() as stack:
        try:
            stack.enter_context(lock(path.with_suffix(".lock"), seconds=0))
            kept = KeptFacts(path)
        except (BusyError, OSError):  # another check of the same set runs, or the disk is full or read-only
            yield None
            return
        yield kept


def read_kept(path: Path) -> Facts:
    """The whole rows of a file of facts."""
    return np.frombuffer(b"".join(row for row in _journal(path).records() if row), FACTS)


def _journal(path: Path) -> Journal[bytes]:
    return Journal(path, bytes, header=FACTS_HEADER, row=FACTS.itemsize)


class _KnownFacts:
    """Kept facts by file digest, in sorted arrays, which are smaller than a dict of a million rows."""

    def __init__(self, path: Path):
        rows = read_kept(path)
        self.rows = rows[np.argsort(rows["file"][:, 0], kind="stable")]
        self.keys = self.rows["file"][:, 0].copy()

    def get(self, file: bytes) -> Facts | None:
        first, second = np.frombuffer(file, "<u8")
        at = int(np.searchsorted(self.keys, first))
        while at < len(self.keys) and self.keys[at] == first:
            if self.rows["file"][at, 1] == second:
                return self.rows[at]
            at += 1
        return None


_SOURCE: Source | None = None
_KNOWN: dict[Path, _KnownFacts] = {}


def _start(source: Source) -> None:
    global _SOURCE
    _SOURCE = source
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C ends the parent, which ends us


def _ask(function: Callable[[Source, Any], Answer], question: Any) -> Answer:
    assert _SOURCE is not None
    return function(_SOURCE, question)


def _look(source: Source, question: tuple[NDArray[np.int64], Path | None]) -> Seen:
    numbers, path = question
    if path and path not in _KNOWN:
        _KNOWN.clear()
        _KNOWN[path] = _KnownFacts(path)
    return look(source, numbers.tolist(), _KNOWN.get(path) if path else None)
