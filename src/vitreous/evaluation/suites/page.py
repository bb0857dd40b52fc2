"""A suite's table as a page: models against sets for each measure, plots, every number with its cost."""

from __future__ import annotations

from collections.abc import Sequence

from vitreous.evaluation.suites.table import SuiteRow, SuiteTable
from vitreous.report import charts
from vitreous.report.page import Block, Drawing, Drawings, Listing, Note, Number, Numbers, Page, Section, Table, Text
from vitreous.words import percent_range, shortened

MAX_LEGEND_LETTERS = 14
LINES_PER_CHART = 3  # more are hard to tell apart
LEGEND = "Percent right; ± is half of the 95 % interval, and ★ marks the highest of its measure."

SUITE_METHOD = (
    "Few-shot draws that many images of every class from train for each seed, and solves regularised least squares on "
    "frozen features in closed form (arXiv 2010.11929); knn and logistic use all training images; accuracy is the "
    "model as it is; fit trains it. All are measured on the test images. With several seeds the interval is Student's, "
    "over the draws. With one number it is Wilson's, over test images. Seconds and memory are for one training; for "
    "a probe they cover fitting and answering, all seeds and shots together, without computing the features."
)


def page(found: SuiteTable) -> Page:
    """The page as a value."""
    sets, models = _names(found.rows, "data"), _names(found.rows, "model")
    failed = [Note(f"{who}: {error}", "bad") for who, error in found.blamed()]
    drawings = [drawing for data in sets for drawing in _drawings(data, [r for r in found.rows if r.data == data])]
    head, cells = found.table()
    numbers: list[Block] = [Table(head, cells, "lllrrrrrr")]
    sections = [
        *([Section("What failed", failed, tone="bad", badge=str(len(found.failures)))] if failed else []),
        Section("Models and sets", [Text(LEGEND), _side_by_side(found, sets, models)]),
        *([Section("In pictures", [Drawings(drawings)])] if drawings else []),
        Section("Every number, and what it cost", numbers),
        Section("How it was measured", [Text(SUITE_METHOD), *_listings(found)]),
    ]
    done = sum(row.mean is not None for row in found.rows)
    return Page(
        title=found.name or "suite",
        over="vitreous eval --suite",
        answer=f"{_count(models, 'model')}, {_count(sets, 'set')}, {done} measurements"
        + (f", {len(found.failures)} failed" if found.failures else ""),
        top=[Numbers([_number(row) for row in _best(found.rows, sets)])],
        sections=sections,
        foot="Made by vitreous eval --suite. suite.json beside this page holds every number.",
    )


def _names(rows: Sequence[SuiteRow], what: str) -> list[str]:
    return list(dict.fromkeys(getattr(row, what) for row in rows))


def _count(those: Sequence[str], what: str) -> str:
    return f"{len(those)} {what}{'' if len(those) == 1 else 's'}"


def _best(rows: Sequence[SuiteRow], sets: Sequence[str]) -> list[SuiteRow]:
    """The row with the highest accuracy for every set."""
    found = [[row for row in rows if row.data == data and row.mean is not None] for data in sets]
    return [max(own, key=lambda row: row.mean or 0) for own in found if own]


def _number(row: SuiteRow) -> Number:
    about = f"{row.model}, {row.measure} ({percent_range(row.interval)})"
    return Number(f"{100 * (row.mean or 0):.1f} %", f"best on {row.data}", about=about)


def _side_by_side(found: SuiteTable, sets: Sequence[str], models: Sequence[str]) -> Table:
    """Measures and models down, sets across; ★ marks the highest of each measure."""
    at = {(row.measure, row.model, row.data): row for row in found.rows}
    cells = []
    for measure in _names(found.rows, "measure"):
        rows = [row for row in found.rows if row.measure == measure]
        best = {data: max((row.mean or 0 for row in rows if row.data == data), default=0) for data in sets}
        those = [model for model in models if any(row.model == model for row in rows)]
        for i, model in enumerate(those):
            line = [measure if i == 0 else "", model]
            for data in sets:
                row = at.get((measure, model, data))
                is_best = row is not None and len(those) > 1 and row.mean == best[data]
                line.append(_brief(row) + (" ★" if is_best else ""))
            cells.append(line)
    return Table(["measure", "model", *sets], cells, "ll" + "r" * len(sets))


def _brief(row: SuiteRow | None) -> str:
    if row is None:
        return ""
    if row.mean is None or row.interval is None:
        return "failed" if row.error else "no match"
    return f"{100 * row.mean:.1f} ± {50 * (row.interval[1] - row.interval[0]):.1f}"


def _drawings(data: str, rows: Sequence[SuiteRow]) -> list[Drawing]:
    """Lines over several shots, bars for all else."""
    found = []
    by_shots = {row.task: [r for r in rows if r.task == row.task and r.mean is not None] for row in rows if row.shots}
    for task, own in by_shots.items():
        models = _names(own, "model")
        for first in range(0, len(models), LINES_PER_CHART):
            lines = [_line(m, [r for r in own if r.model == m]) for m in models[first : first + LINES_PER_CHART]]
            title = f"{task} on {data}"
            svg = charts.lines(lines, title=title, x_title="labelled images of each class", is_share=True)
            found.append(Drawing(svg, "The band is 95 %, over seeds.", title))
    for measure in _names([row for row in rows if row.shots is None], "measure"):
        own = [row for row in rows if row.measure == measure and row.mean is not None and row.interval is not None]
        if own:
            bars = [charts.ShareBar(r.model, r.mean or 0, *(r.interval or (0, 1))) for r in own]
            found.append(Drawing(charts.bars(bars, title=f"{measure} on {data}"), "", f"{measure} on {data}"))
    return found


def _line(model: str, rows: Sequence[SuiteRow]) -> charts.Line:
    x, means = [row.shots or 0 for row in rows], [row.mean or 0 for row in rows]
    spans = [row.interval or (mean, mean) for row, mean in zip(rows, means, strict=True)]
    return charts.Line(
        shortened(model, MAX_LEGEND_LETTERS),
        x,
        means,
        [low for low, _ in spans],
        [high for _, high in spans],
        has_points=True,
    )


def _listings(found: SuiteTable) -> list[Block]:
    notes = found.notes()
    named = {"models": "Models", "sets": "Sets of images"}
    facts: list[Block] = [
        Listing(title, [f"{name}: {source}" for name, source in found.about[key].items()])
        for key, title in named.items()
        if key in found.about
    ]
    return [*([Listing("Notes", notes)] if notes else []), *facts]
