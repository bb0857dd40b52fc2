"""The tables of docs/guide/weights.md that are made from comparisons and rows.

To write them anew: VITREOUS_WRITE_DOCS=1 pytest -n0 tests/weights/test_weights_docs.py
"""

import json

from doc_blocks import DOCS, assert_block
from shared_files import ROOT

from vitreous.weights.originals import ORIGINS
from vitreous.weights.timm_names import TIMM_FAMILIES, refused, runs, timm_family

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


def timm_rows() -> dict[str, list[dict]]:
    """The comparisons of each family of timm's names, one with a head and one without for each name."""
    names = json.loads((ROOT / "benchmarks" / "results" / "timm_names.json").read_text())["names"]
    out: dict[str, list[dict]] = {family: [] for family in [*TIMM_FAMILIES, "others"]}
    for name, rows in names.items():
        out[timm_family(name)] += [{"name": name, **row} for row in rows.values()]
    return {family: rows for family, rows in out.items() if rows}


def test_the_table_of_timms_families():
    cells = []
    for family, rows in timm_rows().items():
        of = {word: {row["name"] for row in rows if row["verdict"] == word} for word in ("agree", "refused", "differ")}
        assert not of["differ"]
        assert of["agree"] == of["agree"] & runs().keys()
        kept = {row["name"] for row in rows if row["verdict"] == "agree" and row["saved"] == "agree"}
        assert not any(row.get("saved") == "differ" for row in rows)
        seen = max((row["difference"] for row in rows if row["verdict"] == "agree"), default=0.0)
        why = sorted({refused()[name].removesuffix(" not built here") for name in of["refused"]})
        cells.append((
            family, str(len(of["agree"])), str(len(kept)), f"{seen:.0e}".replace("e-0", "e-") if of["agree"] else "–",
            f"{len(of['refused'])}: {'; '.join(why)} not built here" if why else "–",
        ))  # fmt: skip
    head = ("family", "names that load", "saved", "largest difference", "refused")
    assert_block(PAGE, "timm", table(head, cells))


def test_every_name_of_the_table_was_compared():
    names = json.loads((ROOT / "benchmarks" / "results" / "timm_names.json").read_text())["names"]
    ours = {name for name in runs() if name in names}
    assert {name for name, rows in names.items() if any(row["verdict"] == "agree" for row in rows.values())} == ours
    assert refused().keys() == names.keys() - ours


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
