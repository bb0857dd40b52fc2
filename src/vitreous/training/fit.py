"""`vitreous fit`: images become a trained model with a report.

plan/   what will be done, and why     request, images, weights, recipe, refusals
run/    how                            protocols, loop, step, run folder
tell/   what came of it                summary, page, card, files
"""

from __future__ import annotations

import json
import os
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from inspect import signature
from pathlib import Path
from typing import Any

import torch

from vitreous.errors import (
    BusyError,
    ExistsError,
    NotFiniteError,
    RoomError,
    RunError,
    ShardError,
    VitreousError,
    without_secrets,
)
from vitreous.images.imageset import ImageSet
from vitreous.machine import choose_device, process_seconds, record
from vitreous.models.cost import training_flops
from vitreous.models.model import Model
from vitreous.ranks import agreed, alone, first, group, launch, together, was_restarted
from vitreous.training.plan import plan as plans
from vitreous.training.plan import refusals
from vitreous.training.plan.plan import Plan
from vitreous.training.plan.request import Request, refuse_other_options
from vitreous.training.recipe import Recipe, check_names, in_our_words
from vitreous.training.run import folder as runs
from vitreous.training.run.events import Fact, PlanMade, RunEnded, RunStarted, Working
from vitreous.training.run.folder import RunFolder, data_name
from vitreous.training.run.network import in_memory
from vitreous.training.run.protocols import train, with_kept_rate
from vitreous.training.run.runtime import FindRival, Runtime, Tell, listener, preload_kernels
from vitreous.training.run.stage import stages_of
from vitreous.training.run.step import Compiled, precision_on
from vitreous.training.tell.summary import calibrate, summarise
from vitreous.training.tell.write import Run, write
from vitreous.weights.save_model import save

__all__ = ["Run", "Tell", "fit"]


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
    group_by: str | None = None,
    skip_bad_shards: bool = False,
    on_nan: str = "stop",
    log: Sequence[str] = (),
    compiled: Compiled | None = None,
    parallel: str = "auto",
    rival: FindRival | None = None,
    tell: Tell | None = None,
    **overrides: Any,
) -> Run:
    """Train a model on images, judge it honestly, and write model, numbers and report into a folder.

        vitreous.fit("photos")
        vitreous.fit("photos", weights="deit-tiny", epochs=30, batch_size=64, lr=1e-3)
        vitreous.fit("photos", model=vitreous.build("Ti/16", drop_path=0.1))
        vitreous.fit("runs/photos-1", resume=True)

    model: a catalog name with changes, or a network; a copy of it trains as a new one from its present weights.
    weights: any MODEL to start from, a network, or "none".  recipe: auto, a name, or a Recipe; overrides change its
    fields, by our names or by other libraries' (epochs, lr, batch_size).
    policy: which layers of the weights train: head, last-K, all, layer-decay, full.
    sweep: train with several rates, the usual ones or these; dev chooses.  then: images to fine-tune the result on, by
    `then_recipe`.  out: the run's folder (runs/DATA-N).  resume: continue the newest unfinished run of this data, or
    the run folder given as data.  folds: 0 judges on dev and test; None cross-validates below 2,000 images.
    group_by: keeps series of images together: folder, exif-day, a column, or a regular expression on the path; none is
    split between training and judging images.  on_nan: stop, or rollback: skip a batch that breaks the loss.
    skip_bad_shards: continue without a shard that cannot be read, and report how many samples are lost.
    parallel: how torchrun's devices share a training: ddp (each a whole copy), fsdp (shards), or auto: ddp if it fits.
    rival: judges a simpler method on the same images.  tell: called with every event; by default a notebook shows them
    in a cell and a terminal in lines; without either, Python is silent.
    """
    began = time.monotonic() - (process_seconds() if _is_command() else 0)
    refusals.refuse_options(
        model=model,
        weights=weights,
        resume=resume,
        force=force,
        has_then=then is not None,
        says_how_then=then_recipe != "auto" or bool(then_overrides),
        group_by=group_by,
        workers=workers,
        folds=folds,
        on_nan=on_nan,
        log=log,
        compiled=compiled,
        parallel=parallel,
    )
    for images in [data, then] if then is not None or not resume else []:
        refusals.refuse_run_as_data(images)
    overrides, then_overrides = in_our_words(overrides), in_our_words(then_overrides or {})
    check_names(overrides, ARGUMENTS)
    check_names(then_overrides)
    path = None
    if isinstance(weights, str | os.PathLike) and not (weights == "none" and model is not None):
        path = os.fspath(weights)
    refusals.refuse_typos(model, None if resume else path, (recipe, then_recipe))
    layers = {} if policy is None else {"policy": policy}
    request = Request(
        data=data,
        model=model if isinstance(model, str) else None,
        weights=path,
        network=in_memory(model, weights),
        as_new=isinstance(model, torch.nn.Module),
        recipe=recipe,
        changes=overrides if then is not None else overrides | layers,
        rates=sweep if isinstance(sweep, bool) else refusals.check_rates(sweep),
        check=check,
        folds=folds,
        group_by=group_by,
        skip_bad_shards=skip_bad_shards,
    )
    with group(choose_device(device), even_alone=parallel == "fsdp") as (place, ranks):
        runtime = Runtime(place, ranks, workers, on_nan, tuple(log), compiled, rival, tell or listener())
        runtime.parallel, runtime.began = parallel, began
        again = not resume and was_restarted()
        if then is not None:
            changes = {**then_overrides, **layers}
            second = replace(request, data=then, recipe=then_recipe, changes=changes)
            return _fit_twice(request, second, out, force and not again, resume or again, runtime)
        if again and (begun := agreed(ranks, lambda: _begun_by_launch(data_name(data), out))) is not None:
            return _fit(request, _Place(begun), runtime, resume=True)
        if resume:
            where, named = agreed(ranks, lambda: runs.unfinished(data, data_name(data), out))
            return _fit(replace(request, data=named), _Place(where), runtime, resume=True)
        return _fit(request, _new_place(data_name(data), out, force, runtime), runtime)


