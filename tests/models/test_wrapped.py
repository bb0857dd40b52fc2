"""A model is itself however it is wrapped, in whatever precision, recomputed or not."""

import pytest
import torch
from torch import nn
from torch.testing import assert_close

import vitreous
from vitreous.errors import ConfigError, TapError
from vitreous.models.model import replica

SMALL = {"width": 16, "depth": 3, "heads": 2, "mlp": 24, "image_size": 16, "classes": 3, "seed": 0}


@pytest.fixture
def model():
    built = vitreous.build("Ti/8", **SMALL)
    nn.init.normal_(built.head.weight)
    return built.eval()


def compiled_blocks(model):
    for i, block in enumerate(model.blocks):
        model.blocks[i] = torch.compile(block, backend="eager")
    return model


WRAPPERS = {
    "compiled": lambda m: torch.compile(m, backend="eager"),
    "blocks compiled": compiled_blocks,
    "data parallel": nn.DataParallel,
    "both": lambda m: nn.DataParallel(torch.compile(m, backend="eager")),
}


@pytest.mark.parametrize("wrap", WRAPPERS)
@pytest.mark.parametrize("format", ["vitreous", "timm"])
def test_a_wrapped_model_is_saved_as_itself(model, wrap, format, tmp_path):
    x = torch.randn(2, 3, 16, 16)
    want = model(x)
    vitreous.save(WRAPPERS[wrap](model), tmp_path / "out", format=format, anyway=True)
    (path,) = tmp_path.iterdir()
    assert_close(vitreous.load(path, heads=2)(x), want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("wrap", WRAPPERS)
def test_taps_of_a_wrapped_model_have_their_own_names(model, wrap):
    names = vitreous.tap_names(model)
    wrapped = WRAPPERS[wrap](model)
    assert vitreous.tap_names(wrapped) == names
    with vitreous.taps(wrapped, "blocks.1.attention.weights") as seen:
        wrapped(torch.randn(1, 3, 16, 16))
    assert seen["blocks.1.attention.weights"].shape == (1, 2, 5, 5)


def test_what_is_no_model_of_ours_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="Linear is not one of our models"):
        vitreous.save(nn.Linear(2, 2), tmp_path / "x")


def test_a_model_that_lost_a_part_is_not_written(model, tmp_path):
    del model.blocks[2]
    with pytest.raises(vitreous.errors.CheckpointError, match="no longer has the parts"):
        vitreous.save(model, tmp_path / "x.safetensors")
    assert not list(tmp_path.iterdir())


def test_brackets_choose_and_refuse_as_in_a_shell(model):
    x = torch.randn(1, 3, 16, 16)
    for pattern, blocks in {
        "blocks.[!0].output": [1, 2],
        "blocks.[0-1].output": [0, 1],
        "blocks.[02].output": [0, 2],
    }.items():
        with vitreous.taps(model, pattern) as seen:
            model(x)
        assert list(seen) == [f"blocks.{i}.output" for i in blocks]
    with pytest.raises(TapError, match="not a shell pattern"), vitreous.taps(model, "blocks.[z-a].output"):
        pass
    with pytest.raises(TapError, match=r"`blocks\.\*\*` crosses them"), vitreous.taps(model, "blocks.*"):
        pass


def test_what_is_read_is_what_flows_on_whoever_edits(model):
    x = torch.randn(1, 3, 16, 16)
    with vitreous.taps(model, "blocks.0.output") as outer:
        with vitreous.taps(model, edit={"blocks.0.output": torch.zeros_like}):
            model(x)
        assert not outer["blocks.0.output"].any()


def test_resized_positions_follow_a_write_that_leaves_no_trace():
    """A hand-written average of weights goes through .data."""
    model = vitreous.build("Ti/8 dynamic_image_size=true", **SMALL).eval()
    nn.init.normal_(model.head.weight)
    x = torch.randn(1, 3, 24, 16)
    with torch.inference_mode():
        before = model(x)
        assert torch.equal(model(x), before)
    model.embedding.positions.table.data.mul_(3)
    with torch.inference_mode():
        assert not torch.equal(model(x), before)


@pytest.mark.parametrize(
    "name", ["BiT-R50x1 units=1,1 resnet_width=0.5 root=small", "R26+S/32 units=1 resnet_width=0.5"]
)
def test_a_constant_kernel_harms_neither_half_precision_nor_gradients(name):
    changes = {} if name.startswith("BiT") else {"width": 16, "depth": 1, "heads": 2, "mlp": 16}
    model = vitreous.build(name, image_size=16, classes=2, seed=0, **changes)
    conv = next(m for m in model.modules() if isinstance(m, nn.Conv2d))
    nn.init.constant_(conv.weight, 0.5)
    assert torch.isfinite(conv.half().standardised()).all()
    conv.float()
    model(torch.randn(2, 3, 16, 16)).sum().backward()
    assert all(torch.isfinite(p.grad).all() for p in model.parameters() if p.grad is not None)


def test_a_resnet_recomputes_its_stages_to_the_same_gradients():
    x = torch.randn(2, 3, 16, 16)
    grads = []
    for wanted in (False, True):
        model = vitreous.build("BiT-R50x1 units=1,1 resnet_width=0.5 root=small", image_size=16, classes=2, seed=0)
        nn.init.constant_(model.head.weight, 0.1)
        model.gradient_checkpointing = wanted
        model(x).square().sum().backward()
        grads.append([p.grad for p in model.parameters()])
    for a, b in zip(*grads, strict=True):
        assert_close(a, b)


def test_batch_norm_is_not_counted_twice_by_recomputing():
    model = vitreous.build("Ti/8 norm_kind=batch", **SMALL)
    model.gradient_checkpointing = True
    with pytest.raises(ConfigError, match="count a batch twice"):
        model(torch.randn(2, 3, 16, 16))


def test_a_replica_shares_every_tensor_and_no_module(model):
    """What is set on a module, or hooked to it, is set on one of the two."""
    twin = replica(model)
    assert all(a is b for a, b in zip(tensors_of(model), tensors_of(twin), strict=True))
    assert not {id(part) for part in model.modules()} & {id(part) for part in twin.modules()}
    x = torch.randn(1, 3, 16, 16)
    with vitreous.taps(model, "blocks.0.output", edit={"blocks.0.output": torch.zeros_like}) as seen:
        apart = twin(x)
        assert not seen
        assert not torch.equal(model(x), apart)
    assert torch.equal(model(x), apart)


def test_a_replica_of_what_holds_networks_shares_their_tensors_too(model):
    class Task:
        def __init__(self):
            self.network, self.model, self.mean, self.share = nn.Sequential(model), model, torch.ones(3), 0.5

    task = Task()
    twin = replica(task)
    assert twin.mean is task.mean
    assert twin.share == 0.5
    assert twin.network[0] is twin.model is not task.model
    assert all(a is b for a, b in zip(tensors_of(model), tensors_of(twin.model), strict=True))


def tensors_of(model):
    return [*model.parameters(), *model.buffers()]
