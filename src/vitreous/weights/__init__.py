"""Everyone's checkpoints to ours and back."""

from vitreous.weights import checkpoint, formats, hub, loading, saving, surgery

__all__ = ["checkpoint", "formats", "hub", "loading", "saving", "surgery"]
