"""Taking positions to another grid, the sin-cos waves, and answers recorded from other people's code."""

from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

from vitreous.errors import ConfigError
from vitreous.models.catalog import blueprint, build, parse
from vitreous.models.positions import RESIZE_METHODS, resize_line, resize_positions, sincos_2d
from vitreous.models.vit import patchify

GOLDEN = Path(__file__).parents[1] / "golden"
RULES = sorted(RESIZE_METHODS)
GRIDS = [((3, 4), (5, 7)), ((4, 4), (2, 8)), ((6, 2), (3, 5)), ((3, 3), (9, 9)), ((2, 3), (1, 4)), ((4, 3), (5, 1))]
sides = st.tuples(st.integers(1, 6), st.integers(1, 6))


def table_of(grid, width=3, prefix=0):
    return torch.randn(prefix + grid[0] * grid[1], width, dtype=torch.float64)


def linear_field(grid, origin=(0.0, 0.0), step=(1.0, 1.0)):
    """1 + 2·row − 3·column at each place, row by row; places `step` apart, the first at `origin`."""
    rows, columns = (o + s * torch.arange(n, dtype=torch.float64) for n, o, s in zip(grid, origin, step, strict=True))
    return (1 + 2 * rows[:, None] - 3 * columns).flatten()[:, None]


@pytest.mark.claim("T10")
def test_at_a_higher_resolution_the_patch_stays_and_the_sequence_grows():
    """384 px in patches of 16: 577 tokens; every other tensor keeps its shape."""
    low, high = (blueprint(parse("B/16").change(image_size=size)) for size in (224, 384))
    assert low.embedding.positions.table.shape[0] == 197
    assert high.embedding.positions.table.shape[0] == 577
    before, after = (dict(m.named_parameters()) for m in (low, high))
    assert before.keys() == after.keys()
    assert {name for name in before if before[name].shape != after[name].shape} == {"embedding.positions.table"}


@pytest.mark.claim("T10")
def test_on_the_way_to_another_size_no_other_weight_moves(make):
    """A model run at another size is the model built there with the resized table and otherwise its own weights."""
    low = make(dynamic_image_size=True)
    high = make(image_size=(24, 20))
    state = low.state_dict()
    state["embedding.positions.table"] = resize_positions(state["embedding.positions.table"], (3, 4), (6, 5), prefix=1)
    high.load_state_dict(state)
    x = torch.randn(2, 3, 24, 20, dtype=torch.float64)
    assert_close(low(x), high(x), rtol=0, atol=1e-10)


@pytest.mark.claim("T11")
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("prefix", [0, 1, 5])
def test_at_the_same_size_nothing_happens(rule, prefix):
    table = table_of((3, 4), prefix=prefix)
    assert torch.equal(resize_positions(table, (3, 4), (3, 4), prefix=prefix, rule=rule), table)


@pytest.mark.claim("T11")
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize(("old", "new"), GRIDS)
def test_tokens_in_front_are_left_alone(rule, old, new):
    """The class token's row is bit-equal, and the rest does not depend on it."""
    table = table_of(old, prefix=2)
    resized = resize_positions(table, old, new, prefix=2, rule=rule)
    assert resized.shape == (2 + new[0] * new[1], 3)
    assert torch.equal(resized[:2], table[:2])
    assert torch.equal(resized[2:], resize_positions(table[2:], old, new, rule=rule))


@pytest.mark.claim("T11")
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize(("old", "new"), GRIDS)
def test_a_constant_field_stays_constant(rule, old, new):
    table = torch.full((old[0] * old[1], 2), 0.7, dtype=torch.float64)
    resized = resize_positions(table, old, new, rule=rule)
    assert_close(resized, torch.full((new[0] * new[1], 2), 0.7, dtype=torch.float64), rtol=0, atol=1e-10)


@pytest.mark.claim("T11")
@given(sides, sides)
def test_the_papers_rule_reproduces_linear_fields(old, new):
    """Bilinear, corners kept: on any two rectangles f(row, column) = a + b·row + c·column goes to itself."""
    step = tuple((o - 1) / max(n - 1, 1) for o, n in zip(old, new, strict=True))
    resized = resize_positions(linear_field(old), old, new, rule="paper")
    assert_close(resized, linear_field(new, step=step), rtol=0, atol=1e-10)


@pytest.mark.claim("T11")
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize(("old", "new"), GRIDS)
def test_rows_stay_rows(rule, old, new):
    """Turning the picture and resizing is resizing and turning it: tables are read row by row on any rectangle."""

    def turned(table, grid):
        return table.unflatten(0, grid).transpose(0, 1).flatten(0, 1)

    table = table_of(old)
    one = resize_positions(turned(table, old), old[::-1], new[::-1], rule=rule)
    assert_close(one, turned(resize_positions(table, old, new, rule=rule), new), rtol=0, atol=1e-10)


