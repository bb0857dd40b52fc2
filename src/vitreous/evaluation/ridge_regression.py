"""The linear probe of the papers: regularised least squares onto ±1, in closed form.

From section 4.1 of arXiv 2010.11929, as in the authors' evaluator (big_vision, fewshot_lsr):

    mean, std      of the n chosen rows, std over n, plus 1e-5
    Z = (X − mean) / std,  and a column of constant value 100
    T = 2 onehot(y) − 1
    W = (ZᵀZ + l2 I)⁻¹ Zᵀ T  =  Zᵀ (Z Zᵀ + l2 I)⁻¹ T          l2 = 1024, not scaled by n

Centred columns are orthogonal to the constant one, so its weight is independent: 100 Σ T / (100² n + l2).

n rows   D features   K classes   everything in float64
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitreous.errors import ConfigError, DataError
from vitreous.evaluation.labelled_rows import Rows, checked, count_classes, known_rows, refuse_constant
from vitreous.evaluation.tie_breaking import best_class

DEFAULT_L2 = 1024.0
BIAS_COLUMN = 100.0  # the constant column
STD_EPS = 1e-5  # added to every standard deviation
FLOAT32_ROUNDING = 2.0**-24  # relative rounding error
ROWS_IN_CACHE = 256  # rows that fit into a core's own cache
NUMBERS_AT_ONCE = 2**22  # numbers gathered at once while leaving groups out

Form = Literal["auto", "primal", "dual"]


@dataclass(frozen=True, eq=False)
class Ridge:
    """scores = [(x − mean) / std, 100] W"""

    weight: NDArray[np.float64]  # D + 1, K; the last row belongs to the constant
    mean: NDArray[np.float64]  # D
    std: NDArray[np.float64]  # D, 1e-5 included
    l2: float

    def scores(self, x: NDArray[Any]) -> NDArray[np.float64]:
        """N D -> N K."""
        rows = np.asarray(x)
        if rows.ndim != 2 or rows.shape[1] != len(self.mean):
            raise DataError(f"features of shape {rows.shape} do not fit a probe of {len(self.mean)}; give such rows")
        weight, offset = self.on_raw()
        return rows.astype(np.float64) @ weight + offset

    def on_raw(self, mean: Any = 0.0, std: Any = 1.0) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """The same map as a linear layer on raw features, or on (x − mean) / std: D K and K."""
        weight = self.weight[:-1] / self.std[:, None]
        return weight * np.reshape(std, (-1, 1)), BIAS_COLUMN * self.weight[-1] - (self.mean - mean) @ weight

    def answers(self, x: NDArray[Any]) -> Rows:
        """The class with the highest score for each row; of equal ones the lowest."""
        return best_class(self.scores(x))

    def right(self, x: NDArray[Any], y: NDArray[Any]) -> int:
        """The number of rows answered right."""
        return int((self.answers(x) == np.asarray(y)).sum())


def ridge(
    x: NDArray[Any],
    y: NDArray[Any],
    classes: int | Sequence[str],
    *,
    l2: float | Sequence[float] = DEFAULT_L2,
    form: Form = "auto",
    groups: Rows | None = None,
    device: torch.device | str = "cpu",
) -> Ridge:
    """The published least-squares probe on all rows.

    x: N D.  y: N class numbers; rows of −1 are left out.  l2: of several, the one with the most rows right in
    leave-one-out (of equal ones the largest).  form: which of the two equal formulas; auto takes the smaller.  groups:
    rows with the same number are left out together.
    """
    rows, labels, count, groups = _known(x, y, classes, groups)
    l2s = penalties(l2)
    if form not in ("auto", "primal", "dual"):
        raise ConfigError(f"there is no form {form!r}; say primal, dual or auto")
    if len(l2s) == 1:
        everything = [np.arange(len(rows))]
        return next(nested_ridges(rows, labels, count, everything, l2s, form=form, device=device))[0]
    parts = decompose(rows, labels, count, form=form, device=device)
    right = {value: int((best_class(parts.left_out(value, groups)) == labels).sum()) for value in sorted(l2s)}
    return parts.at(max(right, key=lambda value: (right[value], value)))


@dataclass(frozen=True, eq=False)
class Decomposed:
    """One eigendecomposition that gives the probe of any l2, and every row's leave-one-out score."""

    rows: Tensor  # Z: n D, standardised
    targets: Tensor  # T: n K
    eigenvectors: Tensor  # of ZᵀZ or of ZZᵀ
    eigenvalues: Tensor
    mean: Tensor
    std: Tensor
    is_primal: bool  # ZᵀZ, else ZZᵀ

    def at(self, l2: float) -> Ridge:
        """The probe for this l2."""
        penalties(l2)
        inverse = self.eigenvectors / (self.eigenvalues + l2) @ self.eigenvectors.T
        weight = inverse @ (self.rows.T @ self.targets) if self.is_primal else self.rows.T @ (inverse @ self.targets)
        return _ridge(weight, self.targets.sum(0), len(self.rows), self.mean, self.std, l2)

    def left_out(self, l2: float, groups: Rows | None = None) -> NDArray[np.float64]:
        """Scores of each row by the probe fitted without its group; n K.

            T − F₋ = (I − H_gg)⁻¹ (T − H T)_g,    H = Z (ZᵀZ + l2 I)⁻¹ Zᵀ,  the constant's part included

        Equal to n refits that keep the mean and std of all rows, which depend on no label.
        """
        penalties(l2)
        n = len(self.rows)
        constant = BIAS_COLUMN**2 / (BIAS_COLUMN**2 * n + l2)
        if self.is_primal:
            half = self.rows @ (self.eigenvectors / (self.eigenvalues + l2).sqrt())  # H = half halfᵀ + constant
            sign, start = -1.0, 1.0
        else:
            half = self.eigenvectors * (l2 / (self.eigenvalues + l2)).sqrt()  # I − H = half halfᵀ − constant
            sign, start = 1.0, 0.0
        residual = start * self.targets + sign * (half @ (half.T @ self.targets)) - constant * self.targets.sum(0)
        rest = start + sign * half.square().sum(1) - constant  # the diagonal of I − H
        left = residual / rest[:, None]
        for members in [] if groups is None else _equal_groups(groups, n, half.shape[1]):
            here = torch.from_numpy(members).to(half.device)  # G s
            rows, own = half[here], residual[here]  # G s D, G s K
            if self.is_primal and here.shape[1] > rows.shape[2]:
                left[here] = _left_of_many(rows, own, constant)
            else:
                block = start * torch.eye(here.shape[1]).to(half) + sign * (rows @ rows.mT) - constant
                left[here] = torch.linalg.solve(block, own)
        return (self.targets - left).cpu().numpy()


