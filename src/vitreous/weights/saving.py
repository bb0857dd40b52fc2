"""`vitreous.save` and `vitreous.convert`: our models in everyone's formats."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from vitreous.errors import ExistsError, FormatError, VitreousError
from vitreous.files import atomic_folder, atomic_write, digest
from vitreous.models.config import BiTConfig, Config, Size
from vitreous.models.model import Model
from vitreous.weights import formats, hub
from vitreous.weights.checkpoint import default_name, write_checkpoint
from vitreous.weights.formats import Format, Hints
from vitreous.weights.loading import SIDECAR, assemble, load
from vitreous.weights.moves import write_with
from vitreous.weights.reading import FOLDER_SIDECAR, READERS, Found, Tensors, read_json


def save(
    model: Model,
    path: str | os.PathLike[str],
    *,
    format: str = "vitreous",
    anyway: bool = False,
    force: bool = False,
    recipe: Any = None,
    metrics: Any = None,
) -> list[Path]:
    """Write a model for us or for another library; returns the files.

    A model that the format cannot hold is refused by the part. So is one that the format's library would run
    differently (another GELU, another eps), unless `anyway`. Beside formats of tensors alone goes NAME.json, so that
    we read back what they cannot say. Nothing is overwritten without `force`; a file is whole or absent.
    """
    if format == "vitreous":
        file = default_name(path)
        write_checkpoint(model, file, force=force, recipe=recipe, metrics=metrics)
        return [file]
    known = formats.get(format)
    held = hold(model, known, anyway=anyway)
    tensors = write_with(known.rules(held.config), held.state_dict())
    if not known.is_folder:
        return write_file(held, known, tensors, default_name(path, known.suffixes), force=force)
    target = Path(path)
    if target.suffix in READERS:
        raise FormatError(f"{known.name} is written as a folder, and {target} is a file's name; leave the ending out")
    with atomic_folder(target, force=force) as folder:
        files = known.write(held, tensors, folder)
        if not says_it_all(held, known, tensors, folder):
            files.append(folder / FOLDER_SIDECAR)
            files[-1].write_bytes(sidecar_of(held, folder / "model.safetensors"))
    return [target / file.relative_to(folder) for file in files]


def write_file(model: Model, known: Format, tensors: Mapping[str, Tensor], target: Path, *, force: bool) -> list[Path]:
    """One file of tensors, and beside it what tensors cannot tell."""
    sidecar = target.with_name(target.name + ".json")
    for taken in (path for path in (target, sidecar) if not force and os.path.lexists(path)):
        raise ExistsError(f"{taken} exists already; choose another place, or overwrite it with --force (force=True)")
    with tempfile.TemporaryDirectory() as folder:
        part = Path(folder) / target.name
        known.write(model, tensors, part)
        beside = sidecar_of(model, part)
        atomic_write(target, lambda file: file.write(part.read_bytes()), force=force)
    atomic_write(sidecar, lambda file: file.write(beside), force=True)
    return [target, sidecar]


def says_it_all(model: Model, known: Format, tensors: Mapping[str, Tensor], folder: Path) -> bool:
    """Whether the configs in a folder tell a reader everything that the tensors do not."""
    config, preprocessor = read_json(folder / "config.json"), read_json(folder / "preprocessor_config.json")
    found = Found(str(folder), Tensors(tensors, str(folder)), config=config, preprocessor=preprocessor)
    try:
        draft = known.draft(found, Hints())
    except VitreousError:
        return False
    same_use = replace(draft.preprocess.with_channels(draft.config.channels), source=model.preprocess.source)
    return (
        (essence(draft.config), same_use, draft.labels) == (essence(model.config), model.preprocess, model.labels)
    ) and model.temperature == 1.0


def essence(config: Config) -> Config:
    """A config without what plays no part in the function of a trained model at its own size."""
    if isinstance(config, BiTConfig):
        return config
    scale = None if config.encoder.layer_scale is None else 1.0
    start = {"token_start": "zeros", "position_start": "normal", "layer_scale": scale}
    chance = {"dropout": 0.0, "attention_dropout": 0.0, "drop_path": 0.0}
    return config.change(**start, **chance, position_resize="paper", dynamic_image_size=False, mask_token=False)


def sidecar_of(model: Model, weights: Path) -> bytes:
    """What a format cannot say, tied to one file of weights by its digest."""
    said = {
        "schema": SIDECAR,
        "digest": digest(weights),
        "config": model.config.to_json(),
        "preprocess": model.preprocess.to_json(),
        "labels": model.labels,
        "temperature": model.temperature,
    }
    return (json.dumps(said, indent=2) + "\n").encode()


# Numbers and words that live in no tensor: they can be written down beside, where another architecture cannot.
IN_NO_TENSOR = (
    "activation",
    "norm_eps",
    "attention_scale",
    "standardise_eps",
    "standardise_eps_at",
    "group_norm_eps",
    "root_pad",
)


def hold(model: Model, known: Format, *, anyway: bool) -> Model:
    """The model as the format has it; refuses by part what it cannot hold."""
    config, state = known.to_hold(model.config, model.state_dict())
    parts = known.refuses(config)
    only_function = all(part.split("=")[0] in IN_NO_TENSOR and "swiglu" not in part for part in parts)
    if parts and not (anyway and only_function):
        end = "; write it with anyway=True (--anyway) to keep the tensors all the same" if only_function else ""
        verb = "would run this model differently" if only_function else "cannot hold this model"
        raise FormatError(f"{known.name} {verb}: {', '.join(parts)}{end}")
    held = assemble(config, dict(state))
    held.preprocess, held.labels = model.preprocess, model.labels
    held.temperature, held.source = model.temperature, model.source
    return held


@dataclass
class Converted:
    """What `convert` wrote, and what it had to assume."""

    files: list[str]
    notes: list[str] = field(default_factory=list)
    pushed: bool | None = None  # None: nothing was to be pushed

    def to_json(self) -> dict[str, Any]:
        return {"files": self.files, "notes": self.notes, "pushed": self.pushed}

    def _repr_html_(self) -> str:
        return "<br>".join(str(self).splitlines())

    def __str__(self) -> str:
        verb = {None: "wrote", True: "pushed", False: "would push"}[self.pushed]
        return "\n".join([*(f"{verb} {file}" for file in self.files), *(f"assumed {note}" for note in self.notes)])


def convert(
    source: str | os.PathLike[str],
    path: str | os.PathLike[str],
    *,
    to: str,
    format: str | None = None,
    classes: int | None = None,
    image_size: int | Size | None = None,
    heads: int | None = None,
    activation: str | None = None,
    norm_eps: float | None = None,
    anyway: bool = False,
    force: bool = False,
    push: bool = False,
) -> Converted:
    """Read any checkpoint and write it in format `to`; `path` may be hf:OWNER/NAME, pushed only with `push`."""
    if to not in formats.names():
        raise FormatError(f"format {to!r} is not one of {', '.join(formats.names())}")
    is_push = os.fspath(path).startswith(hub.SCHEMES)
    if is_push:
        hub.repository(os.fspath(path))  # refuse a wrong name before any work
    model = load(
        source,
        format=format,
        classes=classes,
        image_size=image_size,
        heads=heads,
        activation=activation,
        norm_eps=norm_eps,
    )
    notes = list(model.source.get("assumed", []))
    if not is_push:
        files = save(model, path, format=to, anyway=anyway, force=force)
        return Converted([str(file) for file in files], notes)
    with tempfile.TemporaryDirectory() as folder:
        inside = Path(folder) / "upload"
        target = inside if to != "vitreous" and formats.get(to).is_folder else inside / "model"
        files = save(model, target, format=to, anyway=anyway)
        listing = [f"{file.relative_to(inside)} ({file.stat().st_size:,} bytes)" for file in files]
        if push:
            hub.push(inside, os.fspath(path))
    return Converted([f"{line} to {os.fspath(path)}" for line in listing], notes, pushed=push)