ARGUMENTS = tuple(name for name in signature(fit).parameters if name != "overrides")


def _fit(request: Request, place: _Place, runtime: Runtime, *, resume: bool = False) -> Run:
    """One run, new or resumed, the same on all ranks: rank 0 wrote it, the others read it."""
    try:
        run = _fit_here(request, place, runtime, resume=resume)
    finally:
        together(runtime.ranks)
    return run if runtime.ranks.is_first else _read_back(Path(run.path))


def _fit_here(request: Request, place: _Place, runtime: Runtime, *, resume: bool) -> Run:
    """Plan, refuse, hold the folder, train. A resumed run holds its folder first."""
    if resume and runs.is_finished(place.where):
        return _finished(request, place.where, runtime)
    if resume:
        config = runs.config_of(place.where)
        refuse_other_options(place.where, config, request.words())
        with first(runtime.ranks, lambda: RunFolder.open(place.where)) as folder:
            skips = request.skip_bad_shards or bool(config.get("skip_bad_shards"))
            plan = plans.resumed(config, request.data, place.where, runtime.say, skip_bad_shards=skips)
            refusals.refuse_other_plans(plan, runtime)
            runtime.say(Fact("resume", f"going on with {place.where}"))
            return _train(plan, folder, place.where, runtime)
    with preload_kernels(runtime.device):
        plan = plans.make(request, runtime)
    refusals.refuse_early(plan, runtime)
    refusals.refuse_other_plans(plan, runtime)
    with _new_folder(plan, request, place, runtime) as (folder, where):
        return _train(plans.with_start(plan, request, where), folder, where, runtime)


