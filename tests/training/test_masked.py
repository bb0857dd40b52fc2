"""Masked patch prediction: what is chosen, what is asked, and what the network may see."""

import numpy as np
import pytest
import torch
from shared_files import ROOT
from tiny_models import BIT, VIT, awake, images, line_of
from torch.testing import assert_close

from vitreous.errors import ConfigError
from vitreous.images.batches.batches import Batch
from vitreous.training.recipe import Recipe
from vitreous.training.run.optimizers import make
from vitreous.training.run.tasks.masked import (
    EXCHANGED,
    HIDDEN,
    KEPT,
    PATCH_TARGETS,
    UNTOUCHED,
    MaskedPatches,
    choose_patches,
    colour_classes,
    draw,
    mean_colours,
    thumbnails,
)

RECORDED = {name: value for name, value in np.load(ROOT / "tests/golden/measures/masked_patch.npz").items()}  # noqa: C416
MASKED = VIT.change(mask_token=True)


def task(target: str = "mean-colour", recipe: Recipe | None = None, **changes) -> MaskedPatches:
    return MaskedPatches(awake(MASKED, **changes), recipe or Recipe(task="masked-patches"), target)


def batch(ids, epoch: int = 0) -> Batch:
    n = len(ids)
    pixels = torch.zeros(n, 3, 16, 16, dtype=torch.uint8)
    return Batch(pixels, torch.zeros(n, dtype=torch.int64), np.asarray(ids), np.arange(n), epoch)


def extra_of(one: MaskedPatches, ids, epoch: int = 0) -> dict[str, torch.Tensor]:
    return {name: torch.from_numpy(array) for name, array in one.host(batch(ids, epoch)).items()}


# ------------------------------------------------------------------------------------------------------------- recorded


def test_colour_classes_are_those_recorded():
    x = torch.from_numpy(RECORDED["images"])
    patch = (int(RECORDED["patch"]),) * 2
    assert_close(mean_colours(x, patch), torch.from_numpy(RECORDED["patch_mean"]))
    assert torch.equal(colour_classes(mean_colours(x, patch)), torch.from_numpy(RECORDED["target_512"]))
    assert torch.equal(
        colour_classes(torch.from_numpy(RECORDED["hand_mean"])), torch.from_numpy(RECORDED["hand_index"])
    )
    small = colour_classes(thumbnails(x, patch))
    assert torch.equal(small, torch.from_numpy(RECORDED["target_4x4"]).flatten(2))


@pytest.mark.parametrize(
    ("colour", "wanted"),
    [((0.0, 0.5, 1.0), 39), ((0.124, 0.125, 0.126), 9), ((0.125, 0.25, 0.999), 87), ((1.0, 1.0, 1.0), 511)],
)
def test_colour_classes_by_hand(colour, wanted):
    assert int(colour_classes(torch.tensor(colour, dtype=torch.float64))) == wanted


def test_the_plan_is_the_one_recorded():
    kinds = choose_patches(RECORDED["u_select"], RECORDED["u_kind"], 0.5)
    np.testing.assert_array_equal(kinds, RECORDED["kind_0none_1mask_2random_3keep"])
    np.testing.assert_array_equal(kinds != UNTOUCHED, RECORDED["selected"])


# --------------------------------------------------------------------------------------------------------------- plans


@pytest.mark.parametrize("share", [0.15, 0.5, 1.0])
def test_the_count_is_exact_and_the_kinds_80_10_10(share):
    drawn = draw(0, 3, np.arange(4000), 16, share)
    count = round(share * 16)
    assert all(array.shape == (4000, count) for array in drawn.values())
    assert (np.diff(drawn["places"], axis=1) > 0).all()  # in order, none twice
    shares = [np.mean(drawn["kinds"] == kind) for kind in (HIDDEN, EXCHANGED, KEPT)]
    np.testing.assert_allclose(shares, [0.8, 0.1, 0.1], atol=0.015)
    assert UNTOUCHED not in drawn["kinds"]
    chosen = np.bincount(drawn["places"].ravel(), minlength=16) / 4000
    np.testing.assert_allclose(chosen, count / 16, atol=0.04)


def test_a_patch_is_never_exchanged_for_itself_and_all_others_come():
    drawn = draw(0, 0, np.arange(4000), 8, 1.0)
    step = (drawn["others"] - drawn["places"]) % 8
    assert set(np.unique(step)) == set(range(1, 8))


def test_masks_have_an_address():
    """Whatever stands beside a picture, in whatever order; another epoch or seed is another mask."""
    all_of_them = draw(7, 2, np.arange(20), 16, 0.5)
    some = draw(7, 2, np.array([13, 4]), 16, 0.5)
    for name, array in some.items():
        np.testing.assert_array_equal(array, all_of_them[name][[13, 4]])
    assert (draw(7, 3, np.arange(20), 16, 0.5)["places"] != all_of_them["places"]).any()
    assert (draw(8, 2, np.arange(20), 16, 0.5)["places"] != all_of_them["places"]).any()


# ---------------------------------------------------------------------------------------------------------- the network


def test_corruption_touches_the_chosen_patches_alone():
    one = task()
    x = torch.randn(1, 4, 16)
    places = torch.tensor([[0, 1, 3]])
    kinds, others = torch.tensor([[HIDDEN, EXCHANGED, KEPT]]), torch.tensor([[2, 2, 0]])
    y = one.network.corrupted(x, places, kinds, others)
    assert torch.equal(y[0, 0], one.network.vit.embedding.mask_token[0])
    assert torch.equal(y[0, 1], x[0, 2])
    assert torch.equal(y[0, 2:], x[0, 2:])


