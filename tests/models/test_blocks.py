"""Equations 2 and 3: what a block does to its tokens."""

import inspect
import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.autograd.functional import jacobian
from torch.testing import assert_close

import vitreous
from vitreous.models.catalog import blueprint, parse
from vitreous.models.layers import Activation, DropPath, TokenBatchNorm
from vitreous.models.vit import MLP, Attention, Block, patchify


def exactly(actual, expected):
    assert_close(actual, expected, rtol=0, atol=1e-10)


@pytest.fixture
def z():
    return torch.randn(2, 13, 16, dtype=torch.float64)


@pytest.mark.claim("M28")
def test_the_mlp_is_two_linear_maps_with_an_activation_between(vit, z):
    mlp = vit.blocks[0].mlp
    first, second = (m for m in mlp.modules() if isinstance(m, nn.Linear))
    assert (first.in_features, first.out_features, second.in_features, second.out_features) == (16, 24, 24, 16)
    hidden = F.gelu(z @ first.weight.T + first.bias, approximate="tanh")
    exactly(mlp(z), hidden @ second.weight.T + second.bias)


@pytest.mark.claim("M28")
@pytest.mark.parametrize(("name", "hidden"), [("B/16", 3072), ("L/16", 4096), ("H/14", 5120)])
def test_hidden_widths_are_four_times_the_width(name, hidden):
    encoder = parse(name).encoder
    assert encoder.mlp == hidden == 4 * encoder.width
    assert blueprint(parse(name)).blocks[0].mlp.expand.out_features == hidden


@pytest.mark.claim("M29")
def test_gelu_is_x_times_the_share_of_a_normal_below_x(make):
    """x Φ(x) by erf; the released code's tanh form is within 1e-3 and not the same; ReLU can be chosen."""
    points = [-3.0, -1.5, -0.5, 0.0, 0.1, 0.7, 2.0, 4.0]
    x = torch.tensor(points, dtype=torch.float64)
    by_erf = torch.tensor([p * (1 + math.erf(p / math.sqrt(2))) / 2 for p in points], dtype=torch.float64)
    exactly(Activation("gelu")(x), by_erf)
    difference = (
        Activation("gelu-tanh")(torch.linspace(-6, 6, 999)) - Activation("gelu")(torch.linspace(-6, 6, 999))
    ).abs()
    assert 1e-4 < difference.max() < 1e-3
    assert torch.equal(Activation("relu")(x), x.clamp_min(0))
    assert parse("B/16").encoder.activation == "gelu-tanh"
    for kind in ("gelu", "gelu-tanh", "relu"):
        mlp = make(activation=kind).blocks[0].mlp
        with vitreous.taps(mlp, "hidden") as seen:
            mlp(torch.ones(1, 1, 16).double())
        exactly(seen["hidden"], Activation(kind)(mlp.expand(torch.ones(1, 1, 16).double())))


def test_a_gated_mlp_is_silu_of_one_half_times_the_other(make, z):
    mlp = make(activation="swiglu").blocks[0].mlp
    gate, rest = (z @ mlp.expand.weight.T + mlp.expand.bias).split(24, -1)
    exactly(mlp(z), (gate * gate.sigmoid() * rest) @ mlp.contract.weight.T + mlp.contract.bias)


@pytest.mark.claim("M30")
def test_the_mlp_refines_each_patch_by_itself(vit, z):
    """∂yᵢ/∂xⱼ = 0 for i ≠ j, and not for i = j."""
    reach = jacobian(vit.blocks[0].mlp, z[:1])[0, :, :, 0].abs().amax((1, 3))  # N N
    assert torch.equal(reach > 0, torch.eye(13, dtype=torch.bool))


