"""How often a model is right, in exact counts over all images, never a mean of batch means.

N images   K classes
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitreous.errors import DataError
from vitreous.evaluation import calibration
from vitreous.evaluation.calibration import Above, Calibration, Numbers
from vitreous.evaluation.tie_breaking import TIE_FLOAT32, TIE_FLOAT64, best_class, best_classes, equal_within
from vitreous.report.page import Note, Table, fragment
from vitreous.words import aligned, percent, percent_range, sentence, shortened

Counts = NDArray[np.int64]
TOP_FIVE_ABOVE = 10  # top-5 accuracy says little for this many classes or fewer
Z95 = 1.959963984540054  # standard normal quantile of a 95 % interval
MAX_CLASSES_SHOWN = 12  # classes that `str` lists
COUNT_COLUMNS = 48  # columns of the table of classes, without the names
MIN_NAME_COLUMNS = 8
ONE_ANSWER = "It answers nothing else."
HAS_LEARNED = "the model has learned from these very images"


def above_chance(accuracy: float, chance: float) -> float:
    """Accuracy with chance taken off: 0 for guessing, 1 for all right."""
    return (accuracy - chance) / (1 - chance)


def wilson(right: float, seen: float) -> tuple[float, float]:
    """The 95 % interval of a proportion (Wilson 1927): valid for few images too, and always within 0 … 1."""
    if not seen:
        return 0.0, 1.0
    p, z2 = right / seen, Z95**2 / seen
    middle, half = p + z2 / 2, Z95 * math.sqrt(p * (1 - p) / seen + z2 / (4 * seen))
    return max((middle - half) / (1 + z2), 0.0), min((middle + half) / (1 + z2), 1.0)


def is_no_better(right: int, frequent: int, images: int) -> bool:
    """Whether a model's 95 % interval reaches down to the share of the most frequent class."""
    return wilson(right, images)[0] <= frequent / max(images, 1)


def independent(is_right: NDArray[np.bool_], groups: Counts) -> float:
    """How many independent images would tell as much as these, which come in groups: p (1 − p) / variance of p.

    The variance between groups, G / (G − 1) Σ_g (Σ_{i in g} (x_i − p))² / n², is larger if images of one group are
    right or wrong together.
    """
    n, p = len(is_right), float(is_right.mean())
    sums = np.bincount(np.unique(groups, return_inverse=True)[1], weights=is_right - p)
    variance = len(sums) / max(len(sums) - 1, 1) * float((sums**2).sum()) / n**2
    return min(max(p * (1 - p) / variance, 1.0), n) if variance else float(len(sums))


