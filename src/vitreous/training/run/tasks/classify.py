"""The task of naming what an image shows."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from vitreous.images.batches.batches import Batch
from vitreous.training.recipe import Recipe


class Task(Protocol):
    """What a network learns: the loss of a batch, and what must be drawn on the host for it."""

    network: nn.Module  # all its parameters are trained

    def host(self, batch: Batch) -> dict[str, NDArray[Any]]:
        """Arrays to send with the batch, one row per image; drawn with an address."""

    def loss(self, images: Tensor, targets: Tensor, extra: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Mean loss and number of right answers.  images: B C H W, normalised; targets: B K.

        It is captured and compiled, so the host reads no value, and no shape depends on one.
        """


class Classify:
    """Softmax or sigmoid loss of the network's answers."""

    def __init__(self, network: nn.Module, recipe: Recipe):
        self.network, self.kind = network, recipe.loss

    def host(self, batch: Batch) -> dict[str, NDArray[np.int64]]:
        return {}

    def loss(self, images: Tensor, targets: Tensor, extra: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        logits = self.network(images).float()
        return classification_loss(logits, targets, self.kind), right_answers(logits, targets)


def classification_loss(logits: Tensor, targets: Tensor, kind: str) -> Tensor:
    """Softmax: −Σₖ yₖ log pₖ.  Sigmoid: Σₖ of the binary losses, as big_vision sums them.  Mean over the batch."""
    if kind == "softmax":
        return -(targets * logits.log_softmax(-1)).sum(-1).mean()
    return F.binary_cross_entropy_with_logits(logits, targets, reduction="none").sum(-1).mean()


def right_answers(logits: Tensor, targets: Tensor) -> Tensor:
    """How often the largest answer is a largest target (under mixing: the image that leads)."""
    chosen = targets.gather(1, logits.argmax(-1, keepdim=True))[:, 0]
    return ((chosen == targets.amax(-1)) & (chosen > 0)).sum().to(torch.float32)
