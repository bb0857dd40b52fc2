"""Computes the missing cells of experiments: several processes in parallel; each finished cell is saved at once."""

from __future__ import annotations

import math
import os
import queue
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vitreous.errors import ConfigError, VitreousError
from vitreous.machine import choose_device, core_count
from vitreous.machine import record as machine_record
from vitreous.papers.experiment import Cell, Experiment, GridCell, ScaleName, walk
from vitreous.papers.order import Clock, Pace, Waiting, in_order, kind_of
from vitreous.papers.outcome import PaperOutcome
from vitreous.papers.processes import CellProcess, shared_gpu, workers
from vitreous.papers.results import Record, Results, new_record
from vitreous.papers.sets import Sets, is_other_copy, plain_name
from vitreous.papers.verdict import smallest_effect
from vitreous.papers.worker import compute, new_bench
from vitreous.papers.works import WORKS, Bench
from vitreous.ranks import Ranks, agreed, group
from vitreous.words import counted, duration

OUT = "papers/results"
GPU_JOBS = 14  # small trainings at once on one GPU of a machine with 16 cores
HOPELESS_AFTER = 12  # cells that failed before any ended
GRACE_SECONDS = 15.0  # past the limit, for cells that take longer than was expected
Tell = Callable[[str], None]
Step = Callable[[int, int], None]


@dataclass(frozen=True)
class Rerun:
    """One cell computed again, next to the committed value."""

    cell: GridCell
    before: Record | None
    now: Mapping[str, Any]
    spread: Mapping[str, float]  # of the committed readings of its arm, over seeds

    def to_json(self) -> dict[str, Any]:
        before = None if self.before is None else dict(self.before.readings)
        return {"arm": self.cell.arm, "seed": self.cell.seed, "key": self.cell.cell.key, "before": before} | {
            "now": dict(self.now),
            "spread": dict(self.spread),
        }

    def __str__(self) -> str:
        lines = [f"{self.cell.arm}, seed {self.cell.seed}, cell {self.cell.cell.key}"]
        for name, value in self.now.items():
            if isinstance(value, int | float):
                before = None if self.before is None else self.before.readings.get(name)
                beside = "not committed" if before is None else f"committed {before:.6g}"
                spread = f", seeds deviate by {self.spread[name]:.2g}" if name in self.spread else ""
                lines.append(f"  {name}: now {value:.6g}, {beside}{spread}")
        return "\n".join(lines)


def run(experiment: Experiment, **how: Any) -> PaperOutcome:
    """One experiment, as `run_all` computes several."""
    return run_all([experiment], **how)[0]


def run_all(
    experiments: Sequence[Experiment],
    *,
    scale: ScaleName = "laptop",
    data: str | None = None,
    seeds: int | None = None,
    out: str | os.PathLike[str] = OUT,
    jobs: int | None = None,
    device: str | None = None,
    seconds: float | None = None,
    tell: Tell | None = None,
    step: Step | None = None,
) -> list[PaperOutcome]:
    """Compute what is missing, then judge. Finished cells are in OUT/NAME.json; a stopped run resumes there.

    Cells that we committed do not count as finished: whoever runs an experiment sees it happen.
    data: the folder of the sets that are not in the package.  seeds: more or fewer than the experiments say.
    jobs: cells at once; by default one for each core, or 14 on a GPU.  0 computes in this process, as under torchrun:
    there, all ranks share each cell, one after the other.  seconds: start no cell that would end later.
    """
    limit = math.inf if seconds is None else seconds
    with group(choose_device(device)) as (_, ranks), Clock(limit) as clock:
        tell = tell if tell is not None and ranks.is_first else lambda line: None
        step = step if step is not None and ranks.is_first else lambda done, of: None
        how: dict[str, Any] = {"scale": scale, "data": data, "seeds": seeds, "jobs": jobs, "device": device}
        how |= {"clock": clock, "tell": tell, "step": step}
        return _run(experiments, Results(out, committed=None), ranks, **how)