@pytest.mark.claim("M31")
@pytest.mark.parametrize(("rows", "columns"), [(1, 0), (0, 1), (2, 3)])
def test_a_shift_by_whole_patches_rolls_the_tokens(vit, images, rows, columns):
    """Through projection and MLP, round the edge; a shift by one pixel does not roll them."""

    def grid(x):
        return vit.blocks[0].mlp(vit.embedding.projection(patchify(x, (4, 4)))).unflatten(1, (3, 4))

    rolled = grid(images.roll((4 * rows, 4 * columns), (2, 3)))
    exactly(rolled, grid(images).roll((rows, columns), (1, 2)))
    by_pixels = grid(images.roll((rows, columns), (2, 3)))
    every_roll = [grid(images).roll((r, c), (1, 2)) for r in range(3) for c in range(4)]
    assert min((by_pixels - other).abs().max() for other in every_roll) > 0.01


@pytest.mark.claim("M32")
def test_patches_are_to_an_mlp_what_images_of_a_batch_were(vit, z):
    """MLP on (B, N, D) is MLP on (B·N, D)."""
    mlp = vit.blocks[0].mlp
    exactly(mlp(z), mlp(z.flatten(0, 1)).unflatten(0, (2, 13)))


@pytest.mark.claim("M32")
def test_an_mlp_on_the_flat_image_is_neither_local_nor_equivariant(images):
    """MNIST style: every output reads every patch, and a shift of the image shifts nothing."""
    size = 3 * 12 * 16
    flat = nn.Sequential(nn.Linear(size, 24), nn.GELU(), nn.Linear(24, 12)).double()  # one number per patch

    def f(x):
        return flat(x.flatten(1)).view(-1, 3, 4)

    reach = jacobian(f, images[:1])[0, :, :, 0].view(12, 3, 12, 16)
    assert (patchify(reach, (4, 4)).abs().amax(-1) > 0).all()
    assert (f(images.roll(4, 2)) - f(images).roll(1, 1)).abs().max() > 0.01


@pytest.mark.claim("M34")
def test_layer_norm_is_per_token_over_its_features(make, z):
    """γ(z − μ)/√(σ² + ε) + β; with γ = 1, β = 0 each token has mean 0 and variance 1; ε is an option."""
    for eps in (1e-6, 1e-2):
        norm = make(norm_eps=eps).blocks[0].norm1
        mean, variance = z.mean(-1, keepdim=True), z.var(-1, correction=0, keepdim=True)
        exactly(norm(z), norm.weight * (z - mean) / (variance + eps).sqrt() + norm.bias)
        exactly(norm(z), F.layer_norm(z, (16,), norm.weight, norm.bias, eps))
        assert norm.weight.shape == norm.bias.shape == (16,)
        assert norm.weight.requires_grad
        assert norm.bias.requires_grad
    assert parse("B/16").encoder.norm_eps == 1e-6
    norm = make().norm
    norm.reset_parameters()
    exactly(norm(z).mean(-1), torch.zeros(2, 13).double())
    assert_close(norm(z).var(-1, correction=0), torch.ones(2, 13).double(), rtol=0, atol=1e-4)


@pytest.mark.claim("M35")
def test_a_layer_norm_sees_one_token_and_a_batch_norm_all(make, z):
    """Other patches and other images change a batch norm's answer in training, never a layer norm's."""
    layer, batch = make().blocks[0].norm1, make(norm_kind="batch").blocks[0].norm1.train()
    others = z.clone()
    others[:, 1:] += 3
    other_images = z.clone()
    other_images[1] *= 2
    for changed in (others, other_images):
        assert torch.equal(layer(changed)[0, 0], layer(z)[0, 0])
        assert (batch(changed)[0, 0] - batch(z)[0, 0]).abs().max() > 0.01
    exactly(layer(z[:1]), layer(z)[:1])


