"""`vitreous.load`: a model from a file, a folder, the hub or a catalog name."""

from __future__ import annotations

import dataclasses
import os
import re
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from vitreous.errors import CheckpointError, ConfigError, FormatError, ModelNameError, nearest
from vitreous.files import digest, restore_folder
from vitreous.models import config as configs
from vitreous.models.catalog import blueprint, build, is_in_catalog, of_other_libraries
from vitreous.models.config import BiTConfig, Size, as_size
from vitreous.models.model import Model, is_untrained
from vitreous.weights import formats, hub, imagenet, pretrained, starter
from vitreous.weights.formats import Format, Hints, hints_of
from vitreous.weights.layouts import read_with
from vitreous.weights.originals import Original, open_original
from vitreous.weights.own_format import (
    Opened,
    Usage,
    check_labels,
    described,
    is_checkpoint,
    is_ours_without_manifest,
    read_checkpoint,
    usage,
)
from vitreous.weights.pretrained import PRETRAINED
from vitreous.weights.quantised import is_quantised, read_quantised
from vitreous.weights.surgery import resize_images, swap_head
from vitreous.weights.tensor_files import READERS, WEIGHT_FILES, RawCheckpoint, ending, read
from vitreous.words import one_line

SIDECAR_SCHEMA = "vitreous.sidecar/1"

RUNS = Path("runs")  # where `vitreous fit` puts its runs
MAX_BESIDE = 1_000  # names compared with one that is not there


def load(
    source: str | os.PathLike[str],
    *,
    format: str | None = None,
    classes: int | None = None,
    image_size: int | Size | None = None,
    heads: int | None = None,
    activation: str | None = None,
    norm_eps: float | None = None,
    architecture: str | None = None,
    labels: tuple[str, ...] | list[str] | None = None,
    dynamic_image_size: bool = False,
    position_resize: str = "paper",
) -> Model:
    """A model from a file, a folder, a hub, a short name or a catalog name, run as its source runs it.

        vitreous.load("ViT-B_16.npz")                            # Google's, with its tanh GELU
        vitreous.load("deit-tiny", classes=5, image_size=384)    # a new head, positions resized
        vitreous.load("hf:facebook/dino-vits16")

    What tensors cannot show (heads, activation, eps, the grid of a table) comes from the argument, the config beside
    them, or the source's convention, in this order; `model.source["assumed"]` lists what was assumed.
    architecture: a name of timm's, or a model_type of transformers, to run the tensors as. Without it the name in
    config.json decides, and a name that we cannot run faithfully is refused. You vouch that it fits.
    classes: a new head of zeros in place of head and representation layer; if the model already has that many
    classes, its head stays.  position_resize: whose method resizes positions to `image_size`
    (for a catalog name: the model's own).
    """
    wanted = None if image_size is None else as_size(image_size)
    hints = Hints(wanted, heads, activation, norm_eps, architecture)
    found = find(source)
    if found is None:
        for name, value in (("format", format), ("architecture", architecture)):
            if value is not None:
                raise FormatError(f"{source} is a name of the catalog, which has no {name}; leave {name}= out")
        changes = {k: v for k, v in dataclasses.asdict(hints).items() if v is not None}
        changes |= {"classes": classes} if classes is not None else {}
        changes |= {"dynamic_image_size": True} if dynamic_image_size else {}
        changes |= {"position_resize": position_resize} if position_resize != "paper" else {}
        model = build(str(source), **changes)
        return with_labels(model, labels)
    opened = open_found(found, format, hints)
    config, state = opened.config, opened.state
    if wanted is not None and wanted != config.image_size:
        config, state = resize_images(config, state, wanted, rule=position_resize)
    if classes is not None and classes != config.readout.classes:
        config, state = swap_head(config, state, classes)
        opened.usage = opened.usage.for_new_head()
    if dynamic_image_size and not isinstance(config, BiTConfig):
        config = config.change(dynamic_image_size=True)
    model = assemble(config, state)
    opened.usage.give(model)
    model.source, model.read_from = opened.source or {}, found.file
    if starter.is_meant(os.fspath(source)) and (terms := starter.terms()):
        model.source = {**model.source, "terms": terms}  # every model made from it carries them
    return with_labels(model.eval(), labels)


def load_trained(source: str | os.PathLike[str], *, untrained: bool = False) -> Model:
    """Load a model to get answers from; refuse a head on random weights unless `untrained`."""
    model = load(source)
    if model.config.readout.classes and is_untrained(model) and not untrained:
        raise ConfigError(
            f"{os.fspath(source)} has random weights, so its answers mean nothing; train it: "
            f"vitreous fit DATA --model {os.fspath(source)}; or say --untrained (untrained=True in Python)"
        )
    return model


