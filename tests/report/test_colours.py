"""Numbers as colours: the order survives in grey."""

import numpy as np

from vitreous.report.colours import COLOUR_SCALE, colours


def test_the_scale_rises_in_lightness():
    """A reader in grey sees the same order."""
    light = COLOUR_SCALE @ np.array([0.2126, 0.7152, 0.0722])
    assert (np.diff(light) > -0.6).all()  # bytes are rounded
    assert light[-1] > 10 * light[0]


def test_colours_span_zero_to_the_largest_value():
    seen = colours(np.array([[0.0, 0.5], [1.0, 2.0]]))
    assert (seen[0, 0] == COLOUR_SCALE[0]).all()
    assert (seen[1, 1] == COLOUR_SCALE[-1]).all()
    assert (colours(np.zeros((2, 2))) == COLOUR_SCALE[0]).all()
