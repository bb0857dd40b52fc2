"""Pages and figures; knows nothing of what is reported."""

from vitreous.report import figures

__all__ = ["figures"]