def _run(
    experiments: Sequence[Experiment],
    results: Results,
    ranks: Ranks,
    *,
    scale: ScaleName,
    data: str | None,
    seeds: int | None,
    jobs: int | None,
    device: str | None,
    clock: Clock,
    tell: Tell,
    step: Step,
) -> list[PaperOutcome]:
    if seeds is not None and seeds < 2:
        raise ConfigError(f"--seeds {seeds} gives no interval; give 2 or more")
    if clock.limit <= 0:
        raise ConfigError(f"--seconds {clock.limit:g} is no time to compute in; give more than 0")
    placed = {experiment.name: experiment.placed(scale, seeds) for experiment in experiments}
    every = [one for grid in placed.values() for one in grid]
    sets = Sets(data)
    refuse_early(results.missing(every), sets)
    copies = sets.copies(one.cell for one in every)
    if unfit := results.forget(lambda record: not _fits(record, copies)):
        tell(f"{counted(len(unfit), 'cell')} of another machine, or of other copies of the sets, left out")
    missing = agreed(ranks, lambda: {name: results.missing(grid) for name, grid in placed.items()})
    is_gpu = choose_device(device).type == "cuda"
    usual = GPU_JOBS if is_gpu else core_count()
    at_once = 0 if ranks.world > 1 else jobs if jobs is not None else usual
    committed = Results()
    for experiment in experiments:
        outcome = PaperOutcome(experiment, scale, placed[experiment.name], committed)
        for line in announced(outcome, len(missing[experiment.name]), max(at_once, 1)):
            tell(line)
    for name in sorted(name for name, copy in copies.items() if any(missing.values()) and is_other_copy(name, copy)):
        tell(f"your copy of {name} is not the one of the committed cells, so numbers may differ")
    home = {cell.key: name for name, cells in reversed(missing.items()) for cell in cells}  # its first experiment
    settings = {"data": data, "device": device, "workers": None if at_once == 0 else 1}
    errors: dict[str, str] = {}  # by the keys of cells
    bench = new_bench(settings)
    cells = in_order([[*models_to_make(cells, bench), *cells] for cells in missing.values()])
    open_once(cells, bench)
    found = computed(cells, settings, at_once, clock=clock, ranks=ranks, is_gpu=is_gpu)
    for done, (cell, answer) in enumerate(found, 1):
        if "error" in answer:
            errors[cell.key] = answer["error"]
            if len(errors) == done == HOPELESS_AFTER:
                raise VitreousError(f"the first {done} cells all failed, such as: {answer['error']}")
        elif results.get(cell) is None and ranks.is_first and cell.key in home:
            what = answer["readings"], answer["status"], answer["seconds"]
            results.add(home[cell.key], new_record(cell, *what, sets.copies([cell])))
        step(done, len(cells))
    return [
        PaperOutcome(one, scale, placed[one.name], results, failures(placed[one.name], missing[one.name], errors))
        for one in experiments
    ]


def failures(grid: Sequence[GridCell], missing: Iterable[Cell], errors: Mapping[str, str]) -> dict[str, str]:
    """Why cells of this grid, or models that they need, could not be computed; by arm and seed.

    missing: cells of the grid that had to be computed.  errors: of all cells, by key.
    """
    where = {one.cell.key: f"{one.arm}, seed {one.seed}" for one in reversed(grid)}
    found: dict[str, list[str]] = {}
    for key in (cell.key for cell in walk(missing) if cell.key in errors):
        found.setdefault(where.get(key, f"a model that other cells need ({key})"), []).append(errors[key])
    return {name: "; ".join(dict.fromkeys(reasons)) for name, reasons in found.items()}


def open_once(cells: Iterable[Cell], bench: Bench) -> None:
    """Open the sets that the cells read, so that the copies in a large one are found once for all processes."""
    for name in dict.fromkeys(plain_name(cell.options["data"]) for cell in walk(cells) if "data" in cell.options):
        bench.sets.open(name)


def _fits(record: Record, copies: Mapping[str, str]) -> bool:
    """False if it read another copy of a set, or timed another machine."""
    if any(copies.get(name, copy) != copy for name, copy in record.copies.items()):
        return False
    is_timed = record.work in WORKS and WORKS[record.work].is_alone
    return not is_timed or record.environment.get("hardware") == machine_record()["hardware"]


def rerun(
    experiment: Experiment,
    which: str,
    *,
    scale: ScaleName = "laptop",
    data: str | None = None,
    seeds: int | None = None,
    device: str | None = None,
    results: Results | None = None,
) -> Rerun:
    """Compute one cell again.  which: its number in the grid from 1, or the first letters of its key.

    results: to compare it with; by default the committed ones.
    """
    placed, results = experiment.placed(scale, seeds), results or Results()
    one = _chosen(experiment, placed, which)
    refuse_early([one.cell], Sets(data))
    answer = compute(one.cell, new_bench({"data": data, "device": device}))
    if "error" in answer:
        raise VitreousError(f"cell {which} of {experiment.name} failed: {answer['error']}")
    table = results.table(placed)
    columns = {name: table.values(one.arm, name).values() for name in answer["readings"]}
    spread = {name: statistics.stdev(column) for name, column in columns.items() if _has_spread(column)}
    return Rerun(one, results.get(one.cell), answer["readings"], spread)


def _has_spread(column: Iterable[Any]) -> bool:
    numbers = list(column)
    return len(numbers) > 1 and all(isinstance(value, int | float) for value in numbers)