@pytest.mark.claim("M35")
def test_a_layer_norm_has_one_mean_per_token_and_a_batch_norm_one_per_feature(make, z):
    layer, batch = make().blocks[0].norm1, make(norm_kind="batch").blocks[0].norm1.train()
    for norm in (layer, batch):
        norm.reset_parameters()
    per_token, per_feature = torch.randn(2, 13, 1).double(), torch.randn(16).double()
    exactly(layer(z + per_token), layer(z))
    exactly(batch(z + per_feature), batch(z))
    assert (layer(z + per_feature) - layer(z)).abs().max() > 0.1
    assert (batch(z + per_token) - batch(z)).abs().max() > 0.1


@pytest.mark.claim("M35")
@pytest.mark.parametrize(("grid", "tokens"), [(7, 49), (14, 196), (24, 576)])
def test_the_same_layer_norms_run_at_any_length(make, grid, tokens):
    """One block, weights unchanged, batch 1."""
    block = make().blocks[0]
    z = torch.randn(1, tokens, 16, dtype=torch.float64)
    exactly(block.norm1(z)[:, :5], block.norm1(z[:, :5]))
    assert block(z).shape == z.shape


@pytest.mark.claim("M36", "M37")
def test_a_block_is_its_two_equations(vit, z):
    """z′ = MSA(LN(z)) + z; z = MLP(LN(z′)) + z′."""
    block = vit.blocks[0]
    middle = block.attention(F.layer_norm(z, (16,), block.norm1.weight, block.norm1.bias, 1e-6)) + z
    exactly(block(z), block.mlp(F.layer_norm(middle, (16,), block.norm2.weight, block.norm2.bias, 1e-6)) + middle)


@pytest.mark.claim("M37")
def test_post_norm_is_the_first_transformers_order(make, z):
    """z′ = LN(MSA(z) + z); z = LN(MLP(z′) + z′): the stream itself is normalised, and no norm is left for the end."""
    vit = make(norm="post")
    block = vit.blocks[0]
    middle = block.norm1(block.attention(z) + z)
    exactly(block(z), block.norm2(block.mlp(middle) + middle))
    assert isinstance(vit.norm, nn.Identity)
    pre = make().blocks[0]
    pre.load_state_dict(block.state_dict())
    assert (pre(z) - block(z)).abs().max() > 0.1  # same weights, another function


@pytest.mark.claim("M38")
def test_refine_and_add(vit, images):
    """What leaves a skip is what entered; a branch's output is what is added; without branches a block is nothing."""
    with vitreous.taps(vit, "**") as seen:
        vit(images)
    before = seen["embedding.tokens"]
    for i in range(2):
        b = {
            name: seen[f"blocks.{i}.{name}"]
            for name in ["skip1", "attention.output", "residual1", "skip2", "mlp.output", "output"]
        }
        assert torch.equal(b["skip1"], before)
        assert torch.equal(b["residual1"], b["skip1"] + b["attention.output"])
        assert torch.equal(b["skip2"], b["residual1"])
        assert torch.equal(b["output"], b["skip2"] + b["mlp.output"])
        exactly(b["output"] - before, b["attention.output"] + b["mlp.output"])
        before = b["output"]
    silence = {"blocks.?.attention.output": torch.zeros_like, "blocks.?.mlp.output": torch.zeros_like}
    with vitreous.taps(vit, ["embedding.tokens", "blocks.1.output"], edit=silence) as seen:
        vit(images)
    assert torch.equal(seen["blocks.1.output"], seen["embedding.tokens"])


@pytest.mark.claim("M39")
def test_an_encoder_is_its_blocks_in_order_without_a_mask(make, images):
    """L blocks one after another; every token may look at every token; no decoder."""
    vit = make(depth=3)
    assert len(vit.blocks) == vit.config.encoder.depth == 3
    with vitreous.taps(vit, ["embedding.tokens", "blocks.?.output", "blocks.?.attention.weights"]) as seen:
        vit(images)
    z = seen["embedding.tokens"]
    for i, block in enumerate(vit.blocks):
        assert (seen[f"blocks.{i}.attention.weights"] > 0).all()
        z = block(z)
        exactly(seen[f"blocks.{i}.output"], z)
    vit.blocks = nn.ModuleList(reversed(vit.blocks))
    assert (vit.encode(seen["embedding.tokens"], vit.grid) - z).abs().max() > 0.01


