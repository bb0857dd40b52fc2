"""The works shift, likeness and speed on small real models, beside computations of their own."""

import math
from contextlib import nullcontext

import numpy as np
import pytest
import torch
from papers.small_experiment import STEPS
from torch import nn

from vitreous.errors import VitreousError
from vitreous.papers import runner
from vitreous.papers.order import Clock
from vitreous.papers.sets import Sets
from vitreous.papers.worker import compute, new_bench
from vitreous.papers.works import speed as timing
from vitreous.papers.works.likeness import likeness, run_likeness
from vitreous.papers.works.look import dealt
from vitreous.papers.works.shift import run_shift, shift
from vitreous.papers.works.speed import MIB, run_speed, speed, training_cost
from vitreous.papers.works.train import train
from vitreous.ranks import Ranks

SMALL = "S/7 width=16 depth=3 heads=2 mlp=16 image_size=28 channels=1"
SEEN = 32  # one batch


def trained(seed, steps=3):
    return train(SMALL, "fashion", seed, images=200, recipe=STEPS | {"length": f"{steps} steps"})


@pytest.fixture(scope="module")
def bench(tmp_path_factory):
    return new_bench({"models": str(tmp_path_factory.mktemp("models")), "device": "cpu", "workers": 0})


def shown(model):
    """The images that a reading sees, as the model's input."""
    data = dealt(Sets().open("fashion").split("test"), SEEN)
    pixels = torch.from_numpy(np.stack([data.read(i) for i in range(SEEN)])).float() / 255
    pixels = pixels.reshape(SEEN, 28, 28)[:, None]
    mean, std = (torch.tensor(v).view(-1, 1, 1) for v in (model.preprocess.mean, model.preprocess.std))
    return pixels, lambda images: (images - mean) / std


# shift ---------------------------------------------------------------------------------------------------------------


def test_answers_that_survive_a_shift_are_counted_image_by_image(bench):
    cell = trained(0, steps=20)
    found = run_shift(shift(cell, "fashion", [1, 5], seen=SEEN), bench)
    model = bench.model(cell).eval()
    pixels, normalised = shown(model)
    with torch.no_grad():
        still = model(normalised(pixels)).argmax(-1)
        for by, share in zip([1, 5], found["same_answer_by_shift"], strict=True):
            moved = torch.cat([pixels[..., :1].expand(-1, -1, -1, by), pixels[..., :-by]], -1)
            same = (model(normalised(moved)).argmax(-1) == still).float().mean().item()
            assert share == pytest.approx(same, abs=1.01 / SEEN)  # one image may stand on the edge
    assert found["same_answer"] == pytest.approx(np.mean(found["same_answer_by_shift"]))
    assert len(set(still.tolist())) > 1


def test_no_shift_changes_no_answer(bench):
    assert run_shift(shift(trained(0), "fashion", [0], seen=SEEN), bench) == {
        "same_answer": 1.0,
        "same_answer_by_shift": [1.0],
    }


def test_a_shift_of_the_whole_image_is_one_clear_line(bench):
    answer = compute(shift(trained(0), "fashion", [28], seen=SEEN), bench)
    assert "a shift of 28 pixels leaves nothing of 28" in answer["error"]


# likeness ------------------------------------------------------------------------------------------------------------


def unbiased_hsic(x, y):
    """By its closed form: traces and sums of Gram matrices without their diagonals."""
    n, ones = len(x), np.ones(len(x))
    k, m = (a @ a.T for a in (x, y))
    k, m = (gram - np.diag(np.diag(gram)) for gram in (k, m))
    sums = (ones @ k @ ones) * (ones @ m @ ones) / ((n - 1) * (n - 2))
    whole = np.trace(k @ m) + sums - 2 / (n - 2) * (ones @ k @ m @ ones)
    return whole / (n * (n - 3))


def block_outputs(model, images):
    outputs = []
    hooks = [block.register_forward_hook(lambda m, i, o: outputs.append(o.flatten(1))) for block in model.blocks]
    with torch.no_grad():
        model(images)
    for hook in hooks:
        hook.remove()
    return [x.double().numpy() for x in outputs]


def test_likeness_is_cka_block_by_block(bench):
    one, other = trained(0), trained(1)
    found = run_likeness(likeness(one, other, "fashion", seen=SEEN), bench)
    sides = []
    for cell in (one, other):
        model = bench.model(cell).eval()
        pixels, normalised = shown(model)
        sides.append(block_outputs(model, normalised(pixels)))
    wanted = [
        unbiased_hsic(x, y) / np.sqrt(unbiased_hsic(x, x) * unbiased_hsic(y, y)) for x, y in zip(*sides, strict=True)
    ]
    assert found["likeness"] == pytest.approx(wanted, abs=2e-3)
    assert found["likeness_low"] == found["likeness"][0]
    assert found["likeness_high"] == found["likeness"][-1]


def test_a_model_is_like_itself_in_every_block(bench):
    found = run_likeness(likeness(trained(0), trained(0), "fashion", seen=SEEN), bench)
    assert found["likeness"] == pytest.approx([1.0] * 3, abs=1e-3)


def test_models_without_a_block_in_common_are_refused(bench):
    other = train(
        "BiT-R50x1 units=1 resnet_width=0.125 image_size=28 channels=1", "fashion", 0, images=200, recipe=STEPS
    )
    with pytest.raises(VitreousError, match="no blocks of the same name"):
        run_likeness(likeness(trained(0), other, "fashion", seen=SEEN), bench)


# speed ---------------------------------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def short_rounds(monkeypatch):
    """What is timed here is not looked at."""
    monkeypatch.setattr(timing, "ROUNDS", 1)
    monkeypatch.setattr(timing, "LEAST_SECONDS", 0.0)


def test_memory_is_what_the_forward_pass_keeps():
    inputs = torch.randn(6, 8)
    found = training_cost(nn.Linear(8, 32), inputs, nullcontext, torch.device("cpu"))
    kept = 6 * 8 + 6 * 32  # the layer's input, and its output, which is squared
    assert found["saved_mib"] == pytest.approx(4 * kept / 6 / MIB)
    assert found["train_images_per_second"] > 0


def test_a_view_is_not_counted_twice():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(8, 32), nn.Linear(4, 32)

        def forward(self, x):
            return self.a(x) + self.b(x[:, 4:])

    found = training_cost(Twice(), torch.randn(6, 8), nullcontext, torch.device("cpu"))
    assert found["saved_mib"] == pytest.approx(4 * (6 * 8 + 6 * 32) / 6 / MIB)


def test_speed_reads_one_network_at_one_size(bench):
    found = run_speed(speed(SMALL, 2, 0), bench)
    assert found["macs_per_second"] == pytest.approx(found["images_per_second"] * found["macs"])
    assert "peak_mib" not in found  # a CPU has no peak of its own


def test_what_is_timed_runs_last_and_alone(monkeypatch):
    """Cells that measure time get one process and nothing beside them, whatever else is asked for."""
    asked = []

    def computed(cells, settings, at_once, is_gpu, clock):
        asked.append(([cell.work for cell in cells], at_once))
        return iter(())

    monkeypatch.setattr(runner, "_computed", computed)
    list(runner.computed([speed(SMALL, 2, 0), trained(0)], {}, 4, clock=Clock(math.inf), ranks=Ranks()))
    assert asked == [(["train"], 4), (["speed"], 1)]
