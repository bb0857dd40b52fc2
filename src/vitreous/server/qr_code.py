"""An address as a QR code that a phone reads from the terminal (ISO/IEC 18004: bytes, up to version 10).

A code is a square of modules, dark or light. Data and error correction fill what finders, timing and alignment leave.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from itertools import groupby, pairwise, product

import numpy as np
from numpy.typing import NDArray

from vitreous.errors import ConfigError

Modules = NDArray[np.bool_]  # side side, True is dark

ALIGNMENT = ((), (6, 18), (6, 22), (6, 26), (6, 30), (6, 34), (6, 22, 38), (6, 24, 42), (6, 26, 46), (6, 28, 50))
CORRECTION = {  # for each version: codewords of error correction in a block, blocks (table 9)
    "M": ((10, 1), (16, 1), (26, 1), (18, 2), (24, 2)),  # from version 6 on it holds no more than a smaller code at L
    "L": ((7, 1), (10, 1), (15, 1), (20, 1), (26, 1), (18, 2), (20, 2), (24, 2), (30, 2), (18, 4)),
}
LEVEL_BITS = {"L": 0b01, "M": 0b00}
MASKS = (  # flip the module of row i and column j (table 10)
    lambda i, j: (i + j) % 2 == 0,
    lambda i, j: i % 2 == 0,
    lambda i, j: j % 3 == 0,
    lambda i, j: (i + j) % 3 == 0,
    lambda i, j: (i // 2 + j // 3) % 2 == 0,
    lambda i, j: i * j % 2 + i * j % 3 == 0,
    lambda i, j: (i * j % 2 + i * j % 3) % 2 == 0,
    lambda i, j: ((i + j) % 2 + i * j % 3) % 2 == 0,
)
FINDER_LIKE = ("00001011101", "10111010000")  # a reader may take it for a finder
QUIET_ZONE = 4  # light modules around the code
HALF_BLOCKS = np.array([" ", "▄", "▀", "█"])  # light: nothing, lower, upper, both
WHITE_ON_BLACK, COLOURS_BACK = "\x1b[38;5;231;48;5;16m", "\x1b[0m"  # a terminal may be light or dark


def qr_code(data: bytes) -> Modules:
    """The smallest code that holds the bytes, with the stronger error correction if there is room."""
    for version, level in product(range(1, len(ALIGNMENT) + 1), CORRECTION):
        is_defined = version <= len(CORRECTION[level])
        if is_defined and 4 + _count_bits(version) + 8 * len(data) <= 8 * _data_words(version, level):
            return _drawn(_codewords(data, version, level), version, level)
    raise ConfigError(f"{len(data)} bytes are too many for a QR code of version {len(ALIGNMENT)}; give fewer")


def terminal_lines(code: Modules) -> list[str]:
    """The code in half blocks, two rows of modules a line."""
    light = np.pad(~code, ((QUIET_ZONE, QUIET_ZONE + 1), (QUIET_ZONE, QUIET_ZONE)), constant_values=True)
    blocks = HALF_BLOCKS[2 * light[::2] + light[1::2]]
    return [f"{WHITE_ON_BLACK}{''.join(row)}{COLOURS_BACK}" for row in blocks]


# Codewords ------------------------------------------------------------------------------------------------------------


def _count_bits(version: int) -> int:
    """Bits that say how many bytes follow."""
    return 8 if version < 10 else 16


def _data_words(version: int, level: str) -> int:
    each, blocks = CORRECTION[level][version - 1]
    return int(_frame(version)[1].sum()) // 8 - each * blocks


def _codewords(data: bytes, version: int, level: str) -> list[int]:
    """Mode, count, data and padding in blocks, then the error correction of each block, both interleaved."""
    room = _data_words(version, level)
    bits = f"0100{len(data):0{_count_bits(version)}b}" + "".join(f"{byte:08b}" for byte in data)
    bits += "0" * min(4, 8 * room - len(bits))
    bits += "0" * (-len(bits) % 8)
    words = [int(bits[i : i + 8], 2) for i in range(0, len(bits), 8)]
    words += [(0xEC, 0x11)[i % 2] for i in range(room - len(words))]
    each, count = CORRECTION[level][version - 1]
    size, longer = divmod(room, count)  # the last blocks have one word more
    starts = [i * size + max(i - (count - longer), 0) for i in range(count + 1)]
    blocks = [words[first:last] for first, last in pairwise(starts)]
    return [*_by_turns(blocks), *_by_turns([reed_solomon(block, each) for block in blocks])]


def _by_turns(blocks: list[list[int]]) -> Iterator[int]:
    """The first word of each block, then the second of each; a short block ends earlier."""
    for i in range(max(map(len, blocks))):
        yield from (block[i] for block in blocks if i < len(block))


def reed_solomon(words: list[int], count: int) -> list[int]:
    """The remainder of words · xⁿ by (x − 1)(x − α) … (x − αⁿ⁻¹) over GF(256), α = 2, n = count."""
    generator, root = [1], 1
    for _ in range(count):
        generator = [a ^ _times(b, root) for a, b in zip([*generator, 0], [0, *generator], strict=True)]
        root = _times(root, 2)
    rest = [*words, *[0] * count]
    for i in range(len(words)):
        lead = rest[i]
        rest[i : i + count + 1] = [a ^ _times(lead, b) for a, b in zip(rest[i:], generator, strict=False)]
    return rest[-count:]


def _times(a: int, b: int) -> int:
    """The product in GF(256), modulo x⁸ + x⁴ + x³ + x² + 1."""
    product = 0
    for i in range(8):
        product ^= (a << i) * (b >> i & 1)
    return _remainder(product, 0x11D)


def _remainder(dividend: int, divisor: int) -> int:
    """The remainder of two polynomials over GF(2), a bit for each coefficient."""
    while (shift := dividend.bit_length() - divisor.bit_length()) >= 0:
        dividend ^= divisor << shift
    return dividend


# Modules --------------------------------------------------------------------------------------------------------------


def _drawn(words: list[int], version: int, level: str) -> Modules:
    """The code under the mask that disturbs a reader least."""
    frame, is_free = _frame(version)
    filled = frame.copy()
    bits = (word >> i & 1 for word in words for i in range(7, -1, -1))
    for place, bit in zip(_zigzag(is_free), bits, strict=False):  # up to 7 places are left over, and light
        filled[place] = bit
    rows, columns = np.indices(frame.shape)
    codes = []
    for number, flips in enumerate(MASKS):
        code = filled ^ (flips(rows, columns) & is_free)
        _write_format(code, format_bits(level, number))
        codes.append(code)
    return min(codes, key=_penalty)


@cache
def _frame(version: int) -> tuple[Modules, Modules]:
    """Finders, timing, alignment and version; and which modules are free for data."""
    side = 17 + 4 * version
    dark, is_free = np.zeros((side, side), bool), np.ones((side, side), bool)
    dark[6, 8:-8:2] = dark[8:-8:2, 6] = True
    is_free[6, :] = is_free[:, 6] = False
    dark[:7, :7] = dark[:7, -7:] = dark[-7:, :7] = _rings(7)
    is_free[:9, :9] = is_free[:9, -8:] = is_free[-8:, :9] = False  # with a light edge and the format
    dark[side - 8, 8] = True
    centres = ALIGNMENT[version - 1]
    for row, column in product(centres, centres):
        if (row, column) not in ((6, 6), (6, side - 7), (side - 7, 6)):  # the finders
            dark[row - 2 : row + 3, column - 2 : column + 3] = _rings(5)
            is_free[row - 2 : row + 3, column - 2 : column + 3] = False
    if version >= 7:
        bits = np.array([version_bits(version) >> i & 1 for i in range(18)], bool).reshape(6, 3)
        dark[:6, -11:-8], dark[-11:-8, :6] = bits, bits.T
        is_free[:6, -11:-8] = is_free[-11:-8, :6] = False
    return dark, is_free


def _rings(side: int) -> Modules:
    """A dark square in a light ring in a dark ring."""
    rings = np.ones((side, side), bool)
    rings[1:-1, 1:-1] = False
    rings[2:-2, 2:-2] = True
    return rings


def _zigzag(is_free: Modules) -> Iterator[tuple[int, int]]:
    """Free places in pairs of columns from the right, up and down by turns; the timing column is left out."""
    side = len(is_free)
    for turn, right in enumerate([*range(side - 1, 6, -2), 5, 3, 1]):
        for row in range(side - 1, -1, -1) if turn % 2 == 0 else range(side):
            yield from ((row, column) for column in (right, right - 1) if is_free[row, column])


def format_bits(level: str, mask: int) -> int:
    """15 bits: level, mask and their BCH code, never all zero (annex C)."""
    told = LEVEL_BITS[level] << 3 | mask
    return (told << 10 | _remainder(told << 10, 0b10100110111)) ^ 0b101010000010010


def version_bits(version: int) -> int:
    """18 bits: the version and its Golay code (annex D)."""
    return version << 12 | _remainder(version << 12, 0b1111100100101)


def _write_format(code: Modules, bits: int) -> None:
    """Both copies, the highest bit first: around the first finder, and along the other two."""
    side = len(code)
    around = [*((8, j) for j in (0, 1, 2, 3, 4, 5, 7, 8)), *((i, 8) for i in (7, 5, 4, 3, 2, 1, 0))]
    along = [*((side - 1 - i, 8) for i in range(7)), *((8, side - 8 + j) for j in range(8))]
    for places in (around, along):
        for i, place in enumerate(places):
            code[place] = bits >> (14 - i) & 1


def _penalty(code: Modules) -> int:
    """How much a code disturbs a reader (section 7.8.3): long runs, squares, false finders, too dark or too light."""
    lines = ["".join("1" if module else "0" for module in line) for square in (code, code.T) for line in square]
    runs = (len(list(run)) for line in lines for _, run in groupby(line))
    long_runs = sum(run - 2 for run in runs if run >= 5)
    first, *others = code[:-1, :-1], code[:-1, 1:], code[1:, :-1], code[1:, 1:]
    squares = int(np.logical_and.reduce([first == other for other in others]).sum())
    false_finders = sum(line.startswith(FINDER_LIKE, i) for line in lines for i in range(len(line)))
    unbalance = int(abs(20 * code.sum() - 10 * code.size) // code.size)
    return long_runs + 3 * squares + 40 * false_finders + 10 * unbalance