@dataclass(frozen=True)
class ClassRow:
    """One class: its images, how many were right, and how often the model answered it."""

    name: str
    images: int
    right: int
    said: int
    average_precision: float | None = None  # only with several labels per image

    @property
    def recall(self) -> float:
        """The share of its images answered right; nan without images."""
        return self.right / self.images if self.images else math.nan

    @property
    def precision(self) -> float:
        """The share of its answers that were right; nan if it was never the answer."""
        return self.right / self.said if self.said else math.nan

    @property
    def f1(self) -> float:
        """The harmonic mean of both, 2 right / (images + said); nan if both are 0."""
        return 2 * self.right / (self.images + self.said) if self.images + self.said else math.nan

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % interval of the recall."""
        return wilson(self.right, self.images)

    def to_json(self) -> dict[str, Any]:
        body = {"name": self.name, "images": self.images, "right": self.right, "said": self.said}
        body |= {name: _number(getattr(self, name)) for name in ("precision", "recall", "f1")}
        return body | ({} if self.average_precision is None else {"average_precision": _number(self.average_precision)})


@dataclass(frozen=True, eq=False)
class Judged:
    """One row per labelled image, in the order of the logits."""

    rows: Counts  # row numbers in the logits
    truth: Counts  # the class it counts for; −1 with several labels
    answer: Counts  # the class with the largest logit
    confidence: NDArray[np.float64]
    score: Numbers
    is_right: NDArray[np.bool_]
    names: tuple[str, ...] = ()  # of the images, if known

    def __len__(self) -> int:
        return len(self.rows)


@dataclass(frozen=True, eq=False)
class Result:
    """What `measure` counted.

    right: images whose first answer is (one of) their label(s); with `answers` several, images whose labels are exactly
    those with a probability of at least 1/2.
    """

    classes: tuple[str, ...]
    images: int  # with a label
    right: int
    right_in_five: int | None  # only above 10 classes
    left_out: int  # images without a label
    loss: float  # negative log likelihood at the temperature, mean over images
    temperature: float
    per_class: tuple[ClassRow, ...]
    calibration: Calibration
    above: tuple[Above, ...]
    judged: Judged
    confusion: Counts | None = None  # K K: rows are labels, columns answers; None with several labels
    unlike: int | None = None  # labelled images below the threshold
    mean_average_precision: float | None = None  # over classes with images; only with several labels
    about: dict[str, Any] = field(default_factory=dict)  # which model, which images, how
    notes: tuple[str, ...] = ()
    independent: float | None = None  # images that the interval counts, if they come in groups

    @property
    def top1(self) -> float:
        return self.right / self.images if self.images else math.nan

    @property
    def top5(self) -> float | None:
        return None if self.right_in_five is None or not self.images else self.right_in_five / self.images

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % interval of `top1`."""
        seen = self.images if self.independent is None else self.independent
        return wilson(self.right * seen / max(self.images, 1), seen)

    @property
    def no_better_than(self) -> ClassRow | None:
        """The class that it might as well always answer; None for a model that tells classes apart.

        The only class that it answers; else the most frequent one, if the 95 % interval reaches down to its share.
        Images of a single class cannot show it.
        """
        if self.confusion is None or self.right == self.images or sum(row.images > 0 for row in self.per_class) < 2:
            return None
        answered = max(self.per_class, key=lambda row: row.said)
        frequent = max(self.per_class, key=lambda row: row.images)
        if answered.said == self.images:
            return answered
        return frequent if is_no_better(self.right, frequent.images, self.images) else None

    @property
    def alarm(self) -> str | None:
        """A warning that the images are not new, or the model no better than one answer, with the reason; else None."""
        if told := [note for note in self.notes if note.startswith(HAS_LEARNED)]:
            return sentence(told[0])
        if (row := self.no_better_than) is None:
            return None
        why = f"That answer is right for {percent(row.images / self.images)} of these images; this model for "
        why += f"{percent(self.top1)} ({percent_range(self.interval)}, 95 % interval)."
        return f"No better than always answering {row.name}. {ONE_ANSWER if row.said == self.images else why}"

    @property
    def has_several(self) -> bool:
        return self.mean_average_precision is not None

    def confused(self, most: int = 5) -> list[tuple[str, str, int]]:
        """(label, answer, images) of the most common mistakes."""
        if self.confusion is None:
            return []
        wrong = self.confusion.copy()
        np.fill_diagonal(wrong, 0)
        order = np.argsort(-wrong, axis=None, kind="stable")[:most]
        pairs = [divmod(int(k), len(self.classes)) for k in order]
        return [(self.classes[i], self.classes[j], int(wrong[i, j])) for i, j in pairs if wrong[i, j]]

    def to_json(self) -> dict[str, Any]:
        body: dict[str, Any] = dict(self.about)
        body |= {"images": self.images, "right": self.right, "left_out": self.left_out}
        body["exact_match" if self.has_several else "top1"] = _number(self.top1)
        body["interval"] = list(self.interval)
        if self.right_in_five is not None:
            body |= {"right_in_five": self.right_in_five, "top5": self.top5}
        if self.mean_average_precision is not None:
            body["mean_average_precision"] = _number(self.mean_average_precision)
        body |= {"loss": _number(self.loss), "temperature": self.temperature, "unlike": self.unlike}
        body["calibration"] = self.calibration.to_json()
        body["answer_only_above"] = [row.to_json() for row in self.above]
        body["classes"] = [row.to_json() for row in self.per_class]
        if self.confusion is not None:
            found = np.argwhere(self.confusion)
            body["confusion"] = [[int(i), int(j), int(self.confusion[i, j])] for i, j in found]  # truth, answer, images
        return body | {"notes": list(self.notes)}

    def lines(self) -> Iterator[tuple[str, str]]:
        """(title, text) pairs in reading order."""
        how = f"{self.right:,} of {self.images:,}; 95 % interval {percent_range(self.interval)}"
        yield "all labels right" if self.has_several else "right", f"{percent(self.top1)} ({how})"
        if used := self.about.get("images_used"):
            yield "images", used
        if self.right_in_five is not None:
            yield "in first five", f"{percent(self.top5)} ({self.right_in_five:,} of {self.images:,})"
        if self.mean_average_precision is not None:
            yield "mean average precision", percent(self.mean_average_precision)
        yield "loss", f"{self.loss:.4f}"
        error = f"off by {100 * self.calibration.error:.1f} points on average"
        yield "confidence", error + (f" (temperature {self.temperature:.3g})" if self.temperature != 1 else "")
        if self.unlike is not None:
            yield "none of these", f"{self.unlike:,} of {self.images:,}"
        if rows := [row for row in self.above if row.confidence in (0.5, 0.9) and row.answered]:
            yield "answer only above", "; ".join(str(row).removeprefix("answer only above ") for row in rows)
        if pairs := self.confused(3):
            yield "most confused", "; ".join(f"{truth} for {said} ({n:,})" for truth, said, n in pairs)
        for note in self.notes:
            if sentence(note) != self.alarm:
                yield "note", note

    def weakest(self, most: int = MAX_CLASSES_SHOWN) -> list[ClassRow]:
        """The classes with images, in order; if there are many, those with the lowest F1."""
        rows = [row for row in self.per_class if row.images]
        return rows if len(rows) <= most else sorted(rows, key=lambda row: (row.f1, row.name))[:most]

    def __str__(self) -> str:
        return self.text()

    __repr__ = __str__  # at a prompt

    def text(self, columns: int = 80) -> str:
        """As text; the table of classes is at most `columns` wide, and long names are cut."""
        head, *rows = self._table()
        room = max(columns - COUNT_COLUMNS, MIN_NAME_COLUMNS)
        short = [[shortened(name, room), *rest] for name, *rest in rows]
        out = [*aligned(list(self.lines()), "ll"), "", *aligned([head, *short], "lrrrrr")]
        known = sum(1 for row in self.per_class if row.images)
        first = [] if self.alarm is None else [self.alarm, ""]
        last = [f"the {len(rows)} weakest of {known:,} classes"] if len(rows) < known else []
        return "\n".join([*first, *out, *last])

    def _repr_html_(self) -> str:
        head, *rows = self._table()
        alarm = [] if self.alarm is None else [Note(self.alarm, "bad")]
        return fragment([*alarm, Table(["", ""], list(self.lines())), Table(head, rows, "lrrrrr")])

    def _table(self) -> list[list[str]]:
        """Head and weakest classes."""
        shares = [map(percent, (row.precision, row.recall, row.f1)) for row in self.weakest()]
        rows = zip(self.weakest(), shares, strict=True)
        return [
            ["class", "images", " right", "precision", "recall", "f1"],
            *([row.name, f"{row.images:,}", f"{row.right:,}", *each] for row, each in rows),
        ]


