"""Where a ViT is told that its input is a picture: cutting patches and interpolating positions, nowhere else."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.testing import assert_close

from vitreous.models.positions import resize_positions
from vitreous.models.vit import ViT, patchify, unpatchify

from . import places
from .layers import tiny_vit
from .measuring import GRID, PLACES, any_order, apart, holds, influence, noise

PATCH = (4, 4)
SIZE = (PATCH[0] * GRID[0], PATCH[1] * GRID[1])


def relabelled(model: ViT, order: Tensor) -> ViT:
    """The same model, its patch positions in another order; the class token's is left alone."""
    model = copy.deepcopy(model)
    positions = model.embedding.positions
    with torch.no_grad():
        positions.table[positions.covered :] = positions.table[positions.covered :][order]
    return model


def shuffled(images: Tensor, order: Tensor) -> Tensor:
    return unpatchify(patchify(images, PATCH)[:, order], PATCH, SIZE)


@pytest.mark.claim("M54", "M62", "C15")
@pytest.mark.parametrize("changes", [{}, {"pool": "gap"}, {"registers": 2}], ids=str)
def test_patches_relabelled_together_with_their_positions_give_the_same_function(changes):
    """Any order of the patches is as good as the raster; positions left behind give another function."""
    model, images = tiny_vit(**changes), noise(3, 3, *SIZE)
    for seed in range(3):
        order = any_order(PLACES, seed)
        moved = shuffled(images, order)
        assert_close(relabelled(model, order)(moved), model(images), rtol=0, atol=1e-10)
        assert not holds(apart(model(moved), model(images)))


@pytest.mark.claim("M62")
def test_training_cannot_tell_the_raster_from_another_order_either():
    """Gradients are the same, those of the positions in the new order: the two models stay one function."""
    model, images, order = tiny_vit(), noise(3, 3, *SIZE), any_order(PLACES)
    other, classes = relabelled(model, order), torch.tensor([0, 3, 1])
    F.cross_entropy(model(images), classes).backward()
    F.cross_entropy(other(shuffled(images, order)), classes).backward()
    ours, theirs = ({n: p.grad for n, p in m.named_parameters()} for m in (model, other))
    table = ours.pop("embedding.positions.table")
    moved = theirs.pop("embedding.positions.table")
    assert_close(moved, torch.cat([table[:1], table[1:][order]]), rtol=0, atol=1e-10)
    assert_close(theirs, ours, rtol=0, atol=1e-10)


@pytest.mark.claim("M62", "C15")
def test_the_same_patches_on_another_grid_are_the_same_input():
    """12 patches as 2 × 6 or as 3 × 4: the weights of one model fit the other and the answers are equal."""
    flat, tall = tiny_vit(grid=(2, 6)), tiny_vit(grid=(3, 4))
    tall.load_state_dict(flat.state_dict())
    images = noise(2, 3, 8, 24)
    assert_close(tall(unpatchify(patchify(images, PATCH), PATCH, (12, 16))), flat(images), rtol=0, atol=1e-12)


@pytest.mark.claim("M62", "C15")
def test_interpolation_is_where_the_raster_order_begins_to_matter():
    """At a new resolution a relabelled table does not become a relabelled new table: neighbours are blended."""
    table, new = tiny_vit().embedding.positions.table.detach(), (9, 11)
    fresh = resize_positions(table, GRID, new, prefix=1)
    other = resize_positions(torch.cat([table[:1], table[1:][any_order(PLACES)]]), GRID, new, prefix=1)
    nearest = torch.cdist(other[1:], fresh[1:]).amin(1)
    assert (nearest > 0.1).double().mean() > 0.5
    assert torch.equal(other[0], fresh[0])


@pytest.mark.claim("M62", "C15")
def test_every_place_that_knows_row_and_column_is_listed():
    assert {place for place in places.found() if places.line_of(place) is None} == set()
    assert {places.line_of(place) for place in places.found()} == set(places.KNOWN)  # and no line is out of date


