"""Student's t against scipy's, and what an interval promises."""

import numpy as np
import pytest
from scipy import stats

from vitreous.evaluation.student import interval_of_mean, quantile, two_sided


@pytest.mark.parametrize("freedom", [*range(1, 13), 29, 30, 100])
def test_probabilities_and_quantiles_are_those_of_scipy(freedom):
    for t in (0.0, 0.1, 1.0, 2.5, 7.0, -3.0):
        assert two_sided(t, freedom) == pytest.approx(2 * stats.t.sf(abs(t), freedom), abs=1e-12)
    for level in (0.5, 0.9, 0.95, 0.99, 0.999):
        assert quantile(level, freedom) == pytest.approx(stats.t.ppf(0.5 + level / 2, freedom), rel=1e-8)


def test_an_interval_leaves_a_value_out_exactly_where_its_p_is_below_the_level():
    values = np.array([0.5, 0.9, 1.6, 0.2])
    t = values.mean() / (values.std(ddof=1) / 2)
    p = two_sided(t, 3)
    for level in (0.5, 0.8, 0.9, 0.95, 0.99):
        low, _ = interval_of_mean(values, level)
        assert (low > 0) == (p < 1 - level)
    assert interval_of_mean([1.0]) is None