def assemble(config: configs.Config, state: dict[str, torch.Tensor]) -> Model:
    """A network with this config and these tensors."""
    model = blueprint(config)
    model.load_state_dict(state, assign=True)
    return model.requires_grad_(True)


def with_labels(model: Model, labels: tuple[str, ...] | list[str] | None) -> Model:
    check_labels(labels, model.config.readout.classes)
    if labels is not None:
        model.labels = tuple(labels)
    return model


def find(source: str | os.PathLike[str]) -> RawCheckpoint | None:
    """The files at `source`, or None for a catalog name. An existing path wins."""
    text = os.fspath(source)
    restore_folder(text)
    if is_new(text):
        return None
    if _exists(Path(text)):
        return read(Path(text))
    if (folder := fetch(text)) is not None:
        known = PRETRAINED.get(text)
        return dataclasses.replace(read(folder), path=known.source if known else text)
    if text == starter.STARTER_NAME:
        return dataclasses.replace(read(starter.file()), path=text)
    return read(newest_run())


def fetch(text: str) -> Path | None:
    """The folder of a hub name or a short name, fetched if it is not in the cache; None for anything else."""
    if _exists(Path(text)):
        return None
    if text in PRETRAINED:
        return pretrained.fetch(PRETRAINED[text])
    return hub.fetch(text) if text.startswith(hub.SCHEMES) else None


def is_new(text: str) -> bool:
    """True if `text` is a catalog name; an error if it looks like a path or hub name that does not exist."""
    path = Path(text)
    if _exists(path) or text.startswith(hub.SCHEMES) or text in ("last", starter.STARTER_NAME, *PRETRAINED):
        return False
    if not is_in_catalog(text) and (beside := _beside(path)):
        raise CheckpointError(f"{one_line(text)} is not there; did you mean {beside}?")
    if ending(path) in READERS or text.startswith((".", "~", os.sep)) or text.endswith(os.sep):  # it is meant as a path
        raise CheckpointError(
            f"{text} is not there; give a file or folder of weights, hf:OWNER/NAME, or a name from: vitreous models"
        )
    if not text.strip():
        raise ModelNameError(
            "the model's name is empty; give a file, a folder, hf:OWNER/NAME, or a name from: vitreous models"
        )
    if not is_in_catalog(text) and _exists(RUNS / text):
        raise ModelNameError(f"no model is called {one_line(text)!r}; did you mean the run {RUNS / text}?")
    words = (*PRETRAINED, starter.STARTER_NAME, "last")
    if not is_in_catalog(text) and (near := nearest(text.replace("_", "-"), words)):
        raise ModelNameError(
            f"no weights are called {one_line(text)!r}; did you mean {' or '.join(near)}? "
            f"(all: vitreous models --weights)"
        )
    is_timm = re.fullmatch(r"(vit|deit|deit3|eva|resnetv2|flexivit)_\w+(\.\w+)?", text, re.ASCII) is not None
    alike = [] if is_in_catalog(text) else of_other_libraries(text)
    if is_timm or (alike and re.fullmatch(r"[\w.-]+", text, re.ASCII)):
        trained = [row.name for row in PRETRAINED.values() if row.network in alike]
        ways = [f"timm's of that name is timm:{text}"] if is_timm else []
        ways += [f"trained weights: {' or '.join(trained)} (all: vitreous models --weights)"] if trained else []
        ways += [f"untrained: {alike[0]}"] if alike else []
        raise ModelNameError(f"no model here is called {text!r}; {'; '.join(ways)}")
    if re.fullmatch(r"[\w.-]+/[A-Za-z_][\w.-]*", text, re.ASCII):  # Ti/16 has a number after the slash
        raise CheckpointError(f"{text} is not there, and no name of the catalog; on the hub it would be hf:{text}")
    if os.sep in text and " " not in text and text.count("/") > 1:
        raise CheckpointError(f"{one_line(text)} is not there; give a file or folder of weights")
    return True


def is_weights(text: str) -> bool:
    """True if `text` names weights, by its name or by what lies there; nothing is read, nothing fetched."""
    path, words = Path(text), ("last", starter.STARTER_NAME, *PRETRAINED)
    if not _exists(path):
        return text in words or text.startswith(hub.SCHEMES) or is_in_catalog(text)
    if not path.is_dir():
        return ending(path) in READERS or path.name in WEIGHT_FILES
    return any(ending(file) in READERS or file.name in (*WEIGHT_FILES, "export.json") for file in path.iterdir())


