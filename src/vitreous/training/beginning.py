"""What a training begins with: a new network, or weights with a new head; and what those are worth.

Where no weights were named, few colour images begin from the starter if its frozen features know something of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from vitreous.errors import ConfigError, VitreousError
from vitreous.images.imageset import TRAIN, ImageSet
from vitreous.models.catalog import build, parse
from vitreous.models.config import Size, ViTConfig, as_size
from vitreous.models.model import Model
from vitreous.ranks import Ranks, gather
from vitreous.training import policy, transfer
from vitreous.training.recipe import Recipe
from vitreous.training.transfer import Estimate
from vitreous.weights import starter
from vitreous.weights.loading import is_new, load, newest_run
from vitreous.weights.surgery import swap_head

__all__ = [
    "FEW",
    "Beginning",
    "Start",
    "begin",
    "choose_beginning",
    "name_of_network",
    "pool_of",
    "seen_before",
    "suited",
    "terms_of",
]

BETTER = "--weights timm:vit_tiny_patch16_224.augreg_in21k_ft_in1k"
FEW = 2_000  # images below which each is judged by a model that has not seen it


@dataclass(frozen=True, eq=False)
class Beginning:
    """weights: none is from scratch.  start: the network with them.  estimate: of its frozen features."""

    weights: str | None = None
    start: Model | None = None
    estimate: Estimate | None = None
    reasons: tuple[str, ...] = ()


@dataclass(eq=False)
class Start:
    """The network that a plan has read, for the training to begin with: one that is given away is held no longer."""

    model: Model | None = None

    def give(self) -> Model:
        assert self.model is not None
        given, self.model = self.model, None
        return given


def choose_beginning(
    weights: str | None,
    model: str | None,
    recipe: str | Recipe,
    data: ImageSet,
    overrides: dict[str, Any],
    pool: ImageSet,
    typical: Size,
    *,
    device: torch.device,
    ranks: Ranks,
    workers: int | None,
    progress: Callable[[int, int], None] | None,
) -> Beginning:
    """The weights that were named, or the starter where it is worth it; measured where the recipe follows from that.

    pool: the images to measure on.  typical: the size of a picture.
    """
    is_plain = data.labels.ndim == 1 and recipe == "auto"
    train = int((data.splits == TRAIN).sum())
    is_tried = weights is None and model is None and is_plain and starter.suits(train, data.channels)
    if weights == "none" or (weights is None and not is_tried):
        if "policy" in overrides:
            raise ConfigError("a policy says which layers of given weights train; give them: --weights MODEL")
        return Beginning()
    name = starter.word() if weights is None else _one_path(weights)
    _refuse_no_weights(name)
    if recipe != "auto":
        return Beginning(name)
    known = {field: value for field, value in overrides.items() if field in ("image_size", "seed")}
    if starter.is_meant(name):
        known.setdefault("image_size", starter.size_for(typical))
    sized = Recipe().change(**known)
    start = begin(name, None, sized, data, sized.image_size)
    policy.frozen(start, str(overrides.get("policy", "full")))  # one that means nothing is said before anything is read
    if not is_plain:
        return Beginning(name, start)
    estimate = _measured(start, pool, sized.seed, device, workers, progress, ranks)
    is_clear = starter.is_clear(estimate.right, estimate.images, estimate.chance)
    if is_tried and not is_clear and "policy" not in overrides:
        return Beginning(reasons=(f"the starter knows little of these images ({estimate}), so it is left out",))
    return Beginning(name, start, estimate, (_of_starter(),) if is_tried else ())


def _of_starter() -> str:
    """What nobody asked for is said, and how to have it otherwise."""
    better = f"; {BETTER} fetches weights that know more" if find_spec("huggingface_hub") else ""
    return (
        "no weights were named: begun from the starter, which comes with vitreous; --weights none is from scratch"
        + better
    )


def _refuse_no_weights(name: str) -> None:
    """A name of the catalog is a network that has learned nothing."""
    if is_new(name):
        parse(name)  # one that is no name at all is said so
        raise ConfigError(
            f"{name} is a network without weights; for one from scratch say --model '{name}', "
            "or name weights: a file, a run, hf:OWNER/NAME"
        )


def _one_path(weights: str) -> str:
    """`last` as the run it means now: another may end while this one trains."""
    return str(newest_run()) if weights == "last" and not Path(weights).exists() else weights


def pool_of(data: ImageSet, folds: int | None) -> ImageSet:
    """The images that are learned from: train; all where they are few and brought no test split."""
    is_made = (data.about.get("split") or {}).get("made")
    return data if is_made and (folds or (folds is None and len(data) < FEW)) else data.split(TRAIN)


def _measured(
    model: Model,
    pool: ImageSet,
    seed: int,
    device: torch.device,
    workers: int | None,
    progress: Callable[[int, int], None] | None,
    ranks: Ranks,
) -> Estimate:
    """What the weights are worth, by the first rank, which tells the others; they end where they were, in memory."""
    found: Estimate | VitreousError | None = None
    if ranks.is_first:
        try:
            found = transfer.measure(
                model.to(device), pool, seed=seed, device=device, workers=workers, progress=progress
            )
        except VitreousError as error:
            found = error
        model.to("cpu")
    if ranks.world > 1:
        found = gather(found)[0]
    if isinstance(found, VitreousError):
        raise found
    assert found is not None
    return found


def begin(weights: str | None, model: str | None, recipe: Recipe, data: ImageSet, size: int | Size | None) -> Model:
    """A network for these classes and sizes, with the recipe's dropout and bias."""
    classes, size = len(data.classes), None if size is None else as_size(size)
    if weights is not None:
        made = load(weights, classes=classes, image_size=size)
        if made.labels != tuple(data.classes):
            made = _with_new_head(made, classes)
    else:
        name = name_of_network(model, recipe)
        made = build(name, image_size=size, classes=classes, channels=data.channels, seed=recipe.seed)
    return suited(made, recipe)


