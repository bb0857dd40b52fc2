"""Self-attention: three uses of a vector, many heads, all tokens at once."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.autograd.functional import jacobian
from torch.testing import assert_close

import vitreous
from vitreous.errors import ConfigError
from vitreous.models.catalog import blueprint, parse
from vitreous.models.cost import macs


def exactly(actual, expected):
    assert_close(actual, expected, rtol=0, atol=1e-10)


def attend(attention, q, k, v):
    """What a layer makes of queries, keys and values, and with which weights."""
    with vitreous.taps(attention, "weights") as seen:
        y = attention.attend(q, k, v)
    return y, seen["weights"]


@pytest.fixture
def attention(vit):
    """13 tokens of width 16 in 2 heads of 8."""
    return vit.blocks[0].attention


@pytest.fixture
def basic(make):
    """Attention before any matrix: one head, no scale; q = k = v = x."""
    layer = make(width=2, heads=1, mlp=1, attention_scale=1.0).blocks[0].attention
    return lambda x: tuple(t[0, 0] for t in attend(layer, *3 * [x.double()[None, None]]))


@pytest.fixture
def z():
    return torch.randn(2, 13, 16, dtype=torch.float64)


@pytest.mark.claim("M16")
def test_basic_attention_of_three_vectors_by_hand(basic):
    """x = (1,0) (0,1) (1,1): dot products 1 0 1 / 0 1 1 / 1 1 2, softmax, weighted sum."""
    y, weights = basic(torch.tensor([[1, 0], [0, 1], [1, 1]]))
    e, s, t = math.e, 2 * math.e + 1, 2 * math.e + math.e**2
    by_hand = torch.tensor([[e / s, 1 / s, e / s], [1 / s, e / s, e / s], [e / t, e / t, e * e / t]]).double()
    assert_close(weights, by_hand, rtol=0, atol=1e-6)
    first = [2 * e / s, (1 + e) / s]
    third = [(e + e * e) / t] * 2
    assert_close(y, torch.tensor([first, first[::-1], third]).double(), rtol=0, atol=1e-6)


@pytest.mark.claim("M16")
def test_basic_attention_has_no_parameters(attention):
    """With every parameter of the layer made NaN, attending gives what it gave: t vectors in, t out."""
    x = torch.randn(1, 2, 7, 8, dtype=torch.float64)
    before = attention.attend(x, x, x)
    for parameter in attention.parameters():
        nn.init.constant_(parameter, math.nan)
    assert torch.equal(attention.attend(x, x, x), before)
    assert before.shape == x.shape


@pytest.mark.claim("M16")
def test_each_output_lies_among_the_inputs(basic):
    """y = Ax with A ≥ 0 and rows of sum 1: in the convex hull, so also within every half-plane that holds all x."""
    x = torch.randn(9, 2).double()
    y, weights = basic(x)
    assert (weights >= 0).all()
    exactly(weights.sum(-1), torch.ones(9).double())
    exactly(y, weights @ x)
    angles = torch.linspace(0, 2 * math.pi, 60).double()
    directions = torch.stack([angles.cos(), angles.sin()])
    assert ((y @ directions).amax(0) <= (x @ directions).amax(0) + 1e-12).all()


@pytest.mark.claim("M17")
def test_you_know_a_person_by_the_friends(basic):
    """Among people of one length: the more alike, the larger the weight. A longer vector weighs more, alike or not."""
    ann, bea, cem, dov = (torch.tensor([math.cos(a), math.sin(a)]) for a in (0.0, 0.4, 1.2, 2.5))
    _, weights = basic(torch.stack([ann, bea, cem, dov]))
    assert (weights[0].diff() < 0).all()  # Ann: herself, Bea, Cem, Dov
    _, louder = basic(torch.stack([ann, bea, 5 * cem, dov]))
    assert louder[0, 2] > louder[0, 1] > louder[0, 3]  # same direction, and now above Bea


@pytest.mark.claim("M18", "Q14")
def test_a_vector_serves_in_three_ways(attention):
    """qᵢ moves row i of A; kᵢ column i of the logits; vᵢ no weight, and every output by A[:, i]·Δ."""
    q, k, v = torch.randn(3, 1, 2, 13, 8, dtype=torch.float64)
    y, a = attend(attention, q, k, v)
    i, delta = 4, torch.randn(8, dtype=torch.float64)

    def moved(x):
        x = x.clone()
        x[..., i, :] += delta
        return x

    _, by_query = attend(attention, moved(q), k, v)
    assert (by_query != a).any(-1)[0].nonzero()[:, 1].unique().tolist() == [i]

    _, by_key = attend(attention, q, moved(k), v)
    shift = by_key.log() - a.log()  # logits up to one constant a row
    others = [j for j in range(13) if j != i]
    exactly(shift[..., others] - shift[..., others[:1]], torch.zeros(1, 2, 13, 12).double())
    exactly(shift[..., i] - shift[..., others[0]], (q @ delta) / 8**0.5)

    by_value, same = attend(attention, q, k, moved(v))
    assert torch.equal(same, a)
    exactly(by_value - y, a[..., i, None] * delta)


@pytest.mark.claim("M19")
def test_three_matrices_make_query_key_and_value(attention, z):
    """q = zW_q, k = zW_k, v = zW_v with W of D × d for each head."""
    with vitreous.taps(attention, ["query", "key", "value"]) as seen:
        attention(z)
    weights, biases = attention.qkv.weight.view(3, 2, 8, 16), attention.qkv.bias.view(3, 2, 1, 8)
    for i, name in enumerate(["query", "key", "value"]):
        assert seen[name].shape == (2, 2, 13, 8)
        exactly(seen[name], torch.einsum("bnD,hdD->bhnd", z, weights[i]) + biases[i])


@pytest.mark.claim("M19")
def test_how_one_sees_himself_and_how_others_see_him_may_differ(attention, basic, z):
    """With learned matrices the logits are not symmetric; without them they are."""
    with vitreous.taps(attention, ["query", "key"]) as seen:
        attention(z)
    logits = seen["query"] @ seen["key"].mT
    assert (logits - logits.mT).abs().max() > 0.1
    x = torch.randn(5, 2).double()
    logits = basic(x)[1].log()
    logits = logits - logits.diagonal()[:, None] + (x * x).sum(-1, keepdim=True)  # softmax hid one constant a row
    exactly(logits, logits.mT)


@pytest.mark.claim("M20")
def test_attention_weights_are_shares_of_all_tokens(vit, images):
    """A = softmax(qkᵀ/√d): (N+1) × (N+1), entries ≥ 0, rows of sum 1; SA = A·v is (N+1) × d."""
    with vitreous.taps(vit, "blocks.0.attention.*") as seen:
        vit(images)
    q, k, v, a, y = (seen[f"blocks.0.attention.{n}"] for n in ["query", "key", "value", "weights", "per_head"])
    assert a.shape == (2, 2, 13, 13)
    assert y.shape == (2, 2, 13, 8)
    assert (a >= 0).all()
    exactly(a.sum(-1), torch.ones(2, 2, 13).double())
    exactly(a, (q @ k.mT / 8**0.5).softmax(-1))
    exactly(y, F.scaled_dot_product_attention(q, k, v))


@pytest.mark.claim("M21")
def test_the_scale_keeps_the_logits_at_variance_one(attention):
    """q, k ~ N(0, 1): q·k has variance d; times the layer's scale, 1."""
    q, k = torch.randn(2, 400_000, 8, dtype=torch.float64)
    products = (q * k).sum(-1)
    assert products.var().item() == pytest.approx(8, rel=0.03)
    assert (attention.scale * products).var().item() == pytest.approx(1, rel=0.03)


