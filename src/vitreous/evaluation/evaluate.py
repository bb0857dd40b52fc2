"""`vitreous.evaluate`: measure a model on a set."""

from __future__ import annotations

import io
import os
from collections.abc import Sequence
from csv import writer
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, overload

import numpy as np
import torch
from numpy.typing import NDArray

from vitreous.errors import ConfigError, DataError
from vitreous.evaluation import accuracy, learned_images
from vitreous.evaluation.accuracy import Result
from vitreous.evaluation.class_matching import match_classes, read_labels
from vitreous.evaluation.features import extract, unread_notes
from vitreous.evaluation.few_shot import FewShot, draw_seeds, shot_counts
from vitreous.evaluation.few_shot import fewshot as measure_shots
from vitreous.evaluation.inference import Logits, Precision, Progress, logits
from vitreous.evaluation.learning_curve import curve as measure_curve
from vitreous.evaluation.learning_curve import refuse_target
from vitreous.evaluation.predict import class_names
from vitreous.files import claim, write_bytes, write_json
from vitreous.images import open_data
from vitreous.images.imageset import ImageSet
from vitreous.machine import choose_device
from vitreous.models.model import Model, unwrapped
from vitreous.ranks import group, here
from vitreous.weights.load_model import load
from vitreous.words import counted, few

SPLITS = ("test", "train", "all")
UNSEEN = "unseen"  # all but the images that the model has learned from

Images = str | os.PathLike[str] | ImageSet
Split = Literal["test", "train", "all"]
Labels = str | os.PathLike[str] | Sequence[Sequence[int]] | None


@overload
def evaluate(
    model: Model | str | os.PathLike[str],
    data: Images,
    *,
    shots: None = None,
    split: Split | None = None,
    labels: Labels = None,
    device: torch.device | str | None = None,
    batch: int | None = None,
    workers: int | None = None,
    precision: Precision = "auto",
    csv: str | os.PathLike[str] | None = None,
    force: bool = False,
    progress: Progress | None = None,
) -> Result: ...


@overload
def evaluate(
    model: Model | str | os.PathLike[str],
    data: Images,
    *,
    shots: int | Sequence[int],
    seeds: int | Sequence[int] = 3,
    curve: bool = False,
    target: float | None = None,
    device: torch.device | str | None = None,
    batch: int | None = None,
    workers: int | None = None,
    precision: Precision = "auto",
    out: str | os.PathLike[str] | None = None,
    force: bool = False,
    progress: Progress | None = None,
) -> FewShot: ...


def evaluate(
    model: Model | str | os.PathLike[str],
    data: Images,
    *,
    shots: int | Sequence[int] | None = None,
    seeds: int | Sequence[int] = 3,
    curve: bool = False,
    target: float | None = None,
    split: Split | None = None,
    labels: Labels = None,
    device: torch.device | str | None = None,
    batch: int | None = None,
    workers: int | None = None,
    precision: Precision = "auto",
    csv: str | os.PathLike[str] | None = None,
    out: str | os.PathLike[str] | None = None,
    force: bool = False,
    progress: Progress | None = None,
) -> Result | FewShot:
    """How often the model is right on DATA; with `shots`, the few-shot accuracy of its features.

    Matches the set's classes to the model's by name. Notes name unreadable images, which do not count.
    split: test, train or all. By default the set's own test split; if it has none, all images that the model has not
    learned from.
    labels: other labels, or several per image: a file (see `class_matching.read_labels`), or for each image the right
    class numbers of the model; an image with none is left out.  csv: a file with one row per image.

    shots: labelled images per class, such as 1, 5, 10. Each seed draws them from train, fits a closed-form probe on
    what the head reads, and measures it on test; the model's own head and labels are not used.
    curve: also fit a power law to growing parts of train. It predicts the gain from more labels, and the number needed
    for the accuracy `target`.  out: a page with the plots, and next to it the numbers as JSON.
    """
    model = load(model) if isinstance(model, str | os.PathLike) else model
    how: dict[str, Any] = {"device": device, "batch": batch, "workers": workers, "precision": precision}
    if shots is not None:
        if split not in (None, "test") or labels is not None or csv is not None:
            raise ConfigError(
                "shots are drawn from train and judged on test by the set's own labels; leave out the rest"
            )
        with group(choose_device(device, near=model)) as (place, ranks):
            how["device"] = place if ranks.world > 1 else device
            return _few_shot(model, data, shots, seeds, curve, target, out, force, progress, how)
    if curve or target is not None:
        raise ConfigError("a curve is one of shots; say shots=(1, 5, 10) too, or leave curve and target away")
    if out is not None:
        raise ConfigError("a page is made of shots; say shots=(1, 5, 10) too, or leave out=... away")
    if split not in (None, *SPLITS):
        raise ConfigError(f"there is no split {split!r}; say {', '.join(SPLITS)}")
    claim(csv, force=force)
    with group(choose_device(device, near=model)) as (place, ranks):
        how["device"] = place if ranks.world > 1 else device
        result = _judged(model, data, split, labels, progress, how)
    if csv is not None and here().is_first:
        write_csv(result, csv, force=force)
    return result


