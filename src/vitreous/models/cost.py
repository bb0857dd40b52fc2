"""Multiply-accumulates of one image's forward pass: products of matrices and convolutions, as the papers count.

For a plain ViT: depth · (4 L D² + 2 L² D + 2 L D M) + N · C P² · D + D · K, with L tokens of which N are patches.
"""

from __future__ import annotations

from itertools import pairwise

from vitreous.models.config import BiTConfig, Config, ResNetConfig, Size, ViTConfig
from vitreous.models.convolutions import halved, root_width
from vitreous.models.hybrid import make_stem
from vitreous.models.layers import HALVES
from vitreous.models.pooling import POOLS


def macs(config: Config) -> int:
    if isinstance(config, BiTConfig):
        total, _, channels = resnet_macs(config.resnet, config.channels, config.image_size)
        return total + channels * config.readout.classes
    return vit_macs(config)


def vit_macs(config: ViTConfig) -> int:
    e, r = config.encoder, config.readout
    stem, stem_macs = make_stem(config), 0
    if config.embedding.stem == "resnet":
        stem_macs, _, _ = resnet_macs(config.resnet, config.channels, config.image_size)
    elif config.embedding.stem == "convolutions":
        stem_macs = convolution_stem_macs(config)
    rows, columns = stem.grid(config.image_size)
    n = rows * columns
    tokens, d, m = n + config.prefix, e.width, e.mlp
    patches = n * stem.channels * stem.patch[0] * stem.patch[1] * d
    relative = tokens * (2 * tokens - 1) * d if config.embedding.positions == "relative" else 0
    mlp = (1 + HALVES.get(e.activation, 1)) * tokens * d * m
    blocks = e.depth * (4 * tokens * d * d + 2 * tokens * tokens * d + relative + mlp)
    pooled = POOLS[r.pool].width(config)
    probe = 2 * d * d + 2 * n * d * d + 2 * n * d + 2 * d * m if r.pool == "map" else 0
    hidden = pooled * r.representation
    return stem_macs + patches + blocks + probe + hidden + (r.representation or pooled) * r.classes


def convolution_stem_macs(config: ViTConfig) -> int:
    (h, w), total = config.image_size, 0
    steps = config.embedding.patch[0].bit_length() - 1
    widths = [config.channels, *(config.encoder.width // 2 ** (steps - 1 - i) for i in range(steps))]
    for before, after in pairwise(widths):
        h, w = halved(h), halved(w)
        total += h * w * 9 * before * after
    return total


def resnet_macs(config: ResNetConfig, channels: int, size: Size) -> tuple[int, Size, int]:
    """Root and stages; also the size and channels of the map that comes out."""
    width = root_width(config)
    h, w = size
    if config.root == "small":
        total = h * w * 9 * channels * width
    else:
        h, w = halved(h), halved(w)
        total = h * w * 49 * channels * width
        h, w = halved(h), halved(w)
    now = width
    for i, units in enumerate(config.units):
        middle = width * 2**i
        for unit in range(units):
            before = h * w
            if i > 0 and unit == 0:
                h, w = halved(h), halved(w)
            after = h * w
            total += before * now * middle + after * 9 * middle * middle + after * middle * 4 * middle
            if unit == 0:
                total += after * now * 4 * middle  # the shortcut
            now = 4 * middle
    return total, (h, w), now
