"""Inspections, each a pure function on arrays."""

from vitreous.measures.attention_map import attention_map

__all__ = ["attention_map"]