def _beside(path: Path) -> Path | None:
    """The entry of the path's folder whose name the path misspells; None without such a folder or entry."""
    if path.parent == Path() or not _exists(path.parent) or not path.parent.is_dir():
        return None
    beside = sorted(islice(path.parent.iterdir(), MAX_BESIDE))
    names = {entry.stem: entry for entry in beside if entry.suffix == path.suffix}
    near = nearest(path.stem, list(names), 1)
    return names[near[0]] if near else None


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # not a possible file name
        return False


def newest_run(runs: Path = RUNS) -> Path:
    done = sorted(runs.glob("*/model.safetensors"), key=lambda p: p.stat().st_mtime)
    if not done:
        raise CheckpointError(f"there is no finished run under {runs}{os.sep}; train one first, or name a model")
    return done[-1].parent


def open_found(found: RawCheckpoint, format: str | None, hints: Hints) -> Opened:
    """Config and tensors in our own format, whoever wrote them."""
    if is_checkpoint(found) and format in (None, "vitreous"):
        if hints.architecture is not None:
            raise FormatError(f"{found.path} says itself what it is; leave architecture= out")
        opened = read_quantised(found) if is_quantised(found) else read_checkpoint(found)
        opened.config = opened.config.change(**hints.of_encoder())
        return opened
    if format == "vitreous":
        raise CheckpointError(f"{found.path} has no manifest, so it is not a vitreous checkpoint; leave format= out")
    if format is None and is_ours_without_manifest(found):
        raise CheckpointError(
            f"{found.path} has our tensors but lost its manifest, or never had one; write it with vitreous.save, "
            f"or build the model and give it the tensors with load_state_dict"
        )
    original = open_original(found) if format in (None, "timm") else None
    found = found if original is None else original.found
    known = formats.get(format) if format else formats.recognise(found)
    if hints.architecture is not None and not known.names_architectures:
        raise FormatError(f"{found.path} is of the format {known.name}, which has no names; leave architecture= out")
    try:
        return open_foreign(found, known, hints, original)
    except ConfigError as error:
        raise CheckpointError(f"{found.path} makes no model: {error}") from None
    except (ValueError, IndexError, TypeError, KeyError, RuntimeError, ZeroDivisionError, OverflowError) as error:
        raise CheckpointError(
            f"{found.path} cannot be read as {known.name}: {one_line(error)}; is the file whole, and of this format?"
        ) from error


def open_foreign(found: RawCheckpoint, known: Format, hints: Hints, original: Original | None = None) -> Opened:
    record, note = sidecar(found)
    if record is None:
        draft = known.draft(found, hints if original is None else original.hints(hints))
        if original is not None:
            original.complete(draft)
        if (
            draft.labels is None
            and draft.config.readout.classes == len(imagenet.labels())
            and imagenet.is_stated(found)
        ):
            draft.labels = imagenet.labels()
        stated = Usage(draft.preprocess, draft.labels)
    else:
        beside = described(record.get("config"), found)
        hints = dataclasses.replace(hints_of(beside), **hints.of_encoder(), architecture=hints.architecture)
        draft = known.draft(found, hints)
        draft.config = beside if isinstance(beside, BiTConfig) else beside.change(**hints.of_encoder())
        draft.assumed = []
        stated = usage(record, found)
    state = read_with(
        (draft.rules or known.rules)(draft.config),
        draft.tensors,
        lambda: blueprint(draft.config).state_dict(),
        ignore=known.ignores,
    )
    path = found.path if found.path.startswith(hub.SCHEMES) else Path(found.path).name
    source: dict[str, Any] = {"format": known.name, "path": path, "assumed": [*draft.assumed, *note]}
    source |= {"left_out": draft.left_out} if draft.left_out else {}
    stated = dataclasses.replace(stated, preprocess=stated.preprocess.with_channels(draft.config.channels))
    return Opened(draft.config, state, stated, source)


def sidecar(found: RawCheckpoint) -> tuple[dict[str, Any] | None, list[str]]:
    """Read our sidecar, if it belongs to this very file."""
    if found.sidecar.get("schema") != SIDECAR_SCHEMA:
        return None, []
    record = None if found.file is None else entry_of(found.sidecar, found.file)
    if record is None:
        return None, [f"what lies beside {Path(found.path).name} is of another file, and was not read"]
    return record, []


def entry_of(record: dict[str, Any], file: Path) -> dict[str, Any] | None:
    """The sidecar's entry for this very file; while a file is replaced, its sidecar describes old and new."""
    entries = [entry for entry in (record, record.get("replaces")) if isinstance(entry, dict) and "digest" in entry]
    seal = digest(file) if entries else None
    own = next((entry for entry in entries if entry["digest"] == seal), None)
    return own and {name: value for name, value in own.items() if name != "replaces"}
