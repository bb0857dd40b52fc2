"""Our own format: one safetensors file whose metadata holds the manifest.

The manifest holds everything that the tensors do not: config, preprocessing, labels, temperature, threshold, whether
images have one label or several, recipe, metrics and source. Digests of each tensor and of the manifest let an error
name what is damaged.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from torch import Tensor

from vitreous.errors import CheckpointError, ConfigError, FormatError, VitreousError
from vitreous.files import sealed, unsealed, write_bytes
from vitreous.models import config as configs
from vitreous.models import familiarity as familiarities
from vitreous.models import preprocess as preprocesses
from vitreous.models import track_record as track_records
from vitreous.models.catalog import blueprint
from vitreous.models.config import Config, ViTConfig
from vitreous.models.familiarity import Familiarity
from vitreous.models.model import Model, head_shape, state_of
from vitreous.models.preprocess import Preprocess
from vitreous.models.track_record import TrackRecord
from vitreous.printable import storable
from vitreous.weights.formats import stated_preprocess, stem_of
from vitreous.weights.tensor_files import READERS, RawCheckpoint, by, bytes_of
from vitreous.words import one_line

MANIFEST_KEY = "vitreous"
MANIFEST_VERSION = 1


@dataclass(frozen=True)
class Usage:
    """How to prepare a model's input and read its output, which the tensors do not show."""

    preprocess: Preprocess
    labels: tuple[str, ...] | None = None
    temperature: float = 1.0
    threshold: float | None = None
    answers: Literal["one", "several"] = "one"
    familiarity: Familiarity | None = None
    track_record: TrackRecord | None = None

    def for_new_head(self) -> Usage:
        """What stays valid for a new head."""
        return Usage(self.preprocess)

    def give(self, model: Model) -> None:
        """Set these on a model."""
        model.preprocess = self.preprocess.at(model.config.image_size)
        labels = tuple(map(storable, self.labels or ()))
        model.labels = labels if labels and len(labels) == model.config.readout.classes else None
        model.temperature, model.threshold, model.answers = self.temperature, self.threshold, self.answers
        model.familiarity = self.familiarity
        if self.familiarity is not None and tuple(self.familiarity.means.shape) != head_shape(model):
            model.familiarity = model.threshold = None
        is_as_measured = self.preprocess.size == model.config.image_size
        model.track_record = self.track_record if is_as_measured else None


@dataclass
class Opened:
    """A checkpoint that was read: all that a model needs."""

    config: Config
    state: dict[str, Tensor]
    usage: Usage
    source: dict[str, Any] | None = None


def write_checkpoint(model: Model, path: Path, *, force: bool = False, recipe: Any = None, metrics: Any = None) -> None:
    from safetensors.torch import save

    state = {name: tensor.detach().cpu().contiguous() for name, tensor in state_of(model).items()}
    if state.keys() != blueprint(model.config).state_dict().keys():
        raise CheckpointError(f"the model no longer has the parts of its config, so {path} could not be read back")
    digests = {name: tensor_digest(tensor) for name, tensor in state.items()}
    manifest = manifest_of(model, recipe, metrics, tensors=digests)
    write_bytes(path, save(state, metadata={MANIFEST_KEY: sealed(manifest)}), force=force)


def manifest_of(model: Model, recipe: Any, metrics: Any, **more: Any) -> dict[str, Any]:
    """All that the tensors do not show.  more: entries for one kind of file."""
    free = {"recipe": recipe, "metrics": metrics, "source": model.source}
    for name, value in free.items():
        try:
            json.dumps(value, sort_keys=True)
        except (TypeError, ValueError, RecursionError) as error:
            raise ConfigError(
                f"{name} is not JSON: {one_line(error)}; give plain numbers, words, lists, dicts"
            ) from None
    config = model.config.to_json()
    return {"version": MANIFEST_VERSION, "config": config, **usage_to_json(model), **free, **more}


def is_checkpoint(found: RawCheckpoint) -> bool:
    return MANIFEST_KEY in found.metadata


