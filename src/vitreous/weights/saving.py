"""`vitreous.save` and `vitreous.convert`: our models in everyone's formats."""

from __future__ import annotations

import json
import os
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vitreous.errors import FormatError
from vitreous.files import atomic_folder, atomic_write, digest
from vitreous.models.config import Size
from vitreous.models.model import Model
from vitreous.weights import formats, hub
from vitreous.weights.checkpoint import default_name, write_checkpoint
from vitreous.weights.formats import Format
from vitreous.weights.loading import SIDECAR, assemble, load
from vitreous.weights.moves import write_with


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
    held, unsaid = hold(model, known, anyway=anyway)
    tensors = write_with(known.rules(held.config), held.state_dict())
    target = Path(path)
    if known.is_folder:
        with atomic_folder(target, force=force) as folder:
            files = known.write(held, tensors, folder)
            if unsaid:
                files.append(folder / "vitreous.json")
                files[-1].write_bytes(sidecar_of(held, folder / "model.safetensors"))
        return [target / file.relative_to(folder) for file in files]
    return write_file(held, known, tensors, target if target.suffix else target.with_suffix(known.suffix), force=force)


def write_file(model: Model, known: Format, tensors: Any, target: Path, *, force: bool) -> list[Path]:
    """One file of tensors, and beside it what tensors cannot tell."""
    sidecar = target.with_name(target.name + ".json")
    with tempfile.TemporaryDirectory() as folder:
        part = Path(folder) / target.name
        known.write(model, tensors, part)
        beside = sidecar_of(model, part)
        atomic_write(target, lambda file: file.write(part.read_bytes()), force=force)
    atomic_write(sidecar, lambda file: file.write(beside), force=True)
    return [target, sidecar]


def sidecar_of(model: Model, weights: Path) -> bytes:
    """What a format cannot say, tied to one file of weights by its digest."""
    said = {
        "schema": SIDECAR,
        "digest": digest(weights),
        "config": model.config.to_json(),
        "preprocess": model.preprocess.to_json(),
        "labels": model.labels,
    }
    return (json.dumps(said, indent=2) + "\n").encode()


UNHOLDABLE_FUNCTION = ("activation", "norm_eps", "standardise_eps", "group_norm_eps", "root_pad", "attention_scale")


def hold(model: Model, known: Format, *, anyway: bool) -> tuple[Model, list[str]]:
    """The model as the format has it, and what the format cannot say of it; refuses by part what it cannot hold."""
    config, state = known.to_hold(model.config, model.state_dict())
    parts = known.refuses(config)
    # Numbers that live in no tensor can be written down all the same; another architecture cannot.
    only_function = all(part.split("=")[0] in UNHOLDABLE_FUNCTION for part in parts) and "swiglu" not in " ".join(parts)
    if parts and not (anyway and only_function):
        end = "; write it with anyway=True (--anyway) to keep the tensors all the same" if only_function else ""
        verb = "would run this model differently" if only_function else "cannot hold this model"
        raise FormatError(f"{known.name} {verb}: {', '.join(parts)}{end}")
    held = assemble(config, dict(state))
    held.preprocess, held.labels, held.temperature, held.source = (
        model.preprocess,
        model.labels,
        model.temperature,
        model.source,
    )
    return held, parts


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
    if not os.fspath(path).startswith("hf:"):
        files = save(model, path, format=to, anyway=anyway, force=force)
        return Converted([str(file) for file in files], notes)
    with tempfile.TemporaryDirectory() as folder:
        inside = Path(folder) / "upload"
        target = inside if formats.names().index(to) and formats.get(to).is_folder else inside / "model"
        files = save(model, target, format=to, anyway=anyway)
        listing = [f"{file.relative_to(inside)} ({file.stat().st_size:,} bytes)" for file in files]
        if push:
            hub.push(inside, os.fspath(path))
    return Converted([f"{line} to {os.fspath(path)}" for line in listing], notes, pushed=push)
