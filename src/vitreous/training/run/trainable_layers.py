"""Which layers of a pre-trained network are trained, and at what rate.

    head          the classifier alone; everything else stays, bit for bit
    last-K        the last K blocks (of a ResNet: stages) too, at a tenth of the recipe's rate
    all           every layer, at a tenth; the new head at the recipe's rate
    layer-decay   every layer, each at 0.75 of the rate of the one above it
    full          every layer at the recipe's rate

Which one suits depends on how much data there is and how like it is to what the network has seen (`CASES`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from torch import nn

from vitreous.errors import ConfigError
from vitreous.models.config import BiTConfig
from vitreous.models.model import unwrapped
from vitreous.training.recipe import Recipe
from vitreous.training.run.optimizers import layers, named_parameters

POLICIES = ("head", "last-K", "all", "layer-decay", "full")
LOWER_LAYERS_RATE = 0.1
DECAY_PER_LAYER = 0.75


@dataclass(frozen=True)
class LayerChoice:
    """A policy for one of the four cases: the share of blocks left alone, and why.

    The recipe decides augmentation: every recipe that trains draws crops and flips, for few images and for many.
    """

    policy: str
    frozen_share: float
    why: str


CASES: dict[tuple[str, str], LayerChoice] = {
    ("large", "different"): LayerChoice("all", 0.0, "enough images to move every layer, and reason to"),
    ("large", "similar"): LayerChoice("last", 0.25, "the first layers already see what these images need"),
    ("small", "different"): LayerChoice("last", 0.5, "too few images to move every layer, so the lower half stays"),
    ("small", "similar"): LayerChoice("head", 1.0, "too few images to move anything, and no need to"),
}


def choose(size: str, likeness: str, model: nn.Module) -> LayerChoice:
    """The policy for data that are large or small, similar or different, with K counted for this network."""
    if (size, likeness) not in CASES:
        raise ConfigError(
            f"no case is {size!r} and {likeness!r}; size is large or small, likeness similar or different"
        )
    case = CASES[size, likeness]
    if case.policy != "last":
        return case
    blocks = _blocks(model)
    return LayerChoice(f"last-{blocks - int(blocks * case.frozen_share)}", case.frozen_share, case.why)


def apply(model: nn.Module, recipe: Recipe) -> Recipe:
    """Freeze what the recipe's policy leaves alone; returns the recipe with the rates that the policy means."""
    names = frozen(model, recipe.policy)
    for name, parameter in named_parameters(model):
        parameter.requires_grad_(name not in names)
    _keep_statistics(model)
    if recipe.policy == "layer-decay":
        return recipe.change(layer_decay=DECAY_PER_LAYER) if recipe.layer_decay == 1.0 else recipe
    if recipe.policy in ("full", "head"):
        return recipe
    head = recipe.peak_lr if recipe.head_lr is None else recipe.head_lr
    peak, muon = LOWER_LAYERS_RATE * recipe.peak_lr, LOWER_LAYERS_RATE * recipe.muon_lr
    return recipe.change(peak_lr=peak, muon_lr=muon, head_lr=head)


def frozen(model: nn.Module, policy: str) -> set[str]:
    """Names of the parameters that a policy leaves as they are."""
    names = [name for name, _ in named_parameters(model)]
    if policy in ("full", "all", "layer-decay"):
        return set()
    if policy == "head":
        return {name for name in names if not _is_of_head(name)}
    found = re.fullmatch(r"last-(\d+)", policy)
    if found is None:
        raise ConfigError(f"no policy is called {policy!r}; there are: {', '.join(POLICIES)}")
    blocks, kept = _blocks(model), int(found[1])
    if not 1 <= kept <= blocks:
        raise ConfigError(f"the network has {blocks} blocks, so {policy} means nothing; say last-1 to last-{blocks}")
    depths = layers(names)
    lowest = {name for name in names if depths[name] == 0}
    pattern = r"(^|\.)stages\.(\d+)\." if isinstance(unwrapped(model).config, BiTConfig) else r"(^|\.)blocks\.(\d+)\."
    first = blocks - kept  # the first block that is trained
    return lowest | {name for name in names if (found := re.search(pattern, name)) and int(found[2]) < first}


def _keep_statistics(model: nn.Module) -> None:
    """A frozen batch norm keeps the statistics it has and updates them no more."""
    for module in model.modules():
        if isinstance(module, nn.BatchNorm1d) and not any(p.requires_grad for p in module.parameters()):
            module.eval()
            module.train = lambda mode=True, itself=module: itself  # type: ignore[method-assign, misc]


def _blocks(model: nn.Module) -> int:
    """Blocks of a ViT, stages of a ResNet."""
    config = unwrapped(model).config
    return len(config.resnet.units) if isinstance(config, BiTConfig) else config.encoder.depth


def _is_of_head(name: str) -> bool:
    return re.search(r"(^|\.)head\.", name) is not None
