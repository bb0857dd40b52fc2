"""Where the class token looks."""

from __future__ import annotations

from torch import Tensor


def attention_map(weights: Tensor, grid: tuple[int, int], *, query: int = 0) -> Tensor:
    """One token's attention to the patches, as a picture.

    weights: B H N N, of which the last h·w tokens are the patches.  grid: rows, columns.  query: 0 is the class token.
    Returns B H h w; each map sums to at most 1 (the rest went to the tokens in front).
    """
    places = grid[0] * grid[1]
    if not 0 < places <= weights.shape[-1]:
        raise ValueError(f"a grid of {grid[0]}x{grid[1]} does not fit {weights.shape[-1]} tokens")
    return weights[:, :, query, -places:].unflatten(-1, grid)
