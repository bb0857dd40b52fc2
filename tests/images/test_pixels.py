"""Preprocessing to the letter of its source: Pillow's bytes, TensorFlow's samples, torchvision's tensors."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from torch.testing import assert_close

from vitreous.errors import ConfigError, DataError
from vitreous.images.pixels.preprocess import PILLOW_RESAMPLE, apply, finish, normalise, pixels
from vitreous.models.preprocess import IMAGENET_MEAN, IMAGENET_STD, Preprocess, from_json, google

SIZES = [(375, 500), (500, 375), (64, 64), (97, 300), (223, 225)]


def photograph(height, width, seed=0):
    """Clouds of all sizes, an edge and some noise."""
    rng = np.random.default_rng(seed)
    small = rng.integers(0, 256, (max(height // 12, 1), max(width // 12, 1), 3), dtype=np.uint8)
    image = np.array(Image.fromarray(small).resize((width, height), Image.Resampling.BICUBIC)).astype(int)
    image[height // 3 :, : width // 2] += 60
    return (image + rng.integers(-25, 26, image.shape)).clip(0, 255).astype(np.uint8)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic", "lanczos", "box", "nearest"])
def test_antialiased_pixels_are_pillows_bytes(size, interpolation):
    rule = Preprocess(size=(64, 80), fit="squash", antialias=True, interpolation=interpolation)
    image = Image.fromarray(photograph(*size))
    ours = pixels(image, rule)
    assert ours.dtype == np.uint8
    assert (ours == np.array(image.resize((80, 64), PILLOW_RESAMPLE[interpolation]))).all()


@pytest.mark.parametrize("size", SIZES)
def test_resize_and_crop_are_pillows_bytes(size):
    """As torchvision and timm call Pillow: the long side cut down, the crop's first pixel rounded."""
    rule = Preprocess(size=(56, 56), fit="crop", short_side=64, antialias=True, interpolation="bicubic")
    image = Image.fromarray(photograph(*size))
    h, w = size
    wide, tall = (int(64 * w / h), 64) if h <= w else (64, int(64 * h / w))
    left, top = round((wide - 56) / 2), round((tall - 56) / 2)
    theirs = image.resize((wide, tall), Image.Resampling.BICUBIC).crop((left, top, left + 56, top + 56))
    assert (pixels(image, rule) == np.array(theirs)).all()


def tensorflow(x, size):
    """tf.image.resize, bilinear, half-pixel centres, no antialias, in float32 and in the order of its kernel."""

    def ends(n, out):
        place = (np.arange(out, dtype=np.float32) + np.float32(0.5)) * np.float32(n / out) - np.float32(0.5)
        floor = np.floor(place)
        return np.maximum(floor, 0).astype(int), np.minimum(np.ceil(place), n - 1).astype(int), place - floor

    (y0, y1, y), (x0, x1, across) = ends(x.shape[0], size[0]), ends(x.shape[1], size[1])
    x, y, across = x.astype(np.float32), y[:, None, None], across[:, None]
    top = x[y0][:, x0] + (x[y0][:, x1] - x[y0][:, x0]) * across
    bottom = x[y1][:, x0] + (x[y1][:, x1] - x[y1][:, x0]) * across
    return top + (bottom - top) * y


@pytest.mark.parametrize("size", [*SIZES, (1, 1), (2000, 17)])
@pytest.mark.parametrize("out", [(64, 80), (224, 224)])
def test_googles_squash_is_tensorflows_to_a_fiftieth_of_a_level(size, out):
    """Both are float32; they differ in the order of sums. A fiftieth of a level is 1.6e-4 of the model's −1 … 1."""
    image = photograph(*size)
    ours = pixels(image, google(out))
    assert ours.dtype == np.float32
    assert np.abs(ours - tensorflow(image, out)).max() < 0.02
    assert_close(apply(image, google(out)).permute(1, 2, 0), torch.from_numpy(ours) / 127.5 - 1, atol=1e-6, rtol=0)


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
def test_torchs_antialias_is_a_value_of_its_own(interpolation):
    """torchvision resizes a tensor in float and rounds once; its kernel for bytes and Pillow round between the passes.

    That is a level, and for bicubic a few more at hard edges, where they also cut what overshoots between the passes.
    """
    rule = Preprocess(size=(64, 80), antialias=True, resized_by="torch", interpolation=interpolation)
    image = photograph(375, 500)
    x = torch.from_numpy(image).permute(2, 0, 1)[None]
    ours = torch.from_numpy(pixels(image, rule)).permute(2, 0, 1)
    assert (
        ours == F.interpolate(x.float(), (64, 80), mode=interpolation, antialias=True)[0].round().clamp(0, 255)
    ).all()
    for other in (F.interpolate(x, (64, 80), mode=interpolation, antialias=True)[0], as_pillow(image, rule)):
        difference = (ours.int() - other.int()).abs()
        assert 1 <= difference.max() <= {"bilinear": 1, "bicubic": 6}[interpolation]
        assert difference.float().mean() < 0.25
    assert from_json(rule.to_json()) == rule
    assert "antialiased by torch" in str(rule)
    with pytest.raises(ConfigError, match="torch does not antialias lanczos; say interpolation=bilinear or bicubic"):
        pixels(image, Preprocess(antialias=True, resized_by="torch", interpolation="lanczos"))