def _train(plan: Plan, folder: RunFolder | None, where: Path, runtime: Runtime) -> Run:
    """Announce the plan, train by its protocol, summarise, write."""
    runtime.strategy = plans.choose_strategy(plan, runtime)
    _announce(plan, where, runtime)
    if plan.recipe.is_solved and not runtime.ranks.is_first:
        return Run(str(where), {})
    with runtime.logging(where):
        trained = train(plan, folder, where, runtime)
    if not runtime.ranks.is_first:
        return Run(str(where), {})
    with alone():  # the others wait
        runtime.tell(Working("writing the report"))
        plan = with_kept_rate(plan, trained.trials)
        calibrate(plan, trained)
        command = str((folder and folder.config.get("command")) or _command())  # the one that began the run
        summary = summarise(plan, trained, where, command, runtime.device_name)
        run = write(plan, trained, summary, where, folder, _waited(runtime, where))
    runtime.tell(RunEnded(str(where)))
    return run


def _waited(runtime: Runtime, where: Path) -> float:
    """Seconds that the user has waited, in this session and in earlier ones."""
    here = time.monotonic() - runtime.began
    return here + runs.seconds_before(where, time.time() - here)


def _finished(request: Request, where: Path, runtime: Runtime) -> Run:
    """Nothing is left to do, but options that differ from the run's are still refused."""
    refuse_other_options(where, runs.config_of(where), request.words())
    runtime.say(Fact("resume", f"{where} is finished already"))
    return _read_back(where)


def _read_back(where: Path) -> Run:
    if not runs.is_finished(where):
        raise RunError(f"this rank does not see {where}; give --out on a file system that all nodes share")
    return Run(str(where), json.loads((where / runs.METRICS).read_text()))


def _announce(plan: Plan, where: Path, runtime: Runtime) -> None:
    for event in plans.announce(plan, runtime):
        runtime.say(event)
    precision = "float32" if plan.recipe.is_solved else precision_on(runtime.device, plan.recipe.precision)
    runtime.say(f"on {runtime.device_name} in {precision}; everything goes to {where}")
    if runtime.ranks.world > 1 or runtime.strategy.kind == "fsdp":
        told = f"{runtime.ranks.world} processes: {runtime.strategy}"
        runtime.say(Fact("parallel", told) if runtime.strategy.kind == "fsdp" else told)
    if runtime.ranks.is_first:
        device = runtime.device_name if runtime.device.type == "cuda" else None
        runtime.tell(PlanMade(training_flops(plan.config), device))
    runtime.stages = stages_of(plan.recipe, plan.folds, plan.rates)


# ---------------------------------------------------------------------------------------------------- the run's folder


@dataclass(frozen=True)
class _Place:
    """Where a run goes."""

    where: Path
    force: bool = False  # replaces an older run there
    next_free: Callable[[], Path] | None = None  # another name, if the name is ours to choose


def _new_place(name: str, out: str | os.PathLike[str] | None, force: bool, runtime: Runtime) -> _Place:
    """A folder for a run; one that cannot be written is refused at once."""
    where = agreed(runtime.ranks, lambda: Path(out) if out is not None else runs.next_name("runs", name))
    place = _Place(where, force, None if out is not None else lambda: runs.next_name("runs", name))
    agreed(runtime.ranks, partial(_check_place, place))
    return place


def _check_place(place: _Place) -> None:
    runs.check_writable(place.where)
    if place.next_free is None:  # else the name may be taken before the run begins
        runs.check_free(place.where, force=place.force)


