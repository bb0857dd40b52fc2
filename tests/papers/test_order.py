"""Which cell is next: needs first, equal steps in one process, and none that would end too late."""

import queue

import pytest

from vitreous.papers import runner
from vitreous.papers.experiment import Cell
from vitreous.papers.experiments.gpu_scale import HYBRID_MODEL, RECIPE, RESNET_MODEL, VIT_MODEL
from vitreous.papers.order import START_SECONDS, Clock, Pace, Waiting, in_order, kind_of, seconds_of
from vitreous.papers.processes import CellProcess
from vitreous.papers.works.shift import shift
from vitreous.papers.works.train import train
from vitreous.ranks import Ranks


def trained(seed, model=VIT_MODEL, **changes):
    return train(model, "tiny-imagenet", seed, recipe={**RECIPE, "peak_lr": 1e-3, **changes})


def worker(*kinds):
    return CellProcess({}, queue.Queue(), kinds=set(kinds))


def test_a_kind_is_a_network_and_a_batch_whatever_the_seed_rate_decay_length_and_share_of_images():
    one = trained(0)
    same = [trained(1), trained(0, peak_lr=3e-3, weight_decay=0.5), trained(0, length="200 steps")]
    same += [train(VIT_MODEL, "tiny-imagenet:grey", 0, recipe=one.options["recipe"], images=5000)]
    assert {kind_of(cell) for cell in same} == {kind_of(one)}
    others = [trained(0, VIT_MODEL + " pool=gap"), trained(0, batch=32), trained(0, area=[0.5, 1.0])]
    assert len({kind_of(cell) for cell in [one, *others]}) == 4
    assert kind_of(train(None, "imagenette", 0, recipe="fine-tune", weights=one)) is None
    assert kind_of(shift(one, "tiny-imagenet", [1])) is None


def test_twice_the_steps_take_twice_as_long():
    short, long = (seconds_of(trained(0, length=f"{steps} steps")) - START_SECONDS for steps in (1000, 2000))
    assert long == pytest.approx(2 * short)
    assert 1 < long < 10  # of the ViT of the gpu scale on a large GPU


def test_a_cell_waits_for_what_it_needs():
    first = trained(0)
    waiting = Waiting(in_order([[shift(first, "tiny-imagenet", [1]), first]]))
    assert waiting.take(worker(), [], 1e9) is first
    assert waiting.take(worker(), [], 1e9) is None
    waiting.finished(first)
    assert waiting.take(worker(), [], 1e9).work == "shift"


def test_groups_come_in_the_callers_order_and_each_cell_once():
    late, early = trained(0, HYBRID_MODEL), trained(0)
    reading = shift(early, "tiny-imagenet", [1])
    assert in_order([[reading, early], [early, late]]) == [early, reading, late]


def test_a_process_goes_on_with_the_kind_it_has_compiled():
    resnets, hybrids = (
        [trained(seed, RESNET_MODEL) for seed in range(9)],
        [trained(seed, HYBRID_MODEL) for seed in range(9)],
    )
    waiting = Waiting(in_order([[*resnets, *hybrids]]))
    of_resnets, of_hybrids = worker(kind_of(resnets[0])), worker(kind_of(hybrids[0]))
    both = [of_resnets, of_hybrids]
    assert kind_of(waiting.take(of_hybrids, both, 1e9)) == kind_of(hybrids[0])
    assert kind_of(waiting.take(of_resnets, both, 1e9)) == kind_of(resnets[0])
    assert kind_of(waiting.take(worker(), [of_hybrids], 1e9)) == kind_of(resnets[0])  # which no process has


def test_the_kind_with_most_work_gets_most_processes():
    resnets, hybrids = (
        [trained(seed, RESNET_MODEL) for seed in range(16)],
        [trained(seed, HYBRID_MODEL) for seed in range(6)],
    )
    waiting, workers = Waiting(in_order([[*hybrids, *resnets]])), [worker() for _ in range(4)]
    for one in workers:
        one.kinds.add(kind_of(waiting.take(one, workers, 1e9)))
    assert sorted(one.kinds == {kind_of(resnets[0])} for one in workers) == [False, True, True, True]


def test_what_few_cells_share_is_not_compiled_whole_and_vits_share_blocks():
    few, many = Waiting([trained(0, RESNET_MODEL)]), Waiting([trained(seed, RESNET_MODEL) for seed in range(9)])
    assert few.kind(trained(0, RESNET_MODEL)) is None
    assert many.kind(trained(0, RESNET_MODEL)) == kind_of(trained(0, RESNET_MODEL))
    assert runner._how(trained(0, RESNET_MODEL), worker(), few) == {"compiled": "blocks"}
    assert runner._how(trained(0, RESNET_MODEL), worker(), many) == {"compiled": "whole"}
    assert runner._how(trained(0), worker(), few) == {"compiled": "blocks"}
    assert runner._how(shift(trained(0), "tiny-imagenet", [1]), worker(), few) == {}


def test_a_cell_that_would_end_too_late_is_left():
    waiting, pace = Waiting([trained(0), trained(0, length="60 steps")]), Pace(at_once=2)
    pace.begin(trained(1), 10.0)
    pace.end(trained(1), 10.0 + 3 * seconds_of(trained(1)))  # here cells take three times as long as expected
    assert (
        waiting.take(worker(), [], pace.fits(3.3 * seconds_of(trained(0, length="60 steps")))).options["recipe"][
            "length"
        ]
        == "60 steps"
    )
    assert waiting.take(worker(), [], pace.fits(2.9 * seconds_of(trained(0)))) is None
    assert waiting.take(worker(), [], pace.fits(3.1 * seconds_of(trained(0)))) is not None


def test_cells_that_ended_within_one_tick_of_the_clock_tell_no_pace():
    pace = Pace(at_once=2)
    guessed = pace.fits(10.0)
    pace.begin(trained(0), 1.0)
    pace.end(trained(0), 1.0)
    assert pace.fits(10.0) == guessed


def test_no_cell_begins_when_the_time_is_over(tmp_path, monkeypatch):
    monkeypatch.setattr(runner, "compute", lambda cell, bench: {"readings": {}, "status": "done", "seconds": 0.0})
    monkeypatch.setattr(Clock, "left", property(lambda clock: 2.5 - len(done)))
    done = []
    cells = [Cell("words", {"seed": n}) for n in range(9)]
    for cell, _ in runner.computed(cells, {}, 0, clock=Clock(1.0), ranks=Ranks()):
        done.append(cell)
    assert len(done) == 3
