"""Every short cut is held against Pillow, and can be turned off."""

import io

import numpy as np
import pytest
from picture_sets import encoded, scene
from PIL import Image

from vitreous.errors import DataError
from vitreous.images.pixels import decode, preprocess
from vitreous.images.sources import image_file
from vitreous.models.preprocess import Preprocess

simplejpeg = pytest.importorskip("simplejpeg")

SUBSAMPLINGS = ["4:4:4", "4:2:2", "4:2:0"]


def apart(a, b):
    return np.abs(a.astype(int) - b.astype(int))


def photo(shared, number=0):
    import zipfile

    with zipfile.ZipFile(shared / "data" / "imagenet-sample-1000.zip") as file:
        return file.read([name for name in file.namelist() if name.endswith((".jpg", ".JPEG", ".jpeg"))][number])


@pytest.mark.parametrize("subsampling", SUBSAMPLINGS)
@pytest.mark.parametrize("progressive", [False, True])
def test_a_jpeg_decodes_to_pillows_pixels(subsampling, progressive):
    for i, size in enumerate([(60, 80), (81, 67), (16, 16), (1, 9)]):
        raw = encoded(scene(i, *size) if min(size) > 4 else np.full((*size, 3), 90, np.uint8),
                      subsampling=subsampling, progressive=progressive)  # fmt: skip
        assert decode.header(raw) is not None, "the fast path was not taken"
        assert np.array_equal(decode.decode(raw, "x", fast=True), image_file.decode(raw, "x"))


def test_real_photographs_decode_to_pillows_pixels(shared):
    for number in range(0, 1000, 50):
        raw = photo(shared, number)
        assert np.array_equal(decode.decode(raw, "x", fast=True), image_file.decode(raw, "x"))


@pytest.mark.parametrize("turn", range(1, 9))
def test_a_turned_photograph_stands_upright(turn):
    exif = Image.Exif()
    exif[0x0112] = turn
    raw = encoded(scene(turn, 60, 90), exif=exif)
    upright = image_file.decode(raw, "x")
    header = decode.header(raw)
    assert (header.rows, header.columns) == upright.shape[:2]
    assert np.array_equal(decode.decode(raw, "x", fast=True), upright)
    box = (3, 5, 43, 47)
    assert apart(decode.decode_crop(raw, "x", box, (16, 16), fast=True),
                 decode.decode_crop(raw, "x", box, (16, 16), fast=False)).mean() < 4  # fmt: skip


@pytest.mark.parametrize("kind", ["PNG", "WEBP", "BMP", "CMYK", "grey", "grey-as-colour", "colour-as-grey"])
def test_whatever_is_not_a_plain_jpeg_is_pillows(kind):
    pixels, channels = scene(3, 40, 50), 3
    if kind == "CMYK":
        file = io.BytesIO()
        Image.fromarray(pixels).convert("CMYK").save(file, "JPEG")
        raw = file.getvalue()
    elif "grey" in kind:
        raw = encoded(pixels if kind == "colour-as-grey" else pixels[:, :, 0])
        channels = 3 if kind == "grey-as-colour" else 1
    else:
        raw = encoded(pixels, kind)
    assert np.array_equal(decode.decode(raw, "x", channels, fast=True), image_file.decode(raw, "x", channels))


@pytest.mark.parametrize("filter", ["bilinear", "bicubic"])
def test_crop_and_resize_stay_within_two_levels_of_pillows(filter):
    """Against Pillow's resize of the box cut out, enlarging and shrinking; 99 % of values are equal or one apart."""
    pixels = scene(0, 300, 400)
    rng = np.random.default_rng(0)
    for _ in range(30):
        height, width = rng.integers(8, 300), rng.integers(8, 400)
        top, left = rng.integers(0, 300 - height + 1), rng.integers(0, 400 - width + 1)
        box = (left, top, left + width, top + height)
        cut = Image.fromarray(pixels[top : top + height, left : left + width])
        theirs = np.asarray(cut.resize((64, 48), preprocess.PILLOW_RESAMPLE[filter]))
        found = apart(decode.crop(pixels, box, (48, 64), filter=filter, fast=True), theirs)
        assert found.max() <= 2
        assert (found > 1).mean() < 0.01
        exact = np.asarray(Image.fromarray(pixels).resize((64, 48), preprocess.PILLOW_RESAMPLE[filter], box=box))
        assert np.array_equal(decode.crop(pixels, box, (48, 64), filter=filter, fast=False), exact)


def test_real_photographs_crop_within_two_levels_of_pillows(shared):
    for number in range(0, 1000, 100):
        pixels = image_file.decode(photo(shared, number), "x")
        box = (10, 20, 150, 180)
        cut = Image.fromarray(pixels[20:180, 10:150])
        found = apart(
            decode.crop(pixels, box, (112, 112)), np.asarray(cut.resize((112, 112), Image.Resampling.BILINEAR))
        )
        assert found.max() <= 2
        assert found.mean() < 0.05


