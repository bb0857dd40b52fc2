"""What a run reports, as one value: the page and the card say the same because both read this."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from vitreous.errors import DataError, VitreousError
from vitreous.evaluation import calibration
from vitreous.evaluation.accuracy import Result, independent, measure, wilson
from vitreous.evaluation.calibration import Above, above
from vitreous.images.health import Health
from vitreous.images.health.findings import WRONG_FOR_SURE
from vitreous.images.imageset import ImageSet
from vitreous.images.open_data import without_split
from vitreous.images.stores.memory import find_places
from vitreous.machine import record
from vitreous.measures import explain
from vitreous.measures.explain import Explanation
from vitreous.measures.inspection import Inspection
from vitreous.measures.look import look
from vitreous.models.config import BiTConfig
from vitreous.models.cost import macs
from vitreous.models.model import Model
from vitreous.models.track_record import SURE_SHARE, TrackRecord
from vitreous.training.label_errors import Doubts, LabelConflict, Suspect, label_conflicts, suspects
from vitreous.training.plan.plan import Plan
from vitreous.training.plan.starting_weights import BETTER, STARTER_LEFT_OUT
from vitreous.training.recipe import Recipe
from vitreous.training.run import folder as runs
from vitreous.training.run.closed_form import Series
from vitreous.training.run.events import (
    DevLooked,
    Event,
    HeadSolved,
    MemorySplit,
    Noted,
    NotFinite,
    PatienceEnded,
    StepLogged,
    StepsFixed,
    TrialFailed,
    known,
)
from vitreous.training.run.folder import data_name
from vitreous.training.run.trained import Rival, Trained, Trial
from vitreous.training.tell.strangers import Caught, strangers_caught
from vitreous.weights import starter
from vitreous.words import counted, duration, percent, percent_range

GOOD = 0.9  # share right: below, the starter may not know enough
MIN_ANSWERS = 20  # fewer make "answer only above" worthless
SPLIT_USES = {"train": "learned from", "dev": "to choose by", "test": "judged"}  # what images of a split are for
LOOK_IMAGES = 32  # of the short look inside
LOOK_MEASURES = ("attention-distance", "similarity", "skip-ratio")  # one forward serves them all


@dataclass(frozen=True)
class StageCurves:
    """The curves of one stage. Those of dev have an x axis of their own."""

    name: str
    epochs: tuple[float, ...] = ()
    loss: tuple[float, ...] = ()
    accuracy: tuple[float, ...] = ()  # on the training images as augmented
    rate: tuple[float, ...] = ()
    dev_epochs: tuple[float, ...] = ()
    dev_loss: tuple[float, ...] = ()
    dev_accuracy: tuple[float, ...] = ()
    kept: float | None = None  # epoch whose state was kept
    steps: int = 0


@dataclass(frozen=True, kw_only=True, eq=False)
class Summary:
    """A finished run in plain values.

    judged, probabilities: the images behind the number, and the calibrated answers to them (N K), each by a model
    that has not seen the image.
    """

    name: str  # of the data, for people
    command: str  # the one to repeat it with
    judged: ImageSet
    probabilities: NDArray[np.floating[Any]]
    judged_by: Literal["test", "cross-validation", "leave-one-out", "dev"]
    folds: int = 0  # of cross-validation
    splits: Mapping[str, int]  # images of train, dev and test, as they were used
    files: str = ""  # how many the set holds, where not all are used
    missing: Sequence[str] = ()  # why not all, one reason each
    recipe: Recipe
    reasons: Sequence[str]  # why this recipe, a line each
    model: str
    parameters: int
    macs: int  # of one image
    image_size: tuple[int, int]  # rows, columns
    beginning: str = "from scratch"  # or whose weights
    begun_from_starter: bool = False
    events: Sequence[Event] = ()
    seconds: float  # of training
    total_seconds: float | None = None  # that the user waited
    device: str
    record: Mapping[str, Any] = field(default_factory=dict)  # `machine.record()`
    health: Health | None = None
    learned: ImageSet | None = None  # the images that doubts are about, and maybe others
    doubts: Doubts | None = None  # of labels that were learned from and not judged; None where nobody asked
    attention: Explanation | None = None
    inspection: Inspection | None = None  # a short look inside
    temperature: float = 1.0
    answer_above: float | None = None  # the confidence chosen on dev
    sure_from: float | None = None  # as `TrackRecord` has it
    unlike: int | None = None  # judged images that the model calls none of these
    strangers: Mapping[str, Caught] = field(default_factory=dict)  # by kind; empty where nobody asked
    rivals: Sequence[Rival] = ()
    trials: Sequence[Trial] = ()  # rates that were tried
    notes: Sequence[str] = ()  # what else should be known
    series: Series | None = None  # images taken together, named by the user or guessed
    folder: str = "run"  # where the model lies
    measured: Result | None = None  # the numbers, if they were measured already

    def __post_init__(self) -> None:
        wanted = (len(self.judged), len(self.judged.classes))
        if np.shape(self.probabilities) != wanted:
            raise DataError(f"probabilities are {np.shape(self.probabilities)}; {self.judged.path} needs {wanted}")
        if not np.isfinite(self.probabilities).all():
            raise DataError("probabilities are not all finite, so the model is broken; train it again at a lower rate")
        if self.probabilities.size and (self.probabilities.min() < 0 or self.probabilities.max() > 1 + 1e-6):
            raise DataError("probabilities must lie between 0 and 1; give calibrated ones, not logits")

    @property
    def classes(self) -> tuple[str, ...]:
        return self.judged.classes

    @property
    def network(self) -> str:
        """The model in a word or two: a name without its changes, a file without its folders."""
        name, *changes = self.model.replace("\\", "/").split(" ")
        if any("=" not in change for change in changes):
            name, changes = self.model, []
        if name.count("/") > 1 or name.endswith(".safetensors"):
            name = "/".join(part for part in name.split("/")[-2:] if part != "model.safetensors")
        return f"{name} variant" if changes else name or "a network"

    @property
    def origin(self) -> str:
        """The model and what it began with, weights named once."""
        begun = "from these weights" if self.beginning == f"the weights {self.model}" else self.beginning
        return f"{self.network}, {begun}"

    @property
    def has_many_labels(self) -> bool:
        return self.judged.has_many_labels

    @cached_property
    def result(self) -> Result:
        """The numbers, all from `probabilities`, measured once."""
        return self.measured if self.measured is not None else measure_answers(self.probabilities, self.judged)

    @property
    def track_record(self) -> TrackRecord | None:
        """For the model's file; None if no image was judged. A model that has learned nothing is never sure."""
        if not self.result.images:
            return None
        low, high = self.result.interval
        return TrackRecord(
            right=float(self.result.top1),
            low=float(low),
            high=float(high),
            images=self.result.images,
            sure_from=self.sure_from if self.alarm is None else 1.0,
            has_chosen=self.judged_by == "dev",
        )

    @property
    def alarm(self) -> str | None:
        """That the model is no better than one answer, and what to do; None for a better one."""
        row = self.result.no_better_than
        return None if row is None else f"No better than always answering {row.name}. {self.what_helps}"

    @property
    def what_helps(self) -> str:
        """What to do about a model that has learned nothing."""
        if self.recipe.is_solved:
            return f"See that the labels are right, start from other weights ({BETTER}), or add images."
        if self.beginning == "from scratch" and any(STARTER_LEFT_OUT in reason for reason in self.reasons):
            return f"The starter knows no better. See that the labels are right, try {BETTER}, or add images."
        if self.beginning == "from scratch":
            return "Start from trained weights (--weights starter), or train longer (--epochs N)."
        return "Train longer (--epochs N), or try other learning rates (--sweep)."

    @property
    def better(self) -> str | None:
        """Weights that know more, where the starter leaves many images wrong."""
        return BETTER if self.begun_from_starter and self.result.interval[1] < GOOD else None

    @property
    def time(self) -> str:
        """How long it took: all that the user waited, and training alone."""
        in_all = "" if self.total_seconds is None else f"{duration(self.total_seconds)} in all, "
        return f"{in_all}{duration(self.seconds)} of training"

    @property
    def images_used(self) -> str:
        """How many files there were, and what became of each: one sentence for every number of images."""
        used = ", ".join(
            f"{count:,} {SPLIT_USES.get(name, name)} ({name})" for name, count in self.splits.items() if count
        )
        if self.judges_all and not self.splits.get("test"):
            used = f"{counted(len(self.judged), 'image')}, each judged and each learned from"
        if self.missing:
            used = f"{self.files}, {', '.join(self.missing)}: {used}"
        return used + (
            f"; {self.copies:,} of these {'is a copy' if self.copies == 1 else 'are copies'}" * bool(self.copies)
        )

    @property
    def copies(self) -> int:
        """How many of the checked images are surplus copies."""
        return 0 if self.health is None else self.health.copies

    @property
    def data_notes(self) -> tuple[str, ...]:
        """Notes on the data, without those on a test split that was made but not used."""
        is_unused = self.judges_all and self.judged.split_was_made
        return without_split(self.judged.notes) if is_unused else self.judged.notes

    @cached_property
    def above(self) -> Above | None:
        """What comes of answering only above the chosen confidence."""
        if self.answer_above is None or self.has_many_labels:
            return None
        judged = self.result.judged
        return above(judged.confidence, judged.is_right, self.answer_above)

    @property
    def of_one_group(self) -> list[str]:
        """Classes whose images are all copies or one series, left out together: nothing of the class was learned."""
        groups, labels = self.judged.groups, self.judged.labels
        if not self.judges_all or groups is None or self.has_many_labels:
            return []
        counts = [len(np.unique(groups[labels == k])) for k in range(len(self.classes))]
        return [name for name, count in zip(self.classes, counts, strict=True) if count == 1]

    @cached_property
    def conflicts(self) -> list[LabelConflict]:
        """Images under two labels; places are in `health.data`."""
        return label_conflicts(self.health)

    @cached_property
    def suspects(self) -> list[Suspect]:
        """Suspects among the images judged, besides those under two labels."""
        if self.has_many_labels:
            return []
        named = {name for conflict in self.conflicts for name in conflict.names}
        found = suspects(self.probabilities, self.judged.labels)
        return [suspect for suspect in found if self.judged.name(suspect.place) not in named]

    @cached_property
    def doubted(self) -> list[Suspect]:
        """Suspects among the images learned from; places are in `learned`."""
        if self.doubts is None or self.learned is None:
            return []
        places = find_places(self.learned.ids, [s.place for s in self.doubts.suspects])
        return [replace(s, place=int(i)) for s, i in zip(self.doubts.suspects, places, strict=True)]

    @cached_property
    def stages(self) -> tuple[StageCurves, ...]:
        return stages(self.events)

    @property
    def judges_all(self) -> bool:
        """Whether every image was learned from, and judged by a model that had not."""
        return self.judged_by in ("cross-validation", "leave-one-out")

    @property
    def how_judged(self) -> str:
        """One sentence for everybody."""
        n = f"{len(self.judged):,}"
        series = self.series if _is_whole(self.series) else None
        match self.judged_by:
            case "cross-validation" if series is not None:
                return (
                    f"Measured by cross-validation with whole series left out ({series}): {self.folds} models were "
                    f"trained, so that each of the {n} images was judged by a model that had seen no image of its "
                    "series. The model that was saved has learned from all of them."
                )
            case "leave-one-out" if series is not None:
                return (
                    f"Measured by leaving out whole series ({series}): each of the {n} images was judged by a "
                    "classifier that had seen no image of its series. The model that was saved has learned from all."
                )
            case "cross-validation":
                return (
                    f"Measured by cross-validation: {self.folds} models were trained, each without one part of the "
                    f"images, so that each of the {n} images was judged by a model that had not seen it. The model "
                    "that was saved has learned from all of them."
                )
            case "leave-one-out":
                return (
                    f"Measured by leave-one-out: each of the {n} images was judged by a classifier that had seen "
                    "neither it nor a copy of it. The model that was saved has learned from all."
                )
            case "test":
                whole = "" if series is None else f" Images were set aside in whole series ({series})."
                return f"Measured on {n} test images that were used neither for training nor for any choice.{whole}"
            case "dev":
                return (
                    f"Measured on {n} images set aside from training. The best state was chosen by the same images, so "
                    "the number is somewhat too high; test images would give an honest one."
                )

    @property
    def footnote(self) -> str | None:
        """The number that leaves images out one by one, where it is not the headline; None if there is none."""
        series = self.series
        if series is None or series.one_by_one is None or series.whole is None or not series.is_kept_whole:
            return None
        one = _share(series.one_by_one, series.judged)
        if self.judged_by == "leave-one-out":
            text = f"Left out one by one, {one} are right: "
            text += (
                "too high for new images, since images of one series are alike."
                if series.matters
                else "no clear difference, so the series hardly matter here."
            )
        else:
            text = (
                f"Before training, frozen features named {one} when images were left out one by one, and "
                f"{_share(series.whole, series.judged)} in whole series"
                + (": a number without series would be too high." if series.matters else ": no clear difference.")
            )
        return text if series.is_given else f"{text} The series are a guess; --group-by names them."

    @property
    def about_series(self) -> str | None:
        """Why series that were looked at do not make the headline; None if they do, or if there seem to be none."""
        series = self.series
        if series is None or series.is_kept_whole or series.whole is None:
            return None
        return (
            f"Images may come in series ({series}). Frozen features named {_share(series.whole, series.judged)} when "
            "whole series were left out: no clear difference, so the number stands."
        )


