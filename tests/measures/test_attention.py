"""How far, how widely and how alike heads look."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from recorded_measures import recorded
from torch.testing import assert_close

from vitreous.measures import attention_distance, attention_entropy, class_attention, head_likeness, uniform_distance
from vitreous.measures.attention import patch_distances

GOLDEN = recorded("attention_distance")
GRIDS = st.tuples(st.integers(1, 5), st.integers(1, 5))


def attention(tokens: int, heads: int = 3, seed: int = 0) -> torch.Tensor:
    draw = torch.Generator().manual_seed(seed)
    return torch.randn(2, heads, tokens, tokens, generator=draw, dtype=torch.float64).softmax(-1)


def uniform(tokens: int) -> torch.Tensor:
    return torch.full((1, 1, tokens, tokens), 1 / tokens, dtype=torch.float64)


@pytest.mark.claim("I06")
def test_recorded_distances():
    exact = {"rtol": 0, "atol": 1e-10}
    patch = float(GOLDEN["patch"])
    assert_close(attention_distance(GOLDEN["attn"], (3, 3), patch), GOLDEN["dist_no_renorm"], **exact)
    renormalised = attention_distance(GOLDEN["attn"], (3, 3), patch, renormalise=True)
    assert_close(renormalised, GOLDEN["dist_renorm"], **exact)
    means = attention_distance(GOLDEN["attn"], (3, 3), patch).mean(0)
    assert_close(means, GOLDEN["dist_no_renorm_image_mean"], **exact)
    assert torch.equal(means.argsort(), GOLDEN["head_order_local_to_global"])
    assert_close(attention_distance(GOLDEN["attn_rect"], (2, 3), 8.0), GOLDEN["dist_rect_2x3_p8"], **exact)
    assert_close(patch_distances((2, 2), 16.0), GOLDEN["distance_matrix_2x2_p16"], **exact)


@pytest.mark.claim("I06")
def test_uniform_attention_has_the_known_distance():
    for (side, patch), alone, beside, farthest in zip(
        GOLDEN["uniform_grid_patch"].tolist(),
        GOLDEN["uniform_patch_only"].tolist(),
        GOLDEN["uniform_with_cls_no_renorm"].tolist(),
        GOLDEN["max_distance"].tolist(),
        strict=True,
    ):
        assert uniform_distance((side, side), patch) == pytest.approx(alone, abs=1e-10)
        assert uniform_distance((side, side), patch, prefix=1) == pytest.approx(beside, abs=1e-10)
        assert patch_distances((side, side), patch).max().item() == pytest.approx(farthest, abs=1e-10)
    assert uniform_distance((14, 14), 16) == pytest.approx(116.492227, abs=1e-6)
    assert uniform_distance((14, 14), 16, prefix=1) == pytest.approx(115.900896, abs=1e-6)
    assert uniform_distance((2, 2), 1) == pytest.approx(0.8536, abs=1e-4)
    assert_close(attention_distance(uniform(196), (14, 14), 16).item(), 116.49222, rtol=1e-6, atol=0)
    assert_close(attention_distance(uniform(197), (14, 14), 16).item(), 115.90090, rtol=1e-6, atol=0)


@pytest.mark.claim("I06")
@given(GRIDS, st.integers(0, 3))
def test_a_head_that_looks_at_itself_looks_nowhere_else(grid, front):
    tokens = grid[0] * grid[1] + front
    assert attention_distance(torch.eye(tokens).expand(1, 1, -1, -1), grid, 16.0).item() == 0


@pytest.mark.claim("I06")
def test_a_head_that_looks_at_its_neighbour_looks_one_patch_far():
    """Right along every row of a torus cut open: the last column looks left."""
    grid, places = (3, 4), torch.arange(12)
    neighbour = torch.where(places % 4 == 3, places - 1, places + 1)
    weights = torch.zeros(1, 1, 12, 12).scatter_(3, neighbour.expand(1, 1, 12)[..., None], 1.0)
    assert attention_distance(weights, grid, 16.0).item() == pytest.approx(16)
    assert attention_distance(weights, grid, (5.0, 7.0)).item() == pytest.approx(7)
    corner = torch.zeros(1, 1, 9, 9)
    corner[..., 0] = 1
    assert_close(attention_distance(corner, (3, 3), 16.0).double(), GOLDEN["all_to_corner"])


@given(GRIDS, st.integers(0, 3), st.integers(0, 99))
def test_distance_is_linear_in_patch_and_bounded(grid, front, seed):
    weights = attention(grid[0] * grid[1] + front, seed=seed)
    near = attention_distance(weights, grid, 1.0)
    assert_close(attention_distance(weights, grid, 16.0), 16 * near)
    assert (near <= patch_distances(grid, 1.0).max() + 1e-12).all()
    assert (near <= attention_distance(weights, grid, 1.0, renormalise=True) + 1e-12).all()


@pytest.mark.claim("I07")
@pytest.mark.parametrize("kernel", [3, 5])
def test_a_convolution_as_attention_looks_as_far_as_its_kernel_reaches(kernel):
    """One head per offset, as a convolution would need them: on a grid so large that borders hardly count, the head
    of the corner of the kernel is the one that looks furthest, and as far as the kernel reaches."""
    side, reach = 24, kernel // 2
    rows, columns = (each.flatten() for each in torch.meshgrid(torch.arange(side), torch.arange(side), indexing="ij"))
    distances = {}
    for down in range(-reach, reach + 1):
        for right in range(-reach, reach + 1):
            key = (rows + down).clamp(0, side - 1) * side + (columns + right).clamp(0, side - 1)
            weights = torch.zeros(1, 1, side * side, side * side)
            weights[0, 0, torch.arange(side * side), key] = 1
            distances[down, right] = attention_distance(weights, (side, side), 1.0).item()
    assert distances[0, 0] == 0
    assert max(distances.values()) == pytest.approx(math.hypot(reach, reach), rel=0.15)
    assert max(distances, key=distances.get) in {(a, b) for a in (-reach, reach) for b in (-reach, reach)}


def test_a_patch_that_looks_at_the_class_token_alone_looks_0_px_far():
    weights = torch.zeros(1, 1, 5, 5)
    weights[..., 0] = 1
    for renormalise in (True, False):
        assert attention_distance(weights, (2, 2), 16.0, renormalise=renormalise).item() == 0


def test_entropy_is_between_one_token_and_all():
    assert attention_entropy(torch.eye(7).expand(1, 2, 7, 7)).abs().max() == 0
    assert attention_entropy(uniform(7)).item() == pytest.approx(math.log(7))
    middle = attention_entropy(attention(7))
    assert ((middle > 0) & (middle < math.log(7))).all()


def test_what_the_class_token_gives_sums_to_one():
    weights = attention(1 + 2 + 12)
    own, front, patches, received = class_attention(weights, 12).unbind(-1)
    assert_close(own + front + patches, torch.ones_like(own))
    assert_close(own, weights[:, :, 0, 0])
    assert_close(front, weights[:, :, 0, 1:3].sum(-1))
    assert_close(received, weights[:, :, 3:, 0].mean(-1))


def test_a_head_is_like_itself_and_unlike_one_that_looks_elsewhere():
    likeness = head_likeness(attention(9))
    assert_close(likeness.diagonal(dim1=1, dim2=2), torch.ones(2, 3, dtype=torch.float64))
    assert_close(likeness, likeness.mT)
    left, right = torch.zeros(1, 1, 4, 4), torch.zeros(1, 1, 4, 4)
    left[..., 0], right[..., 3] = 1, 1
    assert head_likeness(torch.cat([left, right], 1))[0, 0, 1] == 0
