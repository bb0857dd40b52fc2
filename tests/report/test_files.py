"""One sheet of charts, three kinds of file: SVG by us, PNG and PDF by matplotlib."""

import io
import sys
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest
from PIL import Image
from tiny_models import line_of

from vitreous.errors import ConfigError
from vitreous.report import charts
from vitreous.report.charts import Line, ShareBar, Span, Tile
from vitreous.report.files import Panel, Placed, sheet
from vitreous.report.marks import PNG_PIXELS, THEME, Area, Bitmap, Box, Chart, Dot, Squares, Stroke, Words

PIXELS = np.random.default_rng(0).integers(0, 255, (8, 8, 3), np.uint8)
MARKS = [
    Stroke([(10, 20), (90, 20)], "first", 2, "7 4"),
    Area([(10, 30), (90, 30), (90, 50)], "second", 0.2),
    Squares([(10, 60), (30, 60)], 9, "third", 0.5),
    Dot(20, 90, "first", 0.6),
    Box(40, 80, 30, 15, "quiet", 0.5, "first", "2 2", "told", 2),
    Words(50, 120, "a < b & $c_d$", anchor="middle", size=14, weight=600, turn=-90),
    Bitmap(10, 130, 60, 60, PIXELS),
    Bitmap(80, 130, 60, 60, np.repeat(np.repeat(PIXELS, 16, 0), 16, 1), is_photo=True),
]


@pytest.fixture(scope="module")
def drawing():
    lines = charts.lines(
        [Line("a", [0, 1, 2], [1.0, 3.0, 2.0], [0.5, 2, 1], [2, 4, 3]), Line("b", [0, 1], [2, 2], is_dots=True)],
        title="t", x_title="x", level=(3.5, "limit"),
    )  # fmt: skip
    heat = charts.heatmap(
        np.eye(4), title="h", rows=[Span("r", 4)], columns=[Span("c", 4)], y_title="y", x_title="x",
        path=[(0, 0), (3, 3)],
    )  # fmt: skip
    tiles = charts.tiles([Tile("one", PIXELS), Tile("two", PIXELS)], title="p", columns=2)
    panels = [Panel(lines, "Lines"), Panel(heat, "Heat"), Panel(tiles, "Tiles")]
    return sheet(panels, heading="All & everything", caption="word " * 40)


def pixels_of(png: bytes) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(png)).convert("RGB"))


def alone(chart: Chart) -> np.ndarray:
    """A chart as matplotlib draws it, without the sheet around it."""
    made = sheet([Panel(chart)], heading="")
    (placed,) = (part for part in made.parts if isinstance(part, Placed))
    x, y = round(PNG_PIXELS * placed.x), round(PNG_PIXELS * placed.y)
    return pixels_of(made.to_png())[y : y + PNG_PIXELS * chart.height, x : x + PNG_PIXELS * chart.width]


def test_cells_and_photos_are_antialiased():
    """A cell whose edge lies within a pixel is mixed there; a photo of few pixels is smooth, not in squares."""
    cells = Chart("", [Bitmap(0, 0, 50.25, 40, np.array([[[0] * 3, [200] * 3]], np.uint8))], 60, 40)
    row = alone(cells)[40, :, 0].astype(int)
    assert {0, 200} <= set(row[:100].tolist())
    assert any(20 < level < 180 for level in row[45:56])
    ramp = np.repeat(np.arange(0, 250, 25, dtype=np.uint8)[None, :, None], 3, 2).repeat(10, 0)
    assert len(set(alone(Chart("", [Bitmap(0, 0, 60, 40, ramp, is_photo=True)], 60, 40))[40, :, 0].tolist())) > 30
    assert len(set(alone(Chart("", [Bitmap(0, 0, 60, 40, ramp)], 60, 40))[40, :, 0].tolist())) <= 20


def test_a_sheet_is_whole_xml_in_fixed_colours(drawing):
    svg = drawing.to_svg()
    root = ElementTree.fromstring(svg)
    assert root.attrib["aria-label"] == "All & everything"
    assert "var(" not in svg
    assert sum(e.tag.endswith("}svg") for e in root.iter()) == 4
    words = {e.text for e in root.iter() if e.tag.endswith("}text")}
    assert {"All & everything", "Lines", "Heat", "a", "b", "limit", "one"} <= words


