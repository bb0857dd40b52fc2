"""The cells of a suite: each is measured once and kept in its own file, found by a key of all that decides it."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol, get_args, get_type_hints

import msgspec
import torch

from vitreous.errors import ConfigError, DataError, VitreousError, advice
from vitreous.evaluation.class_matching import match_classes
from vitreous.evaluation.evaluate import evaluate
from vitreous.evaluation.features import Features, extract, model_digest, unread_notes
from vitreous.evaluation.few_shot import fewshot
from vitreous.evaluation.inference import Precision
from vitreous.evaluation.learning_curve import first_images
from vitreous.evaluation.probes import probe_features
from vitreous.evaluation.suites.file import (
    AccuracyTask,
    Data,
    FewShotTask,
    FitTask,
    KnnTask,
    LogisticTask,
    PlannedCell,
    Suite,
    Task,
)
from vitreous.files import digest, write_json
from vitreous.images import open_data
from vitreous.images.imageset import ImageSet
from vitreous.machine import choose_device, doctor
from vitreous.models.catalog import build
from vitreous.models.model import Model
from vitreous.weights.load_model import is_new, load

CELL_VERSION = 1
NOT_IN_CELL_KEY = {"models", "data", "name", "seeds"}  # task fields that do not affect a cell's numbers
GIVEN_TO_FIT = {"data", "model", "weights", "recipe", "out", "resume", "device", "workers", "check", "folds", "seed"}


class Ran(Protocol):
    """The part of `vitreous.fit`'s result that a suite uses."""

    @property
    def metrics(self) -> dict[str, Any]: ...


Trainer = Callable[..., Ran]  # `vitreous.fit`


@dataclass(frozen=True)
class Measured:
    """Right answers per seed; for few-shot, at one number of shots."""

    right: tuple[int, ...]
    images: int
    shots: int | None = None


@dataclass(frozen=True)
class SuiteCell:
    """One piece of work, done or failed."""

    measured: tuple[Measured, ...] = ()
    steps: int | None = None
    seconds: float | None = None
    peak_memory: int | None = None  # bytes: the GPU's, or this process's
    notes: tuple[str, ...] = ()
    about: dict[str, Any] = field(default_factory=dict)
    error: str | None = None
    left_out: str | None = None  # why there is nothing to measure: other classes