def is_ours_without_manifest(found: RawCheckpoint) -> bool:
    names = set(found.tensors)
    return {"embedding.projection.weight", "blocks.0.attention.qkv.weight"} <= names or "last_norm.weight" in names


def read_manifest(found: RawCheckpoint) -> dict[str, Any]:
    """Read our file's manifest and check its digest."""
    manifest = unsealed(found.metadata[MANIFEST_KEY])
    if manifest is None:
        raise CheckpointError(f"the manifest of {found.path} is damaged; fetch or write the file again")
    if manifest.get("version") != MANIFEST_VERSION:
        raise CheckpointError(
            f"{found.path} is of format version {manifest.get('version')}, we read {MANIFEST_VERSION}; upgrade vitreous"
        )
    return manifest


def read_checkpoint(found: RawCheckpoint) -> Opened:
    manifest = read_manifest(found)
    opened, wanted = open_manifest(manifest, found)
    digests = manifest.get("tensors")
    check_tensors(found, wanted, digests if isinstance(digests, dict) else {})
    opened.state = dict(found.tensors)
    return opened


def open_manifest(manifest: Mapping[str, Any], found: RawCheckpoint) -> tuple[Opened, dict[str, Tensor]]:
    """What the manifest states, without tensors yet; and the tensors that its model needs, on the meta device."""
    try:
        config = described(manifest.get("config"), found)
        wanted = blueprint(config).state_dict()
        stated = usage(manifest, found)
    except (ValueError, TypeError, RuntimeError, OverflowError, VitreousError) as error:
        raise CheckpointError(
            f"the manifest of {found.path} does not describe a model: {one_line(error)}; write the file again"
        ) from None
    source = manifest.get("source")
    return Opened(config, {}, stated, source if isinstance(source, dict) else {}), wanted


def described(record: Any, found: RawCheckpoint) -> Config:
    """Parse a config, if the file can hold such a model: a file must not make us build more than it holds."""
    config = configs.from_json(record)
    if not all(0 < n < 2**16 for n in config.image_size):
        raise ConfigError(f"image_size {by(config.image_size)} is not valid")
    if not isinstance(config, ViTConfig):
        fewest = 9 * sum(config.resnet.units)
    else:
        fewest = 6 * config.encoder.depth + (12 * sum(config.resnet.units) if config.embedding.stem == "resnet" else 0)
    if fewest > len(found.tensors):
        raise ConfigError(f"it asks for {fewest} tensors and more, there are {len(found.tensors)}")
    if isinstance(config, ViTConfig):
        rows, columns = stem_of(config).grid(config.image_size)
        tokens = rows * columns + config.prefix
        in_attention = config.embedding.positions == "relative"
        tables = config.encoder.depth if in_attention or config.embedding.positions_at == "every-layer" else 1
        if tokens * (tokens if in_attention else config.encoder.width) * tables > 2**30:  # numbers beside the tensors
            raise ConfigError(f"images of {by(config.image_size)} make {tokens} tokens, too many")
    return config


def usage_to_json(model: Model) -> dict[str, Any]:
    """A model's usage as JSON, for manifests and sidecars."""
    names = ("labels", "temperature", "threshold", "answers")
    body = {"preprocess": model.preprocess.to_json()} | {name: getattr(model, name) for name in names}
    own = {name: getattr(model, name) for name in ("familiarity", "track_record")}
    return body | {name: None if value is None else value.to_json() for name, value in own.items()}


def usage(record: Mapping[str, Any], found: RawCheckpoint) -> Usage:
    """The usage from the JSON of a manifest or sidecar."""
    stated = record.get("preprocess")
    preprocess = stated_preprocess(found, **stated) if isinstance(stated, dict) else preprocesses.from_json(stated)
    labels, temperature = record.get("labels"), record.get("temperature", 1.0)
    threshold, answers = record.get("threshold"), record.get("answers", "one")
    if labels is not None and not (isinstance(labels, list) and all(isinstance(name, str) for name in labels)):
        raise ConfigError("labels are not a list of words")
    _check_answers(temperature, threshold, answers)
    limit = None if threshold is None else float(threshold)
    known = record.get("familiarity")
    familiarity = None if known is None else familiarities.from_json(known)
    measured = record.get("track_record")
    track_record = None if measured is None else track_records.from_json(measured)
    names = tuple(labels) if labels else None
    return Usage(preprocess, names, float(temperature), limit, answers, familiarity, track_record)


