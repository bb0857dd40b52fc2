"""Charts say what the numbers say, in whole XML, with colours of the page."""

import re
import xml.etree.ElementTree as ElementTree
from itertools import pairwise

import numpy as np
import pytest

from vitreous.report import charts
from vitreous.report.charts import Chart, Line, ShareBar, Span, Tile
from vitreous.report.colours import COLOUR_SCALE, UNKNOWN
from vitreous.report.marks import Stroke, Words

HOSTILE = "<b>&\"'</svg>"


def parsed(chart: Chart) -> ElementTree.Element:
    svg = chart.to_svg()
    root = ElementTree.fromstring(svg)
    assert root.attrib["role"] == "img"
    assert root.attrib["aria-label"]
    assert "http" not in svg.replace("http://www.w3.org/2000/svg", "")
    assert "nan" not in re.sub(r"<text.*?</text>", "", svg)
    return root


def words(root: ElementTree.Element) -> list[str]:
    return [e.text or "" for e in root.iter() if e.tag.endswith("}text")]


def paths(root: ElementTree.Element, hue: str) -> list[np.ndarray]:
    found = [e.attrib["d"] for e in root.iter() if hue in e.attrib.get("stroke", "")]
    return [np.array(re.findall(r"[-\d.]+", d), float).reshape(-1, 2) for d in found]


def test_a_line_goes_up_where_the_numbers_do():
    root = parsed(charts.lines([Line("a", [0, 1, 2], [1.0, 3.0, 2.0])], title="t", x_title="x"))
    line = max(paths(root, "--first"), key=len)
    x, y = line.T
    assert (np.diff(x) > 0).all()
    assert y[1] < y[2] < y[0]  # pixels grow downwards
    assert "a" in words(root)
    assert "x" in words(root)


def test_a_log_axis_makes_equal_factors_equal_steps():
    root = parsed(charts.lines([Line("a", [0, 1, 2], [1.0, 0.1, 0.01])], title="t", x_title="x", is_log=True))
    y = max(paths(root, "--first"), key=len)[:, 1]
    assert y[1] - y[0] == pytest.approx(y[2] - y[1], abs=0.2)


def test_long_lines_are_thinned_within_a_band_and_keep_their_mean():
    y = np.random.default_rng(0).normal(5, 1, 10_000)
    chart = charts.lines([Line("a", np.arange(10_000), y)], title="t", x_title="x")
    root, svg = parsed(chart), chart.to_svg()
    assert len(max(paths(root, "--first"), key=len)) == charts.MAX_LINE_POINTS
    assert "fill-opacity" in svg
    assert len(svg) < 20_000


def test_what_is_not_finite_is_left_out():
    line = Line("a", [0, 1, 2, 3], [1.0, np.nan, np.inf, 2.0])
    assert "nan" not in charts.lines([line], title="t", x_title="x").to_svg()
    assert "inf" not in charts.lines([line, Line("b", [1], [-1.0])], title="t", x_title="x", is_log=True).to_svg()


@pytest.mark.parametrize("y", [[], [np.nan], [3.0], [0.0], [2.0, 2.0], [1e-9, 1e9]])
@pytest.mark.parametrize("is_log", [True, False])
def test_few_or_odd_numbers_still_make_a_chart(y, is_log):
    root = parsed(charts.lines([Line("a", range(len(y)), y)], title="t", x_title="x", is_log=is_log))
    is_empty = not any(np.isfinite(v) and (v > 0 or not is_log) for v in y)
    assert ("nothing recorded" in words(root)) == is_empty


def test_lines_differ_in_hue_and_in_dashes():
    """Who tells no colours apart, or prints in grey, reads them too."""
    series = [Line(name, [0, 1], [i, i + 1.0]) for i, name in enumerate("abc")]
    root = parsed(charts.lines(series, title="t", x_title="x"))
    looks = {
        (e.attrib["stroke"], e.attrib.get("stroke-dasharray"))
        for e in root.iter()
        if e.attrib.get("stroke-width") == "2"
    }
    assert len(looks) == 3
    assert len({dashes for _, dashes in looks}) == 3


def test_a_mark_stands_at_its_place():
    def marked(place):
        return charts.lines([Line("a", [0, 10], [0, 1.0])], title="t", x_title="x", mark=(place, "kept"))

    assert "kept" in words(parsed(marked(10)))
    assert "kept" not in words(parsed(marked(11)))


def test_bars_are_as_long_as_their_shares():
    root = parsed(charts.bars([ShareBar("ours", 0.8, 0.7, 0.9), ShareBar("theirs", 0.4, is_ours=False)], title="t"))
    widths = [float(e.attrib["width"]) for e in root if e.tag.endswith("rect") and "--line" not in e.attrib["fill"]]
    assert widths[0] == pytest.approx(2 * widths[1], rel=0.01)
    assert {"80.0 %", "40.0 %"} <= set(words(root))


