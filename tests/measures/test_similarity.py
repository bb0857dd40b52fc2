"""Likeness of representations."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from recorded_measures import recorded
from torch.testing import assert_close

from vitreous.measures import Likeness, best_match, cka, hsic, uniformity
from vitreous.measures.similarity import ENOUGH_IMAGES, caution_of_likeness, centred_gram

GOLDEN = recorded("cka")
SEEDS = st.integers(0, 999)


def rows(n: int, p: int, seed: int) -> torch.Tensor:
    return torch.randn(n, p, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def value(name: str) -> float:
    return GOLDEN[name].item()


@pytest.mark.claim("I14")
def test_recorded_values():
    x, y = GOLDEN["x"], GOLDEN["y"]
    for a, b, name in [(x, y, "xy"), (x, x, "xx"), (y, y, "yy")]:
        assert hsic(a, b, unbiased=False) == pytest.approx(value(f"hsic_biased_{name}"), abs=1e-9)
        assert hsic(a, b) == pytest.approx(value(f"hsic1_{name}"), abs=1e-9)
    assert cka(x, y, unbiased=False) == pytest.approx(value("cka_biased_xy"), abs=1e-9)
    assert cka(x, y) == pytest.approx(value("cka_unbiased_xy"), abs=1e-9)
    assert cka(x, GOLDEN["x_rot"]) == pytest.approx(1, abs=1e-9)
    assert cka(x, GOLDEN["x_rot"], unbiased=False) == pytest.approx(1, abs=1e-9)
    assert cka(x.flip(0), y) == pytest.approx(value("x_shuffled_cka_unbiased"), abs=1e-9)
    assert hsic(x[:7], y[:7]) == pytest.approx(value("hsic1_first7_xy"), abs=1e-9)


@pytest.mark.claim("I14")
def test_hand_cases():
    assert cka(GOLDEN["hand_x"], GOLDEN["hand_y"], unbiased=False) == pytest.approx(0.2)
    x, y = GOLDEN["hand5_x"], GOLDEN["hand5_y"]
    assert hsic(x, y) == pytest.approx(-1)
    assert hsic(x, x) == pytest.approx(55 / 6)
    assert hsic(y, y) == pytest.approx(0.4)
    assert cka(x, y) == pytest.approx(-0.5222329678670927)
    assert cka(x, y, unbiased=False) == pytest.approx(0.26067423955442043)


@pytest.mark.claim("I14")
@given(SEEDS)
def test_a_rotation_a_scale_and_a_shift_change_nothing_a_linear_map_does(seed):
    x, y = rows(12, 5, seed), rows(12, 4, seed + 1)
    rotation = torch.linalg.qr(rows(5, 5, seed + 2)).Q
    for unbiased in (True, False):
        before = cka(x, y, unbiased=unbiased)
        assert cka(x, x, unbiased=unbiased) == pytest.approx(1)
        assert cka(3 * x @ rotation + 7, y, unbiased=unbiased) == pytest.approx(before, abs=1e-9)
        assert cka(x[:, torch.randperm(5)], y, unbiased=unbiased) == pytest.approx(before, abs=1e-9)
        assert cka(y, x, unbiased=unbiased) == pytest.approx(before, abs=1e-12)
        stretched = x * torch.tensor([100.0, 1, 1, 1, 1], dtype=torch.float64)
        assert abs(cka(stretched, x, unbiased=unbiased) - 1) > 1e-3
    assert 0 <= cka(x, y, unbiased=False) <= 1


@given(SEEDS, st.integers(4, 9))
def test_unbiased_hsic_is_its_closed_form(seed, n):
    """[tr(KL) + 1ᵀK1 1ᵀL1 / ((n−1)(n−2)) − 2/(n−2) 1ᵀKL1] / (n(n−3)), K and L without diagonal."""
    x, y = rows(n, 6, seed), rows(n, 3, seed + 1)
    k, gram = (each @ each.mT for each in (x, y))
    k.fill_diagonal_(0)
    gram.fill_diagonal_(0)
    both = (k @ gram).trace() + k.sum() * gram.sum() / ((n - 1) * (n - 2)) - 2 * (k @ gram).sum() / (n - 2)
    assert hsic(x, y) == pytest.approx((both / (n * (n - 3))).item(), abs=1e-9)


@pytest.mark.claim("I14")
def test_the_mean_over_minibatches_approaches_the_whole():
    """Unbiased: 64 batches of 16 give what one batch of 1,024 gives, to 0.02; biased ones would be far off."""
    x = rows(1024, 6, 0)
    y = x @ rows(6, 6, 1) + 2 * rows(1024, 6, 2)
    seen, rough = Likeness(), Likeness(unbiased=False)
    for a, b in zip(x.split(16), y.split(16), strict=True):
        seen.add({"x": a, "y": b})
        rough.add({"x": a, "y": b})
    whole = cka(x, y)
    assert seen.matrix()[0][1] == pytest.approx(whole, abs=0.02)
    assert abs(rough.matrix()[0][1] - whole) > 0.05
    assert seen.error()[0][1] < 0.03


@pytest.mark.claim("I15")
def test_recorded_minibatches_average_first_and_divide_last():
    first = {"x": GOLDEN["x"], "acts": GOLDEN["acts_3d"], "y": GOLDEN["y"]}
    matrices = {}
    for names in (["x", "acts", "y"],):
        seen = Likeness()
        for index in GOLDEN["minibatch_index"]:
            seen.add({name: first[name][index] for name in names})
        matrices["self"] = torch.tensor(seen.matrix(), dtype=torch.float64)
        own = (seen.hsic / seen.batches).diagonal()
    order = _matching(own, GOLDEN["minibatch_hsic_xx"])
    assert_close(own[order], GOLDEN["minibatch_hsic_xx"], rtol=0, atol=1e-9)
    found = matrices["self"][order][:, order]
    assert_close(found, GOLDEN["minibatch_cka_self"], rtol=0, atol=1e-9)
    others = _matching(own, GOLDEN["minibatch_hsic_yy"])
    cross = matrices["self"][order][:, others]
    assert_close(cross, GOLDEN["minibatch_cka_cross"], rtol=0, atol=1e-9)
    assert (cross - GOLDEN["minibatch_cka_wrong_mean_of_ratios"]).abs().max() > 1e-3


def _matching(own: torch.Tensor, wanted: torch.Tensor) -> list[int]:
    return [(own - each).abs().argmin().item() for each in wanted]


@pytest.mark.claim("I15")
@given(SEEDS)
def test_the_matrix_of_a_model_with_itself_is_symmetric_with_ones(seed):
    seen = Likeness()
    for batch in range(3):
        seen.add({str(i): rows(8, 4 + i, seed + 10 * batch + i) for i in range(4)})
    matrix = torch.tensor(seen.matrix())
    assert_close(matrix, matrix.mT)
    assert_close(matrix.diagonal(), torch.ones(4))


def test_layers_side_by_side_are_what_their_joined_features_are():
    parts = {str(i): rows(10, 3, i) for i in range(4)}
    seen, joined = Likeness(), Likeness()
    seen.add(parts)
    joined.add({"a": torch.cat([parts["0"], parts["2"]], 1), "b": torch.cat([parts["1"], parts["3"]], 1)})
    found = seen.joined({"a": ["0", "2"], "b": ["1", "3"]}).matrix()
    assert_close(torch.tensor(found), torch.tensor(joined.matrix()))


def test_memory_does_not_grow_with_the_images():
    seen = Likeness(groups=8)
    sizes = set()
    for batch in range(40):
        seen.add({"a": rows(6, 3, batch), "b": rows(6, 4, batch + 99)})
        sizes.add(seen.sums.numel())
    assert sizes == {8 * 2 * 2}
    assert seen.error() is not None


def test_a_constant_layer_is_named_and_never_nan():
    seen = Likeness()
    big = 1e4 * torch.randn(16, generator=torch.Generator().manual_seed(0))
    for batch in range(3):
        noise = rows(8, 16, batch).float()
        seen.add({"a": noise, "still": big.expand(8, -1), "nothing": torch.zeros(8, 4), "b": noise + big})
    assert seen.constant == ["still", "nothing"]
    matrix = seen.matrix()
    assert matrix[0][1] is None
    assert matrix[1][1] is None
    assert matrix[0][3] == pytest.approx(1, abs=1e-3)  # float32 does not drown in a large mean
    assert cka(torch.ones(8, 3), torch.randn(8, 3)) is None
    assert uniformity(matrix)["uniformity"] == pytest.approx(1, abs=1e-3)
    assert best_match(matrix)[1] == {"row": 1, "column": None, "cka": None}


def test_fewer_than_four_images_are_refused():
    with pytest.raises(ValueError, match="a batch of 3 images is too small for CKA; give 4 or more"):
        centred_gram(rows(3, 5, 0))
    with pytest.raises(ValueError, match="other layers than the batches before"):
        seen = Likeness()
        seen.add({"a": rows(4, 3, 0)})
        seen.add({"b": rows(4, 3, 0)})


def test_summaries_by_hand():
    matrix = [[1.0, 0.8, 0.2], [0.8, 1.0, 0.6], [0.2, 0.6, 1.0]]
    found = uniformity(matrix)
    assert found["uniformity"] == pytest.approx((0.8 + 0.2 + 0.6) / 3)
    assert found["low_high"] == pytest.approx(0.2)
    assert [each["column"] for each in best_match([[0.1, 0.9], [0.7, 0.2]])] == [1, 0]


def test_enough_images_are_where_a_pair_is_right_within_a_twentieth():
    """Of layers that share half of what varies, over a hundred draws; five images are several times as far off."""
    generator = torch.Generator().manual_seed(0)
    shared, own = (torch.randn(2_000, 12, generator=generator, dtype=torch.float64) for _ in range(2))
    x, y = shared, shared + 0.4 * own
    whole = cka(x, y)

    def off(images):
        draws = [torch.randperm(len(x), generator=generator)[:images] for _ in range(100)]
        return (sum((cka(x[rows], y[rows]) - whole) ** 2 for rows in draws) / len(draws)) ** 0.5

    assert off(ENOUGH_IMAGES) < 0.05 < off(5) / 2
    assert caution_of_likeness(ENOUGH_IMAGES) is None
    assert "exists from 4 images on" in caution_of_likeness(ENOUGH_IMAGES - 1)
