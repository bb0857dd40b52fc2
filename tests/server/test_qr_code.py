"""QR codes: facts of the standard, laws of its two codes, and a reader that knows nothing of the encoder."""

from __future__ import annotations

import re

import numpy as np
import pytest
import qr_reader
from hypothesis import given
from hypothesis import strategies as st

from vitreous.errors import ConfigError
from vitreous.server.qr_code import MASKS, format_bits, qr_code, reed_solomon, terminal_lines, version_bits

ADDRESS = b"http://192.168.178.42:8000/#token=Zx3_kd-9QwEr7TyU"
MOST_BYTES = {  # of byte mode (table 7 of ISO/IEC 18004)
    "L": (17, 32, 53, 78, 106, 134, 154, 192, 230, 271),
    "M": (14, 26, 42, 62, 84),
}


def rows_of(data):
    return ["".join("01"[int(module)] for module in row) for row in qr_code(data)]


def test_error_correction_is_that_of_the_standards_own_example():
    """Annex I: 01234567 at 1-M."""
    data = "10 20 0C 56 61 80 EC 11 EC 11 EC 11 EC 11 EC 11"
    wanted = "A5 24 D4 C1 ED 36 C7 87 2C 55"
    assert bytes(reed_solomon(list(bytes.fromhex(data)), 10)) == bytes.fromhex(wanted)


@given(words=st.lists(st.integers(0, 255), min_size=1, max_size=60), count=st.integers(1, 30))
def test_words_and_their_correction_vanish_at_every_root_of_the_generator(words, count):
    correction = reed_solomon(words, count)
    assert len(correction) == count
    assert not any(qr_reader.syndromes(words + correction, count))
    spoiled = [words[0] ^ 1, *words[1:], *correction]
    assert any(qr_reader.syndromes(spoiled, count))


@pytest.mark.parametrize(
    ("level", "mask", "bits"),
    [("M", 0, 0x5412), ("M", 5, 0x40CE), ("L", 0, 0x77C4), ("L", 4, 0x662F), ("L", 7, 0x6976)],
)
def test_format_bits_are_those_of_the_table(level, mask, bits):
    """Table C.1."""
    assert format_bits(level, mask) == bits


def test_formats_differ_in_five_bits_and_versions_in_eight():
    """What the BCH and Golay codes are for."""
    formats = [format_bits(level, mask) for level in "LM" for mask in range(8)]
    versions = [version_bits(version) for version in range(7, 11)]
    assert versions == [0x07C94, 0x085BC, 0x09A99, 0x0A4D3]  # table D.1
    for codes, least in ((formats, 5), (versions, 8)):
        assert min((a ^ b).bit_count() for i, a in enumerate(codes) for b in codes[:i]) >= least


@pytest.mark.parametrize(
    ("level", "version"), [(level, 1 + i) for level in "LM" for i in range(len(MOST_BYTES[level]))]
)
def test_every_version_and_level_is_read_back_at_its_fullest(level, version):
    count = MOST_BYTES[level][version - 1]
    data = np.random.default_rng(count).integers(0, 256, count, np.uint8).tobytes()
    rows = rows_of(data)
    assert len(rows) == 17 + 4 * version
    assert qr_reader.format_of(rows)[0] == {"L": 0b01, "M": 0b00}[level]
    assert qr_reader.read(rows) == data


def test_one_byte_more_takes_the_next_size():
    for most in MOST_BYTES["L"][:-1]:
        assert len(qr_code(b"x" * (most + 1))) == len(qr_code(b"x" * most)) + 4
    with pytest.raises(ConfigError, match="272 bytes are too many for a QR code of version 10; give fewer"):
        qr_code(b"x" * 272)


def test_the_frame_is_where_readers_look_for_it():
    finder = ["1111111", "1000001", "1011101", "1011101", "1011101", "1000001", "1111111"]
    for count in (10, 60, 250):
        rows = rows_of(b"x" * count)
        side = len(rows)
        for top, left in ((0, 0), (0, side - 7), (side - 7, 0)):
            assert [row[left : left + 7] for row in rows[top : top + 7]] == finder
        timing = ("10" * side)[8 : side - 8]
        assert rows[6][8 : side - 8] == timing == "".join(row[6] for row in rows[8 : side - 8])
        assert rows[7][:8] == "0" * 8 == rows[7][side - 8 :] == rows[side - 8][:8]
        assert rows[side - 8][8] == "1"
        if count > 14:
            assert [row[side - 9 : side - 4] for row in rows[side - 9 : side - 4]] == [
                "11111", "10001", "10101", "10001", "11111",
            ]  # fmt: skip
        if side >= 45:
            told = [int("".join(rows[5 - k // 3][side - 9 - k % 3] for k in range(18)), 2)]
            assert told == [version_bits((side - 17) // 4)]


def test_masks_are_those_of_the_reader():
    for number, flips in enumerate(MASKS):
        assert all(
            bool(flips(np.int64(i), np.int64(j))) == qr_reader.is_flipped(number, i, j)
            for i in range(12)
            for j in range(12)
        )


def test_a_terminal_shows_the_code_in_half_blocks_with_colours_of_its_own():
    lines = terminal_lines(qr_code(ADDRESS))
    assert qr_reader.read(qr_reader.modules_of(lines)) == ADDRESS
    assert all(re.fullmatch("\x1b\\[38;5;231;48;5;16m[█▀▄ ]{37}\x1b\\[0m", line) for line in lines)
    assert len(lines) == 19  # with the address, a terminal of 24 lines
