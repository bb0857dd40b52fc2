"""Ways × shots: what an episode is, who may be in it, and what features must be to answer it."""

import json

import numpy as np
import pytest
import torch
from feature_clouds import clouds
from scipy.stats import binom
from shared_files import ROOT
from tiny_models import line_of

from vitreous.errors import VitreousError
from vitreous.evaluation.episodic import Episodes, draw, episodes, likeness, overlap, right_share
from vitreous.evaluation.ridge_regression import ridge

GOLDEN = np.load(ROOT / "tests/golden/measures/episodes.npz")


@pytest.fixture(scope="module")
def golden() -> torch.Tensor:
    """E K S+Q D"""
    places = GOLDEN["episode_classes"][:, :, None], GOLDEN["episode_items"]
    return torch.from_numpy(GOLDEN["features"][places])


@pytest.mark.claim("F06")
def test_queries_are_compared_with_the_support_as_recorded(golden):
    euclid, cosine = (right_share(golden, 3, likening=likening).numpy() for likening in ("euclid", "cosine"))
    np.testing.assert_allclose(euclid, GOLDEN["acc_euclid"], atol=1e-12)
    np.testing.assert_allclose(cosine, GOLDEN["acc_cosine"], atol=1e-12)
    found = Episodes(euclid, 5, 3, 4, "prototypes", "euclid", 0)
    assert found.mean == pytest.approx(GOLDEN["mean_euclid"], abs=1e-12)
    assert found.half_width == pytest.approx(GOLDEN["ci95_euclid"], abs=1e-12)


def test_ridge_is_the_published_probe_on_the_support(golden):
    found = right_share(golden, 3, by="ridge", l2=16.0)
    y, truth = np.repeat(np.arange(5), 3), np.repeat(np.arange(5), 4)
    for episode, share in zip(golden.numpy(), found, strict=True):
        probe = ridge(episode[:, :3].reshape(15, -1), y, 5, l2=16.0)
        assert probe.right(episode[:, 3:].reshape(20, -1), truth) / 20 == pytest.approx(float(share))


def test_the_nearest_sample_by_hand():
    """Two classes in a ring: the mean of the outer lies in the inner, so samples are right and prototypes are not."""
    x = torch.tensor([[[[-10.0], [10.0], [-9.0], [9.0]], [[-1.0], [1.5], [1.0], [-1.0]]]])  # 1 2 S=2+Q=2 1
    assert right_share(x, 2, by="nearest").item() == 1
    assert right_share(x, 2, by="prototypes").item() < 1


@pytest.mark.claim("F06")
@pytest.mark.parametrize("by", ["prototypes", "nearest", "ridge"])
@pytest.mark.parametrize("likening", ["euclid", "cosine"])
def test_separable_features_are_all_right_and_random_ones_are_chance(by, likening):
    y = np.arange(200) % 8
    exact = episodes(np.eye(8)[y], y, ways=5, shots=2, queries=5, count=50, by=by, likening=likening)
    assert exact.mean == 1
    noise = np.random.default_rng(0).normal(size=(200, 16))
    blind = episodes(
        noise, np.random.default_rng(1).permutation(y), ways=5, shots=1, queries=5, count=200, by=by, likening=likening
    )
    # queries of one set overlap between episodes, so the binomial interval of a tenth of them
    low, high = binom.interval(0.999, 500, 0.2)
    assert low / 500 <= blind.mean <= high / 500


@pytest.mark.claim("F02", "F03")
def test_what_an_episode_is():
    """Over 1000 episodes: `ways` classes, no row twice, support and query apart, all of the class they stand for."""
    y = np.random.default_rng(0).integers(0, 12, 400)
    y[::17] = -1
    found = draw(y, ways=5, shots=3, queries=4, count=1000, seed=3)
    assert found.shape == (1000, 5, 7)  # ways · shots support items, and ways · queries queries
    assert len({tuple(row) for row in found.reshape(1000, -1)}) == 1000
    labels = y[found]
    assert (labels == labels[:, :, :1]).all()
    assert (labels >= 0).all()
    assert all(len(set(row)) == 5 for row in labels[:, :, 0].tolist())
    assert all(len(set(row)) == 35 for row in found.reshape(1000, -1).tolist())