def _judged(
    model: Model, data: Images, split: Split | None, labels: Labels, progress: Progress | None, how: dict[str, Any]
) -> Result:
    inner = unwrapped(model)
    whole = open_data.open(data)
    part, chosen, about_learned = _chosen(inner, whole, split)
    numbers, notes = match_classes(chosen, inner.labels, inner.config.readout.classes)
    notes += about_learned
    names = class_names(inner) if inner.labels else chosen.classes
    given = _other_labels(labels, chosen, whole, numbers, names)
    found = logits(model, chosen, skip_unreadable=True, progress=progress, **how)
    truth, real, about_labels = _truth(found, numbers, len(names), given, inner.answers)
    result = accuracy.measure(
        found.values,
        truth,
        names,
        temperature=inner.temperature,
        threshold=inner.threshold,
        scores=found.scores,
        real=real,
    )
    if not result.images:
        raise DataError(f"{chosen.path} has no image with a label to judge by; label some, or use: vitreous predict")
    about: dict[str, Any] = {"data": chosen.path, "split": part, "content_id": chosen.content_id}
    about |= {"labels": os.fspath(labels) if isinstance(labels, str | os.PathLike) else None}
    about |= {"coverage": found.coverage.to_json()}
    seen = tuple(chosen.name(int(found.places[row])) for row in result.judged.rows)
    notes += about_labels
    if skipped := found.coverage.skipped:
        notes.append(f"not judged: {counted(len(skipped), 'image')} that could not be read: {few(list(skipped))}")
    if result.left_out:
        notes.append(f"not judged: {counted(result.left_out, 'image')} without a label")
    about |= {"images_used": _images_used(whole, chosen, part, len(skipped), result)}
    return replace(result, judged=replace(result.judged, names=seen), about=about, notes=tuple(notes))


def _chosen(model: Model, whole: ImageSet, split: Split | None) -> tuple[str, ImageSet, list[str]]:
    """(what is judged, its images, notes about those that the model has learned from).

    split: None is the set's own test split; without one, all images that the model has not learned from. If it has
    learned from all, all are judged, with a note.
    """
    seen, by_content = learned_images.seen(model, whole), learned_images.by_content(model, whole)
    if split is None and not whole.split_was_made:
        split = "test"
    if split is None and seen is not None and not seen.all():
        return UNSEEN if seen.any() else "all", whole.take(~seen), []
    if split is None:
        split = "test" if seen is None and by_content == "train" else "all"
    chosen = whole if split == "all" else whole.split(split)
    found = learned_images.overlap(model, whole, chosen)
    is_told = found.learned is not None or ("learned_from" in model.source and whole.split_was_made)
    caution = found.caution("the number") if is_told else ""
    return split, chosen, [caution] if caution else []


def _images_used(whole: ImageSet, chosen: ImageSet, split: str, unread: int, result: Result) -> str | None:
    """How the number of files leads to the number of images judged; None if the set itself says which are judged."""
    others = len(whole) - len(chosen)
    if result.images == len(whole) and not whole.split_was_made:
        return None
    parts = [counted(len(whole), "file" if whole.is_encoded else "image")]
    if result.images == len(whole):
        return f"{parts[0]}, all judged: the set has no test split of its own"
    left = "that the model learned from" if split == UNSEEN else f"not in {split} (--split all takes them too)"
    parts += [f"{others:,} {left}"] if others else []
    parts += [f"{unread:,} cannot be read"] if unread else []
    parts += [f"{result.left_out:,} without a label"] if result.left_out else []
    return f"{', '.join(parts)}: {result.images:,} judged"


