"""Cells per minute, one after another against several at once.   python benchmarks/paper_runner.py --jobs 1 2

    python benchmarks/paper_runner.py --jobs 1 2 --cells 8                                   # on a CPU
    python benchmarks/paper_runner.py --scale gpu --data FOLDER --jobs 1 14 --keep FOLDER    # on a GPU, under MPS

laptop  short pre-trainings of the experiments on transfer; every number of jobs computes them all, in both orders
gpu     the pilots, by which each network gets its rate: the first --cells at the first --jobs, and so on; all others at
        the last. None is computed twice, and with --keep their records are written into FOLDER/pilots.json

A cell counts from the start of its processes; `steady` leaves out everything before the first answer, so that neither
the import of torch nor the first compilation is in it.
"""

import argparse
import json
import math
import os
import random
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from vitreous.machine import record
from vitreous.papers.experiment import Cell, walk
from vitreous.papers.experiments import EXPERIMENTS
from vitreous.papers.experiments.gpu_scale import pilots
from vitreous.papers.experiments.transfer_runs import TRANSFER
from vitreous.papers.order import Clock
from vitreous.papers.results import Results, new_record
from vitreous.papers.runner import computed, open_once
from vitreous.papers.worker import new_bench
from vitreous.papers.works.train import train

PILOTS = "pilots"


def trainings(count: int, length: str) -> list[Cell]:
    """Short pre-trainings of the experiments on transfer, each with its own seed."""
    how = TRANSFER["laptop"]
    return [train(how.model, how.up, seed, length=length, **how.pretraining) for seed in range(count)]


def all_pilots() -> list[Cell]:
    """The pilots of every grid, mixed, so that any part of them is like the whole."""
    grids = [one.placed("gpu", 2) for one in EXPERIMENTS.values() if "gpu" in one.scales]
    found = pilots(walk(one.cell for grid in grids for one in grid))
    cells = [cell for by_rate in found.values() for cell in by_rate.values()]
    random.Random(0).shuffle(cells)
    return cells


def timed(
    cells: list[Cell], jobs: int, settings: dict[str, Any], kept: Results | None, seconds: float | None
) -> dict[str, Any]:
    """All cells once, `jobs` at a time."""
    is_gpu = torch.cuda.is_available() if settings["device"] is None else settings["device"].startswith("cuda")
    began = time.monotonic()
    ends = []
    clock = Clock(math.inf if seconds is None else seconds)
    for cell, answer in computed(cells, settings, jobs, is_gpu=is_gpu, clock=clock):
        if "error" in answer:
            print(f"cell {cell.key} failed: {answer['error']}", flush=True)
            continue
        ends.append(time.monotonic() - began)
        if kept is not None:
            kept.add(PILOTS, new_record(cell, answer["readings"], answer["status"], answer["seconds"]))
    if not ends:
        raise SystemExit(f"no cell ended with {jobs} jobs")
    steady = 60 * (len(ends) - 1) / (ends[-1] - ends[0]) if len(ends) > 1 else None
    found = {"jobs": jobs, "cells": len(ends), "seconds": ends[-1]}
    return found | {"cells_per_minute": 60 * len(ends) / ends[-1], "steady": steady}


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--jobs", nargs="+", type=int, default=[1, 2])
    arguments.add_argument("--cells", type=int, default=8, help="gpu: of the first number of jobs")
    arguments.add_argument("--length", default="60 steps", help="of each training; on a GPU it is the pilots'")
    arguments.add_argument("--rounds", type=int, default=2)
    arguments.add_argument("--scale", choices=["laptop", "gpu"], default="laptop")
    arguments.add_argument("--data")
    arguments.add_argument("--device")
    arguments.add_argument("--models", help="folder of trained models, and of what is found out about a set")
    arguments.add_argument("--seconds", type=float, help="limit of each run")
    arguments.add_argument("--keep", type=Path)
    arguments.add_argument("--out", type=Path)
    asked = arguments.parse_args()
    settings = {"data": asked.data, "device": asked.device, "workers": 1, "models": asked.models}
    runs = []

    def run(cells: list[Cell], jobs: int, turn: int, seconds: float | None = None) -> None:
        load = os.getloadavg()[0]
        runs.append({"round": turn, "load_before": load, **timed(cells, jobs, settings, kept, seconds)})
        print(json.dumps(runs[-1]), flush=True)

    kept = None if asked.keep is None else Results(asked.keep, committed=None)
    if asked.scale == "gpu":
        cells = [cell for cell in all_pilots() if kept is None or kept.get(cell) is None]
        open_once(cells, new_bench(settings))
        for turn, jobs in enumerate(asked.jobs):
            now, cells = (cells, []) if turn == len(asked.jobs) - 1 else (cells[: asked.cells], cells[asked.cells :])
            run(now, jobs, turn, asked.seconds)
    else:
        cells = trainings(asked.cells, asked.length)
        with tempfile.TemporaryDirectory() as models:
            for turn in range(asked.rounds):
                for jobs in asked.jobs if turn % 2 == 0 else reversed(asked.jobs):
                    settings["models"] = str(Path(models) / f"{turn}-{jobs}")
                    run(cells, jobs, turn)
    rates = {jobs: [run["cells_per_minute"] for run in runs if run["jobs"] == jobs] for jobs in asked.jobs}
    means = {str(jobs): sum(found) / len(found) for jobs, found in rates.items()}
    first, last = (means[str(jobs)] for jobs in (asked.jobs[0], asked.jobs[-1]))
    body = {"benchmark": "paper runner", "scale": asked.scale, "runs": runs, "cells_per_minute": means}
    body |= {"times_faster": last / first, **record()}
    print(f"{asked.jobs[-1]} at once: {last / first:.2f} times the cells per minute of {asked.jobs[0]}")
    if asked.out:
        asked.out.write_text(json.dumps(body, indent=2) + "\n")


if __name__ == "__main__":
    main()
