"""On a GPU: a captured step is the same step, and being captured changes nothing that a CPU's run keeps."""

import os
import signal

import numpy as np
import pytest
import torch
from picture_sets import make_batches
from small_runs import BUSY, PLAIN, assert_equal_states, image_set, network, picture_folder, rule, sized
from torchrun import HOW

import vitreous
from vitreous.ranks import Ranks, group
from vitreous.training.plan.parallel import Strategy
from vitreous.training.recipe import Recipe
from vitreous.training.run import folder as runs
from vitreous.training.run.loop import Loop
from vitreous.training.run.runtime import Runtime
from vitreous.training.run.stage import TrainingStage
from vitreous.training.run.step import Step
from vitreous.training.run.tasks.classify import Classify

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here")
GPU = torch.device("cuda")


class NaNIn(Classify):
    """A batch with one of these pictures has a loss that is no number, without a look at a value."""

    def __init__(self, model, recipe, ids):
        super().__init__(model, recipe)
        self.ids = np.asarray(ids)

    def host(self, batch):
        return {"poison": np.where(np.isin(batch.ids, self.ids), np.float32(np.nan), np.float32(0))}

    def loss(self, images, targets, extra):
        loss, right = super().loss(images, targets, extra)
        return loss + extra["poison"].sum(), right


def trained(recipe: Recipe, *, captured: bool, steps: int = 6, task=Classify, compiled="none", **options):
    data = image_set(64)
    recipe = sized(recipe)
    model = network(recipe).to(GPU)
    work = task(model, recipe)
    step = Step(
        work,
        recipe,
        steps=steps,
        rule=rule(),
        classes=4,
        device=GPU,
        ranks=Ranks(),
        compiled=compiled,
        captured=captured,
        **options,
    )
    model.train()
    batches = iter(
        make_batches(
            data, batch=recipe.batch, preprocess=rule(), augment=recipe.augment, epochs=99, device=GPU, workers=0
        )
    )
    for i in range(steps):
        step(next(batches), i, 1.0)
    return step


@pytest.mark.parametrize("optimizer", ["adamw", "sgd", "muon", "lamb"])
def test_a_captured_step_is_the_step(optimizer):
    recipe = PLAIN.change(optimizer=optimizer, precision="float32", average="ema", mixup=0.3, drop_path=0.2, flip=0.5)
    ours, theirs = (trained(recipe, captured=captured).state() for captured in (True, False))
    for name, tensor in ours.items():
        torch.testing.assert_close(tensor, theirs[name], rtol=1e-3, atol=1e-4, msg=name)


def test_a_captured_step_draws_its_dropout_by_seed_and_step():
    recipe = BUSY.change(precision="float32", dropout=0.3)
    first, again = (trained(recipe, captured=True).state() for _ in range(2))
    assert_equal_states(first, again)
    eager = trained(recipe, captured=False).state()
    other = trained(recipe.change(seed=1), captured=True).state()
    difference = {name: float((first[name] - eager[name]).abs().max()) for name in first if name.startswith("network.")}
    moved = max(float((first[name] - other[name]).abs().max()) for name in difference)
    assert max(difference.values()) < moved  # the same masks, whether captured or not; with another seed others


@pytest.mark.parametrize("optimizer", ["adamw", "sgd", "muon", "lamb"])
def test_from_a_bad_step_on_a_captured_run_changes_nothing(optimizer):
    recipe = PLAIN.change(optimizer=optimizer, precision="float32", average="ema")
    order = [batch.ids for batch, _ in zip(_plain_batches(recipe), range(6), strict=False)]
    bad = order[3][:1]
    first = next(i for i, ids in enumerate(order) if bad[0] in ids)
    broken = trained(recipe, captured=True, task=lambda m, r: NaNIn(m, r, bad))
    stopped = trained(recipe, captured=True, steps=first, task=lambda m, r: NaNIn(m, r, bad))
    assert int(broken.meters.bad_at) == first
    ours, theirs = broken.state(), stopped.state()
    kept = [name for name in ours if name.startswith(("network.", "optimizer.", "average."))]
    assert_equal_states({name: ours[name] for name in kept}, {name: theirs[name] for name in kept})


def _plain_batches(recipe):
    recipe = sized(recipe)
    return make_batches(
        image_set(64), batch=recipe.batch, preprocess=rule(), augment=recipe.augment, epochs=99, workers=0
    )


def test_the_numbers_of_a_loop_are_nearly_those_of_a_cpu():
    recipe = sized(PLAIN.change(precision="float32", average="tail", length="12 steps"))
    data, found = image_set(80), {}
    for device in ("cpu", "cuda"):
        model = network(recipe).to(device)
        losses = []
        train, dev = data.take(np.arange(64)), data.take(np.arange(64, 80))
        stage = TrainingStage(Classify(model, recipe), model, recipe, train, rule(), dev)
        tell = lambda event, into=losses: into.append(event["loss"]) if event["kind"] == "step" else None  # noqa: E731
        outcome = Loop(stage, Runtime(torch.device(device), tell=tell)).run()
        found[device] = losses, outcome.dev["loss"]
    np.testing.assert_allclose(found["cuda"][0], found["cpu"][0], rtol=2e-3)
    assert found["cuda"][1] == pytest.approx(found["cpu"][1], rel=5e-3)


