"""The table of docs/evidence/performance.md on a laptop's waiting says what the benchmark measured."""

import json

from doc_blocks import DOCS, assert_block
from shared_files import ROOT

MEASURED = json.loads((ROOT / "benchmarks" / "results" / "laptop.json").read_text())


def cell(times: dict[str, list[float]]) -> str:
    least, median, most = times["wall"]
    return f"{median:.2f} ({least:.2f} to {most:.2f}) | {times['cpu'][1]:.2f}"


def test_the_table_of_waiting_is_what_was_measured():
    now, before = MEASURED["now"], MEASURED["before"]
    lines = ["| | before | CPU | now | CPU |", "|---|---|---|---|---|"]
    for name in sorted(now, key=lambda name: name.startswith("parts")):
        shown = name.removeprefix("parts: ").removeprefix("load: ")
        shown = f"`{shown}`" if shown.startswith("vitreous") else shown
        lines.append(f"| {shown} | {cell(before[name])} | {cell(now[name])} |")
    assert_block(DOCS / "evidence" / "performance.md", "laptop", "\n".join(lines) + "\n")
