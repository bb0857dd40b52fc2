"""The interface that every network shares."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from vitreous.errors import ConfigError
from vitreous.models.config import Config
from vitreous.models.familiarity import Familiarity
from vitreous.models.layers import Linear
from vitreous.models.preprocess import Preprocess
from vitreous.models.taps import COMPILED_PREFIX, Tap, looked_into, plain
from vitreous.models.track_record import TrackRecord

Part = TypeVar("Part")


class Model(nn.Module):
    """images (float, B C H W, already preprocessed) -> logits B K, or the representation B D without a head."""

    def __init__(self, config: Config):
        super().__init__()
        self.config = config
        self.preprocess = Preprocess(size=config.image_size)
        self.labels: tuple[str, ...] | None = None
        self.temperature = 1.0
        self.familiarity: Familiarity | None = None  # how an image is scored; None: by its largest logit
        self.threshold: float | None = None  # an image with a lower score is none of these classes
        self.track_record: TrackRecord | None = None  # how often its answers are right, if somebody measured it
        self.answers: Literal["one", "several"] = "one"  # labels per image: softmax, or a sigmoid for every class
        self.source: dict[str, Any] = {}  # where the weights came from, and what was assumed about them
        self.read_from: Path | None = None  # the file of its weights; no checkpoint keeps it
        self.gradient_checkpointing = False  # recompute blocks and stages in the backward pass instead of keeping them

    def __setattr__(self, name: str, value: Any) -> None:
        """Copy a familiarity to the device of the weights: two models never share one."""
        if isinstance(value, Familiarity):
            value = copy.deepcopy(value).to(next(self.parameters()).device)
        super().__setattr__(name, value)

    def features(self, images: Tensor) -> Tensor:                               # B C H W -> B D
        raise AssertionError("each network says what its features are")

    def forward(self, images: Tensor, *, layout: str = "BCHW") -> Tensor:       # B C H W -> B K
        return self.logits(self.head(self.features(channels_first(images, layout))))

    def score(self, images: Tensor, features: Tensor, logits: Tensor) -> Tensor:  # B C H W, B D, B K -> B
        """How much each image resembles what the model learned; compare it with `threshold`."""
        return logits.amax(1) if self.familiarity is None else self.familiarity(images, features)

    def run(self, part: nn.Module, x: Tensor, *more: Any) -> Tensor:
        """Run a block or stage; with gradient checkpointing, recompute it in the backward pass.

        Not while a tap is open: the tap, or its edit, may be gone before the backward pass.
        """
        if not self.gradient_checkpointing or not torch.is_grad_enabled() or looked_into(part):
            return part(x, *more)
        if self.training and any(isinstance(m, nn.BatchNorm1d) for m in part.modules()):
            raise ConfigError("gradient_checkpointing would count a batch twice in norm_kind=batch; switch one off")
        return checkpoint(part, x, *more, use_reentrant=False)

    def add_head(self, width: int) -> None:
        """A linear layer that starts at zero: every class is equally likely and the first loss is ln K."""
        classes = self.config.readout.classes
        self.head: nn.Module = Linear(width, classes) if classes else nn.Identity()
        self.logits = Tap()


def is_untrained(model: Model) -> bool:
    """True for a model as `build` made it: random weights, and a head of zeros if it has one."""
    has_answers = any(parameter.any() for parameter in model.head.parameters())
    return model.source.get("weights") == "random" and not has_answers


def head_shape(model: Model) -> tuple[int, int]:
    """Classes and features of the head; 0, 0 without one."""
    heads = [part for part in model.head.modules() if isinstance(part, nn.Linear)]
    return max((head.out_features for head in heads), default=0), sum(head.in_features for head in heads)


def channels_first(images: Tensor, layout: str) -> Tensor:
    """B H W C or B C H W, as `layout` says, to B C H W."""
    if layout not in ("BCHW", "BHWC"):
        raise ConfigError(f"layout {layout!r} is not BCHW or BHWC")
    return images if layout == "BCHW" else images.permute(0, 3, 1, 2)


def state_of(model: nn.Module) -> dict[str, Tensor]:
    """A model's state dict under its own names, unwrapped."""
    return {name.replace(COMPILED_PREFIX, ""): tensor for name, tensor in plain(model).state_dict().items()}


def unwrapped(model: nn.Module) -> Model:
    """Our model inside the wrappers of torch.compile and data parallelism."""
    inner = plain(model)
    if not isinstance(inner, Model):
        raise ConfigError(f"{type(inner).__name__} is not one of our models; use vitreous.build or vitreous.load")
    return inner


def replica(part: Part) -> Part:
    """A copy with new modules that share the same tensors.

    Two threads can then set module state and hooks independently, without a second copy of the weights.
    """
    return copy.deepcopy(part, {id(tensor): tensor for tensor in _tensors(part)})


def _tensors(part: Any) -> list[Tensor]:
    if isinstance(part, Tensor):
        return [part]
    if isinstance(part, nn.Module):
        return [*part.parameters(), *part.buffers()]
    held = [value for value in vars(part).values() if isinstance(value, Tensor | nn.Module)]
    return [tensor for value in held for tensor in _tensors(value)]


def materialise(model: nn.Module) -> None:
    """Allocate uninitialised memory for a module built on the meta device.

    `torch.empty_like` of a meta tensor would import sympy.
    """
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None and parameter.is_meta:
                module._parameters[name] = nn.Parameter(torch.empty(parameter.shape, dtype=parameter.dtype))
        for name, buffer in module._buffers.items():
            if buffer is not None and buffer.is_meta:
                module._buffers[name] = torch.empty(buffer.shape, dtype=buffer.dtype)


def start(model: nn.Module) -> None:
    """Initialise: every part sets its own values (`start`); norms are 1 and 0, heads 0."""
    for module in model.modules():
        if isinstance(module, nn.LayerNorm | nn.RMSNorm | nn.GroupNorm | nn.BatchNorm1d):
            module.reset_parameters()
    for module in model.modules():
        begin = getattr(module, "start", None)
        if begin is not None:
            begin()
    head = getattr(model, "head", None)
    if isinstance(head, nn.Linear):
        nn.init.zeros_(head.weight)
        nn.init.zeros_(head.bias)
