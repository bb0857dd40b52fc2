"""`look MODEL IMAGE`: the photo as it is, with where the model looks over it and what the colours mean."""

from dataclasses import replace

import numpy as np
import pytest
from picture_files import photo
from tiny_models import VIT, awake

import vitreous
from vitreous.images.pixels.preprocess import pixels, seen_box
from vitreous.measures.drawing import UNSEEN_GREY, Photo, photos_of, stacked, veil_scale, veiled
from vitreous.measures.figures import draw
from vitreous.report.marks import Bitmap, Words

ATTENTION = ["attention-maps", "rollout", "attention-distance", "attention-entropy", "class-attention", "head-likeness"]
GREY = np.full((60, 90, 3), 128, np.uint8)
HOT = np.zeros((4, 4), np.float32)
HOT[1, 2] = 1.0


@pytest.fixture(scope="module")
def model():
    network = awake(classes=3)
    network.preprocess = replace(network.preprocess, fit="crop", short_side=16)
    return network


@pytest.fixture(scope="module")
def image(tmp_path_factory):
    path = tmp_path_factory.mktemp("one") / "scene.png"
    photo(1, (150, 100)).save(path)
    return path


@pytest.fixture(scope="module")
def seen(model, image):
    return vitreous.look(model, image)


def test_the_veil_is_lit_where_the_map_is_high_and_grey_where_the_model_sees_nothing():
    out = veiled(Photo(GREY, (1 / 6, 0.0, 5 / 6, 1.0)), HOT).astype(int)
    light = out.sum(-1)
    assert np.unravel_index(light.argmax(), light.shape) == pytest.approx((22, 52), abs=8)  # row 2, column 3 of the box
    assert (out[:, :15] == UNSEEN_GREY).all()
    assert (out[:, 75:] == UNSEEN_GREY).all()
    assert (out[50, 20:70] == out[50, 20]).all()  # all low alike
    assert (out[50, 20] == veil_scale()[0, 0]).all()
    assert np.abs(out[22, 52] - veil_scale()[0, -1].astype(int)).max() < 30


def test_a_weak_patch_shows_by_the_square_root():
    weak = HOT.copy()
    weak[3, 0] = 0.1
    whole = Photo(GREY, (0.0, 0.0, 1.0, 1.0))
    plain, root = (veiled(whole, weak, is_root=is_root)[52, 11].astype(int).sum() for is_root in (False, True))
    assert root > plain + 20


@pytest.mark.parametrize("box", [(-0.25, 0.0, 1.25, 1.0), (0.0, 0.0, 1.0, 1.0), (0.4, 0.4, 0.41, 0.41)])
def test_any_box_fits(box):
    assert veiled(Photo(GREY, box), HOT).shape == GREY.shape
    assert veiled(Photo(GREY, box), np.zeros((2, 2), np.float32)).shape == GREY.shape  # all alike


def test_photos_of_any_size_are_kept_whole():
    given = [Photo(np.full((h, w, 3), i, np.uint8), (0, 0, 1, i / 7)) for i, (h, w) in enumerate([(3, 9), (8, 2)])]
    for one, other in zip(given, photos_of(stacked(given)), strict=True):
        assert (one.pixels == other.pixels).all()
        assert one.box == other.box


def test_the_photo_is_the_file_and_its_box_what_the_model_saw(seen, model, image):
    (kept,) = photos_of(seen.arrays["attention-maps"])
    whole = vitreous.images.open(image).read(0)
    assert (kept.pixels == whole).all()  # as it is: 150 × 100
    assert kept.box == seen_box((100, 150), model.preprocess)
    left, top, right, bottom = (round(edge * n) for edge, n in zip(kept.box, (150, 100, 150, 100), strict=True))
    cut = pixels(kept.pixels[top:bottom, left:right], replace(model.preprocess, fit="squash"))
    saw = seen.arrays["attention-maps"]["images"][0].transpose(1, 2, 0)
    assert np.abs(cut - saw.astype(np.float32)).mean() < 3


@pytest.mark.parametrize("name", ATTENTION)
def test_every_attention_figure_of_one_image_is_over_the_photo_with_a_scale(name, model, image):
    """Also if it is the only one asked for."""
    found = vitreous.look(model, image, only=[name])
    assert set(found.found) == {name}
    charts = [panel.chart for figure in draw(found)[name, 0] for panel in figure.panels]
    photos = [[m for m in chart.marks if isinstance(m, Bitmap) and m.is_photo] for chart in charts]
    shown = max(photos, key=len)
    assert len(shown) >= 2
    assert all(m.width / m.height == pytest.approx(1.5, rel=0.02) for m in shown)  # the photo's own shape
    marks = charts[photos.index(shown)].marks
    bars = [m for m in marks if isinstance(m, Bitmap) and not m.is_photo]
    assert len(bars) == len(shown) - 1
    ends = [m.text for m in marks if isinstance(m, Words) and m.size == 9]
    assert len(ends) == 2 * len(bars)
    assert all(any(letter.isdigit() for letter in text) for text in ends)


def test_maps_of_patches_are_those_of_the_attention(seen, model, image):
    arrays = seen.arrays["attention-maps"]
    x = vitreous.images.preprocess.apply(vitreous.images.open(image).read(0), model.preprocess)[None]
    with vitreous.taps(model, "blocks.*.attention.weights") as taps:
        model(x)
    weights = taps["blocks.1.attention.weights"].detach()  # 1 H T T, a class token in front
    far = vitreous.measures.attention_distance(weights, (4, 4), 4.0)
    assert arrays["distance"][0, 1].mean() == pytest.approx(far.mean().item(), rel=0.02)
    assert arrays["to_class"][0, 1].ravel() == pytest.approx(weights[0, :, 1:, 0].mean(0).numpy(), abs=2e-3)
    spread = (-(weights * weights.log()).sum(-1)).exp()[0, :, 1:].mean(0)
    assert arrays["spread"][0, 1].ravel() == pytest.approx(spread.numpy(), rel=0.01)


def test_a_set_is_shown_by_its_first_images(model):
    found = vitreous.look(model, "fashion", images=8, only=["attention-maps", "attention-distance"])
    drawn = draw(found)
    maps, distance = (
        [m for figure in drawn[name, 0] for p in figure.panels for m in p.chart.marks if isinstance(m, Bitmap)]
        for name in ("attention-maps", "attention-distance")
    )
    assert len(maps) == 4 + 4 + 4  # images, overlays, scales
    assert len(distance) == 1 + 2 + 2  # one image under two blocks


def test_one_file_is_called_by_its_name(seen, model):
    assert str(seen).splitlines()[0].endswith("on scene.png")
    assert "1 images" not in str(seen)
    few = vitreous.look(model, "fashion", images=1, only=["positions"])
    assert str(few).splitlines()[0].endswith("on 1 image of fashion")


def test_a_hybrid_says_why_its_filters_are_not_drawn(image):
    found = vitreous.look(awake(VIT.change(stem="convolutions", patch=(4, 4))), image, only=["patch-filters"])
    assert "the shapes are not drawn: convolutions come first" in str(found)
    assert len(draw(found)["patch-filters", 0][0].panels) == 1
    plain = vitreous.look(awake(), image, only=["patch-filters"])
    assert "not drawn" not in str(plain)
    assert len(draw(plain)["patch-filters", 0][0].panels) == 2