@pytest.mark.claim("T11")
@pytest.mark.parametrize("rule", RULES)
def test_what_changes_along_rows_only_still_does(rule):
    """Row-major: a field of columns alone has no rows after resizing either."""
    table = torch.arange(4.0).double().expand(3, 4).reshape(12, 1)
    resized = resize_positions(table, (3, 4), (5, 7), rule=rule).view(5, 7)
    assert_close(resized, resized[:1].expand(5, -1), rtol=0, atol=1e-10)
    assert (resized[0].diff() > 0.1).all()


@pytest.mark.claim("T11")
@pytest.mark.parametrize("rule", RULES)
def test_grids_of_equal_count_are_told_apart(rule):
    """2 x 8 and 4 x 4 have 16 places each, and other places."""
    table = table_of((2, 8))
    resized = resize_positions(table, (2, 8), (4, 4), rule=rule)
    assert resized.shape == table.shape
    assert (resized - table).abs().max() > 0.1
    if rule in ("paper", "torchvision"):  # corners are kept
        corners = [0, 7, 8, 15], [0, 3, 12, 15]
        assert_close(resized[corners[1]], table[corners[0]], rtol=0, atol=1e-10)


@pytest.mark.claim("T11")
def test_the_papers_rule_is_bilinear_with_aligned_corners():
    """torch's own, in float64, growing and shrinking."""
    for old, new in GRIDS:
        if 1 in new:
            continue  # torch reads a single output elsewhere; scipy at the first entry, and so do we
        field = torch.randn(1, 3, *old, dtype=torch.float64)
        theirs = F.interpolate(field, new, mode="bilinear", align_corners=True)
        ours = resize_positions(field[0].flatten(1).T, old, new)
        assert_close(ours, theirs[0].flatten(1).T, rtol=0, atol=1e-10)
    assert torch.equal(resize_line(torch.arange(5.0), 1), torch.zeros(1))


@pytest.mark.parametrize("rule", RULES)
def test_resizing_is_linear_and_gradients_reach_the_table(rule):
    table = table_of((3, 4)).requires_grad_()
    resize_positions(table, (3, 4), (6, 8), rule=rule).sum().backward()
    assert table.grad.abs().min() > 0


@pytest.mark.parametrize("rule", RULES)
def test_a_half_precision_table_is_resized_in_float32_and_handed_back_in_its_own(rule):
    table = table_of((3, 4)).bfloat16()
    resized = resize_positions(table, (3, 4), (5, 6), rule=rule)
    assert resized.dtype == torch.bfloat16
    assert torch.equal(resized, resize_positions(table.float(), (3, 4), (5, 6), rule=rule).bfloat16())


def cubic_weights(old, new):
    """timm's rule on a line, by its formula: a = −0.5, stretched when shrinking, taps outside dropped, sum 1."""
    scale = old / new
    x = ((torch.arange(old).double() + 0.5) - (torch.arange(new).double()[:, None] + 0.5) * scale).abs() / max(scale, 1)
    near, far = 1.5 * x**3 - 2.5 * x**2 + 1, -0.5 * x**3 + 2.5 * x**2 - 4 * x + 2
    weights = torch.where(x < 1, near, torch.where(x < 2, far, 0.0))
    return weights / weights.sum(1, keepdim=True)


@given(sides, sides)
def test_timms_rule_is_a_separable_cubic(old, new):
    """On every rectangle, single rows and columns too (where torch's own kernel slips)."""
    table = table_of(old)
    rows, columns = cubic_weights(old[0], new[0]), cubic_weights(old[1], new[1])
    expected = torch.einsum("ih,jw,hwd->ijd", rows, columns, table.unflatten(0, old)).flatten(0, 1)
    assert_close(resize_positions(table, old, new, rule="timm"), expected, rtol=0, atol=1e-10)


def test_an_unknown_rule_is_named():
    with pytest.raises(ConfigError, match="position_resize 'cubic' is not one of paper, timm"):
        resize_positions(table_of((2, 2)), (2, 2), (3, 3), rule="cubic")


# Recorded from the sources' own code; tolerances as in the manifest beside the recordings.

OFFICIAL = [  # old side, new side, rows in front
    (3, 5, 1), (4, 7, 1), (7, 12, 1), (7, 3, 1), (14, 24, 1), (5, 9, 0), (4, 4, 1),
]  # fmt: skip
TIMM = [  # old, new, rows in front, rule
    (0, (3, 3), (5, 5), 1, "timm"),
    (1, (4, 4), (7, 7), 1, "timm"),
    (2, (7, 7), (3, 3), 1, "timm"),
    (3, (3, 4), (5, 6), 0, "timm"),
    (4, (14, 14), (24, 24), 1, "timm"),
    (5, (6, 6), (4, 9), 5, "timm"),
    (8, (4, 4), (7, 7), 1, "huggingface"),
    (9, (7, 7), (3, 3), 1, "huggingface"),
]


