"""`vitreous.save` and `vitreous.convert`: our models in everyone's formats."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from vitreous.errors import FormatError, VitreousError
from vitreous.files import atomic_folder, atomic_write, claim, delete_file, digest, write_bytes, write_json
from vitreous.models.config import BiTConfig, Config, Size
from vitreous.models.model import Model, state_of, unwrapped
from vitreous.weights import formats, hub
from vitreous.weights.formats import Draft, Format, Hints, hints_of
from vitreous.weights.layouts import write_with
from vitreous.weights.load_model import SIDECAR_SCHEMA, assemble, entry_of, is_new, load
from vitreous.weights.own_format import check_usage, default_name, usage_to_json, write_checkpoint
from vitreous.weights.tensor_files import FOLDER_SIDECAR, READERS, RawCheckpoint, Tensors, read_json


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

    An error names the part that the format cannot hold, or that its library would run differently (another GELU,
    another eps); `anyway` allows the latter. A file of tensors alone gets a sidecar NAME.json with the rest. Formats of
    other libraries hold float32, whatever the model computes in. Nothing is overwritten without `force`; a file is
    whole or absent.
    """
    model = unwrapped(model)
    check_usage(model)
    if format == "vitreous":
        file = default_name(path)
        write_checkpoint(model, file, force=force, recipe=recipe, metrics=metrics)
        return [file]
    return save_foreign(model, path, formats.get(format), anyway=anyway, force=force)[0]


def save_foreign(
    model: Model, path: str | os.PathLike[str], known: Format, *, anyway: bool, force: bool
) -> tuple[list[Path], list[str]]:
    """Write a model in another library's format; returns the files, and notes on what the format cannot hold."""
    held = hold(model, known, anyway=anyway)
    tensors = write_with(known.rules(held.config), held.state_dict())
    if not known.is_folder:
        written = write_file(held, known, tensors, default_name(path, known.suffixes), force=force)
        return written, unsaid(held, known, read_alone(held, known, tensors))
    target = Path(path)
    if target.suffix in READERS:
        raise FormatError(f"{known.name} is written as a folder, and {target} is a file's name; leave the ending out")
    with atomic_folder(target, force=force) as folder:
        written = known.write(held, tensors, folder)
        draft = read_alone(held, known, tensors, folder)
        if not says_it_all(held, draft):
            written.append(folder / FOLDER_SIDECAR)
            write_json(written[-1], sidecar_of(held, folder / "model.safetensors"), allow_nan=True)
    return [target / file.relative_to(folder) for file in written], unsaid(held, known, draft)


def write_file(model: Model, known: Format, tensors: Mapping[str, Tensor], target: Path, *, force: bool) -> list[Path]:
    """Write one file of tensors, and a sidecar with what tensors cannot tell.

    The sidecar is written first, so no file ever lacks it. It names its file by digest. While an older file is
    replaced it describes both, so after a kill neither gets the labels of the other.
    """
    sidecar = target.with_name(target.name + ".json")
    is_ours = bool(earlier_sidecar(sidecar))  # a sidecar without its file: a writer was killed
    claim(target, force=force)
    claim(sidecar, force=force or is_ours)
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{target.name}.", dir=target.parent) as folder:
        part = Path(folder) / target.name
        known.write(model, tensors, part)
        beside = sidecar_of(model, part)
        older = entry_of(earlier_sidecar(sidecar), target) if target.is_file() else None
        before = sidecar.read_bytes() if sidecar.is_file() else None
        both = {**beside, "replaces": older} if older else beside
        write_json(sidecar, both, force=force or is_ours, allow_nan=True)
        try:
            with part.open("rb") as written:
                atomic_write(target, lambda file: shutil.copyfileobj(written, file, 2**20), force=force)
        except BaseException:
            if before is None:
                delete_file(sidecar)
            else:
                write_bytes(sidecar, before, force=True)
            raise
    if older:
        write_json(sidecar, beside, force=True, allow_nan=True)
    return [target, sidecar]


def earlier_sidecar(path: Path) -> dict[str, Any]:
    """Our sidecar at this path; empty if the file there is not ours."""
    try:
        record = read_json(path)
    except (VitreousError, OSError):
        return {}
    return record if record.get("schema") == SIDECAR_SCHEMA else {}


def read_alone(model: Model, known: Format, tensors: Mapping[str, Tensor], folder: Path | None = None) -> Draft | None:
    """What a reader without our sidecar would assume, from a folder's configs or by convention."""
    where = str(folder or "the file")
    found, hints = RawCheckpoint(where, Tensors(tensors, where)), hints_of(model.config)
    try:
        if folder is not None:
            config, preprocessor = (read_json(folder / f"{name}.json") for name in ("config", "preprocessor_config"))
            found, hints = replace(found, config=config, preprocessor=preprocessor), Hints()
        draft = known.draft(found, hints)
    except VitreousError:
        return None
    draft.preprocess = draft.preprocess.with_channels(draft.config.channels)
    return draft


def says_it_all(model: Model, draft: Draft | None) -> bool:
    """True if a reader needs no sidecar."""
    if draft is None:
        return False
    same_use = replace(draft.preprocess, source=model.preprocess.source)
    return (
        (essence(draft.config), same_use, draft.labels) == (essence(model.config), model.preprocess, model.labels)
    ) and (model.temperature, model.threshold, model.answers, model.track_record) == (1.0, None, "one", None)


