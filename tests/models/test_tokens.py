"""Equation 1: an image becomes a sequence of tokens."""

import pytest
import torch
import torch.nn.functional as F
from scipy.stats import spearmanr
from torch.testing import assert_close

import vitreous
from vitreous.errors import ConfigError, ImageSizeError
from vitreous.models.catalog import blueprint, build, parse
from vitreous.models.vit import patchify, unpatchify


def tokens_of(model, images, name="embedding.tokens", **options):
    with vitreous.taps(model, name) as seen:
        model(images, **options)
    return seen[name]


def shuffle_patches(images, order, patch=(4, 4)):
    """The image whose patches stand in another order."""
    return unpatchify(patchify(images, patch)[:, order], patch, tuple(images.shape[-2:]))


def exactly(actual, expected):
    assert_close(actual, expected, rtol=0, atol=1e-10)


@pytest.mark.claim("M01")
def test_both_layouts_of_a_picture_give_the_same_tokens(vit, images):
    """B C H W and, by an explicit flag, B H W C."""
    last = images.permute(0, 2, 3, 1).contiguous()
    exactly(tokens_of(vit, last, layout="BHWC"), tokens_of(vit, images))
    with pytest.raises(ImageSizeError):
        vit(last)  # nothing is guessed
    with pytest.raises(ConfigError, match="layout 'HWC' is not BCHW or BHWC"):
        vit(images, layout="HWC")


@pytest.mark.claim("M01")
def test_the_standard_input_is_224_x_224_x_3():
    config = parse("B/16")
    assert (config.image_size, config.channels) == ((224, 224), 3)


@pytest.mark.claim("M02")
@pytest.mark.parametrize(
    ("size", "patch", "count"), [(224, 16, 196), (224, 32, 49), (224, 14, 256), (48, 16, 9), ((32, 48), 16, 6)]
)
def test_there_are_hw_over_p_squared_patches(size, patch, count):
    rows, columns = blueprint(parse(f"Ti/{patch}").change(image_size=size)).grid
    assert rows * columns == count


