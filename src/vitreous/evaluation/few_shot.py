"""Few-shot accuracy of frozen features: the published protocol (arXiv 2010.11929, section 4.1).

Each seed draws some rows of every class; the probe of `ridge_regression` is fitted on them and judged on all test rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from vitreous.errors import ConfigError, DataError
from vitreous.evaluation.labelled_rows import Rows, checked, known_rows, refuse_constant
from vitreous.evaluation.ridge_regression import DEFAULT_L2, Ridge, count_right, nested_ridges, penalties
from vitreous.evaluation.student import interval_of_mean
from vitreous.report.page import Note, Table, fragment
from vitreous.words import aligned, few, percent_range

if TYPE_CHECKING:
    from vitreous.evaluation.learning_curve import Curve

DEFAULT_SHOTS = (1, 5, 10, 25)
WEIGHTS_AT_ONCE = 2**26  # weights held at once while counting answers


@dataclass(frozen=True, eq=False)
class FewShot:
    """Accuracy by shots and seeds. A seed chooses the shots; the test rows are the same for all."""

    shots: tuple[int, ...]
    seeds: tuple[int, ...]
    l2s: tuple[float, ...]
    right: NDArray[np.int64]  # L S R: l2, shots, seeds
    taken: tuple[int, ...]  # rows fitted on, by shots
    images: int  # test rows
    classes: int  # that have rows to fit on
    about: dict[str, Any] = field(default_factory=dict)  # which model, which images, how
    notes: tuple[str, ...] = ()
    curve: Curve | None = None  # the gain from more labels, if asked for

    @property
    def accuracy(self) -> NDArray[np.float64]:
        """L S R."""
        return self.right / self.images

    def mean(self, shots: int, l2: float | None = None) -> float:
        """Over seeds."""
        return float(self.accuracy[self._place(shots, l2)].mean())

    def interval(self, shots: int, l2: float | None = None) -> tuple[float, float] | None:
        """The 95 % interval (Student) of the mean over draws of shots, for fixed test rows; None for one seed."""
        return mean_interval(self.accuracy[self._place(shots, l2)])

    def _place(self, shots: int, l2: float | None) -> tuple[int, int]:
        if shots not in self.shots or (l2 is not None and l2 not in self.l2s):
            raise ConfigError(
                f"shots {shots}, l2 {l2 or self.l2s[0]:g} were not measured; have {self.shots}, {self.l2s}"
            )
        return self.l2s.index(l2) if l2 is not None else 0, self.shots.index(shots)

    def to_json(self) -> dict[str, Any]:
        rows = [
            {
                "shots": s,
                "l2": l2,
                "fitted_on": self.taken[j],
                "right": self.right[i, j].tolist(),
                "accuracy": self.accuracy[i, j].tolist(),
                "mean": self.mean(s, l2),
                "interval": None if (found := self.interval(s, l2)) is None else list(found),
            }
            for i, l2 in enumerate(self.l2s)
            for j, s in enumerate(self.shots)
        ]
        body = {"images": self.images, "classes": self.classes, "seeds": list(self.seeds), "few_shot": rows}
        more = {} if self.curve is None else {"learning_curve": self.curve.to_json()}
        return dict(self.about) | body | more | {"notes": list(self.notes)}

    def table(self) -> tuple[list[str], list[list[str]]]:
        """Head and cells as text."""
        head = ["shots", *(["l2"] if len(self.l2s) > 1 else []), "fitted on", "right", "95 % interval", "each seed"]
        cells = []
        for i, l2 in enumerate(self.l2s):
            for j, s in enumerate(self.shots):
                between = percent_range(self.interval(s, l2))
                each = " ".join(f"{100 * a:.1f}" for a in self.accuracy[i, j])
                row = [str(s), *([f"{l2:g}"] if len(self.l2s) > 1 else []), f"{self.taken[j]:,}"]
                cells.append([*row, f"{100 * self.mean(s, l2):.1f} %", between, each])
        return head, cells

    def __str__(self) -> str:
        head, cells = self.table()
        lines = aligned([head, *cells], "r" * len(head))
        seeds = f"{len(self.seeds)} seeds" if len(self.seeds) > 1 else "1 seed"
        first = f"least squares on frozen features: {self.classes:,} classes, {self.images:,} test images, {seeds}"
        more = [] if self.curve is None else ["", "would more labels help?", *str(self.curve).splitlines()]
        return "\n".join([first, *lines, *(f"note  {note}" for note in self.notes), *more])

    __repr__ = __str__  # at a prompt

    def _repr_html_(self) -> str:
        head, cells = self.table()
        notes = [Note(note, "warn") for note in self.notes]
        more = "" if self.curve is None else self.curve._repr_html_()
        return fragment([Table(head, cells, "r" * (len(head) - 1) + "l"), *notes]) + more


def fewshot(
    x: NDArray[Any],
    y: NDArray[Any],
    test_x: NDArray[Any],
    test_y: NDArray[Any],
    classes: int | Sequence[str],
    *,
    shots: Sequence[int] = DEFAULT_SHOTS,
    seeds: int | Sequence[int] = 3,
    l2: float | Sequence[float] = DEFAULT_L2,
    device: torch.device | str = "cpu",
) -> FewShot:
    """The published few-shot evaluation on frozen features.

    x: N D, the pool that shots are drawn from.  y: N class numbers, −1 for none.  classes: their number, or their names
    in order.  seeds: their number (0, 1, 2 …), or a list.  l2: of several, all are measured and none is chosen.
    A class with fewer rows than shots gives all it has; `notes` names it.
    """
    names = tuple(f"class {k}" for k in range(classes)) if isinstance(classes, int) else tuple(classes)
    wanted, which, l2s = shot_counts(shots), draw_seeds(seeds), penalties(l2)
    rows, labels = checked(x, y, len(names), "train")
    test_rows, test_labels = checked(test_x, test_y, len(names), "test")
    if rows.shape[1] != test_rows.shape[1]:
        raise DataError(
            f"train features have {rows.shape[1]} numbers, test features {test_rows.shape[1]}; give one kind"
        )
    refuse_constant(rows)
    known_rows(labels)
    kept = np.flatnonzero(test_labels >= 0)
    if not len(kept):
        raise DataError("there are no labelled test rows to judge by; give some")
    test_rows = test_rows if len(kept) == len(test_rows) else test_rows[kept]
    test_labels = test_labels[kept]
    counts = np.bincount(labels[labels >= 0], minlength=len(names))
    notes = _notes(names, counts, np.bincount(test_labels, minlength=len(names)), wanted)
    right = np.zeros((len(l2s), len(wanted), len(which)), np.int64)
    taken = [0] * len(wanted)
    waiting: list[tuple[tuple[int, int, int], Ridge]] = []

    def count() -> None:
        found = count_right([probe for _, probe in waiting], test_rows, test_labels, device=device)
        for (place, _), n in zip(waiting, found, strict=True):
            right[place] = n
        waiting.clear()

    for r, seed in enumerate(which):
        parts = _added(labels, len(names), wanted, seed)
        taken = np.cumsum([len(part) for part in parts]).tolist()
        for s, probes in enumerate(nested_ridges(rows, labels, len(names), parts, l2s, device=device)):
            waiting += [((i, s, r), probe) for i, probe in enumerate(probes)]
            if sum(probe.weight.size for _, probe in waiting) > WEIGHTS_AT_ONCE:
                count()
    count()
    known = int((counts > 0).sum())
    return FewShot(wanted, which, l2s, right, tuple(taken), len(test_labels), known, notes=tuple(notes))


def choose_shots(y: NDArray[Any], classes: int, shots: int, seed: int) -> Rows:
    """The rows of one draw, class by class: the first `shots` of each class's permutation, so draws are nested."""
    return np.concatenate([rows[:shots] for rows in _permuted(y, classes, seed)])


