"""How steps become images on the device: an index into a resident set, worker threads, or worker processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from functools import cached_property
from multiprocessing.shared_memory import SharedMemory
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitreous.errors import DataError
from vitreous.images.batches import processes as worker_processes
from vitreous.images.batches.loader import Loader, Places, rows_first
from vitreous.images.pixels.augment import AugmentPlan
from vitreous.images.stores.device import Whole

IMAGES_PER_REQUEST = 16  # per call of a worker


@dataclass(frozen=True)
class BatchStep:
    """One rank's part of one step."""

    epoch: int
    places: Places  # in the epoch's order
    members: Places  # image numbers in the set
    copies: Places | None  # which copy of its image each is, from 0
    end: int  # the place after the whole step
    ends_epoch: bool
    draw: Callable[[], AugmentPlan | None]

    @cached_property
    def plan(self) -> AugmentPlan | None:
        """Drawn on first use, in any thread."""
        return self.draw()


class Feed(Protocol):
    """Turns steps into images on the device, `ahead` steps in advance."""

    ahead: int

    def start(self, step: BatchStep) -> Any: ...

    def finish(self, step: BatchStep, begun: Any) -> tuple[Tensor, dict[int, str]]: ...

    def one(self, member: int, crop: AugmentPlan | None) -> Tensor:
        """A single image, C H W, or its DataError."""

    def close(self) -> None: ...


class Resident:
    """The whole set is on the device. One thread draws ahead, and on a CPU gathers; a GPU gathers in its own queue."""

    ahead = 2

    def __init__(self, whole: Whole):
        self.whole, self.missing = whole.images, whole.missing
        self.pool = ThreadPoolExecutor(1, "vitreous-batches")

    def start(self, step: BatchStep) -> Future[Tensor | None]:
        return self.pool.submit(self._prepare, step)

    def _prepare(self, step: BatchStep) -> Tensor | None:
        assert step.plan is None or len(step.plan) == len(step.members)
        return None if self.whole.is_cuda else self._gather(step)

    def _gather(self, step: BatchStep) -> Tensor:
        members = torch.from_numpy(step.members)
        if self.whole.is_cuda:
            members = members.pin_memory()
        return self.whole.index_select(0, members.to(self.whole.device, non_blocking=True))

    def finish(self, step: BatchStep, begun: Future[Tensor | None]) -> tuple[Tensor, dict[int, str]]:
        images = begun.result()
        members = step.members.tolist() if self.missing else []
        failed = {row: self.missing[i] for row, i in enumerate(members) if i in self.missing}
        return (self._gather(step) if images is None else images), failed

    def one(self, member: int, crop: AugmentPlan | None) -> Tensor:
        if member in self.missing:
            raise DataError(self.missing[member])
        return self.whole[member]

    def close(self) -> None:
        # the garbage collector may call it where waiting would hang
        self.pool.shutdown(wait=False, cancel_futures=True)


class Threads:
    """Worker threads fill pinned memory; decoding and resizing release the interpreter lock."""

    def __init__(self, loader: Loader, shape: tuple[int, ...], workers: int, prefetch: int, device: torch.device):
        self.loader, self.shape, self.device = loader, shape, device
        self.ahead = prefetch if workers else 0
        self.pool = ThreadPoolExecutor(workers, "vitreous-batches") if workers else None

    def start(self, step: BatchStep) -> tuple[Tensor, list[tuple[int, Future[dict[int, str]]]]]:
        out = _host(len(step.members), self.shape, self.device)
        runs = []
        for first, members, plan in _runs(step):
            rows = rows_first(out.numpy())[first : first + len(members)]
            if self.pool is not None:
                runs.append((first, self.pool.submit(self.loader.load, members, plan, rows)))
            else:
                runs.append((first, _now(self.loader.load(members, plan, rows))))
        return out, runs

    def finish(self, step: BatchStep, begun: Any) -> tuple[Tensor, dict[int, str]]:
        out, runs = begun
        failed = {first + row: why for first, run in runs for row, why in run.result().items()}
        return out.to(self.device, non_blocking=True), failed

    def one(self, member: int, crop: AugmentPlan | None) -> Tensor:
        return self.loader.one(member, crop, self.shape).to(self.device)

    def close(self) -> None:
        if self.pool is not None:
            self.pool.shutdown(wait=False, cancel_futures=True)


