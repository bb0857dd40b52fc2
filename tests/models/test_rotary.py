"""Rotary positions, biases by offset, and the other parts of EVA, DINOv3, BEiT and PE: each against its equation."""

import cmath
import math

import pytest
import torch
from torch.testing import assert_close

import vitreous
from vitreous.errors import ConfigError
from vitreous.models.attention_bias import offset_index, resize_bias
from vitreous.models.rotary import Turn, turned

GRID = (3, 4)  # of the tiny ViT
AXIAL = {"rotary": "axial", "positions": "none"}
DINOV3 = {**AXIAL, "rotary_places": "image", "rotary_pairs": "halves", "registers": 4, "key_bias": False}
EVA02 = {"rotary": "axial", "rotary_grid": (2, 2), "rotary_base": 1e4, "inner_norm": "both", "activation": "swiglu"}
PE = {"rotary": "axial", "rotary_start": 1.0, "rotary_first": "columns", "rotary_grid": (6, 6)}
MIXED = {"rotary": "mixed", "rotary_first": "columns", "positions": "none"}
KINDS = {"axial": AXIAL, "dinov3": DINOV3, "eva02": EVA02, "pe": PE, "mixed": MIXED}


def angle(kind, row, column, j, d, frequencies=None):
    """The angle of pair j at a patch, from the papers' words; frequencies: of a head that learned them, 2 × d/2."""
    q = d // 4
    places = {
        "axial": (row, column),
        "dinov3": (2 * (row + 0.5) / GRID[0] - 1, 2 * (column + 0.5) / GRID[1] - 1),
        "eva02": (row / GRID[0] * 2, column / GRID[1] * 2),
        "pe": ((column + 1) / GRID[1] * 6, (row + 1) / GRID[0] * 6),
        "mixed": (column, row),
    }[kind]
    if kind == "mixed":
        return (places[0] * frequencies[0][j] + places[1] * frequencies[1][j]).item()
    base, circle = (1e4 if kind == "eva02" else 100.0), (2 * math.pi if kind == "dinov3" else 1.0)
    return circle * places[j // q] / base ** ((j % q) / q)


def rotated(kind, x, front, frequencies=None):
    """Queries or keys H N d, each pair a complex number that turns; one number after the other."""
    heads, tokens, d = x.shape
    out = x.clone()
    for h in range(heads):
        for n in range(front, tokens):
            row, column = divmod(n - front, GRID[1])
            for j in range(d // 2):
                a, b = (j, j + d // 2) if kind == "dinov3" else (2 * j, 2 * j + 1)
                turn = cmath.exp(
                    1j * angle(kind, row, column, j, d, None if frequencies is None else frequencies[:, h])
                )
                new = complex(x[h, n, a].item(), x[h, n, b].item()) * turn
                out[h, n, a], out[h, n, b] = new.real, new.imag
    return out


@pytest.mark.parametrize("kind", KINDS)
def test_attention_of_a_rotary_model_is_that_of_its_equation(make, kind):
    """Weights computed from the taps before the rotation, one complex number at a time; taps after it agree too."""
    model = make(**KINDS[kind])
    names = [f"blocks.1.attention.{name}" for name in ("query", "key", "rotate.query", "rotate.key", "weights")]
    with vitreous.taps(model, names) as seen:
        model(torch.randn(1, 3, 12, 16, dtype=torch.float64))
    q, k, after_q, after_k, weights = (seen[name][0] for name in names)
    front = model.config.prefix
    frequencies = model.places.rotation.frequencies[:, 1] if kind == "mixed" else None
    q, k = (rotated(kind, x.detach(), front, frequencies) for x in (q, k))
    assert_close(after_q, q, rtol=0, atol=2e-6)
    assert_close(after_k, k, rtol=0, atol=2e-6)
    assert_close(weights, (q @ k.mT * q.shape[-1] ** -0.5).softmax(-1), rtol=0, atol=2e-6)
    assert_close(seen[names[2]][0][:, :front], seen[names[0]][0][:, :front], rtol=0, atol=0)  # these do not turn


@pytest.mark.parametrize("kind", KINDS)
def test_open_attention_weights_change_no_answer(make, kind):
    model, x = make(**KINDS[kind]), torch.randn(2, 3, 12, 16, dtype=torch.float64)
    want = model(x)
    with vitreous.taps(model, "blocks.*.attention.weights") as seen:
        assert_close(model(x), want, rtol=0, atol=1e-10)
    assert all((layer.sum(-1) - 1).abs().max() < 1e-10 for layer in seen.values())


@pytest.mark.parametrize("pairs", ["neighbours", "halves"])
def test_a_rotation_keeps_lengths_and_sees_differences_alone(pairs):
    """‖Rq‖ = ‖q‖, and R(a)q · R(b)k depends on a − b alone."""
    q, k, a, b = (torch.randn(2, 3, 5, n, dtype=torch.float64) for n in (8, 8, 4, 4))

    def at(x, angles):
        return turned(x, Turn(angles.cos(), angles.sin()), pairs)

    assert_close(at(q, a).norm(dim=-1), q.norm(dim=-1))
    assert_close((at(q, a) * at(k, b)).sum(-1), (at(q, a - b) * k).sum(-1))


@pytest.mark.parametrize("kind", ["axial", "mixed"])
def test_moved_by_whole_patches_counted_places_change_no_weights(make, kind):
    """Every place one further: the same attention among the patches."""
    changes, tap = {**KINDS[kind], "class_token": False, "pool": "gap"}, "blocks.0.attention.rotate.query"
    first, moved = make(**changes), make(**changes, rotary_start=1.0)
    x = torch.randn(2, 3, 12, 16, dtype=torch.float64)
    with vitreous.taps(first, tap) as before, vitreous.taps(moved, tap) as after:
        assert_close(moved(x), first(x), rtol=0, atol=1e-5)
    assert (before[tap] - after[tap]).abs().max() > 0.01


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [(24, 20), (8, 24)])
def test_at_another_size_it_is_the_model_built_there(make, kind, size):
    """No tensor of a rotation depends on the grid, so the same weights run at both."""
    dynamic = make(**{**KINDS[kind], "positions": "none"}, dynamic_image_size=True)
    built = make(**{**KINDS[kind], "positions": "none"}, image_size=size)
    built.load_state_dict(dynamic.state_dict())
    x = torch.randn(2, 3, *size, dtype=torch.float64)
    assert_close(dynamic(x), built(x), rtol=0, atol=1e-6)


def test_a_stretched_grid_spans_the_same_angles_at_every_size(make):
    """EVA-02: the first patch of twice as many stands where it stood, every second one where its neighbour stood."""
    model = make(**EVA02, dynamic_image_size=True).places.rotation
    small, large = (model.angles(grid).unflatten(0, grid) for grid in (GRID, (6, 8)))
    assert_close(large[::2, ::2], small)


def test_learned_frequencies_get_gradients_and_start_at_axial_ones(make, vit_config):
    model = make(**MIXED)
    model(torch.randn(2, 3, 12, 16, dtype=torch.float64)).sum().backward()
    assert model.places.rotation.frequencies.grad.abs().amax(-1).min() > 0
    fresh = vitreous.build(vit_config, **MIXED, seed=0).places.rotation.frequencies
    sizes = fresh.square().sum(0).sqrt()  # depth H d/2
    assert_close(sizes, torch.tensor([1.0, 0.1, 1.0, 0.1]).expand_as(sizes))


def test_a_model_in_half_precision_turns_by_the_angles_of_float32(make):
    """Only the cosines are rounded, to one part in 256."""
    model = make(**DINOV3)
    want = model.places.rotation.cosine.clone()
    assert_close(model.bfloat16().places.rotation.cosine.double(), want, rtol=2**-8, atol=2**-9)


# Biases


@pytest.mark.parametrize("at", ["every-layer", "shared", "both"])
@pytest.mark.parametrize("token", [True, False])
def test_a_table_of_offsets_is_added_to_the_logits(make, at, token):
    """One entry at a time: row and column of the offset, and three of the class token."""
    pool = {"pool": "cls"} if token else {"pool": "gap", "class_token": False}
    model = make(attention_bias="table", attention_bias_at=at, positions="none", **pool)
    with vitreous.taps(model, ["blocks.1.attention.*"]) as seen:
        model(torch.randn(1, 3, 12, 16, dtype=torch.float64))
    q, k = (seen[f"blocks.1.attention.{name}"][0] for name in ("query", "key"))
    bias = model.places.bias
    tables = [part.table for part in [*bias.layers[1:2], *bias.shared]]
    assert len(tables) == (2 if at == "both" else 1)
    logits, front = q @ k.mT * q.shape[-1] ** -0.5, int(token)
    for i in range(logits.shape[1]):
        for j in range(logits.shape[2]):
            (a, b), (c, d) = divmod(i - front, 4), divmod(j - front, 4)
            row = (a - c + 2) * 7 + b - d + 3  # of 5 × 7 offsets
            row = 37 if i == j == 0 and token else 35 if i == 0 and token else 36 if j == 0 and token else row
            logits[:, i, j] += sum(table[row] for table in tables)
    assert_close(seen["blocks.1.attention.weights"][0], logits.softmax(-1), rtol=0, atol=1e-10)


def test_a_table_taken_to_its_own_grid_and_back_is_itself():
    """The offset zero stays in the middle, and so do the class token's rows."""
    table = torch.randn(5 * 7 + 3, 2, dtype=torch.float64)
    assert torch.equal(resize_bias(table, GRID, GRID, rule="paper"), table)
    larger = resize_bias(table, GRID, (5, 8), rule="paper")
    assert larger.shape == (9 * 15 + 3, 2)
    assert torch.equal(larger[-3:], table[-3:])
    assert_close(larger[4 * 15 + 7], table[2 * 7 + 3])
    assert_close(resize_bias(larger, (5, 8), GRID, rule="paper")[[0, -4]], table[[0, -4]])


def test_every_pair_of_tokens_reads_the_offset_between_them():
    index = offset_index(GRID, 1)
    assert index.shape == (13, 13)
    assert index.unique().numel() == 5 * 7 + 3
    assert_close(index[1:, 1:] + index[1:, 1:].mT, torch.full((12, 12), 5 * 7 - 1))  # there and back


def test_a_bias_of_logarithms_is_an_mlp_of_the_offset(make):
    model = make(attention_bias="mlp", attention_bias_mlp=6, positions="none")
    part, bias = model.places.bias.layers[0], model.places(0, GRID).bias
    assert bias.shape == (2, 13, 13)
    assert bias[:, 0].abs().max() == bias[:, :, 0].abs().max() == 0
    down, right = 2, -1  # from patch (0, 2) to patch (2, 1): query (2, 1), key (0, 2)
    x = torch.tensor([math.log(3), -math.log(2)], dtype=torch.float64)
    want = part.contract(part.expand(x).relu())
    assert_close(bias[:, 1 + down * 4 + 1, 1 + 2 + right + 1], want)


# Other parts


def test_keys_without_a_bias_are_keys_with_a_bias_of_zero(make):
    bare, full = make(key_bias=False), make()
    state = bare.state_dict()
    for name in [name for name in state if name.endswith("qkv.bias")]:
        q, v = state[name].chunk(2)
        state[name] = torch.cat([q, torch.zeros_like(q), v])
    full.load_state_dict(state)
    x = torch.randn(2, 3, 12, 16, dtype=torch.float64)
    assert_close(bare(x), full(x), rtol=0, atol=1e-10)


def test_a_norm_at_the_branchs_end_is_added_to_the_stream(make):
    """z′ = LN(MSA(z)) + z;  z = LN(MLP(z′)) + z′; what enters a branch is the stream itself."""
    model = make(norm="branch")
    block, z = model.blocks[0], torch.randn(2, 13, 16, dtype=torch.float64)
    attention, mlp = block.attention, block.mlp

    def bare(part, x):
        kept, part.end = part.end, torch.nn.Identity()
        y = part(x)
        part.end = kept
        return y

    middle = z + attention.end.norm(bare(attention, z))
    assert_close(block(z), middle + mlp.end.norm(bare(mlp, middle)), rtol=0, atol=1e-10)


def test_inner_norms_stand_before_the_last_map_of_a_branch(make):
    model = make(inner_norm="both", norm_kind="rms")
    x = torch.randn(2, 13, 24, dtype=torch.float64)
    norm = model.blocks[0].mlp.norm
    assert_close(norm(x), x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt() * norm.weight)
    seen = []
    model.blocks[0].attention.merge.register_forward_pre_hook(lambda part, inputs: seen.append(inputs[0]))
    with vitreous.taps(model, "blocks.0.attention.per_head") as taps:
        model(torch.randn(2, 3, 12, 16, dtype=torch.float64))
    joined = taps["blocks.0.attention.per_head"].transpose(1, 2).flatten(2)
    assert_close(seen[0], model.blocks[0].attention.norm(joined))


@pytest.mark.parametrize("pool", ["gap", "max", "map"])
def test_a_pool_of_all_tokens_reads_those_in_front_too(make, pool):
    """And a flow that begins in a register reaches the answer."""
    model = make(pool=pool, pool_tokens="all", registers=2, class_token=True)
    z = torch.randn(2, 15, 16, dtype=torch.float64)
    moved = z.clone()
    moved[:, 1] += 3
    assert (model.pool(moved) - model.pool(z)).abs().max() > 0.01
    weights = torch.full((2, 2, 1, 15), 1 / 15, dtype=torch.float64) if pool == "map" else None
    assert model.pool.reads(torch.eye(15, dtype=torch.float64).expand(2, -1, -1), weights)[:, 1].min() > 0


def test_a_model_that_knows_places_says_so(vit_config):
    bag = vit_config.change(positions="none")
    assert not bag.knows_places
    for change in ({"rotary": "axial"}, {"attention_bias": "table"}, {"positions": "learned"}):
        assert bag.change(**change).knows_places


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"rotary": "axial", "heads": 8}, "heads of 4, 8, 12"),
        ({"attention_bias": "table", "registers": 2}, "rows for a class token alone"),
        ({"pool": "map", "pool_heads": 3}, "not divisible by pool_heads 3"),
        ({"rotary_base": 10}, "rotary_base=.* has no meaning for rotary=none"),
        ({"rotary": "axial", "rotary_grid": "x"}, "rotary_grid"),
        ({"rotary": "spiral"}, "rotary='spiral' is not one of none, axial, mixed"),
    ],
)
def test_parts_that_make_no_sense_are_refused(vit_config, changes, words):
    with pytest.raises(ConfigError, match=words):
        vitreous.build(vit_config, **changes)