@pytest.mark.claim("M21")
def test_without_the_scale_softmax_saturates():
    """d = 64, T = 197: lower entropy, and a Jacobian of smaller trace 1 − Σp² (about 0.34 against 0.99)."""
    assert blueprint(parse("B/16")).blocks[0].attention.scale == 64**-0.5
    q, k = torch.randn(2, 197, 64, dtype=torch.float64)
    found = {}
    for name, scale in [("scaled", 64**-0.5), ("plain", 1.0)]:
        p = (scale * q @ k.mT).softmax(-1)
        found[name] = -(p * p.clamp_min(1e-300).log()).sum(-1).mean(), (1 - (p * p).sum(-1)).mean().item()
    assert found["plain"][0] < found["scaled"][0] - 3
    assert found["plain"][1] == pytest.approx(0.34, abs=0.04)
    assert found["scaled"][1] == pytest.approx(0.99, abs=0.01)


@pytest.mark.claim("M22")
def test_many_heads_are_many_single_heads_merged(attention, z):
    """MSA = [SA₁; …; SA_k] U, U of (k·d) × D."""
    q, k, v = (t.view(2, 13, 2, 8) for t in attention.qkv(z).chunk(3, -1))
    heads = []
    for h in range(2):
        a = (q[:, :, h] @ k[:, :, h].mT / math.sqrt(8)).softmax(-1)
        heads.append(a @ v[:, :, h])
    assert attention.merge.weight.T.shape == (2 * 8, 16)
    exactly(attention(z), torch.cat(heads, -1) @ attention.merge.weight.T + attention.merge.bias)


