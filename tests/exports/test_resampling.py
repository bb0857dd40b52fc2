"""The graph's preprocessing is `images.preprocess`, within one grey level, for every rule and shape."""

import numpy as np
import pytest
import torch
from PIL import Image

from vitreous.errors import ConfigError
from vitreous.exports import graphs
from vitreous.exports.graphs import Preprocessing
from vitreous.images.pixels import decode
from vitreous.models.preprocess import Preprocess

FITS = [("squash", None), ("crop", 40), ("crop", 20), ("squash-crop", 37)]
KINDS = [(True, "pillow", mode) for mode in ("bilinear", "bicubic", "lanczos", "box")]
KINDS += [(True, "torch", "bilinear"), (True, "torch", "bicubic")]
KINDS += [(False, "pillow", mode) for mode in ("nearest", "bilinear", "bicubic")]
SHAPES = [(1, 1), (30, 40), (16, 16), (7, 100), (97, 31), (200, 150), (64, 32), (3, 2)]


def grainy(rows, columns, channels=3):
    rng = np.random.default_rng((rows, columns))
    scene = rng.integers(0, 256, (rows // 5 + 1, columns // 5 + 1, 3), dtype=np.uint8)
    smooth = np.asarray(Image.fromarray(scene).resize((columns, rows), Image.Resampling.BICUBIC)).astype(int)
    return (smooth + rng.integers(-20, 20, smooth.shape)).clip(0, 255).astype(np.uint8)[..., :channels]


def in_graph(image, rule):
    x = torch.from_numpy(np.ascontiguousarray(image.transpose(2, 0, 1))).float()
    return Preprocessing(rule).pixels(x).permute(1, 2, 0).numpy().astype(int)


@pytest.mark.parametrize(("antialias", "by", "mode"), KINDS)
@pytest.mark.parametrize(("fit", "side"), FITS)
def test_pixels_are_at_most_one_level_off(antialias, by, mode, fit, side):
    for size in [(32, 32), (24, 40)]:
        for centre in ("round", "floor"):
            rule = Preprocess(
                size=size,
                fit=fit,
                short_side=side,
                interpolation=mode,
                antialias=antialias,
                resized_by=by,
                centre=centre,
            )
            for shape in SHAPES:
                image = grainy(*shape)
                off = np.abs(in_graph(image, rule) - decode.finish(image, rule).astype(int))
                assert off.max() <= 1, (shape, rule)
                assert (off > 0).mean() < 0.03, (shape, rule)


@pytest.mark.skipif(
    not graphs.PILLOW_MAY_SHRINK_ROWS_FIRST, reason="Pillow before 13 shrinks the columns first, always"
)
@pytest.mark.parametrize("shape", [(64, 50), (100, 90), (100, 60), (101, 60), (60, 61)])
def test_rows_go_first_where_pillow_takes_them_first(shape):
    """Its order shows: the other one is several levels away on a quarter of the pixels."""
    rule = Preprocess(size=(37, 40), interpolation="lanczos", antialias=True)
    image = grainy(*shape)
    assert np.abs(in_graph(image, rule) - decode.finish(image, rule).astype(int)).max() <= 1


def test_grey_images_stay_grey():
    rule = Preprocess(size=(16, 16), antialias=True, mean=(0.5,), std=(0.25,))
    image = grainy(30, 21, 1)
    x = Preprocessing(rule)(torch.from_numpy(image))
    assert x.shape == (1, 1, 16, 16)
    assert np.abs(in_graph(image, rule) - decode.finish(image, rule).astype(int)).max() <= 1


def test_four_channels_have_no_image_form():
    with pytest.raises(ConfigError, match="the model reads 4 channels"):
        Preprocessing(Preprocess(mean=(0.5,) * 4, std=(0.5,) * 4))