def measure(
    logits: Numbers,
    labels: NDArray[np.integer[Any]],
    classes: Sequence[str],
    *,
    temperature: float = 1.0,
    threshold: float | None = None,
    scores: Numbers | None = None,
    real: Sequence[Sequence[int]] | None = None,
) -> Result:
    """Compare logits with labels.

    logits: N K.  labels: N class numbers, −1 for none; or N K of 0 and 1, where each class is measured by itself.
    real: the right labels of each image (such as ReaL labels, arXiv 2006.07159), in place of `labels`; an image with
    none is left out. An image counts for the class it was answered with if that is right, else for its first label.
    scores: N, how much each image resembles what the model learned; by default its largest logit.
    """
    logits = np.asarray(logits)
    _check(logits, labels, classes, real)
    scores = calibration.score(logits) if scores is None else np.asarray(scores, np.float64)
    if real is None and np.ndim(labels) == 2:
        return _measure_several(logits, np.asarray(labels), tuple(classes), temperature, threshold, scores)
    rows, allowed = _flat(labels if real is None else real)
    kept = np.unique(rows)
    judged, right5, loss = _judge(logits, scores, kept, np.searchsorted(kept, rows), allowed, temperature)
    k = len(classes)
    confusion = np.bincount(judged.truth * k + judged.answer, minlength=k * k).reshape(k, k)
    counts = zip(
        classes, confusion.sum(1).tolist(), confusion.diagonal().tolist(), confusion.sum(0).tolist(), strict=True
    )
    return Result(
        classes=tuple(classes),
        images=len(judged),
        right=int(judged.is_right.sum()),
        right_in_five=right5 if k > TOP_FIVE_ABOVE else None,
        left_out=len(logits) - len(judged),
        loss=loss,
        temperature=temperature,
        per_class=tuple(ClassRow(*row) for row in counts),
        calibration=calibration.reliability(judged.confidence, judged.is_right),
        above=tuple(calibration.above(judged.confidence, judged.is_right, x) for x in calibration.CONFIDENCES),
        judged=judged,
        confusion=confusion,
        unlike=None if threshold is None else int((judged.score < threshold).sum()),
    )