@pytest.mark.parametrize("i", range(len(OFFICIAL)))
def test_the_official_codes_resize(i):
    arrays, (old, new, prefix) = np.load(GOLDEN / "posresize_official" / "arrays.npz"), OFFICIAL[i]
    ours = resize_positions(torch.from_numpy(arrays[f"in_{i}"][0]), (old, old), (new, new), prefix=prefix)
    assert_close(ours, torch.from_numpy(arrays[f"out_{i}"][0]), rtol=0, atol=1e-6)


@pytest.mark.parametrize(("i", "old", "new", "prefix", "rule"), TIMM)
def test_timms_resize(i, old, new, prefix, rule):
    """Bicubic with antialias is timm's rule; without, the one of ViT in transformers."""
    arrays = np.load(GOLDEN / "posresize_timm" / "arrays.npz")
    ours = resize_positions(torch.from_numpy(arrays[f"in_{i}"][0]), old, new, prefix=prefix, rule=rule)
    assert_close(ours, torch.from_numpy(arrays[f"out_{i}"][0]), rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("i", "grid", "width", "temperature"), [(0, (3, 3), 8, 1e4), (1, (4, 6), 16, 1e4), (2, (7, 2), 12, 100.0)]
)
def test_big_visions_waves(i, grid, width, temperature):
    arrays = np.load(GOLDEN / "sincos2d" / "arrays.npz")
    recorded = torch.from_numpy(arrays[arrays.files[i]]).view(-1, width)
    assert_close(sincos_2d(grid, width, temperature), recorded, rtol=0, atol=1e-6)


@pytest.mark.claim("M05")
def test_the_official_codes_patch_convolution():
    """Kernel H W in out of a convolution with stride = kernel, as our linear map on C·P·P numbers."""
    x, kernel, bias, recorded = (
        torch.from_numpy(np.load(GOLDEN / "patch_embed_conv" / f"{name}.npy"))
        for name in ("input", "kernel", "bias", "output")
    )
    h, w, channels, width = kernel.shape
    weight = kernel.permute(3, 2, 0, 1).reshape(width, channels * h * w)
    ours = patchify(x.permute(0, 3, 1, 2), (h, w)) @ weight.T + bias
    assert_close(ours, recorded.flatten(1, 2), rtol=0, atol=2e-6)


def test_waves_of_a_row_do_not_know_the_column():
    """[column part; row part], in pairs of sin² + cos² = 1; the fastest is 1 radian a patch, the slowest 1e-4."""
    waves = sincos_2d((3, 5), 16).view(3, 5, 16)
    assert torch.equal(waves[..., :8], waves[:1, :, :8].expand(3, -1, -1))
    assert torch.equal(waves[..., 8:], waves[:, :1, 8:].expand(-1, 5, -1))
    sin_x, cos_x, sin_y, cos_y = waves.split(4, -1)
    assert_close(sin_x**2 + cos_x**2, torch.ones(3, 5, 4))
    assert_close(sin_y**2 + cos_y**2, torch.ones(3, 5, 4))
    assert_close(sin_x[0, 1, [0, 3]], torch.tensor([1.0, 1e-4]).sin())
    with pytest.raises(ConfigError, match="width of 8, 12, 16, …, not 4"):
        sincos_2d((2, 2), 4)


@pytest.mark.parametrize("kind", ["learned", "learned-2d", "sincos-2d", "none"])
def test_every_kind_that_can_runs_at_another_size(make, kind):
    """Waves and none equal a model built there; learned tables equal one whose tables were resized."""
    model, x = make(positions=kind, dynamic_image_size=True), torch.randn(2, 3, 20, 12, dtype=torch.float64)
    other, state = make(positions=kind, image_size=(20, 12)), model.state_dict()
    name = "embedding.positions."
    if kind == "learned":
        state[name + "table"] = resize_positions(state[name + "table"], (3, 4), (5, 3), prefix=1)
    if kind == "learned-2d":
        state[name + "rows"], state[name + "columns"] = (
            resize_line(state[name + "rows"], 5),
            resize_line(state[name + "columns"], 3),
        )
    other.load_state_dict(state)
    if kind == "sincos-2d":  # the waves are float32 made wider
        other.embedding.positions.waves.copy_(sincos_2d((5, 3), 16))
    assert_close(model(x), other(x), rtol=0, atol=1e-10)


@pytest.mark.parametrize("start", ["normal", "zeros", "unit", "sincos"])
@pytest.mark.parametrize("kind", ["learned", "learned-2d"])
def test_learned_positions_may_start_as_waves(vit_config, kind, start):
    model = build(vit_config.change(positions=kind, position_start=start), seed=0)
    added = model.embedding.positions(torch.zeros(1, 13, 16), model.grid)[0, 1:]
    waves = sincos_2d((3, 4), 16)
    assert torch.equal(added, waves) == (start == "sincos")
    assert bool(added.any()) == (start != "zeros")
