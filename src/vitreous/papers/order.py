"""Which cell is next: in the caller's order, trainings before what reads them, and equal steps in one process.

A step of a ResNet or a hybrid is compiled once for a *kind*: one network and one batch size. A process that has
compiled a kind takes the other cells of that kind first. Any other process takes the kind with the most waiting work
for each process that shares it. ViTs share compiled blocks, whichever process takes them.
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

FLOPS_PER_SECOND = 1.2e14  # of a small network whose step is captured but not compiled; seen on an H200
COMPILED_FROM = 5.0  # seconds of a kind's uncompiled steps above which compiling pays; it takes a core half a minute
LOOKED_AHEAD = 24  # cells that may go first for their kind
OTHER_SECONDS = 3.0  # of a cell that trains nothing, or whose length is not in steps
START_SECONDS = 2.0  # before the first step and after the last
TICK = 0.25  # seconds


def kind_of(cell: Cell) -> str | None:
    """What trainings must have in common to share a compiled step; None if no new network is trained."""
    if not _trains_a_new_network(cell):
        return None
    recipe = {**cell.options["recipe"], **cell.options["fields"]}
    kept = {name: value for name, value in recipe.items() if name not in ("length", "peak_lr", "weight_decay")}
    data = cell.options["data"].partition(":")[0]
    return json.dumps([cell.options["model"], data, cell.options.get("classes"), kept], sort_keys=True)


def seconds_of(cell: Cell) -> float:
    """Roughly what a cell takes alone on a large GPU, uncompiled."""
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
    """Whether a recipe given as fields trains a network."""
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
        """The kind of the step that is compiled for a cell; None if compiling is not worth it."""
        kind = self.kinds.get(cell.key)
        return kind if kind in self.worth_compiling else None

    def take(self, worker: CellProcess, others: Sequence[CellProcess], longest: float) -> Cell | None:
        """Take the next cell for this worker; None if every cell needs an unfinished one, or more seconds."""
        ready = list(islice(self._ready(longest), LOOKED_AHEAD))
        if not ready:
            return None
        load = self._load(ready, others)

        def rank(cell: Cell) -> tuple[bool, float]:
            """Short cells and cells of this worker's kinds come first, then the kind with the most waiting work."""
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
        """Waiting seconds by kind, or by cell without a kind, divided by the processes that have it plus one."""
        found: dict[str, float] = {}
        for cell in ready:
            name = self.kind(cell) or cell.key
            found[name] = found.get(name, 0.0) + self.seconds[cell.key]
        return {name: seconds / (1 + sum(name in one.kinds for one in others)) for name, seconds in found.items()}

    def finished(self, cell: Cell) -> None:
        self.unfinished.discard(cell.key)


def in_order(groups: Sequence[Sequence[Cell]]) -> list[Cell]:
    """The cells of each group before those of the next; within a group trainings come first, the longest ahead."""
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
    """How long the finished cells took here, relative to the time expected of each alone."""

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
        """The longest cell that is expected to end in time, in the seconds it takes alone."""
        return left / self.factor
