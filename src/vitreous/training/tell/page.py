"""A finished run as one page for people: the answer first, then how good, on what, how, and how to repeat it."""

from __future__ import annotations

import dataclasses
import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from vitreous.errors import DataError
from vitreous.evaluation.accuracy import ClassRow, wilson
from vitreous.images.imageset import ImageSet
from vitreous.measures.explain import overlay
from vitreous.measures.page import section as inside
from vitreous.models.track_record import SURE_SHARE
from vitreous.report import charts
from vitreous.report import page as pages
from vitreous.report.page import (
    Bar,
    Block,
    Code,
    Columns,
    Drawing,
    Drawings,
    Fold,
    Group,
    Listing,
    Note,
    Number,
    Numbers,
    Page,
    Picture,
    Pictures,
    Section,
    Shelf,
    Strip,
    Table,
    Text,
    Tone,
)
from vitreous.training.label_errors import Suspect
from vitreous.training.recipe import Recipe, Seconds
from vitreous.training.run.stage import stage_of
from vitreous.training.tell.strangers import BLANKS, CLOTHES, DRAWN, LEFT_OUT, Caught, easy
from vitreous.training.tell.summary import (
    Rival,
    StageCurves,
    Summary,
    about_conflicts,
    happenings,
    is_clear,
    right_above,
)
from vitreous.words import confidence, count, counted, duration, few, percent, sentence, unbroken

MAX_MISTAKES_SHOWN = 16  # shown as pictures
MAX_SUSPECTS_SHOWN = 8
MAX_SUSPECTS_NAMED = 300
TYPICAL_PER_CLASS, MAX_TYPICAL_CLASSES = 5, 20
TYPICAL_SIDE = 144  # pixels
MAX_MATRIX_CLASSES = 100  # classes that a matrix has room for
HARDEST_CLASSES = 40  # classes whose matrix is drawn where there are more
MAX_CONFUSIONS_SHOWN = 10  # commonest confusions
MAX_TABLE_ROWS = 20  # classes of the table before a fold
MAX_CASES_NAMED = 8  # of each kind named
FOLD_PREFIX = "fold"  # how the stages of cross-validation are called
AGAIN_TIMED = "The same again; a time is not the same number of steps each time, so the numbers will differ:"


def write_report(summary: Summary, path: str | os.PathLike[str], *, force: bool = False) -> None:
    """One self-contained page."""
    pages.write(page(summary), path, force=force)


def page(summary: Summary) -> Page:
    """The page as a value."""
    sections = [
        _accuracy(summary),
        _classes(summary),
        _confusion(summary),
        _confidence(summary),
        _strangers(summary),
        _mistakes(summary),
        _typical(summary),
        _attention(summary),
        None if summary.inspection is None else inside(summary.inspection),
        _suspects(summary),
        _doubts(summary),
        _data(summary),
        _training(summary),
        _repeat(summary),
    ]
    version = summary.record.get("versions", {}).get("vitreous", "")
    return Page(
        title=summary.name,
        over="vitreous fit",
        answer=answer(summary),
        tone="plain" if summary.alarm is None else "bad",
        lead=f"{summary.origin}. {summary.how_judged}",
        top=[
            *_alarm(summary),
            _numbers(summary),
            *_images_used(summary),
            *_footnote(summary),
            *_only_above(summary),
            *_warnings(summary),
        ],
        sections=[section for section in sections if section is not None],
        foot=f"Made by vitreous {version}. This page holds all that it shows and fetches nothing.".replace("  ", " "),
    )


def answer(summary: Summary) -> str:
    """The run in one sentence."""
    result, k = summary.result, len(summary.classes)
    if (row := result.no_better_than) is not None:
        return f"No better than always answering {row.name}."
    if summary.has_many_labels:
        return (
            f"Of 100 new images, this model names all labels of about {_hundred(result.top1)} exactly, "
            f"out of {k:,} labels that an image may carry."
        )
    return (
        f"Of 100 new images like these, this model names the right one of {k:,} classes for about "
        f"{_hundred(result.top1)}."
    )


# The top ---------------------------------------------------------------------------------------------------------


def _alarm(summary: Summary) -> Iterator[Note]:
    """Why the answer above is red, and what to do."""
    if (alarm := summary.result.alarm) is not None:
        why = alarm.removeprefix(f"{answer(summary)} ")
        check = f"Or look at the images and their labels: vitreous check {shlex.quote(summary.judged.path)}"
        yield Note(f"{why} {summary.what_helps} {check}", "bad")