@pytest.mark.claim("M40")
def test_all_switches_off_is_a_textbook_encoder_layer(make, z):
    """Post-norm, ReLU, no class token: torch's own layer of the first Transformer, weights copied."""
    vit = make(norm="post", activation="relu", pool="gap", class_token=False, norm_eps=1e-5)
    block = vit.blocks[0]
    theirs = nn.TransformerEncoderLayer(16, 2, 24, 0.0, "relu", batch_first=True, norm_first=False, dtype=torch.float64)
    ours = {
        "self_attn.in_proj_": block.attention.qkv,
        "self_attn.out_proj.": block.attention.merge,
        "linear1.": block.mlp.expand,
        "linear2.": block.mlp.contract,
        "norm1.": block.norm1,
        "norm2.": block.norm2,
    }
    theirs.load_state_dict({name + k: v for name, part in ours.items() for k, v in part.state_dict().items()})
    exactly(block(z), theirs(z))
    assert vit.embedding.class_token is None


@pytest.mark.claim("M40")
def test_the_three_switches_are_independent(make, vit_config, images):
    """GELU, class token and norm place: each of the eight settings builds, and no two are the same function."""
    answers = []
    for activation in ("relu", "gelu"):
        for pool, token in (("gap", False), ("gap", True)):
            for norm in ("pre", "post"):
                vit = make(activation=activation, pool=pool, class_token=token, norm=norm)
                e = vit.config
                assert (e.encoder.activation, e.embedding.class_token, e.encoder.norm) == (activation, token, norm)
                answers.append(vit(images))
    apart = torch.stack([(a - b).abs().max() for i, a in enumerate(answers) for b in answers[:i]])
    assert len(answers) == 8
    assert apart.min() > 1e-3


@pytest.mark.claim("M41")
def test_the_representation_has_width_d_and_a_head_makes_classes_of_it(vit, images):
    """y = LN(z_L⁰) in R^D; logits in R^K; one norm after the blocks."""
    y = vit.features(images)
    assert y.shape == (2, 16)
    assert vit(images).shape == (2, 5)
    with vitreous.taps(vit, "blocks.1.output") as seen:
        vit(images)
    exactly(y, F.layer_norm(seen["blocks.1.output"][:, 0], (16,), vit.norm.weight, vit.norm.bias, 1e-6))
    exactly(vit(images), y @ vit.head.weight.T + vit.head.bias)
    norms = [name for name, m in vit.named_modules() if isinstance(m, nn.LayerNorm)]
    assert norms == ["blocks.0.norm1", "blocks.0.norm2", "blocks.1.norm1", "blocks.1.norm2", "norm"]


@pytest.mark.claim("I19")
def test_a_block_without_skips_is_its_branches_alone(make, z):
    """z′ = MSA(LN(z)); z = MLP(LN(z′)); same parameters, other blocks untouched."""
    whole, cut = make(), make(skips=(1,))
    cut.load_state_dict(whole.state_dict())
    assert [p.shape for p in cut.parameters()] == [p.shape for p in whole.parameters()]
    block = cut.blocks[1]
    exactly(block(z), block.mlp(block.norm2(block.attention(block.norm1(z)))))
    assert torch.equal(cut.blocks[0](z), whole.blocks[0](z))
    assert (whole.blocks[1](z) - block(z)).abs().max() > 0.1


