"""A reader of QR codes for tests, written apart from the encoder: from modules, or the lines of a terminal, to bytes.

It corrects nothing: each block must be a multiple of the generator polynomial, as an undamaged code is.
"""

from __future__ import annotations

import re

SHADES = {"█": "11", "▀": "10", "▄": "01", " ": "00"}  # light above, light below
TOTAL_WORDS = (26, 44, 70, 100, 134, 172, 196, 242, 292, 346)  # of versions 1 to 10 (table 1 of ISO/IEC 18004)
BLOCKS = {  # level bits -> for each version (blocks, their words, their data words), shorter blocks first (table 9)
    0b01: [
        *([(1, 26, 19)], [(1, 44, 34)], [(1, 70, 55)], [(1, 100, 80)], [(1, 134, 108)], [(2, 86, 68)], [(2, 98, 78)]),
        *([(2, 121, 97)], [(2, 146, 116)], [(2, 86, 68), (2, 87, 69)]),
    ],
    0b00: [
        *([(1, 26, 16)], [(1, 44, 28)], [(1, 70, 44)], [(2, 50, 32)], [(2, 67, 43)]),
    ],
}
CENTRES = {2: [18], 3: [22], 4: [26], 5: [30], 6: [34], 7: [22, 38], 8: [24, 42], 9: [26, 46], 10: [28, 50]}
POWERS = [1]  # of 2 in GF(256)
while len(POWERS) < 255:
    POWERS.append(POWERS[-1] * 2 ^ (0x11D if POWERS[-1] > 127 else 0))


def modules_of(lines: list[str]) -> list[str]:
    """Rows of 1 for dark and 0 for light, without the quiet zone, which must be light and four modules wide."""
    rows = []
    for line in lines:
        letters = [SHADES[letter] for letter in re.sub(r"\x1b\[[\d;]*m", "", line)]
        rows += ["".join(letter[half] for letter in letters).translate({48: "1", 49: "0"}) for half in (0, 1)]
    dark = [i for i, row in enumerate(rows) if "1" in row]
    side = dark[-1] - dark[0] + 1
    left = min(row.index("1") for row in rows if "1" in row)
    assert min(dark[0], left, len(rows[0]) - left - side, len(rows) - 1 - dark[-1]) >= 4
    return [row[left : left + side] for row in rows[dark[0] : dark[0] + side]]


def format_of(rows: list[str]) -> tuple[int, int]:
    """(level bits, mask); both copies must agree."""
    side = len(rows)
    first = [rows[8][j] for j in range(9) if j != 6] + [rows[i][8] for i in range(7, -1, -1) if i != 6]
    second = [rows[side - 1 - i][8] for i in range(7)] + list(rows[8][side - 8 :])
    assert first == second
    told = int("".join(first), 2) ^ 0x5412
    return told >> 13, told >> 10 & 7


def is_data(i: int, j: int, version: int) -> bool:
    """Whether a module is neither of a finder, timing, alignment, format nor version."""
    side = 17 + 4 * version
    if 6 in (i, j) or (i < 9 and (j < 9 or j >= side - 8)) or (i >= side - 8 and j < 9):
        return False
    if version >= 7 and ((i < 6 and j >= side - 11) or (j < 6 and i >= side - 11)):
        return False
    centres = [6, *CENTRES.get(version, [])]
    corners = {(6, 6), (6, centres[-1]), (centres[-1], 6)}
    places = [(a, b) for a in centres for b in centres if (a, b) not in corners]
    return not any(abs(i - a) <= 2 and abs(j - b) <= 2 for a, b in places)


def is_flipped(mask: int, i: int, j: int) -> bool:
    twos, threes = i * j % 2, i * j % 3
    early = (i + j) % 2, i % 2, j % 3, (i + j) % 3, (i // 2 + j // 3) % 2
    return not [*early, twos + threes, (twos + threes) % 2, ((i + j) % 2 + threes) % 2][mask]


def words_of(rows: list[str]) -> list[int]:
    """All codewords in the order of the symbol."""
    side, (_, mask) = len(rows), format_of(rows)
    version, bits, upwards = (len(rows) - 17) // 4, "", True
    right = side - 1
    while right > 0:
        right -= right == 6
        for i in range(side)[:: -1 if upwards else 1]:
            for j in (right, right - 1):
                if is_data(i, j, version):
                    bits += str(int(rows[i][j]) ^ is_flipped(mask, i, j))
        upwards, right = not upwards, right - 2
    assert len(bits) - 8 * TOTAL_WORDS[version - 1] in range(8)
    return [int(bits[8 * k : 8 * k + 8], 2) for k in range(TOTAL_WORDS[version - 1])]


def blocks_of(words: list[int], version: int, level: int) -> list[tuple[list[int], list[int]]]:
    """(data, error correction) of each block."""
    sizes = [(data, all_ - data) for count, all_, data in BLOCKS[level][version - 1] for _ in range(count)]
    parts: list[tuple[list[int], list[int]]] = [([], []) for _ in sizes]
    rest = iter(words)
    for k in range(max(data for data, _ in sizes)):
        for (data, _), part in zip(sizes, parts, strict=True):
            if k < data:
                part[0].append(next(rest))
    for _ in range(sizes[0][1]):
        for part in parts:
            part[1].append(next(rest))
    assert next(rest, None) is None
    return parts


def syndromes(words: list[int], count: int) -> list[int]:
    """The polynomial at 1, 2, 4 …; all zero if nothing is damaged."""
    found = []
    for root in range(count):
        value = 0
        for word in words:  # Horner
            value = (POWERS[(POWERS.index(value) + root) % 255] if value else 0) ^ word
        found.append(value)
    return found


def read(rows: list[str]) -> bytes:
    """The bytes of a code."""
    version, (level, _) = (len(rows) - 17) // 4, format_of(rows)
    blocks = blocks_of(words_of(rows), version, level)
    for data, correction in blocks:
        assert not any(syndromes(data + correction, len(correction))), "damaged"
    bits = "".join(f"{word:08b}" for data, _ in blocks for word in data)
    assert bits[:4] == "0100", "not in bytes"
    start = 12 if version < 10 else 20
    count = int(bits[4:start], 2)
    return bytes(int(bits[start + 8 * k : start + 8 * k + 8], 2) for k in range(count))