def _permuted(y: NDArray[Any], classes: int, seed: int) -> list[Rows]:
    random = np.random.default_rng(seed)  # as in the authors' evaluator, so draws match the papers
    return [random.permutation(np.flatnonzero(np.asarray(y) == c)) for c in range(classes)]


def _added(y: Rows, classes: int, shots: Sequence[int], seed: int) -> list[Rows]:
    """The rows that each number of shots adds to the previous one."""
    orders = _permuted(y, classes, seed)
    steps = zip([0, *shots[:-1]], shots, strict=True)
    return [np.concatenate([rows[before:now] for rows in orders]) for before, now in steps]


def _notes(names: Sequence[str], counts: Rows, tests: Rows, shots: Sequence[int]) -> list[str]:
    notes = []
    if none := [names[k] for k in np.flatnonzero((counts == 0) & (tests > 0)).tolist()]:
        notes.append(f"{few(none)}: no training images, so never right")
    has = list(zip(names, counts.tolist(), strict=True))
    short = {s: [f"{name} ({n})" for name, n in has if 0 < n < s] for s in shots}
    notes += [f"{s} shots: fewer images of {few(those)}; all of them were taken" for s, those in short.items() if those]
    if unseen := [names[k] for k in np.flatnonzero((counts > 0) & (tests == 0)).tolist()]:
        notes.append(f"{few(unseen)}: no test images, so not judged")
    return notes


def mean_interval(values: NDArray[np.float64]) -> tuple[float, float] | None:
    """The 95 % interval (Student) of the mean of a few numbers; None for one."""
    found = interval_of_mean(values)
    return None if found is None else (max(found[0], 0.0), min(found[1], 1.0))


def shot_counts(shots: int | Sequence[int]) -> tuple[int, ...]:
    """The numbers of shots, sorted, without repeats."""
    found = tuple(sorted({shots} if isinstance(shots, int) else set(shots)))
    if not found or not all(isinstance(s, int | np.integer) and s > 0 for s in found):
        raise ConfigError(f"shots {list(found)} are not valid; give whole numbers from 1, such as 1, 5, 10, 25")
    return tuple(int(s) for s in found)


def draw_seeds(seeds: int | Sequence[int]) -> tuple[int, ...]:
    """0, 1, … if given a number, else the list itself."""
    found = tuple(range(seeds)) if isinstance(seeds, int) else tuple(seeds)
    if not found or not all(isinstance(seed, int | np.integer) and seed >= 0 for seed in found):
        raise ConfigError(f"seeds {seeds!r} are not valid; give their number, 1 or more, or a list")
    return found
