"""Names and labels from strangers as text that is safe to print and to store.

A terminal obeys some characters, others reorder a page, and no file can hold lone surrogates. Each of them is
written as JSON writes it, \\u001b, so text that is already JSON keeps its meaning.
"""

from __future__ import annotations

import re

CONTROLS = r"\x00-\x08\x0b-\x1f\x7f-\x9f"  # all but the tab and the line feed
DIRECTIONS = r"\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # marks that reverse the order of letters
LINE_ENDS = r"\u2028\u2029"
SURROGATES = r"\ud800-\udfff"  # halves of a character, and bytes of a name that are not UTF-8
OBEYED = re.compile(f"[{CONTROLS}{DIRECTIONS}{LINE_ENDS}{SURROGATES}]")
OBEYED_IN_A_LINE = re.compile(f"[\\t\\n{CONTROLS}{DIRECTIONS}{LINE_ENDS}{SURROGATES}]")
ESCAPED_BYTE = re.compile(r"[\udc80-\udcff]")  # how Python holds a byte that is not UTF-8
SURROGATE = re.compile(f"[{SURROGATES}]")


def printable(text: str) -> str:
    """The text, with each character that a terminal or a page would obey escaped; its lines and tabs stay."""
    return OBEYED.sub(_escape, text)


def printable_line(text: str) -> str:
    """The same for a name or a label, which must stay on one line."""
    return OBEYED_IN_A_LINE.sub(_escape, text)


def storable(text: str) -> str:
    """The text as UTF-8 can hold it: bytes that are not UTF-8 become \\xff, halves of characters \\ud800."""
    text = ESCAPED_BYTE.sub(lambda found: f"\\x{ord(found[0]) - 0xDC00:02x}", text)
    return SURROGATE.sub(_escape, text)


def _escape(found: re.Match[str]) -> str:
    return f"\\u{ord(found[0]):04x}"
