"""The convolutional parts: a hybrid's stem and the BiT ResNet."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.testing import assert_close

import vitreous
from vitreous.errors import ImageSizeError
from vitreous.models.catalog import blueprint, build, parse
from vitreous.models.config import HYBRID_RESNET, ResNetConfig
from vitreous.models.convolutions import StandardisedConv, pad_same, same_pads
from vitreous.models.vit import ViT


def exactly(actual, expected):
    assert_close(actual, expected, rtol=0, atol=1e-10)


@pytest.fixture
def photo():
    return torch.randn(2, 3, 32, 24, dtype=torch.float64)


@pytest.mark.claim("M48")
@pytest.mark.parametrize(
    ("name", "tokens"), [("R+Ti/16", 50), ("R26+S/32", 50), ("R50+B/16", 197), ("R50+L/32", 50), ("R50x2+L/32", 50)]
)
def test_a_hybrid_has_a_token_for_each_place_of_the_map(name, tokens):
    model = blueprint(parse(name))
    assert model.embedding.positions.table.shape[0] == model.grid[0] * model.grid[1] + 1 == tokens
    assert type(model) is ViT


@pytest.mark.claim("M48")
def test_tokens_come_from_the_feature_map(hybrid, vit, photo):
    """h·w places and a class token; what follows the stem is the same class, part by part."""
    with vitreous.taps(hybrid, ["stem.stages.1.output", "embedding.tokens"]) as seen:
        logits = hybrid(photo)
    h, w = seen["stem.stages.1.output"].shape[2:]
    assert (h, w) == hybrid.grid == (4, 3)
    assert seen["embedding.tokens"].shape == (2, h * w + 1, 16)
    assert logits.shape == (2, 5)
    assert type(hybrid) is type(vit)
    assert [type(m) for m in hybrid.blocks.modules()] == [type(m) for m in vit.blocks.modules()]


@pytest.mark.claim("M49")
def test_a_patch_of_one_is_a_1x1_convolution(hybrid, photo):
    """Flatten the map's places and project each; then class token and positions as usual."""
    feature_map = hybrid.stem(photo)
    e = hybrid.embedding
    convolved = F.conv2d(feature_map, e.projection.weight[..., None, None], e.projection.bias).flatten(2).mT
    exactly(e.projection(feature_map.flatten(2).mT), convolved)
    z = torch.cat([e.class_token.expand(2, 1, -1), convolved], 1) + e.positions.table
    exactly(e(feature_map, hybrid.grid), z)


@pytest.mark.claim("M49")
@pytest.mark.parametrize(("patch", "grid"), [((2, 1), (2, 3)), ((4, 3), (1, 1)), (2, (2, 2))])
def test_patches_of_the_map_may_be_larger(make, patch, grid):
    size = (32, 32) if patch == 2 else (32, 24)
    model = make(stem="resnet", patch=patch, image_size=size)
    assert model.grid == grid
    assert model(torch.randn(1, 3, *size).double()).shape == (1, 5)


def test_a_map_that_cannot_be_cut_names_an_image_size_that_can(make):
    """The fix is in pixels of the image, not in places of the map."""
    with pytest.raises(ImageSizeError, match=r"H=5, W=3 of the feature map of a 40x24 image .* such as 32x16$"):
        make(stem="resnet", patch=2, image_size=(40, 24))
    assert make(stem="resnet", patch=2, image_size=(32, 16)).grid == (2, 1)


@pytest.mark.claim("M50")
@pytest.mark.parametrize("config", [ResNetConfig(), HYBRID_RESNET], ids=["bit", "hybrid"])
def test_standardised_kernels_have_mean_0_and_variance_1(config):
    """Per output channel, over input channels, rows and columns."""
    layer = StandardisedConv(5, 4, 3, 1, config, "same").double()
    nn.init.normal_(layer.weight, 2.0, 0.7)
    kernel = layer.standardised().detach().flatten(1)
    exactly(kernel.mean(1), torch.zeros(4).double())
    assert_close(kernel.var(1, correction=0), torch.ones(4).double(), rtol=0, atol=1e-4)
    x = torch.randn(2, 5, 6, 7, dtype=torch.float64)
    exactly(layer(x), F.conv2d(x, layer.standardised(), padding=1))


