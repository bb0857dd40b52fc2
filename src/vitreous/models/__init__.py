"""Networks as functions of a frozen config."""

from vitreous.models import bit, catalog, config, cost, hybrid, pooling, positions, preprocess, taps, vit

__all__ = ["bit", "catalog", "config", "cost", "hybrid", "pooling", "positions", "preprocess", "taps", "vit"]