@pytest.mark.claim("M22")
@pytest.mark.parametrize("heads", [1, 2, 4])
def test_attention_is_torchs_own(make, z, heads):
    attention = make(heads=heads).blocks[0].attention
    theirs = nn.MultiheadAttention(16, heads, batch_first=True, dtype=torch.float64)
    theirs.load_state_dict(
        {
            "in_proj_weight": attention.qkv.weight,
            "in_proj_bias": attention.qkv.bias,
            "out_proj.weight": attention.merge.weight,
            "out_proj.bias": attention.merge.bias,
        }
    )
    y, weights = theirs(z, z, z, average_attn_weights=False)
    exactly(attention(z), y)
    with vitreous.taps(attention, "weights") as seen:
        attention(z)
    exactly(seen["weights"], weights)


@pytest.mark.claim("M23")
def test_the_number_of_heads_costs_nothing(vit_config):
    """d = D / k, so parameters and products are the same for every k; D must be divisible."""
    configs = [vit_config.change(width=24, heads=k) for k in (1, 2, 4, 12)]
    assert len({sum(p.numel() for p in blueprint(c).parameters()) for c in configs}) == 1
    assert len({macs(c) for c in configs}) == 1
    for name, d in [("B/16", 64), ("L/16", 64), ("H/14", 80)]:
        encoder = parse(name).encoder
        assert encoder.width / encoder.heads == d
    with pytest.raises(ConfigError, match="width 16 is not divisible by heads 3"):
        blueprint(vit_config.change(heads=3))


@pytest.mark.claim("M24", "Q14")
def test_two_heads_say_what_one_head_cannot(attention):
    """Head 1 reads person 1 (work), head 2 person 2 (play): the answer needs weights 1 and 1, a head has 1 in all."""
    people = torch.zeros(3, 16, dtype=torch.float64)
    people[1, 0], people[2, 8] = 1, 1  # one speaks in the half of head 1, the other in that of head 2
    v = people.view(3, 2, 8).transpose(0, 1)[None]  # B H N d
    k = 50 * torch.eye(3, 8, dtype=torch.float64).expand(1, 2, -1, -1)
    q = torch.stack([k[0, 0, 1], k[0, 0, 2]])[None, :, None].expand(-1, -1, 3, -1)
    y, a = attend(attention, q, k, v)
    assert a[0, :, 0].argmax(-1).tolist() == [1, 2]
    merged = y.transpose(1, 2).flatten(2)[0, 0]
    needed = torch.linalg.lstsq(people[1:].T, merged[:, None]).solution[:, 0]
    exactly(needed @ people[1:], merged)  # the only weights that give it
    assert needed.sum() > 1.99