def about_conflicts(conflicts: Sequence[LabelConflict]) -> str:
    """What two labels of one image mean, for people."""
    where = "" if all(conflict.is_exact for conflict in conflicts) else "where the pixels are the same, "
    return f"{where}{WRONG_FOR_SURE}"


def right_above(row: Above, judged_by: str) -> str:
    """How many of the answers given are right, for people.

    Only test images did not choose the confidence; those that chose it count up to 3 points too many (NOTES, "May the
    trust line be trusted?").
    """
    return percent(row.right_share) if judged_by == "test" else f"at least {percent(SURE_SHARE, 0)}"


def learned_from_all(plan: Plan, trained: Trained) -> bool:
    """Whether the model has learned from every image; else from the split "train" alone."""
    return plan.judges_all and trained.test is None


def is_clear(ours: float, images: int, theirs: float, seen: int) -> bool:
    """Whether two shares of right answers differ by more than chance would explain."""
    spread = ours * (1 - ours) / max(images, 1) + theirs * (1 - theirs) / max(seen, 1)
    return abs(ours - theirs) > 1.96 * math.sqrt(spread)


def _is_whole(series: Series | None) -> bool:
    return series is not None and series.is_kept_whole


def _share(right: int, images: int) -> str:
    return f"{percent(right / images)} ({percent_range(wilson(right, images))})"


