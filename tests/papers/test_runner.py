"""What the runner tells of failures, whose clock it asks, and what it leaves behind."""

import io
import math
import queue
import threading
import weakref
from types import SimpleNamespace

import pytest

from vitreous import papers
from vitreous.cli.paper import tenths
from vitreous.errors import DataError, VitreousError
from vitreous.papers import processes, runner
from vitreous.papers.experiment import Cell, Experiment, GridCell
from vitreous.papers.order import Clock
from vitreous.papers.processes import CellProcess
from vitreous.papers.worker import compute, new_bench
from vitreous.papers.works import WORKS, Work
from vitreous.ranks import Ranks


def numbered(number, *needs):
    return Cell("numbered", {"number": number}, needs)


def experiment(name, *cells):
    """One arm, a seed for each cell."""
    placed = [GridCell("arm", seed, cell) for seed, cell in enumerate(cells)]
    return Experiment(name, "E-TEST", name, (), lambda scale, seeds: placed)


@pytest.fixture
def works(monkeypatch, tmp_path):
    """The work `numbered` refuses numbers below 0."""

    def answer(cell, bench):
        if cell.options["number"] < 0:
            raise VitreousError(f"no {cell.options['number']}")
        return {"accuracy": 0.5}

    monkeypatch.setenv("VITREOUS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setitem(WORKS.parts, "numbered", Work(answer))
    return WORKS.parts


def test_each_experiment_tells_its_own_failures(works, tmp_path):
    """Arms of the same name do not share them; a cell of two experiments fails in both."""
    shared = numbered(-3)
    experiments = [
        experiment("one", numbered(-1), numbered(1), shared),
        experiment("two", numbered(-2), numbered(2)),
        experiment("three", numbered(3), shared),
        experiment("four", numbered(4), numbered(5)),
    ]
    outcomes = papers.run_all(experiments, out=tmp_path, jobs=0)
    assert [outcome.failures for outcome in outcomes] == [
        {"arm, seed 0": "no -1", "arm, seed 2": "no -3"},
        {"arm, seed 0": "no -2"},
        {"arm, seed 1": "no -3"},
        {},
    ]


def test_a_failed_model_is_told_where_it_is_needed_and_an_arm_tells_each_reason_once():
    model = numbered(-1)
    first, second, third = (numbered(number, model) for number in (-2, -3, -4))
    grid = [GridCell("arm", 0, cell) for cell in (first, second, third)]
    errors = {model.key: "no room", first.key: "no model", second.key: "no model", third.key: "no light"}
    told = {f"a model that other cells need ({model.key})": "no room", "arm, seed 0": "no model; no light"}
    assert runner.failures(grid, [first, second, third], errors) == told
    assert runner.failures(grid, [], errors) == {}  # all finished before


def test_a_run_in_which_nothing_works_ends(works, tmp_path):
    """Also where experiments have arms of the same name."""
    experiments = [experiment(str(k), *(numbered(-100 * k - n) for n in range(1, 9))) for k in range(2)]
    with pytest.raises(VitreousError, match="the first 12 cells all failed, such as: no -"):
        papers.run_all(experiments, out=tmp_path, jobs=0)


def test_a_run_in_a_log_tells_each_tenth_with_the_time_left(monkeypatch):
    told, now = [], [0.0]
    monkeypatch.setattr("vitreous.cli.paper.time", SimpleNamespace(monotonic=lambda: now[0]))
    step = tenths("positions: cells", told.append)
    for done in range(1, 21):
        now[0] += 60
        step(done, 20)
    assert told[0] == "positions: cells 2/20, about 18 min left"
    assert told[-1] == "positions: cells 18/20, about 2 min left"
    assert len(told) == 9  # not the last, which the table follows
    few = []
    step = tenths("small: cells", few.append)
    for done in range(1, 5):
        step(done, 4)
    assert [line.split(",")[0] for line in few] == ["small: cells 1/4", "small: cells 2/4", "small: cells 3/4"]


def test_a_refused_run_leaves_no_thread(tmp_path):
    too_large = experiment("large", Cell("numbered", {"data": "fashion", "images": 9999}))
    before = set(threading.enumerate())
    with pytest.raises(DataError, match="at least 9,999"):
        papers.run(too_large, out=tmp_path, jobs=0)
    assert set(threading.enumerate()) <= before


def test_every_rank_begins_what_the_first_has_time_for(works, monkeypatch):
    """All ranks share a cell: one that stayed away would have the others wait for ever."""
    cells = [numbered(number) for number in range(4)]
    for left in (-1.0, 1.0):  # by this rank's own clock
        told = iter([True, True, False])
        monkeypatch.setattr(runner, "agreed", lambda ranks, choose, told=told: next(told))
        monkeypatch.setattr(Clock, "left", left)
        found = runner.computed(cells, {}, 0, clock=Clock(1.0), ranks=Ranks(1, 2))
        assert [cell for cell, _ in found] == cells[:2]


def test_one_process_computes_in_the_order_of_the_caller(works):
    """Also a training after a reading of an earlier experiment."""
    cells = [numbered(0), numbered(1, numbered(0)), numbered(2)]
    found = runner.computed(cells, {}, 0, clock=Clock(math.inf), ranks=Ranks())
    assert [cell for cell, _ in found] == cells


@pytest.fixture
def started(monkeypatch):
    """What the next process answers, line by line."""
    lines = []

    def start(settings):
        pipe = io.StringIO("".join(lines))
        return SimpleNamespace(stdin=io.StringIO(), stdout=pipe, poll=lambda: None, wait=lambda: 3)

    monkeypatch.setattr(processes, "_started", start)
    return lines


def fed(kind):
    """A process that was sent one cell of this kind, and its answer."""
    one = CellProcess({}, queue.Queue())
    one.kinds.add(kind)
    one.send(numbered(0), {"compiled": "whole"})
    one.cells.put(None)
    one.feed()
    return one, one.answers.get_nowait()[2]


def test_a_process_knows_the_first_kind_that_it_compiles(started):
    started.append("{}\n")
    one, answer = fed("a kind")
    assert answer == {}
    assert one.kinds == {"a kind"}


def test_a_process_that_ended_has_compiled_nothing(started):
    one, answer = fed("a kind")
    assert answer == {"error": "its process ended with exit code 3"}
    assert one.kinds == set()


def test_a_step_that_did_not_compile_is_gone_before_the_cell_runs_again(works):
    seen = []

    def answer(cell, bench):
        if bench.compiled == "whole":
            network = Work(answer)
            seen.append(weakref.ref(network))
            raise RuntimeError("the compiler has no such kernel")
        assert seen[0]() is None
        return {"accuracy": 0.5}

    works["numbered"] = Work(answer)
    assert compute(numbered(0), new_bench({"device": "cpu"}), "whole")["readings"] == {"accuracy": 0.5}
    assert compute(numbered(0), new_bench({"device": "cpu"}), None)["readings"] == {"accuracy": 0.5}
