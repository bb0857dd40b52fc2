"""The files of a finished run: report, card, model, and the numbers last."""

from __future__ import annotations

import math
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from vitreous.evaluation import learned_images
from vitreous.evaluation.accuracy import Result
from vitreous.files import write_bytes, write_json
from vitreous.images.imageset import TRAIN, ImageSet
from vitreous.models.model import Model
from vitreous.training.label_errors import MAX_SUSPECTS_KEPT, Suspect
from vitreous.training.plan.plan import Plan
from vitreous.training.run import folder as runs
from vitreous.training.run.decoded import PACK
from vitreous.training.run.events import Event, StepLogged, known
from vitreous.training.run.folder import CARD, METRICS, MODEL, REPORT, RunFolder
from vitreous.training.run.trained import Trained
from vitreous.training.tell import facts, notebook
from vitreous.training.tell.card import card
from vitreous.training.tell.page import write_report
from vitreous.training.tell.summary import Summary, learned_from_all
from vitreous.weights.load_model import load
from vitreous.weights.save_model import save


@dataclass(frozen=True, eq=False)
class Run:
    """A finished run. `metrics` is what metrics.json holds."""

    path: str
    metrics: dict[str, Any]
    result: Result | None = field(default=None, repr=False)  # None if nothing was judged, or the run was read back

    @property
    def model(self) -> str:
        """The file of the trained model."""
        return str(Path(self.path) / MODEL)

    @property
    def report(self) -> str:
        return str(Path(self.path) / REPORT)

    @property
    def alarm(self) -> str | None:
        """That the model is no better than one answer, and what to do; None for a better one."""
        return self.metrics.get("alarm")

    def load(self) -> Model:
        return load(self.model)

    def to_json(self) -> dict[str, Any]:
        report = {"report": self.report} if "judged" in self.metrics else {}
        return {"path": self.path, "model": self.model, **report, **self.metrics}

    @property
    def told(self) -> list[Event]:
        """What the terminal shows: facts, and details for --verbose."""
        return list(facts.told(self))

    def __str__(self) -> str:
        return "\n".join(str(event) for event in self.told if not event.is_detail)

    __repr__ = __str__  # at a prompt

    def _repr_html_(self) -> str:
        return notebook.shown(self)


def write(
    plan: Plan, trained: Trained, summary: Summary | None, where: Path, folder: RunFolder | None, seconds: float
) -> Run:
    """Page, card and model; the numbers last, so that a folder with them is whole.  seconds: that the user waited."""
    metrics = _masked_metrics(trained, where, seconds) if plan.protocol == "masked" else _metrics(plan, trained)
    if summary is not None:
        summary = replace(summary, total_seconds=seconds)
        metrics |= _judged_metrics(trained, summary)
        with runs.one_line_for(where):
            write_report(summary, where / REPORT, force=True)
            write_bytes(where / CARD, card(summary).encode(), force=True)
    brief = _without(metrics, "judged", "suspects")  # the model carries no names of images
    if summary is not None:
        judged = metrics["judged"]
        trained.model.track_record = summary.track_record
        brief["judged"] = {name: judged[name] for name in ("images", "right", "interval", "top1") if name in judged}
    with runs.one_line_for(where):
        save(trained.model, where / MODEL, force=True, recipe=plan.recipe.to_json(), metrics=brief)
        if "learned_from" in trained.model.source:
            learned = plan.data if learned_from_all(plan, trained) else plan.data.split(TRAIN)
            learned_images.write(learned, where, plan.weights_file)
        write_json(where / METRICS, metrics, force=True)
    shutil.rmtree(where / PACK, ignore_errors=True)
    if folder is not None:
        folder.forget_states()
    return Run(str(where), metrics, summary.result if summary is not None else None)


def _metrics(plan: Plan, trained: Trained) -> dict[str, Any]:
    model, outcome = trained.model, trained.outcome
    return {
        "judged_by": trained.judged_by,
        "temperature": model.temperature,
        "threshold": model.threshold,
        "recipe": plan.recipe.name,
        "parameters": sum(p.numel() for p in model.parameters()),
        "steps": outcome.steps,
        "kept_step": outcome.step,
        "dev": outcome.dev,
        "skipped_batches": list(outcome.skipped),
        "seconds": trained.seconds,
        "images_per_second": outcome.images_per_second,
        "estimate": plan.estimate and _without(plan.estimate.to_json(), "doubts"),
        "sweep": [trial.to_json() for trial in trained.trials],
    }


def _judged_metrics(trained: Trained, summary: Summary) -> dict[str, Any]:
    model = trained.model
    return {
        "judged": summary.result.to_json() | {"temperature": model.temperature, "unlike": summary.unlike},
        "strangers": {kind: count._asdict() for kind, count in summary.strangers.items()},
        "test": None if trained.test is None else trained.test.to_json(),
        "images_used": summary.images_used,
        "notes": list(summary.notes),
        "how_judged": summary.how_judged,
        "no_better_than": row.name if (row := summary.result.no_better_than) is not None else None,
        "alarm": summary.alarm,
        "better": summary.better,
        "of_one_group": summary.of_one_group,
        "footnote": summary.footnote,
        "series": summary.series and summary.series.to_json(),
        "answer_above": str(summary.above) if summary.above is not None else None,
        "sure_from": summary.sure_from,
        "above": summary.above.to_json() if summary.above is not None else None,
        "suspects": _suspects(summary),
        "rivals": [{"name": r.name, "right": r.right, "seen": r.seen} for r in summary.rivals],
        "total_seconds": summary.total_seconds,
    }


def _finite(number: float) -> float | None:
    return number if math.isfinite(number) else None  # JSON has no NaN


def _masked_metrics(trained: Trained, where: Path, seconds: float) -> dict[str, Any]:
    logged = [event for event in known(runs.read(where)) if isinstance(event, StepLogged)]
    return {
        "task": "masked-patches",
        "loss": _finite(logged[-1].loss) if logged else None,
        "accuracy": _finite(logged[-1].accuracy) if logged else None,
        "steps": trained.outcome.steps,
        "seconds": trained.outcome.seconds,
        "total_seconds": seconds,
        "images_per_second": trained.outcome.images_per_second,
    }


def _without(body: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in body.items() if name not in names}


def _suspects(summary: Summary) -> dict[str, Any]:
    """Labels that may be wrong, by name: of images under two labels, judged, and learned from if they were doubted."""

    def named(images: ImageSet, found: Sequence[Suspect]) -> list[dict[str, Any]]:
        return [
            {
                "name": images.name(s.place),
                "label": summary.classes[s.given],
                "likelier": summary.classes[s.suggested],
                "confidence": s.confidence,
                "own": s.own,
            }
            for s in found[:MAX_SUSPECTS_KEPT]
        ]

    judged = {"images": summary.result.images, "agree": summary.result.right, "count": len(summary.suspects)}
    found: dict[str, Any] = {"conflicts": [conflict.to_json() for conflict in summary.conflicts]}
    found |= {"judged": judged | {"suspects": named(summary.judged, summary.suspects)}, "learned": None}
    if summary.doubts is not None and summary.learned is not None:
        d = summary.doubts
        counts = {"images": d.images, "of": d.of, "agree": d.right, "count": d.count}
        found["learned"] = counts | {"suspects": named(summary.learned, summary.doubted)}
    return found
