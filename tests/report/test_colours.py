"""Figures stand by themselves."""

import base64
import io
import xml.etree.ElementTree as ElementTree

import numpy as np
from PIL import Image

from vitreous.report.colours import SCALE, Picture, colours, strip


def test_the_scale_rises_in_lightness():
    """A reader in grey sees the same order."""
    light = SCALE @ np.array([0.2126, 0.7152, 0.0722])
    assert (np.diff(light) > -0.6).all()  # bytes are rounded
    assert light[-1] > 10 * light[0]


def test_colours_span_zero_to_the_largest_value():
    seen = colours(np.array([[0.0, 0.5], [1.0, 2.0]]))
    assert (seen[0, 0] == SCALE[0]).all()
    assert (seen[1, 1] == SCALE[-1]).all()
    assert (colours(np.zeros((2, 2))) == SCALE[0]).all()


def test_a_strip_is_whole_xml_with_its_pictures_inside_and_its_words_escaped():
    pixels = np.arange(48, dtype=np.uint8).reshape(4, 4, 3)
    text = strip([Picture("a < b", pixels), Picture("c", pixels)], heading='"x" & y', caption="z")
    root = ElementTree.fromstring(text)
    images = [e for e in root if e.tag.endswith("image")]
    assert len(images) == 2
    assert not any("http" in value for e in root.iter() for value in e.attrib.values())
    raw = base64.b64decode(images[0].attrib["href"].split(",")[1])
    assert (np.asarray(Image.open(io.BytesIO(raw))) == pixels).all()
    assert {"a < b", '"x" & y'} <= {e.text for e in root}
