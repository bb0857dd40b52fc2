"""`vitreous.look`: a model sees images once, and every measure reads what it needs on the way."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from vitreous.errors import ConfigError, DataError
from vitreous.evaluation.class_matching import match_classes
from vitreous.evaluation.features import model_digest
from vitreous.evaluation.inference import Progress
from vitreous.files import digest
from vitreous.images import open_data
from vitreous.images.imageset import ImageSet
from vitreous.machine import choose_device, record
from vitreous.measures import MEASURES
from vitreous.measures.figures import check_papers
from vitreous.measures.inspection import Inspection, write
from vitreous.measures.jobs import Job, Store
from vitreous.measures.measure import Measure
from vitreous.measures.run import count_forwards, run
from vitreous.measures.shown import show_few
from vitreous.measures.subject import Settings, Subject
from vitreous.models.model import Model, is_untrained, unwrapped
from vitreous.randomness import permutation
from vitreous.ranks import Ranks, agreed, gather, group, together
from vitreous.weights.load_model import load
from vitreous.words import counted

Tell = Callable[[str], None]
DEFAULT_DATA = "fashion"
LAYER_CHOICES = ("every", "blocks")
NUMBERS_VERSION = 4  # finished measures of another version are not used


def look(
    model: Model | str | os.PathLike[str],
    data: ImageSet | str | os.PathLike[str] | None = None,
    *,
    against: Model | str | os.PathLike[str] | None = None,
    only: Sequence[str] | None = None,
    images: int = 512,
    out: str | os.PathLike[str] | None = None,
    figures: str | None = None,
    layers: str = "every",
    exact: bool = False,
    seed: int = 0,
    batch: int | None = None,
    device: torch.device | str | None = None,
    workers: int | None = None,
    force: bool = False,
    progress: Progress | None = None,
    tell: Tell | None = None,
) -> Inspection:
    """Everything both papers look at inside a model, while it sees some images.

        vitreous.look("deit-tiny", "photos", against="bit-r50")
        vitreous.look("last", only=["attention-distance", "similarity"], out="inside")

    model, against: models, or what `vitreous.load` takes.  data: a set, or what `images.open` takes; None is the
    embedded images.  only: names of MEASURES; None is all that have a meaning here.  images: drawn by the seed from all
    of data.  layers: every sub-layer for likeness, or blocks.  exact: receptive fields by all channels and 32 images.
    out: a folder for inspection.json, look.html and figures; finished measures are kept there and not computed again.
    figures: P1 or P2; that paper's figures are written as PDF and LaTeX too.
    tell: called with lines for the user, the cost first.
    """
    settings = _settings(images, batch, layers, exact, seed)
    with group(choose_device(device)) as (place, ranks):
        tell = tell if tell is not None and ranks.is_first else lambda line: None
        out = agreed(ranks, lambda: out)  # rank 0 chooses a free name
        check_papers(figures, out)
        begin = time.monotonic()
        subjects = _subjects(model, against, data, settings, place if ranks.world > 1 else device)
        measures = _choose(only)
        jobs, skipped = _plan(measures, subjects, is_asked=only is not None)
        store = None if out is None else Store(Path(out), _identity(subjects, settings), force=force)
        pending = [job for job in jobs if store is None or not store.load(job)]
        for subject in subjects:
            if is_untrained(subject.model):
                tell(f"{subject.name}: untrained, so its numbers say nothing about what a network learns")
        tell(_cost(pending, subjects, measures))
        notes = _run_on_ranks(pending, subjects, workers, store, progress, tell, ranks)
        shown = show_few(subjects) if len(subjects[0].data) <= subjects[0].settings.examples else ()
    asked = [job for job in jobs if job.measure.name in measures]
    found = tuple({job.measure.name: job.found for job in asked if job.side == side} for side in (0, 1))
    inspection = Inspection(
        model=_about(subjects[0]),
        against=_about(subjects[1]) if len(subjects) > 1 else None,
        data=_about_data(subjects[0].data, max((job.read for job in jobs), default=0)),
        settings=asdict(settings),
        measures=measures,
        found=found[0],
        found_against=found[1],
        skipped=skipped[0],
        skipped_against=skipped[1],
        arrays={job.key: job.arrays for job in jobs if job.arrays},
        shown=shown,
        notes=tuple(notes),
        seconds=time.monotonic() - begin,
        record=record(),
    )
    if out is not None and ranks.is_first:
        write(inspection, out, figures=figures)
    return inspection


def _run_on_ranks(
    jobs: list[Job],
    subjects: list[Subject],
    workers: int | None,
    store: Store | None,
    progress: Progress | None,
    tell: Tell,
    ranks: Ranks,
) -> list[str]:
    """Finish every job: each of several ranks takes whole jobs, so no number changes. Returns notes."""
    if ranks.world == 1:
        return run(jobs, subjects, workers, store, progress, tell)
    together(ranks)  # all have seen which jobs are finished
    own = jobs[ranks.rank :: ranks.world]
    notes = run(own, subjects, workers, store, progress if ranks.is_first else None, tell)
    shares = gather((notes, [(job.key, (job.found, job.arrays, job.read)) for job in own]))
    finished = dict(each for _, share in shares for each in share)
    for job in jobs:
        job.found, job.arrays, job.read = finished[job.key]
    return list(dict.fromkeys(line for lines, _ in shares for line in lines))


# Asked ---------------------------------------------------------------------------------------------------------------


def _settings(images: int, batch: int | None, layers: str, exact: bool, seed: int) -> Settings:
    if images < 1:
        raise ConfigError(f"images={images} leaves nothing to look at; give 1 or more")
    if batch is not None and batch < 1:
        raise ConfigError(f"batch={batch} holds no image; give --batch 4 or more")
    if layers not in LAYER_CHOICES:
        raise ConfigError(f"layers={layers!r} is unknown; give {' or '.join(LAYER_CHOICES)}")
    settings = Settings(images=images, batch=batch, layers=layers, exact=exact, seed=seed)
    return replace(settings, field_images=32) if exact else settings


def _choose(only: Sequence[str] | None) -> dict[str, Measure]:
    if only is None:
        return dict(MEASURES)
    if unknown := [name for name in only if name not in MEASURES]:
        raise ConfigError(
            f"there is no measure {unknown[0]!r}; there are: {', '.join(MEASURES)} (vitreous look --list)"
        )
    if not only:
        raise ConfigError("no measure was named; name some of: vitreous look --list, or leave out only= for all")
    return {name: MEASURES[name] for name in MEASURES if name in only}


def _subjects(
    model: Model | str | os.PathLike[str],
    against: Model | str | os.PathLike[str] | None,
    data: ImageSet | str | os.PathLike[str] | None,
    settings: Settings,
    device: torch.device | str | None,
) -> list[Subject]:
    named = [_named(one) for one in (model, against) if one is not None]
    whole = open_data.open(DEFAULT_DATA if data is None else data)
    if not len(whole):
        raise DataError(f"{whole.path} has no images to look at; name another set")
    chosen = whole.take(permutation(settings.seed, "look", 0, len(whole))[: settings.images])
    out = []
    for one, name in named:
        place = choose_device(device, near=one)
        name = f"{name} (random weights)" if is_untrained(one) else name
        subject = Subject(one, name, chosen, settings, place, model_digest(one))
        subject.truth = _truth(one, chosen)
        out.append(subject)
    return out


def _named(model: Model | str | os.PathLike[str]) -> tuple[Model, str]:
    if isinstance(model, str | os.PathLike):
        return unwrapped(load(model)), os.fspath(model)
    inner = unwrapped(model)
    return inner, str(inner.source.get("path") or f"this {type(inner).__name__}")


def _truth(model: Model, data: ImageSet) -> NDArray[np.int64] | None:
    """The model's class of each image; None if the set has other classes, or no classes."""
    if data.labels.ndim != 1 or not model.config.readout.classes:
        return None
    try:
        numbers, _ = match_classes(data, model.labels, model.config.readout.classes)
    except DataError:
        return None
    return np.where(data.labels < 0, -1, numbers[data.labels])


