"""The work `train`: `vitreous.fit` on a set or a part of it, judged on the set's test split."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vitreous.errors import NotFiniteError
from vitreous.evaluation.evaluate import evaluate
from vitreous.images.imageset import TRAIN, ImageSet
from vitreous.models.cost import macs
from vitreous.models.model import unwrapped
from vitreous.papers.experiment import Cell
from vitreous.papers.works.bench import Bench, Readings, Work, seed_of
from vitreous.papers.works.resizing import Resized, begin_at_size
from vitreous.training.fit import fit
from vitreous.training.recipe import Recipe

TRAIN_IMAGES_JUDGED = 2000  # of the training images, to tell learning from overfitting


def train(
    model: str | None,
    data: str,
    seed: int,
    *,
    images: int | None = None,
    classes: tuple[str, ...] | None = None,
    draw: int | None = None,
    resized: Resized | None = None,
    recipe: Mapping[str, Any] | str = "auto",
    rates: tuple[float, ...] = (),
    weights: Cell | str | None = None,
    **changes: Any,
) -> Cell:
    """A training as a cell.

    model: a catalog name with changes; None keeps that of the weights.  images: that many of the training images,
    nested and balanced.  classes: only these of the set.  draw: which images, if not the seed's own.  resized: the
    weights begin at another size, their positions moved as it says.  recipe: a name, or fields of a plain one; changes
    are fields too.  rates: of which dev chooses.  weights: the training to begin from, or what `vitreous.load` takes.
    """
    options: dict[str, Any] = {"model": model, "data": data, "seed": seed, "recipe": recipe, "fields": changes}
    options |= {} if images is None else {"images": images}
    options |= {} if classes is None else {"classes": list(classes)}
    options |= {} if draw is None else {"draw": draw}
    options |= {} if resized is None else {"resized": resized.to_json()}
    options |= {"rates": list(rates)} if rates else {}
    options |= {"weights": weights} if isinstance(weights, str) else {}
    return Cell("train", options, (weights,) if isinstance(weights, Cell) else (), TRAINING.version)


def run_training(cell: Cell, bench: Bench) -> Readings:
    """Train, judge, keep the model. A run whose loss stops being finite answers as by chance."""
    options, seed = cell.options, seed_of(cell.options)
    data = bench.sets.part(options, seed)
    weights = bench.model_file(cell.needs[0]) if cell.needs else options.get("weights")
    recipe = options["recipe"]
    plain = recipe if isinstance(recipe, str) else Recipe(name="paper").change(**recipe)
    with tempfile.TemporaryDirectory() as scratch:
        if "resized" in options:
            weights = begin_at_size(weights, Resized(**options["resized"]), Path(scratch) / "begin.safetensors")
        try:
            run = fit(
                data,
                model=options["model"],
                weights="none" if weights is None else weights,
                recipe=plain,
                sweep=options.get("rates") or False,
                out=Path(scratch) / "run",
                check=False,
                folds=0,
                **bench.place,
                **{**options["fields"], "seed": seed},
            )
        except NotFiniteError:
            bench.mark_diverged(cell)
            chance = 1 / len(data.classes)
            return {"diverged": 1, "accuracy": chance, "dev_accuracy": chance, "train_accuracy": chance}
        bench.keep(cell, run.model)
        trained = unwrapped(run.load())
        judged = run.metrics["judged"]
        return {
            "diverged": 0,
            "accuracy": judged["right"] / judged["images"],
            "train_accuracy": right_on_train(trained, data, bench),
            "parameters": run.metrics["parameters"],
            "macs": macs(trained.config),
            "steps": run.metrics["steps"],
            "train_seconds": round(run.metrics["seconds"], 3),
            **_on_dev(run.metrics["dev"]),
            **_chosen(run.metrics["sweep"]),
        }


def right_on_train(model: Any, data: ImageSet, bench: Bench) -> float:
    """Accuracy on the first training images, as they are."""
    mine = data.split(TRAIN)
    found = evaluate(model, mine.take(range(min(len(mine), TRAIN_IMAGES_JUDGED))), split="train", **bench.place)
    return found.right / found.images


def _on_dev(dev: Mapping[str, Any] | None) -> Readings:
    """What a choice between trainings, such as that of a rate, may look at."""
    return {} if dev is None else {"dev_accuracy": dev["accuracy"]}


def _chosen(sweep: list[dict[str, Any]]) -> Readings:
    kept = [trial for trial in sweep if trial.get("kept")]
    return {"rate": kept[0]["rate"]} if kept else {}


TRAINING = Work(run_training)
