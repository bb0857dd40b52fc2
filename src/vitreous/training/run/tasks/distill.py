"""Learning from a teacher's answers (DeiT, arXiv 2012.12877, section 5).

    hard   (1 − a) L(class token, labels) + a CE(distillation token, argmax of the teacher)
    soft   (1 − a) L(class token, labels) + a τ² KL(teacher / τ ‖ distillation token / τ)

A network with one head gives both answers with it.   a share   τ temperature   B images   K classes
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from vitreous.errors import ConfigError
from vitreous.images.batches.batches import Batch
from vitreous.models.model import Model
from vitreous.models.vit import TwoHeads
from vitreous.training.recipe import Recipe
from vitreous.training.run.tasks.classify import classification_loss, right_answers
from vitreous.training.run.tasks.masked import values_of


def distillation_loss(student: Tensor, teacher: Tensor, kind: str, temperature: float) -> Tensor:
    """How far the student's answers are from the teacher's, mean over the batch.  B K each."""
    if kind == "hard":
        return F.cross_entropy(student, teacher.argmax(-1))
    ours, theirs = ((x / temperature).log_softmax(-1) for x in (student, teacher))
    return temperature**2 * F.kl_div(ours, theirs, reduction="batchmean", log_target=True)


class Student(nn.Module):
    """A model whose heads answer separately."""

    def __init__(self, model: Model):
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:  # B C H W -> each B K
        y = self.model.features(images)
        head = self.model.head
        if isinstance(head, TwoHeads):
            return head.both(y)
        answer = head(y)
        return answer, answer


class Distill:
    """The task: the labels for one token, a frozen teacher's answers for the other. `model` is what is evaluated."""

    def __init__(self, model: Model, teacher: Model, recipe: Recipe):
        _check(model, teacher)
        self.model, self.recipe = model, recipe
        self.network: nn.Module = Student(model)
        device = next(model.parameters()).device
        self.teacher = teacher.eval().requires_grad_(False).to(device)
        self.ours, self.theirs = values_of(model.preprocess, device), values_of(teacher.preprocess, device)

    def host(self, batch: Batch) -> dict[str, NDArray[Any]]:
        return {}

    def loss(self, images: Tensor, targets: Tensor, extra: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        r = self.recipe
        first, second = (answer.float() for answer in self.network(images))
        with torch.no_grad():
            taught = self.teacher(self.seen_by_teacher(images)).float()
        own = classification_loss(first, targets, r.loss)
        theirs = distillation_loss(second, taught, r.distillation, r.distillation_temperature)
        share = r.distillation_share
        return (1 - share) * own + share * theirs, right_answers((first + second) / 2, targets)

    def seen_by_teacher(self, images: Tensor) -> Tensor:
        """The same augmented images, in the teacher's size and values."""
        (mean, std), (their_mean, their_std) = self.ours, self.theirs
        size = self.teacher.config.image_size
        x = images.float().expand(-1, self.teacher.config.channels, -1, -1)
        ours, theirs = self.model.preprocess, self.teacher.preprocess
        if (ours.mean, ours.std) != (theirs.mean, theirs.std):
            x = (x * std + mean - their_mean) / their_std
        return x if x.shape[2:] == size else F.interpolate(x, size, mode="bilinear", antialias=True)

    def finished(self) -> Model:
        return self.model


def _check(model: Model, teacher: Model) -> None:
    ours, theirs = model.config.readout.classes, teacher.config.readout.classes
    if ours != theirs:
        raise ConfigError(f"the teacher answers {theirs} classes, the data have {ours}; train a teacher on them first")
    if model.labels and teacher.labels and model.labels != teacher.labels:
        i = next(i for i, pair in enumerate(zip(model.labels, teacher.labels, strict=True)) if pair[0] != pair[1])
        raise ConfigError(
            f"the teacher's class {i} is {teacher.labels[i]!r}, the data's {model.labels[i]!r}; train one on these"
        )
    if model.config.channels not in (1, teacher.config.channels):
        raise ConfigError(
            f"the teacher takes {teacher.config.channels} channels, the model {model.config.channels}; take another"
        )
