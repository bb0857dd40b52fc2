"""`--recipe auto`: a recipe that suits the pictures, the weights and the machine, and why."""

from __future__ import annotations

from dataclasses import dataclass

from vitreous.models.config import Size, as_size
from vitreous.training import recipes
from vitreous.training.recipe import Epochs, Recipe, Steps
from vitreous.training.recipes.given import Given

__all__ = ["Choice", "choose"]

SCRATCH = 200_000  # pictures above which a plain ViT needs no more than mild augmentation
LARGE = 5_000_000
LOOKS = 20  # at dev, while fine-tuning
MOST_EPOCHS = 100  # of fine-tuning
CPU_RATE = 0.01  # of P1's sweep; at 0.002, 80 steps of 32 left the training loss of DeiT-Ti on pets at 0.8
CPU_SHOWN = 50_000  # pictures that a CPU is asked to learn from, all epochs together


@dataclass(frozen=True)
class Choice:
    """A recipe, and in one or two lines why it."""

    recipe: Recipe
    reasons: tuple[str, ...]

    def __str__(self) -> str:
        return "\n".join(self.reasons)


def choose(
    images: int,
    classes: int,
    image_size: int | Size,
    weights_given: bool = False,
    device_kind: str = "cpu",
    several_labels: bool = False,
    *,
    family: str = "vit",
    model: str | None = None,
) -> Choice:
    """A recipe for so many training pictures of a typical size.

    device_kind: torch's word, cpu or cuda.  family: vit or bit, of the weights.  model: a catalog name that was asked
    for; weights bring their own.
    """
    given = Given(images=images, classes=classes, image_size=as_size(image_size), model=model)
    on_cpu = device_kind == "cpu"
    choice = _fine_tuned(given, family, on_cpu) if weights_given else _from_scratch(given, on_cpu)
    if several_labels:
        recipe = choice.recipe.change(loss="sigmoid", smoothing=0.0)
        *first, last = choice.reasons
        return Choice(recipe, (*first, f"{last}; several labels a picture: each class is judged by itself (sigmoid)"))
    return choice


def _from_scratch(given: Given, on_cpu: bool) -> Choice:
    if on_cpu:
        recipe = recipes.RECIPES["small-hybrid"](given)
        why = "on a CPU a few convolutions before few tokens learn most in minutes"
    elif given.images <= SCRATCH:
        recipe = recipes.RECIPES["small-data"](given)
        why = "so few need small patches, strong augmentation and many epochs"
    elif given.images < LARGE:
        recipe = recipes.RECIPES["plain-vit"](given)
        why = "enough for a plain ViT with mild augmentation"
    else:
        recipe = recipes.RECIPES["augreg"](given).change(length=Epochs(30))
        why = "so many need little augmentation and few epochs"
    facts = f"{_pictures(given)}, no weights to begin with: {recipe.name}; {why}"
    return Choice(recipe, (facts,) if given.model is not None else (facts, f"the network is {recipe.model}"))


def _fine_tuned(given: Given, family: str, on_cpu: bool) -> Choice:
    """P1's fine-tuning or BiT's, at the size the weights were made for; few pictures, or a CPU, are shown fewer."""
    recipe = recipes.RECIPES["bit-hyperrule" if family == "bit" else "p1-finetune"](given).change(image_size=None)
    assert isinstance(recipe.length, Steps)
    batch = given.batch(32 if on_cpu else 512)
    shown = min(512 * recipe.length.count, MOST_EPOCHS * given.images)
    why = "fine-tuned as its paper does, at the size it was trained for"
    if on_cpu:
        shown = min(shown, max(3_000, min(10 * given.images, CPU_SHOWN)))
        why = "fine-tuned as its paper does, but on a CPU with fewer pictures shown"
        recipe = recipe.change(peak_lr=CPU_RATE)
    if batch != 512 or on_cpu:
        recipe = recipe.change(batch=batch, length=Steps(max(shown // batch, 20)), warmup=0.1)
    assert isinstance(recipe.length, Steps)
    epochs = recipe.length.count * recipe.batch / max(given.images, 1)
    recipe = recipe.change(evaluate_every=max(epochs / LOOKS, min(1.0, epochs)))
    facts = f"{_pictures(given)}, and weights to begin with: {recipe.name}; {why}"
    return Choice(recipe, (facts,))


def _pictures(given: Given) -> str:
    rows, columns = given.image_size
    classes = f" in {given.classes:,} classes" if given.classes else ""
    return f"{given.images:,} pictures of {columns}x{rows} pixels{classes}"
