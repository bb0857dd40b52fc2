"""Preprocessing carried out: by hand, by Pillow, and by transformers' own processors."""

import importlib.util
import json

import numpy as np
import pytest
import torch
from PIL import Image
from torch.testing import assert_close

from vitreous.errors import ConfigError
from vitreous.images.pixels.preprocess import apply, before_crop, seen_box
from vitreous.images.pixels.preprocess import pixels as seen_pixels
from vitreous.models.preprocess import IMAGENET_MEAN, IMAGENET_STD, Preprocess

needs_transformers = pytest.mark.skipif(
    importlib.util.find_spec("transformers") is None, reason="transformers is not installed"
)


def picture(rows: int, columns: int, channels: int = 3, seed: int = 0) -> Image.Image:
    """Noise on a slope: no two places look alike."""
    rng = np.random.default_rng(seed)
    slope = np.add.outer(np.linspace(0, 120, rows), np.linspace(0, 80, columns))[..., None]
    array = (slope + rng.uniform(0, 55, (rows, columns, channels))).astype(np.uint8)
    return Image.fromarray(array if channels != 1 else array[..., 0])


def pixels(x: torch.Tensor, rule: Preprocess) -> torch.Tensor:
    """Back to 0 … 255, H W C."""
    return (x.permute(1, 2, 0) * torch.tensor(rule.std) + torch.tensor(rule.mean)) * 255


@pytest.mark.parametrize("antialias", [True, False])
@pytest.mark.parametrize("interpolation", ["nearest", "bilinear", "bicubic"])
def test_an_image_of_the_right_size_is_only_normalised(antialias, interpolation):
    image = picture(20, 28)
    rule = Preprocess(size=(20, 28), antialias=antialias, interpolation=interpolation)
    want = (torch.from_numpy(np.array(image)).float() - 127.5) / 127.5
    assert_close(apply(image, rule).permute(1, 2, 0), want, atol=1e-6, rtol=0)
    assert apply(image, rule).min() >= -1


@pytest.mark.parametrize("size", [(9, 13), (40, 50), (20, 7), (1, 1), (64, 28)])
def test_google_squash_is_the_half_pixel_formula(size):
    """Output i reads at (i + ½) · old / new − ½, between the two nearest pixels, borders repeated; no antialias."""
    image, rule = picture(20, 28), Preprocess(size=size)
    x = np.array(image).astype(np.float64)

    def line(old: int, new: int) -> np.ndarray:
        weights = np.zeros((new, old))
        for i in range(new):
            at = max((i + 0.5) * old / new - 0.5, 0)
            low = min(int(at), old - 1)
            weights[i, low] += 1 - (at - low)
            weights[i, min(low + 1, old - 1)] += at - low
        return weights

    want = np.einsum("ai,bj,ijc->abc", line(20, size[0]), line(28, size[1]), x)
    assert_close(pixels(apply(image, rule), rule), torch.from_numpy(want).float(), atol=2e-3, rtol=0)


def test_antialias_is_pillow():
    image, rule = picture(50, 70), Preprocess(size=(16, 24), antialias=True, interpolation="bicubic")
    want = np.array(image.resize((24, 16), Image.Resampling.BICUBIC))
    assert_close(pixels(apply(image, rule), rule), torch.from_numpy(want).float(), atol=1e-3, rtol=0)