def test_nothing_of_a_hidden_patch_reaches_the_network():
    """Other pixels there change neither an answer nor a gradient; a patch that was kept does."""
    one = task()
    x = images(one.network.vit, 1)
    other = x.clone()
    other[:, :, :4, :4] += 1
    places = torch.tensor([[0, 5]])
    for kind, is_same in ((HIDDEN, True), (KEPT, False)):
        kinds, others = torch.tensor([[kind, HIDDEN]]), torch.tensor([[7, 9]])
        a, b = (one.network(image, places, kinds, others) for image in (x, other))
        assert torch.equal(a, b) == is_same


@pytest.mark.parametrize(
    "changes", [{}, {"pool": "gap"}, {"registers": 2}, {"positions": "relative"}, {"positions_at": "every-layer"}]
)
def test_untouched_patches_see_the_plain_network(changes):
    """With every chosen patch kept, tokens are those of the ViT itself."""
    one = task(**changes)
    vit = one.network.vit
    x = images(vit)
    extra = extra_of(one, [0, 1])
    extra["kinds"] = torch.full_like(extra["kinds"], KEPT)
    answers = one.network(x, **extra)
    z = vit.norm(vit.encode(vit.embedding(x, vit.grid), vit.grid))[:, vit.config.prefix :]
    rows = torch.stack([z[i, extra["places"][i]] for i in range(2)])
    assert_close(answers, one.network.predictor(rows))


@pytest.mark.parametrize("target", PATCH_TARGETS)
def test_the_loss_by_hand(target):
    one = task(target)
    x = images(one.network.vit, 3).clamp(-1, 1)
    extra = extra_of(one, [4, 5, 6])
    loss, right = one.loss(x, torch.zeros(3, 5), extra)
    answers = one.network(x, **extra)
    wanted = PATCH_TARGETS[target].of(x * 0.5 + 0.5, (4, 4))
    wanted = torch.stack([wanted[i, extra["places"][i]] for i in range(3)])
    if target == "pixels":
        assert_close(loss, (answers - wanted).square().mean())
        assert right == 0
        return
    logits = answers.reshape(-1, 512)
    by_hand = -logits.log_softmax(-1)[torch.arange(len(logits)), wanted.flatten()].mean()
    assert_close(loss, by_hand)
    assert_close(right, 3 * (logits.argmax(-1) == wanted.flatten()).float().mean())


def test_a_batch_in_parts_has_the_mean_loss_of_its_parts():
    one = task()
    x, extra = images(one.network.vit, 4), extra_of(one, range(4))
    whole = one.loss(x, torch.zeros(4, 5), extra)[0]
    parts = [one.loss(x[r], torch.zeros(2, 5), {n: t[r] for n, t in extra.items()})[0] for r in (slice(2), slice(2, 4))]
    assert_close(whole, sum(parts) / 2)


def test_grey_images_have_grey_targets():
    one = task(channels=1)
    x = torch.full((2, 1, 16, 16), 0.5)
    loss, _ = one.loss(x, torch.zeros(2, 5), extra_of(one, [0, 1]))
    assert torch.isfinite(loss)
    assert torch.unique(PATCH_TARGETS["mean-colour"].of(one.colours(x), (4, 4))).tolist() == [6 * 73]


def test_it_learns_and_every_trained_parameter_gets_a_gradient():
    """Those that the task does not read are frozen: data parallelism would wait for them."""
    torch.manual_seed(0)
    one = task()
    x = torch.rand(16, 3, 4, 4).repeat_interleave(4, 2).repeat_interleave(4, 3) * 2 - 1  # each patch of one colour
    made = make(one.network, Recipe(peak_lr=3e-3), torch.device("cpu"))
    losses = []
    for step in range(60):
        loss, _ = one.loss(x, torch.zeros(16, 5), extra_of(one, range(16), step))
        loss.backward()
        if step == 0:
            trained = {n: p.grad is not None for n, p in one.network.named_parameters() if p.requires_grad}
            assert all(trained.values()), trained
            frozen = {n for n, p in one.network.named_parameters() if not p.requires_grad}
            assert frozen == {"vit.head.weight", "vit.head.bias"}
        made.step()
        made.zero_grad()
        losses.append(loss.item())
    assert np.mean(losses[-5:]) < 0.8 * np.mean(losses[:5])


def test_finished_is_the_bare_network_with_a_zero_head():
    one = task()
    vit = one.finished()
    own = one.network.vit.state_dict()
    for name, tensor in vit.state_dict().items():
        if name.startswith("head."):
            assert torch.equal(tensor, torch.zeros_like(tensor))
        else:
            assert torch.equal(tensor, own[name])
    assert vit.embedding.mask_token is None
    assert all(p.requires_grad for p in vit.parameters())
    x = images(vit)
    assert_close(vit.eval().features(x), one.network.vit.eval().features(x))


# ------------------------------------------------------------------------------------------------------------ bad input


@pytest.mark.parametrize(
    ("model", "recipe", "words"),
    [
        (lambda: awake(BIT), Recipe(), ("patches", "S/16")),
        (lambda: awake(MASKED, stem="convolutions"), Recipe(), ("patches", "S/16")),
        (lambda: awake(VIT), Recipe(), ("mask_token=true",)),
        (lambda: awake(MASKED, channels=5), Recipe(), ("5 channels",)),
        (lambda: awake(MASKED), Recipe(masked=0.01), ("masked=0.01", "16 patches")),
    ],
    ids=["bit", "convolutions", "no mask token", "channels", "none chosen"],
)
def test_what_cannot_be_masked_is_refused(model, recipe, words):
    with pytest.raises(ConfigError) as caught:
        MaskedPatches(model(), recipe)
    line_of(caught.value, *words)


def test_an_unknown_target_is_refused():
    with pytest.raises(ConfigError) as caught:
        task("colour")
    line_of(caught.value, "'colour'", "mean-colour")
