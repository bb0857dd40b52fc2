"""First values: those of the released code (METHODS A1, column "official")."""

import math

import pytest
import torch
from torch import nn

from vitreous.models.catalog import build
from vitreous.models.config import BiTConfig, BiTReadoutConfig, ResNetConfig
from vitreous.models.layers import lecun


@pytest.fixture(scope="module")
def model():
    return build(
        "Ti/16", image_size=64, seed=0, representation=192, registers=4, classes=10, depth=3, distillation_token=True
    )


def is_uniform(weight, bound):
    """Inside ±bound, reaching it, with a uniform's variance bound²/3."""
    assert weight.abs().max() <= bound
    assert weight.abs().max() > 0.999 * bound
    assert weight.var().item() == pytest.approx(bound**2 / 3, rel=0.03)
    assert weight.mean().item() == pytest.approx(0, abs=0.01 * bound)


def is_lecun(weight, fan_in):
    """A normal cut at two of its deviations whose variance, after the cut, is 1 / fan_in."""
    assert weight.var().item() == pytest.approx(1 / fan_in, rel=0.03)
    cut = 2 * math.sqrt(1 / fan_in) / 0.87962566103423978
    assert 0.99 * cut < weight.abs().max() <= cut * (1 + 1e-6)


def test_projection_and_representation_are_lecun_normal(model):
    is_lecun(model.embedding.projection.weight, 768)
    is_lecun(model.representation.linear.weight, 192)
    assert not model.embedding.projection.bias.any()
    assert not model.representation.linear.bias.any()


def test_lecun_is_a_normal_that_was_cut():
    """Not a uniform: the share within one deviation of the uncut normal is 0.6827 / 0.9545."""
    weight = torch.empty(400, 500)
    lecun(weight, 500)
    is_lecun(weight, 500)
    sigma = math.sqrt(1 / 500) / 0.87962566103423978
    assert (weight.abs() < sigma).float().mean().item() == pytest.approx(0.6827 / 0.9545, abs=0.005)


def test_queries_keys_and_values_are_xavier_each_by_itself(model):
    """±√(6 / 2D) on each D × D, not on the three stacked: that would be √2 smaller."""
    for block in model.blocks:
        for weight in block.attention.qkv.weight.chunk(3):
            is_uniform(weight, math.sqrt(6 / (2 * 192)))
        is_uniform(block.attention.merge.weight, math.sqrt(6 / (2 * 192)))
        assert not block.attention.qkv.bias.any()
        assert not block.attention.merge.bias.any()


def test_the_mlp_is_xavier_with_biases_of_a_millionth(model):
    for block in model.blocks:
        for layer in (block.mlp.expand, block.mlp.contract):
            is_uniform(layer.weight, math.sqrt(6 / (192 + 768)))
            assert layer.bias.std().item() == pytest.approx(1e-6, rel=0.2)
            assert layer.bias.mean().item() == pytest.approx(0, abs=3e-7)


def test_a_gated_mlp_is_xavier_on_each_half(vit_config):
    mlp = build(vit_config.change(width=64, mlp=96, activation="swiglu"), seed=0).blocks[0].mlp
    for half in mlp.expand.weight.chunk(2):
        is_uniform(half, math.sqrt(6 / (64 + 96)))


def test_tokens_start_at_zero_but_registers_differ(model):
    assert not model.embedding.class_token.any()
    assert not model.embedding.distillation_token.any()
    assert model.embedding.registers.std().item() == pytest.approx(0.02, rel=0.1)


def test_norms_start_as_the_plain_norm_and_heads_at_zero(model):
    for norm in (m for m in model.modules() if isinstance(m, nn.LayerNorm)):
        assert (norm.weight == 1).all()
        assert not norm.bias.any()
    assert not model.head.weight.any()
    assert not model.head.bias.any()


def test_two_heads_start_at_zero(vit_config):
    heads = build(vit_config.change(distillation_token=True, pool="cls-and-distillation", distillation_head=True)).head
    assert not any(p.any() for p in heads.parameters())


def test_the_attention_pool_starts_as_big_visions():
    """Probe ±√(6 / (1 + D)); keys and values Xavier each by itself."""
    pool = build("Ti/16", image_size=32, seed=0, pool="map", depth=1).pool
    bound = math.sqrt(6 / (1 + 192))
    assert 0.9 * bound < pool.probe.abs().max() <= bound
    assert pool.probe.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.1)
    for weight in (pool.query.weight, pool.merge.weight, *pool.key_value.weight.chunk(2)):
        is_uniform(weight, math.sqrt(6 / (2 * 192)))
    for layer in (pool.expand, pool.contract):
        is_uniform(layer.weight, math.sqrt(6 / (192 + 768)))
        assert layer.bias.std().item() == pytest.approx(1e-6, rel=0.2)


def test_layer_scale_starts_at_its_value(vit_config):
    model = build(vit_config.change(layer_scale=1e-5))
    for block in model.blocks:
        assert torch.equal(block.attention.end.scale.gain, torch.full((16,), 1e-5))


def test_bit_kernels_are_lecun_normal():
    model = build(BiTConfig(resnet=ResNetConfig(units=(1, 1)), readout=BiTReadoutConfig(classes=3)), seed=0)
    for unit in (stage.units[0] for stage in model.stages):
        is_lecun(unit.conv2.weight, unit.conv2.weight[0].numel())
        assert (unit.norm3.weight == 1).all()
    assert not model.head.weight.any()


def test_only_the_last_gain_of_a_hybrids_unit_starts_at_zero(vit_config):
    model = build(vit_config.change(stem="resnet", patch=1, image_size=32))
    zero = [name for name, m in model.named_modules() if isinstance(m, nn.GroupNorm) and not m.weight.any()]
    assert zero == ["stem.stages.0.units.0.norm3", "stem.stages.1.units.0.norm3"]


def test_no_number_is_left_as_memory_had_it(vit_config, bit_config):
    """Two builds of one seed agree bit by bit, whatever the options: nothing stays unset."""
    for config in [
        vit_config.change(registers=2, layer_scale=0.1, qk_norm=True, norm_kind="batch", representation=8),
        vit_config.change(positions="relative", pool="map", distillation_token=True, class_token=True),
        vit_config.change(positions="learned-2d", positions_at="every-layer", stem="convolutions"),
        vit_config.change(stem="resnet", patch=1, image_size=32, norm_before_blocks=True, pool_order="mean-first"),
        bit_config,
    ]:
        one, other = (build(config, seed=3).state_dict() for _ in range(2))
        for name in one:
            assert torch.equal(one[name], other[name]), name
            assert torch.isfinite(one[name]).all(), name
