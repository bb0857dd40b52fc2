"""How much of the image a place depends on."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from recorded_measures import recorded
from torch import nn
from torch.testing import assert_close

from vitreous.measures import analytic_field, half_mass_radius
from vitreous.measures.receptive_field import at_centre, centre_share, field_of, rings, rms_radius

GOLDEN = recorded("erf_toy")


def by_all_channels(network, images, grid=None):
    """The field as P2 defines it: every channel by itself, then the mean."""
    x = images.clone().requires_grad_()
    values = at_centre(network(x), grid)
    fields = [field_of(values, x, torch.full((len(x),), c)) for c in range(values.shape[1])]
    return torch.stack(fields).mean(0)  # B H W


class LinearTokens(nn.Module):
    """Nine pixels of three colours become tokens; one attention, with or without its skip."""

    def __init__(self, *, skip: bool):
        super().__init__()
        self.skip = skip

    def forward(self, images):  # B 3 3 3
        tokens = images.flatten(2).mT @ GOLDEN["embed"]
        mixed = GOLDEN["attn"] @ tokens @ GOLDEN["value"]
        return tokens + mixed if self.skip else mixed


@pytest.mark.claim("I09")
@pytest.mark.parametrize(("skip", "name"), [(True, "erf_post"), (False, "erf_pre")])
def test_recorded_fields_before_and_after_the_residual(skip, name):
    field = by_all_channels(LinearTokens(skip=skip), torch.randn(2, 3, 3, 3, dtype=torch.float64), (3, 3))
    assert_close(field[0], GOLDEN[name], rtol=0, atol=1e-10)
    assert_close(field[1], GOLDEN[name], rtol=0, atol=1e-10)  # linear: the image does not matter
    assert centre_share(field[0], (1, 1, 2, 2)) == pytest.approx(GOLDEN[f"{name}_centre_share"].item(), abs=1e-10)


@pytest.mark.claim("I09")
def test_a_stack_of_linear_convolutions_has_its_known_shape():
    """Two 3×3 kernels of ones: the pyramid 1 2 3 2 1 times itself."""
    ones = nn.Conv2d(1, 1, 3, padding=1, bias=False, dtype=torch.float64)
    nn.init.ones_(ones.weight)
    field = by_all_channels(nn.Sequential(ones, ones), torch.randn(1, 1, 7, 7, dtype=torch.float64))[0]
    assert_close(field, GOLDEN["conv_two_ones3x3_erf_7x7"], rtol=0, atol=1e-10)
    assert rms_radius(field, (3, 3)) == pytest.approx(math.sqrt(8 / 3))
    assert rms_radius(field, (3, 3)) == pytest.approx(GOLDEN["conv_erf_rms_radius"].item(), abs=1e-10)


@pytest.mark.claim("I08")
@settings(max_examples=25)
@given(st.lists(st.tuples(st.sampled_from([1, 2, 3, 5]), st.sampled_from([1, 2])), min_size=1, max_size=4))
def test_the_formula_is_the_support_of_the_gradient(layers):
    """rₗ = rₗ₋₁ + (k − 1) · ∏ strides, for kernels of positive numbers, without padding."""
    sizes = analytic_field(layers)
    convolutions = [nn.Conv2d(1, 1, k, s, bias=False) for k, s in layers]
    for convolution in convolutions:
        nn.init.ones_(convolution.weight)
    side = sizes[-1] + 7
    for depth, size in enumerate(sizes, 1):
        field = by_all_channels(nn.Sequential(*convolutions[:depth]), torch.randn(1, 1, side, side))[0]
        for axis in (0, 1):
            reached = field.sum(axis).nonzero()
            assert reached.max() - reached.min() + 1 == size  # where a stride jumps over a kernel there are holes


@pytest.mark.claim("I08")
def test_locality_makes_the_field_grow_with_depth():
    assert analytic_field([(3, 1)] * 4) == [3, 5, 7, 9]
    assert analytic_field([(7, 2), (3, 2), (3, 1), (3, 2), (3, 1)]) == [7, 11, 19, 27, 43]


def test_the_radius_of_half_the_mass():
    spot = torch.zeros(1, 21, 21)
    spot[0, 10, 10] = 1
    assert half_mass_radius(rings(spot, (10, 10))[0]) == pytest.approx(0.5)
    ring = torch.zeros(1, 21, 21)
    ring[0, 10, 18] = ring[0, 2, 10] = 1
    assert 8 <= half_mass_radius(rings(ring, (10, 10))[0]) <= 9
    even = half_mass_radius(rings(torch.ones(1, 101, 101), (50, 50))[0])
    assert even == pytest.approx(math.sqrt(101 * 101 / 2 / math.pi), rel=0.02)  # a disc of half the area
    assert math.isnan(half_mass_radius(torch.zeros(4)))


def test_rings_lose_no_mass():
    field = torch.rand(2, 9, 14, dtype=torch.float64)
    assert_close(rings(field, (4.5, 7.0)).sum(1), field.sum((1, 2)))
    assert_close(rings(field, (0.0, 0.0)).sum(1), field.sum((1, 2)))