def as_pillow(image, rule):
    resized = Image.fromarray(image).resize(rule.size[::-1], PILLOW_RESAMPLE[rule.interpolation])
    return torch.from_numpy(np.array(resized)).permute(2, 0, 1)


@pytest.mark.parametrize("size", [*SIZES, (1, 1), (5, 900), (33, 34)])
@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
@pytest.mark.parametrize("noisy", [False, True])
def test_the_fast_path_is_one_level_from_pillow(size, interpolation, noisy):
    """And off unless asked for: fast=False is Pillow's bytes."""
    rule = Preprocess(size=(56, 60), fit="crop", short_side=64, antialias=True, interpolation=interpolation)
    rng = np.random.default_rng(1)
    image = rng.integers(0, 256, (*size, 3), dtype=np.uint8) if noisy else photograph(*size)
    exact, fast = pixels(image, rule), pixels(image, rule, fast=True)
    assert fast.dtype == np.uint8
    difference = np.abs(exact.astype(int) - fast)
    assert difference.max() <= 1
    assert difference.mean() < 0.02


@pytest.mark.parametrize("interpolation", ["lanczos", "box", "nearest"])
def test_where_nothing_bounds_the_fast_path_it_is_pillow(interpolation):
    rule = Preprocess(size=(64, 80), antialias=True, interpolation=interpolation)
    image = photograph(200, 300)
    assert (pixels(image, rule) == pixels(image, rule, fast=True)).all()


@pytest.mark.parametrize(
    "rule", [google((32, 32)), Preprocess(size=(32, 32), mean=IMAGENET_MEAN, std=IMAGENET_STD, antialias=True)]
)
def test_a_batch_is_finished_as_each_image_is(rule):
    images = [photograph(40, 50, seed) for seed in range(4)]
    done = np.stack([pixels(image, rule) for image in images])
    batch = finish(torch.from_numpy(done).permute(0, 3, 1, 2), rule, "cpu")
    assert batch.dtype == torch.float32
    for one, x, image in zip(batch, done, images, strict=True):
        assert (one == normalise(x, rule)).all()
        assert (one == apply(image, rule)).all()
    exact = (done.astype(np.float64) / 255 - rule.mean) / rule.std
    assert_close(batch.permute(0, 2, 3, 1).double(), torch.from_numpy(exact), atol=2e-6, rtol=0)


def test_images_come_as_arrays_or_as_pillows_in_any_mode():
    rule = Preprocess(size=(16, 16), antialias=True)
    rgb = photograph(20, 20)
    assert (pixels(rgb, rule) == pixels(Image.fromarray(rgb), rule)).all()
    grey = rgb[..., 0]
    for image in (grey, grey[..., None], Image.fromarray(grey)):
        assert (pixels(image, rule) == pixels(np.stack([grey] * 3, 2), rule)).all()
    assert pixels(rgb, rule.with_channels(1)).shape == (16, 16, 1)
    assert pixels(Image.fromarray(rgb).convert("CMYK"), rule).shape == (16, 16, 3)


@pytest.mark.parametrize(
    "array", [np.zeros((4, 4, 2), np.uint8), np.zeros((4, 4, 3), np.float32), np.zeros(4, np.uint8)]
)
def test_an_array_that_is_no_image_is_refused(array):
    with pytest.raises(DataError, match="is not an image; give H×W×C of uint8"):
        pixels(array, google((8, 8)))


def test_channels_that_the_model_does_not_want_are_refused():
    with pytest.raises(DataError, match="the images have 1 channels, the model wants 3; convert them"):
        finish(torch.zeros(2, 1, 4, 4, dtype=torch.uint8), google((4, 4)))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
@pytest.mark.parametrize("is_last", [False, True])
def test_finishing_in_place_is_the_formula_to_the_bit_and_leaves_the_batch(dtype, is_last):
    rule = Preprocess(size=(20, 24), antialias=True, mean=IMAGENET_MEAN, std=IMAGENET_STD)
    batch = torch.arange(2 * 3 * 20 * 24).remainder(256).to(dtype).view(2, 3, 20, 24)
    batch = batch.contiguous(memory_format=torch.channels_last) if is_last else batch
    before = batch.clone()
    mean, std = (torch.tensor(v).view(3, 1, 1) for v in (IMAGENET_MEAN, IMAGENET_STD))
    assert torch.equal(finish(batch, rule), (batch.float() / 255 - mean) / std)
    assert torch.equal(batch, before)
