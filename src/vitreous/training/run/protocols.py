"""How a run trains and judges, by the plan's protocol.

dev             one training; dev keeps the best state, test judges
sweep           one training for each learning rate; dev chooses
folds           cross-validation: each image is judged by a model that has not seen it; one more learns from all
leave-one-out   the head in closed form; each image is judged when it is left out
closed-form     the head in closed form; test judges
masked          masked patches, without labels; nothing is judged
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from vitreous.errors import DataError, NotFiniteError
from vitreous.evaluation import accuracy
from vitreous.images import splits
from vitreous.images.imageset import TEST, TRAIN, ImageSet
from vitreous.models.model import Model
from vitreous.training.label_errors import doubts_of
from vitreous.training.recipe import Recipe, Seconds, Steps
from vitreous.training.run import closed_form, none_of_these, trainable_layers
from vitreous.training.run.closed_form import FirstHead, Frozen
from vitreous.training.run.decoded import decode_for_judging, decode_once, decoding_beside
from vitreous.training.run.events import FeaturesRead, HeadSolved, Noted, TrialEnded, TrialFailed
from vitreous.training.run.folder import RunFolder
from vitreous.training.run.loop import Loop
from vitreous.training.run.network import start_model
from vitreous.training.run.runtime import Runtime
from vitreous.training.run.stage import TrainingStage, stage_of
from vitreous.training.run.tasks.classify import Classify, Task
from vitreous.training.run.tasks.distill import Distill
from vitreous.training.run.tasks.masked import MaskedPatches
from vitreous.training.run.trained import FROZEN, Outcome, Rival, Trained, Trial, best

if TYPE_CHECKING:
    from vitreous.training.plan.plan import Plan

MAX_NAMES_SHOWN = 5  # of images that cannot be read
CALIBRATION_PARTS = 5  # in which leave-one-out answers are calibrated


def train(plan: Plan, folder: RunFolder | None, where: Path, runtime: Runtime) -> Trained:
    """Train and judge; then judge simpler methods on the same images: the numbers that training must beat."""
    trained = PROTOCOLS[plan.protocol](plan, folder, where, runtime)
    if trained.judged is None or not runtime.ranks.is_first:
        return trained
    return replace(trained, rivals=_find_rivals(plan, trained.judged, trained.pixels, runtime))


# ------------------------------------------------------------------------------------------------------ dev and sweep


@dataclass(frozen=True, eq=False)
class Begun:
    """A network before its first step, and its images."""

    model: Model
    train: ImageSet
    dev: ImageSet | None
    shown: ImageSet  # train, decoded if that pays
    looked_at: ImageSet | None  # dev, likewise


def begin(plan: Plan, where: Path, runtime: Runtime) -> Begun:
    """Cut dev from train, decode both, make the network.  where: for a pack of decoded images."""
    recipe, data = plan.recipe, plan.data
    if recipe.dev:
        train, dev = splits.cut_dev(data, recipe.dev, recipe.seed)
    else:
        train, dev = data.split(TRAIN), None
    head = _first_head(plan, train, runtime)
    find = decode_once(plan, train, dev, where, runtime)
    return Begun(_begun(plan, head, train, runtime), train, dev, find(train), dev and find(dev))


def learn(plan: Plan, begun: Begun, folder: RunFolder | None, runtime: Runtime) -> tuple[Outcome, tuple[Trial, ...]]:
    """Train once, or once for each rate; the model ends with the state that dev chose, else with the last."""
    if plan.protocol == "sweep":
        return _sweep(plan, begun.model, begun.shown, begun.looked_at, folder, runtime)
    return _train(plan, plan.recipe, begun.model, begun.shown, folder, runtime, dev=begun.looked_at), ()


def _with_dev(plan: Plan, folder: RunFolder | None, where: Path, runtime: Runtime) -> Trained:
    """Train once, or once for each rate; dev chooses the state, test judges it."""
    data, begun = plan.data, begin(plan, where, runtime)
    model, train, dev = begun.model, begun.train, begun.dev
    test = data.split(TEST) if (data.splits == TEST).any() else None

    def decode(**how: object) -> ImageSet | None:
        return test and decode_for_judging(plan, test, runtime.ranks, **how)  # type: ignore[arg-type]

    with decoding_beside(runtime.device, decode) as decoded_test:
        outcome, trials = learn(plan, begun, folder, runtime)
        pixels = decoded_test()
    used = {"train": len(train), "dev": len(dev) if dev is not None else 0}
    on_dev = seen = None
    if dev is not None:
        none_of_these.learn(plan, model, train, runtime)
        on_dev = runtime.answers(model, dev)
        seen = _answered(dev, on_dev.places, runtime)
    if test is not None and pixels is not None:
        found = runtime.answers(model, pixels)
        judged, pixels = _answered(test, found.places, runtime), pixels.take(found.places)
        judged_by = "test"
    elif seen is not None and on_dev is not None:
        judged, found, judged_by = seen, on_dev, "dev"
    else:
        return _unjudged(model, outcome, used)
    return Trained(
        model=model,
        outcome=outcome,
        seconds=outcome.seconds,
        judged=judged,
        logits=found.values,
        scores=found.scores,
        judged_by=judged_by,
        chosen=None if on_dev is None else on_dev.values,
        chosen_labels=None if on_dev is None else on_dev.labels,
        chosen_groups=None if seen is None else seen.groups,
        chosen_scores=None if on_dev is None else on_dev.scores,
        used={**used, "test": len(judged) * (judged_by == "test")},
        trials=trials,
        pixels=pixels,
    )


def _sweep(
    plan: Plan, model: Model, train: ImageSet, dev: ImageSet | None, folder: RunFolder | None, runtime: Runtime
) -> tuple[Outcome, tuple[Trial, ...]]:
    """Train once for each rate on the same images; the model ends as the best on dev (table 4 of arXiv 2010.11929)."""
    start = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
    trials: list[Trial] = []
    kept: Outcome | None = None
    seconds = 0.0
    recipe, failed = plan.recipe, None
    if recipe.first_head == "solved" and dev is not None:
        kept = _untrained(model, dev, runtime)
        trials.append(_trial(0.0, kept))
        runtime.say(f"the solved head: dev {100 * trials[0].accuracy:.1f} % right, loss {trials[0].loss:.3f}")
    if isinstance(recipe.length, Seconds):  # all trials share the time, and take the same number of steps
        recipe = replace(recipe, length=Seconds(recipe.length.count / len(plan.rates)))
    for rate in plan.rates:
        model.load_state_dict(start)
        try:
            swept = at_rate(recipe, rate)
            outcome = _train(plan, swept, model, train, folder, runtime, dev=dev, name=stage_of(rate))
        except NotFiniteError as error:
            failed = error
            runtime.say(Noted(f"rate {rate:.3g} is too high: {str(error).partition(';')[0]}"))
            runtime.record(folder, TrialFailed(stage_of(rate), rate))
            continue
        recipe = _same_steps(recipe, outcome)
        trials.append(_trial(rate, outcome))
        seconds += outcome.seconds
        kept = outcome if best(trials).rate == rate else kept
        runtime.record(folder, TrialEnded(stage_of(rate), **trials[-1].to_json()))
    if kept is None:
        assert failed is not None
        raise failed
    chosen = best(trials).rate
    what = f"rate {chosen:.3g}" if chosen else "the solved head, without a step,"
    runtime.say(f"{what} is kept, chosen on dev among {len(trials)}")
    model.load_state_dict(kept.state)
    return replace(kept, seconds=seconds), tuple(replace(trial, is_kept=trial.rate == chosen) for trial in trials)


def at_rate(recipe: Recipe, rate: float) -> Recipe:
    """The recipe with another rate; the rates of head and Muon change by the same factor."""
    factor = rate / recipe.peak_lr
    head = recipe.head_lr and recipe.head_lr * factor
    return recipe.change(peak_lr=rate, head_lr=head, muon_lr=recipe.muon_lr * factor)


def with_kept_rate(plan: Plan, trials: Sequence[Trial]) -> Plan:
    """The plan with the learning rate that a sweep chose."""
    rate = best(trials).rate if trials else 0.0
    return replace(plan, recipe=at_rate(plan.recipe, rate)) if rate else plan


def _untrained(model: Model, dev: ImageSet, runtime: Runtime) -> Outcome:
    """The model before any step, judged on dev."""
    found = runtime.answers(model, dev)
    result = accuracy.measure(found.values, found.labels, dev.classes)
    state = {name: tensor.detach().to("cpu", copy=True) for name, tensor in model.state_dict().items()}
    return Outcome(state, 0, 0, 0.0, 0.0, {"step": 0, "accuracy": float(result.top1), "loss": float(result.loss)})


def _trial(rate: float, outcome: Outcome) -> Trial:
    assert outcome.dev is not None
    return Trial(rate, outcome.dev["accuracy"], outcome.dev["loss"], outcome.step)


# --------------------------------------------------------------------------------------------------------------- folds


def _folds(plan: Plan, folder: RunFolder | None, where: Path, runtime: Runtime) -> Trained:
    """Each fold is judged by a model that has not seen it; the saved model learns from all."""
    data, recipe = plan.data, plan.recipe
    pool = data if data.split_was_made else data.split(TRAIN)
    part = splits.folds(pool, plan.folds, recipe.seed)
    if isinstance(recipe.length, Seconds):
        recipe = replace(recipe, length=Seconds(recipe.length.count / (plan.folds + 1)))
    head = _first_head(plan, pool, runtime)
    find = decode_once(plan, pool, None, where, runtime)
    logits = np.zeros((len(pool), len(data.classes)), np.float32)
    scores, is_judged = np.zeros(len(pool), np.float32), np.zeros(len(pool), bool)
    seconds = 0.0
    for number in range(plan.folds):
        train = pool.take(part != number)
        model = _begun(plan, head, train, runtime, again=True)
        outcome = _train(plan, recipe, model, find(train), folder, runtime, name=f"fold-{number + 1}")
        recipe = _same_steps(recipe, outcome)
        none_of_these.learn(plan, model, train, runtime)
        own = np.flatnonzero(part == number)
        found = runtime.answers(model, pool.take(own))
        own = own[found.places]
        logits[own], scores[own], is_judged[own] = found.values, found.scores, True
        seconds += outcome.seconds
    model = _begun(plan, head, pool, runtime)
    outcome = _train(plan, recipe, model, find(pool), folder, runtime)
    none_of_these.learn(plan, model, pool, runtime)
    test = None
    if len(pool) < len(data):
        found = runtime.answers(model, data.split(TEST))
        test = accuracy.measure(found.values, found.labels, data.classes)
    judged, logits, scores = _answered(pool, np.flatnonzero(is_judged), runtime), logits[is_judged], scores[is_judged]
    return Trained(
        model=model,
        outcome=outcome,
        judged=judged,
        logits=logits,
        scores=scores,
        judged_by="cross-validation",
        chosen=logits,
        chosen_labels=judged.labels,
        chosen_groups=judged.groups,
        chosen_scores=scores,
        used={"train": len(pool), "dev": 0, "test": 0 if test is None else test.images},
        seconds=seconds + outcome.seconds,
        part=part[is_judged],
        test=test,
    )


# --------------------------------------------------------------------------------------------------------- closed form


def _solved(plan: Plan, folder: RunFolder | None, where: Path, runtime: Runtime) -> Trained:
    """Solve the head in closed form; judge each image when left out, or the images of test."""
    begin = time.monotonic()
    if folder is not None:
        folder.latest_state()  # a solved run saves no state: events of an earlier process no longer count
    data, recipe = plan.data, plan.recipe
    leaves_out = plan.protocol == "leave-one-out"
    model = start_model(plan, runtime.device)
    found = _features(model, data if leaves_out else data.split(TRAIN), runtime)
    groups, copies = closed_form.rounds(found.images, recipe.seed)
    labels = found.images.labels
    head = closed_form.solve(found.rows, labels, len(plan.classes), recipe.l2, groups=groups, device=runtime.device)
    closed_form.put_into_head(model, head.probe)
    model.familiarity = none_of_these.familiarity_of(plan, found.rows, labels)
    part = groups % CALIBRATION_PARTS
    known, unknown = none_of_these.left_out_scores(found.rows, labels, len(plan.classes), part)
    logits = head.left_out.astype(np.float32)
    seconds = time.monotonic() - begin + plan.measured_seconds
    solved = HeadSolved(
        l2=head.probe.l2,
        tried=len(head.right),
        right=head.right[head.probe.l2],
        images=len(labels),
        rounds=int(groups.max()) + 1,
        copies=copies,
        seconds=seconds,
    )
    runtime.record(folder, solved)
    trained = Trained(
        model=model,
        outcome=Outcome({}, 0, 0, seconds, len(labels) / max(seconds, 1e-9)),
        judged=found.images,
        logits=logits,
        scores=known,
        judged_by="leave-one-out",
        chosen=logits,
        chosen_labels=labels,
        chosen_groups=found.images.groups,
        chosen_scores=known,
        unknown_scores=unknown if len(plan.classes) > 2 else None,
        unknown_logits=head.without_own_class(labels) if len(plan.classes) > 2 else None,
        used={"train": len(labels), "dev": 0, "test": 0},
        seconds=seconds,
    )
    if leaves_out:
        return replace(trained, part=part)
    answers = runtime.answers(model, data.split(TEST), alone=True)
    judged = _answered(data.split(TEST), answers.places, runtime)
    doubts = None if plan.estimate is None else plan.estimate.doubts
    is_known = doubts is not None and doubts.images == len(labels)  # the plan asked about the same images and features
    return replace(
        trained,
        judged=judged,
        logits=answers.values,
        scores=answers.scores,
        judged_by="test",
        used={**trained.used, "test": len(judged)},
        doubts=doubts if is_known else doubts_of(found.images, head.left_out),
    )


# -------------------------------------------------------------------------------------------------------------- masked


def _masked(plan: Plan, folder: RunFolder | None, where: Path, runtime: Runtime) -> Trained:
    """Train on masked patches; the network then serves as `--weights`."""
    train = plan.data.split(TRAIN)
    model = start_model(plan, runtime.device)
    task = MaskedPatches(model, plan.recipe)
    find = decode_once(plan, train, None, where, runtime)
    outcome = _train(plan, plan.recipe, model, find(train), folder, runtime, name="masked-patches", task=task)
    return _unjudged(task.finished(), outcome, {"train": len(train), "dev": 0, "test": 0})


# --------------------------------------------------------------------------------------------------------- shared parts


def _train(
    plan: Plan,
    recipe: Recipe,
    model: Model,
    train: ImageSet,
    folder: RunFolder | None,
    runtime: Runtime,
    *,
    dev: ImageSet | None = None,
    name: str = "fit",
    task: Task | None = None,
) -> Outcome:
    """One stage; the model ends with the state that is kept.  task: classification by default."""
    if task is None:
        recipe = trainable_layers.apply(model, recipe)
        task = Classify(model, recipe) if plan.teacher is None else Distill(model, plan.teacher, recipe)
    outcome = Loop(TrainingStage(task, model, recipe, train, plan.preprocess, dev, name), runtime, folder).run()
    model.load_state_dict(outcome.state)
    return outcome


def _unjudged(model: Model, outcome: Outcome, used: dict[str, int]) -> Trained:
    """A trained model that no image judges."""
    nothing = np.zeros((0, 0), np.float32)
    return Trained(model=model, outcome=outcome, logits=nothing, judged_by="none", used=used, seconds=outcome.seconds)


def _same_steps(recipe: Recipe, outcome: Outcome) -> Recipe:
    """After a first training in seconds, the others take as many steps."""
    return replace(recipe, length=Steps(outcome.steps)) if isinstance(recipe.length, Seconds) else recipe


def _first_head(plan: Plan, images: ImageSet, runtime: Runtime) -> FirstHead | None:
    """The solved head to begin with, if the recipe asks for one; every rank reads the features that rank 0 kept."""
    if plan.recipe.first_head != "solved":
        return None
    found = _features(start_model(plan, runtime.device, again=True), images, runtime)
    return FirstHead(found, closed_form.rounds(found.images, plan.recipe.seed)[0], plan.recipe.l2)


def _begun(plan: Plan, head: FirstHead | None, train: ImageSet, runtime: Runtime, *, again: bool = False) -> Model:
    """The network before its first step, with its first head solved on the images that it learns from."""
    model = start_model(plan, runtime.device, again=again)
    if head is not None:
        head.put_into(model, train)
    return model


def _features(model: Model, images: ImageSet, runtime: Runtime) -> Frozen:
    watch = partial(runtime.progress, FeaturesRead)
    return closed_form.frozen_features(model, images, device=runtime.device, workers=runtime.workers, progress=watch)


def _answered(images: ImageSet, places: NDArray[np.int64], runtime: Runtime) -> ImageSet:
    """The images at these places, which were answered; reports which others cannot be read."""
    missing = np.setdiff1d(np.arange(len(images)), places)
    if not len(missing):
        return images
    names = ", ".join(images.name(int(i)) for i in missing[:MAX_NAMES_SHOWN])
    others = f" and {len(missing) - MAX_NAMES_SHOWN:,} others" if len(missing) > MAX_NAMES_SHOWN else ""
    runtime.say(Noted(f"{names}{others} cannot be read any more, so {len(missing):,} images are not judged"))
    if not len(places):
        raise DataError(
            f"no image that judges can be read, such as {names}; look at them: vitreous check {images.path}"
        )
    return images.take(places)


# -------------------------------------------------------------------------------------------------------------- rivals


def _find_rivals(plan: Plan, judged: ImageSet, pixels: ImageSet | None, runtime: Runtime) -> tuple[Rival, ...]:
    """The caller's own rival, and the frozen features that training began with."""
    found = [] if runtime.rival is None else [runtime.rival(plan.data.split(TRAIN), judged)]
    if plan.estimate is not None and not plan.recipe.is_solved:
        found.append(_frozen_rival(plan, judged if pixels is None else pixels, runtime))
    return tuple(found)


