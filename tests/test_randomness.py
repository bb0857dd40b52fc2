"""A draw depends on its address alone."""

import numpy as np
import pytest

from vitreous import randomness

BITS = [[2167795056737664334, 1075417899389055261], [699385933185861376, 5607071386859379164]]
ORDER = [5, 2, 1, 4, 6, 0, 7, 3]


def test_a_sample_draws_the_same_alone_and_in_any_company():
    together = randomness.uniform(7, "crop", 3, np.arange(1000), 5)
    order = randomness.permutation(1, "order", 0, 1000)
    assert (randomness.uniform(7, "crop", 3, order, 5) == together[order]).all()
    assert (randomness.uniform(7, "crop", 3, [613], 5)[0] == together[613]).all()
    assert (randomness.uniform(7, "crop", 3, np.arange(1000), 2) == together[:, :2]).all()


@pytest.mark.parametrize("other", [(8, "crop", 3), (7, "flip", 3), (7, "crop", 4), (-7, "crop", 3)])
def test_another_address_draws_something_unrelated(other):
    here, there = (randomness.uniform(*address, np.arange(20_000))[:, 0] for address in ((7, "crop", 3), other))
    assert abs(np.corrcoef(here, there)[0, 1]) < 0.03


def test_draws_are_uniform_and_independent_of_their_neighbours():
    x = randomness.uniform(0, "test", 0, np.arange(100_000), 3)
    assert ((x >= 0) & (x < 1)).all()
    for column in x.T:
        counts = np.histogram(column, 100, (0, 1))[0]
        assert ((counts - 1000) ** 2 / 1000).sum() < 160  # χ² with 99 degrees: p about 1e-4
    assert abs(np.corrcoef(x[:-1, 0], x[1:, 0])[0, 1]) < 0.015
    assert abs(np.corrcoef(x[:, 0], x[:, 1])[0, 1]) < 0.015


def test_integers_reach_every_value_and_no_other():
    found = randomness.integers(3, "pick", 0, np.arange(5000), below=7)
    assert (np.bincount(found[:, 0], minlength=7) > 600).all()
    assert found.max() == 6


def test_an_order_holds_everything_once_and_changes_with_the_epoch():
    first, second = (randomness.permutation(5, "order", epoch, 500) for epoch in (0, 1))
    assert (np.sort(first) == np.arange(500)).all()
    assert (first != second).mean() > 0.9
    assert (first == randomness.permutation(5, "order", 0, 500)).all()


def test_values_do_not_change_between_versions():
    """A resumed run, and a published one, would not repeat."""
    assert randomness.bits(0, "crop", 0, [0, 1], 2).tolist() == BITS
    assert randomness.permutation(0, "order", 0, 8).tolist() == ORDER
