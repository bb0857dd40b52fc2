"""What a runtime's file here hands out: how to write a model for it, and how to run what was written."""

from __future__ import annotations

import importlib.util
import io
import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from vitreous.errors import MissingExtraError
from vitreous.exports.graphs import Answer, ImageForm, Network, Preprocessing
from vitreous.models.model import Model

__all__ = ["How", "Parts", "Target", "make_parts", "missing", "quietly"]

Array = NDArray[Any]
Run = Callable[[Array], list[Array]]


@dataclass(frozen=True)
class Parts:
    """A model taken apart for export."""

    preprocessing: Preprocessing
    network: Network
    answer: Answer

    @property
    def whole(self) -> ImageForm:
        return ImageForm(self.preprocessing, self.network, self.answer).eval()

    @property
    def attention(self) -> bool:
        return self.network.attention

    @property
    def tensor_outputs(self) -> list[str]:
        of_pool = ["pool_weights"] if self.network.pool_tap else []
        return ["logits", *(["attention_weights", *of_pool] if self.attention else [])]

    @property
    def image_outputs(self) -> list[str]:
        return ["probabilities", "score", *(["attention_map"] if self.attention else [])]

    def images(self, batch: int) -> Tensor:
        """Of the size that the network wants."""
        rule = self.preprocessing.rule
        return torch.zeros(batch, len(rule.mean), *rule.size)

    def image(self) -> Tensor:
        """A picture of no size in particular: one that is special would be taken for a constant."""
        return torch.zeros(61, 83, len(self.preprocessing.rule.mean), dtype=torch.uint8)


def make_parts(model: Model, *, attention: bool = False) -> Parts:
    """model: as `forms.ready_to_export` makes it."""
    network, answer = Network(model, attention=attention), Answer(model, attention=attention)
    return Parts(Preprocessing(model.preprocess).eval(), network.eval(), answer.eval())


@dataclass(frozen=True)
class How:
    """calibration: B C H W of real images where the network shall compute in int8.  opset: of ONNX."""

    opset: int
    fp16: bool = False
    calibration: Array | None = None


@dataclass(frozen=True)
class Target:
    """A runtime. `write` makes image, tensor and fixed with this suffix in a folder, and `preprocessing` in another."""

    name: str
    about: str
    suffix: str
    extra: str | None  # what pip brings it by
    packages: tuple[str, ...]
    can: tuple[str, ...]  # of int8, fp16
    write: Callable[[Parts, Path, Path, How], None]
    open: Callable[[Path], Run]  # a file becomes a function: one input, all outputs in their order
    describe: Callable[[Path], dict[str, Any]]  # what a card says of a file


def missing(target: Target, int8: bool) -> MissingExtraError | None:
    """The error that names what to install, unless all is there."""
    packages = (*target.packages, *(("nncf",) if int8 and target.name == "openvino" else ()))
    if target.extra is None or all(importlib.util.find_spec(name) for name in packages):
        return None
    return MissingExtraError(target.extra, f"export to {target.name}")


@contextmanager
def quietly() -> Iterator[None]:
    """Exporters talk of their own affairs: warnings, bars on stdout and log lines below errors are left out."""
    before = logging.root.manager.disable
    with warnings.catch_warnings(), redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        logging.disable(logging.WARNING)
        try:
            yield
        finally:
            logging.disable(before)
