"""An inspection as one page: where the model looks, what it does in ten lines, then every measure with its figure.

write_page(inspection, "look.html")     section(inspection), the short version for another page
"""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitreous.measures.figures import Figures, draw, figures_of, title_of
from vitreous.measures.inspection import Inspection
from vitreous.measures.measure import Found
from vitreous.measures.page.looker import fitting, looker
from vitreous.models import architecture
from vitreous.models.config import from_json
from vitreous.report import page as pages
from vitreous.report.page import Block, Drawing, Drawings, Note, Page, Point, Points, Section, Table, Text
from vitreous.words import counted, sentence, unbroken

PAGE_FOLDER = Path(__file__).parent
MAX_MAPS_IN_PAGE = 11 * 2**20  # bytes; with its figures a page stays below 15 MB
TOP_LINES = 10  # near the top of the page
PICTURED_FIRST = ("attention-maps", "rollout")  # what most people come for: where the model looks, on the image
MAX_CHARTS_IN_CELL = 2  # of a look without photos
DRAWN_IN_SHORT = 3  # the short version draws ranks up to this one
MAX_TABLE_ROWS = 20  # of a measure that draws nothing
FILES_NOTE = "inspection.json beside this page holds every number; the folder figures/ holds every figure as a file."
PAPERS_NOTE = "P1 is arXiv 2010.11929 (ViT), P2 is arXiv 2108.08810 (do ViTs see like CNNs?)."
LOOK_WORDS = {  # of this page, for somebody who has read neither paper
    "patch, place": "a square of the image, or of a map made of it, that the model reads as one",
    "token": "the list of numbers that stands for a patch inside the model",
    "block, layer": "one round of the model: attention, then an MLP; a ResNet's is called unit",
    "attention": "each token takes from the others, by shares that sum to 1; a large share is a long look",
    "head": "one of the attentions of a block, side by side; the last table of the model is also called head",
    "skip": "what came into a part is added to what leaves it; that part is the skip's branch",
    "class token": "a token that is no part of the image and collects the answer; not every model has one",
    "rollout": (
        "the shares of all blocks followed from the answer back to the image: it shows where information came from, "
        "not why the answer was given"
    ),
    "CKA, likeness": "how alike two layers tell the same images apart: 1 is alike, 0 is unlike",
    "cosine": "how alike two lists of numbers point: 1 is the same way, 0 is no relation",
    "rank correlation": "1: the more of one, the more of the other; -1: the more, the less; 0: no relation",
    "10 shots": "a simple fit learns from 10 images of each class",
    "px": "pixels of the image",
}


def write_page(
    inspection: Inspection,
    path: str | os.PathLike[str],
    *,
    figures: Figures | None = None,
    limit: int = MAX_MAPS_IN_PAGE,
) -> None:
    """One self-contained page. limit: bytes of attention maps; beyond it, maps get coarser, then fewer."""
    pages.write(page(inspection, figures=figures, limit=limit), path, force=True)


def page(inspection: Inspection, *, figures: Figures | None = None, limit: int = MAX_MAPS_IN_PAGE) -> Page:
    """The page as a value. figures: what `draw` returned, if it ran already."""
    figures = draw(inspection) if figures is None else figures
    maps = fitting(inspection, limit)
    return Page(
        title=" against ".join(inspection.names),
        over="vitreous look",
        answer=_answer(inspection),
        lead=f"{_kind(inspection)}, {inspection.model['parameters']:,} parameters, on {inspection.seen}.",
        top=[
            *(Note(note, "warn") for note in inspection.notes),
            *_untrained(inspection),
            *_images(inspection),
            _words(),
        ],
        sections=[*_sections(inspection, figures, bool(maps)), _architecture(inspection), _about(inspection)],
        foot=f"Made by vitreous look. {FILES_NOTE}",
        has_column=True,
        style=(PAGE_FOLDER / "look.css").read_text("utf-8"),
        script=(PAGE_FOLDER / "look.js").read_text("utf-8"),
        data={"cells": json.dumps(_cells(figures), separators=(",", ":")), **maps},
    )


