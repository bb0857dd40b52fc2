"""The work `tokens`: how the class token of a ViT differs from its patches, in what it keeps and in its gradients.

B images   T tokens, the class token first   D numbers of each
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from vitreous.errors import DataError
from vitreous.evaluation.inference import at_work, make_batches
from vitreous.images.imageset import TEST, ImageSet
from vitreous.machine import choose_device
from vitreous.measures.localisation import TokenLikeness, token_grams
from vitreous.measures.measure import plain
from vitreous.models.taps import taps
from vitreous.models.vit import ViT, patchify
from vitreous.papers.experiment import Cell
from vitreous.papers.works.bench import Bench, Readings, Work
from vitreous.papers.works.look import SEEN, dealt, models_of
from vitreous.ranks import Ranks

TOKEN_IMAGES_AT_ONCE = 64


def token_kinds(trained: Cell, data: str, *, seen: int = SEEN) -> Cell:
    """What sets the class token apart, as a cell.  seen: test images."""
    return Cell("tokens", {"data": data, "seen": seen}, (trained,), TOKEN_KINDS.version)


def run_tokens(cell: Cell, bench: Bench) -> Readings:
    model, _ = models_of(cell, bench)
    if not isinstance(model, ViT) or not model.config.embedding.class_token:
        raise DataError("class token and patches are compared in a ViT with a class token; name such a model")
    shown = dealt(bench.sets.open(cell.options["data"]).split(TEST), cell.options["seen"])
    likeness, squares = TokenLikeness(), list[Tensor]()
    for pixels, inputs, labels in batches_of(model, shown, bench):
        tokens, slopes = tokens_and_slopes(model, inputs, labels)
        likeness.add(token_grams(tokens), token_grams(patchify(pixels / 255, model.stem.patch)))
        squares.append(slopes)
    own = likeness.heat()  # T N
    places = own.shape[1]
    size = torch.cat(squares, 1).mean(1)  # depth T
    front, patches = size[:, 0], size[:, -places:].mean(1)
    apart = [math.log(a / b) for a, b in zip(front.tolist(), patches.tolist(), strict=True) if a > 0 and b > 0]
    return plain(
        {
            "own_patches": own[-places:].diagonal().mean().item(),  # CKA of a patch's last token with its own pixels
            "class_patches": own[0].mean().item(),  # of the class token with a patch; its own input never changes
            "class_best_patch": own[0].max().item(),
            "gradient_class": front.tolist(),  # norm at the input of each block, mean over images
            "gradient_patches": patches.tolist(),
            "gradient_apart": float(np.mean(apart)) if apart else None,  # ln of their ratio, mean over blocks
        }
    )


def tokens_and_slopes(model: ViT, inputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """The last block's tokens, B T D; and the norm of the loss's gradient at the input of each block, depth B T."""
    names = [f"blocks.{i}.output" for i in range(model.config.encoder.depth)]
    with torch.enable_grad(), taps(model, ["embedding.tokens", *names]) as seen:
        loss = F.cross_entropy(model(inputs.requires_grad_()), labels, reduction="sum")
        slopes = torch.autograd.grad(loss, [seen["embedding.tokens"], *(seen[name] for name in names[:-1])])
    return seen[names[-1]].detach(), torch.stack([slope.norm(dim=-1) for slope in slopes])


def batches_of(model: ViT, data: ImageSet, bench: Bench) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Bytes as floats, the model's input, and labels."""
    device = choose_device(bench.device)
    with at_work(model, device, "float32") as (normalised, _):
        feed: Any = make_batches(model, data, device, TOKEN_IMAGES_AT_ONCE, bench.workers, False, Ranks(0, 1))
        for part in feed:
            labels = torch.from_numpy(data.labels[part.places]).to(device)
            yield part.images.to(device).float(), normalised(part.images), labels


TOKEN_KINDS = Work(run_tokens)
