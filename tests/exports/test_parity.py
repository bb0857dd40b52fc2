"""The gate: what passes, what fails and in which words."""

import math

import numpy as np
import pytest

from vitreous.exports.parity import TOLERANCES, AccuracyChange, FormComparison, Parity, compare


def parity(*forms, precision="float32", **rest):
    return Parity("onnx", precision, "some images", forms, TOLERANCES[precision], **rest)


def test_equal_outputs_differ_by_nothing():
    x = np.random.default_rng(0).normal(size=(7, 5))
    assert compare("tensor", x, x) == FormComparison("tensor", 7, 0.0, 1.0)


def test_a_difference_is_of_the_largest_logit_where_that_is_above_one():
    ours = np.array([[200.0, 0.0]])
    assert compare("tensor", ours + np.array([[0.02, 0]]), ours).difference == pytest.approx(1e-4)
    assert compare("tensor", ours / 400 + np.array([[0.02, 0]]), ours / 400).difference == pytest.approx(0.02)


def test_what_is_no_number_never_passes():
    found = compare("tensor", np.array([[math.nan, 0.0]]), np.array([[1.0, 0.0]]))
    assert not parity(found, precision="int8").passed


@pytest.mark.parametrize(
    ("found", "fault"),
    [
        (parity(FormComparison("tensor", 100, 2e-4, 1.0)), "tensor form: max difference 2.0e-04, above 1e-04"),
        (parity(FormComparison("image", 100, 2e-4, 0.98)), "image form: 98.0 % the same answer, below 99 %"),
        (parity(grey_levels=1.5), "preprocessing: a pixel is 1.50 grey levels off, above 1"),
        (
            parity(accuracy=AccuracyChange(1000, 751, 740), precision="int8"),
            "accuracy 75.1 % -> 74.0 % on 1,000 images: falls by 1.1 points, above 1",
        ),
        (
            parity(accuracy=AccuracyChange(1000, 751, 740, "they were learned from"), precision="int8"),
            "accuracy falls by 1.1 points on 1,000 images, above 1",
        ),
        (
            parity(FormComparison("tensor", 1000, 3.0, 0.94), precision="int8"),
            "tensor form: 94.0 % the same answer, below 95 %",
        ),
    ],
)
def test_each_fault_is_one_line(found, fault):
    assert found.faults == [fault]
    assert not found.passed
    assert f"fault: {fault}" in str(found)


@pytest.mark.parametrize(
    ("after", "line"),
    [
        (55, "accuracy is unchanged on 60 images; all are known"),
        (54, "accuracy falls by 1.7 points on 60 images; all are known"),
        (57, "accuracy rises by 3.3 points on 60 images; all are known"),
    ],
)
def test_of_images_that_are_not_new_the_change_alone_is_told(after, line):
    found = parity(accuracy=AccuracyChange(60, 55, after, "all are known"))
    assert f"  {line}\n" in f"{found}\n"
    assert "91.7 %" not in str(found)
    assert found.to_json()["accuracy"]["caution"] == "all are known"


def test_what_lies_within_the_limits_passes():
    good = parity(
        FormComparison("tensor", 1000, 3.0, 0.967),
        accuracy=AccuracyChange(1000, 751, 745),
        grey_levels=1.0,
        precision="int8",
    )
    assert good.passed
    assert good.to_json()["passed"] is True
    assert "<pre>" in good._repr_html_()
    assert parity(FormComparison("image", 20, 0.1, 0.95)).passed  # one image of a few may lie on the edge
