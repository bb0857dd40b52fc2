"""The network that training begins with: a new one, or given weights with a new head.

The weights are a word that `vitreous.load` takes, or a network in memory. The run folder keeps the latter.
"""

from __future__ import annotations

import copy
import json
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from vitreous.errors import ConfigError, RunError
from vitreous.files import digest
from vitreous.images.imageset import ImageSet
from vitreous.models.catalog import build
from vitreous.models.config import Config, Size, ViTConfig, as_size
from vitreous.models.model import Model, unwrapped
from vitreous.training.recipe import Recipe
from vitreous.weights.load_model import assemble, load
from vitreous.weights.own_format import Usage, tensor_digest
from vitreous.weights.surgery import resize_images, swap_head

if TYPE_CHECKING:
    from vitreous.training.plan.plan import Plan

Weights = str | Model


@dataclass(eq=False)
class Start:
    """The network that the plan has read. Training takes it, and this object releases it."""

    model: Model | None = None

    def take(self) -> Model:
        assert self.model is not None
        taken, self.model = self.model, None
        return taken


def in_memory(model: Any, weights: Any) -> Model | None:
    """The network given as `model=` or `weights=`; None for a word. Anything else is refused."""
    for name, value in (("model", model), ("weights", weights)):
        if isinstance(value, torch.nn.Module):
            return unwrapped(value)
        if value is not None and not isinstance(value, str if name == "model" else str | os.PathLike):
            raise ConfigError(f"{name}={value!r} is not a model; give a name, a file, or what vitreous.build returns")
    return None


def fingerprint(model: Model) -> str:
    """A word for a network in memory, the same for the same config and weights."""
    tensors = {name: tensor_digest(tensor.detach().cpu()) for name, tensor in model.state_dict().items()}
    text = json.dumps([model.config.to_json(), tensors], sort_keys=True)
    return f"given {digest(text.encode())[:16]}"


def described(model: Model) -> str:
    """A network in memory, for people: what it is, and where its weights come from if it knows."""
    source = model.source.get("path") or model.source.get("made_by")
    kind = type(model).__name__
    if isinstance(model.config, ViTConfig):
        e = model.config.encoder
        kind = f"{kind} of {e.depth} blocks and width {e.width}"
    return f"{kind} ({source})" if source else kind


def start_model(plan: Plan, device: torch.device, *, again: bool = False) -> Model:
    """The network before its first step, on the device.  again: another training begins with it, so keep a copy."""
    if plan.start.model is None:
        plan.start.model = make_network(plan.weights, plan.model, plan.recipe, plan.data, plan.config.image_size)
    model = copy.deepcopy(plan.start.model) if again else plan.start.take()
    if model.config != plan.config:
        raise RunError("the weights changed since the run began; start a new run")
    model.preprocess, model.labels = plan.preprocess, plan.data.classes or None
    model.answers = "several" if plan.data.has_many_labels else "one"
    model.familiarity = model.threshold = model.track_record = None  # of what it learned before
    return model.to(device)


def make_network(
    weights: Weights | None, model: str | None, recipe: Recipe, data: ImageSet, size: int | Size | None
) -> Model:
    """A network for these classes and this size, with the recipe's dropout and initial bias."""
    classes, size = len(data.classes), None if size is None else as_size(size)
    if weights is not None:
        if isinstance(weights, Model):
            made = _copied(weights, classes, size)
        else:
            made = load(weights, classes=classes, image_size=size)
        if made.labels != tuple(data.classes):
            made = _rebuilt(made, *swap_head(made.config, made.state_dict(), classes))
    else:
        name = network_name(model, recipe)
        made = build(name, image_size=size, classes=classes, channels=data.channels, seed=recipe.seed)
    return with_recipe(made, recipe)


def _copied(given: Model, classes: int, size: Size | None) -> Model:
    """A copy of a network in memory for these classes and this size, as `load` makes of its file."""
    config = given.config
    state = {name: tensor.detach().to("cpu", copy=True) for name, tensor in given.state_dict().items()}
    state = {name: tensor.float() if tensor.is_floating_point() else tensor for name, tensor in state.items()}
    usage = Usage(given.preprocess, given.labels, given.temperature, given.threshold, given.answers, given.familiarity)
    if size is not None and size != config.image_size:
        config, state = resize_images(config, state, size)
    if classes != config.readout.classes:
        config, state = swap_head(config, state, classes)
        usage = usage.for_new_head()
    made = assemble(config, state)
    usage.give(made)
    made.source = given.source
    return made


def network_name(model: str | None, recipe: Recipe) -> str:
    """The catalog name: the recipe's, else the one the user asked for."""
    name = recipe.model if recipe.model is not None else model
    if name is None:
        raise ConfigError(f"the recipe {recipe.name} names no network; give one: --model S/16")
    return name


def with_recipe(made: Model, recipe: Recipe) -> Model:
    """The network with the recipe's dropout and the recipe's initial bias of the head."""
    if isinstance(made.config, ViTConfig):
        asked = {"dropout": recipe.dropout, "drop_path": recipe.drop_path}
        changes = {name: value for name, value in asked.items() if value is not None}
        if any(getattr(made.config.encoder, name) != value for name, value in changes.items()):
            labels = made.labels
            made = _rebuilt(made, made.config.change(**changes), made.state_dict())
            made.labels = labels
    if recipe.head_bias is not None and isinstance(made.head, torch.nn.Linear):
        torch.nn.init.constant_(made.head.bias, recipe.head_bias)
    return made


def _rebuilt(model: Model, config: Config, state: dict[str, torch.Tensor]) -> Model:
    """A network of this config with this state, used as `model` is; its classes have no names yet."""
    new = build(config, seed=0)
    new.load_state_dict(state)
    new.preprocess, new.source = model.preprocess, model.source
    return new