def suited(made: Model, recipe: Recipe) -> Model:
    """With the recipe's dropout, and its first bias of the head."""
    if isinstance(made.config, ViTConfig):
        asked = {"dropout": recipe.dropout, "drop_path": recipe.drop_path}
        changes = {name: value for name, value in asked.items() if value is not None}
        if any(getattr(made.config.encoder, name) != value for name, value in changes.items()):
            made = _with(made, changes)
    if recipe.head_bias is not None and isinstance(made.head, torch.nn.Linear):
        torch.nn.init.constant_(made.head.bias, recipe.head_bias)
    return made


def name_of_network(model: str | None, recipe: Recipe) -> str:
    """The recipe's own, which holds the one asked for; or that alone."""
    name = recipe.model if recipe.model is not None else model
    if name is None:
        raise ConfigError(f"the recipe {recipe.name} names no network; give one: --model S/16")
    return name


def _with_new_head(model: Model, classes: int) -> Model:
    """Whatever it answered before, it answers these classes now, and nothing of them yet."""
    config, state = swap_head(model.config, model.state_dict(), classes)
    new = build(config, seed=0)
    new.load_state_dict(state)
    new.preprocess, new.source = model.preprocess, model.source
    return new


def terms_of(source: dict[str, Any]) -> tuple[str, ...]:
    """What was said of the pictures that the weights have learned from.  source: the model's."""
    return (f"terms of what the weights have learned from: {source['terms']}",) if source.get("terms") else ()


def seen_before(source: dict[str, Any], data: ImageSet, folds: int) -> tuple[str, ...]:
    """Weights of ours that have learned from these very images cannot be judged on them.  source: the model's."""
    if source.get("data") != data.content_id or (source.get("learned_from") != "all" and not folds):
        return ()
    return (
        "the weights have learned from these very images, so the number is of images they have seen and too high; "
        "for an honest one begin from weights that have not",
    )


def _with(model: Model, changes: dict[str, Any]) -> Model:
    """The same weights under another config, where that adds and takes no tensor."""
    new = build(model.config.change(**changes), seed=0)
    new.load_state_dict(model.state_dict())
    new.preprocess, new.labels, new.source = model.preprocess, model.labels, model.source
    return new
