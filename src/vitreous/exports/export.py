"""`vitreous.export`: write a model as a folder for another runtime, and prove that it answers the same there."""

from __future__ import annotations

import copy
import inspect
import itertools
import json
import os
import tempfile
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from vitreous.errors import ConfigError, DataError
from vitreous.evaluation import learned_images
from vitreous.evaluation.class_matching import match_classes
from vitreous.evaluation.predict import class_names
from vitreous.exports import sample_images, standalone_run, vectors
from vitreous.exports.card import card, terms_of
from vitreous.exports.facts import feature_count
from vitreous.exports.graphs import ready_to_export
from vitreous.exports.onnx import ONNX
from vitreous.exports.openvino import OPENVINO
from vitreous.exports.parity import TOLERANCES, Parity, Sample, compare_files
from vitreous.exports.pt2 import PT2
from vitreous.exports.target import DEFAULT_OPSET, PageOptions, Runner, Target, WriteOptions, make_parts, require
from vitreous.exports.web.web_target import WEB
from vitreous.files import atomic_folder, claim
from vitreous.images import examples, open_data
from vitreous.images.imageset import TRAIN, ImageSet
from vitreous.images.pixels import decode
from vitreous.images.pixels.preprocess import normalise
from vitreous.machine import record
from vitreous.models.model import Model, unwrapped
from vitreous.models.pooling import find_pool
from vitreous.models.vit import ViT
from vitreous.registry import Registry

TARGETS: Registry[Target] = Registry("targets", {target.name: target for target in (ONNX, OPENVINO, PT2, WEB)})
CALIBRATION_IMAGES = 300  # NNCF's own default
COMPARED_IMAGES, COMPARED_IMAGES_INT8 = 100, 1000  # int8 is judged by its accuracy, which needs more images

Progress = Callable[[int, int], None]


def export(
    model: torch.nn.Module,
    path: str | os.PathLike[str],
    *,
    to: str,
    int8: bool = False,
    fp16: bool = False,
    attention: bool = False,
    data: str | os.PathLike[str] | ImageSet | None = None,
    images: int | None = None,
    opset: int | None = None,
    page: PageOptions | None = None,
    anyway: bool = False,
    force: bool = False,
    progress: Progress | None = None,
) -> Parity:
    """Write the folder `path` for another runtime, unless the files answer differently from the model.

        vitreous.export(model, "birds-onnx", to="onnx", data="birds")
        vitreous.export(model, "birds-int8", to="openvino", int8=True, data="birds")
        vitreous.export(model, "birds-web", to="web", data="birds")

    to: onnx, openvino, pt2, web, or a target of another package.
    int8: calibrated on train and judged on test of `data`.  fp16: half the file.
    attention: adds the attention weights as an output; in the image form, their rollout.
    data: images to compare on, at most `images` of them; by default generated and embedded ones.
    page: for web: its name, where the runtime is, and which images it begins with.
    anyway: keep the folder even if it does not agree; `passed` of the result is the verdict.
    """
    inner = unwrapped(model)
    options = WriteOptions(opset=opset or DEFAULT_OPSET, fp16=fp16, page=page or PageOptions(name=Path(path).name))
    target = _check(inner, Path(path), to, int8, fp16, attention, data, images, opset, page, force)
    target.check(inner, options)
    found = None if data is None else open_data.open(data)
    calibration = _calibration(inner, found) if int8 and found is not None else None
    precision = "int8" if int8 else "float16" if fp16 else "float32"
    half = fp16 and not target.halves_itself
    parts = make_parts(ready_to_export(inner, half=half), attention=attention)
    shown, learned = _examples(inner, target, found, options.page)
    options = replace(options, calibration=calibration, examples=shown, learned=learned)
    plain = copy.deepcopy(inner).to("cpu").float().eval()
    kept: Parity | None = None
    try:
        with atomic_folder(path, force=force) as folder, tempfile.TemporaryDirectory() as scratch:
            target.write(parts, folder, Path(scratch), options)
            count = images or (COMPARED_IMAGES_INT8 if int8 else COMPARED_IMAGES)
            name, samples, caution = _samples(inner, found, count)
            with target.opened(plain, folder, Path(scratch)) as opened:
                forms, grey, accuracy = compare_files(plain, opened, samples, count, progress)
            accuracy = accuracy and replace(accuracy, caution=caution)
            limits = TOLERANCES[precision]
            kept = Parity(target.name, precision, name, forms, limits, grey, accuracy, notes=tuple(opened.notes))
            if not kept.passed and not anyway:
                raise _NotKept
            vectors.write(plain, folder / "vectors", limits)
            kept = _finish(plain, target, folder, kept, attention, Path(path))
    except _NotKept:
        assert kept is not None
    return kept


