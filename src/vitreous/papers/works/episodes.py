"""The work `episodes`: ways × shots on frozen features, and how alike these find the images of a class."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vitreous.evaluation.episodic import episodes, likeness
from vitreous.evaluation.features import extract
from vitreous.images.stores import kept
from vitreous.models.catalog import build
from vitreous.models.model import Model
from vitreous.papers.experiment import Cell
from vitreous.papers.works.bench import Bench, Readings, Work
from vitreous.weights.load_model import is_new, load

COUNT = 600  # episodes for each number of ways and shots


def episodic(
    source: Cell | str,
    data: str,
    *,
    ways: Sequence[int],
    shots: Sequence[int],
    classes: Sequence[str] | None = None,
    seed: int = 0,
) -> Cell:
    """source: a training, what `vitreous.load` takes, or a catalog name, whose network is untrained.

    Test images only, nearest class mean by cosine.  classes: to draw from; all by default.  seed: of the untrained
    network; all share the same episodes, so differences come from the features.
    """
    options: dict[str, Any] = {"data": data, "ways": list(ways), "shots": list(shots), "episodes": COUNT}
    options |= {} if classes is None else {"classes": list(classes)}
    options |= {"model": source, "seed": seed} if isinstance(source, str) else {}
    return Cell("episodes", options, (source,) if isinstance(source, Cell) else (), EPISODES.version)


def reading_name(ways: int, shots: int) -> str:
    return f"{ways}_way_{shots}_shot"


def run_episodes(cell: Cell, bench: Bench) -> Readings:
    options = cell.options
    model = _model(cell, bench)
    shown = kept.as_evaluated(bench.sets.part(options, 0).split("test"), model.preprocess)
    found = extract(model, shown, cache=False, **bench.place)
    readings: Readings = {}
    for ways in options["ways"]:
        for shots in options["shots"]:
            how: dict[str, Any] = {"ways": ways, "shots": shots, "count": options["episodes"], "likening": "cosine"}
            readings[reading_name(ways, shots)] = episodes(found.only, found.labels, **how).mean
    cosines = likeness(found.only, found.labels)
    return readings | {"within": cosines.within, "between": cosines.between, "likeness_gap": cosines.gap}


def _model(cell: Cell, bench: Bench) -> Model:
    if cell.needs:
        return bench.model(cell.needs[0])
    name = cell.options["model"]
    return build(name, seed=int(cell.options["seed"])).eval() if is_new(name) else load(name)


EPISODES = Work(run_episodes)