def _chosen(experiment: Experiment, placed: Sequence[GridCell], which: str) -> GridCell:
    if which.isdigit() and 1 <= int(which) <= len(placed):
        return placed[int(which) - 1]
    found = [one for one in placed if one.cell.key.startswith(which)] if len(which) >= 4 else []
    if not found:
        raise ConfigError(
            f"{experiment.name} has no cell {which!r}; give a number from 1 to {len(placed)}, or a key from its results"
        )
    return found[0]


def refuse_early(cells: Iterable[Cell], sets: Sets) -> None:
    """Check that every set is there and large enough for the grid, before computing."""
    wanted: dict[tuple[str, ...], Mapping[str, Any]] = {}
    for one in walk(cells):
        if "data" in one.options:
            wanted.setdefault(tuple(repr(one.options.get(name)) for name in ("data", "images", "classes")), one.options)
    for options in wanted.values():
        sets.part(options, int(options.get("seed", 0)))


def models_to_make(cells: Sequence[Cell], bench: Bench) -> list[Cell]:
    """Trainings that the cells need and whose model is not kept here, such as those of imported measurements.

    Each is made once, before the cells that would otherwise all make it.
    """
    known = {cell.key for cell in cells}
    needed = (need for need in walk(cells) if need.key not in known and need.work == "train")
    return [need for need in needed if not bench.is_trained(need)]


def announced(outcome: PaperOutcome, missing: int, at_once: int) -> Iterator[str]:
    """Time, the smallest effect that can be found, and the committed verdict.  outcome: of the committed cells."""
    experiment, known = outcome.experiment, [record.seconds for record in outcome.records]
    text = f"{experiment.name}: {counted(outcome.cells, 'cell')}, {missing} to run, {at_once} at once"
    if missing and known:
        text += f"; about {duration(statistics.mean(known) * missing / at_once)}"
    yield text
    seeds = experiment.seeds[outcome.scale]
    claims = sum(len(one.claims_at(outcome.scale)) for one in (experiment, *outcome.relatives))
    for claim, found in outcome.claims:
        spreads = [statistics.stdev(effect.numbers) for effect in found.effects if len(effect.numbers) > 1]
        if spreads:
            least = smallest_effect(max(spreads), seeds, claims)
            unit = found.effects[0].unit
            size = f"{100 * least:.1f} points" if unit else f"{least:.2g}"
            text = f"{counted(seeds, 'seed')} can detect an effect of {size} or more"
            yield f"{claim.name}: committed verdict {found.in_words}; {text}"


def computed(
    cells: Sequence[Cell],
    settings: dict[str, Any],
    at_once: int,
    *,
    clock: Clock,
    ranks: Ranks,
    is_gpu: bool = False,
) -> Iterator[tuple[Cell, dict[str, Any]]]:
    """Each cell with its answer, as they come. A cell waits for the trainings that it needs.

    What measures time runs last and by itself.  clock: no cell begins that would end after its limit.
    at_once: 0 computes here, in the order of the cells; all ranks start a cell if the first has time left.
    """
    if at_once == 0:
        bench = new_bench(settings)
        for cell in cells:
            if not agreed(ranks, lambda: clock.left > 0):
                return
            yield cell, compute(cell, bench)
        return
    alone = [cell for cell in cells if WORKS[cell.work].is_alone]
    others = [cell for cell in cells if not WORKS[cell.work].is_alone]
    yield from _computed(others, settings, at_once, is_gpu, clock)
    yield from _computed(alone, settings, 1, is_gpu, clock)


def _computed(
    cells: Sequence[Cell], settings: dict[str, Any], at_once: int, is_gpu: bool, clock: Clock
) -> Iterator[tuple[Cell, dict[str, Any]]]:
    if not cells:
        return
    waiting, pace = Waiting(cells), Pace(at_once)
    with shared_gpu(is_gpu and at_once > 1), workers(settings, min(at_once, len(cells))) as (all_of_them, answers):
        while True:
            for worker in (worker for worker in all_of_them if worker.busy is None):
                cell = waiting.take(worker, all_of_them, pace.fits(clock.left))
                if cell is not None:
                    worker.send(cell, _how(cell, worker, waiting) if is_gpu else {})
                    pace.begin(cell, clock.ran)
            busy = [worker.busy for worker in all_of_them if worker.busy is not None]
            if not busy or clock.left < -GRACE_SECONDS:
                return
            try:
                worker, cell, answer = answers.get(timeout=1.0)
            except queue.Empty:
                continue
            worker.busy = None
            waiting.finished(cell)
            pace.end(cell, clock.ran)
            yield cell, answer


def _how(cell: Cell, worker: CellProcess, waiting: Waiting) -> dict[str, Any]:
    """The part of a training step to compile: all of it if many cells share it, else batch making and a ViT's block."""
    if kind_of(cell) is None:
        return {}
    kind = waiting.kind(cell)
    if kind is None:
        return {"compiled": "blocks"}
    worker.kinds.add(kind)
    return {"compiled": "whole"}