def unsaid(model: Model, known: Format, draft: Draft | None) -> list[str]:
    """Notes on what another library would run differently or lose, because the format cannot say it."""
    parts = known.refuses(model.config)
    notes = [f"{known.name} would run this model differently: {', '.join(map(str, parts))}"] if parts else []
    if draft is not None:
        mine, theirs = model.preprocess, draft.preprocess
        silent = ["source"]
        silent += ["centre"] if mine.fit == theirs.fit == "squash" else []
        silent += ["resized_by"] if not (mine.antialias and theirs.antialias) else []
        names = [
            f.name for f in fields(mine) if f.name not in silent and getattr(mine, f.name) != getattr(theirs, f.name)
        ]
        words = [f"{name}={getattr(mine, name)} (its own: {getattr(theirs, name)})" for name in names]
        notes += [f"{known.name} would preprocess differently: {', '.join(words)}"] if words else []
        lost = {"labels": model.labels != draft.labels, "temperature": model.temperature != 1.0}
        lost |= {"threshold": model.threshold is not None, "several labels": model.answers == "several"}
        lost |= {"track record": model.track_record is not None}
        words = [name for name, is_lost in lost.items() if is_lost]
        notes += [f"{known.name} has no word for {' and '.join(words)}; vitreous reads them beside"] if words else []
    types = {str(t.dtype) for t in model.state_dict().values() if t.is_floating_point()} - {"torch.float32"}
    notes += [f"numbers are written as float32; the model's are {t.removeprefix('torch.')}" for t in sorted(types)]
    return notes


def essence(config: Config) -> Config:
    """The config without options that do not affect a trained model at its own image size."""
    if isinstance(config, BiTConfig):
        return config
    scale = None if config.encoder.layer_scale is None else 1.0
    start = {"token_start": "zeros", "position_start": "normal", "layer_scale": scale}
    chance = {"dropout": 0.0, "attention_dropout": 0.0, "drop_path": 0.0}
    return config.change(**start, **chance, position_resize="paper", dynamic_image_size=False, mask_token=False)


def sidecar_of(model: Model, weights: Path) -> dict[str, Any]:
    """The sidecar's content, tied to one file of weights by its digest."""
    about = {"schema": SIDECAR_SCHEMA, "digest": digest(weights), "config": model.config.to_json()}
    return about | usage_to_json(model)


# Options that no tensor shows; a sidecar can hold them.
IN_NO_TENSOR = (
    "activation", "norm_eps", "attention_scale",
    "standardise_eps", "standardise_eps_at", "group_norm_eps", "root_pad",
)  # fmt: skip


def hold(model: Model, known: Format, *, anyway: bool) -> Model:
    """The model rewritten for the format; an error names the parts that it cannot hold."""
    config, state = known.to_hold(model.config, state_of(model))
    parts = known.refuses(config)
    only_function = all(part.name in IN_NO_TENSOR and part.value != "swiglu" for part in parts)
    if parts and not (anyway and only_function):
        end = "; write it with anyway=True (--anyway) to keep the tensors all the same" if only_function else ""
        verb = "would run this model differently" if only_function else "cannot hold this model"
        raise FormatError(f"{known.name} {verb}: {', '.join(map(str, parts))}{end}")
    held = assemble(config, dict(state))
    names = ("preprocess", "labels", "temperature", "threshold", "answers", "familiarity", "track_record", "source")
    for name in names:
        setattr(held, name, getattr(model, name))
    return held


@dataclass
class Converted:
    """The files that `convert` wrote, with notes on what was assumed and what the format cannot hold."""

    files: list[str]
    notes: list[str] = field(default_factory=list)
    pushed: bool | None = None  # None: the target is not on the hub

    def to_json(self) -> dict[str, Any]:
        return {"files": self.files, "notes": self.notes, "pushed": self.pushed}

    def _repr_html_(self) -> str:
        return "<br>".join(str(self).splitlines())

    def __str__(self) -> str:
        verb = {None: "wrote", True: "pushed", False: "would push"}[self.pushed]
        return "\n".join([*(f"{verb} {file}" for file in self.files), *(f"note: {note}" for note in self.notes)])

    __repr__ = __str__  # at a prompt


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
    architecture: str | None = None,
    position_resize: str = "paper",
    anyway: bool = False,
    force: bool = False,
    push: bool = False,
) -> Converted:
    """Read any checkpoint and write it in format `to`; `path` may be hf:OWNER/NAME, pushed only with `push`."""
    known = None if to == "vitreous" else formats.get(to)
    is_push = os.fspath(path).startswith(hub.SCHEMES)
    if is_push:
        hub.check_target(os.fspath(path))  # before any work
    model = load(
        source, format=format, classes=classes, image_size=image_size, heads=heads, activation=activation,
        norm_eps=norm_eps, architecture=architecture, position_resize=position_resize,
    )  # fmt: skip
    notes = [*model.source.get("assumed", []), *(f"left out: {part}" for part in model.source.get("left_out", []))]
    notes += [f"first values, not trained: {source} is a name of the catalog"] if is_new(os.fspath(source)) else []

    def write(target: str | os.PathLike[str]) -> list[Path]:
        if known is None:
            return save(model, target, force=force)
        written, lines = save_foreign(model, target, known, anyway=anyway, force=force)
        notes.extend(lines)
        return written

    if not is_push:
        return Converted([str(file) for file in write(path)], notes)
    with tempfile.TemporaryDirectory() as folder:
        inside = Path(folder) / "upload"
        written = write(inside if known is not None and known.is_folder else inside / "model")
        listing = [f"{file.relative_to(inside)} ({file.stat().st_size:,} bytes)" for file in written]
        if push:
            hub.push(inside, os.fspath(path))
    return Converted([f"{line} to {os.fspath(path)}" for line in listing], notes, pushed=push)