class _NotKept(Exception):
    """Leaves `atomic_folder`, which removes the folder."""


def _check(
    model: Model,
    path: Path,
    to: str,
    int8: bool,
    fp16: bool,
    attention: bool,
    data: Any,
    images: int | None,
    opset: int | None,
    page: PageOptions | None,
    force: bool,
) -> Target:
    """Refuse everything that can be refused before any work."""
    if images is not None and images < 1:
        raise ConfigError(f"images={images} compares nothing; give 1 or more, or leave it out")
    if to not in TARGETS:
        raise ConfigError(f"there is no export to {to!r}; choose {', '.join(TARGETS)}")
    target = TARGETS[to]
    if int8 and not model.config.readout.classes:
        raise ConfigError(
            "int8 is judged by its answers, and the model has no head; leave --int8 out, or fit a head: "
            "vitreous fit DATA --weights MODEL"
        )
    if int8 and fp16:
        raise ConfigError("int8 and fp16 are two precisions; choose one of them")
    for asked, precision in ((int8, "int8"), (fp16, "fp16")):
        if asked and (why := target.refuses(precision, model)) is not None:
            able = [each.name for each in TARGETS.values() if each.refuses(precision, model) is None]
            raise ConfigError(f"{why}; choose --to {' or '.join(able)}")
    if int8 and data is None:
        raise ConfigError("int8 is calibrated and judged on images; name them: --data DATA")
    if attention and not isinstance(model, ViT):
        raise ConfigError(f"a {type(model).__name__} has no attention to export; leave --attention out")
    if attention and (silence := find_pool(model)[0].silence):
        raise ConfigError(f"{silence}, so no attention map can be exported; leave --attention out")
    if attention and target.is_page:
        raise ConfigError(f"{to} shows attention by itself; leave --attention out")
    if page is not None and not target.is_page:
        pages = [each.name for each in TARGETS.values() if each.is_page]
        raise ConfigError(f"--runtime, --wasm-only and --examples are of pages; choose --to {' or '.join(pages)}")
    if page is not None and page.examples and data is None:
        raise ConfigError("--examples shows images on the page; name them: --data DATA")
    if opset is not None and not target.opsets:
        raise ConfigError(f"{to} has no opset; leave it out")
    if opset is not None and opset not in target.opsets:
        raise ConfigError(f"opset {opset} cannot be written; choose {min(target.opsets)} to {max(target.opsets)}")
    require(target.packages_for(int8=int8), f"export to {to}", target.missing(page or PageOptions()))
    claim(path, force=force, is_folder=True)
    return target


# Images -------------------------------------------------------------------------------------------------------------


def _samples(model: Model, data: ImageSet | None, count: int) -> tuple[str, Iterator[Sample], str]:
    """The images in words, the images with the model's index of their class, and why accuracy on them says little."""
    channels = len(model.preprocess.mean)
    if data is None:
        images = map(Sample, itertools.islice(sample_images.embedded(channels), count))
        return "generated and embedded images", images, ""
    splits = set(data.splits.tolist())
    name = "test" if "test" in splits else "train"
    part = open_data.open(data, split=name, limit=count if count < int((data.splits == name).sum()) else None)
    try:
        numbers: NDArray[np.int64] | None = match_classes(part, model.labels, model.config.readout.classes)[0]
    except DataError:
        numbers = None  # images of other classes show agreement too
    place = Path(data.path).name or data.path  # the folder goes to other people: no paths of this machine
    overlap = learned_images.overlap(model, data, part)
    told = f" ({name})" if not overlap.learned and _has_split(model, data) else ""
    return f"{len(part):,} images of {place}{told}", _read(part, numbers), overlap.caution("accuracy")


def _has_split(model: Model, data: ImageSet) -> bool:
    """Whether the set has a split of its own, or the split that was made for it is the one of the model's training."""
    return bool(data.classes) and (not data.split_was_made or learned_images.by_content(model, data) == TRAIN)


