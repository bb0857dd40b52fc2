"""An inductive bias in its plainest form: a support vector machine takes, of all lines that separate, the widest."""

import numpy as np
import pytest
from scipy.optimize import minimize


def widest_line(points, sides):
    """min ½‖w‖² with side · (w·x + b) ≥ 1 for every point: the hard-margin machine, solved as it is written."""

    def enough(v):
        return sides * (points @ v[:2] + v[2]) - 1

    answer = minimize(
        lambda v: 0.5 * v[:2] @ v[:2],
        x0=np.zeros(3),
        jac=lambda v: np.array([*v[:2], 0.0]),
        constraints={
            "type": "ineq",
            "fun": enough,
            "jac": lambda v: sides[:, None] * np.c_[points, np.ones(len(points))],
        },
        method="SLSQP",
        options={"ftol": 1e-14, "maxiter": 500},
    )
    assert answer.success
    return answer.x[:2], answer.x[2]


def margin(w, b, points, sides):
    """Distance from the line to the nearest point; below zero where a point lies on the wrong side."""
    return (sides * (points @ w + b)).min() / np.linalg.norm(w)


def distance_of_hulls(points, sides):
    """The shortest way from one class's convex hull to the other's: the same question asked from the other end."""
    signed = sides[:, None] * points

    def length(shares):
        return 0.5 * np.sum((shares @ signed) ** 2)

    start = np.where(sides > 0, 1 / (sides > 0).sum(), 1 / (sides < 0).sum())
    whole = [{"type": "eq", "fun": lambda a, side=side: a[sides == side].sum() - 1} for side in (1, -1)]
    answer = minimize(
        length,
        start,
        jac=lambda a: signed @ (a @ signed),
        bounds=[(0, None)] * len(points),
        constraints=whole,
        method="SLSQP",
        options={"ftol": 1e-15, "maxiter": 1000},
    )
    assert answer.success
    return np.sqrt(2 * length(answer.x))


@pytest.fixture
def clouds():
    draw = np.random.default_rng(0)
    points = np.concatenate([draw.normal((2, 1), 0.7, (12, 2)), draw.normal((-2, -1), 0.7, (12, 2))])
    return points, np.repeat([1.0, -1.0], 12)


@pytest.mark.claim("M52")
@pytest.mark.parametrize("pair", [((3, 1), (-1, 2)), ((0, 0), (0, 5)), ((-2.5, 4), (7, -1))])
def test_between_two_points_the_line_is_their_perpendicular_bisector(pair):
    points, sides = np.array(pair, float), np.array([1.0, -1.0])
    w, b = widest_line(points, sides)
    across = points[0] - points[1]
    np.testing.assert_allclose(w / np.linalg.norm(w), across / np.linalg.norm(across), atol=1e-6)  # perpendicular
    np.testing.assert_allclose(points.mean(0) @ w + b, 0, atol=1e-6)  # through the middle
    np.testing.assert_allclose(margin(w, b, points, sides), np.linalg.norm(across) / 2, rtol=1e-6)


@pytest.mark.claim("M52")
def test_among_many_separating_lines_the_fitted_one_has_the_largest_margin(clouds):
    """Every direction round the circle, each with its own best offset; then the bound that no line at all can pass."""
    points, sides = clouds
    best = margin(*widest_line(points, sides), points, sides)
    separators = []
    for angle in np.linspace(0, 2 * np.pi, 3600, endpoint=False):
        w = np.array([np.cos(angle), np.sin(angle)])
        along = points @ w
        low, high = along[sides > 0].min(), along[sides < 0].max()
        if low > high:
            separators.append(margin(w, -(low + high) / 2, points, sides))
    assert len(separators) > 500
    assert max(separators) <= best + 1e-9
    assert max(separators) > 0.9999 * best  # the search did come near it
    assert best == pytest.approx(distance_of_hulls(points, sides) / 2, rel=1e-5)


@pytest.mark.claim("M52")
def test_the_assumption_decides_where_the_data_do_not(clouds):
    """Another line that separates the same points answers otherwise on points never seen: the bias made the choice."""
    points, sides = clouds
    w, b = widest_line(points, sides)
    other, offset = np.zeros(2), 0.0
    for _ in range(100):  # a perceptron stops at the first line that separates
        for x, side in zip(points, sides, strict=True):
            if side * (x @ other + offset) <= 0:
                other, offset = other + side * x, offset + side
    assert margin(other, offset, points, sides) > 0
    assert margin(other, offset, points, sides) < margin(w, b, points, sides)
    unseen = np.random.default_rng(1).uniform(-4, 4, (4000, 2))
    assert 0 < np.mean((unseen @ w + b > 0) != (unseen @ other + offset > 0)) < 0.5
