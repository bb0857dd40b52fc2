"""Masked patch prediction: what colours do the hidden patches have? (arXiv 2010.11929, section 4.6, appendix B.1.2)

Half of the patches are chosen; of these 80 % become a learned vector, 10 % another patch of the image, 10 % stay. The
network answers for every chosen patch, from its own token.

B images   N patches   n chosen ones   D width
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from vitreous.errors import ConfigError
from vitreous.images.batches.batches import Batch
from vitreous.models.catalog import build
from vitreous.models.config import Size
from vitreous.models.layers import Linear, xavier
from vitreous.models.model import Model
from vitreous.models.preprocess import Preprocess
from vitreous.models.vit import ViT, patchify
from vitreous.randomness import uniform
from vitreous.training.recipe import Recipe

UNTOUCHED, HIDDEN, EXCHANGED, KEPT = range(4)
COLOURS = 512

# ------------------------------------------------------------------------------------------------------------- targets


def colour_classes(colours: Tensor) -> Tensor:
    """3 bits a channel, red first: 64 R + 8 G + B, each min(⌊8x⌋, 7) of 0 … 1.  … 3 -> …"""
    bits = (colours * 8).floor().clamp(0, 7).long()
    return 64 * bits[..., 0] + 8 * bits[..., 1] + bits[..., 2]


def mean_colours(images: Tensor, patch: Size) -> Tensor:
    """Each patch's mean colour, of images of 0 … 1.  B 3 H W -> B N 3."""
    return F.avg_pool2d(images, patch).flatten(2).mT


def thumbnails(images: Tensor, patch: Size, side: int = 4) -> Tensor:
    """Each patch as side × side colours.  B 3 H W -> B N side² 3."""
    cells = patchify(images, patch).unflatten(-1, (3, *patch))  # B N 3 P P
    small = F.adaptive_avg_pool2d(cells.flatten(0, 1), side)  # BN 3 side side
    return small.flatten(2).mT.unflatten(0, cells.shape[:2])


def _mean_colour(images: Tensor, patch: Size) -> Tensor:
    return colour_classes(mean_colours(images, patch))  # B N


def _thumbnail(images: Tensor, patch: Size) -> Tensor:
    return colour_classes(thumbnails(images, patch))  # B N 16