def summarise(plan: Plan, trained: Trained, where: Path, command: str, device: str) -> Summary | None:
    """All that page and card show; None if nothing was judged."""
    if trained.judged is None:
        return None
    model, judged = trained.model, trained.judged
    probabilities = judged_probabilities(trained)
    result = measure_answers(probabilities, judged)
    if judged.groups is not None and len(result.judged):
        groups = judged.groups[result.judged.rows]
        if len(np.unique(groups)) < len(groups):
            result = replace(result, independent=independent(result.judged.is_right, groups))
    weights, sure_from = str(plan.weights or ""), _sure_from(trained, result)
    is_ever_sure = result.no_better_than is None and sure_from != 1
    return Summary(
        name=data_name(plan.data),
        command=command,
        judged=judged,
        probabilities=probabilities,
        measured=result,
        judged_by=trained.judged_by,  # type: ignore[arg-type]
        folds=len(plan.data) if plan.protocol == "leave-one-out" else plan.folds,
        splits=trained.used,
        files=plan.files,
        missing=plan.missing,
        recipe=plan.recipe,
        reasons=plan.reasons,
        model=plan.model or plan.recipe.model or (starter.network() if starter.is_meant(weights) else weights),
        parameters=sum(p.numel() for p in model.parameters()),
        macs=macs(model.config),
        image_size=model.config.image_size,
        beginning=plan.beginning,
        begun_from_starter=bool(weights) and starter.is_meant(weights),
        events=known(runs.read(where)),
        seconds=trained.seconds,
        device=device,
        record=record(),
        health=plan.health,
        learned=plan.data,
        doubts=_doubts(plan, trained),
        attention=explain.look_at(model, judged, places_to_look_at(result)),
        inspection=_look_inside(model, judged),
        temperature=model.temperature,
        answer_above=sure_from if sure_from and sure_from < 1 else None,
        sure_from=sure_from,
        unlike=None if model.threshold is None else int((trained.scores < model.threshold).sum()),
        strangers=strangers_caught(plan, trained, sure_from if is_ever_sure else None),
        rivals=trained.rivals,
        trials=trained.trials,
        notes=_notes(plan, trained),
        series=plan.series,
        folder=str(where),
    )


