"""The few-shot table as a page with its plot; with a learning curve, the gain from more labels."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from vitreous.evaluation.few_shot import FewShot
from vitreous.evaluation.learning_curve import MAX_EXTRAPOLATION, Curve
from vitreous.report import charts
from vitreous.report.page import Block, Drawing, Listing, Note, Number, Numbers, Page, Section, Table, Text
from vitreous.words import percent_range

FEW_SHOT_METHOD = (
    "The model stays frozen. Each seed draws that many images of every class from train, "
    "and solves a linear map from the model's features to the classes in closed form "
    "(regularised least squares onto ±1, as in arXiv 2010.11929). All test images measure it. The interval is "
    "Student's, over seeds: it covers the choice of training images, not of test images."
)
CURVE_METHOD = (
    "The same probe was fitted on growing, nested parts of train. The law error = a · n^−b + c is fitted to the shares "
    "of wrong answers over n training images; its 95 % interval comes from curves redrawn from these seeds and test "
    f"images. It does not hold beyond {MAX_EXTRAPOLATION} times the images there are, "
    "nor for other ways to train."
)


def page(found: FewShot) -> Page:
    """The page as a value."""
    best = found.shots[-1]
    head, cells = found.table()
    blocks: list[Block] = [Text(FEW_SHOT_METHOD), *(Note(note, "warn") for note in found.notes)]
    sections = [
        Section("By shots", [Drawing(_plot(found), "Accuracy by labelled images of each class; the band is 95 %.")]),
        Section("In numbers", [Table(head, cells, "r" * (len(head) - 1) + "l")]),
        *([] if found.curve is None else [Section("Would more labels help?", _curve(found.curve))]),
        Section("How it was measured", blocks),
    ]
    if found.about:
        facts = Listing("All facts", [f"{name}: {value}" for name, value in found.about.items()])
        sections.append(Section("Which model and images", [facts]))
    return Page(
        title=str(found.about.get("data", "")).rstrip("/\\").replace("\\", "/").rpartition("/")[2] or "few-shot",
        over="vitreous eval --shots",
        answer=f"{100 * found.mean(best):.1f} % right with {best} labelled images of each class",
        lead=f"{found.classes:,} classes, {found.images:,} test images, {len(found.seeds)} draws of labelled images.",
        top=[Numbers([_number(found, shots) for shots in found.shots])],
        sections=sections,
        foot="Made by vitreous eval. The numbers are exact counts.",
    )


def _number(found: FewShot, shots: int) -> Number:
    about = percent_range(found.interval(shots)) if len(found.seeds) > 1 else ""
    return Number(f"{100 * found.mean(shots):.1f} %", "1 shot" if shots == 1 else f"{shots} shots", about=about)


def _plot(found: FewShot) -> charts.Chart:
    series = []
    for l2 in found.l2s:
        means = [found.mean(shots, l2) for shots in found.shots]
        spans = [found.interval(shots, l2) or (mean, mean) for shots, mean in zip(found.shots, means, strict=True)]
        name = "accuracy" if len(found.l2s) == 1 else f"l2 {l2:g}"
        low, high = zip(*spans, strict=True)
        series.append(charts.Line(name, found.shots, means, low, high, has_points=True))
    return charts.lines(series, title="Accuracy by shots", x_title="labelled images of each class", is_share=True)


def _curve(found: Curve) -> Sequence[Block]:
    """Plot, labels needed for targets, and the law."""
    twice, low, high = (100 * v for v in found.expected(2 * found.sizes[-1]))
    gain = f"With twice as many labels, {2 * found.sizes[-1]:,}: {twice:.1f} % right ({low:.1f} to {high:.1f})."
    targets = [found.needed(target) for target in found.targets]
    rows = [
        [name, f"{getattr(found.law, name):.4g}", "{:.4g} to {:.4g}".format(*found.interval(name)), meaning]
        for name, meaning in (("a", "what labels can remove"), ("b", "how fast it falls"), ("c", "what stays"))
    ]
    return [
        Drawing(
            _law_plot(found),
            "Points are measured; the dashed line is the law, the band its 95 %. All images lie left of the upright.",
        ),
        Note(gain, "plain"),
        *(Note(f"{needed}.", "good" if needed.is_believed else "warn") for needed in targets),
        Table(["law", "value", "95 %", "meaning"], rows, "lrrl"),
        Text(CURVE_METHOD),
    ]


def _law_plot(found: Curve) -> charts.Chart:
    now = found.sizes[-1]
    means = 1 - found.error.mean(1)
    n = np.geomspace(found.sizes[0], 2 * now, 60)
    low, high = np.percentile([1 - law.error(n) for law in found.redrawn], [2.5, 97.5], axis=0)
    measured = charts.Line("measured", found.sizes, means, has_points=True)
    law = charts.Line("law", n, np.clip(1 - found.law.error(n), 0, 1), np.clip(low, 0, 1), np.clip(high, 0, 1))
    return charts.lines(
        [measured, law],
        title="Accuracy by training images",
        x_title="training images",
        is_share=True,
        mark=(now, ""),
    )
