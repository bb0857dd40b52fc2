"""The model card next to a trained model: README.md as model hubs read it, with the numbers of the report."""

from __future__ import annotations

import html
import json
import math
import re

from vitreous.training.tell.strangers import LEFT_OUT, easy
from vitreous.training.tell.summary import Summary, about_conflicts, right_above
from vitreous.words import confidence, counted

MAX_CLASSES_NAMED = 50  # named in the card
WEAKEST_TOLD = 3  # weakest classes that are named
USE = """## Use

```sh
pip install vitreous
vitreous predict model.safetensors photo.jpg
```

```python
import vitreous

model = vitreous.load("model.safetensors")
for answer in vitreous.predict(model, ["photo.jpg"]):
    print(answer)
```

The file carries its preprocessing, its labels and the temperature that calibrates its confidence.
"""


def card(summary: Summary) -> str:
    """The whole README.md. The licence is left to whoever publishes the model."""
    rest = (_numbers, _data, _training, _limits)
    return "\n".join([_front(summary), _head(summary), USE, *(part(summary) for part in rest)])


def _front(summary: Summary) -> str:
    """What a hub reads; every text as JSON, which YAML understands."""
    result = summary.result
    name = _text(f"{summary.network} on {summary.name}")
    lines = [
        "---",
        "# license: choose one before you publish",
        "library_name: vitreous",
        "pipeline_tag: image-classification",
        "tags:",
        *(f"- {tag}" for tag in ("vitreous", "image-classification", "vision-transformer")),
        "metrics:",
        "- accuracy",
        "model-index:",
        f"- name: {name}",
        "  results:",
        "  - task:",
        "      type: image-classification",
        "    dataset:",
        f"      name: {_text(summary.name)}",
        f"      type: {_text(re.sub(r'[^a-z0-9]+', '-', summary.name.lower()).strip('-') or 'images')}",
        f"      split: {summary.judged_by}",
        "    metrics:",
    ]
    metrics = [("accuracy", "exact match" if summary.has_many_labels else "accuracy", result.top1)]
    if result.top5 is not None:
        metrics.append(("accuracy", "top-5 accuracy", result.top5))
    if result.mean_average_precision is not None:
        metrics.append(("mAP", "mean average precision", result.mean_average_precision))
    for kind, title, value in metrics:
        if not math.isnan(value):
            lines += [f"    - type: {kind}", f"      name: {title}", f"      value: {value:.4f}"]
    return "\n".join([*lines, "---", ""])


def _head(summary: Summary) -> str:
    low, high = (100 * x for x in summary.result.interval)
    many = summary.has_many_labels
    answer = "all labels of an image exactly right" if many else f"the right one of {len(summary.classes):,} classes"
    lines = [
        f"# {_line(summary.network)}, trained on {_line(summary.name)}",
        "",
        *([] if summary.alarm is None else [f"**{_line(summary.alarm)}**", ""]),
        f"Names {answer} for **{100 * summary.result.top1:.1f} %** of new images "
        f"(95 % interval {low:.1f} to {high:.1f}). {summary.how_judged}",
        "",
    ]
    lines += [summary.footnote, ""] if summary.footnote is not None else []
    if (row := summary.above) is not None and row.answered:
        lines += [
            f"Answer only above {confidence(row.confidence)} confidence: {100 * row.answered_share:.1f} % of the "
            f"images are answered, {right_above(row, summary.judged_by)} of those answers are right.",
            "",
        ]
    return "\n".join(lines)


def _numbers(summary: Summary) -> str:
    result = summary.result
    rows = [
        ("right", f"{result.right:,} of {result.images:,} ({100 * result.top1:.1f} %)"),
        ("95 % interval", "{:.1f} to {:.1f} %".format(*(100 * x for x in result.interval))),
    ]
    if result.top5 is not None:
        rows.append(("among the first five", f"{100 * result.top5:.1f} %"))
    if result.mean_average_precision is not None:
        rows.append(("mean average precision", f"{100 * result.mean_average_precision:.1f} %"))
    rows.append(("confidence off by", f"{100 * result.calibration.error:.1f} percentage points on average"))
    rows += [(r.name, f"{r.right:,} of {r.seen:,} ({100 * r.right / max(r.seen, 1):.1f} %)") for r in summary.rivals]
    return "\n".join(["## Numbers", "", *_table(rows)])