@pytest.mark.claim("M50")
def test_the_guard_stands_at_the_variance_or_at_the_deviation():
    """BiT: √(var + 1e-10); the hybrids' code: std + 1e-5."""
    for config, spread in [
        (ResNetConfig(standardise_eps=0.5), lambda w: (w.var(correction=0) + 0.5).sqrt()),
        (ResNetConfig(standardise_eps=0.5, standardise_eps_at="deviation"), lambda w: w.std(correction=0) + 0.5),
    ]:
        layer = StandardisedConv(3, 1, 3, 1, config, "same").double()
        nn.init.normal_(layer.weight, 2.0, 0.7)
        exactly(layer.standardised(), (layer.weight - layer.weight.mean()) / spread(layer.weight))
    assert (ResNetConfig().standardise_eps, ResNetConfig().standardise_eps_at) == (1e-10, "variance")
    assert (HYBRID_RESNET.standardise_eps, HYBRID_RESNET.standardise_eps_at) == (1e-5, "deviation")


@pytest.mark.claim("M50")
def test_an_image_is_normalised_by_itself(bit, hybrid, photo):
    """Group norm: neither the answer nor any map depends on the other images of the batch, in training too."""
    for model in (bit.train(), hybrid.train()):
        exactly(model(photo)[:1], model(photo[:1]))
        exactly(model(torch.cat([photo[:1], 9 * photo[1:]]))[:1], model(photo)[:1])
        assert not [m for m in model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
        assert [m for m in model.modules() if isinstance(m, nn.GroupNorm)]


@pytest.mark.claim("M50")
@pytest.mark.parametrize(
    ("name", "units", "width"),
    [
        ("R50x1", (3, 4, 6, 3), 64),
        ("BiT-R101x3", (3, 4, 23, 3), 192),
        ("R152x4", (3, 8, 36, 3), 256),
        ("R200x3", (3, 24, 36, 3), 192),
    ],
)
def test_depth_and_width_are_in_the_name(name, units, width):
    """Rd x w: units of three convolutions, with root and head d layers; every channel count times w."""
    model = blueprint(parse(name))
    assert tuple(len(stage.units) for stage in model.stages) == units
    assert model.root.conv.out_channels == width
    assert model.head.in_features == 32 * width
    assert 3 * sum(units) + 2 == int(name.partition("R")[2].partition("x")[0])


def test_a_bit_unit_normalises_before_each_convolution(bit):
    """a = ReLU(GN(x)); y = conv3 ReLU GN conv2 ReLU GN conv1(a) + (shortcut(a) or x)."""
    changing, plain = bit.stages[1].units
    for unit, channels, stride in [(changing, 64, 2), (plain, 128, 1)]:
        x = torch.randn(2, channels, 6, 8, dtype=torch.float64)
        a = F.relu(unit.norm1(x))
        y = F.conv2d(a, unit.conv1.standardised())
        y = F.conv2d(F.relu(unit.norm2(y)), unit.conv2.standardised(), stride=stride, padding=1)
        y = F.conv2d(F.relu(unit.norm3(y)), unit.conv3.standardised())
        skip = x if unit.shortcut is None else F.conv2d(a, unit.shortcut.standardised(), stride=stride)
        exactly(unit(x), skip + y)
    assert changing.shortcut is not None
    assert plain.shortcut is None


def test_a_hybrids_unit_normalises_after_each_convolution(hybrid):
    """ReLU(GN conv3 ReLU GN conv2 ReLU GN conv1(x) + shortcut): ResNet v1."""
    unit = hybrid.stem.stages[1].units[0]
    x = torch.randn(2, 64, 6, 8, dtype=torch.float64)
    y = F.relu(unit.norm1(F.conv2d(x, unit.conv1.standardised())))
    padded = F.pad(y, (0, 1, 0, 1))  # an even size at stride 2: the odd pixel goes after
    y = F.relu(unit.norm2(F.conv2d(padded, unit.conv2.standardised(), stride=2)))
    y = unit.norm3(F.conv2d(y, unit.conv3.standardised()))
    skip = unit.shortcut_norm(F.conv2d(x, unit.shortcut.standardised(), stride=2))
    exactly(unit(x), F.relu(y + skip))


def test_a_hybrids_units_start_as_their_skips(vit_config):
    """The last gain is 0, so a unit without a shortcut passes what is positive untouched."""
    config = vit_config.change(stem="resnet", patch=1, image_size=32, units=(2,))
    unit = build(config).stem.stages[0].units[1]
    x = torch.rand(1, 64, 4, 4)
    assert torch.equal(unit(x), x)


@pytest.mark.parametrize(
    ("n", "kernel", "stride", "pads"),
    [(224, 7, 2, (2, 3)), (224, 3, 2, (0, 1)), (7, 3, 2, (1, 1)), (8, 1, 2, (0, 0)), (5, 3, 1, (1, 1))],
)
def test_same_padding_gives_n_over_stride_rounded_up(n, kernel, stride, pads):
    assert same_pads(n, kernel, stride) == pads
    assert F.max_pool2d(pad_same(torch.zeros(1, 1, n, n), kernel, stride, 0.0), kernel, stride).shape[-1] == -(
        -n // stride
    )


@pytest.mark.parametrize("family", ["bit", "hybrid"])
def test_beyond_the_border_the_roots_pool_sees_zeros_or_nothing(make, bit_config, vit_config, family):
    """Where values are negative zeros beyond the border win, -∞ never; a hybrid pools after a ReLU: no difference."""
    config = bit_config if family == "bit" else vit_config.change(stem="resnet", patch=1, image_size=(32, 24))
    roots = {}
    for pad in ("zeros", "infinity"):
        model = make(config, root_pad=pad)
        root = model.root if family == "bit" else model.stem.root
        roots[pad] = root(torch.ones(1, 3, 32, 24).double())
    edge = roots["zeros"] - roots["infinity"]
    if family == "bit":
        assert (edge[..., 0, :] > 0).any()
        exactly(edge[..., 1:-1, 1:-1], torch.zeros_like(edge[..., 1:-1, 1:-1]))
    else:
        assert not edge.any()  # after a ReLU nothing is below zero


def test_bit_runs_at_any_size(bit):
    for size in [(32, 24), (17, 33), (64, 64), (9, 40)]:
        assert bit(torch.randn(1, 3, *size).double()).shape == (1, 5)


def test_the_small_root_keeps_every_pixel(make, bit_config):
    """3×3 stride 1 and no pool: a 32 px image enters the first stage at 32 x 32."""
    model = make(bit_config, root="small", image_size=32)
    with vitreous.taps(model, ["root", "stages.?.output"]) as seen:
        model(torch.randn(1, 3, 32, 32).double())
    assert [tuple(x.shape[2:]) for x in seen.values()] == [(32, 32), (32, 32), (16, 16)]
    small = make(stem="resnet", root="small", units=(), patch=4, image_size=(12, 16))
    assert small.grid == (3, 4)


def test_a_convolution_stem_halves_down_to_the_patch(make, images):
    """log₂ P times 3×3 stride 2, group norm, ReLU: the grid of a patch stem, and one token a place."""
    model = make(stem="convolutions")
    with vitreous.taps(model, ["stem.layers.*", "embedding.tokens"]) as seen:
        model(images)
    assert [tuple(x.shape[1:]) for x in seen.values()] == [(8, 6, 8), (16, 3, 4), (13, 16)]
    layer = model.stem.layers[0]
    exactly(seen["stem.layers.0"], F.relu(layer.norm(F.conv2d(images, layer.conv.weight, stride=2, padding=1))))
    assert seen["stem.layers.0"].min() == 0
