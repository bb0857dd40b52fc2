"""What `look` found: a plain value, and the folder it is written to."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitreous.files import write_bytes, write_json
from vitreous.images.sources.paths import is_image_name
from vitreous.measures.drawing import short_name, short_names
from vitreous.measures.measure import Found, Measure
from vitreous.measures.shown import ShownImage
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
    shown: tuple[ShownImage, ...] = ()  # of a look at few images
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
        body |= {"settings": self.settings, "shown": [each.to_json() for each in self.shown]}
        body |= {"measures": told, "summary": self.lines(), "found": self.found}
        body |= {"skipped": self.skipped, "found_against": self.found_against}
        body |= {"skipped_against": self.skipped_against, "notes": list(self.notes), "seconds": round(self.seconds, 3)}
        return body | {"record": self.record}

    @property
    def models(self) -> list[dict[str, Any]]:
        """The model, and the one it is compared with."""
        return [self.model, *([self.against] if self.against else [])]

    @property
    def names(self) -> list[str]:
        """What people call them."""
        return short_names([str(model["name"]) for model in self.models])

    @property
    def untrained(self) -> str:
        """Which model has random weights, and what that means; empty if both are trained."""
        names = [name for name, model in zip(self.names, self.models, strict=True) if model.get("is_untrained")]
        if len(names) < len(self.models):
            return f"{names[0]}: untrained, drawn beside for comparison only." if names else ""
        them = "it" if len(names) == 1 else "them"
        return f"{' and '.join(names)}: untrained. Numbers and figures of {them} say nothing about learning."

    @property
    def seen(self) -> str:
        """What the model saw: `husky.jpg`, or `512 images of photos`."""
        path = short_name(str(self.data["path"]))
        return (
            path
            if self.data["images"] == 1 and is_image_name(path)
            else f"{counted(self.data['images'], 'image')} of {path}"
        )

    def answered(self, side: int) -> str:
        """The model's answer to the only image, in few words; empty for several images."""
        return self.shown[0].given[side].phrase if len(self.shown) == 1 else ""

    def says(self, name: str, found: Found) -> str:
        """The line of a measure, with a caution if the images are too few."""
        measure = self.measures[name]
        caution = measure.caution(self.data["images"])
        return measure.says(found) + ("" if caution is None else f"; careful: {caution}")

    def is_said(self, name: str, side: int = 0) -> bool:
        """False for a number of random weights, or of a comparison with them: it is no finding."""
        models = self.models if self.measures[name].is_pair else [self.models[side]]
        return not any(model.get("is_untrained") for model in models)

    def told(self, side: int = 0) -> dict[str, str]:
        """The line of each measure, but for numbers of random weights."""
        found = (self.found, self.found_against)[side]
        return {name: self.says(name, numbers) for name, numbers in found.items() if self.is_said(name, side)}

    def lines(self) -> list[str]:
        """What this model does, a line for each measure."""
        return list(self.told().values())

    def rows(self) -> list[tuple[str, str]]:
        """The answer to each of a few images; each measure and its line, or why it has none."""
        rows = list(self._answers())
        rows += self.told().items()
        if self.against:
            rows += [(f"{name} (against)", text) for name, text in self.told(1).items()]
        return rows + [(name, f"not measured: {why}") for name, why in self.skipped.items()]

    def _answers(self) -> Iterator[tuple[str, str]]:
        for side, ending in enumerate(("", " (against)")[: len(self.names)]):
            for image in self.shown:
                given, name = image.given[side], f"{image.name}: " if len(self.shown) > 1 else ""
                if given.said:
                    yield f"answer{ending}", f"{name}{given.said}"
                yield f"image{ending}", f"{name}the model gets it {given.how}"

    def __str__(self) -> str:
        versus = f" against {self.against['name']}" if self.against else ""
        first = f"{self.model['name']}{versus} on {self.seen}"
        rows = self.rows()
        width = max((len(name) for name, _ in rows), default=0)
        lines = (f"{name:<{width}}  {text}" for name, text in rows)
        return "\n".join([first, *filter(None, [self.untrained]), *lines, *self.notes])

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
