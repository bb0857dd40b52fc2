"""Fully connected, recurrent and graph layers: what each assumes."""

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from vitreous.models.vit import Attention

from .layers import (
    MessageLayer,
    attention_by_messages,
    full_graph,
    fully_connected,
    recurrent,
    some_graph,
    tiny_vit,
)
from .measuring import PLACES, WIDTH, any_order, apart, delay, holds, influence, noise, randomise, shift


@pytest.mark.claim("M59")
def test_a_fully_connected_layer_relates_all_to_all_and_assumes_nothing():
    """Its Jacobian has no zero, and neither order nor place may be changed without another answer."""
    layer, x, order = fully_connected(), noise(PLACES, WIDTH), any_order(PLACES)
    assert (torch.autograd.functional.jacobian(layer, x) != 0).all()
    assert not holds(apart(layer(x[order]), layer(x)[order]))
    assert not holds(apart(layer(shift(x, 0, 1)), shift(layer(x), 0, 1)))
    assert not holds(apart(layer(x[order]).mean(0), layer(x).mean(0)))  # pooling its outputs makes it no more invariant
    assert not holds(apart(layer(delay(x, 1)), delay(layer(x), 1)))


KINDS = [nn.RNN, nn.GRU, nn.LSTM]


@pytest.mark.claim("M60")
@pytest.mark.parametrize("kind", KINDS)
def test_a_recurrent_layer_hears_the_past_and_never_the_future(kind):
    heard = influence(recurrent(kind), noise(PLACES, WIDTH))
    assert torch.equal(heard, torch.ones(PLACES, PLACES, dtype=torch.bool).tril())


@pytest.mark.claim("M60")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("steps", [1, 4])
def test_a_late_input_gives_the_same_answer_later(kind, steps):
    """Without bias, from the state zero, silence changes nothing; with a bias the silence is heard."""
    x = noise(PLACES, WIDTH)
    plain, biased = recurrent(kind), recurrent(kind, bias=True)
    assert holds(apart(plain(delay(x, steps)), delay(plain(x), steps)))
    assert not holds(apart(biased(delay(x, steps)), delay(biased(x), steps)))


@pytest.mark.claim("M60")
def test_in_a_contractive_cell_the_nearest_steps_matter_most():
    """‖∂y[t] / ∂x[t − lag]‖ ≤ ‖W_in‖ · ‖W‖^lag; over several sequences the mean falls with every step of lag."""
    cell, steps = randomise(nn.RNN(WIDTH, WIDTH, bias=False)), 10
    with torch.no_grad():
        cell.weight_hh_l0.mul_(0.5 / torch.linalg.matrix_norm(cell.weight_hh_l0, 2))
    most = torch.linalg.matrix_norm(cell.weight_ih_l0, 2).detach() * 0.5 ** torch.arange(steps)
    felt = []
    for seed in range(8):
        jacobian = torch.autograd.functional.jacobian(lambda x: cell(x)[0][-1], noise(steps, WIDTH, seed=seed))  # D N D
        felt.append(torch.linalg.matrix_norm(jacobian.transpose(0, 1), 2).flip(0))  # by lag
        assert (felt[-1] <= most * (1 + 1e-9)).all()
    mean = torch.stack(felt).mean(0)
    assert (mean[1:] < mean[:-1]).all()


@pytest.mark.claim("M61")
def test_a_graph_layer_relates_exactly_what_the_edges_join():
    layer, (edges, about) = randomise(MessageLayer()), some_graph()
    joined = torch.eye(PLACES, dtype=torch.bool)
    joined[edges[1], edges[0]] = True
    assert torch.equal(influence(lambda x: layer(x, edges, about), noise(PLACES, WIDTH)), joined)


@pytest.mark.claim("M61")
def test_a_graph_layer_knows_no_order_of_nodes_or_of_edges():
    """New numbers for the nodes: the outputs are renumbered alike, their sum stays. The edges' order never matters; the
    edges themselves do."""
    layer, (edges, about), x = randomise(MessageLayer()), some_graph(), noise(PLACES, WIDTH)
    y, order, mixed = layer(x, edges, about), any_order(PLACES), any_order(edges.shape[1], seed=6)
    renumbered = order.argsort()[edges]  # node order[n] is now called n
    assert_close(layer(x[order], renumbered, about), y[order])
    assert_close(layer(x[order], renumbered, about).sum(0), y.sum(0))
    assert_close(layer(x, edges[:, mixed], about[mixed]), y)
    assert not holds(apart(layer(x[order], edges, about), y[order]))  # renumbered nodes with the old edges
    assert not holds(apart(layer(x, edges, about[mixed]), y))  # each edge with another's features


@pytest.fixture
def attention() -> Attention:
    """The encoder's own, without positions."""
    return tiny_vit(positions="none").blocks[0].attention


@pytest.mark.claim("M61")
def test_self_attention_is_a_message_layer_on_the_full_graph(attention):
    """Softmax weights over the edges that enter a node, values as messages: equal to our Attention, to rounding."""
    x = noise(PLACES, 8)
    every = full_graph()
    assert attention.positions is None
    assert_close(attention(x[None])[0], attention_by_messages(attention, x, every), rtol=0, atol=1e-12)
    assert influence(lambda x: attention(x[None])[0], x).all()


@pytest.mark.claim("M61")
def test_with_edges_taken_away_the_same_layer_is_a_sparse_graphs(attention):
    """What attention has of its own is the choice of graph: all edges."""
    x, (edges, _) = noise(PLACES, 8), some_graph()
    itself = torch.arange(PLACES).expand(2, -1)
    edges = torch.cat([edges, itself], 1)
    joined = torch.zeros(PLACES, PLACES, dtype=torch.bool)
    joined[edges[1], edges[0]] = True
    assert torch.equal(influence(lambda x: attention_by_messages(attention, x, edges), x), joined)
    assert not holds(apart(attention_by_messages(attention, x, edges), attention(x[None])[0]))