def _plan(
    measures: dict[str, Measure], subjects: list[Subject], *, is_asked: bool
) -> tuple[list[Job], tuple[dict[str, str], dict[str, str]]]:
    """The jobs, and why a measure has no meaning for a model. A measure asked for by name must have one.

    Measures that were not asked for, but whose arrays others draw, come last.
    """
    jobs: list[Job] = []
    skipped: tuple[dict[str, str], dict[str, str]] = ({}, {})
    for measure in measures.values():
        other = subjects[1] if len(subjects) > 1 else None
        for side in range(1 if measure.is_pair else len(subjects)):
            if measure.is_pair and other is None:
                why: str | None = "it compares two models, and one was named (--against MODEL2)"
            else:
                why = measure.why_not(subjects[side], other if measure.is_pair else None)
                if why is None and not is_asked and len(subjects[side].data) < measure.least_images:
                    why = measure.caution(len(subjects[side].data))
            if why is None:
                jobs.append(Job(measure, side))
            else:
                skipped[side][measure.name] = why
                if is_asked and side == 0:
                    cure = "give more images" if "image" in why else "name another model"
                    raise ConfigError(f"{measure.name} has no meaning here: {why}; leave it out, or {cure}")
    lent = dict.fromkeys((name, job.side) for job in jobs if (name := job.measure.arrays_of) is not None)
    return jobs + [Job(MEASURES[name], side) for name, side in lent if name not in measures], skipped


def _cost(jobs: list[Job], subjects: list[Subject], asked: dict[str, Measure]) -> str:
    if not jobs:
        return "all measures are finished; nothing to compute"
    shared, more = count_forwards(jobs, subjects)
    images = len(subjects[0].data)
    count = sum(job.measure.name in asked for job in jobs) or len(jobs)
    text = f"{counted(count, 'measure')} on {counted(images, 'image')}: {counted(shared + more, 'forward')} of an image"
    return text + (f", {shared:,} of them shared by all measures" if shared and more else "")


# Kept ----------------------------------------------------------------------------------------------------------------


def _identity(subjects: list[Subject], settings: Settings) -> str:
    """A digest of all that decides the numbers."""
    parts = {
        "version": NUMBERS_VERSION,
        "settings": asdict(settings),
        "data": subjects[0].data.content_id,
        "images": digest(subjects[0].data.ids.tobytes()),
        "models": [subject.digest for subject in subjects],
        "preprocess": [subject.model.preprocess.to_json() for subject in subjects],
    }
    return digest(json.dumps(parts, sort_keys=True).encode())


def _about(subject: Subject) -> dict[str, Any]:
    model = subject.model
    return {
        "name": subject.name,
        "is_untrained": is_untrained(model),
        "kind": "hybrid" if subject.is_hybrid else type(model).__name__,
        "digest": subject.digest,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "config": model.config.to_json(),
        "preprocess": model.preprocess.to_json(),
        "grid": list(subject.grid),
        "front_tokens": subject.prefix,
    }


def _about_data(data: ImageSet, read: int) -> dict[str, Any]:
    """read: images that the models saw; 0 if weights alone were read."""
    images = read or len(data)
    return {"path": data.path, "images": images, "content_id": data.content_id, "classes": len(data.classes)}