def test_a_large_photograph_is_decoded_smaller_and_stays_near(shared):
    """Four times enlarged, to 768 and more; a crop of about all of it to 96 needs an eighth to a quarter of that."""
    for number in (1, 500, 900):
        small = Image.fromarray(image_file.decode(photo(shared, number), "x"))
        large = np.asarray(small.resize((small.width * 4, small.height * 4), Image.Resampling.BICUBIC))
        raw = encoded(large)
        box = (11, 17, 11 + 4 * 180, 17 + 4 * 176)
        ours = decode.decode_crop(raw, "x", box, (96, 96), fast=True)
        theirs = decode.decode_crop(raw, "x", box, (96, 96), fast=False)
        assert apart(ours, theirs).mean() < 2.5
        header = decode.header(raw)
        assert decode._jpeg(raw, header, 3, 4).shape[:2] == (-(-header.rows // 4), -(-header.columns // 4))


def test_a_part_of_a_long_thin_photo_is_that_part():
    """libjpeg's small copies of it have another scale down than across: 21 rows become 6, 1600 columns 400."""
    slope = np.broadcast_to(np.linspace(0, 255, 1600).astype(np.uint8)[None, :, None], (21, 1600, 3))
    raw, box = encoded(np.ascontiguousarray(slope)), (400, 0, 800, 21)
    for fast in (True, False):
        part = decode.decode_crop(raw, "x", box, (2, 40), fast=fast)
        assert part.mean() == pytest.approx(255 * 600 / 1600, abs=3)


def test_the_environment_turns_short_cuts_off(monkeypatch):
    pixels, box = scene(5, 90, 120), (4, 6, 77, 80)
    pillow = np.asarray(Image.fromarray(pixels).resize((32, 32), Image.Resampling.BILINEAR, box=box))
    assert decode.is_fast()
    monkeypatch.setenv("VITREOUS_EXACT", "1")
    assert not decode.is_fast()
    assert decode.is_fast(True)
    assert np.array_equal(decode.crop(pixels, box, (32, 32)), pillow)
    raw = encoded(pixels)
    exact = np.asarray(Image.open(io.BytesIO(raw)).resize((32, 32), Image.Resampling.BILINEAR, box=box))
    assert np.array_equal(decode.decode_crop(raw, "x", box, (32, 32)), exact)


def test_without_simplejpeg_pillow_decodes(monkeypatch):
    monkeypatch.setattr(decode, "_simplejpeg", lambda: None)
    raw = encoded(scene(2, 60, 70))
    assert decode.header(raw) is None
    assert np.array_equal(decode.decode(raw, "x", fast=True), image_file.decode(raw, "x"))


@pytest.mark.parametrize("cut", [0, 2, 20, 400, -200])
def test_a_file_cut_short_is_named_as_by_pillow(cut):
    raw = encoded(scene(2, 200, 200))[:cut]
    with pytest.raises(DataError) as theirs:
        image_file.decode(raw, "cut.jpg")
    for fast in (True, False):
        with pytest.raises(DataError) as ours:
            decode.decode(raw, "cut.jpg", fast=fast)
        assert str(ours.value) == str(theirs.value)
        with pytest.raises(DataError, match=r"cut\.jpg"):
            decode.decode_crop(raw, "cut.jpg", (0, 0, 200, 200), (32, 32), fast=fast)


@pytest.mark.parametrize("size", [(300, 400), (400, 300), (256, 256), (100, 40), (257, 5000)])
def test_shrinking_keeps_the_short_side_and_the_aspect(size):
    pixels = np.zeros((*size, 3), np.uint8)
    rows, columns = decode.shrink(pixels, 256).shape[:2]
    if min(size) <= 256:
        assert (rows, columns) == size
    else:
        assert min(rows, columns) == 256
        assert rows / columns == pytest.approx(size[0] / size[1], rel=0.01)


def test_finished_pixels_are_whole_numbers_at_most_half_a_level_off():
    pixels = scene(7, 50, 70)
    exact = Preprocess(size=(32, 32), fit="crop", short_side=36, interpolation="bicubic", antialias=True)
    assert np.array_equal(decode.finish(pixels, exact), preprocess.pixels(pixels, exact))
    sampled = Preprocess(size=(32, 32))
    assert apart(decode.finish(pixels, sampled) * 2.0, preprocess.pixels(pixels, sampled) * 2.0).max() <= 1
    assert np.abs(decode.finish(pixels, sampled) - preprocess.pixels(pixels, sampled)).max() <= 0.5


def test_channels_are_spread_and_joined_as_pillow_does():
    pixels = scene(1, 20, 30)
    grey = decode.with_channels(pixels, 1)
    assert np.array_equal(grey[:, :, 0], np.asarray(Image.fromarray(pixels).convert("L")))
    assert np.array_equal(decode.with_channels(decode.with_channels(grey, 3), 1), grey)