def test_a_small_matrix_has_its_counts_written_and_right_and_wrong_in_two_hues():
    matrix = np.array([[8, 2, 0], [0, 5, 0], [1, 0, 0]])
    root = parsed(charts.confusion(matrix, ["ant", "bee", "cat"], title="t"))
    assert {"8", "2", "5", "1"} <= set(words(root))
    assert words(root).count("ant") == 2
    cells = [e for e in root.iter() if "fill-opacity" in e.attrib]
    assert [("--first" in e.attrib["fill"]) for e in cells] == [True, False, True, False]
    told = [title.text for e in cells for title in e]
    assert "ant, answered bee: 2 (20 %)" in told


@pytest.mark.parametrize("classes", [2, 15, 16, 40, 41, 100])
def test_a_matrix_of_any_size_stays_small_and_names_every_class(classes):
    matrix = np.random.default_rng(0).integers(0, 9, (classes, classes))
    chart = charts.confusion(matrix, [f"n{i}" for i in range(classes)], title="t")
    assert words(parsed(chart)).count(f"n{classes - 1}") == 2
    assert len(chart.to_svg()) < 500_000


def test_a_large_matrix_shades_each_cell_once():
    matrix = np.random.default_rng(0).integers(0, 3, (60, 60))
    svg = charts.confusion(matrix, [f"n{i}" for i in range(60)], title="t").to_svg()
    assert svg.count("z") - svg.count("size") == np.count_nonzero(matrix)


def test_reliability_draws_only_bins_that_hold_something():
    edges = np.linspace(0, 1, 6)
    count = [0, 3, 0, 40, 100]
    share = [np.nan, 0.3, np.nan, 0.7, 0.9]
    root = parsed(charts.reliability(share, share, count, edges, title="t"))
    told = [e.text for e in root.iter() if e.tag.endswith("title")]
    assert len(told) == 2 * 3
    assert told[0] == "says 30 %, right 30 %, 3 images"
    hollow = [e for e in root if e.tag.endswith("rect") and "stroke-dasharray" in e.attrib]
    assert len(hollow) == 1  # three images say little
    assert parsed(charts.reliability([np.nan], [np.nan], [0], [0, 1], title="t")) is not None


def test_every_word_is_escaped():
    for chart in (
        charts.lines([Line(HOSTILE, [0, 1], [0, 1.0])], title=HOSTILE, x_title=HOSTILE, mark=(0.5, HOSTILE)),
        charts.bars([ShareBar(HOSTILE, 0.5)], title=HOSTILE),
        charts.confusion(np.eye(2, dtype=int), [HOSTILE, "x" * 99], title=HOSTILE),
        charts.confusion(np.eye(50, dtype=int), [HOSTILE] * 50, title=HOSTILE),
    ):
        assert "<b>" not in chart.to_svg()
        assert chart.to_svg().count("</svg>") == 1
        parsed(chart)


@pytest.mark.parametrize(
    ("low", "high"), [(0, 1), (0.31, 0.32), (0, 123_456), (-3, 3), (1e-9, 2e-9), (0.999, 1.0), (5, 5.5)]
)
def test_ticks_are_few_and_inside(low, high):
    ticks = charts.Axis(low, high, 0, 100).ticks()
    assert 2 <= len(ticks) <= 7
    assert all(low - 1e-9 <= t <= high + 1e-9 for t in ticks)


@pytest.mark.parametrize(("low", "high"), [(0.4, 0.6), (0.1, 3), (1e-8, 1e3), (2.1, 2.2)])
def test_ticks_of_a_log_axis_are_inside(low, high):
    ticks = charts.Axis(low, high, 0, 100, is_log=True).ticks()
    assert 1 <= len(ticks) <= 12
    assert all(low <= t <= high for t in ticks)


def test_a_heatmap_has_a_pixel_for_each_cell_and_a_name_for_each_span():
    import base64
    import io

    from PIL import Image

    values = np.array([[0.0, 0.5, 1.0], [np.nan, 2.0, -1.0]])
    chart = charts.heatmap(
        values, title="t", rows=[Span("top"), Span("low")], columns=[Span("a", 2), Span("b")], y_title="y", x_title="x"
    )
    root = parsed(chart)
    assert {"top", "low", "a", "b", "x", "y", "0", "1"} <= set(words(root))
    href = next(e.attrib["href"] for e in root.iter() if e.tag.endswith("}image"))
    seen = np.asarray(Image.open(io.BytesIO(base64.b64decode(href.partition(",")[2]))))
    assert seen.shape == (2, 3, 3)
    assert (seen[0, 0] == COLOUR_SCALE[0]).all()
    assert (seen[0, 2] == COLOUR_SCALE[-1]).all()
    assert (seen[1, 0] == UNKNOWN).all()  # no number
    assert (seen[1, 1] == COLOUR_SCALE[-1]).all()  # beyond the scale


