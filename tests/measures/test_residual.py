"""What goes by the skip and what by the branch; and models without it."""

import pytest
import torch
from picture_sets import arrays
from recorded_measures import recorded
from tiny_models import BIT, awake, images
from torch.testing import assert_close

import vitreous
from vitreous.measures import cut_contrast, early_logits, shifted, skip_cosine, skip_ratio
from vitreous.measures.figures import draw
from vitreous.measures.residual import as_tokens
from vitreous.report.marks import Words

GOLDEN = recorded("skip_ratio")


@pytest.mark.claim("I16")
def test_recorded_ratios():
    exact = {"rtol": 0, "atol": 1e-12}
    ratio = skip_ratio(GOLDEN["z"], GOLDEN["f"])
    assert_close(ratio, GOLDEN["ratio"], **exact)
    assert_close(ratio.mean(0), GOLDEN["per_token_mean"], **exact)
    assert_close(ratio[:, 0].mean(), GOLDEN["cls_mean"], **exact)
    assert_close(ratio[:, 1:].mean(), GOLDEN["patch_mean"], **exact)
    assert_close(skip_ratio(GOLDEN["hand_z"], GOLDEN["hand_f"]), GOLDEN["hand_ratio"], **exact)
    with_branch, with_sum = skip_cosine(GOLDEN["z"], GOLDEN["f"])
    assert_close(with_branch, GOLDEN["cos_skip_vs_branch"], **exact)
    assert_close(with_sum, GOLDEN["cos_skip_vs_output"], **exact)


@pytest.mark.claim("I16")
def test_the_taps_of_a_half_block_are_the_two_sides_of_its_sum():
    model = awake()
    names = ["skip1", "attention.output", "residual1", "skip2", "mlp.output", "output"]
    with torch.inference_mode(), vitreous.taps(model, [f"blocks.1.{name}" for name in names]) as seen:
        model(images(model))
    z, f, whole, z2, f2, out = (seen[f"blocks.1.{name}"] for name in names)
    assert_close(z + f, whole)
    assert_close(z2 + f2, out)
    assert skip_ratio(z, f).shape == (2, 17)  # each token of each image
    assert skip_ratio(z2, f2).shape == (2, 17)


@pytest.mark.claim("I16")
def test_a_resnet_has_it_at_every_place():
    model = awake(BIT)
    with torch.inference_mode(), vitreous.taps(model, ["stages.0.units.0.skip", "stages.0.units.0.branch"]) as seen:
        model(images(model))
    skip, branch = seen["stages.0.units.0.skip"], seen["stages.0.units.0.branch"]
    ratio = skip_ratio(as_tokens(skip), as_tokens(branch))
    assert ratio.shape == (2, skip.shape[2] * skip.shape[3])
    assert_close(ratio[1, 3], skip[1, :, 0, 3].norm() / branch[1, :, 0, 3].norm())


def test_a_branch_that_adds_nothing_has_no_ratio():
    assert skip_ratio(torch.ones(1, 2, 4), torch.zeros(1, 2, 4)).isnan().all()


@pytest.mark.parametrize("changes", [{"registers": 2}, {"pool": "gap", "class_token": False}], ids=str)
def test_the_class_token_is_marked_on_the_axis_of_tokens(changes):
    """The others go by their number among all tokens."""
    found = vitreous.look(awake(**changes), arrays(4, side=16), only=["skip-ratio"])
    (figure,) = draw(found)["skip-ratio", 0]
    words = [mark.text for mark in figure.panels[-1].chart.marks if isinstance(mark, Words)]
    has_class = changes.get("class_token", True)
    assert ("class" in words, "token; the first is the class token" in words) == (has_class, has_class)
    assert ("2" if has_class else "1") in words


def test_the_lens_at_the_end_is_the_answer():
    for changes in (
        {},
        {"pool": "gap"},
        {"pool": "map"},
        {"pool_order": "mean-first", "pool": "gap"},
        {"norm": "post"},
    ):
        model = awake(**changes)
        with torch.inference_mode(), vitreous.taps(model, "blocks.1.output") as seen:
            answer = model(images(model))
        with torch.inference_mode():
            assert_close(early_logits(model, seen["blocks.1.output"]), answer)


def test_a_cut_shows_as_two_squares():
    split = [[1.0, 0.9, 0.1, 0.1], [0.9, 1.0, 0.1, 0.1], [0.1, 0.1, 1.0, 0.9], [0.1, 0.1, 0.9, 1.0]]
    assert cut_contrast(split, 2) == pytest.approx(-0.8)
    assert cut_contrast([[0.5] * 4] * 4, 2) == pytest.approx(0)
    assert cut_contrast(split, 0) is None


def test_a_shift_moves_the_picture_and_repeats_its_edge():
    x = torch.arange(12.0).reshape(1, 1, 2, 6)
    assert torch.equal(shifted(x, 0), x)
    assert shifted(x, 2)[0, 0, 0].tolist() == [0, 0, 0, 1, 2, 3]
    assert torch.equal(shifted(shifted(x, 1), 1), shifted(x, 2))
    with pytest.raises(ValueError, match="a shift of 6 pixels leaves nothing of 6"):
        shifted(x, 6)
