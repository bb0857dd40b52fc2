"""The notebooks of the docs run from first to last cell, show what they promise, and lie in git without outputs."""

import nbformat
import pytest
from doc_blocks import DOCS

from website import notebooks

BOOKS = sorted((DOCS / "notebooks").glob("*.ipynb"))
SHOWN = {  # what a reader must see in some cell
    "photos-to-model": [
        *("photos: folders", "Decide, and delete the other copy", "<b>found</b>", "none of these"),
        "Where the answer came from",
    ],
    "inside-a-checkpoint": [
        *("Where the answer came from", "blocks.6.attention.weights", "without the skip of block 1", "cannot hold"),
    ],
    "a-claim-of-the-paper": [
        *("ViT without positions", "Cosine of each place with all places", "untrained", "after training"),
    ],
}


@pytest.mark.parametrize("file", BOOKS, ids=lambda file: file.stem)
def test_a_notebook_runs_and_its_results_show_themselves(file, tmp_path, monkeypatch):
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path / "runtime"))
    shown = {}
    (tmp_path / "work").mkdir()
    page = notebooks.page(notebooks.executed(file, tmp_path / "work"), file, tmp_path / "site", shown)
    together = "\n".join(shown.values())
    for words in SHOWN[file.stem]:
        assert words in together, words
    assert page.count('<div class="cell-output"') == len(shown)
    assert "Traceback" not in together
    assert "https://" not in together


def test_three_notebooks_lie_in_git_without_outputs():
    assert {file.stem for file in BOOKS} == SHOWN.keys()
    for file in BOOKS:
        book = nbformat.read(file, as_version=4)
        nbformat.validate(book)
        assert not [cell for cell in book.cells if cell.cell_type == "code" and (cell.outputs or cell.execution_count)]


def test_a_cell_that_fails_stops_the_build(tmp_path):
    from nbclient.exceptions import CellExecutionError

    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("1 / 0")])
    nbformat.write(book, tmp_path / "bad.ipynb")
    with pytest.raises(CellExecutionError, match="ZeroDivisionError"):
        notebooks.executed(tmp_path / "bad.ipynb", tmp_path)


def test_text_is_escaped_and_html_is_not():
    stream = nbformat.v4.new_output("stream", text="\x1b[31m<b>\x1b[0m\n")
    assert notebooks.output_html(stream) == "<pre>&lt;b&gt;</pre>"
    rich = nbformat.v4.new_output("display_data", data={"text/html": "<b>x</b>", "text/plain": "x"})
    assert notebooks.output_html(rich) == "<b>x</b>"