def _check(logits: Numbers, labels: Any, classes: Sequence[str], real: Sequence[Sequence[int]] | None) -> None:
    """Refuse logits, labels and classes that do not fit together."""
    if logits.ndim != 2 or logits.shape[1] != len(classes):
        raise DataError(f"logits of shape {logits.shape} do not answer {len(classes)} classes; give N x {len(classes)}")
    n, k = logits.shape
    given = len(labels) if real is None else len(real)
    if given != n:
        raise DataError(f"there are {n} rows of logits and labels of {given} images; give one for each")
    if not np.isfinite(logits).all():
        raise DataError("the logits are not all finite, so the model is broken; go back to an earlier state of it")
    top = max((max(row, default=-1) for row in real), default=-1) if real is not None else np.max(labels, initial=-1)
    if real is not None and any(c < 0 for row in real for c in row):
        raise DataError("labels below 0 name no class; leave an image out with an empty list")
    wide = real is None and np.ndim(labels) == 2
    if (np.shape(labels)[1] != k) if wide else top >= k:
        what = f"{np.shape(labels)[1]} columns of labels" if wide else f"class number {int(top)}"
        raise DataError(f"{what} and {k} classes do not belong together; give the labels of this model's classes")


def _flat(labels: Any) -> tuple[Counts, Counts]:
    """(row, class) of every right label, by row."""
    if isinstance(labels, np.ndarray):
        rows = np.flatnonzero(labels >= 0)
        return rows, labels[rows].astype(np.int64)
    once = [list(dict.fromkeys(row)) for row in labels]  # a repeated label counts once
    return np.repeat(np.arange(len(once)), [len(row) for row in once]), np.array([c for r in once for c in r], np.int64)


