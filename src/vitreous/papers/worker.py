"""A process that computes cells: one JSON line in for each, one out."""

from __future__ import annotations

import contextlib
import json
import math
import os
import sys
import time
from pathlib import Path
from typing import Any

from vitreous.errors import NotFiniteError, VitreousError
from vitreous.papers.experiment import Cell
from vitreous.papers.results import DIVERGED, DONE
from vitreous.papers.sets import Sets
from vitreous.papers.works import WORKS, Bench
from vitreous.papers.works.bench import is_cuda
from vitreous.papers.works.train import run_training
from vitreous.words import one_line


def compute(cell: Cell, bench: Bench) -> dict[str, Any]:
    """The cell's readings, status and seconds; or an error in one line."""
    clock = time.monotonic if is_cuda(bench) else time.process_time  # a busy machine makes no cell dearer
    began = clock()
    try:
        readings = WORKS[cell.work].run(cell, bench)
    except NotFiniteError:  # of a training that it reads
        readings = {"diverged": 1}
    except VitreousError as error:
        return {"error": str(error)}
    except Exception as error:
        return {"error": f"unexpected {type(error).__name__}: {one_line(error)}"}
    readings = {name: value for name, value in readings.items() if not _is_bad(value)}
    status = DIVERGED if readings.get("diverged") else DONE
    return {"readings": readings, "status": status, "seconds": clock() - began}


def _is_bad(value: Any) -> bool:
    """A number that is not finite is no reading: its seed stays open."""
    return isinstance(value, float) and not math.isfinite(value)


def new_bench(settings: dict[str, Any]) -> Bench:
    models = {"models": Path(settings["models"])} if settings.get("models") else {}
    device, workers = settings.get("device"), settings.get("workers")
    return Bench(Sets(settings.get("data")), device, workers, train=run_training, **models)


def main() -> None:
    """Cells come on stdin; answers go where stdout was, and whatever else prints goes to stderr."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    bench = new_bench(json.loads(sys.argv[1]))
    with contextlib.suppress(KeyboardInterrupt, BrokenPipeError):
        for line in sys.stdin:
            print(json.dumps(compute(Cell.from_json(json.loads(line)), bench)), file=answers, flush=True)
