"""A finished run for the terminal: each fact is one function of its numbers and one line. FACTS is the order.

A newcomer reads the facts; `--verbose` adds the details.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from vitreous.evaluation.calibration import Above
from vitreous.models.track_record import SURE_SHARE
from vitreous.training.run.events import Event, Fact, Said
from vitreous.training.run.trained import FROZEN
from vitreous.training.tell.strangers import LEFT_OUT, Caught, easy
from vitreous.training.tell.summary import is_clear, right_above
from vitreous.words import confidence, percent, percent_range

if TYPE_CHECKING:
    from vitreous.training.tell.write import Run

MIN_JUDGED = 5  # images of a class; fewer say little about it
SMALL_SHARE = 0.5  # of the median class: a class with fewer images is small


def told(run: Run) -> Iterator[Event]:
    """All that the terminal shows of the run, facts before details."""
    yield from (fact for find in FACTS if (fact := find(run)) is not None)
    yield from _details(run.metrics)


def _alarm(run: Run) -> Fact | None:
    """That the model is no better than one answer, and what to do."""
    return Fact("alarm", run.alarm, "bad") if run.alarm is not None else None


def _right(run: Run) -> Fact:
    """The result, and between which numbers it lies."""
    m, judged = run.metrics, run.metrics.get("judged")
    if "task" in m:
        loss = "" if m["loss"] is None else f"; loss {m['loss']:.3f}"
        return Fact("done", f"learned to fill in hidden patches, {m['steps']:,} steps{loss}")
    if judged is None:
        return Fact("done", "trained, and not judged: no image was set aside", "warn")
    share = percent(judged.get("top1", judged.get("exact_match")))
    is_whole = bool((m.get("series") or {}).get("is_headline"))
    images, unseen = f"{judged['images']:,}", f"images {'of series ' * is_whole}that it had not seen"
    of = {"test": f"{images} test {unseen}", "dev": f"{images} images set aside"}.get(
        m["judged_by"], f"{images} {unseen}"
    )
    caution = "; a bit too high, since they also chose it" if m["judged_by"] == "dev" else ""
    all_labels = "all labels of " if "exact_match" in judged else ""
    return Fact("right", f"{share} of {all_labels}{of} ({percent_range(judged['interval'])}, 95 % interval){caution}")


def _series(run: Run) -> Fact | None:
    """The number that splits series, where the headline does not."""
    series = run.metrics.get("series")
    if not series or not series["is_headline"]:
        return None
    told = f"{series['count']:,} {'' if series['is_given'] else 'guessed '}by {series['by']}"
    ways = [series[name] for name in ("one_by_one", "whole")]
    if None in ways:
        return Fact("series", f"{told}, each kept whole")
    one, whole = (percent(way["accuracy"]) for way in ways)
    if run.metrics["judged_by"] != "leave-one-out":
        return Fact("series", f"{told}; frozen features: {one} one by one, {whole} whole")
    return Fact("series", f"{told}; one by one {one}, {'too high' if series['matters'] else 'no clear difference'}")


def _beside(run: Run) -> Fact | None:
    """A simpler method that did as well or better on the same images."""
    judged = run.metrics.get("judged") or {}
    rivals = [rival for rival in run.metrics.get("rivals", ()) if rival["seen"]]
    best = max(rivals, key=lambda rival: rival["right"] / rival["seen"], default=None)
    if best is None or "top1" not in judged or run.alarm is not None:
        return None
    ours, theirs = judged["top1"], best["right"] / best["seen"]
    clear = is_clear(ours, judged["images"], theirs, best["seen"])
    if best["name"].startswith(FROZEN) and (theirs > ours or not clear):
        than = "worse than" if clear else "no better than"
        return Fact(
            "beside", f"{than} {percent(theirs)} in seconds without training these layers: --policy head", "warn"
        )
    return (
        Fact("beside", f"worse than {percent(theirs)} of {best['name']}", "warn") if theirs > ours and clear else None
    )


def _trust(run: Run) -> Fact | None:
    """Which answers to trust."""
    row = Above(**found) if (found := run.metrics.get("above")) else None
    if run.alarm is not None:
        return None
    if run.metrics.get("sure_from") == 1:
        return Fact(
            "trust", f"check each answer: even the surest are not known to be {percent(SURE_SHARE, 0)} right", "warn"
        )
    if row is None or not row.answered:
        return None
    right, share = right_above(row, run.metrics["judged_by"]), percent(row.answered_share)
    return Fact("trust", f"when {confidence(row.confidence)} sure or more, {right} are right ({share} of images)")


def _unknown(run: Run) -> Fact | None:
    """What the model does with images of no class it knows: first of a class like its own, then easy ones."""
    strangers = {kind: Caught(**count) for kind, count in (run.metrics.get("strangers") or {}).items()}
    kinds, (caught, seen) = easy(strangers)
    if not seen:
        return None
    far = percent(1 - caught / seen, 0)
    new = strangers.get(LEFT_OUT)
    if new is None or not new.seen:
        return Fact("unknown", f"{far} of {kinds} get a wrong name; classes like its own were not tried")
    near = f"{percent(1 - new.caught / new.seen, 0)} of a class it never saw get a wrong name"
    text = f"{near}, {percent(new.sure / new.seen, 0)} surely" if new.sure else f"{near}; {kinds} {far}"
    return Fact("unknown", text, "warn" if 2 * new.caught < new.seen else "plain")


def _weakest(run: Run) -> Fact | None:
    """The class that is found least often, and what to do about it."""
    judged = run.metrics.get("judged") or {}
    rows = [row for row in judged.get("classes", ()) if row["images"]]
    weak = min(rows, key=lambda row: (row["recall"], row["name"]), default=None)
    if weak is None or weak["right"] == weak["images"] or run.alarm is not None:
        return None
    names = [row["name"] for row in judged["classes"]]
    mistakes = [
        (n, names[said])
        for truth, said, n in judged.get("confusion", ())
        if names[truth] == weak["name"] != names[said]
    ]
    most, taken_for = max(mistakes, key=lambda each: each[0], default=(0, ""))
    is_one_sided = 2 * most >= weak["images"] - weak["right"] > 0 and most > 1
    mostly = f", {most:,} taken for {taken_for}" if is_one_sided else ""
    if weak["name"] in run.metrics.get("of_one_group", ()):
        do = "its images are copies or one series, so none was learned before they were judged; add others"
    elif doubts := _doubts(run.metrics.get("suspects") or {}):
        do = f"{doubts}: see the report"
    elif weak["images"] < MIN_JUDGED or weak["images"] < SMALL_SHARE * median(row["images"] for row in rows):
        do = "it has few images: add some"
    elif better := run.metrics.get("better"):
        do = f"try {better}"
    else:
        do = "add images of both" if is_one_sided else "add images of it, and see its mistakes in the report"
    return Fact("weakest", f"{weak['name']}: {weak['right']:,} of {weak['images']:,} right{mostly}; {do}")


def _saved(run: Run) -> Fact:
    """Where model and report lie; the report as a link that a terminal opens."""
    if "judged" not in run.metrics:
        return Fact("saved", run.model)
    return Fact("saved", f"{Path(run.report).absolute().as_uri()} and {Path(run.model).name}")


def _next(run: Run) -> Fact:
    """What to type."""
    here = shlex.quote(run.path)
    if "task" in run.metrics:
        return Fact("next", f"vitreous fit FOLDER --weights {here}")
    return Fact("next", f"vitreous predict {here} PHOTO.jpg, or vitreous serve {here}")


FACTS: tuple[Callable[[Run], Fact | None], ...] = (
    _alarm,
    _right,
    _beside,
    _series,
    _trust,
    _unknown,
    _weakest,
    _saved,
    _next,
)


def _details(metrics: dict[str, Any]) -> Iterator[Said]:
    if "judged" in metrics:
        yield from [Said(metrics["images_used"])] if "images_used" in metrics else []
        yield Said(metrics["how_judged"])
        yield from [Said(metrics["footnote"])] if metrics.get("footnote") else []
        yield from (Said(f"{r['name']}: {percent(r['right'] / r['seen'])}") for r in metrics.get("rivals", ()))
        yield from map(Said, metrics.get("notes", ()))


def _doubts(suspects: dict[str, Any]) -> str:
    """How many labels are wrong for sure, since a copy has another label, and how many more may be wrong."""
    conflicts = suspects.get("conflicts") or ()
    sure = sum(conflict["exact"] for conflict in conflicts)
    maybe = sum(part["count"] for name in ("learned", "judged") if (part := suspects.get(name)))
    maybe += len(conflicts) - sure
    lie, each = ("image lies", "") if sure == 1 else ("images lie", " each")
    told = [f"{sure:,} {lie} under two labels{each}, one of them wrong for sure"] if sure else []
    told += [f"{maybe:,} {'more ' * bool(sure)}{'label' if maybe == 1 else 'labels'} may be wrong"] if maybe else []
    return ", and ".join(told)
