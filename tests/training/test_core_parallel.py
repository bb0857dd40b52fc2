"""Lanes of a CPU: the step of the whole batch, the same bits however they are scheduled, and no state between them."""

from contextlib import contextmanager
from itertools import islice

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from picture_sets import make_batches
from small_runs import BUSY, CPU, PLAIN, assert_equal_states, image_set, make_loop, network, rule, sized
from torch.testing import assert_close

import vitreous
from vitreous.ranks import Ranks
from vitreous.training.run import folder as runs
from vitreous.training.run.core_parallel import MAX_GRADIENT_BYTES, MAX_LANES, MIN_IMAGES_PER_LANE, how_many
from vitreous.training.run.step import Step
from vitreous.training.run.tasks.classify import Classify
from vitreous.training.run.tasks.distill import Distill
from vitreous.training.run.tasks.masked import MaskedPatches

DATA = image_set(64)
MIXED = sized(BUSY.change(batch=16, dropout=0.0, mixup=0.3, cutmix=1.0, drop_path=0.3, optimizer="sgd", peak_lr=0.05))


@contextmanager
def cores(count):
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def stepped(recipe, task, **options):
    task.network.train()
    step = Step(task, recipe, steps=9, rule=rule(), classes=4, device=CPU, ranks=Ranks(), **options)
    batches = make_batches(
        DATA, batch=recipe.batch, preprocess=rule(), augment=recipe.augment, epochs=9, workers=0, rank=0, world=1
    )
    for number, batch in enumerate(islice(batches, 5)):
        step(batch, number, 1.0)
    return step


def classify(recipe):
    return Classify(network(recipe), recipe)


def distill(recipe):
    return Distill(network(recipe), network(recipe, seed=5), recipe.change(teacher="teacher"))


@pytest.mark.parametrize("task", [classify, distill])
@pytest.mark.parametrize(("lanes", "parts"), [(2, 1), (4, 1), (2, 2)])
def test_lanes_change_the_weights_as_the_whole_batch_does(task, lanes, parts):
    """With mixed pairs, of which none lies in two lanes, and paths dropped by picture."""
    whole = stepped(MIXED, task(MIXED))
    parted = stepped(MIXED, task(MIXED), lanes=lanes, parts=parts)
    assert_close(parted.network.state_dict(), whole.network.state_dict(), rtol=1e-4, atol=1e-6)
    ours, theirs = parted.read(), whole.read()
    assert ours.loss == pytest.approx(theirs.loss, rel=1e-5)
    assert (ours.accuracy, ours.images) == (theirs.accuracy, theirs.images)


def test_parameters_that_share_a_gradient_are_each_moved_by_it_once():
    """autograd gives both terms of a sum the same tensor."""

    class Sum(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = (torch.nn.Parameter(torch.zeros(4)) for _ in range(2))

        def forward(self, x):
            return (self.a + self.b).expand(len(x), -1) * x.mean((1, 2, 3))[:, None]

    recipe = sized(PLAIN.change(batch=16, optimizer="sgd", momentum=0.0, weight_decay=0.0, clip=0.1))
    whole, parted = (stepped(recipe, Classify(Sum(), recipe), lanes=lanes).network for lanes in (1, 2))
    assert_close(parted.state_dict(), whole.state_dict(), rtol=1e-4, atol=1e-7)
    assert (whole.a != 0).all()


def test_the_same_lanes_give_the_same_bits():
    first, *others = (stepped(MIXED, classify(MIXED), lanes=4).state() for _ in range(4))
    for other in others:
        assert_equal_states(first, other)


def test_masked_patches_in_lanes_learn_what_the_whole_batch_learns():
    recipe = sized(PLAIN.change(batch=16, optimizer="sgd", peak_lr=0.05))
    found = []
    for lanes in (1, 2):
        config = network(recipe).config.change(mask_token=True)
        task = MaskedPatches(vitreous.build(config, seed=0), recipe)
        found.append(stepped(recipe, task, lanes=lanes).network.state_dict())
    assert_close(*found, rtol=1e-4, atol=1e-6)


class Death(Exception):
    pass


def looped(recipe, **options):
    model = network(recipe)
    train, dev = DATA.take(range(48)), DATA.take(range(48, 64))
    loop = make_loop(Classify(model, recipe), recipe, train, dev, save_seconds=0, **options)
    return loop, loop.run()


def test_a_run_goes_on_in_the_lanes_it_began_with_on_any_machine(tmp_path):
    recipe = MIXED.change(length="7 steps", evaluate_every=1.0, optimizer="muon")

    def die(event):
        if event["kind"] == "step" and event["step"] == 4:
            raise Death

    with cores(2):
        with runs.RunFolder.create(tmp_path / "whole", {}) as folder:
            loop, whole = looped(recipe, folder=folder)
        assert loop.step.lane_count == 2
        with runs.RunFolder.create(tmp_path / "ended", {}) as folder, pytest.raises(Death):
            looped(recipe, folder=folder, tell=die)
    with cores(1), runs.RunFolder.open(tmp_path / "ended") as folder:
        loop, again = looped(recipe, folder=folder)
        assert loop.step.lane_count == 2
    assert_equal_states(again.state, whole.state)
    assert runs.without_clocks(runs.read(tmp_path / "ended")) == runs.without_clocks(runs.read(tmp_path / "whole"))


def test_where_one_generator_draws_for_all_there_is_one_lane():
    with cores(2):
        assert looped(MIXED.change(length="1 steps"))[0].step.lane_count == 2
        assert looped(MIXED.change(length="1 steps", dropout=0.1))[0].step.lane_count == 1
        assert looped(MIXED.change(length="1 steps", batch=8))[0].step.lane_count == 1


@pytest.mark.parametrize("compiled", ["blocks", "whole"])
def test_a_compiled_step_has_one_lane(compiled, monkeypatch):
    """Threads would take the compiled blocks from each other; what a compiler makes of it, others test."""
    monkeypatch.setattr(torch, "compile", lambda work, **options: work)
    with cores(2):
        loop, outcome = looped(MIXED.change(length="2 steps"), compiled=compiled)
    assert (loop.step.lane_count, outcome.steps) == (1, 2)


@given(st.integers(1, 600), st.integers(1, 4), st.integers(1, 64), st.integers(1, 2**28), st.booleans())
def test_all_lanes_have_as_much_to_do_and_room_or_there_is_one(batch, parts, count, parameters, in_pairs):
    lanes = how_many(batch, parts, count, parameters=parameters, in_pairs=in_pairs)
    assert lanes in (1, min(count, MAX_LANES))
    if lanes > 1:
        share = batch / (lanes * parts)
        assert share.is_integer()
        assert share >= MIN_IMAGES_PER_LANE
        assert not (in_pairs and share % 2)
        assert 4 * parameters * lanes <= MAX_GRADIENT_BYTES
