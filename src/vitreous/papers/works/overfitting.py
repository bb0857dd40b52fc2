"""The work `on-train`: a model's accuracy on the images it was trained on, for cells that did not record it."""

from __future__ import annotations

from vitreous.papers.experiment import Cell
from vitreous.papers.works.bench import Bench, Readings, Work, seed_of
from vitreous.papers.works.train import right_on_train


def on_train(trained: Cell) -> Cell:
    """The reading `train_accuracy` of today's trainings, which older measurements lack."""
    return Cell("on-train", {"data": trained.options["data"]}, (trained,), ON_TRAIN.version)


def run_on_train(cell: Cell, bench: Bench) -> Readings:
    (trained,) = cell.needs
    data = bench.sets.part(trained.options, seed_of(trained.options))
    return {"train_accuracy": right_on_train(bench.model(trained), data, bench)}


ON_TRAIN = Work(run_on_train)
