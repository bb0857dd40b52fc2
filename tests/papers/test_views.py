"""The same images with other pixels."""

import numpy as np
import pytest

from vitreous.errors import DataError
from vitreous.images import open_data
from vitreous.images.imageset import ImageSet
from vitreous.papers.sets import Sets, plain_name
from vitreous.papers.views import MIDDLE_BYTE, SPREAD, colour_axes, viewed


@pytest.fixture
def fashion() -> ImageSet:
    return Sets().open("fashion")


@pytest.fixture
def colours(tmp_path) -> ImageSet:
    """Images whose colours vary together: two of three are mixed from the first."""
    random = np.random.default_rng(0)
    first = random.integers(60, 190, (24, 8, 8, 1))
    noise = random.integers(-20, 20, (24, 8, 8, 2))
    pixels = np.concatenate([first, first + noise], -1).astype(np.uint8)
    labels = np.arange(24) % 2
    np.savez(tmp_path / "set.npz", train_x=pixels[:16], train_y=labels[:16], test_x=pixels[16:], test_y=labels[16:])
    return open_data.open(tmp_path / "set.npz")


def patches(image, side):
    rows, columns = image.shape[0] // side, image.shape[1] // side
    return [
        image[r * side : (r + 1) * side, c * side : (c + 1) * side].tobytes()
        for r in range(rows)
        for c in range(columns)
    ]


def test_shuffled_patches_are_the_same_patches_in_another_order(fashion):
    shuffled = viewed(fashion, "shuffled-patches-7")
    for i in (0, 5):
        before, after = fashion.read(i), shuffled.read(i)
        assert sorted(patches(before, 7)) == sorted(patches(after, 7))
        assert not np.array_equal(before, after)
        np.testing.assert_array_equal(after, shuffled.read(i))


def test_each_image_has_an_order_of_its_own(fashion):
    same = viewed(ImageSet(**{**vars(fashion), "source": Same(fashion.read(0), len(fashion))}), "shuffled-patches-7")
    assert not np.array_equal(same.read(0), same.read(1))


class Same:
    """A source that has one image many times."""

    def __init__(self, image, count):
        self.image, self.count = image, count

    def __len__(self):
        return self.count

    def name(self, i):
        return str(i)

    def raw(self, i):
        return None

    def read(self, i):
        return self.image


def test_a_view_keeps_labels_and_splits_and_has_an_id_of_its_own(fashion):
    shuffled = viewed(fashion, "shuffled-patches-7")
    np.testing.assert_array_equal(shuffled.labels, fashion.labels)
    np.testing.assert_array_equal(shuffled.splits, fashion.splits)
    assert shuffled.content_id != fashion.content_id
    assert viewed(fashion, "") is fashion


def test_grey_has_three_equal_colours_with_the_mean_of_the_old(colours):
    before, after = colours.read(3).astype(float), viewed(colours, "grey").read(3)
    assert after.shape == before.shape
    np.testing.assert_allclose(after, before.mean(-1, keepdims=True).repeat(3, -1), atol=0.5)


def test_decorrelated_colours_do_not_vary_together_and_have_one_spread(colours):
    turned = viewed(colours, "decorrelated")
    pixels = np.concatenate([turned.read(i).reshape(-1, 3) for i in range(16)]).astype(float)
    own = np.concatenate([colours.read(i).reshape(-1, 3) for i in range(16)]).astype(float)
    assert np.corrcoef(own.T)[0, 1] > 0.8
    assert np.abs(np.corrcoef(pixels.T) - np.eye(3)).max() < 0.15
    np.testing.assert_allclose(pixels.mean(0), MIDDLE_BYTE, atol=5)
    np.testing.assert_allclose(pixels.std(0), SPREAD, rtol=0.15)


def test_decorrelation_can_be_turned_back(colours):
    axes = colour_axes(colours)
    turned = viewed(colours, "decorrelated").read(2).astype(float)
    back = (turned - MIDDLE_BYTE) / SPREAD @ np.linalg.inv(axes.turn) + axes.mean
    inside = (turned > 0) & (turned < 255)
    np.testing.assert_allclose(back[inside.all(-1)], colours.read(2)[inside.all(-1)], atol=1.5)


def test_an_unknown_view_is_named_with_those_there_are(fashion):
    with pytest.raises(DataError, match=r"no view 'sepia'; give grey, .* or shuffled-patches-P"):
        viewed(fashion, "sepia")
    with pytest.raises(DataError, match="no view 'decorrelated'"):
        viewed(fashion, "decorrelated")


def test_sets_open_views_by_name():
    assert plain_name("fashion:shuffled-patches-4") == "fashion"
    part = Sets().part({"data": "fashion:shuffled-patches-4", "images": 20}, 0)
    assert part.path.endswith(":shuffled-patches-4")
    assert (part.splits == "train").sum() == 20
