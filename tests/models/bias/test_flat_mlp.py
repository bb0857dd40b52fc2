"""Is a ViT's MLP not the old MLP on flattened digits? The layer is the same; what counts as one item is not."""

import pytest
import torch
from torch.testing import assert_close

from .digits import (
    BLOCK_TWO,
    GLYPHS,
    PATCH,
    SIDE,
    FlatMLP,
    PatchMLP,
    accuracy_by_shift,
    digits,
    drawn,
    encoder_mlp,
    models,
)
from .measuring import apart, holds, influence, noise, randomise

GRID = (SIDE // PATCH[0], SIDE // PATCH[1])


@pytest.mark.claim("Q05")
def test_the_layer_is_the_same_and_the_item_is_not():
    """An MLP on B × N patches is the MLP on a batch of B·N items; the flat one has one item an image."""
    mlp, images = randomise(encoder_mlp(16, 64)), noise(3, SIDE, SIDE)
    patches = PatchMLP().items(images)
    assert patches.shape == (3, 16, 16)
    assert FlatMLP().items(images).shape == (3, 1, 256)
    assert_close(mlp(patches), mlp(patches.flatten(0, 1)).unflatten(0, (3, 16)), rtol=0, atol=1e-12)


@pytest.mark.claim("Q05")
def test_the_flat_mlp_is_not_local_and_the_patch_mlp_is():
    """Every output of the flat one listens to every pixel; an output of the other to its own patch alone."""
    flat, shared, image = randomise(FlatMLP()), randomise(PatchMLP()), noise(SIDE, SIDE)
    heard = torch.autograd.functional.jacobian(lambda x: flat.mlp(flat.items(x[None]))[0, 0], image)  # 256 h w
    assert (heard != 0).all()
    patches = shared.items(image[None])[0]
    assert torch.equal(influence(shared.mlp, patches), torch.eye(16, dtype=torch.bool))


@pytest.mark.claim("Q05")
def test_a_shift_by_a_patch_moves_the_patch_mlps_answers_and_scatters_the_flat_ones():
    """f(Tx) = T f(x) for whole patches, before the mean; f(Tx) = f(x) after it. One pixel, or a flat input: neither."""
    flat, shared, images = randomise(FlatMLP()), randomise(PatchMLP()), noise(2, SIDE, SIDE)

    def answers(images):  # B h w D
        return shared.mlp(shared.items(images)).unflatten(1, GRID)

    whole, pixel = images.roll(PATCH[1], 2), images.roll(1, 2)
    assert holds(apart(answers(whole), answers(images).roll(1, 2)))
    assert not holds(apart(answers(pixel), answers(images).roll(1, 2)))
    assert holds(apart(shared(whole), shared(images)))
    assert not holds(apart(shared(pixel), shared(images)))

    def pixels(images):  # B h w
        return flat.mlp(flat.items(images)).unflatten(2, (SIDE, SIDE))[:, 0]

    assert not holds(apart(pixels(whole), pixels(images).roll(PATCH[1], 2)))
    assert not holds(apart(flat(whole), flat(images)))


@pytest.mark.claim("Q05")
def test_trained_on_digits_at_one_place_only_the_patch_mlp_knows_them_a_patch_away():
    """Both know the digits where they learned them. The patch MLP's answers return, to rounding, at every
    multiple of the patch; the flat one's do not."""
    flat, shared = models()
    by_flat, by_patch = accuracy_by_shift(flat), accuracy_by_shift(shared)
    assert min(by_flat[0], by_patch[0]) > 0.95
    assert by_patch[4] == by_patch[8] == by_patch[0]
    assert max(by_flat[4], by_flat[8]) < 0.5
    assert max(by_patch[1:4]) < by_patch[0]  # between the multiples it has no law to lean on
    images, _ = digits(1, seed=3)
    assert_close(shared(images.roll((4, 8), (1, 2))), shared(images), rtol=0, atol=1e-10)


@pytest.mark.claim("Q05")
@pytest.mark.parametrize("top", range(4))
def test_a_block_two_and_a_block_five_are_one_bag_of_patches(top):
    """The price of the mean: what differs only in where the patches stand cannot be told apart by any training."""
    shared = randomise(PatchMLP())
    two, five, other = drawn([BLOCK_TWO, GLYPHS[5], GLYPHS[2]], top)
    assert not torch.equal(two, five)
    assert holds(apart(shared(two[None]), shared(five[None])))
    assert not holds(apart(shared(other[None]), shared(five[None])))