def decompose(
    x: NDArray[Any],
    y: NDArray[Any],
    classes: int | Sequence[str],
    *,
    form: Form = "auto",
    device: torch.device | str = "cpu",
) -> Decomposed:
    """The work that all values of l2 share."""
    rows, labels, count, _ = _known(x, y, classes, None)
    place = float64_device(device)
    z = torch.from_numpy(np.array(rows, np.float64)).to(place)
    spread = _Spread.of(z)
    mean, std = spread.mean, spread.std
    z = (z - mean) / std
    targets = _targets(torch.from_numpy(labels).to(place), count)
    is_primal = z.shape[1] < len(z) if form == "auto" else form == "primal"
    values, vectors = torch.linalg.eigh(z.T @ z if is_primal else z @ z.T)
    return Decomposed(z, targets, vectors, values.clamp(min=0), mean, std, is_primal)


def _equal_groups(groups: Rows, n: int, width: int) -> Iterator[Rows]:
    """Rows of groups of two or more: G s, groups of equal size together, limited by NUMBERS_AT_ONCE."""
    if len(groups) != n:
        raise DataError(f"there are groups of {len(groups)} rows and {n} rows; give one for each row")
    order = np.argsort(groups, kind="stable")
    starts = np.flatnonzero(np.r_[True, np.diff(groups[order]) != 0])
    sizes = np.diff(starts, append=n)
    for size in np.unique(sizes[sizes > 1]).tolist():
        members = order[starts[sizes == size][:, None] + np.arange(size)]
        step = max(1, NUMBERS_AT_ONCE // (size * max(size, width)))
        for begin in range(0, len(members), step):
            yield members[begin : begin + step]


def _left_of_many(rows: Tensor, residual: Tensor, constant: float) -> Tensor:
    """(I − U Uᵀ)⁻¹ r = r + U (I − Uᵀ U)⁻¹ Uᵀ r: D equations, however large the group.

    rows: G s D.  residual: r, G s K.  U: the rows, and a column √constant.
    """
    ones = torch.full_like(rows[..., :1], math.sqrt(constant))
    u = torch.cat([rows, ones], -1)
    small = torch.eye(u.shape[-1]).to(u) - u.mT @ u
    return residual + u @ torch.linalg.solve(small, u.mT @ residual)


# Growing sets ------------------------------------------------------------------------------------------------------


def nested_ridges(
    x: NDArray[Any],
    y: Rows,
    classes: int,
    parts: Sequence[Rows],
    l2s: Sequence[float] = (DEFAULT_L2,),
    *,
    form: Form = "auto",
    device: torch.device | str = "cpu",
) -> Iterator[tuple[Ridge, ...]]:
    """Probes on growing sets: on parts[0], then on parts[0] and parts[1], and so on; one for each l2.

    Each row enters the D×D moments once; mean and std of a set are applied afterwards.
    """
    place = float64_device(device)
    order = np.concatenate(parts)
    rows = torch.from_numpy(np.asarray(x[order], np.float64)).to(place)
    labels = torch.from_numpy(y[order]).to(place)
    shift = rows.mean(0)
    rows.sub_(shift)
    width = rows.shape[1]
    cross, crossed = torch.zeros((width, width), dtype=torch.float64, device=place), 0
    sums = torch.zeros((classes, width), dtype=torch.float64, device=place)
    spread: _Spread | None = None
    n = 0
    for part in parts:
        new = rows[n : n + len(part)]
        sums.index_add_(0, labels[n : n + len(part)], new)
        n += len(part)
        if len(new):  # all rows of a class may be used already
            spread = _Spread.of(new) if spread is None else spread.with_(_Spread.of(new))
        assert spread is not None, "the first part has rows"
        mean, std, is_dead = spread.mean, spread.std, spread.is_dead
        counts = torch.bincount(labels[:n], minlength=classes).double()
        if form == "primal" or (form == "auto" and n > width):
            _add_products(cross, rows[crossed:n])
            crossed = n
            gram = (cross.triu() + cross.triu(1).T - n * torch.outer(mean, mean)) / torch.outer(std, std)
            gram[is_dead], gram[:, is_dead] = 0.0, 0.0  # exactly 0, not a rounding error
            per_class = (sums - counts[:, None] * mean) / std  # K D
            per_class[:, is_dead] = 0.0
            target = 2 * per_class.T - per_class.sum(0)[:, None]  # ZᵀT
            weights = _solve(gram, target, l2s)
        else:
            z = (rows[:n] - mean) / std
            weights = [z.T @ alpha for alpha in _solve(z @ z.T, _targets(labels[:n], classes), l2s)]
        total = 2 * counts - n  # ΣT
        yield tuple(_ridge(w, total, n, mean + shift, std, l2) for w, l2 in zip(weights, l2s, strict=True))


def _add_products(cross: Tensor, rows: Tensor) -> None:
    """The upper half of cross + rowsᵀ rows, in place, block by block."""
    block = -(-len(cross) // 4)
    for i in range(0, len(cross), block):
        cross[i : i + block, i:] += rows[:, i : i + block].T @ rows[:, i:]


@dataclass(frozen=True, eq=False)
class _Spread:
    """Statistics to standardise rows by; two sets combine without their rows."""

    n: int
    average: Tensor  # D
    squares: Tensor  # Σ (x − average)²
    low: Tensor
    high: Tensor

    @classmethod
    def of(cls, rows: Tensor) -> _Spread:
        average = rows.mean(0)
        squares = torch.zeros_like(average)
        for part in rows.split(ROWS_IN_CACHE):
            squares += (part - average).square_().sum(0)
        return cls(len(rows), average, squares, rows.amin(0), rows.amax(0))

    def with_(self, other: _Spread) -> _Spread:
        n, apart = self.n + other.n, other.average - self.average
        return _Spread(
            n,
            self.average + apart * (other.n / n),
            self.squares + other.squares + apart.square() * (self.n * other.n / n),
            torch.minimum(self.low, other.low),
            torch.maximum(self.high, other.high),
        )

    @property
    def is_dead(self) -> Tensor:
        """Constant features: their mean is exactly their value, so they become 0."""
        return self.low == self.high

    @property
    def mean(self) -> Tensor:
        return torch.where(self.is_dead, self.low, self.average)

    @property
    def std(self) -> Tensor:
        """Over n, plus 1e-5."""
        return (self.squares / self.n).sqrt().masked_fill(self.is_dead, 0.0) + STD_EPS


def _solve(gram: Tensor, target: Tensor, l2s: Sequence[float]) -> list[Tensor]:
    """(gram + l2 I)⁻¹ target for every l2: a Cholesky factor for one, an eigendecomposition for several."""
    if len(l2s) == 1:
        factor = torch.linalg.cholesky(gram + l2s[0] * torch.eye(len(gram)).to(gram))
        return [torch.cholesky_solve(target, factor)]
    values, vectors = torch.linalg.eigh(gram)
    turned = vectors.T @ target
    return [vectors @ (turned / (values.clamp(min=0) + l2)[:, None]) for l2 in l2s]


def _ridge(weight: Tensor, total: Tensor, n: int, mean: Tensor, std: Tensor, l2: float) -> Ridge:
    weight = weight.masked_fill((std == STD_EPS)[:, None], 0.0)  # a constant feature has no weight
    whole = torch.cat([weight, (BIAS_COLUMN * total / (BIAS_COLUMN**2 * n + l2))[None]])
    return Ridge(whole.cpu().numpy(), mean.cpu().numpy(), std.cpu().numpy(), float(l2))


def _targets(labels: Tensor, classes: int) -> Tensor:
    found = torch.full((len(labels), classes), -1.0, dtype=torch.float64, device=labels.device)  # n K
    return found.scatter_(1, labels[:, None], 1.0)


# Answers of many probes --------------------------------------------------------------------------------------------


def count_right(
    probes: Sequence[Ridge], x: NDArray[Any], y: NDArray[Any], *, device: torch.device | str = "cpu"
) -> list[int]:
    """The number of rows that each probe answers right, in one pass over the rows.

    On a CPU scores are float32 first. A row whose margin is below a bound on the rounding error is scored again in
    float64. So the counts are those of float64, in less than half the time.
    """
    if not probes:
        return []
    place = float64_device(device)
    is_cpu, last = place.type == "cpu", probes[-1]
    mean, std = last.mean, np.where(last.std > STD_EPS, last.std, 1.0)  # constant features stay small
    classes = last.weight.shape[1]
    together = max(1, 1024 // classes)  # small probes share one matrix product
    step = max(256, 2**20 // (classes * together))  # scores that fit into a core's own cache
    blocks = [
        _Block.of([probe.on_raw(mean, std) for probe in probes[first : first + together]], place)
        for first in range(0, len(probes), together)
    ]
    right = np.zeros(len(probes), np.int64)
    for begin in range(0, len(x), step):
        rows = (np.asarray(x[begin : begin + step], np.float64) - mean) / std
        z = torch.from_numpy(rows).to(place)
        truth = torch.from_numpy(np.asarray(y[begin : begin + step], np.int64)).to(place)
        if is_cpu:
            z32, length = z.float(), z.norm(dim=1)
            found = [block.carefully(z, z32, length, truth) for block in blocks]
        else:
            found = [block.exactly(z, truth) for block in blocks]
        right += torch.cat([is_right.sum(0) for is_right in found]).cpu().numpy()
    return right.tolist()


@dataclass(frozen=True, eq=False)
class _Block:
    """c probes as one linear layer on standardised rows."""

    weight: Tensor  # D cK
    weight32: Tensor
    offset: Tensor  # cK
    longest: Tensor  # c: the norm of each probe's longest column

    @classmethod
    def of(cls, layers: Sequence[tuple[NDArray[np.float64], NDArray[np.float64]]], place: torch.device) -> _Block:
        weight, offset = (torch.from_numpy(np.concatenate(part, -1)).to(place) for part in zip(*layers, strict=True))
        return cls(weight, weight.float(), offset, weight.norm(dim=0).unflatten(0, (len(layers), -1)).amax(1))

    def exactly(self, z: Tensor, truth: Tensor) -> Tensor:
        """N c: whether each probe is right about each row."""
        return best_class((z @ self.weight + self.offset).unflatten(1, (len(self.longest), -1))) == truth[:, None]

    def carefully(self, z: Tensor, z32: Tensor, length: Tensor, truth: Tensor) -> Tensor:
        """The same by float32, and by float64 if unsure.

        A row is right if its own class scores above all others, which needs no argmax.
        """
        probes = len(self.longest)
        scores = torch.addmm(self.offset.float(), z32, self.weight32).unflatten(1, (probes, -1))  # N c K
        classes, place = scores.shape[-1], truth[:, None, None].expand(-1, probes, 1)
        own = scores.gather(-1, place).squeeze(-1).double()  # N c
        others = scores.scatter_(-1, place, -torch.inf).amax(-1).double()
        large = torch.maximum(own.abs(), others.abs()) + self.offset.abs().max()
        error = FLOAT32_ROUNDING * ((z.shape[1] + 4) * torch.outer(length, self.longest) + 4 * large)
        # the error exceeds TIE_FLOAT64 of any score, so equal scores are unsure
        is_right, unsure = own > others, ~((own - others).abs() > 2 * error)  # an overflow of float32 is unsure too
        for c in torch.nonzero(unsure.any(0)).flatten().tolist():
            here, mine = unsure[:, c], slice(c * classes, (c + 1) * classes)
            is_right[here, c] = best_class(z[here] @ self.weight[:, mine] + self.offset[mine]) == truth[here]
        return is_right


# What is given -----------------------------------------------------------------------------------------------------


def float64_device(device: torch.device | str) -> torch.device:
    """The device; the CPU in place of Apple's GPU, which has no float64."""
    place = torch.device(device)
    return torch.device("cpu") if place.type == "mps" else place


def _known(
    x: NDArray[Any], y: NDArray[Any], classes: int | Sequence[str], groups: Rows | None
) -> tuple[NDArray[Any], Rows, int, Rows | None]:
    count = count_classes(classes)
    rows, labels = checked(x, y, count, "train")
    kept = known_rows(labels)
    refuse_constant(rows)
    if len(kept) == len(rows):
        return rows, labels, count, groups
    return rows[kept], labels[kept], count, None if groups is None else np.asarray(groups)[kept]


def penalties(l2: float | Sequence[float]) -> tuple[float, ...]:
    """Check one l2 or several."""
    found = tuple(map(float, l2)) if isinstance(l2, Sequence) else (float(l2),)
    if not found or not all(value > 0 and math.isfinite(value) for value in found):
        raise ConfigError(f"l2 of {l2} is not a penalty; give numbers above 0")
    return found
