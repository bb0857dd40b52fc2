"""Likeness of representations: linear CKA (Kornblith et al., arXiv 1905.00414), unbiased, over minibatches (D1).

n images of a batch   p features   L layers
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from vitreous.errors import DataError
from vitreous.words import counted

MIN_BATCH = 4  # images: the unbiased estimate divides by n (n − 3)
ENOUGH_IMAGES = 24  # from here on the CKA of two layers is right within 0.05 (NOTES: five images are off by 0.3)
INTERVAL_GROUPS = 32  # sums of the pass, kept apart for intervals
NO_BATCH = (
    f"no batch had the {MIN_BATCH} images that likeness needs; "
    f"give --batch {MIN_BATCH} or more, or device=cpu if memory is short"
)
CENTRE_FIRST_BELOW = 1 / 64  # take the mean out before the product if changes are a smaller share of a layer's size
ROUNDING_SHARE = 1e-11  # share of a layer's size below which its changes are rounding


def is_whole(size: int, largest: int) -> bool:
    """True if a batch counts: a much smaller one would add noise at the same weight."""
    return size >= MIN_BATCH and 2 * size >= largest


def caution_of_likeness(images: int) -> str | None:
    """Why CKA of so few images says little; None if they are enough."""
    if images >= ENOUGH_IMAGES:
        return None
    return (
        f"CKA of {counted(images, 'image')} is mostly chance: its unbiased estimate exists from {MIN_BATCH} images on, "
        f"and is right within 0.05 from about {ENOUGH_IMAGES} on"
    )


def centred(grams: Tensor, *, unbiased: bool = True) -> Tensor:
    """X Xᵀ without its row and column means, scaled so that the product of two of them, summed, is their HSIC.

        unbiased  u = K̃ᵢⱼ − K̃ᵢ. / (n−2) − K̃.ⱼ / (n−2) + K̃.. / ((n−1)(n−2)), diagonal 0;  u / √(n (n−3))
        biased    H K H / (n−1)

    grams: L n n, float64, overwritten.
    """
    n = grams.shape[-1]
    if n < (MIN_BATCH if unbiased else 2):
        raise ValueError(f"a batch of {n} images is too small for CKA; give {MIN_BATCH} or more")
    if not unbiased:
        means = grams.mean(-1)
        grams -= means[:, :, None] + means[:, None] - means.mean(-1)[:, None, None]
        return grams.div_(n - 1)
    diagonal = grams.diagonal(dim1=-2, dim2=-1)
    diagonal.zero_()
    sums = grams.sum(-1)
    whole = sums.sum(-1) / (2 * (n - 1))
    each = (sums - whole[:, None]) / (n - 2)  # half of the last term with the row, half with the column
    grams -= each[:, :, None]
    grams -= each[:, None]
    diagonal.zero_()
    return grams.div_((n * (n - 3)) ** 0.5)


def centred_grams(layers: Sequence[Tensor], *, unbiased: bool = True) -> Tensor:
    """`centred` of several representations of the same n images, n … each.  Returns L n², float64.

    A column's mean changes nothing; it is taken out first if it would drown float32. A layer whose rows differ only by
    rounding gives 0.
    """
    rows = [_as_rows(x) for x in layers]
    n = len(rows[0])
    grams = exact(torch.stack([x @ x.mT for x in rows]))  # L n n
    whole = grams.diagonal(dim1=-2, dim2=-1).sum(-1)
    size = grams.sum((-2, -1)) / n  # of the mean row, n times
    for layer in (whole - size <= CENTRE_FIRST_BELOW * whole).nonzero().flatten().tolist():
        x = rows[layer] - rows[layer].mean(0)
        grams[layer] = exact(x @ x.mT)
        whole[layer] = grams[layer].trace()
    out = centred(grams, unbiased=unbiased)
    out[whole <= ROUNDING_SHARE * size] = 0
    return out.flatten(1)


def centred_gram(x: Tensor, *, unbiased: bool = True) -> Tensor:
    """`centred_grams` of one representation: n²."""
    return centred_grams([x], unbiased=unbiased)[0]


def exact(x: Tensor) -> Tensor:
    """x in float64; on the CPU if the device has no float64."""
    return (x.cpu() if x.device.type == "mps" else x).double()


def _as_rows(x: Tensor) -> Tensor:
    rows = x.reshape(len(x), -1)
    return rows if rows.dtype in (torch.float32, torch.float64) else rows.float()


def hsic(x: Tensor, y: Tensor, *, unbiased: bool = True) -> float:
    """How much two representations of the same n images vary together.  x: n …  y: n …"""
    return float(centred_gram(x, unbiased=unbiased) @ centred_gram(y, unbiased=unbiased))


def cka(x: Tensor, y: Tensor, *, unbiased: bool = True) -> float | None:
    """HSIC(x, y) / √(HSIC(x, x) HSIC(y, y)); None if one of them is constant.

    Biased it lies in 0 … 1; unbiased it may step outside.
    """
    seen = Likeness(unbiased=unbiased)
    seen.add({"x": x, "y": y})
    return seen.matrix(["x"], ["y"])[0][0]


class Likeness:
    """CKA of all pairs of layers, over minibatches: HSIC is averaged first, and the ratio taken last.

    Memory holds L × n² numbers of one batch and INTERVAL_GROUPS × L² sums, however many images come.
    """

    def __init__(self, *, unbiased: bool = True, groups: int = INTERVAL_GROUPS):
        self.unbiased, self.groups = unbiased, groups
        self.names: list[str] = []
        self.sums = torch.zeros(0)  # groups L L
        self.batches = 0

    def add(self, layers: Mapping[str, Tensor]) -> None:
        """Activations of one batch, n … each, the images in one order."""
        grams = centred_grams(list(layers.values()), unbiased=self.unbiased)
        self.add_grams(dict(zip(layers, grams, strict=True)))

    def add_grams(self, grams: Mapping[str, Tensor]) -> None:
        """The `centred_gram` of each layer on one batch."""
        if not self.names:
            self.names = list(grams)
            self.sums = torch.zeros(self.groups, len(grams), len(grams), dtype=torch.float64)
        if list(grams) != self.names:
            raise ValueError("this batch has other layers than the batches before; give the same each time")
        flat = torch.stack(list(grams.values()))  # L n²
        self.sums[self.batches % self.groups] += (flat @ flat.mT).cpu()
        self.batches += 1

    @property
    def hsic(self) -> Tensor:
        """L L, summed over the batches."""
        return self.sums.sum(0)

    @property
    def constant(self) -> list[str]:
        """Layers that are the same for every image: their CKA has no meaning."""
        own = self.hsic.diagonal()
        return [name for name, value in zip(self.names, own.tolist(), strict=True) if value <= 0]

    def ratio(self, hsic: Tensor | None = None) -> Tensor:
        """L L; NaN in the rows and columns of constant layers."""
        if not self.batches:
            raise DataError(NO_BATCH)
        sums = self.hsic if hsic is None else hsic
        own = sums.diagonal(dim1=-2, dim2=-1)
        return sums / (own[..., :, None] * own[..., None, :]).clamp(min=0).sqrt()

    def matrix(
        self, rows: Sequence[str] | None = None, columns: Sequence[str] | None = None
    ) -> list[list[float | None]]:
        """CKA of these layers with those (all by default); None for a constant one."""
        return _picked(self.ratio(), self._places(rows), self._places(columns))

    def error(
        self, rows: Sequence[str] | None = None, columns: Sequence[str] | None = None
    ) -> list[list[float | None]] | None:
        """Standard error of each number over repeated subsets (all groups but one); None below 3 groups."""
        used = min(self.batches, self.groups)
        if used < 3:
            return None
        without = self.hsic - self.sums[:used]  # used L L
        ratios = self.ratio(without)
        spread = (ratios - ratios.mean(0)).square().sum(0) * (used - 1) / used
        return _picked(spread.sqrt(), self._places(rows), self._places(columns))

    def joined(self, parts: Mapping[str, Sequence[str]]) -> Likeness:
        """The same pass with layers joined side by side: features of several make one representation.

        A joined Gram matrix is the sum of its parts', and HSIC is linear in each.
        """
        out = Likeness(unbiased=self.unbiased, groups=self.groups)
        out.names, out.batches = list(parts), self.batches
        mix = torch.zeros(len(parts), len(self.names), dtype=torch.float64)
        for row, members in enumerate(parts.values()):
            mix[row, self._places(members)] = 1
        out.sums = mix @ self.sums @ mix.mT
        return out

    def _places(self, names: Sequence[str] | None) -> list[int]:
        where = {name: i for i, name in enumerate(self.names)}
        return list(where.values()) if names is None else [where[name] for name in names]


def _picked(matrix: Tensor, rows: list[int], columns: list[int]) -> list[list[float | None]]:
    part = matrix[rows][:, columns].tolist()
    return [[value if math.isfinite(value) else None for value in row] for row in part]


def uniformity(matrix: Sequence[Sequence[float | None]]) -> dict[str, float | None]:
    """How alike the layers of one model are: mean off the diagonal, and of the first against the last third (D2)."""
    count = len(matrix)
    third = max(count // 3, 1)
    off = [matrix[i][j] for i in range(count) for j in range(count) if i != j]
    ends = [matrix[i][j] for i in range(third) for j in range(count - third, count)]
    return {"uniformity": known_mean(off), "low_high": known_mean(ends)}


def best_match(matrix: Sequence[Sequence[float | None]]) -> list[dict[str, Any]]:
    """For each row the most similar column, and its CKA."""
    out: list[dict[str, Any]] = []
    for i, row in enumerate(matrix):
        known = [(value, j) for j, value in enumerate(row) if value is not None]
        value, j = max(known) if known else (None, None)
        out.append({"row": i, "column": j, "cka": value})
    return out


def known_mean(values: Sequence[float | None]) -> float | None:
    """The mean of the numbers that are there."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