def _data(summary: Summary) -> str:
    names = ", ".join(summary.classes[:MAX_CLASSES_NAMED])
    left = len(summary.classes) - MAX_CLASSES_NAMED
    rows = [
        ("images", summary.images_used),
        ("classes", names + (f" and {left:,} more" if left > 0 else "")),
        ("content id", summary.judged.content_id),
    ]
    if summary.health is not None:
        rows.append(("check", f"{summary.health.verdict} ({summary.health.read})"))
    if not summary.has_many_labels:
        sure = f"{counted(len(summary.conflicts), 'image')} under two labels ({about_conflicts(summary.conflicts)}), "
        doubted = sure if summary.conflicts else ""
        doubted += f"{len(summary.suspects):,} of {summary.result.images:,} judged"
        if (found := summary.doubts) is not None:
            doubted += f", {found.count:,} of {found.images:,} learned from"
        rows.append(("labels that are wrong, or may be" if summary.conflicts else "labels that may be wrong", doubted))
    notes = [line for note in summary.data_notes for line in (_line(note), "")]
    return "\n".join(["## Training data", "", *_table(rows), *notes])


def _training(summary: Summary) -> str:
    recipe = summary.recipe
    how = "solved in closed form" if recipe.is_solved else f"{recipe.length}, batches of {recipe.batch:,}"
    rows = [
        ("model", f"{summary.model}, {summary.parameters:,} parameters, {summary.beginning}"),
        ("image size", f"{summary.image_size[0]} × {summary.image_size[1]} pixels"),
        ("recipe", f"{recipe.name}, {how}, seed {recipe.seed}"),
        ("time", f"{summary.time} on {summary.device}"),
    ]
    why = [line for reason in summary.reasons for line in (_line(reason), "")]
    again = ["Again:", "", "```sh", summary.command.replace("```", "'''"), "```", ""]
    return "\n".join(["## Training", "", *why, *_table(rows), *again])


def _limits(summary: Summary) -> str:
    known = [row for row in summary.result.per_class if row.images]
    weak = sorted(known, key=lambda row: (row.recall, row.name))[:WEAKEST_TOLD]
    lines = ["## Limits", ""]
    lines.append("- It answers with one of its classes whatever it is shown; images of other kinds get a wrong name.")
    if summary.unlike is not None:
        kinds, (caught, seen) = easy(summary.strangers)
        new = summary.strangers.get(LEFT_OUT)
        near = sure = ""
        if new is not None:
            near = f"{new.caught:,} of {new.seen:,} images of a class it never saw, and to "
            sure = "" if new.sure is None else f" {new.sure:,} of the {new.seen:,} got a sure answer."
        lines[-1] = (
            f"- It answers \u201cnone of these\u201d to images that resemble no class: to {near}{caught:,} of {seen:,} "
            f"easy strangers ({kinds}). Others get a wrong name, the more so the more they look like its classes.{sure}"
        )
    if weak:
        told = ", ".join(f"{_line(row.name)} ({100 * row.recall:.0f} % found)" for row in weak)
        lines.append(f"- Weakest classes: {told}.")
    fewest = min((row.images for row in known), default=0)
    if fewest < 30:
        lines.append(f"- Some classes were judged on as few as {fewest} images; their own numbers mean little.")
    lines.append("- The numbers hold for images taken like those it was judged on, and for no others.")
    if summary.health is not None and (wrong := summary.health.misleading):
        kinds = "; ".join(finding.what for finding in wrong)
        lines.append(f"- The data has faults that can make the numbers wrong: {kinds}.")
    return "\n".join([*lines, "- Everything in pictures: report.html.", ""])


def _table(rows: list[tuple[str, str]]) -> list[str]:
    return ["| | |", "|---|---|", *(f"| {_line(name)} | {_line(value)} |" for name, value in rows), ""]


def _line(text: str) -> str:
    """A text that stays what it is in a line or a cell of Markdown."""
    flat = " ".join(text.encode(errors="replace").decode().split())
    return re.sub(r"([\\|`*_\[\]#])", r"\\\1", html.escape(flat, quote=False))


def _text(text: str) -> str:
    return json.dumps(" ".join(text.encode(errors="replace").decode().split()), ensure_ascii=False)