# --------------------------------------------------------------------------------------------------------- calibration


def calibrate(plan: Plan, trained: Trained) -> None:
    """Fit temperature and threshold on answers to images that were not trained on, never on test.

    Masked patches name no class, so their model keeps what it knows of its weights.
    """
    model = trained.model
    if plan.protocol == "masked":
        model.source = {name: value for name, value in model.source.items() if name != "weights"}  # no longer random
        return
    if trained.chosen is not None and trained.chosen_labels is not None and trained.chosen_scores is not None:
        model.temperature = calibration.fit_temperature(trained.chosen, trained.chosen_labels)
        model.threshold = calibration.fit_threshold(trained.chosen_scores)
    # without the series nobody makes the same split again
    is_split_otherwise = _is_whole(plan.series) and plan.data.split_was_made
    model.source = {
        "made_by": "vitreous fit",
        "recipe": plan.recipe.name,
        "data": plan.data.content_id,
        "learned_from": "all" if learned_from_all(plan, trained) or is_split_otherwise else "train",
        **{name: value for name, value in model.source.items() if name == "terms"},
    }


def judged_probabilities(trained: Trained) -> NDArray[np.float64]:
    """The model's answers; each fold has the temperature of the other folds, so that none flatters itself."""
    model = trained.model
    if trained.part is None or trained.judged is None or model.answers == "several":
        return _probabilities(trained.logits, model)
    found = np.zeros(trained.logits.shape, np.float64)
    labels = trained.judged.labels
    for number in np.unique(trained.part):
        here = trained.part == number
        fitted = calibration.fit_temperature(trained.logits[~here], labels[~here])
        found[here] = calibration.softmax(trained.logits[here], fitted)
    return found


