"""What a convolution assumes: nearness, two dimensions, and that a pattern means the same wherever it stands."""

from itertools import product

import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close

from vitreous.models.config import ResNetConfig
from vitreous.models.convolutions import StandardisedConv

from .layers import Untied, convolution, on_map
from .measuring import GRID, PLACES, WIDTH, any_order, apart, holds, influence, noise, randomise, shift, window

EVERY_SHIFT = list(product(range(GRID[0]), range(GRID[1])))


def standardised_conv(kernel: int = 3) -> StandardisedConv:
    return randomise(StandardisedConv(WIDTH, WIDTH, kernel, 1, ResNetConfig(), "symmetric"))


@pytest.mark.claim("M53")
@pytest.mark.parametrize("kernel", [1, 3, 5])
def test_a_convolution_listens_to_its_window_and_to_nothing_else(kernel):
    """∂y[i] / ∂x[j] is zero exactly where j lies outside the k × k window round i."""
    assert torch.equal(influence(convolution(kernel), noise(PLACES, WIDTH)), window(kernel))


@pytest.mark.claim("M53")
def test_the_resnets_own_convolution_is_local_too():
    """With zeros beyond the border the window is cut there; inside it is whole."""
    conv = standardised_conv()
    heard = influence(lambda x: on_map(conv, x), noise(PLACES, WIDTH)).unflatten(0, GRID)
    assert not (heard & ~window(3).unflatten(0, GRID)).any()
    assert torch.equal(heard[1:-1, 1:-1], window(3).unflatten(0, GRID)[1:-1, 1:-1])


@pytest.mark.claim("M53")
def test_small_regions_are_joined_into_larger_ones():
    """Two layers of 3 × 3 hear 5 × 5, the grid's whole height."""
    layer = convolution(3)
    assert torch.equal(influence(lambda x: layer(torch.tanh(layer(x))), noise(PLACES, WIDTH)), window(5))


@pytest.mark.claim("M54")
def test_a_convolution_notices_that_columns_were_permuted():
    """Its output put back in order is another one: the neighbours are. A kernel of 1 × 1 has none, so it does not."""
    x, order = noise(*GRID, WIDTH), any_order(GRID[1])
    for kernel, blind in ((3, False), (1, True)):
        layer = convolution(kernel)
        permuted = layer(x[:, order].flatten(0, 1))
        put_back = layer(x.flatten(0, 1)).unflatten(0, GRID)[:, order].flatten(0, 1)
        assert holds(apart(permuted, put_back)) == blind


@pytest.mark.claim("M55")
def test_a_circular_convolution_is_equivariant_to_every_shift():
    """f(Tx) = T f(x)."""
    layer, x = convolution(), noise(PLACES, WIDTH)
    for step in EVERY_SHIFT:
        assert_close(layer(shift(x, *step)), shift(layer(x), *step), rtol=0, atol=1e-12)


@pytest.mark.claim("M55")
@pytest.mark.parametrize("stride", [2, 3])
def test_a_strided_convolution_is_equivariant_to_multiples_of_its_stride_alone(stride):
    """Stride s and a shift by s·n move the output by n; after any other shift no movement of the output fits."""
    grid, small = (6, 6), (6 // stride, 6 // stride)
    layer, x = convolution(stride=stride, grid=grid), noise(36, WIDTH)
    for rows, columns in product(range(6), repeat=2):
        moved = layer(shift(x, rows, columns, grid))
        steps = product(range(small[0]), repeat=2)
        fitting = [step for step in steps if holds(apart(moved, shift(layer(x), *step, small)))]
        is_multiple = rows % stride == 0 and columns % stride == 0
        assert fitting == ([(rows // stride, columns // stride)] if is_multiple else [])


@pytest.mark.claim("M55")
def test_with_zeros_beyond_the_border_equivariance_holds_in_the_interior_alone():
    """A 3 × 3 output agrees where its window, before and after the shift, touches no border."""
    conv, x, (down, right) = standardised_conv(), noise(PLACES, WIDTH), (1, 2)
    moved = on_map(conv, shift(x, down, right)).unflatten(0, GRID)
    expected = shift(on_map(conv, x), down, right).unflatten(0, GRID)
    interior = slice(1 + down, GRID[0] - 1), slice(1 + right, GRID[1] - 1)
    agrees = (moved - expected).abs().amax(-1) < 1e-12
    assert agrees[interior].all()
    assert agrees.sum() == agrees[interior].numel()


@pytest.mark.claim("M55")
def test_equivariance_comes_from_sharing_weights():
    """Untied kernels break it, though the output does change with the input; tied ones are the convolution again."""
    layer, x = Untied(), noise(PLACES, WIDTH)
    assert torch.equal(influence(layer, x), window(3))  # as local as a convolution
    for step in EVERY_SHIFT[1:]:
        assert not holds(apart(layer(shift(x, *step)), layer(x)))
        assert not holds(apart(layer(shift(x, *step)), shift(layer(x), *step)))
    kernel = layer.tie()
    for step in EVERY_SHIFT:
        assert holds(apart(layer(shift(x, *step)), shift(layer(x), *step)))
    maps = F.pad(x.T.unflatten(1, GRID)[None], (1, 1, 1, 1), mode="circular")
    assert_close(layer(x), F.conv2d(maps, kernel)[0].flatten(1).T)


@pytest.mark.claim("M55")
def test_a_pattern_is_found_wherever_it_stands():
    """The place of the strongest answer follows the pattern, by whole pixels."""
    pattern = noise(3, 3, WIDTH, seed=3)
    for row, column in EVERY_SHIFT:
        picture = torch.zeros(*GRID, WIDTH, dtype=torch.float64)
        picture[:3, :3] = pattern
        maps = picture.roll((row, column), (0, 1)).permute(2, 0, 1)[None]
        found = F.conv2d(F.pad(maps, (0, 2, 0, 2), mode="circular"), pattern.permute(2, 0, 1)[None])
        assert found.argmax() == row * GRID[1] + column