def _read(data: ImageSet, numbers: NDArray[np.int64] | None) -> Iterator[Sample]:
    for i in range(len(data)):
        try:
            pixels = data.read(i)
        except DataError:
            continue
        known = numbers is not None and not data.has_many_labels and data.labels[i] >= 0
        yield Sample(pixels, int(numbers[data.labels[i]]) if known and numbers is not None else None)


def _examples(
    model: Model, target: Target, data: ImageSet | None, page: PageOptions
) -> tuple[tuple[tuple[str, NDArray[np.uint8]], ...], bool]:
    """The example images of a page, and whether the model has learned from them.

    They come from the data if the user says so, else from the package, if they fit.
    """
    if not target.is_page:
        return (), False
    data = data if page.examples else None
    learned = data is not None and bool(learned_images.overlap(model, data, examples.of(data)).learned)
    return tuple(examples.choose(data, model.labels or ())), learned


def _calibration(model: Model, data: ImageSet) -> NDArray[np.float32]:
    """Training images as the network gets them.  B C H W."""
    splits = set(data.splits.tolist())
    part = data.split("train" if "train" in splits else "test")
    part = open_data.open(part, limit=CALIBRATION_IMAGES) if len(part) > CALIBRATION_IMAGES else part
    rule = model.preprocess
    rows = [normalise(decode.finish(sample.pixels, rule), rule).numpy() for sample in _read(part, None)]
    if not rows:
        raise DataError(f"{data.path} has no readable image, and int8 calibrates on images; name others with --data")
    return np.stack(rows)


# The rest of the folder ---------------------------------------------------------------------------------------------


def _finish(model: Model, target: Target, folder: Path, parity: Parity, attention: bool, path: Path) -> Parity:
    files = {form: target.file(form) for form in target.forms}
    sizes = {name: (folder / name).stat().st_size for name in _names(folder)}
    labels = [" ".join(name.split()) for name in class_names(model)]
    about = {
        "schema": "vitreous.exported/1",
        "vitreous": record()["versions"]["vitreous"],
        "target": target.name,
        "precision": parity.precision,
        "network": _network(model),
        "files": files,
        "classes": len(labels),
        "features": 0 if labels else feature_count(model),
        "channels": len(model.preprocess.mean),
        "attention": attention,
        "answers": model.answers if labels else "features",
        "temperature": model.temperature,
        "threshold": model.threshold,
        "track_record": None if model.track_record is None else model.track_record.to_json(),
        "preprocess": model.preprocess.to_json(),
        "terms": terms_of(model),
    }
    kept = replace(parity, files=sizes)
    details = {form: {"bytes": _bytes(sizes, file)} | target.describe(folder / file) for form, file in files.items()}
    if labels:
        (folder / "labels.txt").write_text("".join(f"{label}\n" for label in labels), encoding="utf-8")
    (folder / "export.json").write_text(json.dumps(about, indent=2, ensure_ascii=False), encoding="utf-8")
    (folder / "parity.json").write_text(json.dumps(kept.to_json() | {"record": record()}, indent=2), encoding="utf-8")
    (folder / "CARD.md").write_text(card(model, target, kept, about, details), encoding="utf-8")
    if target.runner is not None:
        (folder / "run.py").write_text(_script(target.runner), encoding="utf-8")
    return replace(kept, folder=str(path))


def _script(runner: Runner) -> str:
    """run.py: standalone_run.py with the target's own `load`."""
    own = textwrap.dedent(inspect.getsource(runner.load)).replace(f"def {runner.load.__name__}(", "def load(", 1)
    return inspect.getsource(standalone_run).replace(inspect.getsource(standalone_run.load), own)


def _network(model: Model) -> str:
    if not isinstance(model, ViT):
        return type(model).__name__
    encoder, (rows, columns) = model.config.encoder, model.preprocess.size
    return f"ViT of {encoder.depth} blocks and width {encoder.width} for {rows}x{columns}"


def _names(folder: Path) -> list[str]:
    """All files for use; vectors/ is for tests."""
    files = (file.relative_to(folder) for file in sorted(folder.rglob("*")) if file.is_file())
    return [file.as_posix() for file in files if file.parts[0] != "vectors"]


def _bytes(sizes: dict[str, int], file: str) -> int:
    """The size of all files of a form: weights may lie beside the graph."""
    return sum(size for name, size in sizes.items() if name.partition(".")[0] == file.partition(".")[0])
