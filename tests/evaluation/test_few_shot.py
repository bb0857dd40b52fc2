"""The closed-form probe: equal to the published one, to a plain float64 one, and to itself by every road."""

import json

import numpy as np
import pytest
import torch
from feature_clouds import clouds
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import t
from shared_files import ROOT
from tiny_models import line_of

from vitreous.errors import VitreousError
from vitreous.evaluation.few_shot import choose_shots, fewshot, mean_interval
from vitreous.evaluation.ridge_regression import Ridge, count_right, decompose, nested_ridges, ridge
from vitreous.evaluation.tie_breaking import TIE_FLOAT64

GOLDEN = np.load(ROOT / "tests/golden/measures/fewshot_ridge.npz")


def plain(x, y, k, l2):
    """B11 as it is written, by normal equations alone."""
    mean, std = x.mean(0), x.std(0) + 1e-5
    z = np.concatenate([(x - mean) / std, np.full((len(x), 1), 100.0)], 1)
    t = 2 * np.eye(k)[y] - 1
    return np.linalg.solve(z.T @ z + l2 * np.eye(z.shape[1]), z.T @ t), mean, std


def scores(weight, mean, std, x):
    return np.concatenate([(x - mean) / std, np.full((len(x), 1), 100.0)], 1) @ weight


# One probe


@pytest.mark.claim("F08")
@pytest.mark.parametrize("form", ["auto", "primal", "dual"])
@pytest.mark.parametrize("l2", [1024, 1])
@pytest.mark.parametrize(("case", "k"), [("nlt", 3), ("ngt", 4)])
def test_it_is_the_published_probe(case, k, l2, form):
    """n < D and n > D, primal and dual: weights, scores and accuracy of the authors' functions."""
    x, y, test_x, test_y = (GOLDEN[f"{case}_{name}"] for name in ("x", "y", "xt", "yt"))
    found = ridge(x, y, k, l2=l2, form=form)
    np.testing.assert_allclose(found.weight, GOLDEN[f"{case}_l2_{l2}_w"], rtol=0, atol=1e-12)
    np.testing.assert_allclose(found.scores(test_x), GOLDEN[f"{case}_l2_{l2}_scores"], rtol=0, atol=1e-11)
    np.testing.assert_allclose(found.mean, GOLDEN[f"{case}_mean"], atol=1e-12)
    np.testing.assert_allclose(found.std, GOLDEN[f"{case}_std"], atol=1e-12)
    assert (found.answers(test_x) == GOLDEN[f"{case}_l2_{l2}_pred"]).all()
    assert found.right(test_x, test_y) / len(test_y) == GOLDEN[f"{case}_l2_{l2}_acc"]
    shared = decompose(x, y, k, form=form).at(l2)
    np.testing.assert_allclose(shared.weight, GOLDEN[f"{case}_l2_{l2}_w"], rtol=0, atol=1e-12)


def test_the_case_by_hand():
    found = ridge(np.array([[0.0], [2.0]]), np.array([0, 1]), 2, l2=2)
    np.testing.assert_allclose(found.weight, [[-0.5, 0.5], [0, 0]], atol=3e-11)
    np.testing.assert_allclose(found.std, GOLDEN["hand_std"])


@pytest.mark.claim("F08")
@pytest.mark.parametrize("n", [20, 200])
def test_answers_equal_an_independent_one(n):
    x, y = clouds(n, 40, 5)
    test_x, _ = clouds(500, 40, 5, seed=1)
    for l2 in (1024.0, 0.5):
        weight, mean, std = plain(x, y, 5, l2)
        found = ridge(x, y, 5, l2=l2)
        np.testing.assert_allclose(found.weight, weight, atol=1e-9)
        assert (found.answers(test_x) == scores(weight, mean, std, test_x).argmax(1)).all()


def test_units_and_shifts_of_a_feature_do_not_matter():
    """Up to the 1e-5 that every deviation gets."""
    x, y = clouds(60, 8, 3)
    scale, shift = 10.0 ** np.arange(-1, 7), np.arange(8) * 100.0
    np.testing.assert_allclose(
        ridge(x * scale + shift, y, 3).scores(x * scale + shift), ridge(x, y, 3).scores(x), atol=1e-4
    )


