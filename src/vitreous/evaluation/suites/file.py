"""A suite as a file: models, sets of images, and tasks for every pair of them.

[models]
deit = "weights/deit-tiny"              # any MODEL
[data]
pets = "oxford-pets-160-*.zip"          # any DATA
few = { path = "cifar10.npz", train = 1000 }
[[tasks]]
kind = "few-shot"
shots = [1, 5, 10]
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, get_args

import msgspec
from msgspec import Struct

from vitreous.errors import ConfigError
from vitreous.evaluation.few_shot import DEFAULT_SHOTS
from vitreous.evaluation.probes import NEIGHBOURS
from vitreous.evaluation.ridge_regression import DEFAULT_L2
from vitreous.options import check_known

NAME_PATTERN = re.compile(r"[\w.+-]+")  # a model or set; used in file names


class Data(Struct, frozen=True, forbid_unknown_fields=True):
    """A set of images, or a part of it."""

    path: str
    train: int | None = None  # training images, spread over the classes; None is all. Test is never cut
    limit: int | None = None  # images over both splits
    classes: tuple[str, ...] | None = None
    seed: int = 0  # chooses the images


class _Task(Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind"):
    """Fields that every task has."""

    models: tuple[str, ...] | None = None  # by name; None is all
    data: tuple[str, ...] | None = None
    name: str | None = None  # title in the table


class FewShotTask(_Task, frozen=True, tag="few-shot"):
    """The papers' least squares on frozen features."""

    shots: tuple[int, ...] = DEFAULT_SHOTS
    seeds: int | None = None  # None: the suite's
    l2: float = DEFAULT_L2


class KnnTask(_Task, frozen=True, tag="knn"):
    """Nearest neighbours among the features of all training images."""

    neighbours: int = NEIGHBOURS


class LogisticTask(_Task, frozen=True, tag="logistic"):
    """Logistic regression on the features of all training images."""

    l2: float | None = None  # None: chosen on a fifth of train


class AccuracyTask(_Task, frozen=True, tag="accuracy"):
    """The model as it is, if its classes are those of the set."""


class FitTask(_Task, frozen=True, tag="fit"):
    """`vitreous fit`: train on the set and measure on its test split."""

    recipe: str = "auto"
    seeds: int | None = None
    set: dict[str, str | int | float | bool] = {}  # recipe fields


Task = FewShotTask | KnnTask | LogisticTask | AccuracyTask | FitTask
TASK_KINDS: dict[str, type[_Task]] = {kind.__struct_config__.tag: kind for kind in get_args(Task)}


class Suite(Struct, frozen=True, forbid_unknown_fields=True):
    """Everything that decides a suite's numbers."""

    models: dict[str, str]
    data: dict[str, str | Data]
    tasks: tuple[Task, ...]
    name: str = ""
    seeds: int = 3  # draws of few-shot, trainings of fit

    def plans(self) -> Iterator[PlannedCell]:
        """All cells, set by set and model by model, so features are computed once."""
        for data in self.data:
            for model in self.models:
                for task in self.tasks:
                    if model in (task.models or self.models) and data in (task.data or self.data):
                        yield PlannedCell(model, data, task)


class PlannedCell(Struct, frozen=True):
    """One task for one model and one set."""

    model: str
    data: str
    task: Task

    @property
    def kind(self) -> str:
        return str(type(self.task).__struct_config__.tag)

    @property
    def title(self) -> str:
        """The task's title in the table: its name, or a description."""
        if self.task.name:
            return self.task.name
        if not isinstance(self.task, FitTask):
            return self.kind
        return ", ".join([f"fit {self.task.recipe}", *(f"{key}={value}" for key, value in self.task.set.items())])


def read(source: str | os.PathLike[str] | Mapping[str, Any] | Suite) -> Suite:
    """Read a suite from a file or a dict; an error is one line."""
    if isinstance(source, Suite):
        return source
    if isinstance(source, Mapping):
        return _checked(dict(source), "the suite")
    path = Path(source)
    try:
        said = tomllib.loads(path.read_text("utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path} is not TOML: {' '.join(str(error).split())}; correct that line") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is not UTF-8; save it as UTF-8") from None
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror or error}; name a suite's TOML file") from None
    return _checked({"name": path.stem, **said}, str(path))