def _numbers(summary: Summary) -> Numbers:
    result = summary.result
    learned, judged = summary.splits.get("train", 0), result.images
    about = f"{learned:,} to learn from, {judged:,} to judge by"
    if summary.judges_all:
        about = "each judged, each learned from"
    right, classes = ("exactly right", "labels") if summary.has_many_labels else ("right", "classes")
    interval = "between {:.1f} and {:.1f} (95\u00a0% interval)".format(*(100 * x for x in result.interval))
    shown = [
        Number(_percent(result.top1), right, "plain" if summary.alarm is None else "bad", interval),
        Number(f"{sum(summary.splits.values()):,}", "images", "plain", about),
        Number(f"{len(summary.classes):,}", classes, "plain", _class_sizes(summary)),
        Number(_brief(summary.parameters), "parameters", "plain", summary.origin),
        _time(summary),
    ]
    if result.top5 is not None:
        shown.insert(1, Number(_percent(result.top5), "among the first five answers"))
    if result.mean_average_precision is not None:
        shown.insert(1, Number(_percent(result.mean_average_precision), "mean average precision"))
    return Numbers(shown)


def _time(summary: Summary) -> Number:
    """The time that the user waited, if it is known; training is a part of it."""
    trained, place = duration(summary.seconds), f"on {summary.device}"
    if summary.total_seconds is None:
        return Number(trained, "of training", "plain", place)
    return Number(duration(summary.total_seconds), "in all", "plain", f"{trained} of training {place}")


def _images_used(summary: Summary) -> Iterator[Note]:
    """Why the numbers of images differ, where they do."""
    if summary.missing or summary.copies:
        yield Note(sentence(summary.images_used), "plain")


def _footnote(summary: Summary) -> Iterator[Note]:
    if summary.footnote is not None:
        yield Note(unbroken(summary.footnote), "plain")


def _only_above(summary: Summary) -> Iterator[Note]:
    row = summary.above
    if row is not None and row.answered:
        yield Note(
            f"Answer only above {unbroken(confidence(row.confidence))} confidence: {_percent(row.answered_share)} of "
            f"the images are answered, and {right_above(row, summary.judged_by)} of those answers are right.",
            "good" if row.right_share >= SURE_SHARE else "plain",
        )


def _warnings(summary: Summary) -> Iterator[Note]:
    """What makes the number above worth less."""
    yield from (Note(note, "warn") for note in summary.notes)
    if names := summary.of_one_group:
        yield Note(
            f"All images of {few(names)} were left out together, as copies or one series. So they were judged by "
            "models that had never seen the class, and count as wrong. Add other images of it.",
            "bad",
        )
    if summary.health is not None and summary.health.misleading:
        kinds = "; ".join(finding.what for finding in summary.health.misleading)
        yield Note(f"The data has faults that can make these numbers wrong: {kinds}.", "bad")


def _class_sizes(summary: Summary) -> str:
    counts = summary.judged.counts[: len(summary.classes)]
    low, high = (int(counts.min()), int(counts.max())) if len(counts) else (0, 0)
    return f"{low:,} of each judged" if low == high else f"{low:,} to {high:,} of each judged"


# How good --------------------------------------------------------------------------------------------------------


def _accuracy(summary: Summary) -> Section:
    result = summary.result
    rows = [charts.ShareBar(f"this model ({summary.network})", result.top1, *result.interval)]
    rows += [
        charts.ShareBar(r.name, r.right / max(r.seen, 1), *wilson(r.right, r.seen), is_ours=False)
        for r in summary.rivals
    ]
    if summary.judged_by == "leave-one-out" and summary.footnote is not None and (series := summary.series) is not None:
        right, judged = series.one_by_one or 0, series.judged
        rows.append(
            charts.ShareBar("images left out one by one", right / judged, *wilson(right, judged), is_ours=False)
        )
    if not summary.has_many_labels:
        largest = max(result.per_class, key=lambda row: row.images)
        rows.append(
            charts.ShareBar(f"always saying “{largest.name}”", largest.images / max(result.images, 1), is_ours=False)
        )
    blocks: list[Block] = [
        Text(
            f"{result.right:,} of {result.images:,} images {'exactly ' if summary.has_many_labels else ''}right. The "
            "line across a bar is its 95\u00a0% interval: where the share would likely lie with other such images."
        ),
        Drawings([Drawing(charts.bars(rows, title="share of right answers"), heading="Share of right answers")]),
    ]
    blocks += [Text(_against(summary, rival)) for rival in summary.rivals]
    if summary.better is not None:
        blocks.append(Text("The starter is small. Other weights usually help most:"))
        blocks.append(Code(f"{summary.command} {summary.better}"))
    blocks += [] if summary.about_series is None else [Text(unbroken(summary.about_series))]
    if result.left_out:
        blocks.append(Text(f"{result.left_out:,} images have no label and were not judged."))
    return Section("How good is it?", blocks, summary=_percent(result.top1))


