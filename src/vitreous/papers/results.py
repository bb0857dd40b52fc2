"""Finished cells on disk: `NAME.json` holds all finished cells of an experiment, and the machine of each.

The package's cells are committed, and no run writes them; a user's own cells lie in the user's folder.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from vitreous.errors import DataError
from vitreous.files import lock, write_json
from vitreous.machine import record as machine_record
from vitreous.papers.experiment import ArmTable, Cell, Experiment, GridCell, ScaleName

COMMITTED = Path(__file__).parent / "results"
SCHEMA = "vitreous.paper-results/1"
DONE, DIVERGED = "done", "diverged"


@dataclass(frozen=True)
class Record:
    """A finished cell."""

    key: str
    work: str
    version: int
    options: Mapping[str, Any]
    needs: tuple[str, ...]  # their keys
    readings: Mapping[str, Any]
    status: str  # done, or diverged: its loss stopped being finite, and it is scored at chance
    seconds: float
    environment: Mapping[str, Any]  # command, versions, hardware, commit
    origin: str = ""  # the file an older measurement was taken from
    copies: Mapping[str, str] = field(default_factory=dict)  # content id of each set that was read; older records: none

    @property
    def vitreous(self) -> str:
        """The version that computed it."""
        return str(self.environment.get("versions", {}).get("vitreous", "unknown"))


def new_record(
    cell: Cell, readings: Mapping[str, Any], status: str, seconds: float, copies: Mapping[str, str] | None = None
) -> Record:
    """What this machine has just computed."""
    return Record(
        cell.key,
        cell.work,
        cell.version,
        dict(cell.options),
        tuple(need.key for need in cell.needs),
        dict(readings),
        status,
        seconds,
        _this_machine(),
        copies=copies or {},
    )


@cache
def _this_machine() -> Mapping[str, Any]:
    return machine_record()  # asking git and the devices takes longer than writing a cell


class Results:
    """All cells of the package's results and of a user's folder; the user's take precedence.

    committed: None leaves the package's out, so that a user computes every cell.
    """

    def __init__(self, out: str | os.PathLike[str] | None = None, *, committed: Path | None = COMMITTED):
        self.out = None if out is None else Path(out)
        self.records: dict[str, Record] = {}
        self.derived: dict[str, Any] = {}  # computed from the records, by name
        for folder in dict.fromkeys(each for each in (committed, self.out) if each is not None):
            for file in sorted(folder.glob("*.json")):
                self.records |= {record.key: record for record in read(file)}

    def get(self, cell: Cell) -> Record | None:
        return self.records.get(cell.key)

    def missing(self, placed: Iterable[GridCell]) -> list[Cell]:
        """The cells that have no record, each once, in the grid's order."""
        cells = {one.cell.key: one.cell for one in placed}
        return [cell for key, cell in cells.items() if key not in self.records]

    def forget(self, unfit: Callable[[Record], bool]) -> list[Record]:
        """Leave out records that do not belong here; their file keeps each until its cell is computed again."""
        left_out = [record for record in self.records.values() if unfit(record)]
        for record in left_out:
            del self.records[record.key]
        return left_out

    def table(self, placed: Iterable[GridCell]) -> ArmTable:
        rows: dict[str, dict[int, dict[str, Any]]] = {}
        for one in placed:
            row = rows.setdefault(one.arm, {}).setdefault(one.seed, {})
            if (found := self.get(one.cell)) is not None:
                row |= found.readings
        return ArmTable(rows)

    def add(self, name: str, new: Record) -> None:
        """Append a record to NAME.json of the user's folder, whole or not at all."""
        assert self.out is not None, "a run has a folder for its results"
        self.records[new.key] = new
        file = self.out / f"{name}.json"
        file.parent.mkdir(parents=True, exist_ok=True)
        with lock(file.with_name(f".{name}.lock")):
            kept = [one for one in read(file) if one.key != new.key] if file.exists() else []
            write(file, name, [*kept, new])


def read(file: Path) -> list[Record]:
    """The records of a results file, or one line that says what is wrong with it."""
    try:
        body = json.loads(file.read_bytes())
        if body["schema"] != SCHEMA:
            raise DataError(f"{file} has the schema {body['schema']!r}, not {SCHEMA}; move it away")
        environments = body["environments"]
        return [_record(cell, environments[cell["environment"]]) for cell in body["cells"]]
    except (OSError, ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
        why = f"{type(error).__name__}: {error}"
        raise DataError(f"{file} is not a whole results file ({why}); restore it, or delete it to run again") from None


def _record(cell: dict[str, Any], environment: Mapping[str, Any]) -> Record:
    fields = {name: cell[name] for name in ("key", "work", "version", "options", "readings", "status", "seconds")}
    return Record(**fields, needs=tuple(cell["needs"]), environment=environment, **_optional(cell))


def _optional(cell: Mapping[str, Any]) -> dict[str, Any]:
    return {name: cell[name] for name in ("origin", "copies") if name in cell}


def write(file: Path, name: str, records: Sequence[Record]) -> None:
    """Write the file in one piece; cells that share an environment store it once."""
    environments: list[Mapping[str, Any]] = []
    cells = []
    for one in records:
        if one.environment not in environments:
            environments.append(one.environment)
        body: dict[str, Any] = {"key": one.key, "work": one.work, "version": one.version, "options": dict(one.options)}
        body |= {"needs": list(one.needs), "readings": dict(one.readings), "status": one.status}
        body |= {"seconds": round(one.seconds, 3), "environment": environments.index(one.environment)}
        body |= {"origin": one.origin} if one.origin else {}
        cells.append(body | ({"copies": dict(one.copies)} if one.copies else {}))
    whole = {"schema": SCHEMA, "experiment": name, "environments": environments, "cells": cells}
    write_json(file, whole, force=True, indent=1, ensure_ascii=False)


def stale(experiment: Experiment, scale: ScaleName, results: Results) -> list[Record]:
    """Records that answer a cell of this grid by an older definition of its work: kept, and not used."""
    now = {(one.cell.work, _text(one.cell.options)): one.cell.version for one in experiment.placed(scale)}
    known = results.records.values()
    return [one for one in known if now.get((one.work, _text(one.options)), one.version) != one.version]


def _text(options: Mapping[str, Any]) -> str:
    return json.dumps(dict(options), sort_keys=True)


def imported(record: Record, origin: str) -> Record:
    """An older measurement that fits a cell."""
    return replace(record, origin=origin)