class SuiteBench:
    """What neighbouring cells share: one model, one set, its features."""

    def __init__(
        self,
        suite: Suite,
        folder: Path,
        fit: Trainer | None,
        device: str | torch.device | None,
        workers: int | None,
        precision: Precision,
    ):
        self.suite, self.folder, self.fit, self.device, self.workers = suite, folder, fit, device, workers
        self._how: dict[str, Any] = {"device": device, "workers": workers, "precision": precision}
        self._version = doctor().vitreous
        self.model, self.data = lru_cache(1)(self._open_model), lru_cache(1)(self._open_data)
        self._features = lru_cache(1)(self._extract)

    def close(self) -> None:
        """Let go of model, set and features at once; the caches refer to the bench itself."""
        for cache in (self.model, self.data, self._features):
            cache.cache_clear()

    def cells(self, plan: PlannedCell) -> Iterator[SuiteCell]:
        """The seeds of a task: one, or one per training."""
        if isinstance(plan.task, FitTask):
            for seed in range(plan.task.seeds or self.suite.seeds):
                yield self._cell(plan, seed)
        else:
            yield self._cell(plan, None)

    def _cell(self, plan: PlannedCell, seed: int | None) -> SuiteCell:
        """Load the cell or measure it; a failure is reported and not kept, so the next call retries."""
        try:
            key = self._key(plan, seed)
            file = self.folder / "cells" / f"{plan.model}-{plan.data}-{plan.kind}-{key[:16]}.json"
            if (kept := _read(file, key)) is not None:
                return kept
            if isinstance(plan.task, AccuracyTask) and (why := self._unlike(plan)) is not None:
                return SuiteCell(left_out=why)
            task = plan.task
            cell = self._fitted(plan, task, seed or 0, key) if isinstance(task, FitTask) else self._measured(plan)
            body = {"format": CELL_VERSION, "key": key, "cell": asdict(cell)}
            write_json(file, body, force=True, indent=1, allow_nan=True)
        except torch.OutOfMemoryError:
            return SuiteCell(error="the device's memory is too small; say a smaller batch, or device=cpu")
        except VitreousError as error:
            return SuiteCell(error=str(error))
        except Exception as error:
            return SuiteCell(error=f"unexpected {type(error).__name__}: {' '.join(str(error).split())}")
        return cell

    # What decides the numbers ------------------------------------------------------------------------------------

    def _key(self, plan: PlannedCell, seed: int | None) -> str:
        model, data, source = self.model(plan.model), self.data(plan.data), self.suite.models[plan.model]
        task = {k: v for k, v in msgspec.to_builtins(plan.task).items() if k not in NOT_IN_CELL_KEY}
        needs_head = isinstance(plan.task, AccuracyTask | FitTask)  # training keeps the head if classes match
        parts: dict[str, Any] = {"format": CELL_VERSION, "version": self._version, "task": task, "seed": seed}
        is_from_nothing = isinstance(plan.task, FitTask) and is_new(source)
        parts["model"] = source if is_from_nothing else model_digest(model, with_head=needs_head)
        parts["preprocess"] = model.preprocess.to_json()
        parts["labels"] = model.labels if needs_head else None
        if isinstance(plan.task, FewShotTask):
            parts["seeds"] = plan.task.seeds or self.suite.seeds
        if isinstance(plan.task, FitTask):
            parts["device"] = choose_device(self.device, near=model).type
        chosen = data.ids.tobytes() + "".join(data.splits.tolist()).encode()
        parts["data"] = [data.content_id, digest(chosen), data.classes]
        return digest(json.dumps(parts, sort_keys=True).encode())

    def _open_model(self, name: str) -> Model:
        source = self.suite.models[name]
        return build(source, seed=0) if is_new(source) else load(source)

    def _open_data(self, name: str) -> ImageSet:
        source = self.suite.data[name]
        wanted = Data(source) if isinstance(source, str) else source
        found = open_data.open(wanted.path, limit=wanted.limit, classes=wanted.classes, seed=wanted.seed)
        return found if wanted.train is None else first_images(found, wanted.train, wanted.seed)

    def _extract(self, model_name: str, data_name: str) -> tuple[Features, Features]:
        """Features of train and test, computed once for all probes; keeps the time beside the cells."""
        model, data = self.model(model_name), self.data(data_name)
        with watched(choose_device(self.device, near=model)) as cost:
            train, test = (extract(model, data.split(split), **self._how) for split in ("train", "test"))
        if not (train.is_kept and test.is_kept):
            body = {"images": len(train) + len(test), **asdict(cost)}
            write_json(self._features_file(model_name, data_name), body, force=True, indent=1, allow_nan=True)
        return train, test

    def reading(self, model_name: str, data_name: str) -> dict[str, Any] | None:
        """The time to compute the features, if this suite did."""
        with suppress(OSError, ValueError):
            return dict(json.loads(self._features_file(model_name, data_name).read_bytes()))
        return None

    def _features_file(self, model_name: str, data_name: str) -> Path:
        return self.folder / "features" / f"{model_name}-{data_name}.json"

    # The work ------------------------------------------------------------------------------------------------------

    def _unlike(self, plan: PlannedCell) -> str | None:
        """Why the model's own answers cannot be measured on this set; None if they can."""
        model, data = self.model(plan.model), self.data(plan.data)
        if not model.config.readout.classes:
            return "the model has no head"
        try:
            match_classes(data, model.labels, model.config.readout.classes)
        except DataError as error:
            return str(error).partition(";")[0]
        return None

    def _measured(self, plan: PlannedCell) -> SuiteCell:
        device = choose_device(self.device, near=self.model(plan.model))
        is_probe = not isinstance(plan.task, AccuracyTask)
        features = self._features(plan.model, plan.data) if is_probe else None  # timed separately
        with watched(device) as cost:
            if features is not None:
                measured, notes = self._probed(plan.task, *features, device)
            else:
                result = evaluate(self.model(plan.model), self.data(plan.data), split="test", **self._how)
                measured, notes = (Measured((result.right,), result.images),), result.notes
        return SuiteCell(measured, None, cost.seconds, cost.peak_memory, notes, {"device": device.type})

    def _probed(
        self, task: Task, train: Features, test: Features, device: torch.device
    ) -> tuple[tuple[Measured, ...], tuple[str, ...]]:
        notes = unread_notes(train, test)
        if isinstance(task, FewShotTask):
            rows = train.only, train.labels, test.only, test.labels, train.classes
            seeds = task.seeds or self.suite.seeds
            found = fewshot(*rows, shots=task.shots, seeds=seeds, l2=task.l2, device=device)
            each = zip(found.shots, found.right[0], strict=True)
            measured = tuple(Measured(tuple(right.tolist()), found.images, shots) for shots, right in each)
            return measured, (*found.notes, *notes)
        if isinstance(task, KnnTask):
            probed = probe_features(train, test, by="knn", neighbours=task.neighbours)
        else:
            probed = probe_features(train, test, by="logistic", l2=task.l2 if isinstance(task, LogisticTask) else None)
        return (Measured((probed.rows[0].right,), probed.images),), notes

    def _fitted(self, plan: PlannedCell, task: FitTask, seed: int, key: str) -> SuiteCell:
        """Run `fit` in its own folder, resuming an earlier run."""
        assert self.fit is not None, "suite() refuses a task that trains without a trainer"
        where = self.folder / "fits" / f"{plan.model}-{plan.data}-{seed}-{key[:8]}"
        source, data = self.suite.models[plan.model], self.data(plan.data)
        start = {"model": source} if is_new(source) else {"weights": source}
        device = choose_device(self.device, near=self.model(plan.model))
        with watched(device) as cost:
            run = self.fit(
                data,
                **start,
                recipe=task.recipe,
                out=where,
                resume=(where / "config.json").is_file(),
                device=self.device,
                workers=self.workers,
                check=False,
                folds=0,
                **{**task.set, "seed": seed},
            )
        judged = run.metrics["judged"]
        told = {"device": device.type, "run": str(where), "judged_by": run.metrics["judged_by"], "seed": seed}
        measured = Measured((int(judged["right"]),), int(judged["images"]))
        return SuiteCell((measured,), run.metrics["steps"], run.metrics["seconds"], cost.peak_memory, (), told)


