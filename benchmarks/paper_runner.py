"""Cells per minute, one after another against several at once.   python benchmarks/paper_runner.py --jobs 1 2

    python benchmarks/paper_runner.py --jobs 1 2 --cells 8                                  # on a CPU
    python benchmarks/paper_runner.py --jobs 1 12 --cells 24 --scale gpu --data FOLDER      # on a GPU, under MPS

Each number of jobs computes the same trainings by the runner of `vitreous paper`, with processes of its own. A cell
counts from the start of its processes; `steady` leaves out everything before the first answer, so that neither the
import of torch nor the first compilation is in it. Both orders are run, so that a busier minute hits both.
"""

import argparse
import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from vitreous.machine import record
from vitreous.papers.experiment import Cell
from vitreous.papers.experiments.transfer_runs import TRANSFER
from vitreous.papers.runner import computed
from vitreous.papers.works.train import train


def trainings(scale: Any, count: int, length: str) -> list[Cell]:
    """Short pre-trainings of the experiments on transfer, each with its own seed."""
    how = TRANSFER[scale]
    return [train(how.model, how.up, seed, length=length, **how.pretraining) for seed in range(count)]


def timed(cells: list[Cell], jobs: int, data: str | None, device: str | None) -> dict[str, Any]:
    """All cells once, so many at a time."""
    with tempfile.TemporaryDirectory() as models:
        settings = {"data": data, "device": device, "workers": 1, "models": models}
        is_gpu = torch.cuda.is_available() if device is None else device.startswith("cuda")
        began = time.monotonic()
        ends = []
        for cell, answer in computed(cells, settings, jobs, is_gpu=is_gpu):
            if "error" in answer:
                raise SystemExit(f"cell {cell.key} failed: {answer['error']}")
            ends.append(time.monotonic() - began)
    steady = 60 * (len(ends) - 1) / (ends[-1] - ends[0]) if len(ends) > 1 else None
    return {"jobs": jobs, "seconds": ends[-1], "cells_per_minute": 60 * len(ends) / ends[-1], "steady": steady}


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--jobs", nargs="+", type=int, default=[1, 2])
    arguments.add_argument("--cells", type=int, default=8)
    arguments.add_argument("--length", help="of each training; 60 steps, or 300 on a GPU")
    arguments.add_argument("--rounds", type=int, default=2)
    arguments.add_argument("--scale", choices=["laptop", "gpu"], default="laptop")
    arguments.add_argument("--data")
    arguments.add_argument("--device")
    arguments.add_argument("--out", type=Path)
    asked = arguments.parse_args()
    length = asked.length or ("60 steps" if asked.scale == "laptop" else "300 steps")
    cells = trainings(asked.scale, asked.cells, length)
    runs = []
    for turn in range(asked.rounds):
        for jobs in asked.jobs if turn % 2 == 0 else reversed(asked.jobs):
            runs.append(
                {"round": turn, "load_before": os.getloadavg()[0], **timed(cells, jobs, asked.data, asked.device)}
            )
            print(json.dumps(runs[-1]), flush=True)
    rates = {jobs: [run["cells_per_minute"] for run in runs if run["jobs"] == jobs] for jobs in asked.jobs}
    means = {str(jobs): sum(found) / len(found) for jobs, found in rates.items()}
    first, last = (means[str(jobs)] for jobs in (asked.jobs[0], asked.jobs[-1]))
    body = {"benchmark": "paper runner", "scale": asked.scale, "cells": asked.cells, "length": length, "runs": runs}
    body |= {"cells_per_minute": means, "times_faster": last / first, **record()}
    print(f"{asked.jobs[-1]} at once: {last / first:.2f} times the cells per minute of {asked.jobs[0]}")
    if asked.out:
        asked.out.write_text(json.dumps(body, indent=2) + "\n")


if __name__ == "__main__":
    main()
