"""`--recipe auto`: a recipe that suits the images, the weights and the machine, and why."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from vitreous.models.config import BiTConfig, Size, as_size
from vitreous.models.model import unwrapped
from vitreous.training import recipes
from vitreous.training.plan import estimate as estimates
from vitreous.training.plan.estimate import Estimate
from vitreous.training.recipe import Epochs, Recipe, Steps
from vitreous.training.recipes.given import Given
from vitreous.training.run import trainable_layers

MILD_AUGMENTATION_ABOVE = 200_000  # images above which a plain ViT needs no more than mild augmentation
LITTLE_AUGMENTATION_ABOVE = 5_000_000
DEV_LOOKS = 20  # at dev, while fine-tuning
MAX_EPOCHS = 100  # of fine-tuning
CPU_PEAK_LR = 0.01  # of P1's sweep; at 0.002, 80 steps of 32 left the training loss of DeiT-Ti on pets at 0.8
CPU_MAX_IMAGES_SHOWN = 50_000  # images that a CPU is asked to learn from, all epochs together
SOLVE_BELOW = 200  # images below which no layer is moved
NEARLY_ALL = 0.99  # share that frozen features get right, above which no layer need move
STEPS_HINT = "--steps 100 trains every layer from there, which takes minutes and may gain points"
FROM_SOLVED = "layer-decay"  # for steps from a solved head: 100 gained 1.7 points on new photos with the starter


@dataclass(frozen=True)
class RecipeChoice:
    """A recipe, and one or two lines that say why."""

    recipe: Recipe
    reasons: tuple[str, ...]

    def __str__(self) -> str:
        return "\n".join(self.reasons)


def choose(
    images: int,
    classes: int,
    image_size: int | Size,
    weights: nn.Module | None = None,
    device_kind: str = "cpu",
    several_labels: bool = False,
    *,
    model: str | None = None,
    asked: str | None = None,
    estimate: Estimate | None = None,
    may_solve: bool = True,
    has_room: bool = True,
    knows_classes: bool = False,
) -> RecipeChoice:
    """A recipe for this many training images of a typical size.

    weights: the network to start from.  device_kind: torch's word, cpu or cuda.  model: a catalog name that was asked
    for; weights bring their own.  asked: a policy.  estimate: what the weights' frozen features are worth.  may_solve:
    false if something was asked for that only steps can do.  has_room: whether a closed form fits into the memory.
    knows_classes: whether the weights have a head for these very classes, from which steps continue.
    """
    given = Given(images=images, classes=classes, image_size=as_size(image_size), model=model)
    on_cpu = device_kind == "cpu"
    if weights is None:
        choice = _from_scratch(given, on_cpu)
    else:
        has_room = has_room and not several_labels
        choice = _transferred(given, weights, on_cpu, asked, estimate, may_solve, has_room, knows_classes)
    if asked is not None:
        choice = RecipeChoice(choice.recipe.change(policy=asked), choice.reasons)
    if several_labels:
        recipe = choice.recipe.change(loss="sigmoid", smoothing=0.0)
        *first, last = choice.reasons
        return RecipeChoice(
            recipe, (*first, f"{last}; several labels an image: each class is judged by itself (sigmoid)")
        )
    return choice


def _from_scratch(given: Given, on_cpu: bool) -> RecipeChoice:
    if on_cpu:
        recipe = recipes.RECIPES["small-hybrid"](given)
        why = "on a CPU a few convolutions before few tokens learn most in minutes"
    elif given.images <= MILD_AUGMENTATION_ABOVE:
        recipe = recipes.RECIPES["small-data"](given)
        why = "so few need small patches, strong augmentation and many epochs"
    elif given.images < LITTLE_AUGMENTATION_ABOVE:
        recipe = recipes.RECIPES["plain-vit"](given)
        why = "enough for a plain ViT with mild augmentation"
    else:
        recipe = recipes.RECIPES["augreg"](given).change(length=Epochs(30))
        why = "so many need little augmentation and few epochs"
    facts = f"{_images(given)}, no weights to begin with: {recipe.name}; {why}"
    return RecipeChoice(recipe, (facts,) if given.model is not None else (facts, f"the network is {recipe.model}"))


def _transferred(
    given: Given,
    weights: nn.Module,
    on_cpu: bool,
    asked: str | None,
    estimate: Estimate | None,
    may_solve: bool,
    has_room: bool,
    knows_classes: bool,
) -> RecipeChoice:
    """What to do with weights, by what their frozen features are worth.

    frozen features are right on 99 %, or images are fewer than 200     solve the head, move nothing
    else on a GPU                                                       train every layer
    on a CPU, similar to what the weights have seen                     solve the head, move nothing
    on a CPU, different                                                 train what `trainable_layers.CASES` says
    a policy was asked for                                              that policy
    something was asked for that only steps can do                      train what `trainable_layers.CASES` says; where
                                                                        a head would be solved, every layer from there
    """
    first = () if estimate is None else (str(estimate),)
    begin = f"{_images(given)}, and weights to begin with"
    size = estimates.size(given.images, given.classes)

    def solved(why: str) -> RecipeChoice:
        recipe = recipes.RECIPES["linear-probe"](given)
        return RecipeChoice(recipe, (*first, f"{begin}: {recipe.name}; {why}"))

    def trained(why: str, change: str | None = None, *, from_solved: bool = False) -> RecipeChoice:
        recipe, how = _fine_tuned(given, weights, on_cpu)
        recipe = recipe if change is None else recipe.change(policy=change)
        if from_solved:
            recipe = recipe.change(first_head="solved")
            why = f"{why}; steps begin from the solved head"
        return RecipeChoice(recipe, (*first, f"{begin}: {recipe.name}, {how}" + (f"; {why}" if why else "")))

    may_solve = may_solve and has_room
    may_begin = has_room and not knows_classes and estimate is not None
    may_begin = may_begin and size == "small"  # reading a large set would be most of the work
    if asked == "head" and may_solve:
        return solved("the head alone was asked for, so it is solved in closed form")
    if estimate is None:
        return trained("" if asked is None else f"the policy {asked} was asked for")
    like = estimates.likeness(estimate)
    numbers = f"{estimate.above_chance:.2f} of the way from chance to certain, {estimates.SIMILAR_ABOVE} is the border"
    reason = None
    if given.images < SOLVE_BELOW:
        reason = f"fewer than {SOLVE_BELOW} are too few to move any layer"
    elif estimate.accuracy >= NEARLY_ALL:
        reason = f"frozen features are right on {100 * NEARLY_ALL:.0f} % already, so no layer need move"
    elif on_cpu and like == "similar":
        reason = f"{size} and similar ({numbers}), so the features stay and the head is solved"
        reason += f"; {STEPS_HINT}" * may_begin
    from_solved = may_begin and (reason is not None or asked == "head")
    if asked is not None:
        return trained(f"the policy {asked} was asked for", from_solved=from_solved)
    if reason is not None and may_solve:
        return solved(reason)
    facts = f"{size} and {like} ({numbers})"
    if not on_cpu:
        return trained(f"{facts}; a GPU has the time to move every layer", from_solved=from_solved)
    if from_solved:
        return trained(f"{facts}; steps were asked for: {FROM_SOLVED}", FROM_SOLVED, from_solved=True)
    case = trainable_layers.choose(size, like, weights)
    return trained(f"{facts}: {case.policy}, {case.why}", case.policy)


def _fine_tuned(given: Given, weights: nn.Module, on_cpu: bool) -> tuple[Recipe, str]:
    """Our recipe on a GPU; BiT's own rule for a BiT; else P1's, with fewer images shown, at the weights' own size."""
    is_bit = isinstance(unwrapped(weights).config, BiTConfig)
    if not on_cpu and not is_bit:
        return recipes.RECIPES["fine-tune"](given), "every layer, the lower ones more slowly"
    recipe = recipes.RECIPES["bit-hyperrule" if is_bit else "p1-finetune"](given).change(image_size=None)
    assert isinstance(recipe.length, Steps)
    batch = given.batch(32 if on_cpu else 512)
    shown = min(512 * recipe.length.count, MAX_EPOCHS * given.images)
    why = "as its paper does, at the size it was trained for"
    if on_cpu:
        shown = min(shown, max(3_000, min(10 * given.images, CPU_MAX_IMAGES_SHOWN)))
        why = "as its paper does, but on a CPU with fewer images shown"
        recipe = recipe.change(peak_lr=CPU_PEAK_LR)
    if batch != 512 or on_cpu:
        recipe = recipe.change(batch=batch, length=Steps(max(shown // batch, 20)), warmup=0.1)
    assert isinstance(recipe.length, Steps)
    epochs = recipe.length.count * recipe.batch / max(given.images, 1)
    return recipe.change(evaluate_every=max(epochs / DEV_LOOKS, min(1.0, epochs))), why


def _images(given: Given) -> str:
    rows, columns = given.image_size
    classes = f" in {given.classes:,} classes" if given.classes else ""
    return f"{given.images:,} images of {columns}x{rows} pixels{classes}"
