"""Pooling: where invariance comes from, and how far it goes."""

from itertools import product

import pytest
import torch
import torch.nn.functional as F

from .causes import SIDE, class_by_cause, properties
from .layers import convolution
from .measuring import GRID, PLACES, WIDTH, any_order, apart, holds, noise, shift

EVERY_SHIFT = list(product(range(GRID[0]), range(GRID[1])))[1:]


@pytest.mark.claim("M56")
def test_a_convolution_becomes_invariant_when_its_map_is_averaged():
    """f(Tx) = f(x) for every shift after the pool; before it, for none."""
    layer, x = convolution(), noise(PLACES, WIDTH)

    def pooled(x):
        return torch.relu(layer(x)).mean(0)

    for step in EVERY_SHIFT:
        assert holds(apart(pooled(shift(x, *step)), pooled(x)))
        assert not holds(apart(layer(shift(x, *step)), layer(x)))


def peaks(columns: torch.Tensor, size: int = 3) -> torch.Tensor:
    """Windows of size × size, each with one peak in its middle row at the given column; no two are equally high."""
    rows, across = columns.shape
    heights = 1 + any_order(rows * across).double().view(rows, across)
    windows = torch.zeros(rows, across, size, size, dtype=torch.float64)
    windows[:, :, size // 2] = F.one_hot(columns, size) * heights[..., None]
    return windows.permute(0, 2, 1, 3).reshape(1, rows * size, across * size)


def share_unchanged(image: torch.Tensor, size: int, step: int = 1) -> float:
    """Share of max-pooled values that stay when the map moves right by some pixels."""
    before, after = F.max_pool2d(image, size), F.max_pool2d(image.roll(step, -1), size)
    return float((before == after).double().mean())


@pytest.mark.claim("M57")
def test_max_pooling_ignores_a_shift_inside_its_windows_and_not_one_across_their_edges():
    middle, edge = torch.full((4, 5), 1), torch.full((4, 5), 2)
    assert share_unchanged(peaks(middle), 3) == 1
    assert share_unchanged(peaks(edge), 3) == 0
    assert share_unchanged(peaks(middle), 3, step=2) == 0  # only a slight shift
    assert not torch.equal(peaks(middle).roll(1, -1), peaks(middle))  # the map itself has moved


@pytest.mark.claim("M57")
def test_at_least_the_computed_share_of_pooled_values_stays():
    """A window keeps its value if its own peak stays inside and its left neighbour's does; more may stay by chance."""
    columns = torch.randint(0, 3, (12, 12), generator=torch.Generator().manual_seed(0))
    inside = columns < 2
    computed = float((inside & inside.roll(1, 1)).double().mean())
    unpooled = float((peaks(columns).roll(1, -1) == peaks(columns))[peaks(columns) > 0].double().mean())
    assert 0 < computed <= share_unchanged(peaks(columns), 3) < 1
    assert unpooled == 0


@pytest.mark.claim("M57")
@pytest.mark.parametrize("size", [2, 3, 4])
def test_on_unrelated_pixels_a_share_of_k_minus_1_over_k_plus_1_stays(size):
    """Windows before and after share k(k−1) of k(k+1) pixels, and each pixel is equally likely to be the largest."""
    image = noise(1, 120 * size, 120 * size)
    assert share_unchanged(image, size) == pytest.approx((size - 1) / (size + 1), abs=0.02)


@pytest.mark.claim("M58")
def test_convolution_gives_equivariance_and_pooling_gives_invariance():
    """Layer × property, over all shifts of the grid: a convolution has the one and lacks the other; a global pool has
    the other, and no places are left to be moved; a local pool has a part of each."""
    every = SIDE * SIDE
    found = {name: (p.equivariant, p.invariant, p.unchanged) for name, p in properties().items()}
    assert found["convolution 3×3"] == (every, 1, 0)  # the shift by nothing is the one
    assert found["global average pooling"] == (None, every, 1)
    assert found["convolution 3×3, then global average pooling"] == (None, every, 1)
    assert found["max pooling 2×2, stride 1"][:2] == (every, 1)
    assert found["max pooling 2×2, stride 2"][:2] == (every // 4, 1)
    assert found["max pooling 2×2, stride 2"][2] == pytest.approx(1 / 3, abs=0.05)


@pytest.mark.claim("M58")
def test_for_the_predicted_class_both_causes_are_needed():
    """Patterns learned in the left of the image and met in the right: shared weights *and* a pool carry over whole."""
    (_, both), (_, shared_alone), (_, pooled_alone), (_, neither) = class_by_cause().values()
    assert both == 1
    assert shared_alone < 0.35  # chance is 0.25
    assert neither < 0.35
    assert neither < pooled_alone < 0.6
