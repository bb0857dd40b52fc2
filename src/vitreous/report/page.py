"""One look for every page: a title, sections of blocks, and nothing fetched from anywhere.

    page = Page(title="…", sections=[Section("Classes", [Table(["class", "images"], rows)])])
    write(page, "report.html")

Blocks are values; the templates draw them. Every text is escaped. A page suits light and dark, phone, desk and
print. Its own policy forbids it to load anything: what it shows is inside it.
"""

from __future__ import annotations

import base64
import hashlib
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vitreous.files import write_bytes
from vitreous.printable import printable
from vitreous.report.colours import MAX_SIDE_UNSMOOTHED, data_uri
from vitreous.report.marks import Chart

if TYPE_CHECKING:
    import jinja2

Tone = Literal["plain", "good", "warn", "bad"]
SIDE = 224  # pixels of a thumbnail's longer side: sharp at 112 CSS pixels on a phone's screen
TEMPLATES = Path(__file__).parent / "templates"
ANSWER_PAGE = Path(__file__).parent / "answer_page"  # of serve and of a web export; each adds its own api.js


class PageBlock:
    """A part of a page; `templates/blocks.html` draws each kind."""

    @property
    def kind(self) -> str:
        return type(self).__name__.lower()


Block = PageBlock  # its name in code that makes pages


@dataclass(frozen=True)
class Text(PageBlock):
    """A paragraph."""

    text: str


@dataclass(frozen=True)
class Heading(PageBlock):
    """A heading before the first section."""

    text: str


@dataclass(frozen=True)
class Note(PageBlock):
    """A paragraph that must be seen."""

    text: str
    tone: Tone = "plain"


@dataclass(frozen=True)
class Code(PageBlock):
    """Lines to copy: a command, a program."""

    text: str


@dataclass(frozen=True)
class Number:
    """One number with its name below it. about: one more short line, such as its interval."""

    value: str
    name: str
    tone: Tone = "plain"
    about: str = ""


@dataclass(frozen=True)
class Numbers(PageBlock):
    """The few numbers that matter, large."""

    numbers: Sequence[Number]


@dataclass(frozen=True)
class Bar:
    """A table cell drawn as a bar: `share` (0 … 1) of the column's width, with its text."""

    text: str
    share: float


@dataclass(frozen=True)
class Table(PageBlock):
    """Rows under a head. align: one letter for each column, l or r."""

    head: Sequence[str]
    rows: Sequence[Sequence[str | Bar]]
    align: str = ""
    caption: str = ""


@dataclass(frozen=True)
class Picture:
    """A picture inside the page; without `address`, an empty frame that says `missing`."""

    address: str | None  # data:…, made by `picture`
    title: str
    about: str = ""
    missing: str = "cannot be shown"
    is_small: bool = False


@dataclass(frozen=True)
class Group:
    """Pictures that belong together, such as two copies, with one caption."""

    pictures: Sequence[Picture]
    caption: str = ""


@dataclass(frozen=True)
class Pictures(PageBlock):
    """A grid of groups; `more` says what was left out."""

    groups: Sequence[Group]
    more: str = ""


@dataclass(frozen=True)
class Strip:
    """Small pictures in a row beside their common name."""

    name: str
    pictures: Sequence[Picture]
    about: str = ""


@dataclass(frozen=True)
class Shelf(PageBlock):
    """Strips below each other; `more` says what was left out."""

    strips: Sequence[Strip]
    more: str = ""


@dataclass(frozen=True)
class Listing(PageBlock):
    """A long list behind a line that opens it."""

    title: str
    items: Sequence[str]
    more: str = ""


@dataclass(frozen=True)
class Drawing(PageBlock):
    """A chart, put into the page as SVG."""

    chart: Chart
    caption: str = ""
    heading: str = ""

    @property
    def svg(self) -> str:
        return self.chart.to_svg()


@dataclass(frozen=True)
class Drawings(PageBlock):
    """Drawings side by side, as many as fit."""

    drawings: Sequence[Drawing]


@dataclass(frozen=True)
class Columns(PageBlock):
    """Blocks side by side if they fit."""

    blocks: Sequence[Block]


