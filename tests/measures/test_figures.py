"""Figures of a look as files: the papers' names, three kinds of file, and PDF with LaTeX for one paper."""

import csv
import io
import re
import sys
import xml.etree.ElementTree as ElementTree

import pytest
import small_look
from PIL import Image
from tiny_models import line_of

from vitreous.errors import ConfigError
from vitreous.measures import MEASURES
from vitreous.measures.drawing import layer_name, short_name, short_names, spans
from vitreous.measures.figures import check_papers, draw, paper_name, write_figures
from vitreous.report.charts import Span
from vitreous.report.marks import Words


@pytest.fixture(scope="module")
def seen():
    return small_look.pair()


@pytest.fixture(scope="module")
def figures(seen):
    return draw(seen)


@pytest.fixture(scope="module")
def folder(seen, figures, tmp_path_factory):
    out = tmp_path_factory.mktemp("look") / "figures"
    write_figures(seen, figures, out)
    return out


def test_every_measure_of_ours_is_drawn_says_how_it_was_measured_and_has_a_rank(seen, figures):
    for name, found in seen.found.items():
        assert all(figure.panels for figure in figures[name, 0]), name
        assert MEASURES[name].method(found).endswith("."), name
    ranks = [measure.rank for measure in MEASURES.values() if measure.rank is not None]
    assert sorted(ranks) == list(range(1, len(ranks) + 1))


def test_files_are_named_as_in_the_papers(folder):
    names = {file.stem for file in folder.glob("*.svg")}
    wanted = {"P1-fig7-attention-distance", "P2-fig3-attention-distance", "P1-fig6-rollout", "P1-fig7-positions"}
    wanted |= {"P2-fig1-similarity", "P2-fig1-similarity-against", "P2-fig2-similarity-across", "P2-fig13-probes"}
    wanted |= {"P2-fig5-heads-against-layers", "P2-fig6-receptive-field", "P2-fig7-skip-ratio", "P2-fig9-localisation"}
    assert wanted <= names
    own = {"attention-entropy", "logit-lens", "skip-removal", "shift", "attention-maps"}
    assert own <= names  # which the papers do not have
    assert paper_name(MEASURES["attention-distance"]) == "P1-fig7-attention-distance"
    assert paper_name(MEASURES["skip-removal"]) == "skip-removal"


def test_what_the_papers_do_not_show_they_did_not_see():
    """Their figures 6 and 14 of P1 are rollouts: no raw attention goes by their name."""
    for measure in MEASURES.values():
        assert measure.figure.startswith("not in") == (measure.saw == "Not measured there."), measure.name
    assert paper_name(MEASURES["rollout"]) == "P1-fig6-rollout"
    assert paper_name(MEASURES["attention-maps"]) == "attention-maps"


def test_each_figure_is_there_three_times_with_one_content(folder, figures):
    pytest.importorskip("matplotlib", reason="PNG needs the extra plot")
    for figure in (figure for drawn in figures.values() for figure in drawn):
        text = (folder / f"{figure.name}.svg").read_text("utf-8")
        root = ElementTree.fromstring(text)
        assert "var(" not in text  # stands alone
        assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", text)
        with Image.open(folder / f"{figure.name}.png") as picture:
            assert picture.size == (2 * int(root.attrib["width"]), 2 * int(root.attrib["height"]))
            assert len(picture.resize((120, 80)).getcolors(2**16)) > 20  # something is drawn
        if figure.rows:
            table = list(csv.DictReader(io.StringIO((folder / f"{figure.name}.csv").read_text("utf-8"))))
            assert len(table) == len(figure.rows)
            assert list(table[0]) == list(figure.rows[0])


def test_captions_say_model_images_and_method(figures):
    (figure,) = figures["similarity", 0]
    assert "24 images" in figure.caption
    assert figure.method.startswith("Linear CKA, unbiased, on 24 images in 3 batches")
    assert all(figure.caption and figure.method for drawn in figures.values() for figure in drawn)