def _judge(
    logits: Numbers, scores: Numbers, kept: Counts, rows: Counts, allowed: Counts, temperature: float
) -> tuple[Judged, int, float]:
    """Judge the images `kept`.  Returns also the number right within five, and the loss.

    rows, allowed: every right label, as its row within `kept` and its class.
    """
    n = len(kept)
    answer, confidence = np.zeros(n, np.int64), np.zeros(n)
    is_right, is_in_five, likelihood = np.zeros(n, bool), np.zeros(n, bool), np.zeros(n)
    same = TIE_FLOAT64 if logits.dtype == np.float64 else TIE_FLOAT32
    for here in calibration.parts(logits[:n]):
        first = here.start
        z = np.asarray(logits[kept[here]], np.float64)
        p = calibration.softmax(z, temperature)
        answer[here] = best_class(z, same)
        confidence[here] = p.max(1)
        one, last = np.searchsorted(rows, [first, first + len(z)])
        row, label = rows[one:last] - first, allowed[one:last]
        mine = z[row, label]
        more, near = z[row] - mine[:, None], equal_within(z, same)[row]
        is_first = (more > near).sum(1) < 5
        for t in np.flatnonzero((np.abs(more) <= near).sum(1) > 1).tolist():
            is_first[t] = label[t] in best_classes(z[row[t]], 5, same)
        is_right[here] = np.bincount(row, label == answer[here][row], minlength=len(z)) > 0
        is_in_five[here] = np.bincount(row, is_first, minlength=len(z)) > 0
        shifted = z / temperature
        shifted -= shifted.max(1, keepdims=True)
        log_sum = np.log(np.exp(shifted).sum(1))
        likelihood[here] = np.full(len(z), -np.inf)
        np.logaddexp.at(likelihood[here], row, shifted[row, label] - log_sum[row])
    first_label = allowed[np.searchsorted(rows, np.arange(n))] if n else np.zeros(0, np.int64)
    truth = np.where(is_right, answer, first_label)
    judged = Judged(kept, truth, answer, confidence, scores[kept], is_right)
    return judged, int(is_in_five.sum()), float(-likelihood.sum() / n) if n else math.nan


# Several labels --------------------------------------------------------------------------------------------------


def _measure_several(
    logits: Numbers,
    labels: Counts,
    classes: tuple[str, ...],
    temperature: float,
    threshold: float | None,
    scores: Numbers,
) -> Result:
    """Measure each class by itself: an image has a class if its probability is at least 1/2."""
    kept = np.flatnonzero((labels >= 0).all(1))
    z, y = logits[kept], labels[kept] > 0
    p = calibration.sigmoid(z, temperature)
    answered = z >= 0  # sigmoid(z / T) ≥ 1/2
    exact = (answered == y).all(1)
    precisions = [average_precision(z[:, k], y[:, k]) if y[:, k].any() else math.nan for k in range(len(classes))]
    known = [value for value in precisions if not math.isnan(value)]
    columns = zip(classes, y.sum(0), (y & answered).sum(0), answered.sum(0), precisions, strict=True)
    confidence = np.where(answered, p, 1 - p).min(1) if len(kept) else np.zeros(0)  # that all labels are right
    scores = scores[kept]
    judged = Judged(kept, np.full(len(kept), -1), best_class(z), confidence, scores, exact)
    return Result(
        classes=classes,
        images=len(kept),
        right=int(exact.sum()),
        right_in_five=None,
        left_out=len(logits) - len(kept),
        loss=calibration.mean_loss(z, y.astype(np.int64), temperature),
        temperature=temperature,
        per_class=tuple(ClassRow(name, int(n), int(r), int(s), a) for name, n, r, s, a in columns),
        calibration=calibration.reliability(p.ravel(), y.ravel()),
        above=(),
        judged=judged,
        unlike=None if threshold is None else int((scores < threshold).sum()),
        mean_average_precision=float(np.mean(known)) if known else math.nan,
    )


def average_precision(scores: Numbers, is_positive: NDArray[np.bool_]) -> float:
    """Σ (recallᵢ − recallᵢ₋₁) · precisionᵢ over the distinct scores, from the highest; nan without a positive.  N."""
    order = np.argsort(-np.asarray(scores), kind="stable")
    s, positive = np.asarray(scores)[order], np.asarray(is_positive, bool)[order]
    if not positive.any():
        return math.nan
    ends = np.flatnonzero(np.append(np.diff(s) != 0, True))  # equal scores form one step
    found = np.cumsum(positive)[ends]
    return float((np.diff(found, prepend=0) / found[-1] * (found / (ends + 1))).sum())


def _number(value: float | None) -> float | None:
    """None for nan, which JSON lacks."""
    return None if value is None or math.isnan(value) else value