def _checked(said: dict[str, Any], where: str) -> Suite:
    check_known(said, Suite.__struct_fields__, f"{where} has no key")
    for name, value in _table(said, "models", where).items():
        if not isinstance(value, str):
            raise ConfigError(f"{where}: models.{name} is not text; name a model: {EXAMPLES['models']}")
    for name, value in _table(said, "data", where).items():
        if isinstance(value, Mapping):
            check_known(value, Data.__struct_fields__, f"{where}, data.{name} has no key")
        elif not isinstance(value, str):
            raise ConfigError(f"{where}: data.{name} is neither text nor a table; name images: {EXAMPLES['data']}")
    tasks = said.get("tasks")
    for number, task in enumerate(tasks if isinstance(tasks, list | tuple) else (), 1):
        _check_task(task, f"{where}, task {number}")
    try:
        suite = msgspec.convert(said, Suite)
    except msgspec.ValidationError as error:
        what, _, at = str(error).partition(" - at `$")
        raise ConfigError(f"{where}: {at.strip('`.') or 'the file'}: {what[:1].lower()}{what[1:]}") from None
    _check_values(suite, where)
    return suite


def _table(said: Mapping[str, Any], name: str, where: str) -> Mapping[str, Any]:
    found = said.get(name)
    if not isinstance(found, Mapping) or not found:
        raise ConfigError(f"{where} names no {name}; write a table [{name}] with lines such as {EXAMPLES[name]}")
    return found


EXAMPLES = {"models": 'deit = "weights/deit-tiny"', "data": 'pets = "photos"'}


def _check_task(task: Any, where: str) -> None:
    kind = task.get("kind") if isinstance(task, Mapping) else None
    if not isinstance(kind, str):
        raise ConfigError(f'{where} does not say which; add a line such as kind = "few-shot" ({", ".join(TASK_KINDS)})')
    check_known({kind: None}, TASK_KINDS, f"{where} has no kind")
    check_known(task, ["kind", *TASK_KINDS[kind].__struct_fields__], f"{where} ({kind}) has no key")


def _check_values(suite: Suite, where: str) -> None:
    """Checks beyond types."""
    for name in [*suite.models, *suite.data]:
        if not NAME_PATTERN.fullmatch(name):
            raise ConfigError(f"{where}: {name!r} is not a valid name; use letters, digits and . _ + - alone")
    if not suite.tasks:
        raise ConfigError(f'{where} asks for nothing; add a [[tasks]] with kind = "few-shot" ({", ".join(TASK_KINDS)})')
    counts: list[tuple[str, float | None]] = [("seeds", suite.seeds)]
    for data in suite.data.values():
        if isinstance(data, Data):
            counts += [("train", data.train), ("limit", data.limit)]
    for task in suite.tasks:
        for kind, known in (("models", suite.models), ("data", suite.data)):
            check_known(dict.fromkeys(getattr(task, kind) or ()), known, f"{where}: a task is for the {kind}")
        counts += [(name, getattr(task, name, None)) for name in ("seeds", "neighbours", "l2")]
        if isinstance(task, FewShotTask):
            counts += [("shots", shots) for shots in task.shots or (0,)]
    for name, value in counts:
        if value is not None and not value > 0:
            raise ConfigError(f"{where}: {name} = {value} is not positive; give a number above 0")
    _check_titles(suite, where)


def _check_titles(suite: Suite, where: str) -> None:
    """Refuse two cells with the same model, set and title: rows are found by these."""
    seen = set()
    for plan in suite.plans():
        row = plan.model, plan.data, plan.title
        if row in seen:
            raise ConfigError(
                f"{where}: two tasks are both called {plan.title!r} for {plan.model} on {plan.data}; give each a name"
            )
        seen.add(row)
