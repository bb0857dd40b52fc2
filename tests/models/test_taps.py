"""Taps: any activation can be read or changed by name, and nobody else pays for it."""

import threading
import weakref

import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close

import vitreous
from vitreous.errors import TapError
from vitreous.models.catalog import build
from vitreous.models.taps import Tap

# DESIGN's names and shapes. B = 2 images, N = 13 tokens, D = 16, H = 2 heads of 8, hidden 24.
TOKENS, HEADS = (2, 13, 16), (2, 2, 13, 8)
BLOCK = {
    "norm1": TOKENS,
    "attention.query": HEADS,
    "attention.key": HEADS,
    "attention.value": HEADS,
    "attention.weights": (2, 2, 13, 13),
    "attention.per_head": HEADS,
    "attention.output": TOKENS,
    "skip1": TOKENS,
    "residual1": TOKENS,
    "norm2": TOKENS,
    "mlp.hidden": (2, 13, 24),
    "mlp.output": TOKENS,
    "skip2": TOKENS,
    "output": TOKENS,
}
VIT_TAPS = {
    "embedding.patches": (2, 12, 16),
    "embedding.tokens": TOKENS,
    **{f"blocks.{i}.{name}": shape for i in range(2) for name, shape in BLOCK.items()},
    "norm": TOKENS,
    "representation": (2, 16),
    "logits": (2, 5),
}


def resnet_taps(prefix, root, units):
    """`units`: for each unit its stage, number, middle channels, rows and columns before and after."""
    found = {f"{prefix}root": root}
    for stage, unit, middle, before, after in units:
        name = f"{prefix}stages.{stage}.units.{unit}."
        found[name + "conv1"] = (2, middle, *before)
        found[name + "conv2"] = (2, middle, *after)
        for part in ("conv3", "branch", "skip", "output"):
            found[name + part] = (2, 4 * middle, *after)
        found[f"{prefix}stages.{stage}.output"] = (2, 4 * middle, *after)
    return found


HYBRID_TAPS = {
    **resnet_taps("stem.", (2, 16, 8, 6), [(0, 0, 16, (8, 6), (8, 6)), (1, 0, 32, (8, 6), (4, 3))]),
    **VIT_TAPS,
}
BIT_TAPS = {
    **resnet_taps(
        "", (2, 16, 8, 6), [(0, 0, 16, (8, 6), (8, 6)), (1, 0, 32, (8, 6), (4, 3)), (1, 1, 32, (4, 3), (4, 3))]
    ),
    "norm": (2, 128, 4, 3),
    "pooled": (2, 128),
    "logits": (2, 5),
}


@pytest.fixture
def photo():
    return torch.randn(2, 3, 32, 24, dtype=torch.float64)


@pytest.fixture
def fused(monkeypatch):
    """How often the fused kernel was called."""
    calls, real = [], F.scaled_dot_product_attention
    monkeypatch.setattr(F, "scaled_dot_product_attention", lambda *a, **k: calls.append(1) or real(*a, **k))
    return calls


def hooks(model):
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) + len(m._backward_hooks) for m in model.modules())


def gradients(model, images):
    model.zero_grad()
    model(images).square().sum().backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


# What can be read


@pytest.mark.parametrize(("kind", "expected"), [("vit", VIT_TAPS), ("hybrid", HYBRID_TAPS), ("bit", BIT_TAPS)])
def test_every_promised_name_is_there_with_its_shape(kind, expected, request, images, photo):
    model = request.getfixturevalue(kind)
    assert expected.keys() <= set(vitreous.tap_names(model))
    with vitreous.taps(model, list(expected)) as seen:
        model(images if kind == "vit" else photo)
    assert {name: tuple(x.shape) for name, x in seen.items()} == expected


@pytest.mark.parametrize("kind", ["vit", "hybrid", "bit"])
def test_every_name_fires(kind, request, images, photo):
    model = request.getfixturevalue(kind)
    with vitreous.taps(model, "**") as seen:
        model(images if kind == "vit" else photo)
    assert set(seen) == set(vitreous.tap_names(model))


def test_a_compiled_model_has_the_same_names(vit):
    assert vitreous.tap_names(torch.compile(vit, backend="eager")) == vitreous.tap_names(vit)


def test_what_is_read_is_of_the_last_forward_and_live(vit, images):
    """The tensor itself, with its history: gradients reach it."""
    with vitreous.taps(vit, "blocks.0.output") as seen:
        vit(images)
        first = seen["blocks.0.output"]
        logits = vit(2 * images)
    z = seen["blocks.0.output"]
    assert (z - first).abs().max() > 0.01
    (gradient,) = torch.autograd.grad(logits.sum(), z)
    assert gradient.abs().max() > 0