@pytest.mark.claim("M25")
def test_one_layer_joins_all_patches(attention, z):
    """∂yᵢ/∂xⱼ ≠ 0 for every i and j."""
    between = jacobian(attention, z[:1])[0, :, :, 0]  # N D N D
    assert (between.abs().amax((1, 3)) > 1e-6).all()


@pytest.mark.claim("M26")
def test_attention_does_not_know_the_order_of_its_tokens(attention, z):
    """f(Pz) = P f(z): what it lacks is locality, not equivariance."""
    order = torch.randperm(13)
    exactly(attention(z[:, order]), attention(z)[:, order])


@pytest.mark.claim("M26")
def test_positions_are_what_breaks_it(make, z):
    """A table added before, or a relative one inside, and f(Pz) ≠ P f(z)."""
    order = torch.randperm(13)
    relative = make(positions="relative").blocks[0].attention
    vit = make()

    def with_stem_positions(z):
        return vit.blocks[0].attention(vit.embedding.positions(z, vit.grid))

    for f in (relative, with_stem_positions):
        assert (f(z[:, order]) - f(z)[:, order]).abs().max() > 0.01


@pytest.mark.claim("M27")
def test_attention_chooses_where_to_look_from_the_image(vit, images):
    """Two images, two A; the footprint of a convolution is one for both."""
    with vitreous.taps(vit, "blocks.0.attention.weights") as seen:
        vit(images)
    one, other = seen["blocks.0.attention.weights"]
    assert (one - other).abs().max() > 0.01
    convolution = nn.Conv2d(3, 1, 3, padding=1, dtype=torch.float64)
    one, other = (jacobian(convolution, image)[0, 5, 5] for image in images)
    assert torch.equal(one, other)
    assert one.any()


@pytest.mark.claim("M33")
def test_attention_that_looks_at_itself_is_one_linear_map_and_an_mlp_is_not(vit, z):
    """A = 1 leaves z W_v U; the MLP still bends: f(x + y) + f(0) ≠ f(x) + f(y)."""
    attention, mlp = vit.blocks[0].attention, vit.blocks[0].mlp

    def itself(x):
        with vitreous.taps(attention, edit={"weights": lambda a: torch.eye(13).to(a).expand_as(a)}):
            return attention(x)

    def bend(f):
        x, y = z
        return (f((x + y)[None]) + f(0 * z[:1]) - f(x[None]) - f(y[None])).abs().max()

    _, _, value = attention.qkv.weight.chunk(3)
    _, _, value_bias = attention.qkv.bias.chunk(3)
    one_map = attention.merge.weight @ value
    exactly(itself(z), z @ one_map.T + attention.merge.weight @ value_bias + attention.merge.bias)
    assert bend(itself) < 1e-10
    assert bend(attention) > 0.01
    assert bend(mlp) > 0.01


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("norm", [True, False])
def test_options_of_queries_and_keys(make, z, bias, norm):
    """qkv_bias=False has none; qk_norm normalises each query and key over its head's numbers."""
    attention = make(qkv_bias=bias, qk_norm=norm).blocks[0].attention
    assert (attention.qkv.bias is not None) == bias
    with vitreous.taps(attention, ["query", "key"]) as seen:
        attention(z)
    q, k, _ = (t.view(2, 13, 2, 8).transpose(1, 2) for t in attention.qkv(z).chunk(3, -1))
    if norm:
        q, k = (
            F.layer_norm(t, (8,), n.weight, n.bias, 1e-6)
            for t, n in [(q, attention.query_norm), (k, attention.key_norm)]
        )
    exactly(seen["query"], q)
    exactly(seen["key"], k)
