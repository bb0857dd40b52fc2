"""The work `train`: the training of `vitreous.fit` on a set or a part of it, judged on the set's test split."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from vitreous.errors import NotFiniteError
from vitreous.evaluation.evaluate import evaluate
from vitreous.images.imageset import TRAIN, ImageSet
from vitreous.images.stores import kept
from vitreous.models.cost import macs
from vitreous.papers.experiment import Cell
from vitreous.papers.works.bench import Bench, Readings, Work, seed_of
from vitreous.papers.works.resizing import Resized, begin_at_size
from vitreous.training.learn import learn
from vitreous.training.recipe import Recipe
from vitreous.training.run.trained import Trial

TRAIN_IMAGES_JUDGED = 2000  # training images, to tell learning from overfitting


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
    size at which the weights start, and how positions move there.  recipe: a name, or fields of a plain one; changes
    are fields too.  rates: dev chooses among them.  weights: the training to start from, or what `vitreous.load` takes.
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
    """Train, judge, keep the model. A run whose loss stops being finite is scored at chance."""
    options, seed = cell.options, seed_of(cell.options)
    data = bench.sets.part(options, seed)
    weights = bench.model_file(cell.needs[0]) if cell.needs else options.get("weights")
    recipe = options["recipe"]
    plain = recipe if isinstance(recipe, str) else Recipe(name="paper").change(**recipe)
    with tempfile.TemporaryDirectory() as scratch:
        if "resized" in options:
            weights = begin_at_size(weights, Resized(**options["resized"]), Path(scratch) / "begin.safetensors")
        try:
            run = learn(
                data,
                scratch=Path(scratch),
                model=options["model"],
                weights=weights,
                recipe=plain,
                rates=options.get("rates", ()),
                compiled=bench.compiled,
                **bench.place,
                **{**options["fields"], "seed": seed},
            )
        except NotFiniteError:
            bench.mark_diverged(cell)
            chance = 1 / len(data.classes)
            return {"diverged": 1, "accuracy": chance, "dev_accuracy": chance, "train_accuracy": chance}
    bench.keep(cell, run.model)
    return {
        "diverged": 0,
        "accuracy": run.judged.top1,
        "train_accuracy": right_on_train(run.model, data, bench),
        "parameters": sum(parameter.numel() for parameter in run.model.parameters()),
        "macs": macs(run.model.config),
        "steps": run.outcome.steps,
        "train_seconds": round(run.outcome.seconds, 3),
        **_on_dev(run.outcome.dev),
        **_chosen(run.trials),
    }


def right_on_train(model: Any, data: ImageSet, bench: Bench) -> float:
    """Accuracy on the first training images, as they are."""
    mine = data.split(TRAIN)
    some = kept.as_evaluated(mine.take(range(min(len(mine), TRAIN_IMAGES_JUDGED))), model.preprocess)
    found = evaluate(model, some, split="train", **bench.place)
    return found.right / found.images


def _on_dev(dev: Mapping[str, Any] | None) -> Readings:
    """What may decide between trainings, such as the choice of a rate."""
    return {} if dev is None else {"dev_accuracy": dev["accuracy"]}


def _chosen(trials: Sequence[Trial]) -> Readings:
    kept = [trial.rate for trial in trials if trial.is_kept]
    return {"rate": kept[0]} if kept else {}


TRAINING = Work(run_training)