@dataclass(frozen=True)
class Fold(PageBlock):
    """Blocks behind a line that opens them."""

    title: str
    blocks: Sequence[Block]


@dataclass(frozen=True)
class Point:
    """One line of a list. anchor: the section that tells more."""

    text: str
    anchor: str = ""


@dataclass(frozen=True)
class Points(PageBlock):
    """What to know, line by line; each line links to its section."""

    points: Sequence[Point]


@dataclass(frozen=True)
class Widget(PageBlock):
    """Our own HTML, put into the page as it is; the page's script makes it work."""

    html: str


@dataclass(frozen=True)
class Section:
    """A heading and what stands under it. badge: a short word beside the heading."""

    heading: str
    blocks: Sequence[Block]
    badge: str = ""
    tone: Tone = "plain"
    summary: str = ""  # beside its name in the contents
    anchor: str = ""  # its address in the page; by default its number


@dataclass(frozen=True)
class Page:
    """A whole page. over: the line above the title; answer: the result in one line; foot: the last line."""

    title: str
    sections: Sequence[Section]
    over: str = "vitreous"
    answer: str = ""
    tone: Tone = "plain"  # of the answer
    lead: str = ""
    top: Sequence[Block] = ()  # before the first section
    foot: str = ""
    has_column: bool = False  # contents beside the sections, if they fit
    folds_contents: bool = False  # on a phone, the contents open when asked for
    style: str = ""  # our own CSS, beyond that of every page
    script: str = ""  # our own ES module: the page's policy lets no other run
    data: Mapping[str, str] = field(default_factory=dict)  # id -> text that the script reads


def render(page: Page) -> str:
    """The page as self-contained HTML."""
    css = (TEMPLATES / "page.css").read_text("utf-8") + page.style
    own = base64.b64encode(hashlib.sha256(page.script.encode()).digest()).decode()
    policy = f"; script-src 'sha256-{own}'" if page.script else ""
    safe = {name: text.replace("<", "\\u003c") for name, text in page.data.items()}
    return printable(_environment().get_template("page.html").render(page=page, css=css, policy=policy, data=safe))


def fragment(blocks: Sequence[Block]) -> str:
    """Blocks alone, for a notebook: the same look, inside one element."""
    css = (TEMPLATES / "page.css").read_text("utf-8")
    return printable(_environment().get_template("fragment.html").render(blocks=blocks, css=css))


def write(page: Page, path: str | os.PathLike[str], *, force: bool = False) -> None:
    """The page as a file, whole or not at all."""
    write_bytes(path, render(page).encode(), force=force)


def picture(
    pixels: NDArray[np.uint8] | Image.Image | None, title: str, about: str = "", *, side: int = SIDE
) -> Picture:
    """A picture small enough for a page: a JPEG thumbnail, or PNG for one of few pixels."""
    if pixels is None:
        return Picture(None, title, about)
    if isinstance(pixels, np.ndarray):
        pixels = Image.fromarray(pixels[:, :, 0] if pixels.ndim == 3 and pixels.shape[2] == 1 else pixels)
    image = pixels.convert("RGB")
    is_small = max(image.size) <= MAX_SIDE_UNSMOOTHED
    if not is_small:
        image.thumbnail((side, side), Image.Resampling.BOX, reducing_gap=2.0)
    address = data_uri(image, is_photo=not is_small, quality=80, optimize=True)
    return Picture(address, title, about, is_small=is_small)


def _soft(text: str) -> str:
    """Escaped text; a path or a name_of_many_words may break between its parts."""
    from markupsafe import Markup, escape

    return Markup(re.sub(r"([/_])(?=.)", r"\1<wbr>", str(escape(text))))  # noqa: S704  escaped in this line


@cache
def _environment() -> jinja2.Environment:
    import jinja2  # only when a page is made

    loader = jinja2.FileSystemLoader(TEMPLATES)
    environment = jinja2.Environment(
        loader=loader, autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["soft"] = _soft
    environment.tests["bar"] = lambda cell: isinstance(cell, Bar)
    return environment
