"""What a training begins with: a new network, or weights with a new head; and what those are worth.

Where no weights were named, few colour images begin from the starter if its frozen features know something of them.
A network in memory (`model=` or `weights=` a Model) begins like one of a file; the run's folder keeps it until its end.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from vitreous.errors import ConfigError, VitreousError
from vitreous.files import digest
from vitreous.images.imageset import TRAIN, ImageSet
from vitreous.models.catalog import build, parse
from vitreous.models.config import Size, ViTConfig, as_size
from vitreous.models.model import Model, unwrapped
from vitreous.ranks import Ranks, gather
from vitreous.training.plan import estimate as estimates
from vitreous.training.plan.estimate import Estimate
from vitreous.training.recipe import Recipe
from vitreous.training.run import trainable_layers
from vitreous.weights import starter
from vitreous.weights.load_model import assemble, is_new, load, newest_run
from vitreous.weights.own_format import Usage, tensor_digest
from vitreous.weights.surgery import resize_images, swap_head

__all__ = [
    "FEW",
    "Beginning",
    "Start",
    "Weights",
    "begin",
    "choose_beginning",
    "described",
    "fingerprint",
    "in_memory",
    "name_of_network",
    "pool_of",
    "seen_before",
    "suited",
    "terms_of",
]

BETTER = "--weights timm:vit_tiny_patch16_224.augreg_in21k_ft_in1k"
FEW = 2_000  # images below which each is judged by a model that has not seen it


Weights = str | Model  # a word that `vitreous.load` takes, or a network in memory


@dataclass(frozen=True, eq=False)
class Beginning:
    """weights: none is from scratch.  start: the network with them.  estimate: of its frozen features."""

    weights: Weights | None = None
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


def in_memory(model: Any, weights: Any) -> Model | None:
    """The network that `model=` or `weights=` is, where it is no word; anything else is refused."""
    for name, value in (("model", model), ("weights", weights)):
        if isinstance(value, torch.nn.Module):
            return unwrapped(value)
        if value is not None and not isinstance(value, str if name == "model" else str | os.PathLike):
            raise ConfigError(f"{name}={value!r} is no model; give a name, a file, or what vitreous.build returns")
    return None


def fingerprint(model: Model) -> str:
    """A word for a network in memory: the same for the same config and weights."""
    tensors = {name: tensor_digest(tensor.detach().cpu()) for name, tensor in model.state_dict().items()}
    text = json.dumps([model.config.to_json(), tensors], sort_keys=True)
    return f"given {digest(text.encode())[:16]}"


def described(model: Model) -> str:
    """A network in memory, for people: what it is, and whence its weights where it knows."""
    source = model.source.get("path") or model.source.get("made_by")
    kind = type(model).__name__
    if isinstance(model.config, ViTConfig):
        e = model.config.encoder
        kind = f"{kind} of {e.depth} blocks and width {e.width}"
    return f"{kind} ({source})" if source else kind


def choose_beginning(
    weights: Weights | None,
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
    as_new: bool = False,
) -> Beginning:
    """The weights that were named, or the starter where it is worth it; measured where the recipe follows from that.

    pool: the images to measure on.  typical: the size of a picture.  as_new: train them as those
    of a new network are.
    """
    if as_new:
        return Beginning(weights)
    is_plain = data.labels.ndim == 1 and recipe == "auto"
    train = int((data.splits == TRAIN).sum())
    is_tried = weights is None and model is None and is_plain and starter.suits(train, data.channels)
    if weights == "none" or (weights is None and not is_tried):
        if "policy" in overrides:
            raise ConfigError("a policy says which layers of given weights train; give them: --weights MODEL")
        return Beginning()
    name = starter.word() if weights is None else _one_path(weights) if isinstance(weights, str) else weights
    if isinstance(name, str):
        _refuse_no_weights(name)
    if recipe != "auto":
        return Beginning(name)
    known = {field: value for field, value in overrides.items() if field in ("image_size", "seed")}
    if isinstance(name, str) and starter.is_meant(name):
        known.setdefault("image_size", starter.size_for(typical))
    sized = Recipe().change(**known)
    start = begin(name, None, sized, data, sized.image_size)
    trainable_layers.frozen(
        start, str(overrides.get("policy", "full"))
    )  # one that means nothing is said before anything is read
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
            found = estimates.measure(
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


def begin(weights: Weights | None, model: str | None, recipe: Recipe, data: ImageSet, size: int | Size | None) -> Model:
    """A network for these classes and sizes, with the recipe's dropout and bias."""
    classes, size = len(data.classes), None if size is None else as_size(size)
    if weights is not None:
        made = (
            load(weights, classes=classes, image_size=size)
            if isinstance(weights, str)
            else _copied(weights, classes, size)
        )
        if made.labels != tuple(data.classes):
            made = _with_new_head(made, classes)
    else:
        name = name_of_network(model, recipe)
        made = build(name, image_size=size, classes=classes, channels=data.channels, seed=recipe.seed)
    return suited(made, recipe)


def _copied(given: Model, classes: int, size: Size | None) -> Model:
    """A copy of a network in memory, for so many classes and pixels: what `load` makes of its file."""
    config = given.config
    state = {name: tensor.detach().to("cpu", copy=True) for name, tensor in given.state_dict().items()}
    state = {name: tensor.float() if tensor.is_floating_point() else tensor for name, tensor in state.items()}
    usage = Usage(given.preprocess, given.labels, given.temperature, given.threshold, given.answers)
    if size is not None and size != config.image_size:
        config, state = resize_images(config, state, size)
    if classes != config.readout.classes:
        config, state = swap_head(config, state, classes)
        usage = usage.for_new_head()
    made = assemble(config, state)
    usage.give(made)
    made.source = given.source
    return made


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
