"""Figures of an inspection as files, named as in the papers.

figures/P1-fig7-attention-distance.svg .csv     .png by the extra `plot`     .pdf .tex and papers.bib by `figures="P1"`
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vitreous.errors import ConfigError
from vitreous.files import write_bytes
from vitreous.measures.inspection import Inspection
from vitreous.measures.measure import Measure
from vitreous.report import files as report_files
from vitreous.report.files import Panel, Sheet
from vitreous.words import sentence

PAPERS = ("P1", "P2")


@dataclass(frozen=True)
class Figure:
    """One figure of one measure, ready to be written. name: of its files."""

    name: str
    title: str
    panels: tuple[Panel, ...]
    caption: str
    method: str
    rows: list[dict[str, Any]]

    @property
    def paper(self) -> str:
        """P1 or P2; empty for a figure of our own."""
        first = self.name.partition("-")[0]
        return first if first in PAPERS else ""

    def sheet(self) -> Sheet:
        """Its panels over caption and method."""
        return report_files.sheet(self.panels, heading=self.title, caption=f"{self.caption} {self.method}".strip())


Figures = dict[tuple[str, int], list[Figure]]  # by measure and side


def title_of(measure: str) -> str:
    """attention-distance as a heading."""
    return (measure[:1].upper() + measure[1:]).replace("-", " ")


def paper_name(measure: Measure) -> str:
    """The name of a measure's files: P1-fig7-attention-distance; its plain name if the papers have no such figure."""
    is_theirs = not measure.figure.startswith(("not in", "beside"))
    found = re.search(r"\b(P[12]) figures? (\w+(?:\.\d+)?)", measure.figure) if is_theirs else None
    return measure.name if found is None else f"{found[1]}-fig{found[2]}-{measure.name}"


def draw(inspection: Inspection) -> Figures:
    """Every figure, by measure and side."""
    founds = enumerate((inspection.found, inspection.found_against))
    return {(name, side): figures_of(inspection, name, side) for side, found in founds for name in found}


def figures_of(inspection: Inspection, name: str, side: int = 0) -> list[Figure]:
    """The figures of a measure for one of the models. side: 1 for the model that is compared with."""
    founds = inspection.found, inspection.found_against
    if name not in founds[side]:
        return []
    measure, found, beside = inspection.measures[name], founds[side][name], founds[1 - side].get(name)
    ending = "-against" if side else ""
    arrays = inspection.arrays.get((measure.arrays_of or name) + ending, {})
    names = inspection.names
    who = " and ".join(names) if measure.is_pair else names[side]
    answer = "" if measure.is_pair else inspection.answered(side)
    says = f"{sentence(measure.says(found))} " if inspection.is_said(name, side) else ""
    caption = f"{says}{who} on {inspection.seen}{f': {answer}' if answer else ''}."
    rows, method = measure.rows(found), measure.method(found)
    return [
        Figure(
            f"{each.paper}-{name}{ending}".lstrip("-"),
            f"{title_of(name)}: {who}",
            tuple(each.panels),
            caption,
            method,
            rows,
        )
        for each in measure.draw(found, beside, arrays)
    ] or [Figure(paper_name(measure) + ending, f"{title_of(name)}: {who}", (), caption, method, rows)]


def check_papers(papers: str | None, out: object) -> None:
    """Refuse, before the work, a paper that we do not draw and a PDF that we cannot make."""
    if papers is None:
        return
    if papers not in PAPERS:
        raise ConfigError(f"there is no paper {papers!r} to take figures from; give --figures {' or '.join(PAPERS)}")
    if out is None:
        raise ConfigError(f"the figures of {papers} need a folder; give --out DIR")
    report_files.need_matplotlib()


def write_figures(inspection: Inspection, figures: Figures, folder: Path, *, papers: str | None = None) -> None:
    """Every figure into the folder; those of `papers` (P1 or P2) as PDF and LaTeX too."""
    for figure in (figure for drawn in figures.values() for figure in drawn):
        if figure.rows:
            write_bytes(folder / f"{figure.name}.csv", _csv(figure.rows), force=True)
        if figure.panels:
            sheet = figure.sheet()
            write_bytes(folder / f"{figure.name}.svg", sheet.to_svg().encode(), force=True)
            if report_files.has_matplotlib():
                write_bytes(folder / f"{figure.name}.png", sheet.to_png(), force=True)
            if papers is not None and figure.paper == papers:
                bare = report_files.sheet(figure.panels, heading=figure.title)
                made = bare.to_pdf(title=figure.caption, subject=figure.method)
                write_bytes(folder / f"{figure.name}.pdf", made, force=True)
                write_bytes(folder / f"{figure.name}.tex", _latex(figure).encode(), force=True)
    if papers is not None:
        version = str(inspection.record.get("versions", {}).get("vitreous", ""))
        cited = Path(__file__).with_name("papers.bib").read_text("utf-8").replace("VERSION", version)
        write_bytes(folder / "papers.bib", cited.encode(), force=True)


def _csv(rows: list[dict[str, Any]]) -> bytes:
    text = io.StringIO(newline="")
    table = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    table.writeheader()
    table.writerows(rows)
    return text.getvalue().encode()


def _latex(figure: Figure) -> str:
    """A figure environment with caption, method and what to cite."""
    number = figure.name.split("-")[1].removeprefix("fig")
    caption = _escaped(f"{figure.caption} {figure.method}")
    return (
        "\\begin{figure}\n  \\centering\n"
        f"  \\includegraphics[width=\\linewidth]{{{figure.name}.pdf}}\n"
        f"  \\caption{{{caption} After figure {number} of \\cite{{{figure.paper}}}; drawn by \\cite{{vitreous}}.}}\n"
        f"  \\label{{fig:{figure.name}}}\n\\end{{figure}}\n"
    )


def _escaped(text: str) -> str:
    text = re.sub(r"([&%$#_{}])", r"\\\1", text.replace("\\", "/"))
    signs: Mapping[str, str] = {"Σ": r"$\Sigma$", "×": r"$\times$", "−": r"$-$", "‖": r"$\|$", "~": r"\~{}"}
    for sign, words in signs.items():
        text = text.replace(sign, words)
    return text
