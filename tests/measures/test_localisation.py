"""Whether tokens know where they came from."""

import pytest
import torch
from recorded_measures import recorded
from torch.testing import assert_close

from vitreous.measures import TokenLikeness, cka, own_place
from vitreous.measures.localisation import edge_places, token_grams

GOLDEN = recorded("localisation")


def heat_of(tokens: torch.Tensor, patches: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    seen = TokenLikeness()
    for rows in index:
        seen.add(token_grams(tokens[rows]), token_grams(patches[rows]))
    return seen.heat()


@pytest.mark.claim("I17")
@pytest.mark.parametrize("kind", ["local", "gap"])
def test_recorded_maps(kind):
    heat = heat_of(GOLDEN[f"tokens_{kind}"], GOLDEN["patches"], GOLDEN["minibatch_index"])
    assert_close(heat, GOLDEN[f"heat_{kind}"], rtol=0, atol=1e-9)
    found = own_place(heat)
    assert found["margin"].mean().item() == pytest.approx(GOLDEN[f"margin_{kind}"].item(), abs=1e-9)
    if kind == "local":
        assert torch.equal(heat.argmax(1), GOLDEN["argmax_local"])
        assert found["hit"].mean() == GOLDEN["hit_rate_local"]


@pytest.mark.claim("I17")
def test_a_network_that_changes_nothing_peaks_at_the_own_patch():
    patches = torch.randn(24, 12, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    heat = heat_of(patches, patches, torch.arange(24).reshape(2, 12))
    found = own_place(heat)
    assert_close(heat.diagonal(), torch.ones(12, dtype=torch.float64))
    assert found["hit"].min() == 1
    assert found["percentile"].min() == 1


@pytest.mark.claim("I17")
def test_a_place_of_a_map_is_a_token():
    """The channel vector at one place of a ResNet's map, against the part of the image there: plain CKA of the two."""
    maps, parts = torch.randn(8, 6, 2, 3, dtype=torch.float64), torch.randn(8, 6, 4, dtype=torch.float64)
    heat = heat_of(maps.flatten(2).mT, parts, torch.arange(8)[None])
    assert heat[4, 2].item() == pytest.approx(cka(maps[:, :, 1, 1], parts[:, 2]))


def test_some_tokens_can_be_asked_instead_of_all():
    tokens = torch.randn(8, 9, 5, dtype=torch.float64)
    heat = heat_of(tokens, tokens, torch.arange(8)[None])
    asked = torch.tensor([1, 7])
    some = own_place(heat[asked], asked)
    for name, value in own_place(heat).items():
        assert_close(some[name], value[asked])


def test_a_patch_that_never_changes_is_like_nothing():
    patches = torch.randn(8, 4, 5)
    patches[:, 2] = 0.3
    heat = heat_of(patches, patches, torch.arange(8)[None])
    assert torch.equal(heat[2], torch.zeros(4, dtype=heat.dtype))
    assert heat.isfinite().all()


def test_the_border_is_what_has_no_neighbour():
    assert edge_places((3, 4)).tolist() == [True] * 4 + [True, False, False, True] + [True] * 4
    assert edge_places((1, 5)).all()
