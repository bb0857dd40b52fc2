"""Multiply-accumulates of one image's forward pass: products of matrices and convolutions, as the papers count.

For a plain ViT: depth · (4 L D² + 2 L² D + 2 L D M) + N · C P² · D + D · K, with L tokens of which N are patches.
"""

from __future__ import annotations

from functools import lru_cache

import torch
from torch.utils.flop_counter import FlopCounterMode

from vitreous.models.config import Config


@lru_cache(maxsize=256)
def macs(config: Config) -> int:
    """Half the operations that torch counts in a forward pass without memory; nothing in a model can be forgotten."""
    from vitreous.models.catalog import blueprint  # which lists what we count

    image = torch.empty(1, config.channels, *config.image_size, device="meta")
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        blueprint(config).eval()(image)
    return int(counter.get_total_flops()) // 2


def training_flops(config: Config) -> int:
    """FLOP of one image in training: two for each multiply-add, once forward and twice backward."""
    return 6 * macs(config)