def _few_shot(
    model: Model,
    data: Images,
    shots: int | Sequence[int],
    seeds: int | Sequence[int],
    curve: bool,
    target: float | None,
    out: str | os.PathLike[str] | None,
    force: bool,
    progress: Progress | None,
    how: dict[str, Any],
) -> FewShot:
    counts, draws = shot_counts(shots), draw_seeds(seeds)
    refuse_target(target)
    numbers = None if out is None else Path(out).with_suffix(".json")
    claim(out, force=force)
    claim(numbers, force=force)
    whole = open_data.open(data)
    if not whole.classes or whole.labels.ndim != 1:
        raise DataError(f"{whole.path} does not have one label for each image; make a folder for each class")
    train, test = (extract(model, whole.split(name), progress=progress, **how) for name in ("train", "test"))
    rows = train.only, train.labels, test.only, test.labels, whole.classes
    place = choose_device(how["device"], near=model)
    found = measure_shots(*rows, shots=counts, seeds=draws, device=place)
    if curve or target is not None:
        found = replace(found, curve=measure_curve(*rows, target=target, device=place))
    about = {"data": whole.path, "content_id": whole.content_id, "model_digest": train.model}
    found = replace(found, about=about, notes=(*found.notes, *unread_notes(train, test)))
    if out is not None and numbers is not None and here().is_first:
        from vitreous.evaluation import few_shot_page
        from vitreous.report import page

        page.write(few_shot_page.page(found), out, force=force)
        write_json(numbers, found.to_json(), force=force, allow_nan=True)
    return found


def write_csv(result: Result, path: str | os.PathLike[str], *, force: bool = False) -> None:
    """Write one row per labelled image: name, label, answer, confidence, right, score."""
    judged, classes = result.judged, result.classes
    text = io.StringIO(newline="")
    rows = writer(text, lineterminator="\n")
    rows.writerow(["name", "label", "answer", "confidence", "right", "score"])
    for i in range(len(judged)):
        truth = "" if judged.truth[i] < 0 else classes[judged.truth[i]]
        name = judged.names[i] if judged.names else str(judged.rows[i])
        numbers = f"{judged.confidence[i]:.6f}", int(judged.is_right[i]), f"{judged.score[i]:.6f}"
        rows.writerow([name, truth, classes[judged.answer[i]], *numbers])
    write_bytes(path, text.getvalue().encode(), force=force)


def _other_labels(
    labels: Labels, chosen: ImageSet, whole: ImageSet, numbers: NDArray[np.int64], names: Sequence[str]
) -> list[list[int]] | None:
    if labels is None:
        return None
    if isinstance(labels, str | os.PathLike):
        return read_labels(labels, chosen, whole, numbers, names)
    if len(labels) != len(chosen):
        raise DataError(
            f"labels of {len(labels)} images were given, {chosen.path} has {len(chosen)}; give one for each"
        )
    return [list(map(int, row)) for row in labels]


def _truth(
    found: Logits,
    numbers: NDArray[np.int64],
    classes: int,
    given: list[list[int]] | None,
    answers: Literal["one", "several"],
) -> tuple[NDArray[np.int64], list[list[int]] | None, list[str]]:
    """Labels of the answered images, in the form that the model answers in.

    Returns labels as the model's class numbers; for each image the classes that count as right, or None; notes.
    """
    labels = found.labels
    if labels.ndim == 1:
        truth = np.where(labels < 0, -1, numbers[labels])
    else:
        truth = np.zeros((len(labels), classes), np.int64)
        truth[:, numbers] = labels
    if given is not None:
        return truth, [given[place] for place in found.places], []
    if truth.ndim == 2 and answers == "one":
        note = "images have several labels, and the model gives one answer: right is one of them"
        return truth, [np.flatnonzero(row > 0).tolist() for row in truth], [note]
    if truth.ndim == 1 and answers == "several":
        truth = np.where(truth[:, None] < 0, -1, np.arange(classes) == truth[:, None]).astype(np.int64)
    return truth, None, []