def test_panels_lie_inside_the_sheet_and_do_not_touch(drawing):
    boxes = [(part.x, part.y, part.chart) for part in drawing.parts if isinstance(part, Placed)]
    for x, y, chart in boxes:
        assert 0 < x < x + chart.width < drawing.width
        assert 0 < y < y + chart.height < drawing.height
    (ax, _, a), (bx, _, _), (_, cy, _) = boxes
    assert ax + a.width < bx
    assert cy > max(y + chart.height for _, y, chart in boxes[:2])


def test_a_png_shows_each_cell_in_its_colour(drawing):
    pytest.importorskip("matplotlib", reason="PNG needs the extra plot")
    picture = pixels_of(drawing.to_png())
    assert picture.shape == (PNG_PIXELS * drawing.height, PNG_PIXELS * drawing.width, 3)
    placed = [part for part in drawing.parts if isinstance(part, Placed)][1]
    cells = next(mark for mark in placed.chart.marks if isinstance(mark, Bitmap))
    side = cells.width / 4

    def at(row, column):  # off the middle, where the path runs
        x, y = placed.x + cells.x + (column + 0.7) * side, placed.y + cells.y + (row + 0.2) * side
        return picture[round(PNG_PIXELS * y), round(PNG_PIXELS * x)]

    assert (at(0, 3) == charts.COLOUR_SCALE[0]).all()  # 1 on the diagonal, 0 elsewhere
    assert (at(2, 2) == charts.COLOUR_SCALE[-1]).all()


def test_lines_of_a_png_are_smooth():
    pytest.importorskip("matplotlib", reason="PNG needs the extra plot")
    slanted = alone(Chart("t", [Stroke([(10, 10), (90, 47)], "#000000", 2)], 100, 60))
    assert len(np.unique(slanted)) > 20  # greys between black and white


def test_a_bar_is_as_long_in_a_png_as_in_the_svg():
    pytest.importorskip("matplotlib", reason="PNG needs the extra plot")
    chart = charts.bars([ShareBar("ours", 0.5)], title="t")
    bar = [mark for mark in chart.marks if isinstance(mark, Box)][1]
    row = alone(chart)[round(PNG_PIXELS * (bar.y + bar.height / 2))]
    colour = [int(THEME["first"][i : i + 2], 16) for i in (1, 3, 5)]
    assert abs((row == colour).all(1).sum() - PNG_PIXELS * bar.width) <= 2


@pytest.mark.parametrize("mark", MARKS, ids=lambda mark: type(mark).__name__)
def test_every_mark_is_drawn_where_its_svg_says(mark):
    """Inside the canvas, something is drawn; and its SVG is whole XML."""
    ElementTree.fromstring(Chart("t", [mark], 200, 200).to_svg())
    pytest.importorskip("matplotlib", reason="PNG needs the extra plot")
    seen = alone(Chart("t", [mark], 200, 200))
    rows, columns = np.nonzero((seen != 255).any(-1))
    assert len(rows)
    if not isinstance(mark, Words):
        assert rows.min() >= PNG_PIXELS * 18
        assert columns.min() >= PNG_PIXELS * 8
        assert columns.max() <= PNG_PIXELS * 142


def test_a_pdf_is_one_page_with_its_words(drawing):
    pytest.importorskip("matplotlib", reason="PDF needs the extra plot")
    made = drawing.to_pdf(title="t", subject="s")
    assert made.startswith(b"%PDF")
    assert made.count(b"/Type /Page\n") + made.count(b"/Type /Page ") >= 1


def test_the_same_sheet_gives_the_same_bytes(drawing):
    pytest.importorskip("matplotlib", reason="PNG needs the extra plot")
    assert drawing.to_png() == drawing.to_png()


def test_without_matplotlib_one_line_names_the_extra(drawing, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    for make in (drawing.to_png, lambda: drawing.to_pdf(title="t")):
        with pytest.raises(ConfigError) as error:
            make()
        line_of(error.value, "PNG or PDF need matplotlib", "pip install 'vitreous[plot]'")
    assert drawing.to_svg()
