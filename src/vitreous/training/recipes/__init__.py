"""Recipes by name: published ones, and ours.

To add one: a function of `Given` that returns a frozen `Recipe`, and a line in RECIPES (or an entry point in the group
`vitreous.recipes`). Its docstring is its entry in `vitreous fit --recipe list`: what it is, source, command, cost,
published result.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from vitreous.errors import ConfigError, nearest
from vitreous.models.config import Size, as_size
from vitreous.registry import Registry
from vitreous.training.recipe import Recipe
from vitreous.training.recipes import (
    augreg,
    bit,
    deit,
    deit3,
    fine_tune,
    linear_probe,
    masked_patches,
    paper,
    plain,
    small_data,
)
from vitreous.training.recipes.given import Given
from vitreous.words import one_line

__all__ = ["RECIPES", "Given", "RecipeRow", "check_name", "get", "rows"]

RECIPES: Registry[Callable[[Given], Recipe]] = Registry(
    "recipes",
    {
        "small-data": small_data.small_data,
        "small-hybrid": small_data.small_hybrid,
        "masked-patches": masked_patches.masked_patches,
        "linear-probe": linear_probe.linear_probe,
        "fine-tune": fine_tune.fine_tune,
        "p1-finetune": paper.finetune,
        "bit-hyperrule": bit.fine_tuning,
        "plain-vit": plain.plain_vit,
        "augreg": augreg.augreg,
        "deit": deit.deit,
        "deit-distilled": deit.distilled,
        "deit3": deit3.deit3,
        "deit3-finetune": deit3.higher_resolution,
        "p1-imagenet": paper.imagenet,
        "p1-imagenet21k": paper.imagenet21k,
        "p1-jft": paper.jft,
        "bit-pretrain": bit.pretraining,
    },
)


@dataclass(frozen=True)
class RecipeRow:
    """A line of `vitreous fit --recipe list`."""

    name: str
    source: str
    about: str


def get(
    name: str,
    *,
    images: int = Given.images,
    classes: int = Given.classes,
    image_size: int | Size = Given.image_size,
    model: str | None = None,
) -> Recipe:
    """A recipe by name, for this many training images of this size; `model` chooses the row of a paper's table."""
    check_name(name)
    return RECIPES[name](Given(images=images, classes=classes, image_size=as_size(image_size), model=model))


def check_name(name: str) -> None:
    if name not in RECIPES:
        near = ", ".join(nearest(name, RECIPES) or list(RECIPES)[:4])
        raise ConfigError(f"no recipe is called {name!r}; near: {near} (all: vitreous fit --recipe list)")


def rows() -> list[RecipeRow]:
    """Every recipe: name, source, what it is in one line."""
    return [
        RecipeRow(name, _source(make), (make.__doc__ or name).splitlines()[0].rstrip("."))
        for name, make in RECIPES.items()
    ]


def _source(make: Callable[[Given], Recipe]) -> str:
    """Where a recipe comes from; one from another package may fail without hiding the others."""
    try:
        return make(Given()).source
    except Exception as error:
        return f"fails: {one_line(error)}"
