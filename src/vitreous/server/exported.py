"""Serve a folder that `vitreous export` wrote: its tensor form answers, and its inside stays closed.

The folder holds all that an answer needs: preprocessing, labels, temperature, threshold. Before the first answer its
files are checked against their recorded sizes and its own test vectors.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from vitreous.errors import CheckpointError, ConfigError
from vitreous.evaluation.predict import Prediction, answer_of
from vitreous.exports.export import TARGETS
from vitreous.exports.parity import Parity, compare
from vitreous.exports.target import Target, require
from vitreous.files import restore_folder
from vitreous.models.preprocess import Preprocess
from vitreous.models.track_record import TrackRecord
from vitreous.server.engine import Pixels
from vitreous.server.runtimes import answers_of, normalised, without_torch
from vitreous.weights.tensor_files import read_json
from vitreous.words import one_line

WHY_CLOSED = (
    "this server answers from an exported file, which cannot be looked into; for attention, breaking and similar "
    "images serve the model that it was made of"
)
DAMAGED_ABOVE = {"float32": 1e-3, "float16": 0.05, "int8": 0.5}  # difference of logits, as a share of the largest
T = TypeVar("T")


@dataclass(frozen=True)
class About:
    """The content of export.json."""

    schema: Literal["vitreous.exported/1"]
    target: str
    precision: Literal["float32", "float16", "int8"]
    network: str
    classes: Annotated[int, msgspec.Meta(ge=0)]
    temperature: Annotated[float, msgspec.Meta(gt=0)]
    threshold: float | None
    answers: Literal["one", "several", "features"]
    preprocess: Preprocess
    track_record: TrackRecord | None = None
    terms: str = ""  # of the images that the weights learned from


@dataclass(frozen=True, eq=False)
class Exported:
    """A complete folder that agrees with PyTorch, or is served with --anyway."""

    folder: Path
    target: Target
    about: About
    labels: tuple[str, ...]
    parity: Parity

    @property
    def file(self) -> Path:
        """The tensor form, which export compared on all images."""
        return self.folder / f"tensor{self.target.suffix}"

    def to_json(self) -> dict[str, Any]:
        """For the page and for programs, without the compared images: their name shows folders of the server."""
        tensor = next((form for form in self.parity.forms if form.form == "tensor"), None)
        return {
            "network": self.about.network,
            "precision": self.about.precision,
            "agrees": self.parity.passed,
            "faults": self.parity.faults,
            "same_answers": None if tensor is None else tensor.agreement,
            "compared_images": 0 if tensor is None else tensor.images,
            "closed": WHY_CLOSED,
        }


class FileEngine:
    """An exported file, opened by one worker: the part of an `Engine` that answers."""

    def __init__(self, exported: Exported):
        about = exported.about
        self.rule, self.names = about.preprocess, exported.labels
        self.temperature, self.threshold, self.answers = about.temperature, about.threshold, about.answers
        self.track_record = about.track_record
        try:
            self._run = exported.target.open(exported.file)
        except Exception as error:  # each runtime raises its own kind
            raise _damaged(exported, f"{about.target} cannot open {exported.file.name}") from error

    def answers_to(self, seen: list[Pixels]) -> NDArray[np.float32]:
        """Logits and score, B K + 1.  seen: images as the model sees them."""
        return answers_of(self._run, normalised(seen, self.rule))

    def of_tensors(self, x: NDArray[np.float32]) -> NDArray[np.float32]:
        """B C H W -> logits B K."""
        return self._run(x)[0]

    def answer(self, name: str, answer: NDArray[np.float32], top: int) -> Prediction:
        """The answer in words, with the model's calibrated confidence."""
        return answer_of(self, self.names, name, answer, top)  # type: ignore[arg-type]  # temperature, threshold, answers


def find(model: object) -> Path | None:
    """The path, if it names an exported folder."""
    if not isinstance(model, str | os.PathLike):
        return None
    path = Path(os.fspath(model))
    suffixes = [target.suffix for target in TARGETS.values()]
    if not _is_name(path):
        return None
    restore_folder(path)
    if (path / "export.json").is_file():
        return path
    if any((path / f"tensor{suffix}").is_file() for suffix in suffixes):
        raise CheckpointError(f"{path} has exported files but no export.json; copy the whole folder")
    if path.is_file() and path.suffix in suffixes:
        raise CheckpointError(f"{path} is one file of an export; name its folder: vitreous serve {path.parent}")
    return None


def _is_name(path: Path) -> bool:
    """Whether a file can have this name: the system refuses one that is too long."""
    try:
        path.is_file()
    except OSError:
        return False
    return True


