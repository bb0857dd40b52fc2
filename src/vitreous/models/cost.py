"""Multiply-accumulates of one image's forward pass: products of matrices and convolutions, as the papers count.

For a plain ViT: depth · (4 L D² + 2 L² D + 2 L D M) + N · C P² · D + D · K, with L tokens, N of them patches.
"""

from __future__ import annotations

from functools import lru_cache

import torch
from torch.utils.flop_counter import FlopCounterMode

from vitreous.models.config import Config


@lru_cache(maxsize=256)
def macs(config: Config) -> int:
    """Half of torch's own FLOP count for a forward pass on the meta device, so no part of a model is missed."""
    from vitreous.models.catalog import blueprint  # imported here: catalog imports this module

    image = torch.empty(1, config.channels, *config.image_size, device="meta")
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        blueprint(config).eval().to("meta")(image)  # positions keep their waves on the CPU
    return int(counter.get_total_flops()) // 2


def training_flops(config: Config) -> int:
    """FLOP to train on one image: two per multiply-add, once forward and twice backward."""
    return 6 * macs(config)
