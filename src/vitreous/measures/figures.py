"""Figures of an inspection as files, named as in the papers: SVG, PNG and CSV; for a paper's own also PDF and LaTeX.

figures/P1-fig7-attention-distance.svg .png .csv      .pdf .tex and papers.bib under `figures="P1"`
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vitreous.errors import ConfigError
from vitreous.files import write_bytes
from vitreous.measures.drawings import DRAWINGS
from vitreous.measures.inspection import Inspection
from vitreous.measures.measure import Found, Measure
from vitreous.report import files as report_files
from vitreous.report.files import Panel
from vitreous.words import sentence

__all__ = [
    "PAPERS",
    "Figure",
    "Figures",
    "check_papers",
    "draw",
    "figures_of",
    "method_of",
    "paper_name",
    "short_name",
    "title_of",
]
__all__ += ["write_figures"]

PAPERS = ("P1", "P2")
BIBTEX = """@inproceedings{P1,
  title     = {An Image is Worth 16x16 Words: Transformers for Image Recognition at Scale},
  author    = {Dosovitskiy, Alexey and Beyer, Lucas and Kolesnikov, Alexander and Weissenborn, Dirk and Zhai, Xiaohua
               and Unterthiner, Thomas and Dehghani, Mostafa and Minderer, Matthias and Heigold, Georg
               and Gelly, Sylvain and Uszkoreit, Jakob and Houlsby, Neil},
  booktitle = {International Conference on Learning Representations},
  year      = {2021},
  note      = {arXiv 2010.11929}
}

@inproceedings{P2,
  title     = {Do Vision Transformers See Like Convolutional Neural Networks?},
  author    = {Raghu, Maithra and Unterthiner, Thomas and Kornblith, Simon and Zhang, Chiyuan and Dosovitskiy, Alexey},
  booktitle = {Advances in Neural Information Processing Systems},
  year      = {2021},
  note      = {arXiv 2108.08810}
}