def _sections(inspection: Inspection, figures: Figures, has_maps: bool) -> Iterator[Section]:
    """Where the model looks, what it does in short, the other measures; last why some have no numbers."""
    measured = [name for name in inspection.measures if name in {*inspection.found, *inspection.found_against}]
    pictured = [name for name in measured if name in PICTURED_FIRST]
    rest = [name for name in measured if name not in PICTURED_FIRST]
    for name in pictured:
        yield Section(title_of(name), list(_measure(inspection, figures, name, has_maps)), anchor=name)
    yield from _lines(inspection)
    for name in rest:
        yield Section(title_of(name), list(_measure(inspection, figures, name, has_maps)), anchor=name)
    missing = [name for name in inspection.measures if name not in measured]
    if missing:
        whys = {**inspection.skipped_against, **inspection.skipped}
        rows = [[title_of(name), inspection.measures[name].sentence, whys.get(name, "")] for name in missing]
        blocks: list[Block] = [Table(["measure", "what it shows", "why it is not measured"], rows)]
        yield Section("Not measured", blocks, anchor="missing")


def section(inspection: Inspection) -> Section:
    """The short version, for the report of a run."""
    drawings = [
        Drawing(panel.chart, heading=panel.heading)
        for name in _ranked(inspection)
        if (inspection.measures[name].rank or 0) <= DRAWN_IN_SHORT
        for figure in figures_of(inspection, name)[:1]
        for panel in figure.panels[:1]
    ]
    words = Text(
        f"What the papers look at inside a model, measured here on {counted(inspection.data['images'], 'image')}. For "
        "all of it, with every layer and head: vitreous look."
    )
    points = Points([Point(text) for _, text in _telling(inspection)])
    return Section("What it does inside", [words, points, Drawings(drawings)], anchor="inside")


def notebook(inspection: Inspection) -> str:
    """For a notebook's cell: where the model looks on images, or the first charts; and a line for each measure."""
    title = f"{' against '.join(inspection.names)} on {inspection.seen}"
    blocks: list[Block] = [Text(title), *(Note(note, "warn") for note in inspection.notes), *_untrained(inspection)]
    names = dict.fromkeys([*PICTURED_FIRST, *inspection.found])
    panels = [panel for name in names for figure in figures_of(inspection, name) for panel in figure.panels]
    photos = [panel for panel in panels if panel.chart.has_photos][:1]
    drawings = [Drawing(panel.chart, heading=panel.heading) for panel in photos or panels[:MAX_CHARTS_IN_CELL]]
    table = Table(["measure", "what it says"], [list(row) for row in inspection.rows()])
    return pages.fragment([*blocks, pages.Columns([*drawings, table])])


def _words() -> Block:
    rows: list[list[str | pages.Bar]] = [[word, meaning] for word, meaning in LOOK_WORDS.items()]
    return pages.Fold("What the words on this page mean", [Table(["", ""], rows), Text(f"The papers: {PAPERS_NOTE}")])


def _kind(inspection: Inspection) -> str:
    model = inspection.model
    size, grid = model["config"].get("image_size", []), model.get("grid", [])
    kind = {"ViT": "A Vision Transformer", "BiT": "A BiT ResNet", "hybrid": "A hybrid"}.get(
        model["kind"], model["kind"]
    )
    places = f"{'×'.join(map(str, grid))} {architecture.places(from_json(model['config']))}"
    return f"{kind} for {'×'.join(map(str, size))} pixels, {places}"


def _ranked(inspection: Inspection) -> list[str]:
    """The measures of this model, the most telling first."""
    ranks = {name: inspection.measures[name].rank for name in inspection.found}
    known = {name: (_says_little(inspection, name), rank) for name, rank in ranks.items() if rank is not None}
    return sorted(known, key=known.__getitem__)


def _says_little(inspection: Inspection, name: str) -> bool:
    return inspection.measures[name].says_little(inspection.found[name])


def _telling(inspection: Inspection) -> list[tuple[str, str]]:
    """At most ten lines with numbers, in the order of the measures; at the end what says little."""
    told = inspection.told()
    chosen = [name for name in _ranked(inspection) if name in told][:TOP_LINES]
    in_order = sorted((name for name in told if name in chosen), key=lambda name: _says_little(inspection, name))
    return [(name, unbroken(sentence(told[name]))) for name in in_order]


def _untrained(inspection: Inspection) -> Iterator[Block]:
    if inspection.untrained:
        yield Note(inspection.untrained, "warn")


