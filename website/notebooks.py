"""Notebooks as pages: run anew, then words and code as Markdown, and what the cells show as it is."""

import html
import os
import re
from pathlib import Path
from typing import Any

import nbclient
import nbformat

from website.places import DOCS, ROOT, place_on_site
from website.sources import rewritten, write

FOLDER = DOCS / "notebooks"
SECONDS_A_CELL = 300
COLOURS = re.compile(r"\x1b\[[0-9;]*m")

Shown = dict[str, str]  # the mark of an output in a page -> its HTML


def executed(file: Path, folder: Path) -> nbformat.NotebookNode:
    """The notebook with its outputs, run in `folder` by this Python; a cell that fails raises."""
    book = nbformat.read(file, as_version=4)
    paths = os.pathsep.join(filter(None, [str(ROOT / "src"), os.environ.get("PYTHONPATH")]))
    client = nbclient.NotebookClient(
        book,
        kernel_name="python3",
        extra_arguments=["--log-level=ERROR"],
        resources={"metadata": {"path": str(folder)}},
        timeout=SECONDS_A_CELL,
        startup_timeout=SECONDS_A_CELL,
    )
    client.execute(env=os.environ | {"PYTHONPATH": paths})
    return book


def write_notebooks(out: Path, folder: Path) -> Shown:
    """A page for each notebook; their outputs, to be put in after the pages are built."""
    shown: Shown = {}
    for file in sorted(FOLDER.glob("*.ipynb")):
        place = place_on_site(file)
        write(out / place, page(executed(file, folder), file, out, shown))
        (out / place).with_suffix(".ipynb").write_bytes(file.read_bytes())
    return {mark: text.replace(str(folder.resolve()), "/…") for mark, text in shown.items()}


def page(book: nbformat.NotebookNode, file: Path, out: Path, shown: Shown) -> str:
    first, *rest = (part for cell in book.cells for part in parts_of(cell, file, out, shown))
    link = f'<a href="{file.name}" download>download it</a>'
    return "\n\n".join([first, f"*A notebook, run when this site was built: {link}.*", *rest]) + "\n"


def parts_of(cell: nbformat.NotebookNode, file: Path, out: Path, shown: Shown) -> list[str]:
    if cell.cell_type == "markdown":
        return [rewritten(cell.source, file, out)]
    parts = [f"```python\n{cell.source}\n```"]
    pieces = [piece for output in cell.outputs if (piece := output_html(output))]
    if pieces:
        mark = f"output-{len(shown)}"
        shown[mark] = "\n".join(pieces)
        parts.append(f'<div class="cell-output" id="{mark}"></div>')
    return parts


def output_html(output: Any) -> str:
    """What a notebook shows for it: HTML before pictures before text."""
    if output.output_type == "stream":
        return text_html(output.text)
    data = output.get("data", {})
    if "text/html" in data:
        return data["text/html"]
    if "image/svg+xml" in data:
        return data["image/svg+xml"]
    if "image/png" in data:
        return f'<img alt="" src="data:image/png;base64,{data["image/png"].strip()}">'
    return text_html(data.get("text/plain", ""))


def text_html(text: str) -> str:
    text = COLOURS.sub("", text).strip("\n")
    return f"<pre>{html.escape(text)}</pre>" if text else ""