@software{vitreous,
  title   = {vitreous: a see-through workbench for Vision Transformers},
  author  = {{The vitreous contributors}},
  version = {VERSION}
}
"""
METHODS: dict[str, Callable[[Found], str]] = {
    "attention-distance": lambda f: (
        f"Mean over {f['images']:,} images and all patches of Σ attention × distance, patches {_px(f['patch_px'])} "
        "apart; tokens in front are left out, and rows are not renormalised."
    ),
    "attention-entropy": lambda f: (
        f"−Σ a ln a over all tokens, mean over all queries of {f['images']:,} images, each head by itself."
    ),
    "class-attention": lambda f: (
        f"Row and column of the class token, mean over heads and {f['images']:,} images; from patches: mean over them."
    ),
    "head-likeness": lambda f: (
        f"Cosine between the whole attention matrices of two heads of a block, mean over {f['images']:,} images."
    ),
    "attention-maps": lambda f: (
        f"{f['images']} images; patches as queries and keys {_pooled(f)}, each map as bytes of its own largest weight."
    ),
    "rollout": lambda f: (
        "Attention of every block, mean over heads, plus the identity of the skip, rows divided by their sum, and all "
        f"blocks multiplied; then what the head reads, over {f['images']:,} images."
    ),
    "patch-filters": lambda f: (
        "Singular vectors of the patch projection, the mean filter taken out; each drawn on its own scale, grey is 0."
    ),
    "positions": lambda f: (
        "Cosine between the position vectors of every two patches; a tile is one place against all, laid out as the "
        f"image is{_every(f['tile_step'])}."
    ),
    "embeddings-change": lambda f: (
        "Filters: mean squared cosine between the spaces of 28 components. Positions: correlation of the two cosine "
        "patterns over all pairs of places."
    ),
    "similarity": lambda f: _cka(f),
    "similarity-across": lambda f: (
        _cka(f) + " The line joins, for each block, the block of the other model most like it."
    ),
    "heads-against-layers": lambda f: (
        f"Heads of the first block sorted by distance, {f['heads_joined']} neighbours taken together as one "
        "representation; unbiased linear CKA with each unit of the first two stages."
    ),
    "skip-ratio": lambda f: (
        f"‖skip‖ / ‖branch‖ of every token where they meet, mean over {f['images']:,} images; bands are two standard "
        "errors over images."
    ),
    "localisation": lambda f: (
        f"Unbiased linear CKA of each token of the last block with each patch of the image, over {f['images']:,} "
        f"images; {f['asked']} tokens{' drawn by the seed' if f['sampled'] else ''}."
    ),
    "probes": lambda f: (
        f"Regularised least squares on frozen features of each layer: {f['shots']} images a class, {f['seeds']} draws; "
        f"and all {f['fitted_on']:,}. Judged on {f['images']:,} test images{_unread(f)}."
    ),
    "token-probes": lambda f: (
        f"Regularised least squares on each token by itself: {f['shots']} images a class "
        f"({f['fitted_on']:,} in all), mean of {f['seeds']} draws, judged on {f['images']:,} test images, so that one "
        f"standard error of a token is about {100 * max(layer['error'] for layer in f['layers']):.0f} points. Rows of "
        f"{f['held']:,} images in float16 ({f['held_at_most']:,} at most){_asked(f)}{_still(f)}."
    ),
    "logit-lens": lambda f: (
        f"Final norm, pool and head on every block's output, over {f['images']:,} images, against the model's answer; "
        "bands are two standard errors."
    ),
    "receptive-field": lambda f: (
        f"Gradient of the centre place with respect to the image, absolute, mean over {f['images']} images and "
        f"{_channels(f['channels'])}; bands are two standard errors over images."
    ),
    "skip-removal": lambda f: (
        f"One block at a time loses its skip connections, the model otherwise as it is; {f['images']} images."
    ),
    "shift": lambda f: (
        f"{f['images']} images moved to the right, their left edge repeated; against the image as it was."
    ),
}


@dataclass(frozen=True)
class Figure:
    """One figure of one measure, ready to be written. name: as its files are called."""

    name: str
    title: str
    panels: tuple[Panel, ...]
    caption: str
    method: str
    rows: list[dict[str, Any]]

    @property
    def paper(self) -> str:
        """P1 or P2; empty where the papers have no such figure."""
        first = self.name.partition("-")[0]
        return first if first in PAPERS else ""

    def svg(self) -> str:
        return report_files.sheet(self.panels, heading=self.title, caption=f"{self.caption} {self.method}".strip())


Figures = dict[tuple[str, int], list[Figure]]  # by measure and side


def title_of(measure: str) -> str:
    """attention-distance as a heading."""
    return (measure[:1].upper() + measure[1:]).replace("-", " ")


def short_name(model: str) -> str:
    """The last part of a path; other words for a model as they are (S/16 is no path)."""
    is_path = Path(model).is_absolute() or model.startswith(("./", "../", "~")) or Path(model).exists()
    return (Path(model).name or model) if is_path else model


def method_of(measure: str, found: Found) -> str:
    """How it was measured, in a sentence; empty for measures from outside."""
    return METHODS[measure](found) if measure in METHODS else ""


def paper_name(measure: Measure) -> str:
    """A measure's name as its files have it: P1-fig7-attention-distance; plain where the papers have no such figure."""
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
    arrays = inspection.arrays.get(("attention-maps" if name == "rollout" else name) + ending, {})
    drawn = DRAWINGS[name](found, beside, arrays) if name in DRAWINGS else []
    model = inspection.against if side and inspection.against else inspection.model
    data = f"{inspection.data['images']:,} images of {short_name(inspection.data['path'])}"
    caption = f"{sentence(measure.says(found))} {short_name(model['name'])} on {data}."
    rows, method = measure.rows(found), method_of(name, found)
    return [
        Figure(
            f"{each.paper}-{name}{ending}".lstrip("-"),
            f"{title_of(name)}: {short_name(model['name'])}",
            tuple(each.panels),
            caption,
            method,
            rows,
        )
        for each in drawn
    ] or [Figure(paper_name(measure) + ending, title_of(name), (), caption, method, rows)]


def check_papers(papers: str | None, out: object) -> None:
    """An error where the paper is none of ours, or a PDF cannot be made; before the work begins."""
    if papers is None:
        return
    if papers not in PAPERS:
        raise ConfigError(f"there is no paper {papers!r} to take figures from; say --figures {' or '.join(PAPERS)}")
    if out is None:
        raise ConfigError(f"the figures of {papers} need a folder to be written to; say --out DIR")
    report_files.need_matplotlib()