def _sure_from(trained: Trained, result: Result) -> float | None:
    """The confidence from which answers are to be trusted: 0 all, 1 none; None if there are too few images."""
    if trained.chosen is None or trained.chosen_labels is None or trained.model.answers == "several":
        return None
    probabilities = _probabilities(trained.chosen, trained.model)
    found = sure_from(probabilities, trained.chosen_labels, trained.chosen_groups)
    if found is None or trained.part is None:
        return found
    shown = above(result.judged.confidence, result.judged.is_right, found)  # each part with the others' temperature
    return found if shown.answered and shown.right_share >= SURE_SHARE else 1.0


def sure_from(
    probabilities: NDArray[np.float64], labels: NDArray[np.int64], groups: NDArray[np.int64] | None = None
) -> float | None:
    """As `TrackRecord` has it, by answers to images that nothing was trained on.  N K, N.

    groups: N; answers to copies, or to one series, are right or wrong together, so they count as fewer.
    """
    if len(labels) < MIN_ANSWERS:
        return None
    confidence, is_right = probabilities.max(-1), probabilities.argmax(-1) == labels

    def is_trusted(row: Above) -> bool:
        """The interval's lower end counts: the best of many confidences looks better than it is."""
        if row.answered < MIN_ANSWERS:
            return False
        answered, seen = confidence >= row.confidence, float(row.answered)
        if groups is not None and len(np.unique(groups[answered])) < row.answered:
            seen = independent(is_right[answered], groups[answered])
        return wilson(row.right_share * seen, seen)[0] >= SURE_SHARE

    found = calibration.answer_above(probabilities, labels, is_trusted)
    return 1.0 if found is None else found.confidence


def _probabilities(logits: NDArray[Any], model: Model) -> NDArray[np.float64]:
    way = calibration.sigmoid if model.answers == "several" else calibration.softmax
    return way(logits, model.temperature)


# ------------------------------------------------------------------------------------------------------ what is told


def _doubts(plan: Plan, trained: Trained) -> Doubts | None:
    """Doubts about labels learned from and not judged: by the solved head, or by the estimate before training."""
    measured = None if plan.estimate is None else plan.estimate.doubts
    found = trained.doubts if trained.doubts is not None else measured
    if found is None or trained.judged is None or plan.judges_all:
        return None
    return found.without(trained.judged.ids)


def _look_inside(model: Model, judged: ImageSet) -> Inspection | None:
    """A short look: what one forward of a few images shows. The page does without it if it fails."""
    if len(judged) < LOOK_IMAGES:
        return None
    only = LOOK_MEASURES[1:] if isinstance(model.config, BiTConfig) else LOOK_MEASURES
    try:
        return look(model, judged, only=only, images=LOOK_IMAGES, layers="blocks")
    except VitreousError:
        return None


