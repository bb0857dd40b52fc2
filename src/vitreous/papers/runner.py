"""Computes the missing cells of an experiment: several processes at once, each finished cell written down at once."""

from __future__ import annotations

import json
import os
import queue
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from vitreous.errors import ConfigError, VitreousError
from vitreous.machine import choose_device, core_count
from vitreous.machine import record as machine_record
from vitreous.papers.experiment import Cell, Experiment, GridCell, ScaleName, walk
from vitreous.papers.outcome import PaperOutcome
from vitreous.papers.results import Record, Results, new_record
from vitreous.papers.sets import Sets, is_other_copy
from vitreous.papers.verdict import smallest_effect
from vitreous.papers.worker import compute, new_bench
from vitreous.papers.works import WORKS, Bench
from vitreous.ranks import Ranks, agreed, group
from vitreous.words import counted, duration

OUT = "papers/results"
GPU_JOBS = 12  # small trainings at once on one GPU; 16 fit an H200
Tell = Callable[[str], None]
Step = Callable[[int, int], None]


@dataclass(frozen=True)
class Rerun:
    """One cell computed again, beside the committed value."""

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


def run(
    experiment: Experiment,
    *,
    scale: ScaleName = "laptop",
    data: str | None = None,
    seeds: int | None = None,
    out: str | os.PathLike[str] = OUT,
    jobs: int | None = None,
    device: str | None = None,
    tell: Tell | None = None,
    step: Step | None = None,
) -> PaperOutcome:
    """Compute what is missing, then judge. Finished cells are in OUT/NAME.json; a stopped experiment goes on there.

    Cells that we committed do not count as finished: whoever runs an experiment sees it happen.
    data: the folder of the sets that are not in the package.  seeds: more or fewer than the experiment says.
    jobs: cells at once; by default one for each core, or 12 on a GPU.  0 computes in this process, as under torchrun:
    there, all ranks share each cell, one after the other.
    """
    with group(choose_device(device)) as (_, ranks):
        tell = tell if tell is not None and ranks.is_first else lambda line: None
        step = step if step is not None and ranks.is_first else lambda done, of: None
        how: dict[str, Any] = {"scale": scale, "data": data, "seeds": seeds, "jobs": jobs, "device": device}
        return _run(experiment, Results(out, committed=None), ranks, tell=tell, step=step, **how)


def _run(
    experiment: Experiment,
    results: Results,
    ranks: Ranks,
    *,
    scale: ScaleName,
    data: str | None,
    seeds: int | None,
    jobs: int | None,
    device: str | None,
    tell: Tell,
    step: Step,
) -> PaperOutcome:
    if seeds is not None and seeds < 2:
        raise ConfigError(f"--seeds {seeds} gives no interval; give 2 or more")
    placed = experiment.placed(scale, seeds)
    sets = Sets(data)
    refuse_early(results.missing(placed), sets)
    copies = sets.copies(one.cell for one in placed)
    if unfit := results.forget(lambda record: not _fits(record, copies)):
        tell(f"{counted(len(unfit), 'cell')} of another machine, or of other copies of the sets, left out")
    missing = agreed(ranks, lambda: results.missing(placed))
    is_gpu = choose_device(device).type == "cuda"
    usual = GPU_JOBS if is_gpu else core_count()
    at_once = 0 if ranks.world > 1 else jobs if jobs is not None else usual
    at_once = min(at_once, 1) if any(WORKS[cell.work].is_alone for cell in missing) else at_once
    for line in announced(PaperOutcome(experiment, scale, placed, Results()), len(missing), max(at_once, 1)):
        tell(line)
    for name in sorted(name for name, copy in copies.items() if missing and is_other_copy(name, copy)):
        tell(f"your copy of {name} is not the one of the committed cells, so numbers may differ")
    settings = {"data": data, "device": device, "workers": None if at_once == 0 else 1}
    names = {one.cell.key: f"{one.arm}, seed {one.seed}" for one in placed}
    failures: dict[str, str] = {}
    cells = [*models_to_make(missing, new_bench(settings)), *missing]
    for done, (cell, answer) in enumerate(computed(cells, settings, at_once, is_gpu=is_gpu), 1):
        if "error" in answer:
            failures[names.get(cell.key, f"a model that other cells need ({cell.key})")] = answer["error"]
        elif results.get(cell) is None and ranks.is_first:
            what = answer["readings"], answer["status"], answer["seconds"]
            results.add(experiment.name, new_record(cell, *what, sets.copies([cell])))
        step(done, len(cells))
    return PaperOutcome(experiment, scale, placed, results, failures)


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

    results: those to set it beside; the committed ones.
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
    """Every set is there and large enough for the grid, before anything is computed."""
    for cell in cells:
        for one in (cell, *cell.needs):
            if "data" in one.options:
                sets.part(one.options, int(one.options.get("seed", 0)))


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
            yield f"{claim.name}: committed verdict {found.verdict}; {text}"


