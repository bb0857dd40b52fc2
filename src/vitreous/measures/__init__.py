"""Inspections, each a pure function on arrays."""

from vitreous.measures.attention_map import attention_map
from vitreous.measures.rollout import rollout

__all__ = ["attention_map", "rollout"]
