"""Folds for cross-validation: every picture is judged once, by a model that saw neither it nor its twins."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from picture_sets import arrays, photos

from vitreous.errors import DataError
from vitreous.images.splits import folds


def alone(n: int, labels=None, groups=None):
    data = arrays(n, 8)
    data = data if labels is None else replace(data, labels=np.asarray(labels))
    return replace(data, groups=np.arange(n) if groups is None else np.asarray(groups))


@given(st.lists(st.integers(0, 4), min_size=10, max_size=60), st.integers(2, 5), st.integers(0, 9))
def test_classes_are_spread_evenly(labels, count, seed):
    """Single pictures: the folds of a class differ by at most one; those of all by at most one for each class."""
    found = folds(alone(len(labels), labels), count, seed)
    assert set(found.tolist()) <= set(range(count))
    for c in set(labels):
        sizes = np.bincount(found[np.array(labels) == c], minlength=count)
        assert sizes.max() - sizes.min() <= 1
    sizes = np.bincount(found, minlength=count)
    assert sizes.max() - sizes.min() <= 1


@given(st.lists(st.integers(0, 12), min_size=20, max_size=60), st.integers(2, 4))
def test_groups_are_never_torn(groups, count):
    first = [groups.index(g) for g in groups]
    if len(set(first)) < count:
        return
    found = folds(alone(len(groups), groups=first), count)
    for g in set(first):
        assert len(set(found[np.array(first) == g].tolist())) == 1
    assert len(set(found.tolist())) == count


def test_the_seed_decides_and_the_order_of_the_files_does_not():
    data = alone(60)
    found = folds(data, 5, seed=3)
    assert (folds(data, 5, seed=3) == found).all()
    assert (folds(data, 5, seed=4) != found).any()
    order = np.random.default_rng(0).permutation(60)
    assert (folds(data.take(order), 5, seed=3) == found[order]).all()


def test_copies_are_found_and_stay_together():
    data = photos(24)
    data.source.files[20] = data.source.files[3]
    data = replace(data, labels=np.zeros(24, np.int64))
    found = folds(data, 4)
    assert found[20] == found[3]
    assert np.bincount(found).tolist() == [6, 6, 6, 6]


def test_several_labels_count_by_the_rarest():
    labels = np.zeros((30, 3), np.int64)
    labels[:, 0] = 1
    labels[:5, 2] = 1
    found = folds(alone(30, labels), 5)
    assert sorted(found[:5].tolist()) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("count", "words"), [(1, "folds=1 splits nothing"), (2.5, "folds=2.5"), (7, "too few for 7 folds")]
)
def test_folds_that_make_no_sense_are_refused(count, words):
    with pytest.raises(DataError, match=words):
        folds(alone(6), count)
