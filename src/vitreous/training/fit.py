"""`vitreous fit`: images become a trained model with a report.

open, check, choose       jobs.py        what will be done, and why
begin, measure            beginning.py   a new network, or weights and what they are worth as they are
train, or solve           ways.py        with dev, rate by rate, fold by fold (loop.py), or in closed form (solve.py)
calibrate, judge, write   results.py     on dev, then on images that nothing was chosen by; model, numbers, page, card
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from inspect import signature
from pathlib import Path
from typing import Any, get_args

import torch

from vitreous.errors import (
    BusyError,
    ConfigError,
    DataError,
    ExistsError,
    NotFiniteError,
    RoomError,
    RunError,
    VitreousError,
)
from vitreous.files import write_json
from vitreous.images.imageset import TRAIN, ImageSet
from vitreous.machine import choose_device, record
from vitreous.models.model import Model
from vitreous.ranks import agreed, first, group, together
from vitreous.training.plan import estimate as estimates
from vitreous.training.plan import memory
from vitreous.training.plan import plan as plans
from vitreous.training.plan.plan import Job
from vitreous.training.plan.request import Rates, Request, refuse_others
from vitreous.training.plan.starting_weights import in_memory
from vitreous.training.recipe import Recipe, check_names
from vitreous.training.run import folder as runs
from vitreous.training.run import trackers
from vitreous.training.run.folder import FIRST, START, RunFolder
from vitreous.training.run.loop import Loop
from vitreous.training.run.preload import warming
from vitreous.training.run.progress import stages_of
from vitreous.training.run.protocols import cross_validated, decoded, measured_for, solved, with_dev
from vitreous.training.run.runtime import Around, Tell
from vitreous.training.run.step import Compiled, precision_on
from vitreous.training.run.sweep import at_rate, best, checked
from vitreous.training.run.tasks.masked import MaskedPatches
from vitreous.training.tell.summary import Rival
from vitreous.training.tell.write import METRICS, MODEL, Run, Trained, calibrated, name_of, story_of, write_results
from vitreous.weights.save_model import save

__all__ = ["Around", "Run", "Tell", "fit"]

ON_NAN = ("stop", "rollback")


def fit(
    data: str | os.PathLike[str] | ImageSet,
    *,
    model: str | torch.nn.Module | None = None,
    weights: str | os.PathLike[str] | torch.nn.Module | None = None,
    recipe: str | Recipe = "auto",
    policy: str | None = None,
    sweep: bool | Sequence[float] = False,
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
    compiled: Compiled | None = None,
    rival: Callable[[ImageSet, ImageSet], Rival] | None = None,
    tell: Tell | None = None,
    **overrides: Any,
) -> Run:
    """Train a model on images, judge it honestly, and write model, numbers and report into a folder.

        vitreous.fit("photos")
        vitreous.fit("photos", weights="deit-tiny/", length="30 epochs")
        vitreous.fit("photos", model=vitreous.build("Ti/16", drop_path=0.1))
        vitreous.fit("runs/photos-1", resume=True)

    model: a catalog name with changes, or a network, which is copied and trained as a new one from its present weights.
    weights: any MODEL to begin from, or a network, or "none".  recipe: auto, a name, or a Recipe;
    overrides change its fields.  policy: which layers of the weights train: head, last-K, all, layer-decay, full.
    sweep: train with several rates, the usual or these, of which dev chooses.  then: images to fine-tune the result
    on, by `then_recipe`.  out: the run's folder (runs/DATA-N).  resume: go on with the newest unfinished run of this
    data, or with the run folder given as data.  folds: 0 judges on dev and test; None cross-validates below 2,000
    images.  on_nan: stop, or rollback: pass over a batch that breaks the loss.  rival: judges something simpler on the
    same images.  tell: called with every event.
    """
    _check_one_of("on_nan", on_nan, ON_NAN)
    _check_counts(folds, workers)
    _check_ways(resume, force, then is not None, then_recipe != "auto" or bool(then_overrides))
    trackers.check(log)
    for images in [data, then] if then is not None or not resume else []:
        _refuse_run(images)
    check_names(overrides, ARGUMENTS)
    check_names(then_overrides or {})
    if model is not None and weights is not None and not (isinstance(weights, str) and weights == "none"):
        raise ConfigError("--model and --weights each say what network to begin with; give one")
    network = in_memory(model, weights)
    name = model if isinstance(model, str) else None
    path = None
    if isinstance(weights, str | os.PathLike) and not (weights == "none" and model is not None):
        path = os.fspath(weights)
    layers = {} if policy is None else {"policy": policy}
    rates: Rates = sweep if isinstance(sweep, bool) else checked(sweep)
    if compiled is not None:
        _check_one_of("compiled", compiled, get_args(Compiled))
    request = Request(
        data,
        name,
        path,
        recipe,
        overrides,
        rates,
        check,
        folds,
        network=network,
        as_new=isinstance(model, torch.nn.Module),
    )
    with group(choose_device(device)) as (place, ranks):
        around = Around(place, ranks, workers, on_nan, tuple(log), compiled, rival, tell or (lambda event: None))
        if then is not None:
            changes = {**(then_overrides or {}), **layers}
            second = replace(request, data=then, recipe=then_recipe, changes=changes)
            return _two_runs(request, second, out, force, around, resume)
        request = replace(request, changes=overrides | layers)
        if resume:
            where, named = agreed(ranks, lambda: _unfinished(data, out))
            return _go_on(where, named, request.words(), around)
        next_free = None if out is not None else lambda: runs.next_name("runs", name_of(data))
        where = agreed(ranks, lambda: Path(out) if out is not None else runs.next_name("runs", name_of(data)))
        new = _Place(where, force, next_free)
        agreed(ranks, partial(_check_place, new))
        return _one_run(request, new, around, resume)


ARGUMENTS = tuple(name for name in signature(fit).parameters if name != "overrides")


# -------------------------------------------------------------------------------------------------- what was asked for


@dataclass(frozen=True)
class _Place:
    """Where a run goes."""

    where: Path
    force: bool  # in place of an older run there
    next_free: Callable[[], Path] | None = None  # where the name is ours to choose: another


def _check_one_of(name: str, word: str, words: Sequence[str]) -> None:
    if word not in words:
        raise ConfigError(f"{name}={word!r} is not one of {', '.join(words)}")


def _check_counts(folds: int | None, workers: int | None) -> None:
    if folds is not None and (folds < 0 or folds == 1):
        raise ConfigError(f"{folds} folds are none; say 2 or more, or 0 for dev and test splits")
    if workers is not None and workers < 0:
        raise ConfigError(f"workers is {workers}; give 0 (this process) or more")


def _check_ways(resume: bool, force: bool, has_then: bool, says_how_then: bool) -> None:
    """Options that mean nothing together, or alone."""
    if resume and force:
        raise ConfigError("--resume goes on with a run and --force begins it again; give one")
    if says_how_then and not has_then:
        raise ConfigError("--then-recipe and --then-set say how to fine-tune; give the images too: --then DATA")


def _check_place(place: _Place) -> None:
    """What could not be created later is said now; a name of ours that is taken meanwhile is no fault."""
    runs.check_writable(place.where)
    if place.next_free is None:
        runs.check_free(place.where, force=place.force)


def _refuse_run(data: Any) -> None:
    """A run has no images: say what it is, and what to type."""
    if not isinstance(data, str | os.PathLike) or not runs.is_run(Path(data)):
        return
    where = Path(data)
    if _is_finished(where):
        images = runs.config_of(where).get("data", {}).get("path", "IMAGES")
        raise DataError(
            f"{where} is a finished run, not images; name those it learned from (vitreous fit {images}), "
            f"or others to go on from its model (vitreous fit IMAGES --weights {where})"
        )
    raise DataError(f"{where} is an unfinished run, not images; go on with it: vitreous fit {where} --resume")


# ------------------------------------------------------------------------------------------------------- the whole job


def _two_runs(
    request: Request, second: Request, out: str | os.PathLike[str] | None, force: bool, around: Around, resume: bool
) -> Run:
    """One run, and another on other images that begins with its model; where one was begun, the pair goes on."""
    name = name_of(second.data)
    where = agreed(around.ranks, lambda: Path(out) if out is not None else _second(name, resume))
    next_free = None if out is not None else lambda: _first_of(runs.next_name("runs", name))
    places = [_Place(_first_of(where), force, next_free), _Place(where, force, next_free)]
    for place in places:
        if not (resume and (place.where / runs.CONFIG).is_file()):
            agreed(around.ranks, partial(_check_place, place))
    request = replace(request, rates=False, then=second.words_for_first())
    first = _one_run(request, places[0], around, resume)
    where = where.with_name(Path(first.path).name.removesuffix(FIRST))
    second = replace(second, weights=first.model, network=None, as_new=False, command=_command_of(Path(first.path)))
    return _one_run(second, _Place(where, force), around, resume)


def _one_run(request: Request, place: _Place, around: Around, resume: bool) -> Run:
    """One run, new or gone on with, which all ranks leave together."""
    try:
        if resume and (place.where / runs.CONFIG).is_file():
            return _go_on(place.where, request.data, request.words(), around)
        return _begin(_planned(request, around), place, request, around)
    finally:
        together(around.ranks)


def _planned(request: Request, around: Around) -> Job:
    with warming(around.device):
        job = plans.plan(
            request.data,
            model=request.model if request.weights is None else None,
            weights=request.weights if request.network is None else request.network,
            as_new=request.as_new,
            recipe=request.recipe,
            device=around.device,
            checked=request.check,
            folds=request.folds,
            overrides=dict(request.changes),
            say=around.say,
            progress=around.progress,
            rates=request.rates,
            ranks=around.ranks,
            workers=around.workers,
        )
    plans.refuse_early(job, around.ranks)
    return job


def _begin(job: Job, place: _Place, request: Request, around: Around) -> Run:
    """A new run in an empty folder."""
    command = request.command or _command()
    config = {**job.record(), "asked": request.words(), "command": command, "record": record()}
    with first(around.ranks, lambda: _created(place, config, request.network)) as folder:
        where = agreed(around.ranks, lambda: place.where if folder is None else folder.path)
        if request.network is not None:
            job = replace(job, weights=str(where / START))
        if folder is not None:
            folder.event("start")
        try:
            return _work(job, folder, where, around)
        except (RoomError, NotFiniteError):  # there is room to be made, or a batch to be looked at
            raise
        except VitreousError:  # what was asked for cannot be done: nothing is left that --resume would try again
            if folder is not None and not _has_begun(where):
                folder.abandon()
            raise


def _created(place: _Place, config: dict[str, Any], network: Model | None) -> RunFolder:
    """There, with the network that it begins with where that came from memory.

    Where the name is ours and another process has taken it meanwhile, at the next one that is free.
    """
    where = place.where
    write_start = None if network is None else partial(save, network, force=True)
    while True:
        try:
            return RunFolder.create(where, config, force=place.force, write_start=write_start)
        except (BusyError, ExistsError):
            if place.next_free is None:
                raise
            where = place.next_free()


def _has_begun(where: Path) -> bool:
    """Whether a step was saved, so that there is something to go on from."""
    return any(int(state.stem.rpartition("-")[2]) > 0 for state in (where / runs.STATES).glob("*.safetensors"))


def _go_on(where: Path, data: Any, asked: dict[str, Any], around: Around) -> Run:
    """A run that ended before its end. What is asked for anew must be what it began with."""
    config = runs.config_of(where)
    refuse_others(where, config, asked)
    if _is_finished(where):
        around.say(f"{where} is finished already")
        return Run(str(where), json.loads((where / METRICS).read_text()))
    if config.get("weights") == START:
        config = config | {"weights": str(where / START)}
    with first(around.ranks, lambda: RunFolder.open(where)) as folder:
        job = plans.planned(config, data, around.say)
        around.say(f"going on with {where}")
        return _work(job, folder, where, around)


def _is_finished(where: Path) -> bool:
    return (where / METRICS).is_file() and (where / MODEL).is_file()


def _work(job: Job, folder: RunFolder | None, where: Path, around: Around) -> Run:
    """Train, calibrate, measure, save, report."""
    clock = time.monotonic()
    around.stages = stages_of(job.recipe, job.folds, job.rates)
    _announce(job, where, around)
    if job.recipe.is_solved and not around.ranks.is_first:
        return Run(str(where), {})
    with around.logging(where):
        if job.recipe.task == "masked-patches":
            return _learn_without_labels(job, folder, where, around)
        way = solved if job.recipe.is_solved else cross_validated if job.folds else with_dev
        trained = way(job, folder, where, around)
    if trained.trials and (rate := best(trained.trials).rate):
        job = replace(job, recipe=at_rate(job.recipe, rate))
    model = calibrated(job, trained)
    if not around.ranks.is_first:
        return Run(str(where), {})
    story = story_of(
        job,
        trained,
        model,
        where,
        command=_command() if folder is None else str(folder.config.get("command") or _command()),
        device=_device_name(around.device),
        rivals=_rivals(job, trained, around),
        seconds=time.monotonic() - clock + measured_for(job),
    )
    run = write_results(job, trained, model, story, where)
    shutil.rmtree(where / "pack", ignore_errors=True)
    if folder is not None:
        folder.forget_states()
    around.tell({"kind": "end", "path": str(where)})
    return run


def _learn_without_labels(job: Job, folder: RunFolder | None, where: Path, around: Around) -> Run:
    """Masked patches: a network that has seen the images, for `--weights`."""
    clock = time.monotonic()
    train = job.data.split(TRAIN)
    model = plans.start_model(job, around.device)
    task = MaskedPatches(model, job.recipe)
    loop = Loop(
        task,
        model,
        job.recipe,
        decoded(job, train, None, where, around)(train),
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
            write_json(where / METRICS, metrics, force=True)
        shutil.rmtree(where / "pack", ignore_errors=True)
        if folder is not None:
            folder.forget_states()
    return Run(str(where), metrics)


def _rivals(job: Job, trained: Trained, around: Around) -> list[Rival]:
    """Something simpler; and the frozen features that training began with, which are the number to beat."""
    if trained.judged is None:
        return []
    found = [] if around.rival is None else [around.rival(job.data.split(TRAIN), trained.judged)]
    if job.estimate is not None and not job.recipe.is_solved:
        judged = trained.judged if trained.pixels is None else trained.pixels
        start = partial(plans.start_model, job, around.device)
        how: dict[str, Any] = {"device": around.device, "workers": around.workers}
        found.append(estimates.rival(start, job.config, job.estimate, job.data, judged, **how))
    return found


def _announce(job: Job, where: Path, around: Around) -> None:
    """The plan, in a few lines."""
    around.say(str(job.data).partition("\n")[0])
    if job.health is not None:
        around.say(f"check: {job.health.verdict} ({job.health.read})")
    for line in job.reasons:
        around.say(line)
    rows, columns = job.rule.size
    precision = "float32" if job.recipe.is_solved else precision_on(around.device, job.recipe.precision)
    if job.recipe.is_solved:
        around.say(f"each image once through the network, {columns}x{rows} pixels; then one system of equations")
    else:
        around.say(f"{job.recipe.length}, {job.recipe.batch} images a step, {columns}x{rows} pixels")
        micro = max(job.recipe.batch // job.recipe.accumulation // around.ranks.world, 1)
        around.say(str(memory.expected(job.config, micro, job.recipe, precision=precision)))
    if job.rates:
        around.say(f"{len(job.rates)} trainings, one for each of the rates {', '.join(f'{r:.3g}' for r in job.rates)}")
    if job.folds and job.recipe.is_solved:
        around.say("each image is judged by a head that has not seen it, exactly, and the saved one learns from all")
    elif job.folds:
        is_default = job.folds == plans.FOLDS and len(job.data) < plans.FEW
        around.say(
            f"{job.folds} trainings judge each image by a model that has not seen it, and one more learns from all"
            + f" (the default below {plans.FEW:,} images)" * is_default
        )
    for line in job.cautions:
        around.say(f"caution: {line}")
    around.say(f"on {_device_name(around.device)} in {precision}; everything goes to {where}")
    if around.ranks.is_first:
        device = torch.cuda.get_device_name(around.device) if around.device.type == "cuda" else None
        around.tell({"kind": "plan", "flops": memory.training_flops(job.config), "device": device})


# ---------------------------------------------------------------------------------------------------------- small ones


def _second(name: str, resume: bool) -> Path:
    """Where the second of two runs goes; to resume, where the newest unfinished pair lies."""
    new = runs.next_name("runs", name)
    if resume:
        seconds = [where for where in _runs_of(new, FIRST) if not (where / METRICS).is_file()]
        if seconds:
            return max(seconds, key=lambda where: _first_of(where).stat().st_mtime)
    return new


def _first_of(where: Path) -> Path:
    """Where the first of two runs goes."""
    return where.with_name(where.name + FIRST)


def _runs_of(new: Path, ending: str = "") -> list[Path]:
    """Runs of the same data as `new`: DATA-N and no longer names, with this ending taken off."""
    word = re.escape(new.name.rpartition("-")[0])
    folders = new.parent.iterdir() if new.parent.is_dir() else iter(())
    names = [folder.name for folder in folders if re.fullmatch(rf"{word}-\d+{ending}", folder.name)]
    return [new.parent / name.removesuffix(ending) for name in names]


def _unfinished(data: Any, out: str | os.PathLike[str] | None) -> tuple[Path, Any]:
    """The run to go on with, and its images where they were named."""
    is_run = isinstance(data, str | os.PathLike) and _is_ours(Path(data))
    if out is not None and is_run and Path(data).resolve() != Path(out).resolve():
        raise ConfigError(f"{data} and --out {out} each say which run goes on; give one")
    if out is not None:
        return Path(out), None if is_run else data
    if is_run:
        return Path(data), None
    name = name_of(data)
    found = [
        folder
        for folder in _runs_of(runs.next_name("runs", name))
        if (folder / runs.CONFIG).is_file() and not (folder / METRICS).is_file()
    ]
    if not found:
        raise RunError(f"there is no unfinished run of {name} under runs; start one without --resume")
    return max(found, key=_last_written), data


def _last_written(where: Path) -> float:
    """When a run was under way; one that was killed before its first event, when it was begun."""
    events = where / runs.EVENTS
    return (events if events.is_file() else where / runs.CONFIG).stat().st_mtime


def _is_ours(where: Path) -> bool:
    """Whether a run lies there, be it damaged; a config.json of somebody else beside pictures makes none."""
    return runs.is_run(where) or ((where / runs.CONFIG).is_file() and (where / runs.STATES).is_dir())


def _command_of(where: Path) -> str:
    """The line that the run there was begun with."""
    return str(json.loads((where / runs.CONFIG).read_text()).get("command") or "")


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