def computed(
    cells: Sequence[Cell], settings: dict[str, Any], at_once: int, *, is_gpu: bool = False
) -> Iterator[tuple[Cell, dict[str, Any]]]:
    """Each cell with its answer, as they come. A cell waits for the trainings that it needs."""
    if at_once == 0:
        bench = new_bench(settings)
        yield from ((cell, compute(cell, bench)) for cell in _needs_first(cells))
        return
    waiting, answers = _needs_first(cells), queue.Queue[tuple[Cell, dict[str, Any]]]()
    busy: dict[str, Cell] = {}
    with _shared_gpu(is_gpu and at_once > 1), _workers(settings, min(at_once, len(cells) or 1), answers) as free:
        while waiting or busy:
            ready = [cell for cell in waiting if not _blocked(cell, waiting, busy)]
            for cell in ready[: free.count]:
                waiting.remove(cell)
                busy[cell.key] = cell
                free.send(cell)
            cell, answer = answers.get()
            del busy[cell.key]
            free.count += 1
            yield cell, answer


def _blocked(cell: Cell, waiting: Sequence[Cell], busy: Mapping[str, Cell]) -> bool:
    """True while a training that it needs is to come, so that none is done twice."""
    ahead = {other.key for other in waiting if other is not cell} | set(busy)
    return any(need.key in ahead or _blocked(need, waiting, busy) for need in cell.needs)


def _needs_first(cells: Sequence[Cell]) -> list[Cell]:
    """Trainings before what reads them."""
    return sorted(cells, key=_depth)


def _depth(cell: Cell) -> int:
    return 1 + max(map(_depth, cell.needs), default=0)


class _Free:
    """Workers that wait for a cell."""

    def __init__(self, count: int):
        self.count, self.cells = count, queue.Queue[Cell | None]()

    def send(self, cell: Cell) -> None:
        self.count -= 1
        self.cells.put(cell)


@contextmanager
def _workers(
    settings: dict[str, Any], count: int, answers: queue.Queue[tuple[Cell, dict[str, Any]]]
) -> Iterator[_Free]:
    """So many processes, each fed by a thread; they end with the block."""
    free, processes = _Free(count), list[subprocess.Popen[str]]()
    threads = [threading.Thread(target=_feed, args=(settings, free, answers, processes)) for _ in range(count)]
    for thread in threads:
        thread.daemon = True
        thread.start()
    try:
        yield free
        for _ in threads:
            free.cells.put(None)
        for thread in threads:
            thread.join()
    finally:
        for process in processes:
            if process.poll() is None:
                process.terminate()


def _feed(
    settings: dict[str, Any],
    free: _Free,
    answers: queue.Queue[tuple[Cell, dict[str, Any]]],
    processes: list[subprocess.Popen[str]],
) -> None:
    """Give cells to one process; a process that dies is named, and the next cell gets a new one."""
    process: subprocess.Popen[str] | None = None
    while (cell := free.cells.get()) is not None:
        try:
            if process is None or process.poll() is not None:
                process = None
                process = _started(settings)
                processes.append(process)
            assert process.stdin is not None
            assert process.stdout is not None
            print(json.dumps(cell.to_json()), file=process.stdin, flush=True)
            answer = json.loads(process.stdout.readline())
        except (OSError, ValueError) as error:
            why = f"could not start ({error})" if process is None else f"ended with exit code {process.wait()}"
            answer = {"error": f"its process {why}"}
        answers.put((cell, answer))
    if process is not None and process.stdin is not None:
        process.stdin.close()
        process.wait()


def _started(settings: dict[str, Any]) -> subprocess.Popen[str]:
    words = [sys.executable, "-c", "from vitreous.papers.worker import main; main()", json.dumps(settings)]
    threads = {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")}
    pipe = subprocess.PIPE
    return subprocess.Popen(words, stdin=pipe, stdout=pipe, text=True, env={**os.environ, **threads})


@contextmanager
def _shared_gpu(is_wanted: bool) -> Iterator[None]:
    """CUDA's MPS while the block runs, if this machine has it: kernels of several processes then run side by side."""
    control = shutil.which("nvidia-cuda-mps-control") if is_wanted else None
    if control is None or "CUDA_MPS_PIPE_DIRECTORY" in os.environ:
        yield
        return
    with tempfile.TemporaryDirectory() as folder:
        places = {"CUDA_MPS_PIPE_DIRECTORY": folder, "CUDA_MPS_LOG_DIRECTORY": folder}
        os.environ.update(places)
        started = subprocess.run([control, "-d"], check=False, capture_output=True).returncode == 0
        try:
            if not started:
                for name in places:
                    del os.environ[name]
            yield
        finally:
            if started:
                subprocess.run([control], input="quit\n", text=True, check=False, capture_output=True)
            for name in places:
                os.environ.pop(name, None)