def test_the_crop_is_the_centre():
    """A cross of white at the very middle stays at the middle, whichever side is longer."""
    for rows, columns in ((32, 48), (48, 32), (32, 32)):
        array = np.zeros((rows, columns, 3), np.uint8)
        array[rows // 2 - 1 : rows // 2 + 1, columns // 2 - 1 : columns // 2 + 1] = 255
        rule = Preprocess(size=(24, 24), fit="crop", short_side=32, antialias=True)
        x = apply(Image.fromarray(array), rule)[0]
        assert (x > 0).nonzero().float().mean(0).tolist() == [11.5, 11.5]


@pytest.mark.parametrize(("centre", "left"), [("round", 60), ("floor", 59)])
def test_half_a_pixel_goes_as_its_library_sends_it(centre, left):
    """(343 − 224) / 2 = 59.5: torchvision rounds to even, transformers cuts."""
    image = picture(256, 343)
    rule = Preprocess(size=(224, 224), fit="crop", short_side=256, antialias=True, centre=centre)
    want = torch.from_numpy(np.array(image))[16:240, left : left + 224].float()
    assert_close(pixels(apply(image, rule), rule), want, atol=1e-3, rtol=0)


def test_sizes_before_the_crop_are_those_of_torchvision_and_transformers():
    """The long side is cut down to a whole number: int(short_side · long / short)."""
    rule = Preprocess(size=(224, 224), fit="crop", short_side=248, antialias=True)
    assert before_crop((375, 500), rule) == (248, 330)
    assert before_crop((500, 375), rule) == (330, 248)
    assert before_crop((333, 333), rule) == (248, 248)
    squash = Preprocess(size=(224, 224), fit="squash-crop", short_side=256)
    assert before_crop((333, 77), squash) == (256, 256)


def test_a_crop_that_is_no_square_is_covered_whatever_the_image_is_like():
    """timm resizes until both sides reach, so nothing is framed in black."""
    rule = Preprocess(size=(160, 224), fit="crop", short_side=177, antialias=True)
    for size in ((300, 100), (100, 300), (200, 200), (177, 247)):
        rows, columns = before_crop(size, rule)
        assert rows >= 177
        assert columns >= 247
        assert min(rows / 177, columns / 247) < 1.02
        white = Image.new("RGB", size[::-1], (255, 255, 255))
        assert apply(white, rule).min() == 1
    assert before_crop((50, 99), Preprocess(size=(160, 224), fit="squash-crop", short_side=177)) == (177, 247)


@pytest.mark.parametrize("size", [(160, 224), (224, 160), (100, 400)])
@pytest.mark.parametrize("image", [(300, 400), (400, 300), (300, 310), (310, 300), (100, 900), (900, 100), (333, 333)])
def test_before_a_crop_that_is_no_square_an_image_keeps_its_shape_and_covers_the_crop(image, size):
    rule = Preprocess(size=size, fit="crop", short_side=min(size))
    rows, columns = before_crop(image, rule)
    assert rows >= size[0]
    assert columns >= size[1]
    assert rows == size[0] or columns == size[1]
    assert rows / columns == pytest.approx(image[0] / image[1], rel=0.02)


@pytest.mark.parametrize(
    "rule",
    [
        Preprocess(size=(20, 20), antialias=True),
        Preprocess(size=(20, 20), fit="crop", short_side=20, antialias=True),
        Preprocess(size=(20, 20), fit="crop", short_side=25, antialias=True, centre="floor"),
        Preprocess(size=(20, 30), fit="crop", short_side=23, antialias=True),
        Preprocess(size=(20, 20), fit="squash-crop", short_side=33, antialias=True),
    ],
    ids=str,
)
@pytest.mark.parametrize("size", [(120, 200), (200, 120), (160, 160), (151, 97)])
def test_the_box_is_the_part_that_the_model_sees(rule, size):
    """On a slope from 0 to 1 across the image, the edges of what is seen have the values of the box."""
    rows, columns = size
    left, top, right, bottom = seen_box(size, rule)
    for axis, (first, last) in ((0, (top, bottom)), (1, (left, right))):
        slope = (np.arange(size[axis]) + 0.5) / size[axis] * 255
        image = np.broadcast_to(slope[:, None] if axis == 0 else slope, (rows, columns)).astype(np.uint8)
        found = seen_pixels(image, rule)[..., 0].mean(1 - axis) / 255
        half = (last - first) / len(found) / 2  # from an edge to the middle of its pixel
        assert found[0] - half == pytest.approx(first, abs=0.012)
        assert found[-1] + half == pytest.approx(last, abs=0.012)


def test_black_that_is_added_lies_outside_the_image():
    rule = Preprocess(size=(20, 20), fit="squash-crop", short_side=16)
    assert seen_box((50, 80), rule) == (-2 / 16, -2 / 16, 18 / 16, 18 / 16)


@pytest.mark.parametrize("mode", ["L", "LA", "1", "P", "RGBA", "CMYK", "RGB", "I;16"])
def test_any_kind_of_image_becomes_three_colours(mode):
    image = picture(20, 28).convert("L").convert("I;16") if mode == "I;16" else picture(20, 28).convert(mode)
    x = apply(image, Preprocess(size=(16, 16), antialias=True))
    assert x.shape == (3, 16, 16)
    assert x.dtype == torch.float32
    assert x.isfinite().all()
    if mode in ("L", "LA", "1", "I;16"):
        assert torch.equal(x[0], x[1])


def test_transparency_and_palette_keep_their_colours():
    red = Image.new("RGBA", (8, 8), (255, 0, 0, 0))
    palette = Image.new("P", (8, 8), 0)
    palette.putpalette([255, 0, 0] + [0] * 765)
    for image in (red, palette):
        assert apply(image, Preprocess(size=(4, 4)))[:, 0, 0].tolist() == [1, -1, -1]


def test_a_model_of_one_or_four_channels_gets_them():
    rule = Preprocess(size=(8, 8))
    assert apply(picture(20, 28), rule.with_channels(1)).shape == (1, 8, 8)
    assert apply(picture(20, 28), rule.with_channels(4)).shape == (4, 8, 8)
    with pytest.raises(ConfigError, match="the model wants 5"):
        apply(picture(20, 28), rule.with_channels(5))


@pytest.mark.parametrize("size", [(1, 1), (1, 5000), (5000, 1), (3, 900), (2, 2), (900, 3)])
@pytest.mark.parametrize("fit", ["squash", "crop", "squash-crop"])
@pytest.mark.parametrize("antialias", [True, False])
def test_tiny_and_very_long_images(size, fit, antialias):
    side = None if fit == "squash" else 36
    rule = Preprocess(size=(32, 24), fit=fit, short_side=side, antialias=antialias)
    x = apply(Image.new("RGB", size[::-1], (255, 0, 255)), rule)
    assert x.shape == (3, 32, 24)
    assert x[0].min() > 0.9999
    assert x[1].max() < -0.9999


def test_a_line_of_pixels_costs_no_more_than_its_middle():
    """100,000 x 1 would become 25,600,000 x 256; only the middle is cut out of it."""
    line = np.zeros((1, 100_000, 3), np.uint8)
    line[:, 49_998:50_002] = 255
    rule = Preprocess(size=(224, 224), fit="crop", short_side=256, antialias=True)
    x = apply(Image.fromarray(line), rule)
    assert x.shape == (3, 224, 224)
    assert x.min() == 1


def test_other_interpolations_need_antialias():
    with pytest.raises(ConfigError, match="antialias=True"):
        apply(picture(9, 9), Preprocess(size=(4, 4), interpolation="lanczos"))


def test_the_value_goes_to_json_and_back():
    from vitreous.models import preprocess

    rule = Preprocess(size=(32, 24), fit="crop", short_side=36, mean=IMAGENET_MEAN, std=IMAGENET_STD, source="x")
    assert preprocess.from_json(json.loads(json.dumps(rule.to_json()))) == rule
    assert "short side 36" in str(rule)


PROCESSORS = {
    "vit": ("vit", "ViTImageProcessorPil", {}),
    "vit-rectangle": ("vit", "ViTImageProcessorPil", {"size": {"height": 48, "width": 80}, "resample": 3}),
    "deit": ("deit", "DeiTImageProcessorPil", {}),
    "bit": ("bit", "BitImageProcessorPil", {"size": {"shortest_edge": 64}, "crop_size": {"height": 56, "width": 56}}),
}


@needs_transformers
@pytest.mark.parametrize("case", PROCESSORS)
@pytest.mark.parametrize("size", [(90, 121), (121, 90), (300, 64), (30, 41)])
def test_the_same_pixels_as_transformers_own_processor(case, size, tmp_path):
    """Its config, read as a checkpoint's would be, carried out by us: equal to rounding."""
    import tiny_models

    import vitreous

    kind, name, changes = PROCESSORS[case]
    module = importlib.import_module(f"transformers.models.{kind}.image_processing_pil_{kind}")
    theirs = getattr(module, name)(**changes)
    want = theirs(picture(*size), return_tensors="pt")["pixel_values"][0]
    model = tiny_models.awake(activation="gelu", patch=8, image_size=tuple(want.shape[1:]))
    vitreous.save(model, tmp_path / "m", format="huggingface")
    (tmp_path / "m" / "vitreous.json").unlink()
    (tmp_path / "m" / "preprocessor_config.json").write_text(theirs.to_json_string())
    ours = vitreous.load(tmp_path / "m").preprocess
    assert ours.source == "huggingface"
    assert_close(apply(picture(*size), ours), want, atol=1e-5, rtol=0)


@needs_transformers
@pytest.mark.parametrize("fit", ["squash", "crop", "squash-crop"])
def test_transformers_runs_the_preprocessing_that_we_write(fit, tmp_path):
    import tiny_models

    import vitreous

    model = tiny_models.awake(activation="gelu", patch=8, image_size=(56, 56))
    side = None if fit == "squash" else 64
    model.preprocess = Preprocess(
        size=(56, 56),
        fit=fit,
        short_side=side,
        antialias=True,
        centre="floor",
        interpolation="bicubic",
        mean=IMAGENET_MEAN,
    )
    vitreous.save(model, tmp_path / "m", format="huggingface")
    said = json.loads((tmp_path / "m" / "preprocessor_config.json").read_text())
    kind = said.pop("image_processor_type").removesuffix("ImageProcessor").lower()
    module = importlib.import_module(f"transformers.models.{kind}.image_processing_pil_{kind}")
    theirs = next(getattr(module, name) for name in module.__all__)(**said)
    want = theirs(picture(90, 121), return_tensors="pt")["pixel_values"][0]
    assert_close(apply(picture(90, 121), model.preprocess), want, atol=1e-5, rtol=0)
