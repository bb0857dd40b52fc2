"""Pages and figures; knows nothing of what is reported."""

from vitreous.report import colours

__all__ = ["colours"]