def test_a_captured_run_goes_on_from_its_state():
    recipe = BUSY.change(precision="float32", optimizer="muon")
    whole = trained(recipe, captured=True, steps=6).state()
    half = trained(recipe, captured=True, steps=3)
    state = half.state()
    other = trained(recipe, captured=True, steps=1)
    other.load(state)
    batches = iter(_on_gpu(recipe, 3))
    for i in range(3, 6):
        other(next(batches), i, 1.0)
    ours = other.state()
    for name in (name for name in whole if name.startswith("network.")):
        torch.testing.assert_close(ours[name], whole[name], rtol=1e-4, atol=1e-5, msg=name)


def _on_gpu(recipe, consumed):
    recipe = sized(recipe)
    data = image_set(64)
    batches = make_batches(
        data, batch=recipe.batch, preprocess=rule(), augment=recipe.augment, epochs=99, device=GPU, workers=0
    )
    epoch, place = divmod(consumed, len(data) // recipe.batch)
    batches.seek(epoch, place * recipe.batch)
    return batches


def test_pictures_of_several_sizes_lie_on_the_gpu():
    from dataclasses import replace

    from vitreous.images.stores.memory import HeldPixels

    small = image_set(32)
    pictures = [small.read(i)[: 10 + i % 6, : 12 + i % 4] for i in range(len(small))]
    ragged = replace(small, source=HeldPixels(small.source, small.ids, pictures, np.zeros(len(small), bool)))
    recipe = sized(PLAIN.change(crop="inception"))
    batch = next(iter(make_batches(ragged, batch=8, preprocess=rule(), augment=recipe.augment, device=GPU, workers=0)))
    assert not batch.is_cropped
    assert batch.sizes is not None
    assert [tuple(size) for size in batch.sizes] == [pictures[i].shape[:2] for i in batch.ids]


OWN_WARNINGS = pytest.mark.filterwarnings("default")  # torch's and NCCL's about a group of one


@OWN_WARNINGS
@pytest.mark.parametrize("optimizer", ["adamw", "sgd", "muon", "lamb"])
@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_copies_and_shards_on_one_gpu_take_the_plain_step(kind, optimizer):
    """A group of one under NCCL."""
    recipe = PLAIN.change(optimizer=optimizer, precision="float32", average="ema", mixup=0.3, drop_path=0.2, flip=0.5)
    plain = trained(recipe, captured=False).state()
    with group(GPU, even_alone=True):
        ours = trained(recipe, captured=False, strategy=Strategy(kind)).state()
    for name, tensor in plain.items():
        torch.testing.assert_close(ours[name], tensor, rtol=1e-3, atol=1e-4, msg=name)


@OWN_WARNINGS
@pytest.mark.parametrize("kind", ["alone", "ddp", "fsdp"])
def test_copies_and_shards_have_the_losses_of_a_plain_step_when_compiled_by_blocks(kind):
    """And, but for copies, computed again in the backward pass."""
    plain = trained(PLAIN, captured=False).read()
    with group(GPU, even_alone=True):
        strategy = Strategy(kind, checkpointing=kind != "ddp")
        ours = trained(PLAIN, captured=False, compiled="blocks", strategy=strategy).read()
    assert (ours.loss, ours.norm) == pytest.approx((plain.loss, plain.norm), rel=0.02)


@OWN_WARNINGS
def test_shards_that_were_saved_under_nccl_go_on_as_a_plain_run(tmp_path, monkeypatch):
    images, before = picture_folder(tmp_path / "shapes", 80), Loop._take
    words = {**HOW, "precision": "float32", "device": GPU.type, "workers": 0, "check": False}
    vitreous.fit(images, out=tmp_path / "whole", **words)

    def take(self, batch):
        if self.at.step == 3:
            os.kill(os.getpid(), signal.SIGTERM)
        before(self, batch)

    with monkeypatch.context() as patched:
        patched.setattr(Loop, "_take", take)
        with pytest.raises(vitreous.errors.Interrupted):
            vitreous.fit(images, out=tmp_path / "cut", parallel="fsdp", **words)
    assert any((tmp_path / "cut" / "state").glob("*.shards"))
    vitreous.fit(images, out=tmp_path / "cut", resume=True, device=GPU.type, workers=0)
    ours, theirs = (
        [event["loss"] for event in runs.read(tmp_path / name) if event["kind"] in ("step", "dev")]
        for name in ("cut", "whole")
    )
    assert len(theirs) > 6
    assert ours == pytest.approx(theirs, rel=5e-3)


def test_what_was_trained_solved_or_loaded_answers_on_the_gpu(tmp_path):
    """Class means, temperature and limits lie where the weights do."""
    images = picture_folder(tmp_path / "shapes", 80)
    how = {"device": GPU.type, "workers": 0, "check": False}
    trained = vitreous.fit(images, out=tmp_path / "trained", **HOW, **how)
    loaded = vitreous.load(trained.path).to(GPU)
    solved = vitreous.fit(images, weights=loaded, recipe="linear-probe", folds=0, out=tmp_path / "solved", **how)
    on_cpu = vitreous.load(trained.path)
    for path in (trained.path, solved.path):
        ours, theirs = (vitreous.evaluate(path, images, split="all", device=d, workers=0) for d in (GPU.type, "cpu"))
        assert abs(ours.right - theirs.right) <= 2
        assert len(list(vitreous.predict(path, images, device=GPU.type))) == 80
    assert loaded.familiarity.means.device.type == GPU.type
    assert on_cpu.familiarity.means.device.type == "cpu"
