"""Where a token looks, as a picture."""

import pytest
import torch
from torch.testing import assert_close

from vitreous.measures import attention_map
from vitreous.measures.attention_map import pooled_attention, pooled_grid


def test_the_map_holds_the_row_of_the_query_in_raster_order():
    weights = torch.rand(2, 3, 14, 14).softmax(-1)
    maps = attention_map(weights, (3, 4))
    assert maps.shape == (2, 3, 3, 4)
    assert torch.equal(maps[1, 2, 2, 1], weights[1, 2, 0, 2 + 2 * 4 + 1])
    assert torch.equal(attention_map(weights, (3, 4), query=5)[0, 0, 0, 0], weights[0, 0, 5, 2])


def test_what_the_map_lacks_went_to_the_tokens_in_front():
    weights = torch.rand(1, 2, 13, 13, dtype=torch.float64).softmax(-1)
    assert_close(
        attention_map(weights, (3, 4)).sum((2, 3)) + weights[:, :, 0, 0], torch.ones(1, 2, dtype=torch.float64)
    )


def test_a_grid_that_does_not_fit_is_refused():
    with pytest.raises(ValueError, match="5x5 does not fit 13 tokens"):
        attention_map(torch.rand(1, 1, 13, 13), (5, 5))


def test_pooled_attention_keeps_what_is_given_and_the_tokens_in_front():
    """Keys of a cell are summed, queries of a cell averaged: rows still sum to what the patches got."""
    weights = torch.randn(1, 2, 2 + 64, 2 + 64, dtype=torch.float64).softmax(-1)
    small = pooled_attention(weights, (8, 8), (4, 4))
    assert small.shape == (1, 2, 2 + 16, 16)
    assert_close(small[:, :, :2].sum(-1), weights[:, :, :2, 2:].sum(-1))
    first = [0, 1, 8, 9]  # the upper left cell
    given = weights[:, :, 2:, 2:].unflatten(2, (8, 8))[:, :, :2, :2].sum(-1).mean((2, 3))
    assert_close(small[:, :, 2].sum(-1), given)
    assert_close(small[0, 0, 0, 0], weights[0, 0, 0, [2 + i for i in first]].sum())
    assert_close(pooled_attention(weights, (8, 8), (8, 8)), weights[..., 2:])


def test_a_large_grid_is_pooled_to_sixteen():
    assert pooled_grid((37, 37)) == (16, 16)
    assert pooled_grid((7, 20)) == (7, 16)
    assert pooled_attention(torch.rand(1, 1, 37 * 5, 37 * 5), (37, 5), (16, 5)).shape == (1, 1, 80, 80)