@contextmanager
def _new_folder(
    plan: Plan, request: Request, place: _Place, runtime: Runtime
) -> Iterator[tuple[RunFolder | None, Path]]:
    """A new run's folder, held by rank 0, and its path on every rank."""
    strategy = {**plans.choose_strategy(plan, runtime).to_json(), "world": runtime.ranks.world}
    words: dict[str, Any] = {"asked": request.words(), "command": request.command or _command(), "record": record()}
    words |= {"launch": launch()} if launch() is not None else {}
    words |= {"parallel": strategy} if runtime.ranks.world > 1 or strategy["kind"] == "fsdp" else {}
    words |= {"skip_bad_shards": True} if request.skip_bad_shards else {}
    with first(runtime.ranks, lambda: _created(place, {**plan.to_json(), **words}, request.network)) as folder:
        where = agreed(runtime.ranks, lambda: place.where if folder is None else folder.path)
        if folder is not None:
            folder.event(**RunStarted(time.monotonic() - runtime.began))
        try:
            yield folder, where
        except (RoomError, NotFiniteError, ShardError):  # --resume can continue: with room, or past the batch or shard
            raise
        except VitreousError:  # the request is impossible, so leave nothing that --resume would try again
            if folder is not None and not folder.has_steps:
                folder.abandon()
            raise


def _created(place: _Place, config: dict[str, Any], network: Model | None) -> RunFolder:
    """Create the folder, with a network from memory in it; if another process took our name, use the next free one."""
    where = place.where
    write_start = None if network is None else partial(save, network, force=True)
    while True:
        try:
            return RunFolder.create(where, config, force=place.force, write_start=write_start)
        except (BusyError, ExistsError):
            if place.next_free is None:
                raise
            where = place.next_free()


# ------------------------------------------------------------------------------------------------------------ two runs


def _fit_twice(
    request: Request, second: Request, out: str | os.PathLike[str] | None, force: bool, resume: bool, runtime: Runtime
) -> Run:
    """A run, then a second on other images that starts from its model. A pair that was begun is resumed."""
    name = data_name(second.data)
    where = agreed(runtime.ranks, lambda: Path(out) if out is not None else _second_place(name, resume))
    next_free = None if out is not None else lambda: _first_place(runs.next_name("runs", name))
    places = [_Place(_first_place(where), force, next_free), _Place(where, force, next_free)]
    is_begun = [resume and (place.where / runs.CONFIG).is_file() for place in places]
    for place, begun in zip(places, is_begun, strict=True):
        if not begun:
            agreed(runtime.ranks, partial(_check_place, place))
    request = replace(request, rates=False, then=second.words_for_first())
    run = _fit(request, places[0], runtime, resume=is_begun[0])
    where = where.with_name(Path(run.path).name.removesuffix(runs.FIRST))
    command = runs.config_of(Path(run.path)).get("command") or ""
    second = replace(second, weights=run.model, network=None, as_new=False, command=str(command))
    runtime.began = time.monotonic()
    return _fit(second, _Place(where, force), runtime, resume=resume and (where / runs.CONFIG).is_file())


def _second_place(name: str, resume: bool) -> Path:
    """Where the second of two runs goes; to resume, where the newest unfinished pair lies."""
    new = runs.next_name("runs", name)
    if resume:
        seconds = [where for where in runs.runs_of(new, runs.FIRST) if not (where / runs.METRICS).is_file()]
        if seconds:
            return max(seconds, key=lambda where: _first_place(where).stat().st_mtime)
    return new


def _begun_by_launch(name: str, out: str | os.PathLike[str] | None) -> Path | None:
    """The run that this command began before torchrun started it again; None if there is none."""
    ours = {"launch": launch(), "command": _command()}
    places = [Path(out)] if out is not None else runs.runs_of(runs.next_name("runs", name))
    for place in places:
        if runs.is_run(place) and {word: runs.config_of(place).get(word) for word in ours} == ours:
            return place
    return None


def _first_place(where: Path) -> Path:
    return where.with_name(where.name + runs.FIRST)


def _command() -> str:
    """The command line that repeats this run."""
    words = sys.argv
    if _is_command():
        return without_secrets(shlex.join(["vitreous", *words[1:]]))
    return f"python {Path(words[0]).name}" if words[0] else "python"


def _is_command() -> bool:
    """Whether this process is `vitreous …`, not a program that calls it."""
    program = Path(sys.argv[0])
    return program.stem == "vitreous" or (program.stem == "__main__" and program.parent.name == "vitreous")
