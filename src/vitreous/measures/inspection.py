"""What `look` found: a plain value, and the folder it is written to."""

from __future__ import annotations

import io
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitreous.files import write_bytes, write_json
from vitreous.images.sources.paths import is_image_name
from vitreous.measures.drawing import short_name, short_names
from vitreous.measures.measure import Found, Measure
from vitreous.words import counted

LOOK_SCHEMA = "vitreous.look/1"


@dataclass(frozen=True, eq=False)
class Inspection:
    """All numbers of one look: by measure, for the model and for the one it is compared with."""

    model: dict[str, Any]  # name, digest, parameters, config, preprocess
    data: dict[str, Any]
    settings: dict[str, Any]
    measures: Mapping[str, Measure]  # those that were asked for
    found: dict[str, Found]
    skipped: dict[str, str] = field(default_factory=dict)  # why a measure has no meaning here
    against: dict[str, Any] | None = None
    found_against: dict[str, Found] = field(default_factory=dict)
    skipped_against: dict[str, str] = field(default_factory=dict)
    arrays: dict[str, dict[str, NDArray[Any]]] = field(default_factory=dict)  # measure -> what JSON is too small for
    notes: tuple[str, ...] = ()
    seconds: float = 0.0
    record: dict[str, Any] = field(default_factory=dict)

    def __getitem__(self, measure: str) -> Found:
        if measure in self.found:
            return self.found[measure]
        why = self.skipped.get(measure, f"it has: {', '.join(self.found)}")
        raise KeyError(f"{measure} was not measured: {why}")

    def to_json(self) -> dict[str, Any]:
        told = {
            name: {"sentence": m.sentence, "figure": m.figure, "papers_saw": m.saw} for name, m in self.measures.items()
        }
        body: dict[str, Any] = {"schema": LOOK_SCHEMA, "model": self.model, "against": self.against, "data": self.data}
        body |= {"settings": self.settings, "measures": told, "summary": self.lines(), "found": self.found}
        body |= {"skipped": self.skipped, "found_against": self.found_against}
        body |= {"skipped_against": self.skipped_against, "notes": list(self.notes), "seconds": round(self.seconds, 3)}
        return body | {"record": self.record}

    @property
    def names(self) -> list[str]:
        """What people call the model, and the one it is compared with."""
        models = [self.model, *([self.against] if self.against else [])]
        return short_names([str(model["name"]) for model in models])

    @property
    def seen(self) -> str:
        """What the model saw: `husky.jpg`, or `512 images of photos`."""
        path = short_name(str(self.data["path"]))
        return (
            path
            if self.data["images"] == 1 and is_image_name(path)
            else f"{counted(self.data['images'], 'image')} of {path}"
        )

    def says(self, name: str, found: Found) -> str:
        """The line of a measure, with a caution if the images are too few."""
        measure = self.measures[name]
        caution = measure.caution(self.data["images"])
        return measure.says(found) + ("" if caution is None else f"; careful: {caution}")

    def lines(self) -> list[str]:
        """What this model does, a line for each measure."""
        return [self.says(name, found) for name, found in self.found.items()]

    def rows(self) -> list[tuple[str, str]]:
        """Each measure and its line, or why it has none."""
        rows = list(zip(self.found, self.lines(), strict=True))
        rows += [(f"{name} (against)", self.says(name, found)) for name, found in self.found_against.items()]
        return rows + [(name, f"not measured: {why}") for name, why in self.skipped.items()]

    def __str__(self) -> str:
        versus = f" against {self.against['name']}" if self.against else ""
        first = f"{self.model['name']}{versus} on {self.seen}"
        rows = self.rows()
        width = max((len(name) for name, _ in rows), default=0)
        return "\n".join([first, *(f"{name:<{width}}  {text}" for name, text in rows), *self.notes])

    __repr__ = __str__  # at a prompt

    def _repr_html_(self) -> str:
        from vitreous.measures.page import notebook  # it draws an Inspection

        return notebook(self)


def write(inspection: Inspection, out: str | os.PathLike[str], *, figures: str | None = None) -> None:
    """All of it into the folder: inspection.json, look.html, figures under the papers' names, arrays/MEASURE.npz.

    figures: P1 or P2; that paper's figures are written as PDF and LaTeX too.
    """
    from vitreous.measures.figures import draw, write_figures  # they draw an Inspection
    from vitreous.measures.page import write_page

    folder = Path(out)
    for name, arrays in inspection.arrays.items():
        save_arrays(folder / "arrays" / f"{name}.npz", arrays)
    write_json(folder / "inspection.json", inspection.to_json(), force=True, indent=None, ensure_ascii=False)
    drawn = draw(inspection)
    write_figures(inspection, drawn, folder / "figures", papers=figures)
    write_page(inspection, folder / "look.html", figures=drawn)


def save_arrays(path: Path, arrays: Mapping[str, NDArray[Any]]) -> None:
    held = io.BytesIO()
    np.savez_compressed(held, allow_pickle=False, **arrays)
    write_bytes(path, held.getvalue(), force=True)
