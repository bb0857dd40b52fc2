"""Change a loaded model's head or image size; all other tensors stay."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from vitreous.errors import ImageSizeError
from vitreous.models.attention_bias import resize_bias
from vitreous.models.catalog import blueprint
from vitreous.models.config import BiTConfig, Config, Size
from vitreous.models.positions import resize_line, resize_positions
from vitreous.weights.formats import stem_of

State = dict[str, Tensor]


def swap_head(config: Config, state: Mapping[str, Tensor], classes: int) -> tuple[Config, State]:
    """Replace head and representation layer by a new head of zeros; `classes=0` only removes the head."""
    changes: dict[str, Any] = {"classes": classes}
    if isinstance(config, BiTConfig):
        pass
    elif classes:
        changes |= {"representation": 0, "representation_kind": "tanh"}
    elif config.readout.distillation_head:
        changes["distillation_head"] = False
    gone = ("head.", "representation.") if classes else ("head.",)
    config = config.change(**changes)
    kept = {name: tensor for name, tensor in state.items() if not name.startswith(gone)}
    for name, tensor in blueprint(config).state_dict().items():
        if name.startswith("head."):
            kept[name] = torch.zeros(tensor.shape, dtype=next(iter(state.values())).dtype)
    return config, kept


def resize_images(
    config: Config, state: Mapping[str, Tensor], size: Size, *, rule: str = "paper"
) -> tuple[Config, State]:
    """The same weights for another image size; resizes learned positions to the new grid."""
    if size == config.image_size or isinstance(config, BiTConfig):
        return config.change(image_size=size), dict(state)
    new = config.change(image_size=size)
    old_grid, new_grid = (stem_of(c).grid(c.image_size) for c in (config, new))
    if old_grid == new_grid:
        return new, dict(state)
    if config.embedding.positions == "relative":
        raise ImageSizeError(
            f"relative positions cannot be resized to {size[0]}x{size[1]}; "
            f"keep {config.image_size[0]}x{config.image_size[1]}"
        )
    moved = {}
    for name, tensor in state.items():
        if name.startswith("places.bias.") and name.endswith(".table"):
            tensor = resize_bias(tensor, old_grid, new_grid, rule=rule)
        elif name.endswith("positions.table") or (name.startswith("layer_positions.") and name.endswith(".table")):
            tensor = resize_positions(tensor, old_grid, new_grid, prefix=config.covered, rule=rule)
        elif "positions." in name and name.endswith((".rows", ".columns")):
            tensor = resize_line(tensor, new_grid[0 if name.endswith(".rows") else 1])
        moved[name] = tensor
    return new, moved
