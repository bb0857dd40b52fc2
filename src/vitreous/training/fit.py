"""`vitreous fit`: images become a trained model with a report.

open, check, choose       jobs.py      what will be done, and why
train                     loop.py      stage by stage: folds where images are few, then the model itself
calibrate, judge, write   results.py   on dev, then on images that nothing was chosen by; model, numbers, page, card
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch

from vitreous.errors import ConfigError, RoomError, RunError, VitreousError
from vitreous.evaluation import accuracy, predict
from vitreous.images import splits
from vitreous.images.imageset import TEST, TRAIN, ImageSet
from vitreous.machine import record
from vitreous.models.model import Model
from vitreous.ranks import Ranks, here
from vitreous.training import budget, jobs, runs
from vitreous.training import policy as policies
from vitreous.training.classify import Classify, Task
from vitreous.training.distill import Distill
from vitreous.training.jobs import Job
from vitreous.training.logs import Writers
from vitreous.training.loop import Loop, Outcome
from vitreous.training.masked import MaskedPatches
from vitreous.training.recipe import Recipe, Seconds, Steps
from vitreous.training.results import (
    METRICS,
    MODEL,
    Run,
    Trained,
    calibrated,
    name_of,
    story_of,
    write_json,
    write_results,
)
from vitreous.training.runs import RunFolder
from vitreous.training.step import precision_on
from vitreous.training.story import Rival
from vitreous.weights.loading import load
from vitreous.weights.saving import save

__all__ = ["Around", "Run", "Tell", "fit"]

ON_NAN = ("stop", "rollback")

Tell = Callable[[dict[str, Any]], None]


def fit(
    data: str | os.PathLike[str] | ImageSet,
    *,
    model: str | None = None,
    weights: str | os.PathLike[str] | None = None,
    recipe: str | Recipe = "auto",
    then: str | os.PathLike[str] | ImageSet | None = None,
    then_recipe: str | Recipe = "auto",
    then_overrides: Mapping[str, Any] | None = None,
    out: str | os.PathLike[str] | None = None,
    resume: bool = False,
    force: bool = False,
    device: str | torch.device | None = None,
    workers: int | None = None,
    check: bool = True,
    folds: int | None = None,
    on_nan: str = "stop",
    log: Sequence[str] = (),
    compiled: bool | None = None,
    rival: Callable[[ImageSet, ImageSet], Rival] | None = None,
    tell: Tell | None = None,
    **overrides: Any,
) -> Run:
    """Train a model on images, judge it honestly, and write model, numbers and report into a folder.

        vitreous.fit("photos")
        vitreous.fit("photos", weights="deit-tiny/", length="30 epochs")
        vitreous.fit("runs/photos-1", resume=True)

    model: a catalog name with changes; weights: any MODEL to begin from.  recipe: auto, a name, or a Recipe; overrides
    change its fields.  then: images to fine-tune the result on, by `then_recipe`.  out: the run's folder (runs/DATA-N).
    resume: go on with the newest unfinished run of this data, or with the run folder given as data.  folds: 0 judges on
    dev and test; None cross-validates below 2,000 images.  on_nan: stop, or rollback: pass over a batch that breaks the
    loss.  rival: judges something simpler on the same images.  tell: called with every event.
    """
    if on_nan not in ON_NAN:
        raise ConfigError(f"on_nan={on_nan!r} is not one of {', '.join(ON_NAN)}")
    if folds is not None and (folds < 0 or folds == 1):
        raise ConfigError(f"{folds} folds are none; say 2 or more, or 0 for dev and test splits")
    if workers is not None and workers < 0:
        raise ConfigError(f"workers is {workers}; give 0 (this process) or more")
    if model is not None and weights is not None:
        raise ConfigError("--model and --weights each say what network to begin with; give one")
    weights = None if weights is None else os.fspath(weights)
    with _process_group(predict.choose_device(torch.nn.Identity(), device)) as (place, ranks):
        around = Around(place, ranks, workers, on_nan, tuple(log), compiled, rival, tell or (lambda event: None))

        def one(images: Any, weights: str | None, how: str | Recipe, changes: Mapping[str, Any], where: Path) -> Run:
            try:
                return alone(images, weights, how, changes, where)
            finally:
                _together(ranks)

        def alone(images: Any, weights: str | None, how: str | Recipe, changes: Mapping[str, Any], where: Path) -> Run:
            asked = _asked(model, weights, how, changes)
            if resume and (where / runs.CONFIG).is_file():
                return _go_on(where, None, asked, around)
            job = jobs.plan(
                images,
                model=model if weights is None else None,
                weights=weights,
                recipe=how,
                device=place,
                checked=check,
                folds=folds,
                overrides=dict(changes),
                say=around.say,
                progress=around.progress,
            )
            jobs.refuse_early(job, ranks, log)
            return _begin(job, where, asked, around, force)

        if then is not None:
            where = _agreed(ranks, lambda: Path(out) if out is not None else _second(name_of(then), resume))
            first = one(data, weights, recipe, overrides, where.with_name(f"{where.name}-first"))
            return one(then, first.model, then_recipe, then_overrides or {}, where)
        if resume:
            where, named = _agreed(ranks, lambda: _unfinished(data, out))
            return _go_on(where, named, _asked(model, weights, recipe, overrides), around)
        where = _agreed(ranks, lambda: Path(out) if out is not None else runs.next_name("runs", name_of(data)))
        return one(data, weights, recipe, overrides, where)


# ------------------------------------------------------------------------------------------------------- the whole job


def _begin(job: Job, where: Path, asked: dict[str, Any], around: Around, force: bool) -> Run:
    """A new run in an empty folder."""
    config = {**job.record(), "asked": asked, "command": _command(), "record": record()}
    with _first(around.ranks, lambda: RunFolder.create(where, config, force=force)) as folder:
        if folder is not None:
            folder.event("start")
        try:
            return _work(job, folder, where, around)
        except RoomError:
            raise
        except VitreousError:  # what was asked for cannot be done: nothing is left that --resume would try again
            if folder is not None and not _has_begun(where):
                folder.abandon()
            raise


def _has_begun(where: Path) -> bool:
    """Whether a step was saved, so that there is something to go on from."""
    return any(int(state.stem.rpartition("-")[2]) > 0 for state in (where / runs.STATES).glob("*.safetensors"))


def _go_on(where: Path, data: Any, asked: dict[str, Any], around: Around) -> Run:
    """A run that ended before its end. What is asked for anew must be what it began with."""
    if (where / METRICS).is_file() and (where / MODEL).is_file():
        around.say(f"{where} is finished already")
        return Run(str(where), json.loads((where / METRICS).read_text()))
    with _first(around.ranks, lambda: RunFolder.open(where)) as folder:
        config = json.loads((where / runs.CONFIG).read_text()) if folder is None else folder.config
        then = config.get("asked", asked)
        if changed := runs.differences({name: then.get(name) for name in asked}, asked):
            raise ConfigError(f"{where} began with other options ({'; '.join(changed)}); leave them out to go on")
        job = jobs.planned(config, data, around.say)
        around.say(f"going on with {where}")
        return _work(job, folder, where, around)


def _work(job: Job, folder: RunFolder | None, where: Path, around: Around) -> Run:
    """Train, calibrate, measure, save, report."""
    clock = time.monotonic()
    _announce(job, where, around)
    with around.logging(where):
        if job.recipe.task == "masked-patches":
            return _learn_without_labels(job, folder, where, around)
        trained = (_cross_validated if job.folds else _with_dev)(job, folder, where, around)
    model = calibrated(job, trained)
    if not around.ranks.is_first:
        return Run(str(where), {})
    story = story_of(
        job,
        trained,
        model,
        where,
        command=_command(),
        device=_device_name(around.device),
        rivals=_rivals(job, trained, around),
        seconds=time.monotonic() - clock,
    )
    run = write_results(job, trained, model, story, where)
    shutil.rmtree(where / "pack", ignore_errors=True)
    if folder is not None:
        folder.forget_states()
    around.tell({"kind": "end", "path": str(where)})
    return run


def _with_dev(job: Job, folder: RunFolder | None, where: Path, around: Around) -> Trained:
    """One training; the best state on dev; judged on test."""
    recipe, data = job.recipe, job.data
    if recipe.dev:
        train, dev = splits.cut_dev(data, recipe.dev, recipe.seed)
    else:
        train, dev = data.split(TRAIN), None
    find = _decoded(job, train, dev, where, around)
    model = jobs.start_model(job, around.device)
    outcome = _train(job, recipe, model, find(train), dev and find(dev), "fit", folder, around)
    used = {"train": len(train), "dev": len(dev) if dev is not None else 0}
    chosen = labels = None
    if dev is not None:
        found = around.answers(model, dev)
        chosen, labels = found.values, found.labels
    if (data.splits == TEST).any():
        judged, how = data.split(TEST), "test"
        found = around.answers(model, judged)
        judged, logits = judged.take(found.places), found.values
    elif dev is not None and chosen is not None:
        judged, how, logits = dev, "dev", chosen
    else:
        return Trained(model, outcome, None, np.zeros((0, 0), np.float32), "none", None, None, used, outcome.seconds)
    return Trained(
        model,
        outcome,
        judged,
        logits,
        how,
        chosen,
        labels,
        {**used, "test": len(judged) * (how == "test")},
        outcome.seconds,
    )


def _cross_validated(job: Job, folder: RunFolder | None, where: Path, around: Around) -> Trained:
    """Each part of the images judged by a model that has not seen it; the model that is kept learns from all."""
    data, recipe = job.data, job.recipe
    pool = data if data.about.get("split", {}).get("made") else data.split(TRAIN)
    part = splits.folds(pool, job.folds, recipe.seed)
    if isinstance(recipe.length, Seconds):
        recipe = replace(recipe, length=Seconds(recipe.length.count / (job.folds + 1)))
    find = _decoded(job, pool, None, where, around)
    logits = np.zeros((len(pool), len(data.classes)), np.float32)
    seconds = 0.0
    for number in range(job.folds):
        model = jobs.start_model(job, around.device)
        outcome = _train(
            job, recipe, model, find(pool.take(part != number)), None, f"fold-{number + 1}", folder, around
        )
        recipe = replace(recipe, length=Steps(outcome.steps)) if isinstance(recipe.length, Seconds) else recipe
        logits[part == number] = around.answers(model, pool.take(part == number)).values
        seconds += outcome.seconds
    model = jobs.start_model(job, around.device)
    outcome = _train(job, recipe, model, find(pool), None, "fit", folder, around)
    test = None
    if len(pool) < len(data):
        found = around.answers(model, data.split(TEST))
        test = accuracy.measure(found.values, found.labels, data.classes)
    used = {"train": len(pool), "dev": 0, "test": 0 if test is None else test.images}
    return Trained(
        model,
        outcome,
        pool,
        logits,
        "cross-validation",
        logits,
        pool.labels,
        used,
        seconds + outcome.seconds,
        part,
        test,
    )


def _train(
    job: Job,
    recipe: Recipe,
    model: Model,
    train: ImageSet,
    dev: ImageSet | None,
    stage: str,
    folder: RunFolder | None,
    around: Around,
) -> Outcome:
    """One stage: the model ends with the state that is kept."""
    recipe = policies.apply(model, recipe)
    task = _task(recipe, model)
    outcome = Loop(
        task,
        model,
        recipe,
        train,
        job.rule,
        around.device,
        dev=dev,
        ranks=around.ranks,
        folder=folder,
        stage=stage,
        on_nan=around.on_nan,
        workers=around.workers,
        tell=around.event,
        compiled=around.compiled,
    ).run()
    model.load_state_dict(outcome.state)
    return outcome


def _task(recipe: Recipe, model: Model) -> Task:
    if recipe.teacher is None:
        return Classify(model, recipe)
    return Distill(model, load(recipe.teacher), recipe)


def _learn_without_labels(job: Job, folder: RunFolder | None, where: Path, around: Around) -> Run:
    """Masked patches: a network that has seen the images, for `--weights`."""
    clock = time.monotonic()
    train = job.data.split(TRAIN)
    model = jobs.start_model(job, around.device)
    task = MaskedPatches(model, job.recipe)
    loop = Loop(
        task,
        model,
        job.recipe,
        _decoded(job, train, None, where, around)(train),
        job.rule,
        around.device,
        ranks=around.ranks,
        folder=folder,
        stage="masked-patches",
        on_nan=around.on_nan,
        workers=around.workers,
        tell=around.event,
        compiled=around.compiled,
    )
    outcome = loop.run()
    model.load_state_dict(outcome.state)
    last: dict[str, Any] = (
        next((e for e in reversed(runs.read(where)) if e["kind"] == "step"), {}) if folder is not None else {}
    )
    metrics = {
        "task": "masked-patches",
        "loss": last.get("loss"),
        "accuracy": last.get("accuracy"),
        "steps": outcome.steps,
        "seconds": outcome.seconds,
        "total_seconds": time.monotonic() - clock,
        "images_per_second": outcome.images_per_second,
    }
    if around.ranks.is_first:
        with runs.one_line_for(where):
            save(task.finished(), where / MODEL, force=True, recipe=job.recipe.to_json(), metrics=metrics)
            write_json(where / METRICS, metrics)
        shutil.rmtree(where / "pack", ignore_errors=True)
        if folder is not None:
            folder.forget_states()
    return Run(str(where), metrics)


def _rivals(job: Job, trained: Trained, around: Around) -> list[Rival]:
    if around.rival is None or trained.judged is None:
        return []
    return [around.rival(job.data.split(TRAIN), trained.judged)]


def _announce(job: Job, where: Path, around: Around) -> None:
    """The plan, in a few lines."""
    around.say(str(job.data).partition("\n")[0])
    if job.health is not None:
        around.say(f"check: {job.health.verdict} ({job.health.read})")
    for line in job.reasons:
        around.say(line)
    rows, columns = job.rule.size
    around.say(f"{job.recipe.length}, {job.recipe.batch} images a step, {columns}x{rows} pixels")
    precision = precision_on(around.device, job.recipe.precision)
    micro = max(job.recipe.batch // job.recipe.accumulation // around.ranks.world, 1)
    around.say(str(budget.expected(job.config, micro, job.recipe, precision=precision)))
    if job.folds:
        around.say(
            f"{job.folds} trainings judge each image by a model that has not seen it, and one more learns from all "
            f"(the default below {jobs.FEW:,} images)"
        )
    for line in job.cautions:
        around.say(f"caution: {line}")
    around.say(f"on {_device_name(around.device)} in {precision}; everything goes to {where}")
    if around.ranks.is_first:
        device = torch.cuda.get_device_name(around.device) if around.device.type == "cuda" else None
        around.tell({"kind": "plan", "flops": budget.training_flops(job.config), "device": device})


# ---------------------------------------------------------------------------------------------------------- small ones


@dataclass
class Around:
    """Where and how a run runs, which decides none of its numbers but their rounding."""

    device: torch.device
    ranks: Ranks
    workers: int | None
    on_nan: str
    log: tuple[str, ...]
    compiled: bool | None
    rival: Callable[[ImageSet, ImageSet], Rival] | None
    tell: Tell
    writers: Writers | None = None

    def say(self, line: str) -> None:
        if self.ranks.is_first:
            self.tell({"kind": "say", "text": line})

    def progress(self, done: int, total: int) -> None:
        if self.ranks.is_first:
            self.tell({"kind": "checking", "done": done, "total": total})

    def event(self, event: dict[str, Any]) -> None:
        self.tell(event)
        if self.writers is not None:
            self.writers(event)

    @contextmanager
    def logging(self, where: Path) -> Iterator[None]:
        if not self.log or not self.ranks.is_first:
            yield
            return
        self.writers = Writers(self.log, where, self.say)
        try:
            yield
        finally:
            self.writers.close()

    def answers(self, model: Model, data: ImageSet) -> predict.Logits:
        return predict.logits(model, data, device=self.device, workers=self.workers, skip_unreadable=True)


@contextmanager
def _process_group(device: torch.device) -> Iterator[tuple[torch.device, Ranks]]:
    """The group that torchrun asks for; alone without it."""
    ranks = here()
    if ranks.world == 1:
        yield device, ranks
        return
    group = torch.distributed
    if device.type == "cuda":
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(device)
    is_ours = not group.is_initialized()
    if is_ours:
        hours = timedelta(hours=4)  # others wait while the first rank decodes or writes
        group.init_process_group("nccl" if device.type == "cuda" else "gloo", timeout=hours)
    try:
        yield device, ranks
    finally:
        if is_ours:
            group.destroy_process_group()


@contextmanager
def _first(ranks: Ranks, make: Callable[[], RunFolder]) -> Iterator[RunFolder | None]:
    """The folder on the first rank, and nothing on the others, which wait until it is there."""
    folder, fault = None, None
    if ranks.is_first:
        try:
            folder = make()
        except Exception as error:
            fault = error
    if ranks.world > 1:
        told: list[Any] = [None if fault is None else str(fault)]
        torch.distributed.broadcast_object_list(told, 0)
        if told[0] is not None and fault is None:
            raise RunError(told[0])
    if fault is not None:
        raise fault
    with folder if folder is not None else nullcontext():
        yield folder


def _agreed(ranks: Ranks, choose: Callable[[], Any]) -> Any:
    """What the first rank chooses, on all of them."""
    box: list[Any] = [choose()] if ranks.is_first else [None]
    if ranks.world > 1:
        torch.distributed.broadcast_object_list(box, 0)
    return box[0]


def _together(ranks: Ranks) -> None:
    """No rank goes on before the first has written what others will read; one that fails does not wait."""
    if ranks.world > 1 and sys.exc_info()[0] is None:
        torch.distributed.barrier()


def _decoded(
    job: Job, train: ImageSet, dev: ImageSet | None, where: Path, around: Around
) -> Callable[[ImageSet], ImageSet]:
    """Every rank decodes for itself into memory; onto disk the first one does, and the others find it there."""
    to_disk = jobs.is_packed(job, train, around.ranks, where)
    if to_disk and around.ranks.world > 1 and not around.ranks.is_first:
        torch.distributed.barrier()
    found = jobs.decoded_once(job, train, dev, where, around.ranks, around.say)
    if to_disk and around.ranks.world > 1 and around.ranks.is_first:
        torch.distributed.barrier()
    return found


def _asked(model: str | None, weights: str | None, recipe: str | Recipe, changes: Mapping[str, Any]) -> dict[str, Any]:
    """The options that were given, as plain words."""
    how = recipe.to_json() if isinstance(recipe, Recipe) else recipe
    given = {"model": model, "weights": weights, "recipe": how if how != "auto" else None}
    given |= {name: str(value) for name, value in changes.items()}
    return {name: value for name, value in given.items() if value is not None}


def _second(name: str, resume: bool) -> Path:
    """Where the second of two runs goes; to resume, where the newest unfinished pair lies."""
    new = runs.next_name("runs", name)
    if resume:
        seconds = [where for where in _runs_of(new, "-first") if not (where / METRICS).is_file()]
        if seconds:
            return max(seconds, key=lambda where: where.with_name(f"{where.name}-first").stat().st_mtime)
    return new


def _runs_of(new: Path, ending: str = "") -> list[Path]:
    """Runs of the same data as `new`: DATA-N and no longer names, with this ending taken off."""
    word = re.escape(new.name.rpartition("-")[0])
    folders = new.parent.iterdir() if new.parent.is_dir() else iter(())
    names = [folder.name for folder in folders if re.fullmatch(rf"{word}-\d+{ending}", folder.name)]
    return [new.parent / name.removesuffix(ending) for name in names]


def _unfinished(data: Any, out: str | os.PathLike[str] | None) -> tuple[Path, Any]:
    """The run to go on with, and its images where they were named."""
    if out is not None:
        is_run = isinstance(data, str | os.PathLike) and (Path(data) / runs.CONFIG).is_file()
        return Path(out), None if is_run else data
    if isinstance(data, str | os.PathLike) and (Path(data) / runs.CONFIG).is_file():
        return Path(data), None
    name = name_of(data)
    found = [
        folder
        for folder in _runs_of(runs.next_name("runs", name))
        if (folder / runs.CONFIG).is_file() and not (folder / METRICS).is_file()
    ]
    if not found:
        raise RunError(f"there is no unfinished run of {name} under runs; start one without --resume")
    return max(found, key=lambda folder: (folder / runs.EVENTS).stat().st_mtime), data


def _command() -> str:
    """The line to repeat this with."""
    words = sys.argv
    if Path(words[0]).stem in ("vitreous", "__main__"):
        return shlex.join(["vitreous", *words[1:]])
    return f"python {Path(words[0]).name}" if words[0] else "python"


def _device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"CPU ({torch.get_num_threads()} threads)" if device.type == "cpu" else device.type
