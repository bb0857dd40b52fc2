"""Worker processes that ignore Ctrl-C; the parent gets the signal and ends them."""

from __future__ import annotations

import multiprocessing
import pickle
import signal
import sys
import tempfile
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing.context import SpawnContext, SpawnProcess
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from vitreous.errors import DataError

PIPE_BYTES = 2**15  # of arguments; a file carries more, since a full pipe would start processes one at a time

Question = TypeVar("Question")
Answer = TypeVar("Answer")


def start(workers: int, prepare: Callable[..., None], *arguments: Any) -> ProcessPoolExecutor:
    """Spawn processes, each prepared once by `prepare(*arguments)`.

    They do not run the calling script again, so it needs no `if __name__ == "__main__":`, unless `arguments` use
    something that it defines. They start with SIGINT blocked: a mask survives exec, and a handler would be set only
    after their imports.
    """
    packed = _packed_without_main(arguments)
    context = _Spawn() if packed is not None else multiprocessing.get_context("spawn")
    file = None if packed is None or len(packed) < PIPE_BYTES else _written(packed)
    how = (prepare, arguments) if file is None else (_prepare_from, (prepare, file))
    pool = ProcessPoolExecutor(workers, context, *how)
    if file is not None:
        weakref.finalize(pool, Path(file).unlink, missing_ok=True)
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        return pool
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        for _ in range(workers):
            pool.submit(_nothing)  # each call starts a process, since none is idle yet
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return pool


def in_order(
    pool: Executor, function: Callable[[Question], Answer], questions: Iterable[Question], ahead: int
) -> Iterator[Answer]:
    """`function(question)` for each question, in order, with `ahead` of them under way."""
    waiting: deque[Future[Answer]] = deque()
    try:
        for question in questions:
            waiting.append(pool.submit(function, question))
            if len(waiting) >= ahead:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        for future in waiting:
            future.cancel()


class _Process(SpawnProcess):
    """Starts without the caller's `__main__` module."""

    def start(self) -> None:
        with _main_hidden():
            super().start()


class _Spawn(SpawnContext):
    Process = _Process


@contextmanager
def _main_hidden() -> Iterator[None]:
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


def _packed_without_main(arguments: Any) -> bytes | None:
    """Pickled arguments; None if they use something that the calling script defines."""
    with _main_hidden():
        try:
            return pickle.dumps(arguments)
        except (pickle.PicklingError, AttributeError):
            return None


def _written(packed: bytes) -> str:
    with tempfile.NamedTemporaryFile(prefix="vitreous-", suffix=".start", delete=False) as file:
        file.write(packed)
    return file.name


def _prepare_from(prepare: Callable[..., None], file: str) -> None:
    prepare(*pickle.loads(Path(file).read_bytes()))  # noqa: S301  # what this very run has just written for itself


def one_thread() -> None:
    """Start a worker: one thread each, and no Ctrl-C."""
    import torch

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # for systems without signal masks
    torch.set_num_threads(1)


def died(doing: str) -> DataError:
    """The error for a process that died.  doing: what it did, such as `packed photos`."""
    return DataError(
        f"a process that {doing} ended by itself; memory may have run out (try fewer workers=), or the calling script "
        'lacks its `if __name__ == "__main__":`'
    )


def _nothing() -> None:
    pass