@pytest.mark.parametrize("n", [6, 60])
def test_a_constant_feature_becomes_zero(n):
    x, y = clouds(n, 8, 3)
    x[:, 2] = 0.1
    for l2 in (1024.0, 2.0**-10):
        found = ridge(x, y, 3, l2=l2)
        assert np.isfinite(found.weight).all()
        np.testing.assert_allclose(found.weight[2], 0, atol=1e-9)
        rest = np.delete(np.arange(8), 2)
        np.testing.assert_allclose(found.scores(x), ridge(x[:, rest], y, 3, l2=l2).scores(x[:, rest]), atol=1e-8)


def test_a_very_stiff_probe_asks_for_the_nearest_mean():
    """l2 → ∞: W → ZᵀT / l2, class sums; with equal classes the order is that of the projections on class means."""
    x, y = clouds(40, 6, 4)
    z = (x - x.mean(0)) / (x.std(0) + 1e-5)
    means = np.stack([z[y == c].mean(0) for c in range(4)])
    assert (ridge(x, y, 4, l2=1e12).answers(x) == (z @ means.T).argmax(1)).all()


def test_half_precision_rows_are_lifted():
    x, y = clouds(60, 8, 3)
    low = x.astype(np.float16)
    np.testing.assert_array_equal(ridge(low, y, 3).weight, ridge(low.astype(np.float64), y, 3).weight)


# Leaving out


@pytest.mark.parametrize(("n", "d"), [(24, 40), (60, 8)])
@pytest.mark.parametrize("form", ["primal", "dual"])
def test_leaving_one_out_equals_refitting(n, d, form):
    """n probes fitted without their row, in one formula; mean and deviation stay those of all rows."""
    x, y = clouds(n, d, 3)
    z = np.concatenate([(x - x.mean(0)) / (x.std(0) + 1e-5), np.full((n, 1), 100.0)], 1)
    t = 2 * np.eye(3)[y] - 1
    for l2 in (1024.0, 0.5):
        found = decompose(x, y, 3, form=form).left_out(l2)
        for i in range(n):
            rest = np.delete(np.arange(n), i)
            weight = np.linalg.solve(z[rest].T @ z[rest] + l2 * np.eye(d + 1), z[rest].T @ t[rest])
            np.testing.assert_allclose(found[i], z[i] @ weight, atol=1e-6)


@pytest.mark.parametrize(("n", "d"), [(24, 40), (60, 8)])
def test_copies_are_left_out_together(n, d):
    x, y = clouds(n, d, 3)
    groups = np.arange(n) // 2 * 2
    found = decompose(x, y, 3).left_out(2.0, groups)
    z = np.concatenate([(x - x.mean(0)) / (x.std(0) + 1e-5), np.full((n, 1), 100.0)], 1)
    t = 2 * np.eye(3)[y] - 1
    for i in range(0, n, 2):
        rest = np.flatnonzero(groups != i)
        weight = np.linalg.solve(z[rest].T @ z[rest] + 2.0 * np.eye(d + 1), z[rest].T @ t[rest])
        np.testing.assert_allclose(found[[i, i + 1]], z[[i, i + 1]] @ weight, atol=1e-6)
    alone = decompose(x, y, 3)
    np.testing.assert_allclose(alone.left_out(2.0, np.arange(n)), alone.left_out(2.0), atol=1e-9)


@given(
    st.integers(12, 60),
    st.integers(1, 30),
    st.integers(1, 12),
    st.sampled_from(["primal", "dual"]),
    st.sampled_from([0.5, 64.0, 1e4]),
    st.integers(0, 2**32 - 1),
)
def test_groups_of_every_size_are_left_out_as_one_after_the_other_by_the_formula(n, d, kinds, form, l2, seed):
    """T − (I − H)_gg⁻¹ (T − H T)_g for each group by itself; small, equal and larger than there are features."""
    draw = np.random.default_rng(seed)
    x, y, groups = draw.normal(size=(n, d)), np.arange(n) % 3, 7 * draw.integers(0, kinds, n) - 5
    groups[groups == -5] = 10**6 + np.arange(n)[groups == -5]  # some alone
    z = np.concatenate([(x - x.mean(0)) / (x.std(0) + 1e-5), np.full((n, 1), 100.0)], 1)
    t = 2 * np.eye(3)[y] - 1
    rest = np.eye(n) - z @ np.linalg.solve(z.T @ z + l2 * np.eye(d + 1), z.T)
    wanted = np.empty_like(t)
    for group in np.unique(groups):
        here = np.flatnonzero(groups == group)
        wanted[here] = t[here] - np.linalg.solve(rest[np.ix_(here, here)], (rest @ t)[here])
    np.testing.assert_allclose(decompose(x, y, 3, form=form).left_out(l2, groups), wanted, atol=1e-6)