def _cross_entropy(answers: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Mean loss, and each answer's being right."""
    logits = answers.unflatten(-1, (-1, COLOURS)).flatten(0, -2).float()
    loss = F.cross_entropy(logits, targets.flatten())
    return loss, (logits.argmax(-1) == targets.flatten()).float()


def _squares(answers: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    return F.mse_loss(answers.float(), targets), torch.zeros_like(targets[..., 0])


@dataclass(frozen=True)
class PatchTarget:
    """What is asked of a chosen patch: how it is read off the image, and how an answer is judged."""

    of: Callable[[Tensor, Size], Tensor]  # images of 0 … 1, patch -> B N …
    answers: Callable[[Size], int]  # numbers that the network gives for a patch
    judge: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


PATCH_TARGETS = {
    "mean-colour": PatchTarget(_mean_colour, lambda patch: COLOURS, _cross_entropy),
    "thumbnail": PatchTarget(_thumbnail, lambda patch: 16 * COLOURS, _cross_entropy),
    "pixels": PatchTarget(patchify, lambda patch: 3 * patch[0] * patch[1], _squares),
}  # the paper's three; the first is as good as the second, and the last a little worse

# --------------------------------------------------------------------------------------------------------------- plans


def choose_patches(select: NDArray[np.float64], kind: NDArray[np.float64], share: float) -> NDArray[np.int64]:
    """What becomes of each patch, from two draws of 0 … 1 each: exactly round(share · N) are chosen.  B N -> B N."""
    count = round(share * select.shape[1])
    kinds = np.where(kind < 0.8, HIDDEN, np.where(kind < 0.9, EXCHANGED, KEPT))
    chosen = np.zeros(select.shape, bool)
    np.put_along_axis(chosen, select.argsort(1, kind="stable")[:, :count], True, 1)
    return np.where(chosen, kinds, UNTOUCHED)


def draw(seed: int, epoch: int, ids: NDArray[np.int64], patches: int, share: float) -> dict[str, NDArray[np.int64]]:
    """`places` of the chosen patches in order, their `kinds`, and `others`, the patches they may become: each B n."""
    select, kind, other = np.split(uniform(seed, "mask", epoch, ids, 3 * patches), 3, 1)
    kinds = choose_patches(select, kind, share)
    places = (kinds == UNTOUCHED).argsort(1, kind="stable")[:, : round(share * patches)]
    step = 1 + (other * (patches - 1)).astype(np.int64)  # 1 … N − 1: never itself
    taken = [np.take_along_axis(array, places, 1) for array in (kinds, step)]
    return {"places": places, "kinds": taken[0], "others": (places + taken[1]) % patches}


# ------------------------------------------------------------------------------------------------------------- the task


def values_of(rule: Preprocess, device: torch.device) -> tuple[Tensor, Tensor]:
    """Mean and deviation as C 1 1, made once: a captured step cannot bring numbers from the host."""
    return torch.tensor(rule.mean, device=device).view(-1, 1, 1), torch.tensor(rule.std, device=device).view(-1, 1, 1)


class Predictor(nn.Module):
    """A ViT with a linear map on the tokens of the chosen patches."""

    def __init__(self, vit: ViT, answers: int, seed: int):
        super().__init__()
        self.vit = vit
        self.predictor = Linear(vit.config.encoder.width, answers)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            xavier(self.predictor.weight, self.predictor.in_features, answers)
        nn.init.zeros_(self.predictor.bias)
        for unread in (vit.pool, vit.representation, vit.head):
            unread.requires_grad_(False)

    def forward(self, images: Tensor, places: Tensor, kinds: Tensor, others: Tensor) -> Tensor:  # B 3 H W, B n each
        vit = self.vit
        grid = vit.grid_of(images)
        x = vit.embedding.embed(vit.stem(images))  # B N D
        x = self.corrupted(x, places, kinds, others)
        z = vit.norm(vit.encode(vit.embedding.placed(x, grid), grid))  # B N D, N with the tokens in front
        return self.predictor(_rows(z, places + vit.config.prefix))  # B n answers

    def corrupted(self, x: Tensor, places: Tensor, kinds: Tensor, others: Tensor) -> Tensor:  # B N D
        """The chosen patches hidden, exchanged, or as they were."""
        hidden = self.vit.embedding.mask_token
        assert hidden is not None
        kind = kinds[..., None]
        new = torch.where(kind == EXCHANGED, _rows(x, others), _rows(x, places))
        new = torch.where(kind == HIDDEN, hidden.to(x.dtype), new)  # B n D
        return x.scatter(1, places[..., None].expand_as(new), new)  # B N D


def _rows(x: Tensor, places: Tensor) -> Tensor:
    """Tokens at these places.  B N D, B n -> B n D."""
    return x.gather(1, places[..., None].expand(-1, -1, x.shape[-1]))


class MaskedPatches:
    """The task: `network` is trained, `finished()` is the result. Labels are ignored."""

    def __init__(self, model: Model, recipe: Recipe, target: str = "mean-colour"):
        if not isinstance(model, ViT) or model.config.embedding.stem != "patch":
            raise ConfigError("masked-patches hides patches of the image; take a plain ViT, such as --model S/16")
        if not model.config.embedding.mask_token:
            raise ConfigError(
                "masked-patches needs a vector to hide patches with; build the model with mask_token=true"
            )
        if model.config.channels not in (1, 3):
            raise ConfigError(
                f"masked-patches asks for colours, and images have {model.config.channels} channels; take 3"
            )
        patches, self.patch = model.grid[0] * model.grid[1], model.config.embedding.patch
        if round(recipe.masked * patches) < 1 or patches < 2:
            raise ConfigError(
                f"masked={recipe.masked} of {patches} patches hides nothing; take a smaller patch or a larger share"
            )
        if target not in PATCH_TARGETS:
            raise ConfigError(f"target {target!r} is not one of {', '.join(PATCH_TARGETS)}")
        self.target, self.seed, self.share, self.patches = PATCH_TARGETS[target], recipe.seed, recipe.masked, patches
        self.device = next(model.parameters()).device
        self.mean, self.std = values_of(model.preprocess, self.device)
        for unread in (model.head, model.pool, model.representation):
            unread.requires_grad_(False)  # other ranks would wait for their gradients
        self.network: nn.Module = Predictor(model, self.target.answers(self.patch), recipe.seed).to(self.device)
        self._model = model

    def host(self, batch: Batch) -> dict[str, NDArray[Any]]:
        """Which patches, and what becomes of them: drawn from (seed, epoch, image)."""
        return draw(self.seed, batch.epoch, batch.drawn_ids, self.patches, self.share)

    def loss(self, images: Tensor, targets: Tensor, extra: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Mean over all chosen patches; right answers counted in images: the share of an image's patches, summed."""
        wanted = self.target.of(self.colours(images), self.patch)  # B N …
        places = extra["places"].view(*extra["places"].shape, *[1] * (wanted.ndim - 2))
        wanted = wanted.gather(1, places.expand(-1, -1, *wanted.shape[2:]))  # B n …
        answers = self.network(images, extra["places"], extra["kinds"], extra["others"])
        loss, right = self.target.judge(answers, wanted)
        return loss, right.mean() * len(images)

    def colours(self, images: Tensor) -> Tensor:
        """The images in values of 0 … 1 again, with three channels."""
        return (images.float() * self.std + self.mean).expand(-1, 3, -1, -1)

    def finished(self) -> ViT:
        """The network without the predictor and the hidden patch's vector; its head is new, and zero."""
        own = self._model
        new = build(own.config.change(mask_token=False), seed=0)
        state = {k: v for k, v in own.state_dict().items() if k in new.state_dict() and not k.startswith("head.")}
        new.load_state_dict(state, strict=False)
        new.preprocess, new.labels, new.source = own.preprocess, own.labels, own.source
        assert isinstance(new, ViT)
        return new.to(self.device)
