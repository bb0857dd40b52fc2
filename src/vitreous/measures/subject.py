"""A model under inspection: its kind, its grid of patches, and the images it sees."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitreous.errors import DataError
from vitreous.evaluation.predict import class_names
from vitreous.images.imageset import ImageSet
from vitreous.measures.similarity import MIN_BATCH
from vitreous.models import architecture
from vitreous.models.bit import BiT
from vitreous.models.config import Size, ViTConfig
from vitreous.models.model import Model
from vitreous.models.pooling import find_pool
from vitreous.models.taps import matching, tap_names
from vitreous.models.vit import ViT

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What decides the numbers, besides the model and the images."""

    images: int = 512  # that the shared forward sees
    batch: int | None = None  # images at a time; None is what suits the device
    seed: int = 0
    layers: str = "every"  # for likeness: every sub-layer, or blocks alone
    exact: bool = False  # receptive fields by all channels and 32 images
    few: int = 64  # images for what needs many forwards
    field_images: int = 16  # for receptive fields
    examples: int = 4  # images whose attention is kept


@dataclass(eq=False)
class Subject:
    """One model with its images. sample: the first `few` of them, as bytes B C H W."""

    model: Model
    name: str
    data: ImageSet
    settings: Settings
    device: torch.device = torch.device("cpu")
    digest: str = ""
    truth: NDArray[np.int64] | None = None  # the model's class of each image; None if the set has other classes
    sample: Tensor | None = None
    sample_places: NDArray[np.int64] | None = None  # their numbers within the set
    normalised: Callable[[Tensor], Tensor] = lambda images: images  # bytes to the model's input
    tick: Callable[[int], None] = lambda forwards: None  # called with the number of single-image forwards just done
    of_batch: dict[str, Any] = field(default_factory=dict)  # what readings share; emptied after every batch

    @property
    def families(self) -> tuple[str, ...]:
        """`bit`; or `vit`, with `stem` before it if the model has one and `map` after it if its pool attends."""
        if isinstance(self.model, BiT):
            return ("bit",)
        return (*(["stem"] if self.has_stem else []), "vit", *(["map"] if find_pool(self.model)[0].attends else []))

    @property
    def depth(self) -> int:
        """Blocks; 0 in a ResNet."""
        return self.model.config.encoder.depth if isinstance(self.model.config, ViTConfig) else 0

    @property
    def is_hybrid(self) -> bool:
        """True if convolutions come before the tokens."""
        return isinstance(self.model.config, ViTConfig) and self.model.config.embedding.stem != "patch"

    @property
    def has_stem(self) -> bool:
        """True if a ResNet with readable units stands before the tokens."""
        return any(name.startswith("stem.stages.") for name in tap_names(self.model))

    @property
    def grid(self) -> Size:
        """Rows and columns of patches; in a ResNet, those of the last map."""
        if isinstance(self.model, ViT):
            return self.model.grid
        config: Any = self.model.config
        halvings = max(len(config.resnet.units) - 1, 0) + (0 if config.resnet.root == "small" else 2)
        h, w = (-(-side // 2**halvings) for side in config.image_size)
        return h, w

    @property
    def patch(self) -> tuple[float, float]:
        """Pixels of the image from one patch to the next."""
        (h, w), (rows, columns) = self.model.config.image_size, self.grid
        return h / rows, w / columns

    @property
    def place(self) -> str:
        """What a token of the image stands for: `patch`, or `place` where convolutions come first."""
        return architecture.place(self.model.config)

    @property
    def prefix(self) -> int:
        """Tokens in front of the patches."""
        return self.model.config.prefix if isinstance(self.model.config, ViTConfig) else 0

    @property
    def has_class_token(self) -> bool:
        return isinstance(self.model.config, ViTConfig) and self.model.config.embedding.class_token

    def taps(self, patterns: Mapping[str, tuple[str, ...]]) -> list[str]:
        """The model's taps that match.  patterns: by family, with {last} for the last block."""
        wanted = (pattern for family in self.families for pattern in patterns.get(family, ()))
        return [name for pattern in wanted for name in matching(self.model, pattern.format(last=self.depth - 1))]

    def chances(self, logits: Tensor) -> Tensor:
        """The confidence in each class, as `predict` says it.  B K -> B K"""
        z = logits.float() / self.model.temperature
        return z.sigmoid() if self.model.answers == "several" else z.softmax(-1)

    def leader(self, answers: Tensor) -> str | None:
        """The class that scores most on the only image; None for several images, or without answers."""
        is_one = len(answers) == 1 and needs_head(self) is None
        return class_names(self.model)[int(answers[0])] if is_one else None

    def first(self, count: int) -> Tensor:
        """The first `count` images of the sample, as bytes."""
        assert self.sample is not None
        return self.sample[:count]


def in_chunks(images: Tensor, size: int, work: Callable[[Tensor, int], T]) -> list[T]:
    """`work(part, first)` on `size` images at a time; half as many each time memory runs out."""
    out: list[T] = []
    begin = 0
    while begin < len(images):
        try:
            out.append(work(images[begin : begin + size], begin))
            begin += size
        except torch.OutOfMemoryError:
            if size == 1:
                raise DataError("one image needs more memory than the device has; give device=cpu") from None
            size //= 2
            torch.cuda.empty_cache()
    return out


def needs_batches(subject: Subject, other: Subject | None = None) -> str | None:
    """Refuse fewer images than CKA is estimated from."""
    if len(subject.data) < MIN_BATCH:
        count = len(subject.data)
        return f"likeness needs {MIN_BATCH} images or more, and there {'is' if count == 1 else 'are'} {count}"
    if subject.settings.batch is not None and subject.settings.batch < MIN_BATCH:
        return f"likeness needs batches of {MIN_BATCH} images or more, not of {subject.settings.batch}"
    return None


def needs_attention(subject: Subject, other: Subject | None = None) -> str | None:
    if isinstance(subject.model, ViT):
        return None
    return f"{subject.name} is a network of convolutions and has no attention"


def needs_class_token(subject: Subject, other: Subject | None = None) -> str | None:
    if (why := needs_attention(subject)) is not None:
        return why
    return None if subject.has_class_token else f"{subject.name} has no class token"


def needs_head(subject: Subject, other: Subject | None = None) -> str | None:
    if not subject.model.config.readout.classes:
        return f"{subject.name} has no head, so it gives no answers"
    if not any(bool(parameter.any()) for parameter in subject.model.head.parameters()):
        return f"{subject.name} has a head of zeros, which gives every image the same answer"
    return None