def check_set(tasks: Iterable[Any], fit: Trainer) -> None:
    """`set` may name recipe fields, but no argument that the suite itself gives to `fit`."""
    fields = _fields(fit)
    for task in tasks:
        for name in task.set if isinstance(task, FitTask) else ():
            if name in GIVEN_TO_FIT:
                raise ConfigError(
                    f"a fit task sets {name!r}, which the suite itself gives to each training; remove it from set"
                )
            if fields and name not in fields:
                do = advice(name, fields, otherwise=f"such as {', '.join(fields[:6])}")
                raise ConfigError(f"a fit task sets {name!r}, which is not a recipe field; {do}")


def _fields(fit: Trainer) -> list[str]:
    """Fields of recipe and augmentation, from the type hints of `fit`; empty without hints."""
    with suppress(TypeError, NameError):  # a partial has no hints
        for kind in get_args(get_type_hints(fit).get("recipe")):
            if hasattr(kind, "to_json"):
                fields = kind().to_json()
                return sorted({*fields, *fields["augment"]} - {"augment", "size", *GIVEN_TO_FIT})
    return []


def _read(file: Path, key: str) -> SuiteCell | None:
    """Load a cell that is whole and has this key."""
    try:
        body = json.loads(file.read_bytes())
        if body["format"] != CELL_VERSION or body["key"] != key:
            return None
        return msgspec.convert(body["cell"], SuiteCell)
    except (OSError, ValueError, KeyError, TypeError):
        return None


# What it costs -----------------------------------------------------------------------------------------------------


@dataclass
class Cost:
    """Time and memory of a piece of work, once done."""

    seconds: float = 0.0
    peak_memory: int | None = None  # bytes; None if the system cannot tell


@contextmanager
def watched(device: torch.device) -> Iterator[Cost]:
    """Measure time and peak memory: torch's on a GPU, else this process's."""
    cost, begin = Cost(), time.perf_counter()
    is_cuda, is_fresh = device.type == "cuda", False
    if is_cuda:
        torch.cuda.reset_peak_memory_stats(device)
    else:
        with suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5")  # resets the peak, on Linux
            is_fresh = True
    yield cost
    if is_cuda:
        torch.cuda.synchronize(device)
        cost.peak_memory = torch.cuda.max_memory_allocated(device)
    elif is_fresh:
        lines = Path("/proc/self/status").read_text().splitlines()
        cost.peak_memory = next((1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM")), None)
    cost.seconds = time.perf_counter() - begin