@pytest.mark.claim("F02")
def test_an_episode_depends_on_the_seed_and_its_number_alone():
    y = np.arange(120) % 6
    few, many = (draw(y, ways=3, shots=1, queries=5, count=n, seed=7) for n in (10, 200))
    np.testing.assert_array_equal(few, many[:10])
    assert not np.array_equal(few, draw(y, ways=3, shots=1, queries=5, count=10, seed=8))
    assert np.bincount(y[many[:, :, 0]].ravel()).min() > 60  # no class is forgotten


@pytest.mark.claim("F02")
def test_trained_classes_are_left_out_and_overlap_is_told():
    x, y = clouds(200, 6, 5)
    names = ["ant", "bee", "cat", "dog", "eel"]
    found = episodes(x, y, ways=3, queries=5, count=20, classes=names, known=["ant", "eel"])
    assert found.notes == ("2 of 5 classes were trained on and left out: ant, eel",)
    with pytest.raises(VitreousError) as error:
        episodes(x, y, ways=4, queries=5, classes=names, known=["ant", "eel"])
    line_of(error.value, "3 classes for 4 ways")
    assert overlap(names, names[:2]) == "all"  # supervised: what is asked about was trained on
    assert overlap(names[:2], names[2:]) == "none"  # few-shot
    assert overlap(names[:2], names[1:]) == "some"


def test_more_shots_are_better_and_more_ways_are_worse():
    x, y = clouds(600, 10, 10, apart=0.6)
    shots = [episodes(x, y, shots=s, count=300).mean for s in (1, 5, 20)]
    ways = [episodes(x, y, ways=w, count=300).mean for w in (2, 5, 10)]
    assert shots == sorted(shots)
    assert ways == sorted(ways, reverse=True)


def test_it_tells_people_and_programs_the_same():
    x, y = clouds(200, 6, 5)
    found = episodes(x, y, count=50)
    body = json.loads(json.dumps(found.to_json()))
    assert (body["ways"], body["shots"], body["episodes"], body["chance"]) == (5, 1, 50, 0.2)
    assert body["interval"][0] <= body["mean"] <= body["interval"][1]
    assert f"{100 * found.mean:.1f} %" in str(found)
    assert found.above_chance == pytest.approx((found.mean - 0.2) / 0.8)
    assert "5 ways" in found._repr_html_()


# Likeness


def test_likeness_is_the_mean_over_pairs():
    x, y = clouds(30, 5, 3)
    unit = x / np.linalg.norm(x, axis=1, keepdims=True)
    cosine, same = unit @ unit.T, y[:, None] == y
    found = likeness(x, y)
    assert found.within == pytest.approx(cosine[same & ~np.eye(30, dtype=bool)].mean())
    assert found.between == pytest.approx(cosine[~same].mean())
    assert found.gap > 0
    assert likeness(x + 100, y, is_centred=True).gap == pytest.approx(likeness(x, y, is_centred=True).gap)


# What is lacking


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"shots": 30, "queries": 15}, ["30 shots and 15 queries need 45 rows", "class 0 (40)"]),
        ({"ways": 6}, ["5 classes for 6 ways"]),
        ({"ways": 1}, ["ways=1", "2 or more"]),
        ({"queries": 0}, ["queries=0"]),
        ({"count": 1}, ["count=1"]),
        ({"by": "magic"}, ["by='magic'"]),
        ({"l2": 0}, ["l2 of 0"]),
        ({"known": ["ant"]}, ["give classes="]),
    ],
)
def test_what_makes_no_episode_is_one_line(given, words):
    x, y = clouds(200, 6, 5)
    with pytest.raises(VitreousError) as error:
        episodes(x, y, **given)
    line_of(error.value, *words)


def test_features_that_are_no_numbers_are_one_line():
    x, y = clouds(200, 6, 5)
    x[30, 2] = np.inf
    with pytest.raises(VitreousError) as error:
        episodes(x, y)
    assert line_of(error.value, "row 30").startswith("features are not finite")


def test_likeness_of_nothing_is_one_line():
    for x, y, word in [(np.zeros((4, 2)), [0, 0, 1, 1], "zeros"), (np.eye(3), [0, 1, 2], "two rows of one")]:
        with pytest.raises(VitreousError) as error:
            likeness(x, np.array(y))
        line_of(error.value, word)


def test_unless_told_otherwise_there_are_600_of_them():
    x, y = clouds(60, 4, 5)
    assert len(episodes(x, y, ways=3, queries=4).accuracy) == 600