def test_half_of_very_many_rows_is_left_out_with_as_many_equations_as_features():
    """By rows they would be 200,000 equations: 320 GB."""
    x, y = clouds(400_000, 3, 2)
    half = np.arange(len(x)) % 2
    parts = decompose(x, y, 2)
    found = parts.left_out(64.0, half)
    z = np.concatenate([parts.rows.numpy(), np.full((len(x), 1), 100.0)], 1)
    t = 2 * np.eye(2)[y] - 1
    for here, rest in ((half == 0, half == 1), (half == 1, half == 0)):
        weight = np.linalg.solve(z[rest].T @ z[rest] + 64.0 * np.eye(4), z[rest].T @ t[rest])
        np.testing.assert_allclose(found[here], z[here] @ weight, atol=1e-6)


def test_a_copy_among_the_rows_flatters_unless_left_out_too():
    random = np.random.default_rng(0)
    x, y = random.normal(size=(30, 50)), random.integers(0, 2, 30)
    x, y, groups = np.repeat(x, 2, 0), np.repeat(y, 2), np.repeat(np.arange(30), 2)
    parts = decompose(x, y, 2)
    alone, together = ((parts.left_out(1.0, g).argmax(1) == y).mean() for g in (None, groups))
    assert alone == 1
    assert together < 0.8


def test_of_several_penalties_leaving_out_chooses():
    x, y = clouds(60, 30, 3, apart=0.4)
    l2s = (0.01, 10.0, 1e3, 1e6)
    parts = decompose(x, y, 3)
    right = [(parts.left_out(l2).argmax(1) == y).sum() for l2 in l2s]
    best = max(range(4), key=lambda i: (right[i], l2s[i]))
    found = ridge(x, y, 3, l2=l2s)
    assert found.l2 == l2s[best]
    np.testing.assert_allclose(found.weight, ridge(x, y, 3, l2=l2s[best]).weight, atol=1e-10)


# Growing sets, many probes


def test_probes_on_growing_sets_are_those_of_each_set():
    """Moments are added up; no number of a smaller set is left behind. Far from zero, too."""
    x, y = clouds(90, 12, 3)
    x = 1e3 + x * np.logspace(-2, 2, 12)
    x[:30, 4] = 7.0  # constant in the first sets alone
    parts = [np.arange(6), np.arange(6, 30), np.arange(30, 90)]
    for l2s in ((1024.0,), (1024.0, 1.0, 2.0**-10)):
        for step, probes in enumerate(nested_ridges(x, y, 3, parts, l2s)):
            rows = np.concatenate(parts[: step + 1])
            for l2, found in zip(l2s, probes, strict=True):
                alone = decompose(x[rows], y[rows], 3).at(l2)
                np.testing.assert_allclose(found.scores(x), alone.scores(x), atol=1e-6, rtol=1e-6)


def test_counts_are_those_of_float64_where_float32_would_err():
    """Two classes whose weights differ by less than float32 can hold; no two scores differ by rounding alone."""
    random = np.random.default_rng(0)
    weight = np.ones((65, 3))
    weight[:-1] += 2e-8 * random.uniform(-1, 1, (64, 3))
    weight[-1] = 0
    probe = Ridge(weight, np.zeros(64), np.ones(64), 1.0)
    x = random.normal(size=(1000, 64)).astype(np.float32)
    ordered = np.sort(probe.scores(x), 1)
    x = x[ordered[:, 2] - ordered[:, 1] > 4 * TIE_FLOAT64 * np.abs(ordered).max(1)]
    assert len(x) > 500
    exact = probe.scores(x).argmax(1)
    assert (probe.answers(x) == exact).all()
    assert set(np.unique(exact)) == {0, 1, 2}
    assert (weight[:-1].astype(np.float32) == 1).all()
    assert count_right([probe, probe], x, exact) == [len(x)] * 2


