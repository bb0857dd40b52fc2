"""What one runtime's file declares: how to write a model for it, how to run what was written, and what it can do.

To add a target: a file with a `Target`, and a line in `export.TARGETS` (or an entry point in the group
`vitreous.targets`). Export, parity, card, run.py, serve and the command line ask the target and never its name.
"""

from __future__ import annotations

import importlib.util
import io
import logging
import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from vitreous.errors import ConfigError, MissingExtraError
from vitreous.exports.graphs import AnswerGraph, FeatureGraph, ImageForm, Network, Preprocessing
from vitreous.models.model import Model

Array = NDArray[Any]
Run = Callable[[Array], list[Array]]  # one input, all outputs in their order
DEFAULT_OPSET = 18


@dataclass(frozen=True)
class ModelParts:
    """A model taken apart for export."""

    preprocessing: Preprocessing
    network: Network
    answer: AnswerGraph

    @property
    def whole(self) -> ImageForm:
        return ImageForm(self.preprocessing, self.network, self.answer).eval()

    @property
    def image_outputs(self) -> list[str]:
        return [*self.answers("probabilities"), *(["attention_map"] if self.network.attention else [])]

    def answers(self, of_head: str) -> list[str]:
        return ["features"] if isinstance(self.answer, FeatureGraph) else [of_head, "score"]

    def images(self, batch: int) -> Tensor:
        """Zeros of the size that the network wants."""
        rule = self.preprocessing.rule
        return torch.zeros(batch, len(rule.mean), *rule.size)

    def image(self) -> Tensor:
        """Zeros of an arbitrary size: an exporter may take a special size for a constant."""
        return torch.zeros(61, 83, len(self.preprocessing.rule.mean), dtype=torch.uint8)


def make_parts(model: Model, *, attention: bool = False) -> ModelParts:
    """Take apart a model that `graphs.ready_to_export` made."""
    graph = AnswerGraph if model.config.readout.classes else FeatureGraph
    network, answer = Network(model, attention=attention), graph(model, attention=attention)
    return ModelParts(Preprocessing(model.preprocess).eval(), network.eval(), answer.eval())


@dataclass(frozen=True)
class PageOptions:
    """For targets that write a page.

    name: of the model.  runtime: a folder, or npm.  wasm_only: without WebGPU.  examples: show images of `data`.
    """

    name: str = "this model"
    runtime: str | os.PathLike[str] | None = None
    wasm_only: bool = False
    examples: bool = False


@dataclass(frozen=True)
class WriteOptions:
    """opset: of ONNX graphs.  calibration: real images B C H W, given if the network is to compute in int8."""

    opset: int = DEFAULT_OPSET
    fp16: bool = False
    calibration: Array | None = None
    page: PageOptions = PageOptions()
    examples: tuple[tuple[str, Array], ...] = ()  # label and image H W C, for a page to begin with
    learned: bool = False  # the model has learned from these


@dataclass
class OpenedForms:
    """The files of an export, each ready to run.  prepare: its preprocessing.  notes: what people should know."""

    forms: dict[str, Run]
    prepare: Run | None
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Package:
    """A package to import.  extra: the extra of vitreous that installs it; None: pip installs it by its own name."""

    name: str
    extra: str | None = None


@dataclass(frozen=True)
class Runner:
    """How files run without vitreous.

    load: a function from the path of the image form to a function from an image to all outputs. Its source becomes part
    of run.py, so it imports what it needs itself, and nothing of vitreous.
    """

    package: Package
    load: Callable[[str], Any]


@dataclass(frozen=True, kw_only=True)
class Target:
    """A runtime. `write` makes image, tensor and fixed with this suffix in a folder, and `preprocessing` in another."""

    name: str
    about: str
    suffix: str
    write: Callable[[ModelParts, Path, Path, WriteOptions], None]
    open: Callable[[Path], Run]
    describe: Callable[[Path], dict[str, Any]]  # for the card: "operators" with their counts, and versions
    packages: tuple[Package, ...] = ()  # that writing needs
    precisions: tuple[str, ...] = ()  # which of int8 and fp16 it has
    int8_packages: tuple[Package, ...] = ()  # that int8 needs besides
    refuses_int8: Callable[[Model], str | None] = lambda model: None  # why this model cannot have it
    halves_itself: bool = False  # fp16: `write` gets float32 and halves the file
    opsets: range | tuple[int, ...] = ()  # of ONNX; empty: it has none
    starts_with: bytes = b""  # the first bytes of every file with the suffix
    forms: tuple[str, ...] = ("image", "tensor", "fixed")
    file_names: Mapping[str, str] = field(default_factory=dict)  # of forms that are not called FORM + suffix
    open_all: Callable[[Model, Path, Path], AbstractContextManager[OpenedForms]] | None = None  # None: `open` for each
    check: Callable[[Model, WriteOptions], None] = lambda model, options: None  # refuses before any work
    missing: Callable[[PageOptions], str] = lambda page: ""  # what is no package and not here, and how to get it
    is_page: bool = False  # people open it in a browser: it takes PageOptions, and shows attention by itself
    runner: Runner | None = None  # None: PyTorch runs the files, so there is no run.py and nothing to serve

    def file(self, form: str) -> str:
        """The name of a form's file."""
        return self.file_names.get(form, f"{form}{self.suffix}")

    @contextmanager
    def opened(self, model: Model, folder: Path, scratch: Path) -> Iterator[OpenedForms]:
        """All forms of a folder, for as long as this context lasts."""
        if self.open_all is not None:
            with self.open_all(model, folder, scratch) as found:
                yield found
        else:
            forms = {form: self.open(folder / self.file(form)) for form in ("tensor", "fixed", "image")}
            yield OpenedForms(forms, self.open(scratch / f"preprocessing{self.suffix}"))

    def packages_for(self, *, int8: bool) -> tuple[Package, ...]:
        return self.packages + (self.int8_packages if int8 else ())

    def refuses(self, precision: str, model: Model) -> str | None:
        """Why the model cannot be written in int8 or fp16."""
        if precision not in self.precisions:
            return f"there is no {precision} for {self.name}"
        return self.refuses_int8(model) if precision == "int8" else None


def require(packages: tuple[Package, ...], purpose: str, besides: str = "") -> None:
    """Raise one error that says what to install, unless all packages are there.  besides: what else is missing."""
    error = _missing(packages, purpose)
    if besides:
        raise ConfigError(besides if error is None else f"{error}; and {besides}")
    if error is not None:
        raise error


def _missing(packages: tuple[Package, ...], purpose: str) -> ConfigError | MissingExtraError | None:
    missing = [package for package in packages if importlib.util.find_spec(package.name) is None]
    if not missing:
        return None
    if foreign := [package.name for package in missing if package.extra is None]:
        return ConfigError(f"{purpose} needs {' and '.join(foreign)}; pip install {' '.join(foreign)}")
    extras = dict.fromkeys(package.extra for package in packages if package.extra)
    return MissingExtraError(",".join(extras), purpose)


@contextmanager
def quietly() -> Iterator[None]:
    """Silence what exporters print: warnings, progress bars on stdout, and log lines below errors."""
    before = logging.root.manager.disable
    with warnings.catch_warnings(), redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        logging.disable(logging.WARNING)
        try:
            yield
        finally:
            logging.disable(before)
