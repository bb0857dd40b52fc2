"""The work `few-shot`: least squares on the frozen features of a trained model, as P1's tables have it."""

from __future__ import annotations

from typing import Any

from vitreous.evaluation.features import extract
from vitreous.evaluation.few_shot import fewshot
from vitreous.images.stores import kept
from vitreous.papers.experiment import Cell
from vitreous.papers.works.bench import Bench, Readings, Work

DRAWS = 5  # of the shots; their mean is one number of the seed


def few_shot(
    trained: Cell,
    data: str,
    *,
    shots: tuple[int, ...] = (5,),
    images: int | None = None,
    classes: tuple[str, ...] | None = None,
) -> Cell:
    """images: training images to draw the shots from; all by default.  classes: only these of the set."""
    options: dict[str, Any] = {"data": data, "shots": list(shots)} | ({} if images is None else {"images": images})
    options |= {} if classes is None else {"classes": list(classes)}
    return Cell("few-shot", options, (trained,), FEW_SHOT.version)


def run_few_shot(cell: Cell, bench: Bench) -> Readings:
    model, data = bench.model(cell.needs[0]), bench.sets.part(cell.options, 0)
    parts = (kept.as_evaluated(data.split(split), model.preprocess) for split in ("train", "test"))
    train, test = (extract(model, part, cache=False, **bench.place) for part in parts)
    found = fewshot(
        train.only, train.labels, test.only, test.labels, train.classes, shots=cell.options["shots"], seeds=DRAWS
    )
    return {f"{shots}_shot_{cell.options['data']}": found.mean(shots) for shots in found.shots}


FEW_SHOT = Work(run_few_shot)