def test_a_papers_figures_come_as_pdf_with_caption_method_and_bibtex(seen, figures, tmp_path):
    pytest.importorskip("matplotlib", reason="PDF needs the extra plot")
    few = {key: figures[key] for key in (("attention-distance", 0), ("similarity", 0), ("shift", 0))}
    write_figures(seen, few, tmp_path, papers="P2")
    assert {file.stem for file in tmp_path.glob("*.pdf")} == {"P2-fig3-attention-distance", "P2-fig1-similarity"}
    assert (tmp_path / "P2-fig1-similarity.pdf").read_bytes().startswith(b"%PDF")
    text = (tmp_path / "P2-fig1-similarity.tex").read_text("utf-8")
    assert r"\includegraphics[width=\linewidth]{P2-fig1-similarity.pdf}" in text
    assert "Linear CKA, unbiased" in text
    assert r"\cite{P2}" in text
    bib = (tmp_path / "papers.bib").read_text("utf-8")
    assert re.findall(r"@\w+\{(\w+),", bib) == ["P1", "P2", "vitreous"]
    assert "VERSION" not in bib


def test_what_hinders_a_pdf_is_said_before_the_work(monkeypatch):
    with pytest.raises(ConfigError) as error:
        check_papers("P3", "out")
    line_of(error.value, "P3", "P1 or P2")
    with pytest.raises(ConfigError) as error:
        check_papers("P1", None)
    line_of(error.value, "--out DIR")
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ConfigError) as error:
        check_papers("P1", "out")
    line_of(error.value, "matplotlib", "pip install 'vitreous[plot]'")
    check_papers(None, None)  # SVG and CSV need no matplotlib


def test_without_matplotlib_svg_and_csv_are_written(seen, figures, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    check_papers(None, tmp_path)
    write_figures(seen, {("shift", 0): figures["shift", 0]}, tmp_path)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["shift.csv", "shift.svg"]


def test_layers_are_named_by_their_block():
    names = ["embedding.tokens", "blocks.0.norm1", "blocks.0.output", "blocks.10.mlp.hidden"]
    assert spans(names) == [Span("tokens"), Span("block 1", 2), Span("block 11")]
    assert spans(["stem.root", "stem.stages.0.units.1.conv1"]) == [Span("stem root"), Span("stem unit 1.2")]
    assert layer_name("blocks.0") == layer_name("blocks.0.output") == "block 1"
    assert layer_name("blocks.10.attention.output") == "block 11, attention.output"
    assert layer_name("stages.1.units.0.output") == "unit 2.1"
    assert layer_name("stages.1.units.0.conv1") == "unit 2.1, conv1"
    assert layer_name("embedding.tokens") == "tokens"


def test_a_model_is_called_by_the_end_of_its_path_and_by_nothing_less(tmp_path):
    assert short_name(str(tmp_path / "deit-tiny")) == "deit-tiny"
    assert short_name("S/16 positions=none") == "S/16 positions=none"
    assert short_name("hf:owner/name") == "hf:owner/name"
    assert short_name(str(tmp_path / "photos-1" / "model.safetensors")) == "photos-1"


def test_two_models_never_have_one_name(tmp_path):
    same = [str(tmp_path / folder / "vit.safetensors") for folder in ("one", "two")]
    assert short_names(same) == ["one/vit.safetensors", "two/vit.safetensors"]
    assert short_names([same[0], same[0]]) == ["vit.safetensors (1)", "vit.safetensors (2)"]
    assert short_names([same[0], "S/16"]) == ["vit.safetensors", "S/16"]


def test_figures_of_two_models_name_both(figures):
    for name in ("similarity-across", "heads-against-layers"):
        for figure in figures[name, 0]:
            assert figure.title.endswith(": this ViT and this BiT")
            assert "this ViT and this BiT on 24 images" in figure.caption
    words = [mark.text for mark in figures["similarity-across", 0][0].panels[0].chart.marks if isinstance(mark, Words)]
    assert {"this ViT", "this BiT"} <= set(words)
    (own,), (other,) = figures["similarity", 0], figures["similarity", 1]
    assert (own.title, other.title) == ("Similarity: this ViT", "Similarity: this BiT")


def test_blocks_and_places_are_counted_from_1(figures):
    """As the pages of `serve` count them; JSON and CSV keep the taps' own numbers."""
    for drawn in figures.values():
        for panel in (panel for figure in drawn for panel in figure.panels):
            written = [mark for mark in panel.chart.marks if isinstance(mark, Words)]
            words = {mark.text for mark in written}
            assert not words & {"block 0", "head 0", "unit 0.0", "row 0, col 0"}, panel.heading
            if "block" in words:  # the title of an axis
                along = {mark.text for mark in written if mark.anchor == "middle" and not mark.turn}
                assert along == {"1", "2", "3", "block"}, panel.heading  # this ViT has three
    first = figures["attention-distance", 0][0]
    assert first.rows[0]["layer"] == 0
