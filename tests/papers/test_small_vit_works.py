"""Gradients by depth, position patterns and colours, each against a computation of its own on a tiny real model."""

import math

import numpy as np
import pytest
import torch
from torch import nn

import vitreous
from vitreous.errors import DataError
from vitreous.papers.experiment import Cell
from vitreous.papers.sets import Sets
from vitreous.papers.works.bench import Bench
from vitreous.papers.works.channels import channels, colour_structure, run_channels
from vitreous.papers.works.gradients import block_gradients, draw_head, gradients, run_gradients, spread_of_logs
from vitreous.papers.works.look import removal
from vitreous.papers.works.patterns import mean_likeness, patterns, position_map, run_patterns
from vitreous.papers.works.train import train

TINY = "S/7 width=16 depth=3 heads=2 mlp=24 image_size=28 channels=1"


def kept(bench: Bench, seed: int, change: str = "") -> Cell:
    """A cell whose model is there; its numbers are drawn by the seed."""
    cell = train(f"{TINY} {change}".strip(), "fashion", seed)
    model = vitreous.build(cell.options["model"], classes=10, seed=seed)
    with torch.no_grad():
        nn.init.normal_(model.head.weight, std=0.3)
    bench.models.mkdir(parents=True, exist_ok=True)
    vitreous.save(model, bench.models / f"{cell.key}.safetensors")
    return cell


@pytest.fixture
def bench(tmp_path) -> Bench:
    return Bench(Sets(), device="cpu", models=tmp_path / "models")


def test_the_norm_of_a_blocks_gradient_is_that_of_backward():
    model = vitreous.build(TINY, classes=10, seed=0)
    draw_head(model, 0)
    images, labels = torch.randn(6, 1, 28, 28), torch.arange(6)
    found = block_gradients(model, images, labels)
    nn.functional.cross_entropy(model(images), labels).backward()
    for block, norm in zip(model.blocks, found, strict=True):
        whole = torch.cat([each.grad.flatten() for each in block.parameters()])
        assert norm == pytest.approx(float(whole.norm()), rel=1e-4)


def test_a_zero_head_passes_no_gradient_and_a_drawn_one_does():
    """Why the reading at the start draws it."""
    model = vitreous.build(TINY, classes=10, seed=0)
    images, labels = torch.randn(6, 1, 28, 28), torch.arange(6)
    assert block_gradients(model, images, labels) == [0.0] * 3
    assert spread_of_logs([0.0, 1.0]) == math.inf
    draw_head(model, 0)
    assert min(block_gradients(model, images, labels)) > 0


def test_the_spread_is_the_deviation_of_logs():
    assert spread_of_logs([1.0, math.e**2]) == pytest.approx(1.0)
    assert spread_of_logs([3.0, 3.0, 3.0]) == 0


def test_gradients_are_read_at_the_start_and_after_training(bench):
    cell = kept(bench, 3)
    found = run_gradients(gradients(cell), bench)
    fresh, trained = (found[f"gradient_{when}"] for when in ("start", "trained"))
    assert len(fresh) == len(trained) == 3
    assert fresh != trained
    assert min(fresh) > 0
    assert found["gradient_spread_trained"] == pytest.approx(spread_of_logs(trained))


def test_patterns_compare_the_pairs_that_a_group_names(bench):
    cells = [kept(bench, seed) for seed in (0, 1, 2)]
    found = run_patterns(patterns(cells, {"near": [(0, 1)], "all": [(0, 1), (0, 2)]}), bench)
    tables = [bench.model(cell).embedding.positions.table[-16:].detach().numpy() for cell in cells]
    maps = [(rows := t / np.linalg.norm(t, axis=1, keepdims=True)) @ rows.T for t in tables]
    upper = np.triu_indices(16, 1)
    one, two = (np.corrcoef(maps[0][upper], maps[j][upper])[0, 1] for j in (1, 2))
    assert found["near"] == pytest.approx(one, abs=1e-5)
    assert found["all"] == pytest.approx((one + two) / 2, abs=1e-5)


def test_a_pattern_is_like_itself_and_a_model_without_positions_has_none():
    model = vitreous.build(TINY, classes=10, seed=0)
    assert mean_likeness([position_map(model)] * 2, [(0, 1)]) == pytest.approx(1)
    with pytest.raises(DataError, match="adds no position vectors"):
        position_map(vitreous.build(f"{TINY} positions=none", classes=10, seed=0))


def test_colours_that_repeat_lie_on_one_axis():
    base = torch.randn(20, 1, 16)
    same = colour_structure(base.repeat(1, 3, 1))
    assert same["colour_correlation"] == pytest.approx(1)
    assert same["first_colour_axis"] == pytest.approx(1)
    free = colour_structure(torch.randn(4000, 3, 16))
    assert abs(free["colour_correlation"]) < 0.05
    assert free["first_colour_axis"] == pytest.approx(1 / 3, abs=0.02)


def test_grey_images_have_no_colours_to_compare(bench):
    with pytest.raises(DataError, match="train one on colour images"):
        run_channels(channels(kept(bench, 0)), bench)


def test_what_a_removal_keeps_is_the_mean_over_blocks():
    found = removal({"rows": [{"same_answer": 0.5}, {"same_answer": 1.0}]})
    assert found == {"removal_same_answer": [0.5, 1.0], "removal_kept": 0.75}
