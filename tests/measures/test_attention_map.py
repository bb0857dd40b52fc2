"""Where a token looks, as a picture."""

import pytest
import torch
from torch.testing import assert_close

from vitreous.measures import attention_map


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
