"""`vitreous eval --suite`: several models, several sets, several tasks; the papers' kind of table.

Every cell is saved as soon as it is measured, so an interrupted suite resumes; the table names a cell that fails, and
the others are not lost.
"""

from __future__ import annotations

import html
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch

from vitreous.errors import BusyError, ConfigError, ExistsError
from vitreous.evaluation.accuracy import wilson
from vitreous.evaluation.few_shot import mean_interval
from vitreous.evaluation.inference import Precision
from vitreous.evaluation.suites.file import Data, FewShotTask, FitTask, PlannedCell, Suite, read
from vitreous.evaluation.suites.measure_cells import Measured, SuiteBench, SuiteCell, Trainer, check_set
from vitreous.files import lock, write_json
from vitreous.machine import record
from vitreous.words import aligned, percent_range

SUITE_JSON, SUITE_PAGE = "suite.json", "suite.html"
SUITE_FILES = {SUITE_JSON, SUITE_PAGE, "lock", "cells", "features", "fits"}
MIB = 2**20

Tell = Callable[[int, int, "SuiteRow"], None]  # done, total, new row


@dataclass(frozen=True)
class SuiteRow:
    """One row of the table. accuracy: one per seed, or a single one if nothing is drawn."""

    model: str
    data: str
    task: str
    kind: str
    shots: int | None = None
    accuracy: tuple[float, ...] = ()
    images: int = 0  # test images
    steps: int | None = None
    seconds: float | None = None  # for one training; for a probe, fit and answers of all seeds and shots together
    peak_memory: int | None = None  # bytes
    notes: tuple[str, ...] = ()
    error: str | None = None
    left_out: str | None = None  # why there was nothing to measure

    @property
    def measure(self) -> str:
        """The task, with its shots."""
        if self.shots is None:
            return self.task
        return f"{self.task}, {self.shots} shot{'s' if self.shots > 1 else ''}"

    @property
    def mean(self) -> float | None:
        return None if self.error or not self.accuracy else float(np.mean(self.accuracy))

    @property
    def interval(self) -> tuple[float, float] | None:
        """The 95 % interval: Student's over seeds; for a single number Wilson's, over test images."""
        if self.mean is None:
            return None
        if len(self.accuracy) > 1:
            return mean_interval(np.array(self.accuracy))
        return wilson(round(self.accuracy[0] * self.images), self.images)

    @property
    def interval_over(self) -> str:
        return "seeds" if len(self.accuracy) > 1 else "images"

    def to_json(self) -> dict[str, Any]:
        more = {"mean": self.mean, "interval": self.interval, "interval_over": self.interval_over}
        return msgspec.to_builtins(asdict(self) | more)

    def cells(self) -> list[str]:
        """Task, right, interval, seeds, steps, seconds, memory as text."""
        if self.mean is None:
            return [self.measure, "failed" if self.error else "no match", *[""] * 5]
        between = percent_range(self.interval)
        over = f"{len(self.accuracy)} seeds" if len(self.accuracy) > 1 else f"{self.images:,} images"
        steps = "–" if self.steps is None else f"{self.steps:,}"
        took = self.seconds
        seconds = "–" if took is None else f"{took:,.1f}" if took < 100 else f"{took:,.0f}"
        memory = "–" if self.peak_memory is None else f"{self.peak_memory / MIB:,.0f} MiB"
        return [self.measure, f"{100 * self.mean:.1f} %", between, over, steps, seconds, memory]


COLUMNS = ["data", "model", "task", "right", "95 % interval", "over", "steps", "seconds", "peak memory"]


@dataclass(frozen=True)
class SuiteTable:
    """A suite's rows, in the order of its file."""

    name: str
    rows: tuple[SuiteRow, ...]
    readings: tuple[dict[str, Any], ...] = ()  # time to compute each pair's features
    about: dict[str, Any] = field(default_factory=dict)
    folder: str = ""

    @property
    def failures(self) -> tuple[SuiteRow, ...]:
        return tuple(row for row in self.rows if row.error is not None)

    def to_json(self) -> dict[str, Any]:
        body: dict[str, Any] = {"name": self.name, "folder": self.folder, "failures": len(self.failures)}
        body |= {"rows": [row.to_json() for row in self.rows], "features": list(self.readings)}
        return body | dict(self.about)

    def table(self) -> tuple[list[str], list[list[str]]]:
        """Head and cells as text; repeated names are left blank."""
        cells, last = [], ("", "")
        for row in self.rows:
            data, model = row.data if row.data != last[0] else "", row.model if (row.data, row.model) != last else ""
            cells.append([data, model, *row.cells()])
            last = row.data, row.model
        return COLUMNS, cells

    def blamed(self) -> list[tuple[str, str]]:
        """What failed, and why; a model's cells with the same error together."""
        found: dict[tuple[str, str], list[str]] = {}
        for row in self.failures:
            found.setdefault((row.model, row.error or ""), []).append(f"{row.task} on {row.data}")
        return [(f"{model}, {', '.join(dict.fromkeys(cells))}", error) for (model, error), cells in found.items()]

    def notes(self) -> list[str]:
        found = []
        for row in self.rows:
            found += [f"{row.data}: {note}" for note in row.notes]
            found += [f"{row.model}, {row.task} on {row.data}: {row.left_out}"] if row.left_out else []
        for one in self.readings:
            took = f"{one['images']:,} images in {one['seconds']:,.1f} s"
            found.append(f"features of {one['data']} by {one['model']} were read once: {took}")
        return list(dict.fromkeys(found))

    def __str__(self) -> str:
        head, cells = self.table()
        lines = aligned([head, *cells], "lllrrrrrr")
        lines += [f"failed  {who}: {error}" for who, error in self.blamed()]
        return "\n".join([*lines, *(f"note    {note}" for note in self.notes())])

    __repr__ = __str__  # at a prompt

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(str(self))}</pre>"


