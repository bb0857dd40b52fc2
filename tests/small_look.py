"""A look at two tiny models, made once for the tests of what people see of it."""

from functools import cache

from picture_sets import arrays
from tiny_models import BIT, VIT, awake

import vitreous
from vitreous.measures.inspection import Inspection


@cache
def pair() -> Inspection:
    """A ViT with registers against a BiT: every measure but the change of embeddings."""
    vit = awake(VIT.change(registers=2, depth=3, heads=4), classes=3)
    return vitreous.look(vit, arrays(24, side=16, test=8), against=awake(BIT, image_size=16), batch=8)
