"""A process that computes cells: one JSON line in for each, one out."""

from __future__ import annotations

import contextlib
import gc
import json
import math
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch

from vitreous.errors import NotFiniteError, VitreousError
from vitreous.files import cache_folder
from vitreous.images.stores import kept
from vitreous.papers.experiment import Cell
from vitreous.papers.results import DIVERGED, DONE
from vitreous.papers.sets import Sets
from vitreous.papers.works import WORKS, Bench
from vitreous.papers.works.bench import is_cuda
from vitreous.papers.works.train import run_training
from vitreous.training.run.step import Compiled
from vitreous.words import one_line


def compute(cell: Cell, bench: Bench, compiled: Compiled | None = None) -> dict[str, Any]:
    """The cell's readings, status and seconds; or an error in one line.  compiled: which part of a training step."""
    bench.compiled = compiled
    clock = time.monotonic if is_cuda(bench) else time.process_time  # a busy machine makes no cell cost more
    began, readings = clock(), None
    try:
        readings = WORKS[cell.work].run(cell, bench)
    except NotFiniteError:  # a training that it reads diverged
        readings = {"diverged": 1}
    except VitreousError as error:
        return {"error": str(error)}
    except Exception as error:
        if compiled in (None, "none"):
            return {"error": f"unexpected {type(error).__name__}: {one_line(error)}"}
    if readings is None:  # the compiler may fail where the step does not; outside `except`, nothing holds the network
        free_memory(bench)
        return compute(cell, bench, "none")
    readings = {name: value for name, value in readings.items() if not _is_bad(value)}
    status = DIVERGED if readings.get("diverged") else DONE
    return {"readings": readings, "status": status, "seconds": clock() - began}


def _is_bad(value: Any) -> bool:
    """A number that is not finite is no reading: its seed stays open."""
    return isinstance(value, float) and not math.isfinite(value)


def new_bench(settings: dict[str, Any]) -> Bench:
    models = Path(settings.get("models") or cache_folder() / "papers")
    device, workers = settings.get("device"), settings.get("workers")
    return Bench(Sets(settings.get("data"), models), device, workers, models=models, train=run_training)


def main() -> None:
    """Cells come on stdin; answers go where stdout was, and whatever else prints goes to stderr."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    bench = new_bench(json.loads(sys.argv[1]))
    if is_cuda(bench):
        kept.keep()
    with contextlib.suppress(KeyboardInterrupt, BrokenPipeError):
        for line in sys.stdin:
            asked = json.loads(line)
            answer = compute(Cell.from_json(asked), bench, asked.get("compiled"))
            free_memory(bench)
            print(json.dumps(answer), file=answers, flush=True)


def free_memory(bench: Bench) -> None:
    """Give a captured step's memory back to the GPU, which other processes share."""
    if is_cuda(bench):
        gc.collect()
        torch.cuda.empty_cache()
