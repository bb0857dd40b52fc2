"""Our own format: one safetensors file whose metadata holds the manifest.

The manifest says everything that the tensors do not: config, preprocessing, labels, temperature, recipe, metrics,
source, and a digest of each tensor and of itself, so that a damaged file is refused by the name of what is damaged.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vitreous.errors import CheckpointError, ConfigError
from vitreous.files import atomic_write, digest
from vitreous.models import config as configs
from vitreous.models import preprocess as preprocesses
from vitreous.models.catalog import blueprint
from vitreous.models.config import Config
from vitreous.models.model import Model
from vitreous.models.preprocess import Preprocess
from vitreous.weights.reading import Found

KEY = "vitreous"
VERSION = 1


@dataclass
class Opened:
    """Everything of a model but its memory."""

    config: Config
    state: dict[str, Tensor]
    preprocess: Preprocess
    labels: tuple[str, ...] | None = None
    temperature: float = 1.0
    source: dict[str, Any] | None = None


def write_checkpoint(model: Model, path: Path, *, force: bool = False, recipe: Any = None, metrics: Any = None) -> None:
    from safetensors.torch import save

    state = {name: tensor.detach().cpu().contiguous() for name, tensor in model.state_dict().items()}
    manifest = {
        "version": VERSION,
        "config": model.config.to_json(),
        "preprocess": model.preprocess.to_json(),
        "labels": model.labels,
        "temperature": model.temperature,
        "recipe": recipe,
        "metrics": metrics,
        "source": model.source,
        "tensors": {name: tensor_digest(tensor) for name, tensor in state.items()},
    }
    text = json.dumps(manifest, sort_keys=True)
    sealed = json.dumps({"digest": digest(text.encode()), "manifest": text})
    atomic_write(path, lambda file: file.write(save(state, metadata={KEY: sealed})), force=force)


def is_checkpoint(found: Found) -> bool:
    return KEY in found.metadata


def read_manifest(found: Found) -> dict[str, Any]:
    """The manifest of our file, whole and as it was written."""
    try:
        sealed = json.loads(found.metadata[KEY])
        text = sealed["manifest"]
        manifest = json.loads(text) if digest(text.encode()) == sealed["digest"] else None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        manifest = None
    if not isinstance(manifest, dict):
        raise CheckpointError(f"the manifest of {found.path} is damaged; fetch or write the file again")
    if manifest.get("version") != VERSION:
        raise CheckpointError(
            f"{found.path} is of format version {manifest.get('version')}, we read {VERSION}; upgrade vitreous"
        )
    return manifest


def read_checkpoint(found: Found) -> Opened:
    manifest = read_manifest(found)
    try:
        config = configs.from_json(manifest["config"])
        shapes = {name: tensor.shape for name, tensor in blueprint(config).state_dict().items()}
        preprocess = preprocesses.from_json(manifest["preprocess"])
        labels, digests = manifest.get("labels"), manifest["tensors"]
        temperature = float(manifest.get("temperature", 1.0))
    except (KeyError, TypeError, ValueError, ConfigError) as error:
        raise CheckpointError(
            f"the manifest of {found.path} does not describe a model: {error}; write the file again"
        ) from None
    check_tensors(found, shapes, digests)
    return Opened(
        config,
        dict(found.tensors),
        preprocess,
        tuple(labels) if labels else None,
        temperature,
        manifest.get("source") or {},
    )


def check_tensors(found: Found, shapes: Mapping[str, torch.Size], digests: Mapping[str, str]) -> None:
    """Names, shapes and digests, each refusal naming the tensor."""
    for name, wanted in shapes.items():
        if name not in found.tensors:
            raise CheckpointError(f"{found.path} lacks the tensor {name}; fetch or write the file again")
        tensor = found.tensors[name]
        if tensor.shape != wanted:
            sizes = ("x".join(map(str, shape)) for shape in (tensor.shape, wanted))
            raise CheckpointError(
                "tensor {} of {} has shape {}, its config asks for {}; write the file again".format(
                    name, found.path, *sizes
                )
            )
        if digests.get(name) != tensor_digest(tensor):
            raise CheckpointError(
                f"tensor {name} of {found.path} is damaged (its digest does not fit); fetch or write the file again"
            )
    extra = sorted(set(found.tensors) - set(shapes))
    if extra:
        raise CheckpointError(
            f"{found.path} has a tensor {extra[0]} that its config does not know; write the file again"
        )


def tensor_digest(tensor: Tensor) -> str:
    """SHA-256 of shape, type and bytes."""
    head = f"{tensor.dtype} {tuple(tensor.shape)} ".encode()
    raw = tensor.contiguous().flatten().view(torch.uint8).numpy().tobytes() if tensor.numel() else b""
    return digest(head + raw)


def default_name(path: str | os.PathLike[str]) -> Path:
    """A file for one checkpoint: a name without an ending gets ours."""
    path = Path(path)
    return path if path.suffix else path.with_suffix(".safetensors")
