"""Tiny real models for files: every number in them is random, since a zero would hide a fault."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import vitreous
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
    image_size=(16, 16),
    embedding=EmbeddingConfig(patch=(4, 4)),
    encoder=EncoderConfig(width=16, depth=2, heads=2, mlp=24),
    readout=ReadoutConfig(classes=5),
)
BIT = BiTConfig(
    image_size=(32, 24), resnet=ResNetConfig(units=(1, 2), resnet_width=0.25), readout=BiTReadoutConfig(classes=5)
)


def awake(config: Any = VIT, *, seed: int = 0, **changes: Any) -> Any:
    """A model of this config whose every number is drawn at random."""
    model = vitreous.build(config, **changes).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(0.3 * torch.randn(parameter.shape, generator=generator))
        for module in model.modules():
            if isinstance(module, nn.LayerNorm | nn.GroupNorm | nn.BatchNorm1d):
                module.weight.add_(1)
    return model


def images(model: Any, batch: int = 2) -> Tensor:
    size = (batch, model.config.channels, *model.config.image_size)
    return torch.randn(size, generator=torch.Generator().manual_seed(7))


def answer(model: Any, x: Tensor | None = None) -> Tensor:
    with torch.inference_mode():
        return model(images(model) if x is None else x)


def assert_same_model(ours: Any, theirs: Any, x: Tensor | None = None) -> None:
    """Weights bit for bit, logits to rounding: where a tensor begins in memory chooses the kernel."""
    first, second = ours.state_dict(), theirs.state_dict()
    assert first.keys() == second.keys()
    for name, tensor in first.items():
        assert torch.equal(tensor, second[name]), name
    assert_same_answers(answer(ours, x), answer(theirs, x))


def assert_same_answers(ours: Tensor, theirs: Tensor) -> None:
    """Logits of equal weights by two calls: no further apart than float32 rounds."""
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5 * max(1.0, theirs.abs().max().item()))


def line_of(error: BaseException, *words: str | Path) -> str:
    """The one line that an error is, after a look that it has these words."""
    line = str(error)
    assert len(line.splitlines()) == 1, line
    assert line.isprintable(), line
    assert len(line) < 700, line
    for word in words:
        assert str(word) in line, f"{word!r} is not in: {line}"
    return line
