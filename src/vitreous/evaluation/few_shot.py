"""Few-shot accuracy of frozen features: regularised least squares onto ±1, in closed form.

The probe of section 4.1 of arXiv 2010.11929, as in the authors' evaluator (big_vision, fewshot_lsr):

    mean, std      of the n chosen rows, std over n, plus 1e-5
    Z = (X − mean) / std,  and a column of constant value 100
    T = 2 onehot(y) − 1
    W = (ZᵀZ + l2 I)⁻¹ Zᵀ T  =  Zᵀ (Z Zᵀ + l2 I)⁻¹ T          l2 = 1024, not scaled by n

Centred columns are orthogonal to the constant one, so its weight is independent: 100 Σ T / (100² n + l2).

n rows   D features   K classes   everything in float64
"""

from __future__ import annotations

import html
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitreous.errors import ConfigError, DataError
from vitreous.evaluation.ties import best_class
from vitreous.words import few

if TYPE_CHECKING:
    from vitreous.evaluation.learning_curve import Curve

__all__ = [
    "DEFAULT_L2",
    "DEFAULT_SHOTS",
    "Decomposed",
    "FewShot",
    "Ridge",
    "checked",
    "choose_shots",
    "count_right",
    "decompose",
    "draw_seeds",
    "fewshot",
    "is_constant",
    "mean_interval",
    "nested_ridges",
    "ridge",
    "shot_counts",
]

DEFAULT_L2 = 1024.0
DEFAULT_SHOTS = (1, 5, 10, 25)
BIAS_COLUMN = 100.0  # the constant column
STD_EPS = 1e-5  # added to every standard deviation
FLOAT32_ROUNDING = 2.0**-24  # relative rounding error
ROWS_IN_CACHE = 256  # rows that fit into a core's own cache
WEIGHTS_AT_ONCE = 2**26  # weights held at once while counting answers
NUMBERS_AT_ONCE = 2**22  # numbers gathered at once while leaving groups out
# Student's t for 95 %, by degrees of freedom from 1
T95 = [12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131, 2.120]
T95 += [2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042]

Rows = NDArray[np.int64]
Form = Literal["auto", "primal", "dual"]