def check_usage(model: Model) -> None:
    """Refuse to write labels, a temperature or a threshold that would not be read back."""
    check_labels(model.labels, model.config.readout.classes)
    _check_answers(model.temperature, model.threshold, model.answers, advice="; set model.")


def _check_answers(temperature: Any, threshold: Any, answers: Any, *, advice: str = "") -> None:
    """advice: what to do, completed by the faulty name; empty if the caller's error says it."""
    if not _is_finite(temperature) or temperature <= 0:
        end = advice and f"{advice}temperature"
        raise ConfigError(f"temperature {one_line(temperature)} is not a positive number{end}")
    if threshold is not None and not _is_finite(threshold):
        end = advice and f"{advice}threshold, or None for none"
        raise ConfigError(f"threshold {one_line(threshold)} is not a number{end}")
    if answers not in ("one", "several"):
        raise ConfigError(f"answers {one_line(answers)} is neither one nor several{advice and f'{advice}answers'}")


def _is_finite(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) < math.inf


def check_labels(labels: Any, classes: int) -> None:
    """Labels must be one word per class, or None."""
    if labels is None:
        return
    if not isinstance(labels, list | tuple) or not all(isinstance(name, str) for name in labels):
        raise ConfigError(f"labels {one_line(labels)[:40]!r} are not a list of words; give one label per answer")
    if len(labels) != classes:
        raise ConfigError(f"{len(labels)} labels were given and the model answers {classes}; give one label per answer")
    if halves := [name for name in labels if storable(name) != name]:
        raise ConfigError(f"label {storable(halves[0])!r} holds half a character, which no file can hold; correct it")


def check_tensors(found: RawCheckpoint, blueprint: Mapping[str, Tensor], digests: Mapping[str, Any]) -> None:
    """Check names, shapes, types and digests; an error names the tensor."""
    for name, wanted in blueprint.items():
        if name not in found.tensors:
            raise CheckpointError(f"{found.path} lacks the tensor {name}; fetch or write the file again")
        tensor = found.tensors[name]
        if tensor.shape != wanted.shape:
            raise CheckpointError(
                f"tensor {name} of {found.path} has shape {by(tensor.shape)}, its config asks for {by(wanted.shape)}; "
                f"write the file again"
            )
        if tensor.is_floating_point() != wanted.is_floating_point():
            raise CheckpointError(f"tensor {name} of {found.path} holds {tensor.dtype}, not weights; write it again")
        if digests.get(name) != tensor_digest(tensor):
            raise CheckpointError(
                f"tensor {name} of {found.path} is damaged (its digest does not fit); fetch or write the file again"
            )
    extra = sorted(set(found.tensors) - set(blueprint))
    if extra:
        raise CheckpointError(
            f"{found.path} has a tensor {extra[0]} that its config does not know; write the file again"
        )


def tensor_digest(tensor: Tensor) -> str:
    """SHA-256 of shape, type and bytes."""
    found = hashlib.sha256(f"{tensor.dtype} {tuple(tensor.shape)} ".encode())
    if tensor.numel():
        found.update(bytes_of(tensor.contiguous()))
    return found.hexdigest()


def default_name(path: str | os.PathLike[str], endings: tuple[str, ...] = (".safetensors",)) -> Path:
    """The path of one checkpoint file: adds the first ending if there is none, refuses one that would be misread."""
    if os.fspath(path).endswith(("/", os.sep)) or not Path(path).name:
        raise FormatError(f"{os.fspath(path) or 'an empty path'} names no file; give one such as model{endings[0]}")
    path = Path(path)
    if path.suffix in endings:
        return path
    if path.suffix in READERS:
        raise FormatError(f"{path} would be misread; let the name end in {' or '.join(endings)}, or leave it out")
    return path.with_name(path.name + endings[0])