def _notes(plan: Plan, trained: Trained) -> list[str]:
    """What else a reader should know."""
    found = list(plan.cautions)
    if trained.test is not None:
        low, high = (100 * x for x in trained.test.interval)
        found.append(
            f"On the set's own test split the saved model is right on {trained.test.right:,} of "
            f"{trained.test.images:,} ({100 * trained.test.top1:.1f} %; 95 % interval {low:.1f} to {high:.1f})."
        )
    if plan.protocol == "folds" and plan.recipe.patience is not None:
        found.append("Patience was not used: a cross-validated training has no dev split to look at.")
    return found


def measure_answers(probabilities: NDArray[np.floating[Any]], judged: ImageSet) -> Result:
    """The numbers of these answers to the judged images."""
    p = np.asarray(probabilities, np.float64) if judged.has_many_labels else probabilities
    if judged.has_many_labels:
        p = p.clip(1e-12, 1 - 1e-12)
        return measure(np.log(p) - np.log1p(-p), judged.labels, judged.classes)
    return measure(np.log(p.clip(1e-12, 1)), judged.labels, judged.classes)


def places_to_look_at(result: Result, count: int = 8) -> list[int]:
    """Images for attention: sure and right ones of different classes, and the surest mistakes, half and half."""
    judged = result.judged
    order = np.argsort(-judged.confidence, kind="stable")  # the surest first
    wrong, right = order[~judged.is_right[order]], order[judged.is_right[order]]
    _, first = np.unique(judged.answer[right], return_index=True)
    of_each = right[np.sort(first)]
    right = np.concatenate([of_each, np.setdiff1d(right, of_each)])
    mistakes = wrong[: count // 2]
    return judged.rows[np.concatenate([right[: count - len(mistakes)], mistakes])].tolist()


def stages(events: Iterable[Event]) -> tuple[StageCurves, ...]:
    """The curves that the loop's events draw, stage by stage."""
    by_name: dict[str, list[StepLogged | DevLooked]] = {}
    for event in events:
        if isinstance(event, StepLogged | DevLooked):
            by_name.setdefault(event.stage, []).append(event)
    return tuple(_stage(name, found) for name, found in by_name.items())


def _stage(name: str, events: Sequence[StepLogged | DevLooked]) -> StageCurves:
    steps = [event for event in events if isinstance(event, StepLogged)]
    looks = [event for event in events if isinstance(event, DevLooked)]
    return StageCurves(
        name=name,
        epochs=tuple(event.epoch for event in steps),
        loss=tuple(event.loss for event in steps),
        accuracy=tuple(event.accuracy for event in steps),
        rate=tuple(event.lr for event in steps),
        dev_epochs=tuple(event.epoch for event in looks),
        dev_loss=tuple(event.loss for event in looks),
        dev_accuracy=tuple(event.accuracy for event in looks),
        kept=next((event.epoch for event in reversed(looks) if event.is_kept), None),
        steps=max((event.step for event in events), default=0),
    )


def happenings(events: Sequence[Event]) -> list[str]:
    """What happened on the way that a reader should know, a sentence each."""
    given_up = {event.stage for event in events if isinstance(event, TrialFailed)}
    told = []
    for event in events:
        match event:
            case StepsFixed():
                told.append(f"The time of {event.budget:g} seconds became {event.steps:,} steps.")
            case MemorySplit():
                told.append(
                    f"The memory was too small for a whole batch: it was taken in {event.parts} parts of "
                    f"{event.micro_batch:,} images, which changes no number."
                )
            case NotFinite():
                were = "was" if event.is_of_step else "were"
                then = "that rate was given up" if event.stage in given_up else "that batch was passed over"
                told.append(f"At step {event.step:,} the {event.what} {were} not finite; {then}.")
            case PatienceEnded():
                told.append(f"It ended early, at step {event.step:,}: {event.looks} looks at dev brought no gain.")
            case HeadSolved():
                told.append(
                    f"The head was solved in closed form. The penalty l2 = {event.l2:g} is, of {event.tried}, the one "
                    f"with the smallest error when images are left out: {event.right:,} of {event.images:,} are right "
                    "then."
                )
                copies = f"; {event.copies:,} have copies, bursts or series, left out together" if event.copies else ""
                told.append(f"Images were left out in {event.rounds} rounds, some of each class{copies}.")
            case Noted():
                told.append(event.text)
    return told
