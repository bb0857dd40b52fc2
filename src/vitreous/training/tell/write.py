"""What a finished training comes to: calibrated, judged, told and written."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitreous.errors import VitreousError
from vitreous.evaluation import calibration
from vitreous.evaluation.accuracy import Result
from vitreous.files import write_bytes, write_json
from vitreous.images.imageset import ImageSet
from vitreous.machine import record
from vitreous.measures import explain
from vitreous.measures.inspection import Inspection
from vitreous.measures.look import look
from vitreous.models.config import BiTConfig
from vitreous.models.cost import macs
from vitreous.models.model import Model
from vitreous.training.label_errors import KEPT, Doubts, Suspect
from vitreous.training.plan.plan import Job
from vitreous.training.run import folder as runs
from vitreous.training.run.loop import Outcome
from vitreous.training.run.sweep import Trial
from vitreous.training.tell.card import card
from vitreous.training.tell.page import write_report
from vitreous.training.tell.summary import Rival, Story, measured, places_to_look_at
from vitreous.weights import starter
from vitreous.weights.load_model import load
from vitreous.weights.save_model import save

__all__ = [
    "METRICS",
    "MODEL",
    "Run",
    "Trained",
    "calibrated",
    "name_of",
    "story_of",
    "write_results",
]

MODEL, METRICS, REPORT, CARD = "model.safetensors", "metrics.json", "report.html", "README.md"
LOOKED = 32  # images of the short look inside
INSIDE = ("attention-distance", "similarity", "skip-ratio")  # what it measures: all read one forward
FEWEST = 20  # answers below which "answer only above" says nothing
SURE = 0.9  # share of labels that whoever doubts others must name, to be heard in the terminal


@dataclass(frozen=True, eq=False)
class Run:
    """A finished run. `metrics` is what metrics.json holds."""

    path: str
    metrics: dict[str, Any]
    result: Result | None = field(default=None, repr=False)  # None where nothing was judged, or it was read back

    @property
    def model(self) -> str:
        """The file of the trained model."""
        return str(Path(self.path) / MODEL)

    @property
    def report(self) -> str:
        return str(Path(self.path) / REPORT)

    def load(self) -> Model:
        return load(self.model)

    def to_json(self) -> dict[str, Any]:
        report = {"report": self.report} if "judged" in self.metrics else {}
        return {"path": self.path, "model": self.model, **report, **self.metrics}

    def __str__(self) -> str:
        m = self.metrics
        lines = []
        if (judged := m.get("judged")) is not None:
            low, high = (100 * x for x in judged["interval"])
            share = judged.get("top1", judged.get("exact_match"))
            lines.append(f"{100 * share:.1f} % right ({low:.1f} to {high:.1f}); {m['how_judged']}")
            if m.get("answer_above"):
                lines.append(m["answer_above"])
            lines += [f"{r['name']}: {100 * r['right'] / r['seen']:.1f} %" for r in m.get("rivals", ())]
            lines += _doubted(m.get("suspects") or {})
        lines += (
            [f"model   {self.model}", f"report  {self.report}"] if judged is not None else [f"model   {self.model}"]
        )
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        return f"<pre>{escape(str(self))}</pre>"


def _doubted(suspects: dict[str, Any]) -> list[str]:
    """A line where labels may be wrong, unless whoever doubts them is often wrong itself."""
    asked = {what: suspects.get(name) for name, what in (("learned", "learned from"), ("judged", "judged"))}
    sure = {what: part for what, part in asked.items() if part and part["agree"] >= SURE * part["images"]}
    counts = [f"{part['count']:,} of {part['images']:,} {what}" for what, part in sure.items() if part["count"]]
    return [f"labels that may be wrong: {', '.join(counts)}; the report shows them"] if counts else []


@dataclass(frozen=True, eq=False)
class Trained:
    """What training left: the model, the images that judge it with its answers, and those it was calibrated on."""

    model: Model
    outcome: Outcome
    judged: ImageSet | None
    logits: NDArray[np.float32]  # N K, of the images judged
    judged_by: str
    chosen: NDArray[np.float32] | None  # logits that temperature and thresholds are fitted on
    chosen_labels: NDArray[np.int64] | None
    used: dict[str, int]  # images of train, dev and test
    seconds: float
    part: NDArray[np.int64] | None = None  # of each image judged: its fold
    test: Result | None = None  # of the set's own test split, beside a cross-validated number
    trials: tuple[Trial, ...] = ()  # of a sweep
    pixels: ImageSet | None = None  # those judged, as an evaluation sees them, where they lie decoded
    doubts: Doubts | None = None  # of labels learned from, where a closed form left their images out


def calibrated(job: Job, trained: Trained) -> Model:
    """Temperature and threshold, fitted on answers to images that were not trained on, and never on test."""
    model = trained.model
    if trained.chosen is not None and trained.chosen_labels is not None and len(trained.chosen):
        model.temperature = calibration.fit_temperature(trained.chosen, trained.chosen_labels)
        model.threshold = calibration.fit_threshold(calibration.score(trained.chosen))
    learned = "all" if job.folds and trained.test is None else "train"
    model.source = {
        "made_by": "vitreous fit",
        "recipe": job.recipe.name,
        "data": job.data.content_id,
        "learned_from": learned,
        **{name: value for name, value in model.source.items() if name == "terms"},
    }
    return model


def _probabilities(logits: NDArray[Any], model: Model) -> NDArray[np.float64]:
    way = calibration.sigmoid if model.answers == "several" else calibration.softmax
    return way(logits, model.temperature)


def _judged_probabilities(trained: Trained, model: Model) -> NDArray[np.float64]:
    """As the model would answer; of folds, at a temperature fitted on the others, so that nothing praises itself."""
    if trained.part is None or trained.judged is None or model.answers == "several":
        return _probabilities(trained.logits, model)
    found = np.zeros(trained.logits.shape, np.float64)
    labels = trained.judged.labels
    for number in np.unique(trained.part):
        here = trained.part == number
        fitted = calibration.fit_temperature(trained.logits[~here], labels[~here])
        found[here] = calibration.softmax(trained.logits[here], fitted)
    return found


def story_of(
    job: Job,
    trained: Trained,
    model: Model,
    where: Path,
    *,
    command: str,
    device: str,
    rivals: Sequence[Rival],
    seconds: float,
) -> Story | None:
    """All that the page and the card tell."""
    if trained.judged is None:
        return None
    above = None
    if trained.chosen is not None and trained.chosen_labels is not None and not job.has_several:
        above = calibration.answer_above(_probabilities(trained.chosen, model), trained.chosen_labels)
        if above is not None and (above.confidence == 0 or above.answered < FEWEST):
            above = None  # it would say nothing
    scores = calibration.score(trained.logits)
    probabilities = _judged_probabilities(trained, model)
    result = measured(trained.judged, probabilities)
    return Story(
        name=name_of(job.data),
        command=command,
        judged=trained.judged,
        probabilities=probabilities,
        measured=result,
        judged_by=trained.judged_by,  # type: ignore[arg-type]
        folds=job.folds,
        splits=trained.used,
        recipe=job.recipe,
        reasons=job.reasons,
        model=job.model or job.recipe.model or _weights_name(str(job.weights or "")),
        parameters=sum(p.numel() for p in model.parameters()),
        macs=macs(model.config),
        image_size=model.config.image_size,
        beginning=job.beginning,
        events=runs.read(where),
        seconds=trained.seconds,
        total_seconds=seconds,
        device=device,
        record=record(),
        health=job.health,
        learned=job.data,
        doubts=_doubts(job, trained),
        attention=explain.look_at(model, trained.judged, places_to_look_at(result)),
        inspection=_look_inside(model, trained.judged),
        temperature=model.temperature,
        answer_above=above.confidence if above is not None else None,
        unlike=None if model.threshold is None else float((scores < model.threshold).mean()),
        rivals=rivals,
        trials=trained.trials,
        notes=_notes(job, trained),
        folder=str(where),
    )


def _doubts(job: Job, trained: Trained) -> Doubts | None:
    """Of labels learned from and not judged: by the head that was solved, or by the measure before training."""
    measured = None if job.estimate is None else job.estimate.doubts
    found = trained.doubts if trained.doubts is not None else measured
    if found is None or trained.judged is None or trained.judged_by in ("cross-validation", "leave-one-out"):
        return None
    return found.without(trained.judged.ids)


def _weights_name(weights: str) -> str:
    """Of the weights that the network came with, for people."""
    return starter.network() if starter.is_meant(weights) else weights


def _look_inside(model: Model, judged: ImageSet) -> Inspection | None:
    """A short look: what one forward of a few images shows. Where it cannot be had the page goes without."""
    if len(judged) < LOOKED:
        return None
    only = INSIDE[1:] if isinstance(model.config, BiTConfig) else INSIDE
    try:
        return look(model, judged, only=only, images=LOOKED, layers="blocks")
    except VitreousError:
        return None


def _notes(job: Job, trained: Trained) -> list[str]:
    """What else should be known."""
    found = list(job.cautions)
    if trained.test is not None:
        low, high = (100 * x for x in trained.test.interval)
        found.append(
            f"On the set's own test split the saved model is right on {trained.test.right:,} of "
            f"{trained.test.images:,} ({100 * trained.test.top1:.1f} %; 95 % interval {low:.1f} to {high:.1f})."
        )
    if trained.judged_by == "cross-validation" and job.recipe.patience is not None:
        found.append("Patience was not used: a cross-validated training has no dev split to look at.")
    return found


def write_results(job: Job, trained: Trained, model: Model, story: Story | None, where: Path) -> Run:
    """Page, card and model; the numbers last, so that a folder with them is whole."""
    outcome = trained.outcome
    metrics: dict[str, Any] = {
        "judged_by": trained.judged_by,
        "temperature": model.temperature,
        "threshold": model.threshold,
        "recipe": job.recipe.name,
        "parameters": sum(p.numel() for p in model.parameters()),
        "steps": outcome.steps,
        "kept_step": outcome.step,
        "dev": outcome.dev,
        "skipped_batches": list(outcome.skipped),
        "seconds": trained.seconds,
        "images_per_second": outcome.images_per_second,
        "estimate": job.estimate and _without(job.estimate.to_json(), "doubts"),
        "sweep": [trial.to_json() for trial in trained.trials],
    }
    if story is not None:
        metrics |= {
            "judged": story.result.to_json() | {"temperature": model.temperature, "unlike": _unlike(trained, model)},
            "test": None if trained.test is None else trained.test.to_json(),
            "notes": list(story.notes),
            "how_judged": story.how_judged,
            "answer_above": str(story.above) if story.above is not None else None,
            "suspects": _suspects(story),
            "rivals": [{"name": r.name, "right": r.right, "seen": r.seen} for r in story.rivals],
            "total_seconds": story.total_seconds,
        }
        with runs.one_line_for(where):
            write_report(story, where / REPORT, force=True)
            write_bytes(where / CARD, card(story).encode(), force=True)
    brief = _without(metrics, "judged", "suspects")  # no names of pictures go with the model
    if story is not None:
        judged = metrics["judged"]
        brief["judged"] = {name: judged[name] for name in ("images", "right", "interval", "top1") if name in judged}
    with runs.one_line_for(where):
        save(model, where / MODEL, force=True, recipe=job.recipe.to_json(), metrics=brief)
        write_json(where / METRICS, metrics, force=True)
    return Run(str(where), metrics, story.result if story is not None else None)


def _without(body: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in body.items() if name not in names}


def _suspects(story: Story) -> dict[str, Any]:
    """Labels that may be wrong, by name: of the images judged, and of those learned from where they were doubted."""

    def named(images: ImageSet, found: Sequence[Suspect]) -> list[dict[str, Any]]:
        return [
            {
                "name": images.name(s.place),
                "label": story.classes[s.given],
                "likelier": story.classes[s.suggested],
                "confidence": s.confidence,
                "own": s.own,
            }
            for s in found[:KEPT]
        ]

    judged = {"images": story.result.images, "agree": story.result.right, "count": len(story.suspects)}
    found: dict[str, Any] = {"judged": judged | {"suspects": named(story.judged, story.suspects)}, "learned": None}
    if story.doubts is not None and story.learned is not None:
        d = story.doubts
        counts = {"images": d.images, "of": d.of, "agree": d.right, "count": d.count}
        found["learned"] = counts | {"suspects": named(story.learned, story.doubted)}
    return found


def _unlike(trained: Trained, model: Model) -> int | None:
    """Judged images that the model calls unlike anything it learned."""
    return None if model.threshold is None else int((calibration.score(trained.logits) < model.threshold).sum())


def name_of(data: Any) -> str:
    """What a person calls the images: the last part of their path."""
    said = data.path if isinstance(data, ImageSet) else os.fspath(data)
    if Path(said).is_dir():
        said = Path(said).resolve().name
    return Path(str(said).rstrip("/*")).name.partition("*")[0].strip(".-_") or "data"
