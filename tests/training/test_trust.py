"""From which confidence answers are trusted: the promise holds on new images, not only on those that chose it."""

import numpy as np
import pytest
from PIL import Image

import vitreous
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


def test_copies_count_as_one_answer():
    """Forty right answers to copies of two images promise nothing; to forty images they do."""
    probabilities, labels = np.tile([0.9, 0.05, 0.05], (40, 1)), np.zeros(40, int)
    assert sure_from(probabilities, labels, np.arange(40)) == sure_from(probabilities, labels) == 0
    assert sure_from(probabilities, labels, np.arange(40) // 20) == 1


@pytest.fixture(scope="module")
def one_series(tmp_path_factory):
    """Two classes of different images, and a third that is one image twenty times."""
    folder, draw = tmp_path_factory.mktemp("one"), np.random.default_rng(0)
    for name, count, colour in (("circle", 24, [1, 1, 0.2]), ("square", 24, [1, 0, 0.2]), ("triangle", 20, [0, 1, 1])):
        (folder / name).mkdir()
        pixels = (draw.integers(0, 256, (count, 8, 8, 3)) * colour).astype(np.uint8).repeat(4, 1).repeat(4, 2)
        for image in pixels[:1].repeat(20, 0) if name == "triangle" else pixels:
            Image.fromarray(image).save(folder / name / f"{draw.integers(10**9)}.png")
    return folder


@pytest.mark.usefixtures("own_cache")
def test_a_class_of_copies_is_told_and_no_line_promises_more_than_the_page_shows(one_series, tmp_path):
    run = vitreous.fit(one_series, weights="starter", recipe="linear-probe", out=tmp_path / "run", workers=0)
    (third,) = [row for row in run.metrics["judged"]["classes"] if row["name"] == "triangle"]
    assert run.metrics["judged_by"] == "leave-one-out"
    assert (third["right"], run.metrics["of_one_group"]) == (0, ["triangle"])
    above = run.metrics["above"]
    assert above is None or above["right"] >= 0.9 * above["answered"]
    low, high = run.metrics["judged"]["interval"]
    assert high - low > 0.25, "twenty copies count as one image"
    weakest = next(line for line in str(run).splitlines() if line.startswith("weakest"))
    assert "its images are copies or one series" in weakest
    assert "All images of triangle were left out together" in (tmp_path / "run" / "report.html").read_text()
