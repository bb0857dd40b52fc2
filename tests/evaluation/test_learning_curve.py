"""The learning curve: nested parts, the law through them, and what it may promise."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from feature_clouds import clouds
from shared_files import ROOT
from tiny_models import line_of

from vitreous.errors import VitreousError
from vitreous.evaluation.learning_curve import Curve, PowerLaw, curve, nested_rows, power_law
from vitreous.evaluation.ridge_regression import ridge

GOLDEN = np.load(ROOT / "tests/golden/measures/transferability.npz")


def test_the_recorded_law_is_found():
    found = power_law(GOLDEN["powerlaw_n"], GOLDEN["powerlaw_err"])
    np.testing.assert_allclose([found.a, found.b, found.c], GOLDEN["powerlaw_abc"], rtol=1e-6)
    np.testing.assert_allclose(found.error(GOLDEN["powerlaw_n"]), GOLDEN["powerlaw_err"], atol=1e-9)


def test_a_law_without_a_floor_and_a_flat_one():
    n = np.array([50, 100, 200, 400, 800])
    bare = power_law(n, 2 * n**-0.5)
    assert (bare.a, bare.b, bare.c) == (
        pytest.approx(2, rel=1e-4),
        pytest.approx(0.5, rel=1e-4),
        pytest.approx(0, abs=1e-4),
    )
    flat = power_law(n, np.full(5, 0.3))
    np.testing.assert_allclose(flat.error(n), 0.3, atol=1e-6)
    nothing = power_law(n, np.zeros(5))  # nothing is wrong
    assert nothing.error(1600) == pytest.approx(0, abs=1e-9)


def test_rows_for_an_error_are_those_at_which_it_is_reached():
    law = PowerLaw(4, 0.35, 0.05)
    assert law.error(law.rows_for(0.1)) == pytest.approx(0.1)
    assert law.rows_for(0.05) == math.inf
    assert PowerLaw(1, 1e-9, 0).rows_for(0.001) == math.inf


def test_every_beginning_is_stratified():
    y = np.repeat([0, 1, 2], [100, 50, 10])
    order = nested_rows(y, 0)
    assert sorted(order) == list(range(160))
    assert set(y[order[:3]]) == {0, 1, 2}
    for size in (16, 32, 80):
        counts = np.bincount(y[order[:size]], minlength=3)
        np.testing.assert_allclose(counts, size * np.array([100, 50, 10]) / 160, atol=2)
    assert not np.array_equal(order, nested_rows(y, 1))


@pytest.fixture(scope="module")
def found() -> Curve:
    x, y = clouds(640, 24, 5, apart=0.35)
    test_x, test_y = clouds(2000, 24, 5, seed=1, apart=0.35)
    return curve(x, y, test_x, test_y, 5, seeds=3)


def test_each_point_is_the_probe_of_its_rows(found):
    x, y = clouds(640, 24, 5, apart=0.35)
    test_x, test_y = clouds(2000, 24, 5, seed=1, apart=0.35)
    assert found.sizes == (10, 20, 40, 80, 160, 320, 640)
    for seed in range(3):
        order = nested_rows(y, seed)
        for i, size in enumerate(found.sizes):
            rows = order[:size]
            assert found.error[i, seed] == pytest.approx(1 - ridge(x[rows], y[rows], 5).right(test_x, test_y) / 2000)


def test_few_rows_of_many_classes_make_smaller_steps():
    x, y = clouds(60, 8, 12)
    assert curve(x, y, x, y, 12, seeds=1).sizes == (24, 33, 44, 60)
    with pytest.raises(VitreousError, match="36 rows of 12 classes make 1 sizes"):
        curve(x[:36], y[:36], x, y, 12)


def test_the_law_tells_what_more_rows_bring(found):
    """A law from 640 rows meets what 5120 rows really give, within its interval and a little."""
    x, y = clouds(5120, 24, 5, apart=0.35)
    test_x, test_y = clouds(2000, 24, 5, seed=1, apart=0.35)
    really = ridge(x, y, 5).right(test_x, test_y) / 2000
    told, low, high = found.expected(5120)
    assert low <= told <= high
    assert low - 0.02 <= really <= high + 0.02
    for name in "abc":
        low, high = found.interval(name)
        assert low <= getattr(found.law, name) * 1.05 + 1e-3
        assert getattr(found.law, name) <= high * 1.05 + 1e-3


def test_labels_needed_are_told_or_refused(found):
    now = 1 - float(found.error[-1].mean())
    near = found.needed(now - 0.02)
    assert near.is_believed
    assert near.low <= near.images <= 2 * found.sizes[-1]
    assert "training images" in str(near)
    never = found.needed(0.999)
    assert not never.is_believed
    assert never.to_json()["images"] is None
    assert "not in reach of 6,400 images" in str(never)


def test_it_tells_people_and_programs_the_same(found):
    body = json.loads(json.dumps(found.to_json()))
    assert [row["images"] for row in body["curve"]] == list(found.sizes)
    assert body["with_twice_the_images"]["accuracy"] == found.expected(1280)[0]
    assert "twice as many" in str(found)
    assert "<pre>" in found._repr_html_()


def test_what_these_images_do_not_tell_is_not_promised(found):
    ends = np.linspace(0, 0.5, len(found.redrawn))
    wild = tuple(PowerLaw(law.a, law.b, float(c)) for law, c in zip(found.redrawn, ends, strict=True))
    assert "however many: not known (" in str(replace(found, redrawn=wild))


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"sizes": (10, 20, 40)}, ["3 sizes", "needs 4"]),
        ({"sizes": (2, 4, 8, 16)}, ["from 2 to 16", "5 (one a class) to 80"]),
        ({"sizes": (10, 20, 40, 81)}, ["from 10 to 81"]),
        ({"seeds": 0}, ["seeds=0"]),
        ({"y": np.full(80, -1)}, ["fewer than 2 classes"]),
        ({"test_y": np.full(80, -1)}, ["no labelled test rows"]),
    ],
)
def test_what_makes_no_curve_is_one_line(given, words):
    x, y = clouds(80, 6, 5)
    with pytest.raises(VitreousError) as error:
        curve(**{"x": x, "y": y, "test_x": x, "test_y": y, "classes": 5} | given)
    line_of(error.value, *words)


def test_promises_beyond_the_curve_are_refused(found):
    for call, word in [
        (lambda: found.expected(10_000), "10,000 images are beyond"),
        (lambda: found.needed(1.0), "accuracy of 1.0"),
        (lambda: power_law([1, 2, 3], [0.1, 0.1, 0.1]), "3 sizes are too few"),
        (lambda: power_law([1, 2, 3, 4], [0.1, 0.1, 0.1, np.nan]), "finite"),
    ]:
        with pytest.raises(VitreousError) as error:
            call()
        line_of(error.value, word)