class Processes:
    """Worker processes fill shared memory; each batch is copied from it to the device."""

    def __init__(
        self, loader: Loader, shape: tuple[int, ...], most: int, workers: int, prefetch: int, device: torch.device
    ):
        self.loader, self.shape, self.device, self.ahead = loader, shape, device, prefetch
        slots = prefetch + 1
        self.memory = SharedMemory(create=True, size=max(slots * most * int(np.prod(shape)), 1))
        self.array = np.ndarray((slots, most, *shape), np.uint8, self.memory.buf)
        self.slot = 0
        self.asks_by_id = loader.data.is_streamed
        sent = loader.for_workers()
        self.pool = worker_processes.start(workers, _start_worker, sent, self.memory.name, self.array.shape)

    def start(self, step: BatchStep) -> tuple[int, list[tuple[int, Future[dict[int, str]]]]]:
        slot, self.slot = self.slot, (self.slot + 1) % len(self.array)
        ids = self.loader.data.ids if self.asks_by_id else None
        runs = ((at, members if ids is None else ids[members], plan) for at, members, plan in _runs(step))
        return slot, [(run[0], self.pool.submit(_work, slot, *run)) for run in runs]

    def finish(self, step: BatchStep, begun: Any) -> tuple[Tensor, dict[int, str]]:
        slot, runs = begun
        try:
            failed = {first + row: why for first, run in runs for row, why in run.result().items()}
        except BrokenProcessPool:
            raise worker_processes.died(f"read {self.loader.data.path}") from None
        out = _host(len(step.members), self.shape, self.device)
        out.numpy()[:] = self.array[slot, : len(out)]
        return out.to(self.device, non_blocking=True), failed

    def one(self, member: int, crop: AugmentPlan | None) -> Tensor:
        return self.loader.one(member, crop, self.shape).to(self.device)

    def close(self) -> None:
        self.pool.shutdown(cancel_futures=True)
        del self.array
        self.memory.close()
        self.memory.unlink()


_WORKER: list[tuple[Loader, SharedMemory, NDArray[np.uint8]]] = []  # set in a worker process


def _start_worker(loader: Loader, memory: str, shape: tuple[int, ...]) -> None:
    worker_processes.one_thread()
    shared = SharedMemory(memory)
    _WORKER[:] = [(loader, shared, np.ndarray(shape, np.uint8, shared.buf))]


def _work(slot: int, first: int, members: Places, plan: AugmentPlan | None) -> dict[int, str]:
    loader, _, array = _WORKER[0]
    return loader.load(members, plan, rows_first(array[slot, first : first + len(members)]))


def _host(count: int, shape: tuple[int, ...], device: torch.device) -> Tensor:
    """Memory for a batch, B C H W; pinned for a GPU."""
    return torch.empty((count, *shape), dtype=torch.uint8, pin_memory=device.type == "cuda")


def _runs(step: BatchStep) -> Iterator[tuple[int, Places, AugmentPlan | None]]:
    """A step in parts for workers, each with its rows of the crop's draws."""
    for first in range(0, len(step.members), IMAGES_PER_REQUEST):
        rows = slice(first, first + IMAGES_PER_REQUEST)
        yield first, step.members[rows], crops(step.plan, rows)


def crops(plan: AugmentPlan | None, rows: slice) -> AugmentPlan | None:
    """The part of a plan that a worker needs."""
    return None if plan is None else AugmentPlan(plan.augment, plan.ids[rows], plan.crop[rows], *_NOTHING)


_NOTHING: Any = (np.zeros(0, bool), (), *[np.zeros(0, np.int64)] * 6)  # fields of a plan other than its crop


def _now(value: dict[int, str]) -> Future[dict[int, str]]:
    future: Future[dict[int, str]] = Future()
    future.set_result(value)
    return future
