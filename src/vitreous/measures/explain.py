"""Which patches an answer came from: attention rollout on single images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from vitreous.errors import DataError
from vitreous.images.imageset import ImageSet
from vitreous.images.pixels.preprocess import normalise, pixels
from vitreous.measures.drawing import WHOLE_BOX, evened, overlaid
from vitreous.measures.rollout import ATTENTION, read_patches, rollout
from vitreous.models.architecture import spread
from vitreous.models.model import unwrapped
from vitreous.models.pooling import find_pool
from vitreous.models.taps import taps
from vitreous.models.vit import ViT

EXPLAINED_SIDE = 224  # pixels of an overlay's longer side
EXPLAINED_LIT = 0.3  # share of the map's colour where the map is highest
EXPLAINED_TAILS = 0.02  # share of the patches beyond each end of an overlay's scale


@dataclass(frozen=True, eq=False)
class Look:
    """One image as the model saw it, and where the answer came from. place: its number in the set."""

    place: int
    seen: NDArray[np.uint8]  # H W 3
    map: NDArray[np.float32]  # h w, of sum 1
    cells: tuple[float, float, float, float] = WHOLE_BOX  # where the map lies, in shares of the image

    @property
    def peak(self) -> float:
        """The strongest patch over the mean patch."""
        return float(self.map.max() * self.map.size)


@dataclass(frozen=True, eq=False)
class Explanation:
    """Looks at some images; or why the network has none to show."""

    looks: tuple[Look, ...] = ()
    why_not: str = ""


def look_at(model: nn.Module, data: ImageSet, places: Sequence[int]) -> Explanation:
    """Where the answer on each of these images came from; unreadable images are left out."""
    network = unwrapped(model)
    if not isinstance(network, ViT):
        kind = type(network).__name__
        return Explanation(why_not=f"A {kind} is a network of convolutions: it has no attention that could be shown.")
    if silence := find_pool(network)[0].silence:
        return Explanation(why_not=f"{silence[:1].upper()}{silence[1:]}: where an answer came from cannot be shown.")
    looks = []
    for place in places:
        try:
            seen = pixels(data.read(place), network.preprocess)
        except (OSError, ValueError, DataError):
            continue
        looks.append(look_of(network, seen, int(place)))
    return Explanation(tuple(looks))


def look_of(model: ViT, seen: NDArray[Any], place: int = 0) -> Look:
    """Where the answer on one image came from.  seen: H W C, as the model sees it."""
    image = normalise(seen, model.preprocess)[None].to(next(model.parameters()).device)
    flow = attention_maps(model, image)[0].float().cpu().numpy()
    shares = (flow / max(float(flow.sum()), 1e-12)).astype(np.float32)
    return Look(place, _rgb(seen), shares, spread(model.stem, model.config.image_size, model.grid))


def attention_maps(model: ViT, images: Tensor) -> Tensor:
    """How much of each patch is in what the head reads, by rollout through all layers.  B C H W -> B h w.

    The pool says which tokens it reads. A map sums to at most 1: the tokens in front have the rest.
    """
    grid = model.grid_of(images)
    pool, tap = find_pool(model)
    was_training = model.training
    model.eval()
    try:
        with torch.inference_mode(), taps(model, [ATTENTION, *([tap] if tap else [])]) as seen:
            model(images)
    finally:
        model.train(was_training)
    weights = seen.pop(tap).float() if tap else None  # B H 1 P
    flow = rollout([layer.float() for layer in seen.values()])  # B N N
    return read_patches(pool, flow, weights).unflatten(-1, grid)


def overlay(look: Look) -> NDArray[np.uint8]:
    """The image, lit where much of the answer came from and dark elsewhere, on its own scale.  H W 3."""
    heat = evened(look.map, look.cells)
    return overlaid(look.seen, heat, side=EXPLAINED_SIDE, lit=EXPLAINED_LIT, tails=EXPLAINED_TAILS)


def _rgb(seen: NDArray[Any]) -> NDArray[np.uint8]:
    image = np.asarray(seen).round().clip(0, 255).astype(np.uint8)
    return np.repeat(image, 3, 2) if image.shape[2] == 1 else image[:, :, :3]
