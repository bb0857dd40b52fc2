"""The numbers of the heatmaps of likeness, for the page's script: pointed at, a cell says what it is."""

from __future__ import annotations

from typing import Any

from vitreous.measures.inspection import Inspection

__all__ = ["matrices"]

TITLES = {  # of the heatmap's drawing, by measure
    "similarity": "CKA of all pairs of layers",
    "similarity-across": "CKA of the layers of two models, and the best match of each",
}


def matrices(inspection: Inspection) -> list[dict[str, Any]]:
    """For each heatmap in the page: its measure, its title, which of the same title, names and thousandths."""
    out = []
    for name, title in TITLES.items():
        founds = [found[name] for found in (inspection.found, inspection.found_against) if name in found]
        for place, found in enumerate(founds):
            cells = [None if value is None else round(1000 * value) for row in found["cka"] for value in row]
            names = {"rows": found["rows_of_matrix"], "columns": found["columns_of_matrix"]}
            out.append({"section": name, "title": title, "place": place, **names, "thousandths": cells})
    return out