def _against(summary: Summary, rival: Rival) -> str:
    """Whether the difference is more than chance could explain with this many images."""
    ours, theirs = summary.result.top1, rival.right / max(rival.seen, 1)
    points, clear = 100 * (ours - theirs), is_clear(ours, summary.result.images, theirs, rival.seen)
    sure = "more than chance would explain" if clear else "which chance could explain"
    word = "more" if points >= 0 else "less"
    return f"{abs(points):.1f} points {word} than {rival.name}, {sure}."


def _classes(summary: Summary) -> Section:
    known = [row for row in summary.result.per_class if row.images]
    worst = sorted(known, key=lambda row: (row.recall, row.name))
    blocks: list[Block] = [
        Text(
            "Weakest first. Found: of its images, how many were named so. Right when said: how often "
            "this answer is right."
        )
    ]
    blocks.append(_class_table(summary, worst[:MAX_TABLE_ROWS]))
    if others := worst[MAX_TABLE_ROWS:]:
        blocks.append(Fold(f"The other {len(others):,} classes", [_class_table(summary, others)]))
    if len(known) < len(summary.classes):
        blocks.append(Text(f"{len(summary.classes) - len(known):,} classes have no image among those judged."))
    short = ""
    if worst:
        is_perfect = worst[0].right == worst[0].images
        short = "all found" if is_perfect else f"weakest: {worst[0].name} {_percent(worst[0].recall, 0)}"
    return Section("Class by class", blocks, summary=short)


def _class_table(summary: Summary, rows: Sequence[ClassRow]) -> Table:
    precision = "average precision" if summary.has_many_labels else "F1"
    cells: list[list[str | Bar]] = [
        [
            row.name,
            Bar(_percent(row.recall), row.recall),
            _percent(row.precision),
            f"{row.right:,} / {row.images:,}",
            "{:.0f}–{:.0f}\u00a0%".format(*(100 * x for x in row.interval)),
            _percent(row.average_precision if summary.has_many_labels else row.f1),
        ]
        for row in rows
    ]
    return Table(
        ["class", "found", "right when said", "right / images", "found, 95\u00a0%", precision], cells, "llrrrr"
    )


def _confusion(summary: Summary) -> Section | None:
    matrix = summary.result.confusion
    if matrix is None:
        return None
    wrong = summary.result.images - summary.result.right
    if not wrong:
        return Section("What it mixes up", [Text("Nothing: every image judged was named rightly.")], summary="nothing")
    blocks: list[Block] = [
        Text("A row is what the images are, a column what it answered; colour off the diagonal is trouble.")
    ]
    kept = np.arange(len(summary.classes))
    if len(kept) > MAX_MATRIX_CLASSES:
        off = matrix - np.diag(np.diag(matrix))
        kept = np.sort(np.argsort(-(off.sum(0) + off.sum(1)), kind="stable")[:HARDEST_CLASSES])
        text = f"Of {len(summary.classes):,} classes, the {len(kept)} with most mistakes, and only what they share."
        blocks.append(Text(text))
    names = [summary.classes[i] for i in kept]
    drawing = Drawing(charts.confusion(matrix[np.ix_(kept, kept)], names, title="labels against answers"))
    pairs = summary.result.confused(MAX_CONFUSIONS_SHOWN)
    sizes = dict(zip(summary.classes, matrix.sum(1).tolist(), strict=True))
    rows: list[list[str | Bar]] = [
        [truth, said, Bar(f"{n:,}", n / pairs[0][2]), _percent(n / max(sizes[truth], 1))] for truth, said, n in pairs
    ]
    table = Table(["is", "answered", "images", "of that class"], rows, "lllr", "the commonest mistakes")
    blocks += [Columns([drawing, table])] if len(kept) <= charts.MAX_CLASSES_WITH_COUNTS else [drawing, table]
    return Section("What it mixes up", blocks, summary=f"{wrong:,} mistakes")


