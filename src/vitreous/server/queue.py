"""A bounded queue, workers that share the cores, and on a GPU one batch of all clients' images.

On a CPU a batch saves nothing (measured: x1.0 to 1.1), so each worker handles one request after the other, from bytes
to answer. On a GPU the workers decode, and one thread sends the images of all of them through the model together.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from vitreous.models.model import Model
from vitreous.models.preprocess import Preprocess
from vitreous.server.engine import Engine, Pixels
from vitreous.server.errors import Busy
from vitreous.server.exported import Exported, FileEngine
from vitreous.server.runtimes import OtherRuntime

GPU_READERS = 32
GPU_BATCH = 64  # images


@dataclass(frozen=True)
class Worker:
    """What a job runs with: the worker's engine, and the answering function that suits the device."""

    engine: Engine | FileEngine
    answers_to: Callable[[list[Pixels]], NDArray[np.float32]]  # logits and score, B K + 1; without a head features, B D

    @property
    def inside(self) -> Engine:
        """The engine of a model with an inside; routes refuse an exported file before they ask."""
        assert isinstance(self.engine, Engine)
        return self.engine


Work = Callable[[Worker], Any]


@dataclass(eq=False)
class _Job:
    work: Work
    deadline: float
    future: Future[Any]


def share_cores(cores: int) -> tuple[int, int]:
    """Workers on a CPU, and torch's threads in each: one core each on small machines, several on large ones."""
    workers = cores if cores <= 4 else max(4, cores // 4)
    return workers, max(cores // workers, 1)


class WorkQueue:
    """Accepts jobs up to a limit and runs them in order of arrival."""

    def __init__(
        self,
        model: Model | Exported,
        device: torch.device,
        limit: int,
        *,
        cores: int,
        workers: int | None = None,
        runtime: OtherRuntime | None = None,
    ):
        many, threads = share_cores(cores)
        if device.type == "cuda":
            many, threads = GPU_READERS, 1
        self.count, self.threads = workers or many, max(cores // workers, 1) if workers else threads
        self.limit = limit
        self._model, self._device, self._runtime = model, device, runtime
        self._waiting: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._held = 0  # jobs waiting or in progress
        self._closed = False
        self._batcher: Batcher | None = None
        self._threads: list[threading.Thread] = []
        self._seconds = 0.05  # that a job takes, as a moving average

    @property
    def waiting(self) -> int:
        """Jobs that no worker has begun."""
        return max(self._held - self.count, 0)

    @property
    def held(self) -> int:
        """Jobs waiting or in progress."""
        return self._held

    def open(self) -> None:
        """Start the workers. Returns when each has answered once, so the first client does not wait for warm-up."""
        torch.set_num_threads(self.threads)
        if isinstance(self._model, Model):
            self._model.to(self._device)
            if self._device.type == "cuda":
                self._batcher = Batcher(Engine(self._model, self._device))
        begun = [Future[None]() for _ in range(self.count)]
        for i, first in enumerate(begun):
            thread = threading.Thread(target=self._run, args=(first,), name=f"vitreous-serve-{i}", daemon=True)
            self._threads.append(thread)
            thread.start()
        for first in begun:
            first.result()

    def submit_all(self, works: list[Work], seconds: float) -> list[Future[Any]]:
        """Futures of the jobs. The queue takes all of them or, without room, refuses all."""
        with self._lock:
            if self._closed:
                raise Busy("the server is shutting down; try another", after=5)
            if self._held + len(works) > self.limit + self.count:
                raise Busy(f"{self.waiting} images are waiting already; try again later", after=self._wait_seconds())
            self._held += len(works)
        jobs = [_Job(work, time.monotonic() + seconds, Future()) for work in works]
        for job in jobs:
            self._waiting.put(job)
        return [job.future for job in jobs]

    def close(self) -> None:
        """Refuse new jobs, and finish the accepted ones."""
        with self._lock:
            self._closed = True
        for _ in self._threads:
            self._waiting.put(None)
        for thread in self._threads:
            thread.join()
        if self._batcher is not None:
            self._batcher.close()
        if self._runtime is not None:
            self._runtime.close()

    def _wait_seconds(self) -> int:
        return max(1, min(60, round(self._held * self._seconds / self.count)))

    def _run(self, first: Future[None]) -> None:
        try:
            torch.set_num_threads(self.threads)  # OpenMP keeps it per thread
            with self._worker() as worker:
                first.set_result(None)
                while (job := self._waiting.get()) is not None:
                    self._do(job, worker)
        except BaseException as error:
            if first.done():
                raise
            first.set_exception(error)

    @contextmanager
    def _worker(self) -> Iterator[Worker]:
        """A worker that has answered once."""
        if isinstance(self._model, Exported):
            opened = FileEngine(self._model)
            opened.answers_to([_grey(opened.rule)])
            yield Worker(opened, opened.answers_to)
            return
        with Engine(self._model, self._device).at_work() as engine:
            worker, grey = Worker(engine, self._answers_to(engine)), _grey(engine.model.preprocess)
            worker.answers_to([grey])
            engine.attend(grey)
            yield worker

    def _answers_to(self, engine: Engine) -> Callable[[list[Pixels]], NDArray[np.float32]]:
        if self._batcher is not None:
            return self._batcher.answers_to
        return engine.answers_to if self._runtime is None else self._runtime.open(engine)

    def _do(self, job: _Job, worker: Worker) -> None:
        try:
            if not job.future.set_running_or_notify_cancel():
                return
            start = time.monotonic()
            if start > job.deadline:
                job.future.set_exception(Busy("the request waited too long; try again later", self._wait_seconds()))
                return
            try:
                job.future.set_result(job.work(worker))
            except BaseException as error:
                job.future.set_exception(error)
            self._seconds += 0.1 * (time.monotonic() - start - self._seconds)
        finally:
            with self._lock:
                self._held -= 1


def _grey(rule: Preprocess) -> Pixels:
    return np.full((*rule.size, len(rule.mean)), 128, np.uint8)


class Batcher:
    """One thread that sends the images of all workers through the model together."""

    def __init__(self, engine: Engine, limit: int = GPU_BATCH):
        self.engine, self.limit = engine, limit
        self.batches = self.images = 0
        self._asked: queue.SimpleQueue[tuple[list[Pixels], Future[NDArray[np.float32]]] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="vitreous-serve-batches", daemon=True)
        self._thread.start()

    def answers_to(self, seen: list[Pixels]) -> NDArray[np.float32]:
        """As `Engine.answers_to`; blocks until the answers are computed."""
        future: Future[NDArray[np.float32]] = Future()
        self._asked.put((seen, future))
        return future.result()

    def close(self) -> None:
        self._asked.put(None)
        self._thread.join()

    def _run(self) -> None:
        with self.engine.at_work():
            is_open = True
            while is_open:
                asked = self._asked.get()
                part = [asked] if asked is not None else []
                is_open = asked is not None
                while is_open and sum(len(seen) for seen, _ in part) < self.limit:
                    try:
                        more = self._asked.get_nowait()  # arrived during the last batch
                    except queue.Empty:
                        break
                    is_open = more is not None
                    part += [more] if more is not None else []
                if part:
                    self._answer(part)

    def _answer(self, part: list[tuple[list[Pixels], Future[NDArray[np.float32]]]]) -> None:
        try:
            rows = self.engine.answers_to([one for seen, _ in part for one in seen])
        except BaseException as error:
            for _, future in part:
                future.set_exception(error)
            return
        self.batches, self.images = self.batches + 1, self.images + len(rows)
        at = 0
        for seen, future in part:
            future.set_result(rows[at : at + len(seen)])
            at += len(seen)