def read(folder: Path, *, anyway: bool = False) -> Exported:
    """Read and check a folder.  anyway: even if it does not agree with PyTorch."""
    about = _read(folder, "export.json", About)
    if about.target in TARGETS and TARGETS[about.target].is_page:
        raise ConfigError(
            f"{folder} is a page that answers by itself; open it with python -m http.server --directory {folder}, "
            f"or serve the model that it was made of"
        )
    if about.answers == "features":
        raise ConfigError(
            f"{folder} holds an encoder without a head, so it names nothing; serve the model that it was made of, "
            f"or fit a head and export that: vitreous fit DATA --weights MODEL"
        )
    runner = TARGETS[about.target].runner if about.target in TARGETS else None
    if runner is None:
        raise ConfigError(
            f"{folder} is written for {about.target}, and only folders for {' and '.join(without_torch())} are served; "
            f"serve the model that it was made of"
        )
    require((runner.package,), f"{folder.name} is written for {about.target} and")
    parity = _read(folder, "parity.json", Parity)
    exported = Exported(folder, TARGETS[about.target], about, _labels(folder, about.classes), parity)
    _check_sizes(exported)
    if not parity.passed and not anyway:
        raise ConfigError(
            f"{folder} does not agree with PyTorch ({parity.faults[0]}); export it again, or serve it anyway "
            f"with --anyway"
        )
    _check_vectors(exported)
    return exported


def _read(folder: Path, name: str, kind: type[T]) -> T:
    body = read_json(folder / name)
    if not body:
        raise CheckpointError(f"{folder} has no {name}, so the export is incomplete; copy the whole folder")
    try:
        return msgspec.convert(body, kind)
    except (msgspec.ValidationError, ConfigError) as error:
        raise CheckpointError(
            f"{folder / name} does not fit: {one_line(error)}; export again, with this version of vitreous"
        ) from None


def _labels(folder: Path, classes: int) -> tuple[str, ...]:
    try:
        labels = tuple((folder / "labels.txt").read_text(encoding="utf-8").split("\n")[:-1])
    except (OSError, ValueError):
        raise CheckpointError(f"{folder} has no readable labels.txt; copy the whole folder") from None
    if len(labels) != classes:
        raise CheckpointError(
            f"{folder / 'labels.txt'} has {len(labels):,} lines for {classes:,} classes; copy the folder again"
        )
    return labels


def _check_sizes(exported: Exported) -> None:
    """Compare all files of the tensor form with their recorded sizes: weights may lie beside the graph."""
    noted = {name: size for name, size in exported.parity.files.items() if name.partition(".")[0] == "tensor"}
    for name in sorted({exported.file.name, *noted}):
        file = exported.folder / Path(name).name
        if not file.is_file():
            raise _damaged(exported, f"{name} is missing")
        if file.stat().st_size != noted.get(name):
            raise _damaged(exported, f"{name} has {file.stat().st_size:,} bytes and had {noted.get(name, 0):,}")
        if file == exported.file and not _begins(file, exported.target.starts_with):
            raise _damaged(exported, f"{name} is not a file of {exported.about.target}")


def _begins(file: Path, start: bytes) -> bool:
    with file.open("rb") as opened:
        return opened.read(len(start)) == start


def _check_vectors(exported: Exported) -> None:
    """Run ten tensors whose logits the model recorded: a file changed on its way answers differently."""
    place = exported.folder / "vectors"
    engine = FileEngine(exported)
    try:
        wanted = read_json(place / "expected.json")["tensor"]
        ours = np.array(list(wanted.values()), np.float64)
        tensors = [np.load(place / f"{Path(name).name}.npy") for name in wanted]
    except (OSError, ValueError, KeyError, AttributeError, TypeError, EOFError):
        raise _damaged(exported, "vectors/ cannot be read") from None
    try:
        theirs = np.concatenate([engine.of_tensors(x) for x in tensors])
        apart = compare("tensor", theirs, ours).difference
    except Exception as error:  # each runtime raises its own kind
        raise _damaged(exported, f"{exported.about.target} cannot run {exported.file.name}") from error
    if exported.parity.passed and not apart <= DAMAGED_ABOVE[exported.about.precision]:
        raise _damaged(
            exported, f"{exported.file.name} answers vectors/ differently from the model ({apart:.0%} apart)"
        )


def _damaged(exported: Exported, what: str) -> CheckpointError:
    return CheckpointError(f"{exported.folder} is damaged: {what}; copy the folder again, or export again")
