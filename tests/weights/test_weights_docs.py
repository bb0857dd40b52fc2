"""The tables of docs/guide/weights.md that are made from comparisons and rows.

To write them anew: VITREOUS_WRITE_DOCS=1 pytest -n0 tests/weights/test_weights_docs.py
"""

import json

from doc_blocks import DOCS, assert_block
from shared_files import ROOT

from vitreous.weights.originals import ORIGINS

PAGE = DOCS / "guide" / "weights.md"


def rows_of(verdict: str) -> dict[str, dict]:
    rows = json.loads((ROOT / "benchmarks" / "results" / "huggingface_classes.json").read_text())["rows"]
    return {name: row for name, row in rows.items() if row["verdict"] == verdict}


def table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = ["| " + " | ".join(row) + " |\n" for row in [head, ("---",) * len(head), *rows]]
    return "".join(lines).replace("| --- ", "|---").replace("--- |", "---|")


def test_the_table_of_classes_that_run():
    cells = [
        (name, f"`{row['class']}`", f"{row['float32']:.0e}".replace("e-0", "e-"), saved(row), beside(row))
        for name, row in rows_of("agree").items()
    ]
    head = ("what", "class", "largest difference", "saved as", "left out")
    assert_block(PAGE, "huggingface", table(head, cells))


def saved(row: dict) -> str:
    if row["saved as"] is None:
        return row["why not saved"].partition(": ")[2].join(["no: `", "`"])
    return "the same class" if row["saved as"] == row["class"] else f"`{row['saved as']}`"


def beside(row: dict) -> str:
    return ", ".join(part.partition(" (")[0] for part in row.get("left out", [])) or "–"


def test_the_table_of_classes_that_are_refused():
    cells = []
    for name, row in rows_of("refused").items():
        said = row["why"].replace("FOLDER ", "")
        said = said.partition(": ")[2] if said.startswith("is transformers'") else said
        cells.append((name, f"`{row['class']}`", said.partition("; to run its tensors")[0]))
    assert_block(PAGE, "huggingface-refused", table(("what", "class", "why"), cells))


def test_the_table_of_authors():
    cells = []
    for origin in ORIGINS:
        heads = ", ".join(f"{count} heads at width {width}" for width, count in origin.heads.items())
        side = round(224 * origin.resize)
        cells.append((
            origin.name, origin.encoder.strip(".") or "–", ", ".join(dict.fromkeys(origin.beside.values())) or "–",
            f"short side {side}, {origin.interpolation}, crop 224, ImageNet's mean", heads or "–",
        ))  # fmt: skip
    head = ("code of", "network taken", "left out", "preprocessing", "of its own")
    assert_block(PAGE, "originals", table(head, cells))