def test_outliers_and_dead_features_do_not_mislead_the_count():
    """A feature that never changed in train may be anything in test; one row may lie far away."""
    x, y = clouds(40, 8, 3)
    x[:, 3] = 5.0
    test_x, test_y = clouds(500, 8, 3, seed=1)
    test_x[:, 3] = 1e6 * np.arange(500)
    test_x[7] *= 1e9
    test_x[8] *= 1e60  # beyond float32
    probes = [ridge(x[:n], y[:n], 3) for n in (4, 12, 40)]
    assert count_right(probes, test_x, test_y) == [probe.right(test_x, test_y) for probe in probes]


# The protocol


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("shots", [1, 5])
def test_shots_are_drawn_as_the_authors_draw_them(seed, shots):
    """Also where a class has fewer than asked: 17 rows of 4 classes, 5 shots."""
    found = choose_shots(GOLDEN["select_labels"], 4, shots, seed)
    np.testing.assert_array_equal(found, GOLDEN[f"select_idx_seed{seed}_shots{shots}"])


@pytest.mark.claim("F08")
def test_every_cell_is_the_probe_of_its_own_rows():
    """All shots and seeds solved together give what each gives alone, below and above n = D."""
    x, y = clouds(300, 20, 6, apart=0.5)
    test_x, test_y = clouds(400, 20, 6, seed=1, apart=0.5)
    found = fewshot(x, y, test_x, test_y, 6, shots=(1, 2, 5, 25), seeds=(0, 7), l2=(1024.0, 4.0))
    for i, l2 in enumerate(found.l2s):
        for j, shots in enumerate(found.shots):
            for r, seed in enumerate(found.seeds):
                rows = choose_shots(y, 6, shots, seed)
                weight, mean, std = plain(x[rows], y[rows], 6, l2)
                answers = scores(weight, mean, std, test_x).argmax(1)
                assert found.right[i, j, r] == (answers == test_y).sum()
                assert found.taken[j] == len(rows)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
def test_on_a_gpu_the_same():
    x, y = clouds(300, 20, 6, apart=0.5)
    test_x, test_y = clouds(400, 20, 6, seed=1, apart=0.5)
    for l2 in (1024.0, (1024.0, 4.0)):
        here, there = (fewshot(x, y, test_x, test_y, 6, l2=l2, device=device) for device in ("cpu", "cuda"))
        np.testing.assert_array_equal(here.right, there.right)
    groups = np.arange(300) // 2
    for g in (None, groups):
        np.testing.assert_allclose(
            decompose(x, y, 6, device="cuda").left_out(4.0, g), decompose(x, y, 6).left_out(4.0, g), atol=1e-8
        )


def test_more_shots_are_better_and_labels_without_meaning_are_chance():
    x, y = clouds(600, 16, 5, apart=0.7)
    test_x, test_y = clouds(1000, 16, 5, seed=1, apart=0.7)
    found = fewshot(x, y, test_x, test_y, 5)
    means = [found.mean(s) for s in found.shots]
    assert means == sorted(means)
    low, high = found.interval(25)
    assert low <= found.mean(25) <= high
    noise = fewshot(x, y, test_x, np.random.default_rng(3).permutation(test_y), 5)
    assert abs(noise.mean(25) - 0.2) < 0.05


def test_it_tells_people_and_programs_the_same():
    x, y = clouds(40, 6, 4)
    found = fewshot(x, y, x, y, 4, shots=(5, 1), seeds=2)
    body = json.loads(json.dumps(found.to_json()))
    assert [row["shots"] for row in body["few_shot"]] == [1, 5]
    assert body["few_shot"][0]["right"] == found.right[0, 0].tolist()
    assert f"{100 * found.mean(5):.1f} %" in str(found)
    assert "<table>" in found._repr_html_()
    assert fewshot(x, y, x, y, 4, seeds=1).interval(1) is None


def test_of_penalties_that_are_equally_right_the_largest_is_taken():
    """Clouds so far apart that every row is right under each when it is left out."""
    x, y = clouds(40, 6, 4, apart=20.0)
    l2s = (1024.0, 1.0, 32.0)
    parts = decompose(x, y, 4)
    assert all((parts.left_out(l2).argmax(1) == y).all() for l2 in l2s)
    assert ridge(x, y, 4, l2=l2s).l2 == 1024


