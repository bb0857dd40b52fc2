"""Older measurements become cells of `vitreous paper`.   python benchmarks/import_transfer_runs.py

transfer_study.jsonl   199 runs of benchmarks/transfer_study.py: the gpu scale of the experiments on transfer
pretraining.json       the ViT and the hybrid that it transferred
cifar10.json           CIFAR-10 from scratch, 195 seconds
ways_shots.json        episodes of DeiT-Ti on pets

No number changes: a run is found by its cell's content key, carries its file as origin, and the record of versions,
hardware and command that its file has. A run without a cell is reported. The result is committed;
nothing else runs this.
"""

import argparse
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from vitreous.papers.experiment import Cell
from vitreous.papers.experiments import EXPERIMENTS, shots, transfer
from vitreous.papers.experiments.transfer_runs import (
    ALIKE,
    TRANSFER,
    UNLIKE,
    TransferCase,
    checkpoint,
    from_scratch,
    tuned,
)
from vitreous.papers.results import COMMITTED, DONE, Record, imported, write
from vitreous.papers.works.episodes import reading_name
from vitreous.papers.works.resizing import Resized

RESULTS = Path(__file__).parent / "results"
GPU = TRANSFER["gpu"]
MOVES = {"two": "2-D", "one": "1-D", "new": "anew"}
ABOUT = ("command", "versions", "hardware", "commit")
NAME = "transfer-study"


def cell_of(experiment: str, run: dict[str, Any]) -> Cell | None:
    """The cell of a line of the study; None if no grid has it."""
    seed, images = run["seed"], run.get("train")
    case = GPU.cases[UNLIKE] if run["data"] == "fashion" else TransferCase(run["data"])
    if experiment == "policies":
        policy = "upper" if run["policy"] == GPU.upper else run["policy"]
        return tuned(GPU, case, seed, images=images, policy=policy, is_augmented=run["augmented"])
    if experiment == "resolution":
        resized = None if run["pixels"] == 64 else Resized(run["pixels"], MOVES[run["positions"]])
        return tuned(GPU, GPU.cases[ALIKE], seed, resized=resized)
    if experiment == "amounts":
        steps = GPU.gain_steps
        alone = run["begun"] == "scratch"
        return from_scratch(GPU, case, seed, images, steps) if alone else tuned(GPU, case, seed, images=images)
    if experiment == "cost":
        return tuned(GPU, case, seed, images=images, start=start_of(run["model"]))
    return None


def start_of(model: str) -> Cell | str:
    """What a fine-tuning of the study started from, by its file's name."""
    beside = transfer.others("gpu")
    files = {
        "hybrid": transfer.STUDY_HYBRID,
        "BiT": transfer.SHORT_RESNET,
        "deit": transfer.DEIT,
        "vit-ti": transfer.VIT_TINY,
    }
    name = model.removesuffix(".safetensors")
    return checkpoint(GPU, 0, None) if name == "ViT" else beside[files[name]]


def study() -> Iterator[tuple[Cell | None, Record | str]]:
    """Each line with its cell. A process wrote its record with its first line; its other lines follow."""
    origin, about = "benchmarks/results/transfer_study.jsonl", dict[str, Any]()
    for line in (RESULTS / "transfer_study.jsonl").read_text("utf-8").splitlines():
        run = json.loads(line)
        about = {name: run[name] for name in ABOUT} if "versions" in run else about
        cell = cell_of(run["experiment"], run["cell"])
        if cell is None:
            yield None, run["experiment"]
            continue
        readings = {name: run[name] for name in ("accuracy", "right", "images", "steps")}
        readings |= {"train_seconds": run["seconds"], "last_batch_accuracy": run["train_accuracy"]}
        yield cell, record(cell, readings, run["seconds"], about, origin)


def pretrainings() -> Iterator[tuple[Cell, Record]]:
    body = json.loads((RESULTS / "pretraining.json").read_text("utf-8"))
    cells = {"ViT": checkpoint(GPU, 0, None), "hybrid": transfer.others("gpu")[transfer.STUDY_HYBRID]}
    for name, run in body["runs"].items():
        cell, about = (
            cells[name],
            {"command": run["command"], "versions": body["versions"], "hardware": body["hardware"]},
        )
        readings = {"accuracy": run["right_on_test"], "parameters": run["parameters"], "steps": run["steps"]}
        readings |= {"train_seconds": run["seconds"]}
        assert isinstance(cell, Cell)
        yield cell, record(cell, readings, run["seconds"], about, "benchmarks/results/pretraining.json")


def cifar() -> Iterator[tuple[Cell, Record]]:
    body = json.loads((RESULTS / "cifar10.json").read_text("utf-8"))
    about = {name: body[name] for name in ABOUT if name in body}
    for seed, run in zip(body["seeds"], body["runs"], strict=True):
        cell = transfer.cifar_alone(seed)
        readings = {"accuracy": run["accuracy"], "parameters": run["parameters"], "steps": run["steps"]}
        readings |= {"train_seconds": run["training_seconds"]}
        yield cell, record(cell, readings, run["wall_seconds"], about, "benchmarks/results/cifar10.json")


def released() -> Iterator[tuple[Cell, Record]]:
    body = json.loads((RESULTS / "ways_shots.json").read_text("utf-8"))
    about = {name: body[name] for name in ABOUT}
    cell = shots.released_episodes()
    readings = {reading_name(one["ways"], one["shots"]): one["accuracy"] for one in body["cells"]}
    yield cell, record(cell, readings, 0.0, about, "benchmarks/results/ways_shots.json")


def record(cell: Cell, readings: dict[str, Any], seconds: float, about: dict[str, Any], origin: str) -> Record:
    needs = tuple(need.key for need in cell.needs)
    body = Record(cell.key, cell.work, cell.version, dict(cell.options), needs, readings, DONE, seconds, about)
    return imported(body, origin)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--out", type=Path, default=COMMITTED)
    asked = arguments.parse_args()
    records: dict[str, Record] = {}
    left = Counter[str]()
    twice = 0
    placed = (one for each in EXPERIMENTS.values() if "gpu" in each.scales for one in each.placed("gpu"))
    wanted = {one.cell.key for one in placed}
    for cell, found in (*study(), *pretrainings(), *cifar(), *released()):
        if cell is None:
            left[str(found)] += 1
            continue
        assert isinstance(found, Record)
        if cell.key not in wanted:
            left[f"in no grid: {cell.options['data']}, all images"] += 1
            continue
        if (before := records.get(found.key)) is not None:  # two parts of the study shared it
            assert before.readings["right"] == found.readings["right"], (before, found)
            twice += 1
            continue
        records[found.key] = found
    write(asked.out / f"{NAME}.json", NAME, list(records.values()))
    print(f"{len(records)} cells; {twice} runs were measured twice, with the same number right; left out: {dict(left)}")


if __name__ == "__main__":
    main()
