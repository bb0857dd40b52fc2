"""Patch filters and positions."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from recorded_measures import recorded
from tiny_models import awake
from torch.testing import assert_close

from vitreous.measures import filter_components, position_likeness, position_structure
from vitreous.measures.filters_and_positions import position_change, position_table, rank_correlation, subspace_likeness
from vitreous.models.positions import sincos_2d

GOLDEN = recorded("weights")


@pytest.mark.claim("I01")
def test_recorded_components():
    found = filter_components(GOLDEN["filters_48x32"], 8)
    assert_close(found.singular_values, GOLDEN["pca_singular_values"], rtol=0, atol=1e-9)
    assert_close(found.explained, GOLDEN["pca_explained"], rtol=0, atol=1e-9)
    assert_close((found.filters * GOLDEN["pca_components"]).sum(0).abs()[:4], torch.ones(4, dtype=torch.float64))
    assert subspace_likeness(found.filters[:, :4], GOLDEN["pca_components"][:, :4]) == pytest.approx(1)


@pytest.mark.claim("I01")
@given(st.integers(0, 99))
def test_components_are_orthonormal_ordered_and_those_of_an_svd(seed):
    filters = torch.randn(48, 40, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    found = filter_components(filters)
    assert found.filters.shape == (48, 28)
    assert_close(found.filters.mT @ found.filters, torch.eye(28, dtype=torch.float64))
    assert (found.singular_values.diff() <= 0).all()
    assert found.explained.sum() == pytest.approx(1)
    variance = (found.filters.mT @ (filters - filters.mean(1, keepdim=True))).square().sum(1)
    assert_close(variance, found.singular_values[:28].square())
    assert (found.filters.gather(0, found.filters.abs().argmax(0, keepdim=True)) > 0).all()


@pytest.mark.claim("I01")
def test_a_projection_of_known_rank_has_as_many_components():
    left, right = torch.randn(75, 3, dtype=torch.float64), torch.randn(3, 64, dtype=torch.float64)
    assert (filter_components(left @ right).singular_values > 1e-9).sum() == 3


@pytest.mark.claim("I01")
def test_a_model_has_28_tiles_of_its_patch():
    model = awake(image_size=16, width=64, heads=2)
    found = filter_components(model.embedding.projection.weight.mT)
    assert found.filters.mT.reshape(28, 3, 4, 4).shape == (28, 3, 4, 4)


@pytest.mark.claim("I03")
def test_recorded_positions():
    assert_close(position_likeness(GOLDEN["pos_embed"], (3, 3)), GOLDEN["pos_cosine"], rtol=0, atol=1e-9)


@pytest.mark.claim("I03")
def test_a_place_is_like_itself_and_likeness_is_mutual():
    table = torch.randn(1 + 12, 8, dtype=torch.float64)
    likeness = position_likeness(table, (3, 4))
    assert likeness.shape == (3, 4, 3, 4)
    flat = likeness.reshape(12, 12)
    assert_close(flat.diagonal(), torch.ones(12, dtype=torch.float64))
    assert_close(flat, flat.mT)
    assert torch.equal(likeness, position_likeness(table[1:], (3, 4)))  # the class token is left out


@pytest.mark.claim("I03")
def test_waves_of_row_and_column_give_their_known_pattern():
    """Half of the numbers know the row alone, half the column: cos = (a(Δrow) + a(Δcolumn)) / 2."""
    likeness = position_likeness(sincos_2d((6, 6), 64), (6, 6))
    along = likeness[0, 0, 0]  # (1 + a(Δ)) / 2
    steps = 2 * along - 1
    assert_close(likeness[0, 0], (steps[:, None] + steps) / 2, rtol=0, atol=1e-6)
    found = position_structure(likeness)
    assert found["nearness"] > 0.5
    assert found["axis_diagonal"] is not None


def test_structure_tells_nearness_and_lines():
    rows = torch.arange(5.0).repeat_interleave(5)
    lines = torch.nn.functional.one_hot(rows.long()).double()  # a place knows its row, and nothing else
    found = position_structure(position_likeness(lines, (5, 5)))
    assert found["row_column"] == pytest.approx(0.5)
    assert found["axis_diagonal"] > 0
    assert position_structure(torch.ones(1, 1, 1, 1)) == dict.fromkeys(("nearness", "row_column", "axis_diagonal"))


def test_patterns_of_two_models_are_compared():
    a, b = (position_likeness(torch.randn(9, 32, dtype=torch.float64), (3, 3)) for _ in range(2))
    assert position_change(a, a) == pytest.approx(1)
    assert abs(position_change(a, b)) < 0.9
    assert position_change(a, torch.ones(3, 3, 3, 3, dtype=torch.float64)) is None


def test_what_positions_add_is_found_for_every_kind():
    for kind in ("learned", "learned-2d", "sincos-2d"):
        table = position_table(awake(positions=kind))
        assert table.shape == (16, 16)
    assert torch.equal(position_table(model := awake()), model.embedding.positions.table[1:])
    assert position_table(awake(positions="none")) is None
    assert position_table(awake(positions="relative")) is None
    assert position_table(awake(positions="learned", positions_at="every-layer")) is not None


def test_rank_correlation_shares_ties():
    assert rank_correlation([1, 2, 3], [10, 20, 90]) == pytest.approx(1)
    assert rank_correlation([1, 2, 3], [3, 2, 1]) == pytest.approx(-1)
    assert rank_correlation([1, 2, 2, 3], [1, 2, 2, 3]) == pytest.approx(1)
    assert rank_correlation([1, 1], [1, 2]) is None
