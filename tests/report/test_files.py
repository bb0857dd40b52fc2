"""One drawing, three kinds of file: our SVG is read back as it was written."""

import io
import xml.etree.ElementTree as ElementTree
from itertools import pairwise

import numpy as np
import pytest
from PIL import Image

from vitreous.report import charts
from vitreous.report.charts import Line, Span, Tile
from vitreous.report.files import FINE, Panel, pdf, png, shapes, sheet

PIXELS = np.random.default_rng(0).integers(0, 255, (8, 8, 3), np.uint8)


@pytest.fixture(scope="module")
def drawing():
    lines = charts.lines(
        [Line("a", [0, 1, 2], [1.0, 3.0, 2.0], [0.5, 2, 1], [2, 4, 3]), Line("b", [0, 1], [2, 2], is_dots=True)],
        title="t", x_title="x", level=(3.5, "limit"),
    )  # fmt: skip
    heat = charts.heatmap(
        np.eye(4),
        title="h",
        rows=[Span("r", 4)],
        columns=[Span("c", 4)],
        y_title="y",
        x_title="x",
        path=[(0, 0), (3, 3)],
    )
    tiles = charts.tiles([Tile("one", PIXELS), Tile("two", PIXELS)], title="p", columns=2)
    panels = [Panel(lines, "Lines"), Panel(heat, "Heat"), Panel(tiles, "Tiles")]
    return sheet(panels, heading="All & everything", caption="word " * 40)


def test_a_sheet_is_whole_xml_in_fixed_colours(drawing):
    root = ElementTree.fromstring(drawing)
    assert root.attrib["aria-label"] == "All & everything"
    assert "var(" not in drawing
    assert sum(e.tag.endswith("}svg") for e in root.iter()) == 4


def test_every_part_is_read_back_in_its_place(drawing):
    found = list(shapes(drawing))
    wide, tall = (float(v) for v in ElementTree.fromstring(drawing).attrib["viewBox"].split()[2:])
    assert {shape.kind for shape in found} == {"path", "circle", "text", "image"}
    words = [shape.text for shape in found if shape.kind == "text"]
    assert {"All & everything", "Lines", "Heat", "a", "b", "limit", "one"} <= set(words)
    for shape in found:
        assert all(-1 <= x <= wide + 1 and -1 <= y <= tall + 1 for x, y in shape.points), shape


def test_a_png_shows_each_cell_in_its_colour(drawing):
    picture = np.asarray(Image.open(io.BytesIO(png(drawing))).convert("RGB"))
    images = [shape for shape in shapes(drawing) if shape.kind == "image"]
    (x, y), (right, _) = images[0].points  # the heatmap: 1 on the diagonal, 0 elsewhere
    cell = (right - x) / 4

    def at(row, column):  # off the middle, where the path runs
        return picture[round(FINE * (y + (row + 0.2) * cell)), round(FINE * (x + (column + 0.7) * cell))]

    assert (at(0, 3) == charts.SCALE[0]).all()
    assert (at(2, 2) == charts.SCALE[-1]).all()


def test_a_pdf_is_one_page_with_its_words(drawing):
    pytest.importorskip("matplotlib", reason="PDF needs the extra plot")
    made = pdf(drawing, title="t", subject="s")
    assert made.startswith(b"%PDF")
    assert made.count(b"/Type /Page\n") + made.count(b"/Type /Page ") >= 1


def test_dashes_leave_gaps():
    from vitreous.report.files import _dashed

    pieces = list(_dashed([(0.0, 0.0), (10.0, 0.0), (20.0, 0.0)], [4.0, 2.0]))
    lengths = [sum(abs(b[0] - a[0]) for a, b in pairwise(piece)) for piece in pieces]
    assert lengths == pytest.approx([4, 4, 4, 2])
    assert pieces[1][0] == (6.0, 0.0)
