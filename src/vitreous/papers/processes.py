"""The processes that compute cells, each fed by a thread. They share a GPU through CUDA's MPS."""

from __future__ import annotations

import json
import os
import queue
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from vitreous.papers.experiment import Cell

Answer = tuple["CellProcess", Cell, dict[str, Any]]


@dataclass(eq=False)
class CellProcess:
    """One process. It starts with its first cell; if it dies, its next cell starts another."""

    settings: dict[str, Any]
    answers: queue.Queue[Answer]
    cells: queue.Queue[tuple[Cell, dict[str, Any]] | None] = field(default_factory=queue.Queue)
    process: subprocess.Popen[str] | None = None
    kinds: set[str] = field(default_factory=set)  # of training steps that it has compiled
    busy: Cell | None = None

    def send(self, cell: Cell, how: dict[str, Any]) -> None:
        """how: what the process cannot know by itself about this cell."""
        self.busy = cell
        self.cells.put((cell, how))

    def feed(self) -> None:
        while (sent := self.cells.get()) is not None:
            answer = self._asked(*sent)
            self.answers.put((self, sent[0], answer))
        if self.process is not None and self.process.stdin is not None:
            self.process.stdin.close()
            self.process.wait()

    def _asked(self, cell: Cell, how: dict[str, Any]) -> dict[str, Any]:
        try:
            if self.process is None or self.process.poll() is not None:
                self.process = None
                self.process = _started(self.settings)
            assert self.process.stdin is not None
            assert self.process.stdout is not None
            print(json.dumps(cell.to_json() | how), file=self.process.stdin, flush=True)
            answer: dict[str, Any] = json.loads(self.process.stdout.readline())
        except (OSError, ValueError) as error:
            self.kinds.clear()
            gone = self.process
            why = f"could not start ({error})" if gone is None else f"ended with exit code {gone.wait()}"
            return {"error": f"its process {why}"}
        return answer


@contextmanager
def workers(settings: dict[str, Any], count: int) -> Iterator[tuple[list[CellProcess], queue.Queue[Answer]]]:
    """This many workers, and the queue of their answers. Cells unfinished when the block ends are stopped."""
    answers = queue.Queue[Answer]()
    all_of_them = [CellProcess(settings, answers) for _ in range(count)]
    threads = [threading.Thread(target=worker.feed, daemon=True) for worker in all_of_them]
    for thread in threads:
        thread.start()
    try:
        yield all_of_them, answers
        for worker in all_of_them:
            if worker.busy is None:
                worker.cells.put(None)
        for worker, thread in zip(all_of_them, threads, strict=True):
            if worker.busy is None:
                thread.join()
    finally:
        for worker in all_of_them:
            if worker.process is not None and worker.process.poll() is None:
                worker.process.terminate()


def _started(settings: dict[str, Any]) -> subprocess.Popen[str]:
    words = [sys.executable, "-c", "from vitreous.papers.worker import main; main()", json.dumps(settings)]
    alone = {"OMP_NUM_THREADS": "1", "TORCHINDUCTOR_COMPILE_THREADS": "1"}  # other processes fill the cores
    pipe = subprocess.PIPE
    return subprocess.Popen(words, stdin=pipe, stdout=pipe, text=True, env={**alone, **os.environ})


@contextmanager
def shared_gpu(is_wanted: bool) -> Iterator[None]:
    """CUDA's MPS while the block runs, if this machine has it: kernels of several processes then run side by side."""
    control = shutil.which("nvidia-cuda-mps-control") if is_wanted else None
    if control is None or "CUDA_MPS_PIPE_DIRECTORY" in os.environ:
        yield
        return
    with tempfile.TemporaryDirectory() as folder:
        places = {"CUDA_MPS_PIPE_DIRECTORY": folder, "CUDA_MPS_LOG_DIRECTORY": folder}
        os.environ.update(places)
        started = subprocess.run([control, "-d"], check=False, capture_output=True).returncode == 0
        try:
            if not started:
                for name in places:
                    del os.environ[name]
            yield
        finally:
            if started:
                subprocess.run([control], input="quit\n", text=True, check=False, capture_output=True)
            for name in places:
                os.environ.pop(name, None)
