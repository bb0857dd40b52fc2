"""A page needs nothing beside itself, and says only what it was told."""

import re

import numpy as np
import pytest

from vitreous.errors import ExistsError
from vitreous.report import page
from vitreous.report.marks import Chart, Words
from vitreous.report.page import (
    Bar,
    Code,
    Columns,
    Drawing,
    Drawings,
    Fold,
    Group,
    Heading,
    Listing,
    Note,
    Number,
    Numbers,
    Page,
    Pictures,
    Point,
    Points,
    Section,
    Shelf,
    Strip,
    Table,
    Text,
)  # fmt: skip

HOSTILE = "<img src=x onerror=alert(1)>&\"'</style>"
PIXELS = np.random.default_rng(0).integers(0, 256, (300, 400, 3), np.uint8)


def every_block(text: str) -> list:
    shots = [page.picture(PIXELS, text, text), page.picture(None, text)]
    drawing = Drawing(Chart(text, [Words(0, 0, text)], 10, 10), text, text)
    return [
        Text(text),
        Heading(text),
        Points([Point(text, "s1"), Point(text)]),
        Note(text, "warn"),
        Code(text),
        Numbers([Number(text, text, "bad", text)]),
        Table([text, text], [[text, Bar(text, 0.5)]], "lr", text),
        Pictures([Group(shots, text), Group(shots[:1])], text),
        Listing(text, [text], text),
        Shelf([Strip(text, shots, text)], text),
        drawing,
        Drawings([drawing, drawing]),
        Columns([Text(text), Table(["", ""], [[text, text]])]),
        Fold(text, [Text(text), Columns([Fold(text, [Text(text)])])]),
    ]


def whole(text: str) -> Page:
    sections = [Section(text, every_block(text), text, "bad", text) for _ in range(4)]
    return Page(title=text, sections=sections, over=text, answer=text, lead=text, top=every_block(text), foot=text)


def test_every_text_is_escaped():
    html = page.render(whole(HOSTILE))
    assert "<img src=x" not in html
    assert html.count("</style>") == 1
    assert html.count("&lt;img src=x onerror=alert(1)&gt;") > 60


def test_nothing_is_fetched():
    html = page.render(whole("text"))
    assert "<script" not in html
    assert "default-src 'none'" in html
    assert not re.search(r"url\(|@import|<link|https?:", html.replace("http://www.w3.org/2000/svg", ""))
    assert all(address.startswith("data:image/") for address in re.findall(r'src="([^"]*)"', html))


def test_only_the_pages_own_script_may_run_and_its_data_stays_data():
    import base64
    import hashlib

    script = "document.title = 'a < b'"
    html = page.render(Page(title="t", sections=[], script=script, data={"d": '["</script><b>"]'}))
    own = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{own}'" in html
    assert f'<script type="module">{script}</script>' in html
    assert r'<script type="application/json" id="d">["\u003c/script>\u003cb>"]</script>' in html


def test_a_section_may_have_an_address_of_its_own():
    sections = [Section(f"{i}", [], anchor="mine" if i == 2 else "") for i in range(4)]
    html = page.render(Page(title="t", sections=sections, has_column=True))
    assert re.findall(r'<section id="(\w+)">', html) == re.findall(r'href="#(\w+)"', html) == ["s1", "s2", "mine", "s4"]
    assert '<body class="vitreous column">' in html


def test_contents_fold_if_a_page_asks_for_it():
    sections = [Section(f"{i}", []) for i in range(4)]
    plain, folding = (page.render(Page(title="t", sections=sections, folds_contents=f)) for f in (False, True))
    assert "<details>" not in plain
    assert re.search(r"<nav[^>]*><details><summary>Contents</summary><ol>.*</ol></details></nav>", folding, re.DOTALL)


def test_every_tag_that_opens_closes():
    from html.parser import HTMLParser

    class Tags(HTMLParser):
        empty = frozenset({"meta", "img", "wbr", "br"})

        def __init__(self):
            super().__init__()
            self.stack = []

        def handle_starttag(self, tag, attributes):
            if tag not in self.empty:
                self.stack.append(tag)

        def handle_endtag(self, tag):
            assert self.stack.pop() == tag

    tags = Tags()
    tags.feed(page.render(whole("text")))
    assert tags.stack == []


def test_a_head_without_words_is_no_row():
    assert "<thead" not in page.fragment([Table(["", ""], [["a", "b"]])])
    assert "<thead" in page.fragment([Table(["", "x"], [["a", "b"]])])


def test_long_names_may_break_between_their_parts():
    html = page.fragment([Pictures([Group([page.picture(None, "a/b_c<d>/")])])])
    assert "a/<wbr>b_<wbr>c&lt;d&gt;/<" in html


def test_contents_come_with_the_fourth_section():
    few = Page(title="t", sections=[Section("one", []), Section("two", [])])
    assert "<nav" not in page.render(few)
    html = page.render(whole("text"))
    assert [f'id="s{i}"' in html and f'href="#s{i}"' in html for i in range(1, 5)] == [True] * 4


def test_pictures_are_small_and_small_pictures_are_exact():
    import base64
    import io

    from PIL import Image

    def opened(shot):
        return Image.open(io.BytesIO(base64.b64decode(shot.address.partition(",")[2])))

    assert max(opened(page.picture(PIXELS, "t")).size) == page.SIDE
    tiny = PIXELS[:28, :28]
    assert np.array_equal(np.asarray(opened(page.picture(tiny, "t"))), tiny)
    grey = page.picture(tiny[:, :, :1], "t")
    assert opened(grey).size == (28, 28)
    assert page.picture(tiny, "t").is_small
    assert not page.picture(PIXELS, "t").is_small


def test_a_page_is_written_once_and_again_by_force(tmp_path):
    path = tmp_path / "page.html"
    page.write(Page(title="one \udcff", sections=[]), path)  # a file's name may be no text
    with pytest.raises(ExistsError):
        page.write(Page(title="two", sections=[]), path)
    page.write(Page(title="two", sections=[]), path, force=True)
    assert "<h1>two</h1>" in path.read_text()


def test_a_fragment_brings_its_look_along():
    html = page.fragment([Text("a < b")])
    assert html.strip().startswith('<div class="vitreous fragment">')
    assert "a &lt; b" in html
    assert "<html" not in html