@pytest.mark.claim("M02")
@pytest.mark.parametrize("size", [(48, 48), (32, 48)])
def test_patches_are_blocks_cut_by_hand(size):
    """48 x 48 RGB in patches of 16: 9 patches of 16·16·3 = 768 numbers."""
    x = torch.randn(1, 3, *size)
    patches = patchify(x, (16, 16))
    assert patches.shape == (1, size[0] * size[1] // 256, 768)
    assert torch.equal(patches[0, 0], x[0, :, :16, :16].flatten())
    assert torch.equal(patches[0, -1], x[0, :, -16:, -16:].flatten())


@pytest.mark.claim("M02")
def test_halving_the_patch_gives_four_times_the_tokens_and_touches_two_tensors():
    coarse, fine = blueprint(parse("S/32")), blueprint(parse("S/16"))
    assert fine.grid[0] * fine.grid[1] == 4 * coarse.grid[0] * coarse.grid[1]
    a, b = ({name: p.shape for name, p in model.named_parameters()} for model in (coarse, fine))
    assert {name for name in a.keys() | b.keys() if a.get(name) != b.get(name)} == {
        "embedding.projection.weight",
        "embedding.positions.table",
    }


@pytest.mark.claim("M02")
@pytest.mark.parametrize("size", [(50, 48), (48, 50), (8, 8)])
def test_a_size_that_cannot_be_cut_is_refused_by_name(size):
    with pytest.raises(ImageSizeError, match=f"H={size[0]}, W={size[1]} .* P=16x16"):
        build("Ti/16", image_size=size)


@pytest.mark.claim("M03")
@pytest.mark.parametrize("patch", [(4, 4), (2, 8), (12, 16), (1, 1)])
def test_cutting_loses_nothing_and_goes_row_by_row(images, patch):
    """unpatchify(patchify(x)) = x; patch k is the block of row k ÷ w, column k mod w."""
    patches = patchify(images, patch)
    assert torch.equal(unpatchify(patches, patch, (12, 16)), images)
    columns = 16 // patch[1]
    for k in range(patches.shape[1]):
        row, column = k // columns * patch[0], k % columns * patch[1]
        block = images[:, :, row : row + patch[0], column : column + patch[1]]
        assert torch.equal(patches[:, k], block.flatten(1))


@pytest.mark.claim("M04")
def test_one_linear_map_serves_every_patch(vit, images):
    """E(Px) = P E(x) for every order P; the last patch is projected like the first; P²C·D + D parameters."""
    order = torch.randperm(12)
    before, after = (tokens_of(vit, x, "embedding.patches") for x in (images, shuffle_patches(images, order)))
    exactly(after, before[:, order])
    weight, bias = vit.embedding.projection.weight, vit.embedding.projection.bias
    exactly(before[:, -1], images[:, :, -4:, -4:].flatten(1) @ weight.T + bias)
    assert sum(p.numel() for p in vit.embedding.projection.parameters()) == 4 * 4 * 3 * 16 + 16


@pytest.mark.claim("M05")
@pytest.mark.parametrize("patch", [(4, 4), (2, 4)])
def test_the_projection_is_a_convolution_whose_stride_is_its_kernel(make, images, patch):
    """Same values and same gradients, with the weight read as D C P P."""
    vit = make(patch=patch)
    ours = vit.embedding.projection
    kernel = ours.weight.detach().view(16, 3, *patch).requires_grad_()
    x, y = images.clone().requires_grad_(), images.clone().requires_grad_()
    a = ours(patchify(x, patch))
    b = F.conv2d(y, kernel, ours.bias.detach(), stride=patch).flatten(2).mT
    exactly(a, b)
    pull = torch.randn_like(a)
    a.backward(pull)
    b.backward(pull)
    exactly(x.grad, y.grad)
    exactly(ours.weight.grad, kernel.grad.flatten(1))


@pytest.mark.claim("M06")
def test_768_is_a_coincidence():
    """P²C and D are free of each other; where they agree the projection is still a learned matrix."""
    for name, numbers, width in [("B/16", 768, 768), ("B/32", 3072, 768), ("L/16", 768, 1024)]:
        projection = blueprint(parse(name)).embedding.projection
        assert (projection.in_features, projection.out_features) == (numbers, width)


@pytest.mark.claim("M06")
@pytest.mark.parametrize(("channels", "patch"), [(3, 4), (1, 2), (1, 4)])
def test_any_patch_goes_with_any_width(make, channels, patch):
    model = make(channels=channels, patch=patch, image_size=(4, 8))
    assert model(torch.randn(2, channels, 4, 8).double()).shape == (2, 5)
    weight = build(model.config).embedding.projection.weight
    if weight.shape[0] == weight.shape[1]:
        assert not torch.equal(weight, torch.eye(16))
    assert weight.requires_grad


@pytest.mark.claim("M07")
def test_the_width_is_the_same_in_every_layer(vit, images):
    with vitreous.taps(vit, ["embedding.tokens", "blocks.?.residual1", "blocks.?.output"]) as seen:
        vit(images)
    assert len(seen) == 5
    assert {tuple(z.shape) for z in seen.values()} == {(2, 13, 16)}


@pytest.mark.claim("M08")
def test_the_class_token_is_put_in_front_not_summed(vit, images):
    """z₀⁰ − E_pos⁰ is one vector for all images, patches follow as they were, and it learns."""
    z, patches = tokens_of(vit, images), tokens_of(vit, images, "embedding.patches")
    table = vit.embedding.positions.table
    assert z.shape[1] == patches.shape[1] + 1
    exactly(z[:, 0] - table[0], vit.embedding.class_token.expand(2, -1))
    exactly(z[:, 1:], patches + table[1:])
    vit(images).sum().backward()
    assert vit.embedding.class_token.grad.abs().min() > 0


@pytest.mark.claim("M09")
def test_the_class_token_starts_at_zero_or_at_random(vit_config):
    wide = vit_config.change(width=4096, heads=1, mlp=1, depth=1)
    assert not build(wide).embedding.class_token.any()
    drawn = build(wide.change(token_start="normal"), seed=0).embedding.class_token
    assert drawn.std().item() == pytest.approx(0.02, rel=0.05)
    assert drawn.mean().item() == pytest.approx(0, abs=0.002)


@pytest.mark.claim("M09")
def test_a_zero_class_token_is_still_told_apart_and_learns(vit_config):
    """It enters as E_pos⁰, unlike any patch; with a zero head its first gradient is zero, after one step not."""
    model, x = build(vit_config, seed=0), torch.randn(4, 3, 12, 16)
    z = tokens_of(model, x)
    assert torch.equal(z[:, 0], model.embedding.positions.table[:1].expand(4, -1))
    assert (z[:, 1:] != z[:, :1]).any(-1).all()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(2):
        optimizer.zero_grad()
        F.cross_entropy(model(x), torch.arange(4)).backward()
        assert bool(model.embedding.class_token.grad.any()) == (step == 1)
        optimizer.step()


@pytest.mark.claim("M10")
def test_positions_are_added_to_all_tokens(vit, images):
    """z₀ = [x_class; x₁E; …; x_N E] + E_pos with E_pos (N+1) × D, trainable."""
    e = vit.embedding
    assert e.positions.table.shape == (13, 16)
    projected = patchify(images, (4, 4)) @ e.projection.weight.T + e.projection.bias
    composed = torch.cat([e.class_token.expand(2, 1, -1), projected], 1) + e.positions.table
    exactly(tokens_of(vit, images), composed)
    vit(images).sum().backward()
    assert e.positions.table.grad.abs().amax(1).min() > 0


@pytest.mark.claim("M11")
def test_first_positions_know_nothing_of_two_dimensions(vit_config):
    """Rank correlation of cosine similarity with distance on the grid is 0 ± 0.02 over 20 seeds."""
    config = vit_config.change(image_size=28, width=64, mlp=1, depth=1)  # 7 x 7 places
    places = torch.cartesian_prod(torch.arange(7.0), torch.arange(7.0))
    a, b = torch.triu_indices(49, 49, 1)
    distance = (places[a] - places[b]).norm(dim=-1)
    found = []
    for seed in range(20):
        table = build(config, seed=seed).embedding.positions.table[1:].detach()
        found.append(spearmanr(F.cosine_similarity(table[a], table[b], -1), distance).statistic)
    assert abs(sum(found) / 20) < 0.02


@pytest.mark.claim("M12")
def test_2d_positions_are_a_column_half_and_a_row_half(make, images):
    """[X_column; Y_row]: (h + w)·D/2 parameters, and D for the class token."""
    vit = make(positions="learned-2d")
    added = tokens_of(vit, images)[0, 1:] - tokens_of(vit, images, "embedding.patches")[0]
    grid = added.unflatten(0, (3, 4))
    exactly(grid[..., :8], grid[:1, :, :8].expand(3, -1, -1))  # a column shares the first half
    exactly(grid[..., 8:], grid[:, :1, 8:].expand(-1, 4, -1))  # a row shares the second
    assert grid[0, :, :8].unique(dim=0).shape[0] == 4
    assert grid[:, 0, 8:].unique(dim=0).shape[0] == 3
    assert sum(p.numel() for p in vit.embedding.positions.parameters()) == (3 + 4) * 8 + 16


@pytest.mark.claim("M13")
def test_a_relative_bias_is_a_function_of_the_offset(make):
    """With one query content everywhere the bias is Toeplitz: row i, column j depends on i − j alone."""
    positions = make(positions="relative").blocks[0].attention.positions
    bias = positions(torch.randn(1, 2, 1, 8).double().expand(-1, -1, 13, -1))
    exactly(bias[..., 1:, 1:], bias[..., :-1, :-1])
    assert bias[0, 0].unique().numel() == 25  # 2·13 − 1 offsets, all different


@pytest.mark.claim("M13")
def test_a_relative_bias_is_query_times_offset_inside_the_softmax(make, images):
    """A = softmax((q·k + q·r[p_q − p_k]) / √d)."""
    vit = make(positions="relative")
    name = "blocks.0.attention"
    with vitreous.taps(vit, [f"{name}.query", f"{name}.key", f"{name}.weights"]) as seen:
        vit(images)
    q, k = seen[f"{name}.query"], seen[f"{name}.key"]
    offset = torch.arange(13)[:, None] - torch.arange(13) + 12
    r = vit.blocks[0].attention.positions.offsets[offset]  # N N d
    logits = q @ k.mT + torch.einsum("bhqd,qkd->bhqk", q, r)
    exactly(seen[f"{name}.weights"], (logits / 8**0.5).softmax(-1))


@pytest.mark.claim("M13")
def test_a_zero_relative_table_is_plain_attention(make, images):
    relative, plain = make(positions="relative"), make(positions="none")
    for block in relative.blocks:
        torch.nn.init.zeros_(block.attention.positions.offsets)
    plain.load_state_dict({k: v for k, v in relative.state_dict().items() if "offsets" not in k})
    exactly(relative(images), plain(images))


@pytest.mark.claim("M14")
def test_without_positions_an_image_is_a_bag_of_patches(make, images):
    """The answer is the same for every order of the patches."""
    vit, order = make(positions="none"), torch.randperm(12)
    exactly(vit(shuffle_patches(images, order)), vit(images))


@pytest.mark.claim("M14")
@pytest.mark.parametrize("kind", ["learned", "learned-2d", "relative", "sincos-2d"])
def test_with_positions_order_matters(make, images, kind):
    vit, order = make(positions=kind), torch.randperm(12)
    assert (vit(shuffle_patches(images, order)) - vit(images)).abs().max() > 1e-3


@pytest.mark.claim("M15")
@pytest.mark.parametrize(("at", "tables"), [("stem", 1), ("every-layer", 3), ("every-layer-shared", 1)])
def test_positions_enter_once_or_at_every_layer(make, images, at, tables):
    """(N+1)D, L(N+1)D, (N+1)D parameters; layer l reads z + E_pos of its own, or of the one they share."""
    vit = make(positions_at=at, depth=3)
    found = [p for name, p in vit.named_parameters() if name.endswith(".table")]
    assert sum(p.numel() for p in found) == tables * 13 * 16
    z = tokens_of(vit, images)
    for i, block in enumerate(vit.blocks):
        z = block(z if at == "stem" else z + found[i % tables])
    exactly(vit.head(vit.norm(z)[:, 0]), vit(images))


@pytest.mark.claim("M15")
@pytest.mark.parametrize("at", ["every-layer", "every-layer-shared"])
@pytest.mark.parametrize("kind", ["learned", "learned-2d", "sincos-2d"])
def test_in_a_model_of_one_layer_the_place_of_entry_is_the_same(make, images, kind, at):
    stem = make(positions=kind, depth=1)
    layer = make(positions=kind, depth=1, positions_at=at)
    renamed = {k.replace("embedding.positions", "layer_positions.tables.0"): v for k, v in stem.state_dict().items()}
    layer.load_state_dict(renamed)
    exactly(layer(images), stem(images))


@pytest.mark.claim("M15")
@pytest.mark.parametrize("kind", ["none", "relative"])
@pytest.mark.parametrize("at", ["every-layer", "every-layer-shared"])
def test_none_and_relative_have_no_layer_to_enter_at(make, kind, at):
    with pytest.raises(ConfigError, match=f"positions={kind}.*positions_at={at} has no meaning"):
        make(positions=kind, positions_at=at)


@pytest.mark.claim("Q03")
def test_positions_start_as_in_the_released_code_or_as_asked(vit_config):
    """N(0, 0.02²); zeros; N(0, 1); the sin-cos waves on the patches."""
    config = vit_config.change(image_size=64, width=64, mlp=1, depth=1)

    def table(start):
        return build(config.change(position_start=start), seed=0).embedding.positions.table.detach()

    for start, std in [("normal", 0.02), ("unit", 1.0)]:
        assert table(start).std().item() == pytest.approx(std, rel=0.02)
        assert table(start).mean().item() == pytest.approx(0, abs=0.03 * std)
        share_beyond = (table(start).abs() > 2 * std).float().mean().item()
        assert share_beyond == pytest.approx(0.0455, abs=0.005)  # a normal's, not cut
    assert build(config).config.embedding.position_start == "normal"
    assert not table("zeros").any()
    waves = build(config.change(positions="sincos-2d")).embedding.positions.waves
    assert torch.equal(table("sincos")[1:], waves)


@pytest.mark.claim("Q04c")
def test_the_class_token_enters_alike_for_all_images(vit, images):
    """Place 0, its own position, and no segment vector: the embedding holds nothing else."""
    z = tokens_of(vit, torch.cat([images, 7 * images]))
    assert torch.equal(z[:, 0], z[:1, 0].expand(4, -1))
    assert {name for name, _ in vit.embedding.named_parameters()} == {
        "projection.weight",
        "projection.bias",
        "class_token",
        "positions.table",
    }


@pytest.mark.claim("Q04c")
def test_the_class_token_may_stand_anywhere(vit, images):
    """Moved with its position to another place it ends in the same state: the function class is unchanged."""
    z = tokens_of(vit, images)
    order = torch.tensor([*range(1, 8), 0, *range(8, 13)])  # the class token at place 7
    ends = vit.encode(z[:, order], vit.grid)
    exactly(ends[:, 7], vit.encode(z, vit.grid)[:, 0])


def test_registers_and_the_distillation_token_follow_the_class_token(make, images):
    """[class; distillation; registers; patches], each with a position, only the first two, or none."""
    for cover, covered in [("all", 5), ("class", 2), ("patches", 0)]:
        vit = make(distillation_token=True, registers=3, positions_cover=cover)
        e = vit.embedding
        assert e.positions.table.shape == (covered + 12, 16)
        patches = tokens_of(vit, images, "embedding.patches")
        front = torch.cat([e.class_token, e.distillation_token, e.registers])
        places = torch.zeros(17, 16, dtype=torch.float64)
        places[:covered], places[5:] = e.positions.table[:covered], e.positions.table[covered:]
        exactly(tokens_of(vit, images), torch.cat([front.expand(2, -1, -1), patches], 1) + places)