def suite(
    source: str | os.PathLike[str] | Mapping[str, Any] | Suite,
    *,
    out: str | os.PathLike[str] | None = None,
    fit: Trainer | None = None,
    device: torch.device | str | None = None,
    workers: int | None = None,
    precision: Precision = "auto",
    tell: Tell | None = None,
) -> SuiteTable:
    """Run every task for every model and set of a suite; write table and page into a folder.

        vitreous.evaluation.suite("suite.toml", fit=vitreous.fit)

    source: a TOML file, or the same as a dict.  out: the folder (suites/NAME); cells there with the same model, images
    and task are not measured again.  fit: `vitreous.fit`, for tasks that train.  tell: called with (done, total, row).
    """
    wanted = read(source)
    folder = Path(out) if out is not None else Path("suites") / (wanted.name or "suite")
    plans = list(wanted.plans())
    if fit is None and any(isinstance(plan.task, FitTask) for plan in plans):
        raise ConfigError("the suite has a task that trains; pass the trainer: suite(..., fit=vitreous.fit)")
    if fit is not None:
        check_set(wanted.tasks, fit)
    _refuse_strangers(folder)
    try:
        bench = SuiteBench(wanted, folder, fit, device, workers, precision)
        with lock(folder / "lock", seconds=0), closing(bench):
            return _measure(wanted, plans, bench, tell)
    except BusyError:
        raise BusyError(f"another process uses {folder}; wait until it ends, or name another --out") from None


def _measure(wanted: Suite, plans: Sequence[PlannedCell], bench: SuiteBench, tell: Tell | None) -> SuiteTable:
    rows: list[SuiteRow] = []
    for done, plan in enumerate(plans, 1):
        new = _rows(plan, list(bench.cells(plan)))
        rows += new
        if tell is not None:
            for row in new:
                tell(done, len(plans), row)
    readings = [
        {"model": model, "data": data, **took}
        for model, data in dict.fromkeys((plan.model, plan.data) for plan in plans)
        if (took := bench.reading(model, data)) is not None
    ]
    about = {"models": dict(wanted.models), "sets": {name: _as_written(data) for name, data in wanted.data.items()}}
    table = SuiteTable(wanted.name, tuple(rows), tuple(readings), about | {"record": record()}, str(bench.folder))
    write_json(bench.folder / SUITE_JSON, {"schema": "vitreous.suite/1", **table.to_json()}, force=True, allow_nan=True)
    from vitreous.evaluation.suites import page as suite_page
    from vitreous.report import page

    page.write(suite_page.page(table), bench.folder / SUITE_PAGE, force=True)
    return table


def _rows(plan: PlannedCell, cells: Sequence[SuiteCell]) -> list[SuiteRow]:
    """Trainings of several seeds make one row; few-shot makes one for each number of shots."""
    first = SuiteRow(plan.model, plan.data, plan.title, plan.kind)
    error = next((cell.error for cell in cells if cell.error is not None), None)
    done = [cell for cell in cells if cell.error is None]
    if not done and isinstance(plan.task, FewShotTask):
        return [replace(first, shots=shots, error=error) for shots in plan.task.shots]
    if not done or done[0].left_out:
        return [replace(first, error=error, left_out=done[0].left_out if done else None)]
    if isinstance(plan.task, FewShotTask):
        return [_with(first, (measured,), done, error) for measured in done[0].measured]
    return [_with(first, tuple(cell.measured[0] for cell in done), done, error)]


def _with(row: SuiteRow, measured: Sequence[Measured], cells: Sequence[SuiteCell], error: str | None) -> SuiteRow:
    steps = [cell.steps for cell in cells if cell.steps is not None]
    seconds = [cell.seconds for cell in cells if cell.seconds is not None]
    memory = [cell.peak_memory for cell in cells if cell.peak_memory is not None]
    return replace(
        row,
        shots=measured[0].shots,
        accuracy=tuple(right / one.images for one in measured for right in one.right),
        images=measured[0].images,
        steps=round(sum(steps) / len(steps)) if steps else None,
        seconds=sum(seconds) / len(seconds) if seconds else None,
        peak_memory=max(memory, default=None),
        notes=tuple(dict.fromkeys(note for cell in cells for note in cell.notes)),
        error=error,
    )


def _as_written(data: str | Data) -> Any:
    """A set as the file describes it."""
    return data if isinstance(data, str) else {k: v for k, v in msgspec.structs.asdict(data).items() if v is not None}


def _refuse_strangers(folder: Path) -> None:
    """Refuse a folder that is neither new, nor empty, nor a suite's."""
    if not os.path.lexists(folder):
        return
    if not folder.is_dir():
        raise ExistsError(f"{folder} is a file; name a folder for the suite: --out DIR")
    names = sorted(file.name for file in folder.iterdir() if not file.name.startswith("."))
    if others := [name for name in names if name not in SUITE_FILES]:
        raise ExistsError(f"{folder} holds {others[0]}, which belongs to no suite; name another folder: --out DIR")
