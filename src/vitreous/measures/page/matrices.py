"""The numbers of heatmaps, for the page's script: under the pointer, a cell tells its number."""

from __future__ import annotations

from typing import Any

from vitreous.measures.figures import Figures


def matrices(figures: Figures) -> list[dict[str, Any]]:
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
