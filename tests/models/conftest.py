"""Tiny real models. Every number in them is drawn at random: a zero head or a zero table would hide a fault."""

import pytest
import torch
from torch import nn

from vitreous.models.catalog import build
from vitreous.models.config import (
    BiTConfig,
    BiTReadoutConfig,
    EmbeddingConfig,
    EncoderConfig,
    ReadoutConfig,
    ResNetConfig,
    ViTConfig,
)

VIT = ViTConfig(
    image_size=(12, 16),  # a grid of 3 x 4: rows and columns cannot be mixed up
    embedding=EmbeddingConfig(patch=(4, 4)),
    encoder=EncoderConfig(width=16, depth=2, heads=2, mlp=24),
    readout=ReadoutConfig(classes=5),
).change(units=(1, 1), resnet_width=0.25)
BIT = BiTConfig(
    image_size=(32, 24), resnet=ResNetConfig(units=(1, 2), resnet_width=0.25), readout=BiTReadoutConfig(classes=5)
)


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


@pytest.fixture
def vit_config():
    return VIT


@pytest.fixture
def bit_config():
    return BIT


def wake(model: nn.Module) -> nn.Module:
    """Random numbers everywhere, float64, evaluation."""
    generator = torch.Generator().manual_seed(1)
    model = model.double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(0.3 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
        for module in model.modules():
            if isinstance(module, nn.LayerNorm | nn.GroupNorm | nn.BatchNorm1d):
                module.weight += 1
    return model


@pytest.fixture
def make():
    """make(positions="none"): a tiny ViT with these options; make(BIT): a tiny BiT. Awake."""

    def make(config=VIT, **changes):
        return wake(build(config.change(**changes)))

    return make


@pytest.fixture
def vit(make):
    """12 x 16 images in patches of 4, 12 patches and a class token, width 16, 2 blocks, 2 heads, 5 classes; float64."""
    return make()


@pytest.fixture
def hybrid(make):
    """A ResNet of two stages in front: 32 x 24 images become a map of 4 x 3."""
    return make(stem="resnet", patch=1, image_size=(32, 24))


@pytest.fixture
def bit(make):
    return make(BIT)


@pytest.fixture
def images():
    return torch.randn(2, 3, 12, 16, dtype=torch.float64)
