"""From any folder to the right batches."""

from vitreous.images import preprocess

__all__ = ["preprocess"]