def _confidence(summary: Summary) -> Section:
    result = summary.result
    bins = result.calibration.bins
    chart = charts.reliability(
        [b.confidence for b in bins],
        [b.right for b in bins],
        [b.count for b in bins],
        [*(b.low for b in bins), 1.0],
        title="confidence against truth",
    )
    drawings = [
        Drawing(
            chart,
            "On the dashed line it is as often right as it says. Hollow bars hold few images.",
            "Confidence against truth",
        )
    ]
    error = 100 * result.calibration.error
    judged = result.judged
    means = ""
    if len(judged) and not summary.has_many_labels:
        means = f"On average it is {_percent(judged.confidence.mean())} sure, and {_percent(result.top1)} are right. "
    if len(judged) and not summary.has_many_labels:
        order = np.argsort(-judged.confidence, kind="stable")
        answered = np.arange(1, len(order) + 1) / len(order)
        right = np.cumsum(judged.is_right[order]) / np.arange(1, len(order) + 1)
        few = max(len(order) // 50, 1)  # shares of a handful say nothing
        line = charts.Line("right, of those answered", answered[few - 1 :], right[few - 1 :])
        curve = charts.lines(
            [line],
            title="right against answered",
            x_title="share answered, surest first",
            is_share=True,
            x_is_share=True,
        )
        half = _percent(right[(len(order) - 1) // 2])
        told = f"Of the half of the images that it is surest of, {half} are right; of all, {_percent(right[-1])}."
        drawings.append(Drawing(curve, told, "When it may stay silent"))
    blocks: list[Block] = [
        Text(
            f"{means}Compared by how sure it is, the two differ by {error:.1f} percentage points on average. "
            f"{_calibrated(summary)}"
        ),
        Drawings(drawings),
    ]
    if result.above:
        rows: list[list[str | Bar]] = [
            [
                _percent(row.confidence, 0) if row.confidence else "always answer",
                Bar(_percent(row.answered_share), row.answered_share),
                f"{_percent(row.right_share)} ({row.right:,} of {row.answered:,})",
            ]
            for row in result.above
            if row.answered
        ]
        blocks.append(Table(["answer only above", "answered", "right of those"], rows, "llr"))
        if summary.above is not None and summary.judged_by != "test":
            limit, share = confidence(summary.above.confidence), percent(SURE_SHARE, 0)
            why = f"that {share} would be right even if luck helped here (the lower end of the 95\u00a0% interval)"
            blocks.append(Text(f"The table counts these images alone. The line at the top, {limit}, asks more: {why}."))
    return Section("Can its confidence be trusted?", blocks, summary=f"off by {error:.1f} points")


def _strangers(summary: Summary) -> Section | None:
    """Does it notice images of something else? First those that look like its classes."""
    if summary.unlike is None:
        return None
    counts = dict(sorted(summary.strangers.items(), key=lambda each: each[0] != LEFT_OUT))
    rows: list[list[str | Bar]] = [
        [
            f"{kind} ({count.seen:,})",
            Bar(_percent(count.caught / count.seen, 0), count.caught / count.seen),
            "" if count.sure is None else _percent(count.sure / count.seen, 0),
        ]
        for kind, count in counts.items()
        if count.seen
    ]
    false_alarms = _percent(summary.unlike / max(len(summary.judged), 1))
    text = (
        "An image that resembles no class gets the answer \u201cnone of these\u201d. "
        f"{_near(counts.get(LEFT_OUT))}{_far(counts)} It also says so of {false_alarms} of the images judged; the "
        "threshold was set where about 95\u00a0% of images held out pass."
    )
    if summary.sure_from == 1:
        text += " The model is never sure of an answer: even the surest are not known to be right often enough."
    kinds, (caught, seen) = easy(counts)
    new = counts.get(LEFT_OUT)
    near = f"{_percent(1 - new.caught / new.seen, 0)} of a new class misnamed" if new is not None and new.seen else ""
    table = Table(["strangers", "called none of these", "given a sure answer"], rows, "llr")
    far = f"{_percent(1 - caught / seen, 0)} of {kinds} misnamed" if seen else ""
    short = near or far  # the contents have little room
    return Section("Does it notice strangers?", [Text(text), table], summary=short)


def _near(left_out: Caught | None) -> str:
    """What becomes of images of a class that the model never saw, in a sentence or two."""
    if left_out is None or not left_out.seen:
        return "Images of a class near its own were not tried; expect that many get the name of a class it knows."
    named = _percent(1 - left_out.caught / left_out.seen, 0)
    sure = "" if left_out.sure is None else f"; {_percent(left_out.sure / left_out.seen, 0)} of all get a sure answer"
    return (
        f"It noticed {left_out.caught:,} of {left_out.seen:,} images when each class was left out in turn: {named} of "
        f"the images of a class it never saw get the name of a class it knows{sure}."
    )


def _far(counts: Mapping[str, Caught]) -> str:
    """The strangers that come with vitreous."""
    names = {DRAWN: "drawings", CLOTHES: "small grey pictures of clothes", BLANKS: "images of one colour"}
    blank = counts.get(BLANKS)
    ruled = ", which a rule finds" if blank is not None and blank.caught == blank.seen else ""
    kinds = [f"{words}{ruled * (kind == BLANKS)}" for kind, words in names.items() if kind in counts]
    return f" Strangers that come with vitreous are easy: {'; '.join(kinds)}." if kinds else ""


def _calibrated(summary: Summary) -> str:
    if summary.temperature == 1:
        return ""
    word = "over" if summary.temperature > 1 else "under"
    on = "left-out answers" if summary.judges_all or summary.recipe.is_solved else "dev"
    return (
        f"That is with a temperature of {summary.temperature:.3g}, fitted on {on}, where it was {word}confident "
        "without."
    )


# Pictures --------------------------------------------------------------------------------------------------------


def _mistakes(summary: Summary) -> Section | None:
    judged = summary.result.judged
    wrong = np.flatnonzero(~judged.is_right)
    if not len(wrong):
        return None
    order = wrong[np.argsort(-judged.confidence[wrong], kind="stable")]
    first = judged.rows[order[:MAX_MISTAKES_SHOWN]].tolist()
    groups = [Group([_picture(summary, summary.judged, place, *_said(summary, place))]) for place in first]
    left = len(order) - len(groups)
    more = f"and {left:,} mistakes more, less sure than these" if left else ""
    text = Text("The mistakes it was surest of. Some are its own; some may be labels that are wrong.")
    return Section("The most confident mistakes", [text, Pictures(groups, more)], summary=f"{len(order):,}")


def _typical(summary: Summary) -> Section | None:
    if summary.has_many_labels:
        return None
    judged, rows = summary.result.judged, summary.result.per_class
    hard = sorted((k for k, row in enumerate(rows) if row.right), key=lambda k: (rows[k].recall, k))
    shown = sorted(hard[:MAX_TYPICAL_CLASSES])
    order = np.argsort(-judged.confidence, kind="stable")
    order = order[judged.is_right[order]]
    strips = []
    for k in shown:
        places = judged.rows[order[judged.answer[order] == k][:TYPICAL_PER_CLASS]].tolist()
        about = f"{rows[k].right:,} of {rows[k].images:,} found"
        pictures = [_picture(summary, summary.judged, i, summary.judged.name(i), side=TYPICAL_SIDE) for i in places]
        strips.append(Strip(summary.classes[k], pictures, about))
    left = len(hard) - len(shown)
    more = f"The {len(shown)} weakest classes; {left:,} others are left out." if left else ""
    text = Text(
        "What the model takes for the best examples of each class: those it names rightly with most confidence."
    )
    return Section("The most typical images", [text, Shelf(strips, more)])


def _attention(summary: Summary) -> Section | None:
    attention = summary.attention
    if attention is None:
        return None
    heading = "Where it looks"
    if not attention.looks:
        return Section(heading, [Text(attention.why_not or "No image could be shown.")])
    groups = []
    for look in attention.looks:
        pair = [
            pages.picture(look.seen, *_said(summary, look.place)),
            pages.picture(overlay(look), f"strongest patch: {look.peak:.1f} × the mean"),
        ]
        groups.append(Group(pair))
    text = (
        "Which parts of an image the answer was made from, by following attention back through all layers (attention "
        "rollout): light is much, dark is little, each image on a scale of its own. It shows where information came "
        "from, not why the answer was given."
    )
    return Section(heading, [Text(text), Pictures(groups)])


def _suspects(summary: Summary) -> Section | None:
    if summary.has_many_labels:
        return None
    found = summary.suspects
    heading = "Labels that are wrong, or may be" if summary.conflicts else "Labels that may be wrong"
    unasked = [] if summary.judges_all or summary.doubts is not None else _unasked(summary)
    sure = list(_conflicts(summary))
    pairs = f"{counted(len(summary.conflicts), 'image')} under two labels" if sure else ""
    if summary.alarm is not None:
        text = Text("Not asked: a model that is no better than one answer knows nothing about labels.")
        return Section(heading, [*sure, text, *unasked], tone="bad" if sure else "plain", summary=pairs or "not asked")
    if not found:
        result = summary.result
        wrong = result.images - result.right
        text = Text(_no_doubts(wrong, result.images, "the model", is_other=bool(sure)))
        tone: Tone = "bad" if sure else "plain" if wrong else "good"
        return Section(heading, [*sure, text, *unasked], tone=tone, summary=pairs or "none doubted")
    text = Text(
        "To the model each of these images, which were judged, looks more like another class than like its own "
        "(confident learning), and its label is more likely wrong than right. Look at them, the most doubtful first. "
        "Nothing was changed."
    )
    blocks = [*sure, text, *_doubtful(summary, summary.judged, found, len(found)), *unasked]
    told = f"{len(found):,} of {summary.result.images:,}"
    return Section(
        heading, blocks, tone="bad" if sure else "warn", summary=f"{pairs}, {told} doubted" if sure else told
    )


def _conflicts(summary: Summary) -> Iterator[Block]:
    """Images under two labels: no model is needed to know that one is wrong, but it says which it leans to."""
    data = summary.health.data if summary.health is not None else None
    if data is None or not summary.conflicts:
        return
    yield Text(
        f"{'These images are' if len(summary.conflicts) > 1 else 'This image is'} there twice, under two labels: "
        f"{about_conflicts(summary.conflicts)}. Decide, and delete the other copy."
    )
    judged = {name: place for place, name in enumerate(summary.judged.names)}
    groups = []
    for conflict in summary.conflicts[:MAX_SUSPECTS_SHOWN]:
        pictures = [
            _picture(summary, data, place, f"labelled {label}", _leaning(summary, judged.get(name)))
            for place, name, label in zip(conflict.places, conflict.names, conflict.labels, strict=True)
        ]
        groups.append(Group(pictures, "the same pixels" if conflict.is_exact else "nearly the same image"))
    yield Pictures(groups)
    if len(summary.conflicts) > len(groups):
        named = [
            " = ".join(f"{name} ({label})" for name, label in zip(conflict.names, conflict.labels, strict=True))
            for conflict in summary.conflicts[:MAX_SUSPECTS_NAMED]
        ]
        left = len(summary.conflicts) - len(named)
        yield Listing(f"All {len(summary.conflicts):,} by name", named, f"and {left:,} more" if left else "")


def _leaning(summary: Summary, place: int | None) -> str:
    """What the model says about a judged image; nothing if it has learned nothing."""
    if place is None or summary.alarm is not None:
        return "not judged" if place is None else ""
    p = np.asarray(summary.probabilities[place], np.float64)
    return f"the model says {summary.classes[int(p.argmax())]} ({_sure(float(p.max()))})"


def _no_doubts(wrong: int, images: int, whose: str, *, is_other: bool = False) -> str:
    """wrong: answers that are not the label.  is_other: about images other than those under two labels."""
    none = f"No {'other ' * is_other}label is doubted: for each, a mistake of {whose} is likelier than a wrong label."
    if not wrong:
        return none.partition(":")[0] + "."
    share = _percent(wrong / images)
    return (
        f"{none} But it is wrong about {share} of the images, so it misses wrong labels too: look at its surest "
        "mistakes yourself."
    )


def _unasked(summary: Summary) -> list[Block]:
    """Why the labels learned from were not doubted, and how to ask."""
    why = (
        "the model has learned them, and it began from scratch, so that no frozen features could judge them either"
        if summary.beginning == "from scratch"
        else "the model has learned them, and this run asked no frozen features about them"
    )
    path = shlex.quote(summary.judged.path)
    return [
        Text(f"Labels of the {summary.splits.get('train', 0):,} images learned from were not doubted: {why}. To ask:"),
        Code(f"vitreous check {path} --weights starter --out check.html"),
    ]


def _doubts(summary: Summary) -> Section | None:
    doubts, heading = summary.doubts, "Training labels that may be wrong"
    if doubts is None or summary.learned is None:
        return None
    part = f", a part of {doubts.of:,}," if doubts.images < doubts.of else ""
    dev = " those of dev among them," if summary.splits.get("dev") else ""
    how = (
        f"Of the images learned from,{dev} {doubts.images:,}{part} were judged when left out of frozen features: by a "
        "closed-form classifier on what the network with its first weights reads of the others, which names "
        f"{_percent(doubts.right / max(doubts.images, 1))} as they are labelled."
    )
    if not doubts.count:
        wrong = doubts.images - doubts.right
        none = _no_doubts(wrong, doubts.images, "the classifier")
        tone: Tone = "plain" if wrong else "good"
        return Section(heading, [Text(f"{none} {how}")], tone=tone, summary="none doubted")
    text = Text(
        f"{how} These look more like images that are called otherwise, and their labels are more likely wrong than "
        "right. The most doubtful come first. A wrong label among them was learned: mend it and train again."
    )
    blocks = [text, *_doubtful(summary, summary.learned, summary.doubted, doubts.count)]
    return Section(heading, blocks, tone="warn", summary=f"{doubts.count:,} of {doubts.images:,}")


def _doubtful(summary: Summary, images: ImageSet, found: Sequence[Suspect], count: int) -> list[Block]:
    """The first suspects as pictures, and more by name.  count: all of them; `found` may hold only the first."""
    shown = found[:MAX_SUSPECTS_SHOWN]
    groups = [Group([_picture(summary, images, s.place, *_doubt(summary, s))]) for s in shown]
    named = [f"{images.name(s.place)}: {', '.join(_doubt(summary, s))}" for s in found[:MAX_SUSPECTS_NAMED]]
    blocks: list[Block] = [Pictures(groups)]
    if count > len(shown):
        left = count - len(named)
        more = f"and {left:,} more" if left else ""
        blocks.append(
            Listing(f"All {count:,} by name" if not left else f"The first {len(named):,} by name", named, more)
        )
    return blocks


def _doubt(summary: Summary, suspect: Suspect) -> tuple[str, str]:
    """What the image may be, and how it is labelled."""
    given, suggested = summary.classes[suspect.given], summary.classes[suspect.suggested]
    return f"perhaps {suggested} ({_sure(suspect.confidence)})", f"labelled {given} ({_sure(suspect.own)})"


def _picture(
    summary: Summary, images: ImageSet, place: int, title: str, about: str = "", *, side: int = pages.SIDE
) -> Picture:
    """about: followed by the file and its folder."""
    where = "/".join(images.name(place).split("/")[-2:])
    try:
        pixels = images.read(place)
    except (OSError, ValueError, DataError):
        pixels = None  # the frame says so
    return pages.picture(pixels, title, f"{about} · {where}" if about else "", side=side)


def _said(summary: Summary, place: int) -> tuple[str, str]:
    """The answer to an image, and what it is."""
    p, label = np.asarray(summary.probabilities[place], np.float64), summary.judged.labels[place]
    if summary.has_many_labels:
        said = [f"{summary.classes[k]} {_sure(p[k])}" for k in np.flatnonzero(p >= 0.5)]
        is_so = [summary.classes[k] for k in np.flatnonzero(label > 0)]
        return f"says {', '.join(said) or 'nothing'}", f"is {', '.join(is_so) or 'nothing'}"
    first = int(p.argmax())
    named = f"labelled {summary.classes[label]} ({_sure(p[label])})" if label >= 0 else "not labelled"
    return f"says {summary.classes[first]} ({_sure(p[first])})", "right" if first == label else named


# On what, and how ------------------------------------------------------------------------------------------------


def _data(summary: Summary) -> Section:
    data, health = summary.judged, summary.health
    rows = [
        ["images", summary.images_used],
        ["classes", f"{len(summary.classes):,}"],
        ["kind", data.kind],
        ["content id", data.content_id],
    ]
    blocks: list[Block] = [Table(["", ""], rows), *(Text(note) for note in summary.data_notes)]
    if health is None:
        blocks.append(Text("The data was not checked; vitreous check does it."))
        return Section("The data", blocks)
    tone: Tone = "good"
    brief, verdict = "nothing found", "The check found nothing wrong."
    if faults := len(health.faults):
        tone, brief = "bad", f"{faults} kinds of fault" if faults > 1 else "1 kind of fault"
        verdict = (
            "The check found faults that can make the numbers wrong."
            if health.misleading
            else "The check found files that cannot be read. They are left out."
        )
    elif notices := len(health.notices):
        tone, brief = "plain", f"{notices} kinds of notice" if notices > 1 else "1 notice"
        verdict = "The check found no fault, and some things worth a look."
    blocks.append(Note(f"{verdict} {sentence(health.read)}", tone))
    if health.findings:
        found = [[f.severity, sentence(f.what), f.do] for f in health.findings]
        blocks.append(Table(["", "found", "what to do"], found))
        for finding in health.findings:
            named = [str(case) for case in finding.cases[:MAX_CASES_NAMED]]
            left = len(finding.cases) - len(named)
            more = f"and {left:,} more; vitreous check lists all" if left else ""
            blocks.append(Listing(f"{finding.title}: which", named, more))
        blocks.append(Text("With pictures:"))
        blocks.append(Code(f"vitreous check {shlex.quote(data.path)} --out check.html"))
    return Section("The data", blocks, tone=tone, summary=brief)


def _training(summary: Summary) -> Section:
    recipe = summary.recipe
    source = f" ({recipe.source})" if recipe.source else ""
    rows, columns = summary.image_size
    folds = [stage for stage in summary.stages if stage.name.startswith(FOLD_PREFIX)]
    kept = [stage_of(trial.rate) for trial in summary.trials if trial.is_kept]
    others = [stage for stage in summary.stages if summary.trials and stage.name not in kept]
    main = [stage for stage in summary.stages if stage not in folds and stage not in others]
    steps = sum(stage.steps for stage in main)
    length = f"{recipe.length}" + (f", {steps:,} steps" if steps else "") + f" of {recipe.batch:,} images"
    facts = [
        ["recipe", f"{recipe.name}{source}"],
        ["model", f"{summary.model}, {summary.parameters:,} parameters, {count(summary.macs)} multiply-adds an image"],
        ["begun", summary.beginning],
        ["image size", f"{rows} × {columns} pixels"],
        ["length", "each image once, no steps" if recipe.is_solved else length],
        *([["penalty", "its strength was chosen with all images"]] if summary.judged_by == "leave-one-out" else []),
        ["time", summary.time],
        ["on", summary.device],
    ]
    blocks: list[Block] = [Text(sentence(line)) for line in summary.reasons]
    blocks += [Table(["", ""], facts), *(Text(line) for line in happenings(summary.events))]
    blocks += [Drawings(list(_curves(stage, f"{stage.name}: " if len(main) > 1 else ""))) for stage in main]
    if summary.trials:
        blocks.append(_trials(summary))
    for some, what in ((others, "other rates"), (folds, "models that cross-validation trained")):
        if some:
            inner = [Drawings(list(_curves(stage, f"{stage.name}: "))) for stage in some]
            blocks.append(Fold(f"The curves of the {len(some)} {what}", inner))
    settings = list(_settings(recipe))
    changed = sum(1 for row in settings if row[1] != row[2])
    table = Table(["setting", "value", "usual", "meaning"], settings)
    blocks.append(Fold(f"Every setting ({changed} of {len(settings)} are not the usual ones)", [table]))
    return Section("How it was trained, and why so", blocks, summary=recipe.name)


def _trials(summary: Summary) -> Table:
    """The sweep: each rate, and its result on dev."""
    rows: list[list[str | Bar]] = [
        [
            f"{trial.rate:.3g}" if trial.rate else "none: the head as solved",
            Bar(_percent(trial.accuracy), trial.accuracy),
            f"{trial.loss:.3f}",
            "kept" * trial.is_kept,
        ]
        for trial in summary.trials
    ]
    return Table(["rate", "right on dev", "loss on dev", ""], rows, "rlrl", "the sweep of learning rates")


def _curves(stage: StageCurves, name: str) -> Iterator[Drawing]:
    x = "epochs"
    mark = None if stage.kept is None else (stage.kept, "kept")
    loss = [charts.Line("training", stage.epochs, stage.loss)]
    right = [charts.Line("training", stage.epochs, stage.accuracy)] if np.nansum(stage.accuracy) > 0 else []
    if stage.dev_epochs:
        loss.insert(0, charts.Line("dev", stage.dev_epochs, stage.dev_loss, has_points=True))
        right.insert(0, charts.Line("dev", stage.dev_epochs, stage.dev_accuracy, has_points=True))
    if right:
        yield Drawing(
            charts.lines(right, title="accuracy while training", x_title=x, is_share=True, mark=mark),
            "On training images as they were shown, changed at random; on dev as they are.",
            f"{name}Right answers",
        )
    yield Drawing(charts.lines(loss, title="loss while training", x_title=x, is_log=True, mark=mark), "", f"{name}Loss")
    rate = charts.Line("learning rate", stage.epochs, stage.rate)
    yield Drawing(charts.lines([rate], title="learning rate", x_title=x), "", f"{name}Learning rate")


def _settings(recipe: Recipe) -> Iterator[list[str]]:
    """name, value, usual value, meaning of every option, augmentation's among them."""
    usual = Recipe()
    for ours, theirs in ((recipe, usual), (recipe.augment, usual.augment)):
        for f in dataclasses.fields(ours):
            if f.name not in ("augment", "name", "source"):
                value, other = getattr(ours, f.name), getattr(theirs, f.name)
                yield [f.name, _plain(value), _plain(other), f.metadata.get("meaning", "augmentation")]


def _plain(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, tuple):
        return ", ".join(_plain(part) for part in value) or "none"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _repeat(summary: Summary) -> Section:
    versions = summary.record.get("versions", {})
    rows = [[name, str(value)] for name, value in versions.items() if value]
    rows += [["seed", str(summary.recipe.seed)], ["data", summary.judged.content_id]]
    if commit := summary.record.get("commit"):
        rows.append(["commit", str(commit)])
    use = (
        f"vitreous predict {shlex.quote(summary.folder)} photo.jpg    # on the command line\n\n"
        "import vitreous    # in Python\n\n"
        f"model = vitreous.load({summary.folder!r})\n"
        'for answer in vitreous.predict(model, ["photo.jpg"]):\n    print(answer)'
    )
    blocks: list[Block] = [
        Text(AGAIN_TIMED if isinstance(summary.recipe.length, Seconds) else "The same numbers again:"),
        Code(summary.command),
        Table(["", ""], rows),
        Text("The model in use:"),
        Code(use),
    ]
    return Section("Do it again, and use it", blocks)


# Words -----------------------------------------------------------------------------------------------------------


def _percent(share: float | None, digits: int = 1) -> str:
    return unbroken(percent(share, digits))


def _sure(p: float) -> str:
    """A confidence; nothing is called impossible or certain."""
    if p < 0.005:
        return "<\u00a01\u00a0%"
    return ">\u00a099\u00a0%" if p > 0.995 else _percent(p, 0)


def _hundred(share: float) -> str:
    """A share of a hundred, with a digit more near 0 and 100."""
    return f"{100 * share:.1f}" if 0 < share < 0.015 or 0.985 < share < 1 else f"{100 * share:.0f}"


def _brief(n: int) -> str:
    """2 digits and a letter: 5.7 M."""
    return f"{n:,}" if n < 1e5 else f"{n / 1e6:.2g}\u00a0M" if n < 1e8 else f"{n / 1e6:,.0f}\u00a0M"