# One probe ---------------------------------------------------------------------------------------------------------


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

    def on_raw(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """The same map as a linear layer on raw features: D K and K."""
        weight = self.weight[:-1] / self.std[:, None]
        return weight, BIAS_COLUMN * self.weight[-1] - self.mean @ weight

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

    x: N D.  y: N class numbers; rows of −1 are left out.  l2: of several, the one with most rows right in leave-one-out
    (of equal ones the largest).  form: which of the two equal formulas; auto takes the smaller.  groups: rows with the
    same number are left out together.
    """
    rows, labels, count, groups = _known_rows(x, y, classes, groups)
    l2s = _l2s(l2)
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
    vectors: Tensor  # of ZᵀZ or of ZZᵀ
    values: Tensor
    mean: Tensor
    std: Tensor
    is_primal: bool  # ZᵀZ, else ZZᵀ

    def at(self, l2: float) -> Ridge:
        """The probe for this l2."""
        _l2s(l2)
        inverse = self.vectors / (self.values + l2) @ self.vectors.T
        weight = inverse @ (self.rows.T @ self.targets) if self.is_primal else self.rows.T @ (inverse @ self.targets)
        return _ridge(weight, self.targets.sum(0), len(self.rows), self.mean, self.std, l2)

    def left_out(self, l2: float, groups: Rows | None = None) -> NDArray[np.float64]:
        """Scores of each row by the probe fitted without its group; n K.

            T − F₋ = (I − H_gg)⁻¹ (T − H T)_g,    H = Z (ZᵀZ + l2 I)⁻¹ Zᵀ,  the constant's part included

        Equal to n refits that keep the mean and std of all rows, which depend on no label.
        """
        _l2s(l2)
        n = len(self.rows)
        constant = BIAS_COLUMN**2 / (BIAS_COLUMN**2 * n + l2)
        if self.is_primal:
            half = self.rows @ (self.vectors / (self.values + l2).sqrt())  # H = half halfᵀ + constant
            sign, start = -1.0, 1.0
        else:
            half = self.vectors * (l2 / (self.values + l2)).sqrt()  # I − H = half halfᵀ − constant
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
    rows, labels, count, _ = _known_rows(x, y, classes, None)
    place = _float64_place(device)
    z = torch.from_numpy(np.array(rows, np.float64)).to(place)
    spread = _Spread.of(z)
    mean, std = spread.mean, spread.std
    z = (z - mean) / std
    targets = torch.full((len(z), count), -1.0, dtype=torch.float64, device=place)
    targets[torch.arange(len(z)), torch.from_numpy(labels)] = 1.0
    is_primal = z.shape[1] < len(z) if form == "auto" else form == "primal"
    values, vectors = torch.linalg.eigh(z.T @ z if is_primal else z @ z.T)
    return Decomposed(z, targets, vectors, values.clamp(min=0), mean, std, is_primal)


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
    place = _float64_place(device)
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
            targets = torch.full((n, classes), -1.0, dtype=torch.float64, device=place)
            targets[torch.arange(n, device=place), labels[:n]] = 1.0
            weights = [z.T @ alpha for alpha in _solve(z @ z.T, targets, l2s)]
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


def _float64_place(device: torch.device | str) -> torch.device:
    """Apple's GPUs have no float64."""
    place = torch.device(device)
    return torch.device("cpu") if place.type == "mps" else place


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
    place = _float64_place(device)
    is_exact = place.type != "cpu"
    mean, std = (
        probes[-1].mean,
        np.where(probes[-1].std > STD_EPS, probes[-1].std, 1.0),
    )  # constant features stay small
    classes = probes[0].weight.shape[1]
    weights, offsets = zip(*(_on_standard(probe, mean, std) for probe in probes), strict=True)
    right = np.zeros(len(probes), np.int64)
    together = max(1, 1024 // classes)  # small probes share one matrix product
    step = max(256, 2**20 // (classes * together))  # scores that fit into a core's own cache
    blocks = []
    for first in range(0, len(probes), together):
        weight = torch.from_numpy(np.concatenate(weights[first : first + together], 1)).to(place)  # D cK
        offset = torch.from_numpy(np.concatenate(offsets[first : first + together])).to(place)
        norm = weight.norm(dim=0).unflatten(0, (-1, classes)).amax(1)  # the longest column of each probe
        blocks.append((first, weight, None if is_exact else weight.float(), offset, norm))
    for begin in range(0, len(x), step):
        rows = (np.asarray(x[begin : begin + step], np.float64) - mean) / std
        z = torch.from_numpy(rows).to(place)
        truth = torch.from_numpy(np.asarray(y[begin : begin + step], np.int64)).to(place)
        length = z.norm(dim=1)
        z32 = None if is_exact else z.float()
        for first, weight, weight32, offset, norm in blocks:
            if z32 is None or weight32 is None:
                is_right = best_class((z @ weight + offset).unflatten(1, (-1, classes))) == truth[:, None]
            else:
                is_right = _carefully(z, z32, weight, weight32, offset, norm, length, truth)
            here = is_right.sum(0).cpu().numpy()
            right[first : first + len(here)] += here
    return right.tolist()


def _carefully(
    z: Tensor,
    z32: Tensor,
    weight: Tensor,
    weight32: Tensor,
    offset: Tensor,
    norm: Tensor,
    length: Tensor,
    truth: Tensor,
) -> Tensor:
    """N c: whether each of c probes is right about each row, as in float64.

    A row is right if its own class scores above all others, which needs no argmax.
    """
    scores = torch.addmm(offset.float(), z32, weight32).unflatten(1, (len(norm), -1))  # N c K
    classes, place = scores.shape[-1], truth[:, None, None].expand(-1, len(norm), 1)
    own = scores.gather(-1, place).squeeze(-1).double()  # N c
    others = scores.scatter_(-1, place, -torch.inf).amax(-1).double()
    large = torch.maximum(own.abs(), others.abs()) + offset.abs().max()
    error = (z.shape[1] + 4) * FLOAT32_ROUNDING * torch.outer(length, norm) + 4 * FLOAT32_ROUNDING * large
    # the error exceeds TIE_FLOAT64 of any score, so equal scores are unsure
    is_right, unsure = own > others, ~((own - others).abs() > 2 * error)  # an overflow of float32 is unsure too
    for c in torch.nonzero(unsure.any(0)).flatten().tolist():
        here, mine = unsure[:, c], slice(c * classes, (c + 1) * classes)
        is_right[here, c] = best_class(z[here] @ weight[:, mine] + offset[mine]) == truth[here]
    return is_right


def _on_standard(
    probe: Ridge, mean: NDArray[np.float64], std: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The probe as a linear layer on another probe's (x − mean) / std."""
    weight = probe.weight[:-1] / probe.std[:, None]
    return weight * std[:, None], BIAS_COLUMN * probe.weight[-1] - (probe.mean - mean) @ weight


# The published protocol --------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class FewShot:
    """Accuracy by shots and seeds. A seed chooses the shots; the test rows are the same for all."""

    shots: tuple[int, ...]
    seeds: tuple[int, ...]
    l2s: tuple[float, ...]
    right: NDArray[np.int64]  # L S R: l2, shots, seeds
    taken: tuple[int, ...]  # rows fitted on, by shots
    images: int  # test rows
    classes: int  # that have rows to fit on
    about: dict[str, Any] = field(default_factory=dict)  # which model, which images, how
    notes: tuple[str, ...] = ()
    curve: Curve | None = None  # the gain from more labels, if asked for

    @property
    def accuracy(self) -> NDArray[np.float64]:
        """L S R."""
        return self.right / self.images

    def mean(self, shots: int, l2: float | None = None) -> float:
        """Over seeds."""
        return float(self.accuracy[self._place(shots, l2)].mean())

    def interval(self, shots: int, l2: float | None = None) -> tuple[float, float] | None:
        """The 95 % interval (Student) of the mean over draws of shots, for fixed test rows; None for one seed."""
        return mean_interval(self.accuracy[self._place(shots, l2)])

    def _place(self, shots: int, l2: float | None) -> tuple[int, int]:
        if shots not in self.shots or (l2 is not None and l2 not in self.l2s):
            raise ConfigError(
                f"shots {shots}, l2 {l2 or self.l2s[0]:g} were not measured; have {self.shots}, {self.l2s}"
            )
        return self.l2s.index(l2) if l2 is not None else 0, self.shots.index(shots)

    def to_json(self) -> dict[str, Any]:
        rows = [
            {
                "shots": s,
                "l2": l2,
                "fitted_on": self.taken[j],
                "right": self.right[i, j].tolist(),
                "accuracy": self.accuracy[i, j].tolist(),
                "mean": self.mean(s, l2),
                "interval": None if (found := self.interval(s, l2)) is None else list(found),
            }
            for i, l2 in enumerate(self.l2s)
            for j, s in enumerate(self.shots)
        ]
        body = {"images": self.images, "classes": self.classes, "seeds": list(self.seeds), "few_shot": rows}
        more = {} if self.curve is None else {"learning_curve": self.curve.to_json()}
        return dict(self.about) | body | more | {"notes": list(self.notes)}

    def table(self) -> tuple[list[str], list[list[str]]]:
        """Head and cells as text."""
        head = ["shots", *(["l2"] if len(self.l2s) > 1 else []), "fitted on", "right", "95 % interval", "each seed"]
        cells = []
        for i, l2 in enumerate(self.l2s):
            for j, s in enumerate(self.shots):
                found = self.interval(s, l2)
                between = "–" if found is None else f"{100 * found[0]:.1f} to {100 * found[1]:.1f}"
                each = " ".join(f"{100 * a:.1f}" for a in self.accuracy[i, j])
                row = [str(s), *([f"{l2:g}"] if len(self.l2s) > 1 else []), f"{self.taken[j]:,}"]
                cells.append([*row, f"{100 * self.mean(s, l2):.1f} %", between, each])
        return head, cells

    def __str__(self) -> str:
        head, cells = self.table()
        widths = [max(len(row[i]) for row in [head, *cells]) for i in range(len(head))]
        lines = [
            "  ".join(f"{cell:>{width}}" for cell, width in zip(row, widths, strict=True)) for row in [head, *cells]
        ]
        seeds = f"{len(self.seeds)} seeds" if len(self.seeds) > 1 else "1 seed"
        said = f"least squares on frozen features: {self.classes:,} classes, {self.images:,} test images, {seeds}"
        more = [] if self.curve is None else ["", "would more labels help?", *str(self.curve).splitlines()]
        return "\n".join([said, *lines, *(f"note  {note}" for note in self.notes), *more])

    def _repr_html_(self) -> str:
        head, cells = self.table()
        top = "".join(f"<th>{html.escape(cell)}</th>" for cell in head)
        rows = "".join("<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in cells)
        notes = "".join(f"<p>{html.escape(note)}</p>" for note in self.notes)
        more = "" if self.curve is None else self.curve._repr_html_()
        return f"<table><tr>{top}</tr>{rows}</table>{notes}{more}"


def fewshot(
    x: NDArray[Any],
    y: NDArray[Any],
    test_x: NDArray[Any],
    test_y: NDArray[Any],
    classes: int | Sequence[str],
    *,
    shots: Sequence[int] = DEFAULT_SHOTS,
    seeds: int | Sequence[int] = 3,
    l2: float | Sequence[float] = DEFAULT_L2,
    device: torch.device | str = "cpu",
) -> FewShot:
    """The published few-shot evaluation on frozen features.

    x: N D, the pool that shots are drawn from.  y: N class numbers, −1 for none.  classes: their number, or their names
    in order.  seeds: their number (0, 1, 2 …), or a list.  l2: of several, all are measured and none is chosen.
    A class with fewer rows than shots gives all it has; `notes` names it.
    """
    names = tuple(f"class {k}" for k in range(classes)) if isinstance(classes, int) else tuple(classes)
    wanted, which, l2s = shot_counts(shots), draw_seeds(seeds), _l2s(l2)
    rows, labels = checked(x, y, len(names), "train")
    test_rows, test_labels = checked(test_x, test_y, len(names), "test")
    if rows.shape[1] != test_rows.shape[1]:
        raise DataError(
            f"train features have {rows.shape[1]} numbers, test features {test_rows.shape[1]}; give one kind"
        )
    _refuse_constant(rows)
    kept = np.flatnonzero(test_labels >= 0)
    if not len(kept):
        raise DataError("there are no labelled test rows to judge by; give some")
    test_rows = test_rows if len(kept) == len(test_rows) else test_rows[kept]
    test_labels = test_labels[kept]
    counts = np.bincount(labels[labels >= 0], minlength=len(names))
    notes = _notes(names, counts, np.bincount(test_labels, minlength=len(names)), wanted)
    right = np.zeros((len(l2s), len(wanted), len(which)), np.int64)
    taken = [0] * len(wanted)
    waiting: list[tuple[tuple[int, int, int], Ridge]] = []

    def count() -> None:
        found = count_right([probe for _, probe in waiting], test_rows, test_labels, device=device)
        for (place, _), n in zip(waiting, found, strict=True):
            right[place] = n
        waiting.clear()

    for r, seed in enumerate(which):
        parts = _added(labels, len(names), wanted, seed)
        taken = np.cumsum([len(part) for part in parts]).tolist()
        for s, probes in enumerate(nested_ridges(rows, labels, len(names), parts, l2s, device=device)):
            waiting += [((i, s, r), probe) for i, probe in enumerate(probes)]
            if sum(probe.weight.size for _, probe in waiting) > WEIGHTS_AT_ONCE:
                count()
    count()
    known = int((counts > 0).sum())
    return FewShot(wanted, which, l2s, right, tuple(taken), len(test_labels), known, notes=tuple(notes))


def choose_shots(y: NDArray[Any], classes: int, shots: int, seed: int) -> Rows:
    """The rows of one draw, class by class: the first `shots` of each class's permutation, so draws are nested."""
    return np.concatenate([rows[:shots] for rows in _permuted(y, classes, seed)])


def mean_interval(values: NDArray[np.float64]) -> tuple[float, float] | None:
    """The 95 % interval (Student) of the mean of a few numbers; None for one."""
    if len(values) < 2:
        return None
    t = T95[len(values) - 2] if len(values) - 2 < len(T95) else 1.96
    half = t * float(values.std(ddof=1)) / math.sqrt(len(values))
    return max(float(values.mean()) - half, 0.0), min(float(values.mean()) + half, 1.0)


def checked(x: NDArray[Any], y: NDArray[Any], classes: int, what: str = "") -> tuple[NDArray[Any], Rows]:
    """Check that features N D and labels N fit together.  what: train or test, for the error."""
    rows, labels = np.asanyarray(x), np.asarray(y)
    of = f"{what} " if what else ""
    if rows.ndim != 2:
        raise DataError(f"{of}features of shape {rows.shape} are not rows of numbers; give N x D, one tap pooled")
    if labels.ndim != 1:
        raise DataError(f"{of}labels of shape {labels.shape} name several classes a row; give one class number each")
    if len(rows) != len(labels):
        raise DataError(f"there are {len(rows)} {of}rows and {len(labels)} labels; give one label for each row")
    if len(labels) and (labels.max() >= classes or labels.min() < -1):
        raise DataError(f"{of}labels from {labels.min()} to {labels.max()} are not those of {classes} classes")
    for begin in range(0, len(rows), 4096):  # never loads a mapped file whole
        is_fine = np.isfinite(rows[begin : begin + 4096]).all(1)
        if not is_fine.all():
            bad = begin + int(np.flatnonzero(~is_fine)[0])
            raise DataError(f"{of}features are not finite, first in row {bad}; mend the model, or take that row out")
    return rows, labels.astype(np.int64)


def is_constant(rows: NDArray[Any]) -> bool:
    """True if all rows are equal."""
    return all((rows[begin : begin + 4096] == rows[:1]).all() for begin in range(0, len(rows), 4096))


def _refuse_constant(rows: NDArray[Any]) -> None:
    if is_constant(rows):
        raise DataError("train features are the same in every row, so nothing can be told apart; read another tap")


def _known_rows(
    x: NDArray[Any], y: NDArray[Any], classes: int | Sequence[str], groups: Rows | None
) -> tuple[NDArray[Any], Rows, int, Rows | None]:
    count = classes if isinstance(classes, int) else len(classes)
    rows, labels = checked(x, y, count, "train")
    kept = np.flatnonzero(labels >= 0)
    if len(np.unique(labels[kept])) < 2:
        raise DataError("the labels name fewer than 2 classes; a probe needs rows of at least 2")
    _refuse_constant(rows)
    if len(kept) == len(rows):
        return rows, labels, count, groups
    return rows[kept], labels[kept], count, None if groups is None else np.asarray(groups)[kept]


def _permuted(y: NDArray[Any], classes: int, seed: int) -> list[Rows]:
    random = np.random.default_rng(seed)  # as in the authors' evaluator, so draws match the papers
    return [random.permutation(np.flatnonzero(np.asarray(y) == c)) for c in range(classes)]


def _added(y: Rows, classes: int, shots: Sequence[int], seed: int) -> list[Rows]:
    """The rows that each number of shots adds to the previous one."""
    orders = _permuted(y, classes, seed)
    steps = zip([0, *shots[:-1]], shots, strict=True)
    return [np.concatenate([rows[before:now] for rows in orders]) for before, now in steps]


def _notes(names: Sequence[str], counts: Rows, tests: Rows, shots: Sequence[int]) -> list[str]:
    if (counts > 0).sum() < 2:
        raise DataError("the labels name fewer than 2 classes; a probe needs rows of at least 2")
    said = []
    if none := [names[k] for k in np.flatnonzero((counts == 0) & (tests > 0)).tolist()]:
        said.append(f"{few(none)}: no training images, so never right")
    has = list(zip(names, counts.tolist(), strict=True))
    short = {s: [f"{name} ({n})" for name, n in has if 0 < n < s] for s in shots}
    said += [f"{s} shots: fewer images of {few(those)}; all of them were taken" for s, those in short.items() if those]
    if unseen := [names[k] for k in np.flatnonzero((counts > 0) & (tests == 0)).tolist()]:
        said.append(f"{few(unseen)}: no test images, so not judged")
    return said


def shot_counts(shots: int | Sequence[int]) -> tuple[int, ...]:
    """The numbers of shots, sorted, without repeats."""
    found = tuple(sorted({shots} if isinstance(shots, int) else set(shots)))
    if not found or not all(isinstance(s, int | np.integer) and s > 0 for s in found):
        raise ConfigError(f"shots {list(found)} are not valid; give whole numbers from 1, such as 1, 5, 10, 25")
    return tuple(int(s) for s in found)


def draw_seeds(seeds: int | Sequence[int]) -> tuple[int, ...]:
    """0, 1, … if given a number, else the list itself."""
    found = tuple(range(seeds)) if isinstance(seeds, int) else tuple(seeds)
    if not found or not all(isinstance(seed, int | np.integer) and seed >= 0 for seed in found):
        raise ConfigError(f"seeds {seeds!r} are not valid; give their number, 1 or more, or a list")
    return found


def _l2s(l2: float | Sequence[float]) -> tuple[float, ...]:
    found = tuple(map(float, l2)) if isinstance(l2, Sequence) else (float(l2),)
    if not found or not all(value > 0 and math.isfinite(value) for value in found):
        raise ConfigError(f"l2 of {l2} is not a penalty; give numbers above 0")
    return found