NEW_PLACES = {
    "an index": "def f(grid): return grid[1]",
    "an unpacking": "def f(self):\n    a, b = self.grid\n    return a",
    "a pair of unpackings": "def f(size, patch):\n    (a, b), (c, d) = size, patch\n    return a",
    "a loop": "def f(where: Size): return [n + 1 for n in where]",
    "a star": "def f(x, patch): return x.reshape(-1, *patch)",
    "two axes": "def f(x):\n    h, w = x.shape[-2:]\n    return h",
    "a word": "def f(x, column): return x[column]",
    "a convolution": "class A:\n    def f(self, x): return F.conv2d(x, self.kernel)",
    "a map's axes": "def f(x): return x.mean((2, 3))",
}


@pytest.mark.claim("C15")
@pytest.mark.parametrize("source", NEW_PLACES.values(), ids=NEW_PLACES)
def test_a_new_place_would_be_found(source, tmp_path):
    (tmp_path / "new.py").write_text(source)
    assert len(places.found(tmp_path)) == 1


@pytest.mark.claim("C15")
def test_handing_a_grid_on_is_no_knowledge(tmp_path):
    (tmp_path / "new.py").write_text("def f(self, z, grid, w):\n    return self.positions(z @ w, grid)")
    assert places.found(tmp_path) == set()


@pytest.mark.claim("M62", "C15")
def test_of_these_the_default_model_runs_only_cutting_and_at_a_new_size_interpolation():
    """Watched while it is built, while it answers, and while it answers at another resolution."""
    knowing = places.found()
    built = places.run_by(tiny_vit) & knowing
    assert built == {"config.as_size", "hybrid.cut", "vit.Embedding.__init__", "positions.LearnedPositions.__init__"}
    model = tiny_vit(dynamic_image_size=True)
    own = places.run_by(lambda: model(noise(1, 3, *SIZE))) & knowing
    assert own == {"vit.ViT.grid_of", "vit.patchify"}
    new = places.run_by(lambda: model(noise(1, 3, 32, 40))) & knowing
    assert new == own | {"hybrid.cut", "positions.resize_positions", "positions._aligned_bilinear"}
    assert {places.KNOWN[place] for place in own | new} == {places.CUT, places.RESIZE}


@pytest.mark.claim("M63")
def test_making_the_input_one_dimensional_loses_nothing():
    images = noise(2, 3, *SIZE)
    assert torch.equal(unpatchify(patchify(images, PATCH), PATCH, SIZE), images)


@pytest.mark.claim("M63")
def test_a_vertical_neighbour_stands_a_row_away_in_the_sequence():
    """Patch k + w is the one below patch k; patch k + 1 the one beside it."""
    row, column, patches = 2, 3, patchify(noise(1, 3, *SIZE), PATCH)[0]
    k = row * GRID[1] + column
    cut = noise(1, 3, *SIZE).unflatten(2, (-1, 4)).unflatten(4, (-1, 4))[0]  # C h P w P
    for index, place in ((k + GRID[1], (row + 1, column)), (k + 1, (row, column + 1))):
        assert torch.equal(patches[index], cut[:, place[0], :, place[1]].flatten())


@pytest.mark.claim("M63")
def test_all_neighbours_are_equally_reachable():
    """One block joins every pair, and a patch's answer stays when the one beside it and the one below it change places:
    nearness is not assumed, neither in the sequence nor in the picture."""
    block, x = tiny_vit(positions="none").blocks[0], noise(PLACES, 8)

    def f(x):
        return block(x[None])[0]

    assert influence(f, x).all()
    k = 2 * GRID[1] + 3
    exchanged = torch.arange(PLACES)
    exchanged[[k + 1, k + GRID[1]]] = exchanged[[k + GRID[1], k + 1]]
    assert_close(f(x[exchanged])[k], f(x)[k], rtol=0, atol=1e-12)
