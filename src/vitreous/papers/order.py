"""Which cell is next: the caller's order, trainings before what reads them, and equal steps in one process.

A step of a ResNet or a hybrid is compiled once for a *kind*: one network and one size of a batch. A process that has
compiled a kind takes its other cells first; one that has not takes the kind that most work waits for, shared among
those that have it. ViTs share compiled blocks, whichever process takes them.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from threading import Event, Thread

from vitreous.errors import VitreousError
from vitreous.models.catalog import parse
from vitreous.models.config import ViTConfig
from vitreous.models.cost import training_flops
from vitreous.papers.experiment import Cell, walk
from vitreous.papers.processes import CellProcess

FLOPS_PER_SECOND = 1.2e14  # of a small network whose step is captured and not compiled; seen on an H200
COMPILED_FROM = 5.0  # seconds of all steps of a kind, uncompiled; compiling takes a core half a minute
LOOKED_AHEAD = 24  # cells that may go first for their kind
OTHER_SECONDS = 3.0  # of a cell that trains nothing, or whose length is not in steps
START_SECONDS = 2.0  # before the first step and after the last
TICK = 0.25  # seconds


def kind_of(cell: Cell) -> str | None:
    """What two trainings share that can share a compiled step; None for what trains no new network."""
    if not _trains_a_new_network(cell):
        return None
    recipe = {**cell.options["recipe"], **cell.options["fields"]}
    kept = {name: value for name, value in recipe.items() if name not in ("length", "peak_lr", "weight_decay")}
    data = cell.options["data"].partition(":")[0]
    return json.dumps([cell.options["model"], data, cell.options.get("classes"), kept], sort_keys=True)


def seconds_of(cell: Cell) -> float:
    """About what a cell takes alone on a large GPU, uncompiled."""
    options = cell.options
    if not _trains_a_new_network(cell):
        return OTHER_SECONDS
    recipe = {**options["recipe"], **options["fields"]}
    found = re.fullmatch(r"(\d+) steps", str(recipe.get("length", "")))
    if found is None:
        return 10 * OTHER_SECONDS
    flops = 0.0
    with suppress(VitreousError):
        flops = training_flops(parse(options["model"])) * float(int(found[1]) * int(recipe.get("batch", 512)))
    return START_SECONDS + len(options.get("rates") or [0]) * flops / FLOPS_PER_SECOND


def _trains_a_new_network(cell: Cell) -> bool:
    """By a recipe that says its length."""
    return cell.options.get("model") is not None and isinstance(cell.options.get("recipe"), Mapping)


def is_plain_vit(model: str) -> bool:
    """Whether its cost lies in equal blocks."""
    config = parse(model)
    return isinstance(config, ViTConfig) and config.embedding.stem == "patch"


class Waiting:
    """Cells that nobody computes yet."""

    def __init__(self, cells: Iterable[Cell]):
        """cells: in the order in which they are wanted."""
        self.cells = {cell.key: cell for cell in cells}
        self.needs = {key: {need.key for need in walk(cell.needs)} for key, cell in self.cells.items()}
        self.seconds = {key: seconds_of(cell) for key, cell in self.cells.items()}
        self.kinds = {key: kind_of(cell) for key, cell in self.cells.items()}
        self.unfinished = set(self.cells)
        totals: dict[str, float] = {}
        for key, kind in self.kinds.items():
            if kind is not None and not is_plain_vit(self.cells[key].options["model"]):
                totals[kind] = totals.get(kind, 0.0) + self.seconds[key] - START_SECONDS
        self.worth_compiling = {kind for kind, total in totals.items() if total >= COMPILED_FROM}

    def __len__(self) -> int:
        return len(self.cells)

    def kind(self, cell: Cell) -> str | None:
        """Of the step that is compiled for a cell; None if it is not worth it."""
        kind = self.kinds.get(cell.key)
        return kind if kind in self.worth_compiling else None

    def take(self, worker: CellProcess, others: Sequence[CellProcess], longest: float) -> Cell | None:
        """The next cell for this worker, and no longer waiting; None if each needs another, or more seconds."""
        ready = list(islice(self._ready(longest), LOOKED_AHEAD))
        if not ready:
            return None
        load = self._load(ready, others)

        def rank(cell: Cell) -> tuple[bool, float]:
            """First what is short or goes on with a kind of this worker, then the kind that most work waits for."""
            kind = self.kind(cell)
            goes_on = kind in worker.kinds or (kind is None and self.seconds[cell.key] <= OTHER_SECONDS)
            return not goes_on, 0.0 if goes_on else -load[kind or cell.key]

        chosen = min(ready, key=rank)  # the first of those that rank alike
        del self.cells[chosen.key]
        return chosen

    def _ready(self, longest: float) -> Iterator[Cell]:
        for key, cell in self.cells.items():
            if not (self.needs[key] & self.unfinished) and self.seconds[key] <= longest:
                yield cell

    def _load(self, ready: Sequence[Cell], others: Sequence[CellProcess]) -> dict[str, float]:
        """By kind, or by cell without one: the seconds that wait for each process that has it, and for one more."""
        found: dict[str, float] = {}
        for cell in ready:
            name = self.kind(cell) or cell.key
            found[name] = found.get(name, 0.0) + self.seconds[cell.key]
        return {name: seconds / (1 + sum(name in one.kinds for one in others)) for name, seconds in found.items()}

    def finished(self, cell: Cell) -> None:
        self.unfinished.discard(cell.key)


def in_order(groups: Sequence[Sequence[Cell]]) -> list[Cell]:
    """The cells of each group before those of the next; within one, trainings first, and of these the longest."""
    found: dict[str, Cell] = {}
    for group in groups:
        for cell in sorted(group, key=lambda cell: (_depth(cell), -seconds_of(cell))):
            found.setdefault(cell.key, cell)
    return list(found.values())


def _depth(cell: Cell) -> int:
    return 1 + max(map(_depth, cell.needs), default=0)


class Clock:
    """Seconds that this process ran within the block. While it is stopped, such as by SIGSTOP, no time passes."""

    def __init__(self, limit: float):
        self.limit, self.ran = limit, 0.0
        self._ended = Event()
        self._thread = Thread(target=self._tick, daemon=True)

    def __enter__(self) -> Clock:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    @property
    def left(self) -> float:
        return self.limit - self.ran

    def _tick(self) -> None:
        last = time.monotonic()
        while not self._ended.wait(TICK):
            now = time.monotonic()
            self.ran += min(now - last, 4 * TICK)
            last = now


class Pace:
    """How long cells take here, of those that ended, over what was expected of each alone."""

    def __init__(self, at_once: int):
        self.begun: dict[str, float] = {}
        self.took, self.expected = 0.0, 0.0
        self.guess = 1.0 + at_once / 2

    @property
    def factor(self) -> float:
        return self.took / self.expected if self.took else self.guess

    def begin(self, cell: Cell, now: float) -> None:
        self.begun[cell.key] = now

    def end(self, cell: Cell, now: float) -> None:
        self.took += now - self.begun.pop(cell.key)
        self.expected += seconds_of(cell)

    def fits(self, left: float) -> float:
        """The longest cell, in seconds of its own, that is expected to end in time."""
        return left / self.factor
