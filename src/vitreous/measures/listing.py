"""The table of measures, for people and as JSON."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from vitreous.measures import MEASURES


@dataclass(frozen=True)
class MeasureList:
    """Every measure with what it shows, where the papers draw it and what it costs."""

    rows: tuple[dict[str, str], ...]

    def to_json(self) -> dict[str, Any]:
        return {"measures": list(self.rows)}

    def __str__(self) -> str:
        width = max(len(row["name"]) for row in self.rows)
        return "\n".join(
            f"{row['name']:<{width}}  {row['sentence']}\n{'':<{width}}  {row['figure']}; {row['cost']}"
            for row in self.rows
        )


def listing() -> MeasureList:
    """The measures that `look` knows."""
    return MeasureList(
        tuple(
            {"name": m.name, "sentence": m.sentence, "figure": m.figure, "papers_saw": m.saw, "cost": m.cost}
            for m in MEASURES.values()
        )
    )
