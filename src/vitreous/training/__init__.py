"""From images to a trained model with a report."""

from vitreous.training import demo

__all__ = ["demo"]