def _frozen_rival(plan: Plan, judged: ImageSet, runtime: Runtime) -> Rival:
    """Frozen features and a closed-form classifier, on the judged images if training never saw them.

    Else, or for a very large set, the plan's leave-one-out estimate.
    """
    assert plan.estimate is not None
    train = plan.data.split(TRAIN)
    is_apart = not np.isin(judged.ids, train.ids).any()
    if not is_apart or max(len(train), len(judged)) > closed_form.most_images(plan.config, runtime.device):
        return Rival(f"{FROZEN} (leave-one-out)", plan.estimate.right, plan.estimate.images)
    model = start_model(plan, runtime.device)
    read = partial(closed_form.frozen_features, model, device=runtime.device, workers=runtime.workers)
    known, new = read(train), read(judged)
    labels, l2s = known.images.labels, (plan.estimate.l2,)
    solved = closed_form.solve(known.rows, labels, len(plan.classes), l2s, device=runtime.device)
    return Rival(FROZEN, solved.probe.right(new.rows, new.images.labels), len(new.images))


Protocol = Callable[["Plan", RunFolder | None, Path, Runtime], Trained]


PROTOCOLS: dict[str, Protocol] = {
    "dev": _with_dev,
    "sweep": _with_dev,
    "folds": _folds,
    "leave-one-out": _solved,
    "closed-form": _solved,
    "masked": _masked,
}