def test_names_along_a_heatmap_do_not_touch():
    spans = [Span(f"block {i}", 6) for i in range(60)]
    values = np.zeros((360, 360))
    root = parsed(charts.heatmap(values, title="t", rows=spans, columns=spans, y_title="y", x_title="x"))
    places = [float(e.attrib["y"]) for e in root if e.text and e.text.startswith("block") and "y" in e.attrib]
    assert 10 <= len(places) <= charts.MAX_SPAN_NAMES
    assert np.diff(places).min() >= 11


def test_dots_are_not_joined_and_a_level_is_drawn_at_its_height():
    dots = Line("heads", [0, 0, 1], [1.0, 3.0, 2.0], is_dots=True)
    root = parsed(charts.lines([dots], title="t", x_title="x", level=(4.0, "all"), x_is_whole=True))
    circles = [e for e in root if e.tag.endswith("circle")]
    assert len(circles) == 3 + 1  # and its sign in the legend
    assert not [line for line in paths(root, "--first") if len(line) > 2]
    assert "all" in words(root)
    assert "0.5" not in words(root)  # no half blocks


def test_charts_that_are_compared_share_their_scale():
    def top(y):
        root = parsed(charts.lines([Line("a", [0, 1], y)], title="t", x_title="x", y_range=(0, 10)))
        return max(paths(root, "--first"), key=len)[:, 1].min()

    assert top([0, 5.0]) > top([0, 10.0])


def test_tiles_keep_their_shape_and_their_names():
    tall = np.zeros((8, 4, 3), np.uint8)
    root = parsed(charts.tiles([Tile("a name that is too long for its picture", tall)] * 3, title="t", columns=2))
    images = [e for e in root if e.tag.endswith("image")]
    assert [float(e.attrib["height"]) / float(e.attrib["width"]) for e in images] == pytest.approx([2] * 3, rel=0.01)
    assert words(root) == ["a name that is too long for i…"] * 3
    assert [e.text for e in root.iter() if e.tag.endswith("title")] == ["a name that is too long for its picture"] * 3


def test_a_tile_with_a_scale_has_a_bar_between_its_two_numbers():
    bar = np.zeros((1, 64, 3), np.uint8)
    tile = Tile("head 1", np.zeros((4, 4, 3), np.uint8), (bar, "0 %", "11 %"))
    chart = charts.tiles([tile], title="t", columns=1)
    root = parsed(chart)
    picture, scale = (e for e in root if e.tag.endswith("image"))
    assert float(scale.attrib["y"]) > float(picture.attrib["y"]) + float(picture.attrib["height"])
    low, high = (next(e for e in root if e.text == word) for word in ("0 %", "11 %"))
    assert float(low.attrib["x"]) == pytest.approx(float(scale.attrib["x"]))
    assert float(high.attrib["x"]) == pytest.approx(float(scale.attrib["x"]) + float(scale.attrib["width"]))
    assert chart.height > float(high.attrib["y"])


LINES = [Line("a head that has a long name", [1, 2, 9], [0.0, 3.0, 5.0]), Line("mean of heads", [1, 5, 9], [5.0, 0, 5])]


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("level", [None, (4.0, "everywhere alike: 116 px"), (0.0, "")])
@pytest.mark.parametrize("mark", [None, (2, "28 components"), (8, "28 components")])
def test_no_word_stands_within_the_plot_where_a_line_could_cross_it(count, level, mark):
    chart = charts.lines(LINES[:count], title="t", x_title="block", level=level, mark=mark, x_is_whole=True)
    lines = [m for m in chart.marks if isinstance(m, Stroke) and m.colour in charts.HUES and len(m.points) > 2]
    top, bottom = (pick(y for line in lines for _, y in line.points) for pick in (min, max))
    written = [m for m in chart.marks if isinstance(m, Words)]
    assert not [m.text for m in written if m.x > charts.LEFT - 5 and top < m.y - 3 and m.y - 9 < bottom]
    assert [m.text for m in written].count("everywhere alike: 116 px") == (level is not None and bool(level[1]))
    legend = [m for m in written if m.text in {"everywhere alike: 116 px", *(line.name for line in LINES)}]
    for one, other in pairwise(legend):  # neighbours do not touch, and the last ends within the chart
        assert one.y != other.y or one.x + 6.6 * len(one.text) < other.x
    assert all(m.x + 6.6 * len(m.text) <= charts.CHART_WIDTH + 1 for m in legend)


def test_an_axis_of_whole_numbers_begins_with_its_first():
    def ticks(last):
        chart = charts.lines([Line("", [1, last], [0.0, 1.0])], title="t", x_title="block", x_is_whole=True)
        below = max(m.y for m in chart.marks if isinstance(m, Words) and m.text == "1")
        return [m.text for m in chart.marks if isinstance(m, Words) and m.y == below]

    assert ticks(12) == [str(n) for n in range(1, 13)]
    assert ticks(24) == ["1", "5", "10", "15", "20"]