def test_the_interval_of_a_mean():
    assert mean_interval(np.array([0.4, 0.5, 0.6])) == pytest.approx(
        (0.5 - 4.30265 * 0.1 / 3**0.5, 0.5 + 4.30265 * 0.1 / 3**0.5)
    )
    assert mean_interval(np.array([0.4])) is None


def test_the_interval_has_one_degree_of_freedom_less_than_there_are_numbers():
    """Student's t, however many numbers there are."""
    for count in [*range(2, 33), 60, 200]:
        values = 0.5 + 0.01 * np.sin(np.arange(count))
        low, high = mean_interval(values)
        scale = values.std(ddof=1) / count**0.5
        assert (low + high) / 2 == pytest.approx(values.mean())
        assert (high - low) / 2 / scale == pytest.approx(t.ppf(0.975, count - 1), rel=1e-6)


# What is lacking


def test_short_absent_and_unjudged_classes_are_named():
    x, y = clouds(40, 6, 4)
    y = np.where(y == 3, -1, y)  # no shot of the last
    y[np.flatnonzero(y == 2)[3:]] = -1  # three of the third
    test_y = np.array([0, 0, 2, 3])
    found = fewshot(x, y, x[:4], test_y, ["ant", "bee", "cat", "dog"], shots=(1, 5))
    assert found.notes == (
        "dog: no training images, so never right",
        "5 shots: fewer images of cat (3); all of them were taken",
        "bee: no test images, so not judged",
    )
    assert found.taken == (3, 13)
    assert found.classes == 3
    assert found.images == 4


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"x": np.zeros((8, 3, 2))}, ["(8, 3, 2)", "N x D"]),
        ({"x": np.full((8, 3), np.nan)}, ["not finite, first in row 0"]),
        ({"x": np.ones((8, 3))}, ["same in every row", "another tap"]),
        ({"y": np.zeros(8, int)}, ["fewer than 2 classes"]),
        ({"y": np.arange(8)}, ["from 0 to 7", "2 classes"]),
        ({"y": np.zeros((8, 2), int)}, ["(8, 2)", "several"]),
        ({"y": np.zeros(7, int)}, ["8 train rows and 7 labels"]),
        ({"test_x": np.zeros((8, 4))}, ["3 numbers", "4"]),
        ({"test_y": np.full(8, -1)}, ["no labelled test rows"]),
        ({"test_x": np.zeros((0, 3)), "test_y": np.zeros(0, int)}, ["no labelled test rows"]),
        ({"shots": ()}, ["shots []"]),
        ({"shots": (0, 1)}, ["shots [0, 1]"]),
        ({"seeds": 0}, ["seeds 0"]),
        ({"l2": 0.0}, ["l2 of 0.0", "above 0"]),
        ({"l2": ()}, ["l2 of ()"]),
    ],
)
def test_what_cannot_be_judged_is_one_line(change, words):
    y = np.arange(8) % 2
    given = {"x": np.eye(8)[:, :3], "y": y, "test_x": np.eye(8)[:, :3], "test_y": y, "classes": 2} | change
    with pytest.raises(VitreousError) as error:
        fewshot(**given)
    line_of(error.value, *words)


def test_a_probe_refuses_other_rows_and_unknown_forms():
    x, y = clouds(10, 3, 2)
    for call, word in [
        (lambda: ridge(x, y, 2).scores(x[:, :2]), "do not fit a probe of 3"),
        (lambda: ridge(x, y, 2, form="other"), "no form 'other'"),
        (lambda: decompose(x, y, 2).left_out(1.0, np.zeros(3, int)), "groups of 3 rows and 10 rows"),
        (lambda: fewshot(x, y, x, y, 2).mean(3), "shots 3"),
    ]:
        with pytest.raises(VitreousError) as error:
            call()
        line_of(error.value, word)


@pytest.mark.claim("F08")
def test_the_published_penalty_is_what_nobody_need_ask_for():
    """1,024, in big_vision's fewshot_lsr: the answers without a word are those with it."""
    x, y = clouds(60, 6, 3)
    plain, asked, other = (ridge(x, y, 3, **options) for options in ({}, {"l2": 1024.0}, {"l2": 10.0}))
    np.testing.assert_array_equal(plain.scores(x), asked.scores(x))
    assert abs(plain.scores(x) - other.scores(x)).max() > 1e-3