def _answer(inspection: Inspection) -> str:
    """What the only model says of the only image."""
    shown, is_one = inspection.shown, len(inspection.shown) == 1 and inspection.against is None
    return unbroken(f"{shown[0].name}: {said}") if is_one and (said := shown[0].given[0].said) else ""


def _images(inspection: Inspection) -> Iterator[Block]:
    """Each of a few images beside what each model gets of it, and the model's answer."""
    groups = []
    for image in inspection.shown:
        pictures, told = [pages.picture(image.pixels, image.name, _size(image.pixels))], []
        for name, given in zip(inspection.names, image.given, strict=True):
            who, begin = (name, name) if inspection.against else ("the model", "The model")
            about = _size(given.pixels) + (", grey" if given.is_grey else "")
            pictures.append(pages.picture(given.pixels, f"what {who} gets", about))
            said = f"{begin} says: {given.said}." if given.said and not _answer(inspection) else ""
            told += [said, given.about, f"{begin} gets the image {given.how}."]
        groups.append(pages.Group(pictures, unbroken(" ".join(filter(None, told)))))
    if len(groups) == 1:
        yield pages.Pictures([replace(groups[0], caption="")])
        yield Text(groups[0].caption)
    elif groups:
        yield pages.Pictures(groups)


def _size(pixels: NDArray[np.uint8]) -> str:
    return f"{pixels.shape[1]} × {pixels.shape[0]} pixels"


def _lines(inspection: Inspection) -> Iterator[Section]:
    if lines := _telling(inspection):
        who = inspection.names[0] if inspection.against else "this model"
        yield Section(f"What {who} does", [Points([Point(text, name) for name, text in lines])], anchor="short")


def _measure(inspection: Inspection, figures: Figures, name: str, has_maps: bool) -> Iterator[Block]:
    measure = inspection.measures[name]
    yield Text(measure.sentence)
    yield from _notes(inspection, name)
    if name == "attention-maps" and has_maps:
        yield pages.Widget(looker(inspection))
    rows = _side_by_side([list(_drawings(inspection, figures, name, side)) for side in (0, 1)])
    yield from (Drawings(row) for row in rows)
    found = inspection.found.get(name) or inspection.found_against.get(name)
    if found is not None and not rows:
        yield from _table(measure.rows(found))
    is_untrained = all(model.get("is_untrained") for model in inspection.models)
    saw = "the papers saw in trained models" if is_untrained else "the papers saw"
    facts: list[list[str | pages.Bar]] = [[saw, measure.saw], ["in the papers", measure.figure]]
    if found is not None:
        facts += [["how", how] for how in [measure.method(found)] if how]
        files = ", ".join(figure.name for side in (0, 1) for figure in figures.get((name, side), []))
        facts += [["files", f"figures/{files}"]] if files else []
    yield Table(["", ""], facts)


def _side_by_side(sides: list[list[Drawing]]) -> list[list[Drawing]]:
    """The same panel of both models side by side; each model in its own row if their panels differ."""
    one, other = sides
    if len(one) == len(other):
        return [[drawing for both in zip(one, other, strict=True) for drawing in both]] if one else []
    return [side for side in sides if side]


def _notes(inspection: Inspection, name: str) -> Iterator[Block]:
    """The line of each model, or why it has none."""
    measure, names = inspection.measures[name], inspection.names
    both = (inspection.found, inspection.skipped), (inspection.found_against, inspection.skipped_against)
    for side, (found, skipped) in enumerate(both[: len(names)]):
        is_named = len(names) > 1 or inspection.model.get("is_untrained")
        who = f"{names[side]}: " if is_named and not measure.is_pair else ""
        if name in found and inspection.is_said(name, side):
            text = inspection.says(name, found[name])
            yield Note(f"{who}{unbroken(text)}." if who else unbroken(sentence(text)))
        elif name in skipped:
            yield Note(f"{who}not measured: {skipped[name]}." if who else f"Not measured: {skipped[name]}.")


def _drawings(inspection: Inspection, figures: Figures, name: str, side: int) -> Iterator[Drawing]:
    names = inspection.names
    is_pair = inspection.measures[name].is_pair
    for figure in figures.get((name, side), []):
        for panel in figure.panels:
            is_named = len(names) > 1 or inspection.model.get("is_untrained")
            whose = " and ".join(names) if is_pair else names[side] if is_named else ""
            yield Drawing(
                panel.chart, caption=" · ".join(word for word in (whose, figure.name) if word), heading=panel.heading
            )


