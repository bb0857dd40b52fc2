"""Equivariance and invariance apart, and what each does for the predicted class (the two tables of row M58)."""

from itertools import product
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .measuring import apart, holds, noise, randomise

SIDE = 12  # rows and columns of the maps measured here, a torus
CLASSES = 4


class Properties(NamedTuple):
    """Of a map-to-map layer, over all SIDE² shifts T."""

    equivariant: int | None  # shifts with f(Tx) = T f(x); None where the output has one place, so that T moves nothing
    invariant: int  # shifts with f(Tx) = f(x)
    unchanged: float  # share of output values that a shift by one pixel leaves as they are


def wrapped(layer: nn.Module, before: int, after: int) -> nn.Sequential:
    """The layer on a torus: what lies beyond one border is what lies inside the other."""
    return nn.Sequential(nn.CircularPad2d((before, after, before, after)), layer)


def properties() -> dict[str, Properties]:
    convolution = randomise(wrapped(nn.Conv2d(4, 4, 3), 1, 1))
    layers = {
        "convolution 3×3": (convolution, 1),
        "max pooling 2×2, stride 1": (wrapped(nn.MaxPool2d(2, 1), 0, 1), 1),
        "max pooling 2×2, stride 2": (nn.MaxPool2d(2), 2),
        "global average pooling": (nn.AdaptiveAvgPool2d(1), None),
        "convolution 3×3, then global average pooling": (
            nn.Sequential(convolution, nn.ReLU(), nn.AdaptiveAvgPool2d(1)),
            None,
        ),
    }
    return {name: properties_of(layer, stride) for name, (layer, stride) in layers.items()}


@torch.no_grad()
def properties_of(layer: nn.Module, stride: int | None) -> Properties:
    x = noise(1, 4, SIDE, SIDE)
    y = layer(x)
    after = {step: layer(x.roll(step, (2, 3))) for step in product(range(SIDE), repeat=2)}
    equivariant = None
    if stride is not None:
        steps = list(product(range(SIDE // stride), repeat=2))
        moves = {(r * stride, c * stride): y.roll((r, c), (2, 3)) for r, c in steps}
        fits = {step: holds(apart(after[step], moved)) for step, moved in moves.items()}
        assert not any(holds(apart(after[s], m)) for s in after if s not in fits for m in moves.values())
        equivariant = sum(fits.values())
    unchanged = (after[0, 1] - y).abs() < 1e-10
    return Properties(equivariant, sum(holds(apart(z, y)) for z in after.values()), float(unchanged.double().mean()))


@torch.no_grad()
def class_by_cause() -> dict[tuple[bool, bool], tuple[float, float]]:
    """(weights shared, map pooled) to accuracy at the places learned and at places never seen.

    24 random 3×3 filters, one bank for all places or one for each; ReLU; mean over places or all values as they are;
    then a ridge fit. Four patterns, learned with their left edge in columns 0 to 3, met in columns 6 to 9.
    """
    banks = noise(SIDE * SIDE, 24, 9, seed=4)
    seen, unseen = pictures(range(4), seed=1), pictures(range(6, 10), seed=2)
    found = {}
    for shared, pooled in product((True, False), repeat=2):
        filters = banks[:1].expand_as(banks) if shared else banks
        fitted = ridge(features(seen[0], filters, pooled), seen[1])
        found[shared, pooled] = tuple(
            float((fitted(features(images, filters, pooled)) == classes).double().mean())
            for images, classes in (seen, unseen)
        )
    return found


def pictures(columns: range, seed: int) -> tuple[Tensor, Tensor]:
    """Every pattern in every row and the given columns, with a little noise.  B h w, B."""
    patterns = F.pad(noise(CLASSES, 3, 3, seed=3), (0, SIDE - 3, 0, SIDE - 3))
    cases = list(product(range(CLASSES), range(SIDE), columns))
    images = torch.stack([patterns[k].roll((row, column), (0, 1)) for k, row, column in cases])
    return images + 0.05 * noise(*images.shape, seed=seed), torch.tensor([k for k, _, _ in cases])


def features(images: Tensor, filters: Tensor, pooled: bool) -> Tensor:
    """B h w -> B F, or B N·F without a pool."""
    seen = F.unfold(F.pad(images[:, None], (1, 1, 1, 1), mode="circular"), 3)  # B 9 N
    answers = torch.relu(torch.einsum("nfk,bkn->bnf", filters, seen))  # B N F
    return answers.mean(1) if pooled else answers.flatten(1)


def ridge(x: Tensor, classes: Tensor):
    """Least squares to ±1 with a light penalty, in the dual; returns the classifier."""
    centre, wanted = x.mean(0), 2.0 * F.one_hot(classes, CLASSES).to(x) - 1
    x = x - centre
    penalty = 1e-3 * x.square().sum(1).mean() * torch.eye(len(x)).to(x)
    weight = x.T @ torch.linalg.solve(x @ x.T + penalty, wanted)
    return lambda z: ((z - centre) @ weight).argmax(1)
