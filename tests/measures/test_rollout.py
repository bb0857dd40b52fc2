"""Attention through all layers."""

import numpy as np
import pytest
import torch
from shared_files import ROOT
from torch.testing import assert_close

from vitreous.measures import rollout
from vitreous.measures.rollout import relevance_map

GOLDEN = np.load(ROOT / "tests" / "golden" / "measures" / "rollout.npz")


def golden(name: str) -> torch.Tensor:
    return torch.from_numpy(GOLDEN[name])


def attention(layers: int = 3, seed: int = 0) -> torch.Tensor:
    draw = torch.Generator().manual_seed(seed)
    return torch.randn(layers, 2, 4, 6, 6, generator=draw, dtype=torch.float64).softmax(-1)


def test_every_row_is_a_mixture_of_the_inputs():
    for heads in ("mean", "max", "min"):
        for residual in (True, False):
            joined = rollout(attention(), residual=residual, heads=heads)
            assert_close(joined.sum(-1), torch.ones(2, 6, dtype=torch.float64))
            assert (joined >= 0).all()


@pytest.mark.claim("I13")
def test_tokens_that_look_at_themselves_stay_themselves():
    same = torch.eye(5, dtype=torch.float64).expand(4, 1, 2, 5, 5)
    assert_close(rollout(same)[0], torch.eye(5, dtype=torch.float64))
    assert_close(rollout(same, residual=False)[0], torch.eye(5, dtype=torch.float64))


def test_later_layers_read_what_earlier_ones_mixed():
    """Joining two runs of layers is a product, the later on the left, and not the other way round."""
    weights = attention(4)
    first, last = rollout(weights[:2]), rollout(weights[2:])
    assert_close(rollout(weights), last @ first)
    assert not torch.allclose(rollout(weights), first @ last)


def test_pictures_do_not_meet():
    weights = attention()
    assert_close(rollout(weights)[1], rollout(weights[:, 1:])[0])
    assert_close(rollout(list(weights)), rollout(weights))


def test_two_layers_by_hand():
    weights = golden("hand_attn")[:, None]
    assert_close(rollout(weights)[0], golden("hand_residual"))
    assert_close(rollout(weights, residual=False)[0], golden("hand_plain"))


@pytest.mark.claim("I13")
def test_recorded_rollouts():
    weights = golden("attn")[:, None]  # L 1 H N N
    assert_close(rollout(weights)[0], golden("rollout_residual"))
    assert_close(rollout(weights, residual=False)[0], golden("rollout_plain"))
    assert_close(rollout(weights, heads="max")[0], golden("rollout_max_heads"))
    assert_close(2.0 ** len(weights) * rollout(weights)[0], golden("rollout_residual_no_renorm"))
    assert_close(rollout(weights)[0, 0, 1:].reshape(2, 2), golden("cls_map_2x2"))


def test_what_is_no_attention_is_refused():
    with pytest.raises(ValueError, match="no layers to roll out; give"):
        rollout([])
    with pytest.raises(ValueError, match="heads='sum' does not join heads; give mean, max, min"):
        rollout(attention(), heads="sum")  # type: ignore[arg-type]


@pytest.mark.claim("I13")
def test_the_recorded_map_of_the_class_token():
    row = rollout(golden("attn")[:, None])[:, 0, 1:]
    assert_close(relevance_map(row, (2, 2))[0], golden("cls_map_maxnorm"), rtol=0, atol=1e-10)
    assert_close(relevance_map(row, (2, 2), (8, 8))[0], golden("cls_map_upsampled_8x8"), rtol=0, atol=1e-10)


def test_uniform_layers_with_their_skips():
    uniform = torch.full((4, 1, 1, 5, 5), 0.2, dtype=torch.float64)
    assert_close(rollout(uniform)[0], golden("uniform_residual_4layers"), rtol=0, atol=1e-10)
