"""The ways to a trained model: once with dev, a sweep of rates, fold by fold, or solved. Each says what it came to."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import Event

import numpy as np
import torch
from numpy.typing import NDArray

from vitreous.errors import DataError, NotFiniteError
from vitreous.evaluation import accuracy
from vitreous.images import splits
from vitreous.images.imageset import TEST, TRAIN, ImageSet
from vitreous.machine import core_count
from vitreous.models.model import Model
from vitreous.training.label_errors import doubts_of
from vitreous.training.plan import plan as plans
from vitreous.training.plan.plan import Job
from vitreous.training.recipe import Recipe, Seconds, Steps
from vitreous.training.run import closed_form
from vitreous.training.run import trainable_layers as policies
from vitreous.training.run.closed_form import FirstHead
from vitreous.training.run.folder import RunFolder
from vitreous.training.run.loop import Loop, Outcome
from vitreous.training.run.runtime import Around
from vitreous.training.run.sweep import Trial, at_rate, best, stage_of
from vitreous.training.run.tasks.classify import Classify, Task
from vitreous.training.run.tasks.distill import Distill
from vitreous.training.tell.write import Trained

__all__ = ["cross_validated", "decoded", "measured_for", "solved", "with_dev"]

NAMED = 5  # images that cannot be read, by name


def with_dev(job: Job, folder: RunFolder | None, where: Path, around: Around) -> Trained:
    """One training; the best state on dev; judged on test."""
    recipe, data = job.recipe, job.data
    if recipe.dev:
        train, dev = splits.cut_dev(data, recipe.dev, recipe.seed)
    else:
        train, dev = data.split(TRAIN), None
    head = _first_head(job, train, around)
    find = decoded(job, train, dev, where, around)
    model = plans.start_model(job, around.device)
    if head is not None:
        head.put_into(model, train)
    judged = data.split(TEST) if (data.splits == TEST).any() else None
    with _decoding(job, judged, around) as decoded_test:
        outcome, trials = _swept(job, model, find(train), dev and find(dev), folder, around)
        pixels = decoded_test()
    used = {"train": len(train), "dev": len(dev) if dev is not None else 0}
    chosen = labels = seen = None
    if dev is not None:
        found = around.answers(model, dev)
        chosen, labels = found.values, found.labels
        seen = _without_unread(dev, found.places, around)
    if judged is not None and pixels is not None:
        found = around.answers(model, pixels)
        judged, pixels = _without_unread(judged, found.places, around), pixels.take(found.places)
        logits, how = found.values, "test"
    elif seen is not None and chosen is not None:
        judged, how, logits = seen, "dev", chosen
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
        trials=trials,
        pixels=pixels,
    )


@contextmanager
def _decoding(job: Job, judged: ImageSet | None, around: Around) -> Iterator[Callable[[], ImageSet | None]]:
    """What is judged at the end is decoded beside the training where a GPU trains, which leaves cores idle; else then.

    One that ends early leaves the rest undecoded.
    """
    has_ended = Event()

    def look(done: int, total: int) -> None:
        if has_ended.is_set():
            raise CancelledError

    def decode(threads: int | None = None) -> ImageSet | None:
        return judged and plans.for_judging(job, judged, around.ranks, threads=threads, progress=look)

    if around.device.type == "cpu":
        yield decode
        return
    with ThreadPoolExecutor(1, "vitreous-judging") as pool:
        ahead = pool.submit(decode, max(core_count() // 8, 1))
        try:
            yield ahead.result
        finally:
            has_ended.set()


def _swept(
    job: Job, model: Model, train: ImageSet, dev: ImageSet | None, folder: RunFolder | None, around: Around
) -> tuple[Outcome, tuple[Trial, ...]]:
    """One training, or one for each rate of a sweep, all on the same images; the model ends as the best on dev."""
    if not job.rates:
        return _train(job, job.recipe, model, train, dev, "fit", folder, around), ()
    start = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
    trials: list[Trial] = []
    kept: Outcome | None = None
    seconds = 0.0
    recipe, failed = job.recipe, None
    if recipe.first_head == "solved" and dev is not None:
        kept = _as_begun(model, dev, around)
        trials.append(_trial(0.0, kept))
        around.say(f"the solved head: dev {100 * trials[0].accuracy:.1f} % right, loss {trials[0].loss:.3f}")
    if isinstance(recipe.length, Seconds):  # for all of them together, and of equal steps
        recipe = replace(recipe, length=Seconds(recipe.length.count / len(job.rates)))
    for rate in job.rates:
        model.load_state_dict(start)
        try:
            outcome = _train(job, at_rate(recipe, rate), model, train, dev, stage_of(rate), folder, around)
        except NotFiniteError as error:
            failed = error
            around.say(f"rate {rate:.3g} is too high: {str(error).partition(';')[0]}")
            around.happened(folder, {"kind": "trial", "stage": stage_of(rate), "rate": rate, "failed": True})
            continue
        recipe = replace(recipe, length=Steps(outcome.steps)) if isinstance(recipe.length, Seconds) else recipe
        trials.append(_trial(rate, outcome))
        seconds += outcome.seconds
        kept = outcome if best(trials).rate == rate else kept
        around.happened(folder, {"kind": "trial", "stage": stage_of(rate), **trials[-1].to_json()})
    if kept is None:
        assert failed is not None
        raise failed
    chosen = best(trials).rate
    what = f"rate {chosen:.3g}" if chosen else "the solved head, without a step,"
    around.say(f"{what} is kept, chosen on dev among {len(trials)}")
    model.load_state_dict(kept.state)
    return replace(kept, seconds=seconds), tuple(replace(trial, is_kept=trial.rate == chosen) for trial in trials)


def _as_begun(model: Model, dev: ImageSet, around: Around) -> Outcome:
    """No step at all, judged on dev."""
    found = around.answers(model, dev)
    result = accuracy.measure(found.values, found.labels, dev.classes)
    state = {name: tensor.detach().to("cpu", copy=True) for name, tensor in model.state_dict().items()}
    return Outcome(state, 0, 0, 0.0, 0.0, {"step": 0, "accuracy": float(result.top1), "loss": float(result.loss)})


def _trial(rate: float, outcome: Outcome) -> Trial:
    assert outcome.dev is not None
    return Trial(rate, outcome.dev["accuracy"], outcome.dev["loss"], outcome.step)


def solved(job: Job, folder: RunFolder | None, where: Path, around: Around) -> Trained:
    """The head in closed form. Few images are each judged when left out; else those of test, as always."""
    begin = time.monotonic()
    if folder is not None:
        folder.latest_state()  # there is none: what was told before it was ended counts no more
    data, recipe = job.data, job.recipe
    model = plans.start_model(job, around.device)
    learned = data if job.folds else data.split(TRAIN)

    def features(some: ImageSet) -> closed_form.Frozen:
        watch = partial(around.progress, "features")
        return closed_form.frozen_features(model, some, device=around.device, workers=around.workers, progress=watch)

    found = features(learned)
    groups, copies = closed_form.rounds(found.images, recipe.seed)
    labels = found.images.labels
    head = closed_form.solve(found.rows, labels, len(job.classes), recipe.l2, groups=groups, device=around.device)
    closed_form.put_into_head(model, head.probe)
    logits = head.left_out.astype(np.float32)
    seconds = time.monotonic() - begin + measured_for(job)
    around.happened(
        folder,
        {
            "kind": "solved",
            "stage": "fit",
            "l2": head.probe.l2,
            "tried": len(head.right),
            "right": head.right[head.probe.l2],
            "images": len(labels),
            "rounds": int(groups.max()) + 1,
            "copies": copies,
            "seconds": seconds,
        },
    )
    outcome = Outcome({}, 0, 0, seconds, len(labels) / max(seconds, 1e-9))
    used = {"train": len(labels), "dev": 0, "test": 0}
    if job.folds:
        part = groups % plans.FOLDS
        return Trained(model, outcome, found.images, logits, "leave-one-out", logits, labels, used, seconds, part=part)
    answers = around.answers(model, data.split(TEST), alone=True)
    judged = _without_unread(data.split(TEST), answers.places, around)
    used["test"] = len(judged)
    known = None if job.estimate is None else job.estimate.doubts
    is_asked = known is not None and known.images == len(labels)  # all of them, of these very features
    doubts = known if is_asked else doubts_of(found.images, head.left_out)
    return Trained(model, outcome, judged, answers.values, "test", logits, labels, used, seconds, doubts=doubts)


def cross_validated(job: Job, folder: RunFolder | None, where: Path, around: Around) -> Trained:
    """Each part of the images judged by a model that has not seen it; the model that is kept learns from all."""
    data, recipe = job.data, job.recipe
    pool = data if data.about.get("split", {}).get("made") else data.split(TRAIN)
    part = splits.folds(pool, job.folds, recipe.seed)
    if isinstance(recipe.length, Seconds):
        recipe = replace(recipe, length=Seconds(recipe.length.count / (job.folds + 1)))
    head = _first_head(job, pool, around)
    find = decoded(job, pool, None, where, around)
    logits = np.zeros((len(pool), len(data.classes)), np.float32)
    is_judged = np.zeros(len(pool), bool)
    seconds = 0.0
    for number in range(job.folds):
        model, train = plans.start_model(job, around.device, again=True), pool.take(part != number)
        if head is not None:
            head.put_into(model, train)
        outcome = _train(job, recipe, model, find(train), None, f"fold-{number + 1}", folder, around)
        recipe = replace(recipe, length=Steps(outcome.steps)) if isinstance(recipe.length, Seconds) else recipe
        own = np.flatnonzero(part == number)
        found = around.answers(model, pool.take(own))
        logits[own[found.places]], is_judged[own[found.places]] = found.values, True
        seconds += outcome.seconds
    model = plans.start_model(job, around.device)
    if head is not None:
        head.put_into(model, pool)
    outcome = _train(job, recipe, model, find(pool), None, "fit", folder, around)
    test = None
    if len(pool) < len(data):
        found = around.answers(model, data.split(TEST))
        test = accuracy.measure(found.values, found.labels, data.classes)
    used = {"train": len(pool), "dev": 0, "test": 0 if test is None else test.images}
    judged, logits = _without_unread(pool, np.flatnonzero(is_judged), around), logits[is_judged]
    return Trained(
        model,
        outcome,
        judged,
        logits,
        "cross-validation",
        logits,
        judged.labels,
        used,
        seconds + outcome.seconds,
        part[is_judged],
        test,
    )


def _without_unread(images: ImageSet, places: NDArray[np.int64], around: Around) -> ImageSet:
    """The images at these places, which were answered; it is said which others could not be read."""
    missing = np.setdiff1d(np.arange(len(images)), places)
    if not len(missing):
        return images
    names = ", ".join(images.name(int(i)) for i in missing[:NAMED])
    others = f" and {len(missing) - NAMED:,} others" if len(missing) > NAMED else ""
    around.say(f"caution: {names}{others} cannot be read any more, so {len(missing):,} images are not judged")
    if not len(places):
        raise DataError(
            f"no image that judges can be read, such as {names}; look at them: vitreous check {images.path}"
        )
    return images.take(places)


def _first_head(job: Job, images: ImageSet, around: Around) -> FirstHead | None:
    """The head to begin with, where the recipe has it solved; every rank reads the features that the first has kept."""
    if job.recipe.first_head != "solved":
        return None
    model, watch = plans.start_model(job, around.device, again=True), partial(around.progress, "features")
    found = closed_form.frozen_features(model, images, device=around.device, workers=around.workers, progress=watch)
    return FirstHead(found, closed_form.rounds(found.images, job.recipe.seed)[0], job.recipe.l2)


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
    task = _task(job, recipe, model)
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
        stages=around.stages,
    ).run()
    model.load_state_dict(outcome.state)
    return outcome


def _task(job: Job, recipe: Recipe, model: Model) -> Task:
    return Classify(model, recipe) if job.teacher is None else Distill(model, job.teacher, recipe)


def decoded(
    job: Job, train: ImageSet, dev: ImageSet | None, where: Path, around: Around
) -> Callable[[ImageSet], ImageSet]:
    """Every rank decodes for itself into memory; onto disk the first one does, and the others find it there."""
    to_disk = plans.is_packed(job, train, around.ranks, where)
    if to_disk and around.ranks.world > 1 and not around.ranks.is_first:
        torch.distributed.barrier()
    found = plans.decoded_once(job, train, dev, where, around.ranks, around.say)
    if to_disk and around.ranks.world > 1 and around.ranks.is_first:
        torch.distributed.barrier()
    return found


def measured_for(job: Job) -> float:
    """Seconds of the first measure, which has read the features that a closed form finds again."""
    return 0.0 if job.estimate is None else job.estimate.seconds
