"""From which confidence answers are trusted: the promise holds on new images, not only on those that chose it."""

import numpy as np
import pytest

from vitreous.training.tell.summary import sure_from


def answers(images, draw):
    """Calibrated answers to images of three classes: as sure as they are right."""
    confidence = draw.uniform(0.4, 1.0, images)
    is_right = draw.random(images) < confidence
    return np.stack([confidence, *[(1 - confidence) / 2] * 2], 1), np.where(is_right, 0, 1)


@pytest.mark.parametrize(("images", "found"), [(100, 0), (300, 40), (1000, 150)])
def test_of_answers_that_are_trusted_nine_in_ten_are_right(images, found):
    """The share right above a confidence c is (1 + c) / 2 here. The promise may break in one draw of twenty."""
    draw = np.random.default_rng(0)
    chosen = [sure_from(*answers(images, draw)) for _ in range(200)]
    broken = sum((1 + confidence) / 2 < 0.9 for confidence in chosen)
    assert broken <= 10
    assert sum(confidence < 1 for confidence in chosen) >= found, "a promise that is never made is no use"


def test_a_model_that_is_right_on_too_few_is_trusted_nowhere():
    """Confidence that says nothing: 85 % are right at every level, so a line is a matter of luck."""
    draw, found = np.random.default_rng(1), 0
    for _ in range(200):
        confidence = draw.uniform(0.4, 1.0, 300)
        probabilities = np.stack([confidence, *[(1 - confidence) / 2] * 2], 1)
        found += sure_from(probabilities, (draw.random(300) > 0.85).astype(int)) < 1
    assert found <= 10


def test_too_few_answers_tell_nothing():
    probabilities = np.tile([0.9, 0.05, 0.05], (19, 1))
    assert sure_from(probabilities, np.zeros(19, int)) is None
    assert sure_from(np.tile(probabilities[:1], (20, 1)), np.zeros(20, int)) == 1, "20 of 20 leave too much room"
    assert sure_from(np.tile(probabilities[:1], (40, 1)), np.zeros(40, int)) == 0
