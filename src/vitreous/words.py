"""Numbers, names and lists as people read them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from unicodedata import east_asian_width

from vitreous.printable import storable

WHOLE_WORDS = ((1e12, "trillion"), (1e9, "billion"), (1e6, "million"))
NONE_OF_THESE = "none of these"
SIZE_LETTERS = ((1e9, "G"), (1e6, "M"))


def none_of_these(nearest: str) -> str:
    """The answer to an image that resembles no class; without a confidence, which would contradict it."""
    return f"{NONE_OF_THESE} (nearest: {nearest})"


def percent(share: float | None, digits: int = 1) -> str:
    """`93.1 %`; a dash for None and NaN."""
    return "–" if share is None or math.isnan(share) else f"{100 * share:.{digits}f} %"


def confidence(limit: float) -> str:
    """A limit of confidence: `63 %`, `99.5 %`; never a 100 % that is not one."""
    return f"{round(100 * limit, 1):g} %"


def percent_range(interval: tuple[float, float] | None) -> str:
    """`91.2 to 94.7` for two shares, in percent; a dash for no interval."""
    return "–" if interval is None else f"{100 * interval[0]:.1f} to {100 * interval[1]:.1f}"


def unbroken(text: str) -> str:
    """The text with no line break between a number and its percent sign."""
    return text.replace(" %", "\u00a0%")


def count(number: int, units: Sequence[tuple[float, str]] = WHOLE_WORDS) -> str:
    """3 digits and a unit: `5.72 million`, or `5.72 M` in SIZE_LETTERS."""
    for size, unit in units:
        if number >= size:
            return f"{number / size:.3g} {unit}"
    return f"{number:,}"


def counted(number: int, thing: str) -> str:
    """`1 image`, `1,024 images`, `3 patches`."""
    return f"{number:,} {thing}" + ("" if number == 1 else "es" if thing.endswith(("ch", "ss")) else "s")


def duration(seconds: float) -> str:
    """In the unit that needs two digits: `99 s`, `99 min`, `1.7 h`."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 100 * 60 else f"{seconds / 3600:.1f} h"


def sentence(text: str) -> str:
    """With a capital and a full stop."""
    return f"{text[:1].upper()}{text[1:]}" + ("" if text.endswith((".", "!", "?")) else ".")


def few(names: Iterable[str], most: int = 3) -> str:
    """`a, b, c and 4 more`."""
    listed = sorted(names)
    more = f" and {len(listed) - most:,} more" if len(listed) > most else ""
    return ", ".join(map(storable, listed[:most])) + more


def aligned(rows: Sequence[Sequence[str]], align: str) -> list[str]:
    """A table as lines, each column as wide as its widest cell.  align: one letter for each column, l or r."""
    widths = [max(map(cells, column)) for column in zip(*rows, strict=True)]

    def filled(cell: str, side: str, width: int) -> str:
        space = " " * (width - cells(cell))
        return space + cell if side == "r" else cell + space

    return ["  ".join(map(filled, row, align, widths)).rstrip() for row in rows]


def cells(text: str) -> int:
    """How many columns of a terminal the text takes: Chinese, Japanese and Korean letters take two each."""
    return sum(2 if east_asian_width(letter) in "WF" else 1 for letter in text)


def shortened(text: str, columns: int) -> str:
    """The text, or its beginning and an ellipsis, in at most this many columns."""
    if cells(text) <= columns:
        return text
    while cells(text) >= columns:
        text = text[:-1]
    return f"{text.rstrip()}…"


def one_line(thing: object) -> str:
    """An error's or an untrusted file's text, as one short line."""
    words = " ".join(str(thing)[:999].split()) or type(thing).__name__
    return "".join(letter if letter.isprintable() else "?" for letter in words)[:160]