def write_figures(inspection: Inspection, figures: Figures, folder: Path, *, papers: str | None = None) -> None:
    """Every figure into the folder; those of `papers` (P1 or P2) as PDF and LaTeX too."""
    for figure in (figure for drawn in figures.values() for figure in drawn):
        if figure.rows:
            write_bytes(folder / f"{figure.name}.csv", _csv(figure.rows), force=True)
        if figure.panels:
            svg = figure.svg()
            write_bytes(folder / f"{figure.name}.svg", svg.encode(), force=True)
            write_bytes(folder / f"{figure.name}.png", report_files.png(svg), force=True)
            if papers is not None and figure.paper == papers:
                bare = report_files.sheet(figure.panels, heading=figure.title)
                made = report_files.pdf(bare, title=figure.caption, subject=figure.method)
                write_bytes(folder / f"{figure.name}.pdf", made, force=True)
                write_bytes(folder / f"{figure.name}.tex", _latex(figure).encode(), force=True)
    if papers is not None:
        version = str(inspection.record.get("versions", {}).get("vitreous", ""))
        write_bytes(folder / "papers.bib", BIBTEX.replace("VERSION", version).encode(), force=True)


def _csv(rows: list[dict[str, Any]]) -> bytes:
    text = io.StringIO(newline="")
    table = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    table.writeheader()
    table.writerows(rows)
    return text.getvalue().encode()


def _latex(figure: Figure) -> str:
    """A figure environment with caption, method and what to cite."""
    number = figure.name.split("-")[1].removeprefix("fig")
    said = _escaped(f"{figure.caption} {figure.method}")
    return (
        "\\begin{figure}\n  \\centering\n"
        f"  \\includegraphics[width=\\linewidth]{{{figure.name}.pdf}}\n"
        f"  \\caption{{{said} After figure {number} of \\cite{{{figure.paper}}}; drawn by \\cite{{vitreous}}.}}\n"
        f"  \\label{{fig:{figure.name}}}\n\\end{{figure}}\n"
    )


def _escaped(text: str) -> str:
    text = re.sub(r"([&%$#_{}])", r"\\\1", text.replace("\\", "/"))
    signs: Mapping[str, str] = {"Σ": r"$\Sigma$", "×": r"$\times$", "−": r"$-$", "‖": r"$\|$", "~": r"\~{}"}
    for sign, words in signs.items():
        text = text.replace(sign, words)
    return text


def _px(patch: list[float]) -> str:
    tall, wide = patch
    return f"{tall:g} px" if tall == wide else f"{tall:g} and {wide:g} px"


def _pooled(found: Found) -> str:
    (h, w), (rows, columns) = found["grid"], found["pooled_to"]
    return f"{h}×{w}, none pooled" if (h, w) == (rows, columns) else f"pooled from {h}×{w} to {rows}×{columns}"


def _every(step: int) -> str:
    return "" if step == 1 else f", one place in {step}"


def _asked(found: Found) -> str:
    """Of which grids some places alone were asked."""
    steps = dict.fromkeys((*layer["grid"], layer["step"]) for layer in found["layers"] if layer["step"] > 1)
    words = [f"one row and column in {step} of {h}×{w}" for h, w, step in steps]
    return f"; at most {found['places_at_most']} places are asked: {', '.join(words)}" if words else ""


def _unread(found: Found) -> str:
    names = found.get("constant")
    return f"; what is the same in all images fitted on counts as chance: {', '.join(names)}" if names else ""


def _still(found: Found) -> str:
    layers = [f"{layer['constant']} of {layer['layer']}" for layer in found["layers"] if layer["constant"]]
    return f"; places that are the same in all shots count as chance: {', '.join(layers)}" if layers else ""


def _channels(count: int | str) -> str:
    return "all channels" if count == "all" else f"{count} channels drawn by the seed"


def _batches(count: int) -> str:
    return "one batch" if count == 1 else f"{count:,} batches"


def _cka(found: Found) -> str:
    return (
        f"Linear CKA, unbiased, on {found['images']:,} images in {_batches(found['batches'])}: HSIC is averaged over "
        "batches first and the ratio taken last; all tokens of a layer are one vector."
    )
