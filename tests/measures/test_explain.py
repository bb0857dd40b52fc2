"""Where an answer came from, on real networks."""

import numpy as np
import pytest
import torch
from pictures_in_memory import Arrays, clean_files, make_set
from tiny_models import BIT, VIT, awake, images
from torch.testing import assert_close

from vitreous.images.imageset import ImageSet
from vitreous.measures import rollout
from vitreous.measures.drawing import evened
from vitreous.measures.explain import Look, attention_maps, look_at, overlay
from vitreous.models.taps import taps


def weights_of(model, x):
    with torch.inference_mode(), taps(model, "blocks.*.attention.weights") as seen:
        model(x)
    return rollout(list(seen.values()))


def test_the_class_token_s_row_where_the_head_reads_that():
    model = awake()
    x = images(model)
    joined = weights_of(model, x)
    maps = attention_maps(model, x)
    assert maps.shape == (2, 4, 4)
    assert_close(maps.flatten(1), joined[:, 0, 1:])


@pytest.mark.parametrize("pool", ["gap", "max"])
def test_the_mean_row_of_the_patches_under_pooling(pool):
    model = awake(VIT, pool=pool, class_token=False)
    x = images(model)
    assert_close(attention_maps(model, x).flatten(1), weights_of(model, x).mean(1))
    assert_close(attention_maps(model, x).sum((1, 2)), torch.ones(2))


@pytest.mark.parametrize("pool", ["cls", "gap", "map", "max", "cls-and-gap", "cls-and-distillation"])
@pytest.mark.parametrize("registers", [0, 2])
def test_every_pool_has_maps_of_at_most_one(pool, registers):
    two = pool == "cls-and-distillation"
    has_token = pool not in ("gap", "map", "max")
    model = awake(VIT, pool=pool, class_token=has_token, registers=registers, distillation_token=two)
    total = attention_maps(model, images(model)).sum((1, 2))
    assert (total <= 1 + 1e-5).all()
    assert (total > 0.1).all()
    if not has_token and not registers:
        assert_close(total, torch.ones(2))


def test_an_attention_pool_weighs_the_rows():
    """A probe that looks at every patch alike makes the map of average pooling."""
    model = awake(VIT, pool="map", class_token=False)
    with torch.no_grad():
        model.pool.query.weight.zero_()
        model.pool.query.bias.zero_()
    x = images(model)
    assert_close(attention_maps(model, x).flatten(1), weights_of(model, x).mean(1))


def test_the_model_is_left_as_it_was():
    model = awake().train()
    attention_maps(model, images(model))
    assert model.training
    assert not any(module._forward_hooks for module in model.modules())


def test_looks_hold_what_the_model_saw_and_pass_over_what_cannot_be_read():
    files = clean_files(8)
    files["test/ant/broken.jpg"] = b"no picture"
    data = make_set(files)
    found = look_at(awake(), data, [0, 8, 3])
    assert [look.place for look in found.looks] == [0, 3]
    for look in found.looks:
        assert look.seen.shape == (16, 16, 3)
        assert look.map.sum() == pytest.approx(1, abs=1e-5)
        assert look.peak >= 1


def test_grey_images_are_shown_in_three_channels():
    pixels = [np.random.default_rng(i).integers(0, 256, (20, 20, 1), np.uint8) for i in range(2)]
    grey = ImageSet(Arrays(pixels), np.arange(2), np.zeros(2, int), ("a",), np.full(2, "test"), "", "", "", channels=1)
    found = look_at(awake(VIT, channels=1), grey, [0, 1])
    assert found.looks[1].seen.shape == (16, 16, 3)


def test_a_resnet_has_no_attention_and_the_page_says_so():
    found = look_at(awake(BIT), make_set(clean_files(2)), [0])
    assert found.looks == ()
    assert found.why_not == "A BiT is a network of convolutions: it has no attention that could be shown."


def test_a_map_on_an_even_grid_stays_as_it_is():
    heat = np.random.default_rng(0).random((3, 5)).astype(np.float32)
    np.testing.assert_allclose(evened(heat, (0, 0, 1, 1)), heat, rtol=1e-6)


def test_a_hybrids_map_lies_around_the_middles_of_its_windows():
    """Half a place to the left and above of an even grid; a ramp stays a ramp, and ends are held."""
    cells = (-3.5 / 28, -3.5 / 28, 28.5 / 28, 28.5 / 28)
    ramp = np.arange(4, dtype=np.float32)[None].repeat(4, 0)
    found = evened(ramp, cells)
    middles = (np.arange(4) + 0.5) * 7  # of an even grid, in pixels; place i lies at 8 i + 0.5
    np.testing.assert_allclose(found, ((middles - 0.5) / 8).clip(0, 3)[None].repeat(4, 0), rtol=1e-5)
    np.testing.assert_allclose(evened(ramp.T, cells), found.T, rtol=1e-6)


def test_a_look_knows_where_its_map_lies():
    data = make_set(clean_files(2))
    assert look_at(awake(VIT), data, [0]).looks[0].cells == (0, 0, 1, 1)
    hybrid = awake(VIT, stem="convolutions", pool="gap", class_token=False, image_size=28, patch=8)
    assert look_at(hybrid, data, [0]).looks[0].cells == pytest.approx((-0.125, -0.125, 28.5 / 28, 28.5 / 28))


def test_the_overlay_is_light_where_much_came_from():
    flow = np.zeros((4, 4), np.float32)
    flow[0, 0] = flow[0, 1] = 0.5
    seen = np.full((16, 16, 3), 128, np.uint8)
    picture = overlay(Look(0, seen, flow)).astype(int).sum(2)
    assert max(picture.shape) == 224
    assert picture[:20, :20].mean() > 2 * picture[-20:, -20:].mean()
    flat = overlay(Look(0, seen[:, :4], np.full((4, 1), 0.25, np.float32)))
    assert flat.shape == (224, 56, 3)
