"""The generated pictures are the same everywhere, and only the shape tells the label."""

import hashlib

import numpy as np

from vitreous.images.embedded import shapes


def test_a_number_is_a_picture():
    first, kind = shapes.draw(7, seed=3)
    again, same = shapes.draw(7, seed=3)
    assert (first == again).all()
    assert kind == same
    assert (first != shapes.draw(8, seed=3)[0]).any()
    assert first.shape == (48, 48, 3)


def test_pictures_do_not_change_between_versions():
    """A model recorded on them would silently get worse."""
    masks = np.packbits(np.stack([shapes.mask(i, seed=2) for i in range(20)]))
    assert hashlib.sha256(masks).hexdigest()[:16] == "3e5f618b79a86bfb"


def test_every_kind_comes_equally_often_and_its_mask_is_where_the_colour_is():
    _, kinds = shapes.batch(range(400), seed=5)
    assert (np.bincount(kinds) > 70).all()
    for i in range(10):
        picture, _ = shapes.draw(i, 5)
        inside = shapes.mask(i, 5)
        assert 0.01 < inside.mean() < 0.2
        assert picture[inside].std(0).mean() < picture[~inside].std(0).mean()
