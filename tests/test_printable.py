"""What a stranger wrote is printed, never obeyed."""

import json
import unicodedata

import pytest

from vitreous.printable import printable, printable_line, storable

OBEYED = ["\x1b", "\x07", "\r", "\x9b", "\x85", "\x7f", "\u202e", "\u2066", "\u2069", "\u200e", "\u200f", "\u061c"]
OBEYED += ["\u2028", "\ud800", "\udcff", "\x00"]


@pytest.mark.parametrize("letter", OBEYED)
def test_what_a_terminal_obeys_is_written_out(letter):
    for safe in (printable, printable_line):
        assert safe(f"a{letter}b") == f"a\\u{ord(letter):04x}b"


def test_nothing_but_tabs_and_line_feeds_controls_what_is_printed():
    every = "".join(map(chr, range(0x110000)))
    kept = {letter for letter in printable(every) if unicodedata.category(letter) in ("Cc", "Cs", "Zl", "Zp")}
    assert kept == {"\t", "\n"}
    bidi = {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}
    assert not {letter for letter in printable(every) if unicodedata.bidirectional(letter) in bidi}
    assert not {"\t", "\n"} & set(printable_line(every))


def test_letters_of_every_script_stay():
    text = "Käse 猫 кот قطة חתול 👩\u200d🚀 می\u200cخواهم"
    assert printable(text) == printable_line(text) == storable(text) == text


@pytest.mark.parametrize("letter", [letter for letter in OBEYED if letter != "\ud800"])
def test_json_means_the_same_after(letter):
    told = {"name": f'a{letter}\\{letter}\n"b'}
    assert json.loads(printable(json.dumps(told, ensure_ascii=False))) == told


def test_whatever_is_storable_is_utf8():
    assert storable("a\udcff\udcfe\ud800\udfffb\x1b") == "a\\xff\\xfe\\ud800\\udfffb\x1b"
    storable("".join(map(chr, range(0x110000)))).encode()
