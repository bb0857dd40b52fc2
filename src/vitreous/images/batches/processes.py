"""Worker processes that Ctrl-C does not reach: the parent hears it and ends them."""

from __future__ import annotations

import multiprocessing
import pickle
import signal
import sys
import tempfile
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing.context import SpawnContext, SpawnProcess
from pathlib import Path
from types import ModuleType
from typing import Any

from vitreous.errors import DataError

__all__ = ["died", "one_thread", "start"]

PIPE_BYTES = (
    2**15
)  # bytes of arguments from which a file carries them: a full pipe would start one process after the other


def start(workers: int, prepare: Callable[..., None], *arguments: Any) -> ProcessPoolExecutor:
    """Spawned processes, each prepared once by `prepare(*arguments)`.

    They do not run the calling script again, so it needs no `if __name__ == "__main__":` unless `arguments` hold
    something that it defines. They start with the signal blocked: a mask outlives the start of another program, and a
    handler of theirs would come only after their imports.
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
            pool.submit(_nothing)  # each starts a process, since none is idle yet
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return pool


class _Process(SpawnProcess):
    """Starts without the module that is `__main__` here."""

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
    """None where they hold something that the calling script defines."""
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
    """For the start of a worker: as many threads as processes would be too many."""
    import torch

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # where no mask could be inherited
    torch.set_num_threads(1)


def died(doing: str) -> DataError:
    """The line for a process that is gone. doing: what it did, such as `packed photos`."""
    return DataError(
        f"a process that {doing} ended by itself; memory may have run out (try fewer workers=), or the calling script "
        'lacks its `if __name__ == "__main__":`'
    )


def _nothing() -> None:
    pass