def _table(rows: list[Found]) -> Iterator[Block]:
    """The rows of a measure that draws nothing."""
    if rows:
        head = list(rows[0])
        cells: list[list[str | pages.Bar]] = [[_cell(row.get(key)) for key in head] for row in rows]
        yield Table(
            head,
            cells[:MAX_TABLE_ROWS],
            caption="" if len(rows) <= MAX_TABLE_ROWS else f"the first {MAX_TABLE_ROWS} of {len(rows):,} rows",
        )


def _cell(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else "–" if value is None else str(value)


def _cells(figures: Figures) -> list[dict[str, Any]]:
    """For each heatmap with cells: its measure, its title, its place among those of that title, names, thousandths."""
    out: list[dict[str, Any]] = []
    for name in dict.fromkeys(name for name, _ in figures):
        drawn = [figure for side in (0, 1) for figure in figures.get((name, side), [])]
        places: dict[str, int] = {}
        for panel in (panel for figure in drawn for panel in figure.panels):
            if (cells := panel.cells) is not None:
                title = panel.chart.title
                place = places[title] = places.get(title, -1) + 1
                numbers = [None if value is None else round(1000 * value) for row in cells.values for value in row]
                names = {"rows": cells.rows, "columns": cells.columns}
                out.append({"section": name, "title": title, "place": place, **names, "thousandths": numbers})
    return out


def _architecture(inspection: Inspection) -> Section:
    """Each model drawn whole."""
    drawings = [
        Drawing(architecture.drawing(from_json(model["config"]), name), heading=name if inspection.against else "")
        for model, name in zip(inspection.models, inspection.names, strict=True)
    ]
    words = Text("From image to answer: each part, what leaves it, and how many numbers it learns.")
    captions: list[Block] = [Text(f"{each.chart.title}.") for each in drawings]
    return Section("The whole model", [words, *captions, Drawings(drawings)], anchor="architecture")


def _about(inspection: Inspection) -> Section:
    model, record = inspection.model, inspection.record
    rows: list[list[str | pages.Bar]] = [
        ["model", _typed(str(model["name"]))],
        ["digest", str(model.get("digest", ""))],
        [
            "images",
            f"{inspection.data['images']:,} of {_typed(str(inspection.data['path']))} "
            f"({inspection.data.get('content_id', '')})",
        ],
        ["settings", ", ".join(f"{key} {value}" for key, value in inspection.settings.items())],
        ["versions", ", ".join(f"{key} {value}" for key, value in record.get("versions", {}).items() if value)],
        ["commit", str(record.get("commit", ""))],
        ["command", _command(inspection)],
    ]
    if inspection.against:
        rows.insert(2, ["against", _typed(str(inspection.against["name"]))])
    config = json.dumps({"config": model.get("config"), "preprocess": model.get("preprocess")}, indent=1)
    blocks: list[Block] = [Table(["", ""], rows), pages.Fold("Configuration", [pages.Code(config)])]
    return Section("How to repeat it", blocks, anchor="about")


def _command(inspection: Inspection) -> str:
    """The command, to be pasted: the record keeps only the end of a path, here it stands as typed."""
    paths = [str(model["name"]) for model in inspection.models]
    paths.insert(1, str(inspection.data["path"]))
    waiting: dict[str, list[str]] = {}
    for path in (path for path in paths if Path(path).is_absolute()):
        waiting.setdefault(Path(path).name, []).append(_typed(path))
    words = [str(word) for word in inspection.record.get("command", [])]
    return " ".join(_quoted(waiting[word].pop(0) if waiting.get(word) else word) for word in words)


def _typed(path: str) -> str:
    """A path as it was typed, but the user's own folder as ~: the page may be given away."""
    home = os.environ.get("HOME", "").rstrip("/")
    return f"~{path.removeprefix(home)}" if home and path.startswith(f"{home}/") else path


def _quoted(word: str) -> str:
    """For a shell, which must still see the ~."""
    return f"~/{shlex.quote(word[2:])}" if word.startswith("~/") else shlex.quote(word)