def test_only_what_was_asked_is_kept(vit, images):
    """Memory grows with what was asked: the other activations are gone when the forward ends."""
    made = []
    watch = [
        m.register_forward_hook(lambda m, i, o: made.append(weakref.ref(o)))
        for m in vit.blocks.modules()
        if isinstance(m, Tap) and m not in [b.attention.weights for b in vit.blocks]
    ]
    with torch.no_grad(), vitreous.taps(vit, "blocks.1.mlp.hidden") as seen:
        vit(images)
    for hook in watch:
        hook.remove()
    assert list(seen) == ["blocks.1.mlp.hidden"]
    left = {id(x()) for x in made if x() is not None}
    assert len(made) == 22
    assert left == {id(seen["blocks.1.mlp.hidden"])}


# The answer stays, the fast path stays


@pytest.mark.parametrize("kind", ["vit", "hybrid", "bit"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_reading_changes_no_bit(kind, dtype, request, images, photo):
    """Eager, with every tap open but attention weights."""
    model = request.getfixturevalue(kind).to(dtype)
    x = (images if kind == "vit" else photo).to(dtype)
    names = [name for name in vitreous.tap_names(model) if not name.endswith("weights")]
    with vitreous.taps(model, names):
        logits = model(x)
    assert torch.equal(logits, model(x))


@pytest.mark.parametrize(
    "changes", [{}, {"positions": "relative"}, {"qk_norm": True}, {"pool": "map"}, {"attention_scale": 0.2}]
)
def test_reading_attention_weights_changes_rounding_only(make, images, changes):
    vit = make(**changes)
    with vitreous.taps(vit, "**weights"):
        logits = vit(images)
    assert_close(logits, vit(images), rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("patterns", "calls"),
    [
        ("blocks.*.output", 3),
        ("blocks.?.attention.query", 3),
        ("blocks.1.attention.weights", 2),
        (["blocks.0.attention.weights", "blocks.2.attention.weights"], 1),
        ("**.attention.weights", 0),
    ],
)
def test_only_the_layers_asked_leave_the_fused_path(make, images, fused, patterns, calls):
    vit = make(depth=3)
    vit(images)
    assert len(fused) == 3
    fused.clear()
    with vitreous.taps(vit, patterns):
        vit(images)
    assert len(fused) == calls
    fused.clear()
    vit(images)
    assert len(fused) == 3


def test_an_attention_pool_too(make, images, fused):
    vit = make(pool="map")
    with vitreous.taps(vit, "pool.weights") as seen:
        vit(images)
    assert len(fused) == 2  # the blocks
    assert seen["pool.weights"].shape == (2, 2, 1, 12)


# What is refused


@pytest.mark.parametrize("pattern", ["blocks.0.atention.weights", "block.0.attention.weights"])
def test_a_pattern_without_a_match_names_near_ones(vit, pattern):
    near = rf"no tap matches '{pattern}'; near: .*blocks\.0\.attention\.weights"
    with pytest.raises(TapError, match=near) as error, vitreous.taps(vit, pattern):
        pass
    assert "\n" not in str(error.value)


def test_one_bad_pattern_among_good_ones_is_refused(vit):
    with pytest.raises(TapError, match=r"no tap matches 'blocks\.9\.\*'"), vitreous.taps(vit, ["norm", "blocks.9.*"]):
        pass
    with (
        pytest.raises(TapError, match="no tap matches 'nowhere'"),
        vitreous.taps(vit, edit={"nowhere": torch.zeros_like}),
    ):
        pass
    assert hooks(vit) == 0


def test_nothing_to_do_is_refused(vit):
    with pytest.raises(TapError, match="nothing to read or edit"), vitreous.taps(vit):
        pass


def test_a_tap_that_never_fires_is_an_error(vit, images):
    with pytest.raises(TapError, match="norm never fired"), vitreous.taps(vit, "norm"):
        pass
    with pytest.raises(TapError, match="logits never fired"), vitreous.taps(vit, ["norm", "logits"]):
        vit.features(images)
    with pytest.raises(TapError, match="logits never fired"), vitreous.taps(vit, edit={"logits": torch.zeros_like}):
        vit.features(images)
    with (
        pytest.raises(TapError, match="and 27 more never fired"),
        vitreous.taps(vit, [f"blocks.{i}.**" for i in (0, 1)] + ["norm", "logits"]),
    ):
        pass


# Cleaning up and nesting


def test_nothing_is_left_after_the_body_raises(vit, images, fused):
    plain = vit(images)
    edit = {"blocks.0.skip1": torch.zeros_like}
    with pytest.raises(KeyError, match="mine"), vitreous.taps(vit, "**", edit=edit):
        vit(images)
        raise KeyError("mine")
    assert hooks(vit) == 0
    fused.clear()
    assert torch.equal(vit(images), plain)
    assert len(fused) == 2


def test_taps_nest(vit, images):
    """Each reads its own; an edit outside is seen inside; the inner one ends by itself."""
    with vitreous.taps(vit, "blocks.0.output", edit={"blocks.0.mlp.output": torch.zeros_like}) as outer:
        with vitreous.taps(vit, ["blocks.0.output", "blocks.0.residual1"]) as inner:
            vit(images)
        assert torch.equal(inner["blocks.0.output"], inner["blocks.0.residual1"])
        assert torch.equal(outer["blocks.0.output"], inner["blocks.0.output"])
        vit(2 * images)
        assert not torch.equal(outer["blocks.0.output"], inner["blocks.0.output"])
    assert hooks(vit) == 0


# On a compiled model


def test_on_a_compiled_model_taps_fire_and_afterwards_the_compiled_path_runs(vit, images):
    """A hook added after compiling never fires and says nothing, so inside `taps` the model runs eager."""
    runs = []

    def backend(graph, _):
        def compiled(*inputs):
            runs.append(1)
            return graph.forward(*inputs)

        return compiled

    fast = torch.compile(vit, backend=backend, fullgraph=True)
    with torch.no_grad():
        plain = fast(images)
        assert len(runs) == 1
        with vitreous.taps(
            fast, ["blocks.*.attention.weights", "logits"], edit={"blocks.1.skip2": torch.zeros_like}
        ) as seen:
            edited = fast(images)
        assert len(runs) == 1
        assert set(seen) == {"blocks.0.attention.weights", "blocks.1.attention.weights", "logits"}
        assert torch.equal(seen["logits"], edited)
        assert (edited - plain).abs().max() > 0.01
        assert torch.equal(fast(images), plain)
    assert len(runs) == 2
    torch.compiler.reset()


def test_taps_open_in_two_threads_leave_compiling_as_it_was(vit, images):
    """The one that came first leaves first: the stance belongs to all threads."""
    runs = []
    fast = torch.compile(lambda x: x + 1, backend=lambda graph, _: lambda *x: (runs.append(1), graph.forward(*x))[1])
    inside, go = threading.Event(), threading.Event()

    def other():
        with vitreous.taps(vit, "logits"):
            inside.set()
            go.wait()
            vit(images)

    with vitreous.taps(vit, "logits"):
        thread = threading.Thread(target=other)
        thread.start()
        inside.wait()
        vit(images)
    go.set()
    thread.join()
    fast(torch.ones(3))
    assert runs == [1]


def test_a_compiled_model_is_given_back_when_the_body_raises(vit, images):
    fast = torch.compile(vit, backend="eager", fullgraph=True)
    with pytest.raises(KeyError), vitreous.taps(fast, "norm"):
        raise KeyError
    assert torch.equal(fast(images), vit(images))
    assert hooks(vit) == 0
    torch.compiler.reset()


# Edits


def test_zeroing_a_skip_is_the_model_without_it(make, images):
    whole, cut = make(), make(skips=(1,))
    cut.load_state_dict(whole.state_dict())
    with vitreous.taps(whole, edit={"blocks.1.skip?": torch.zeros_like}):
        assert torch.equal(whole(images), cut(images))


def test_swapping_heads_is_swapping_their_weights(make, images):
    """Per head, B H N d: what the merge reads from head 0 and 1 changes places."""
    vit, other = make(), make()
    with torch.no_grad():
        merge = other.blocks[0].attention.merge.weight
        merge.copy_(merge.view(16, 2, 8).flip(1).flatten(1))
    with vitreous.taps(vit, edit={"blocks.0.attention.per_head": lambda y: y.flip(1)}):
        swapped = vit(images)
    assert_close(swapped, other(images), rtol=0, atol=1e-12)
    assert (swapped - vit(images)).abs().max() > 0.01


@pytest.mark.parametrize("name", ["embedding.tokens", "blocks.0.output", "blocks.1.residual1", "norm"])
def test_another_runs_value_makes_all_that_follows_that_run(vit, images, name):
    other = torch.randn_like(images)
    with vitreous.taps(vit, name) as seen:
        expected = vit(other)
    with vitreous.taps(vit, "logits", edit={name: lambda x: seen[name]}) as patched:
        answer = vit(images)
    assert torch.equal(answer, expected)
    assert torch.equal(patched["logits"], expected)


def test_an_edit_is_what_is_read(vit, images):
    with vitreous.taps(
        vit, ["blocks.0.output", "blocks.1.skip1"], edit={"blocks.0.output": lambda x: 0 * x + 3}
    ) as seen:
        vit(images)
    assert (seen["blocks.0.output"] == 3).all()
    assert (seen["blocks.1.skip1"] == 3).all()


def test_edited_attention_weights_are_used(vit, images):
    """Every token looks at the class token only: each head answers with the class token's value."""

    def at_class_token(weights):
        return torch.zeros_like(weights).index_fill(-1, torch.tensor(0), 1.0)

    edit = {"blocks.0.attention.weights": at_class_token}
    with vitreous.taps(vit, ["blocks.0.attention.value", "blocks.0.attention.per_head"], edit=edit) as seen:
        vit(images)
    value, y = seen["blocks.0.attention.value"], seen["blocks.0.attention.per_head"]
    assert_close(y, value[:, :, :1].expand_as(y), rtol=0, atol=1e-12)


def test_an_edit_reaches_convolutions(bit, hybrid, photo):
    for model, name in [(bit, "stages.1.units.1.branch"), (hybrid, "stem.stages.0.units.0.branch")]:
        plain = model(photo)
        with vitreous.taps(
            model, [name.replace("branch", "skip"), name.replace("branch", "output")], edit={name: torch.zeros_like}
        ) as seen:
            assert (model(photo) - plain).abs().max() > 1e-6
        skip, output = seen.values()
        assert torch.equal(output, skip if model is bit else skip.relu())


def test_gradients_flow_through_an_edit(vit, images):
    """Scaling a branch by s: ∂loss/∂s is there, and equals a difference quotient."""
    scale = torch.tensor(1.0, dtype=torch.float64, requires_grad=True)

    def loss(s):
        with vitreous.taps(vit, edit={"blocks.0.mlp.output": lambda x: s * x}):
            return vit(images).square().sum()

    loss(scale).backward()
    with torch.no_grad():
        quotient = (loss(1 + 1e-5) - loss(1 - 1e-5)) / 2e-5
    assert_close(scale.grad, quotient, rtol=1e-6, atol=0)
    assert vit.embedding.projection.weight.grad.abs().max() > 0


@pytest.mark.parametrize("wrong", [lambda x: x[:, 1:], lambda x: None, lambda x: x.sum()])
def test_an_edit_of_another_shape_is_refused(vit, images, wrong):
    with (
        pytest.raises(
            TapError, match=r"the edit of blocks.0.output returned .*; return a tensor of shape \(2, 13, 16\)"
        ),
        vitreous.taps(vit, edit={"blocks.0.output": wrong}),
    ):
        vit(images)
    assert hooks(vit) == 0


# Gradient checkpointing


@pytest.mark.parametrize("rates", [{}, {"dropout": 0.3, "drop_path": 0.4}])
def test_recomputing_blocks_gives_the_same_gradients(make, images, rates):
    vit = make(**rates).train()
    torch.manual_seed(5)
    expected = gradients(vit, images)
    vit.gradient_checkpointing = True
    torch.manual_seed(5)
    for name, gradient in gradients(vit, images).items():
        assert_close(gradient, expected[name], rtol=0, atol=1e-12)


def test_recomputing_really_happens(vit, images, fused):
    vit.gradient_checkpointing = True
    loss = vit(images).sum()
    assert len(fused) == 2
    loss.backward()
    assert len(fused) == 4
    with torch.no_grad():
        vit(images)
    assert len(fused) == 6


@pytest.mark.parametrize("inside", [True, False], ids=["backward inside", "backward after"])
@pytest.mark.parametrize("name", ["blocks.0.output", "blocks.0.attention.weights"])
def test_taps_work_while_recomputing(make, images, name, inside):
    """What is read is what it was; and gradients are those of what ran, edits and all, wherever backward stands."""
    results = []
    for recompute in (False, True):
        vit = make()
        vit.gradient_checkpointing = recompute
        with vitreous.taps(vit, name, edit={"blocks.1.skip1": torch.zeros_like, name: lambda x: x * x}) as seen:
            loss = vit(images).square().sum()
            value = seen[name].detach().clone()
            if inside:
                loss.backward()
        if not inside:
            loss.backward()
        results.append([loss, value, *(p.grad for p in vit.parameters())])
    for a, b in zip(*results, strict=True):
        assert_close(a, b, rtol=1e-10, atol=1e-12)


def test_a_block_that_nobody_looks_into_is_still_recomputed(make, images, fused):
    vit = make(depth=3)
    vit.gradient_checkpointing = True
    with vitreous.taps(vit, "blocks.1.output"):
        loss = vit(images).sum()
    loss.backward()
    assert len(fused) == 3 + 2


def test_a_real_size_of_the_catalog_has_the_names_too():
    names = vitreous.tap_names(build("Ti/16", image_size=32))
    assert {"blocks.11.attention.weights", "norm", "representation", "logits"} <= set(names)