@pytest.mark.claim("C16")
@pytest.mark.parametrize("tokens", [1, 7, 50])
def test_the_encoder_takes_any_sequence(make, tokens):
    """A block reads (B, T, D), whatever T and whatever the tokens are; places, if any, come as angles and biases."""
    block = make().blocks[0]
    z = torch.randn(3, tokens, 16, dtype=torch.float64)
    assert block(z).shape == z.shape
    for part in (Block, Attention):
        assert list(inspect.signature(part.forward).parameters) == ["self", "x", "places"]
    assert list(inspect.signature(MLP.forward).parameters) == ["self", "x"]


def test_batch_norm_shares_its_numbers_over_tokens_and_images(z):
    """Over B·N tokens, one mean and one variance per feature."""
    norm = TokenBatchNorm(16, eps=1e-6).double().train()
    flat = z.flatten(0, 1)
    mean, variance = flat.mean(0), flat.var(0, correction=0)
    exactly(norm(z), (z - mean) / (variance + 1e-6).sqrt())


def test_layer_scale_is_a_gain_on_each_branch(make, images):
    """What is added to the stream, and what the tap shows, is gain ⊙ branch."""
    vit = make(layer_scale=0.1)
    mlp = vit.blocks[0].mlp
    with vitreous.taps(vit, ["blocks.0.norm2", "blocks.0.mlp.output"]) as seen:
        vit(images)
    branch = mlp.contract(mlp.activation(mlp.expand(seen["blocks.0.norm2"])))
    exactly(seen["blocks.0.mlp.output"], mlp.end.scale.gain * branch)


def test_drop_path_leaves_out_whole_images_and_keeps_the_mean():
    """Each image's branch is 0 or x / (1 − rate); in evaluation it is x."""
    drop, x = DropPath(0.25), torch.ones(4000, 3, 2)
    y = drop(x)
    assert_close(y.unique(), torch.tensor([0, 4 / 3]))
    assert torch.equal(y.amax((1, 2)), y.amin((1, 2)))
    assert y.mean().item() == pytest.approx(1, abs=0.05)
    assert torch.equal(drop.eval()(x), x)


def test_drop_path_rises_from_none_to_its_rate(make):
    vit = make(depth=3, drop_path=0.2)
    rates = [[m.rate for m in block.modules() if isinstance(m, DropPath)] for block in vit.blocks]
    assert rates == [[], [0.1, 0.1], [0.2, 0.2]]


def test_dropout_stands_where_the_paper_has_it(make, images):
    """On the tokens, after attention, after the activation, after the MLP; the weights have a rate of their own."""
    vit = make(dropout=0.5)
    assert sorted(name for name, m in vit.named_modules() if isinstance(m, nn.Dropout)) == sorted(
        ["embedding.dropout"]
        + [
            f"blocks.{i}.{place}"
            for i in range(2)
            for place in ("attention.end.dropout", "mlp.dropout", "mlp.end.dropout")
        ]
    )
    exactly(vit(images), make()(images))  # nothing is dropped in evaluation
    vit.train()
    with vitreous.taps(vit, ["embedding.tokens", "blocks.0.attention.output", "blocks.0.mlp.output"]) as seen:
        vit(images)
    for x in seen.values():
        assert 0.3 < (x == 0).double().mean() < 0.7


def test_attention_dropout_falls_on_the_weights_alone(make, images):
    """With rate r a weight is 0 or w / (1 − r): seen through values that are one-hot."""
    attention = make(attention_dropout=0.5, width=32, heads=2).blocks[0].attention.train()
    q, k = torch.randn(2, 1, 2, 13, 16, dtype=torch.float64)
    v = torch.eye(13, 16, dtype=torch.float64).expand(1, 2, -1, -1)
    whole = (q @ k.mT / 4).softmax(-1)
    for opened in (False, True):
        if opened:
            with vitreous.taps(attention, "weights"):
                kept = attention.attend(q, k, v)[..., :13]
        else:
            kept = attention.attend(q, k, v)[..., :13]
        dropped = kept == 0
        assert 0.35 < dropped.double().mean() < 0.65
        exactly(kept, (2 * whole).masked_fill(dropped, 0))
