"""What is said before a run is what it takes: against the bytes that autograd and optimisers really keep."""

import json
from collections.abc import Iterable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from live_memory import norms_in_float32, step_of
from torch import Tensor, nn

from vitreous import build
from vitreous.errors import ConfigError
from vitreous.models.catalog import parse
from vitreous.models.cost import macs, training_flops
from vitreous.training.plan.memory import activations, expected, memory
from vitreous.training.recipe import Recipe
from vitreous.training.run.optimizers import make
from vitreous.training.run.utilisation import share_of_peak

NETWORKS: dict[str, tuple[str, int, dict[str, Any]]] = {
    "Ti/16": ("Ti/16", 64, {}),
    "Ti/4": ("Ti/4", 32, {"depth": 4}),
    "S/16 gap": ("S/16", 96, {"pool": "gap", "class_token": False, "depth": 3}),
    "relu": ("Ti/16", 64, {"activation": "relu"}),
    "swiglu": ("Ti/16", 64, {"activation": "swiglu"}),
    "map": ("Ti/16", 96, {"pool": "map", "depth": 3}),
    "post-norm": ("Ti/16", 96, {"norm": "post"}),
    "batch norm": ("Ti/16", 96, {"norm_kind": "batch"}),
    "layer scale": ("Ti/16", 96, {"layer_scale": 1e-4, "drop_path": 0.1}),
    "qk norm": ("Ti/16", 96, {"qk_norm": True}),
    "relative": ("Ti/8", 96, {"positions": "relative", "depth": 3}),
    "dropout": ("Ti/16", 96, {"dropout": 0.1, "attention_dropout": 0.1}),
    "registers": ("Ti/8", 96, {"registers": 4, "depth": 3}),
    "DINOv3-like": (
        "Ti/8",
        96,
        {
            "depth": 3,
            "registers": 4,
            "positions": "none",
            "rotary": "axial",
            "rotary_places": "image",
            "rotary_pairs": "halves",
            "key_bias": False,
            "layer_scale": 1e-5,
        },
    ),
    "EVA-02-like": ("Ti/8", 96, {"depth": 3, "rotary": "axial", "inner_norm": "both", "activation": "swiglu"}),
    "mixed": ("Ti/8", 96, {"depth": 3, "rotary": "mixed"}),
    "BEiT-like": ("Ti/8", 96, {"depth": 3, "attention_bias": "table", "positions": "none"}),
    "branch norm": ("Ti/16", 96, {"norm": "branch", "norm_kind": "rms"}),
    "hybrid": ("R50+B/16", 64, {"width": 192, "heads": 3, "depth": 2, "mlp": 768}),
    "R26 hybrid": ("R26+S/32", 64, {"width": 192, "heads": 3, "depth": 2, "mlp": 768}),
    "convolutions": ("Ti/8", 64, {"stem": "convolutions", "depth": 3}),
    "BiT": ("BiT-R50x1", 64, {"resnet_width": 0.5}),
    "BiT small root": ("BiT-R50x1", 32, {"root": "small", "resnet_width": 0.5}),
}


def network(name: str) -> nn.Module:
    model, size, changes = NETWORKS[name]
    return build(model, image_size=size, classes=10, seed=0, **changes)


def kept_of(part: nn.Module, x: Tensor, own: set[int]) -> int:
    """Bytes that autograd keeps of part(x), each memory once, `own` left out."""
    seen: dict[int, tuple[int, Tensor]] = {}

    def pack(tensor: Tensor) -> Tensor:
        memory = tensor.untyped_storage()
        if memory.data_ptr() not in own:
            seen[memory.data_ptr()] = memory.nbytes(), tensor  # held, so that no address comes twice
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        y = part(x)
    assert y.requires_grad
    return sum(size for size, _ in seen.values())


def weights(model: nn.Module) -> set[int]:
    return {tensor.untyped_storage().data_ptr() for tensor in [*model.parameters(), *model.buffers()]}


@pytest.mark.parametrize(
    ("name", "batch"), [*((name, 2) for name in NETWORKS), ("Ti/16", 5), ("hybrid", 5), ("BiT small root", 5)]
)
def test_activations_are_what_autograd_keeps(name, batch):
    """Within a quarter is promised; a tenth is kept."""
    model = network(name)
    images = torch.randn(batch, model.config.channels, *model.config.image_size)
    assert activations(model.config, batch) == pytest.approx(kept_of(model, images, weights(model)), rel=0.1)


@pytest.mark.parametrize(
    "name", ["Ti/16", "swiglu", "hybrid", "BiT", pytest.param("BiT small root", marks=pytest.mark.slow)]
)
def test_checkpointing_keeps_inputs_and_one_part_at_a_time(name):
    """What the forward pass keeps, and the most that one block or stage keeps while it is computed again."""
    batch, model = 2, network(name)
    parts = model.stages if name.startswith("BiT") else model.blocks
    inputs: list[Tensor] = []
    hooks = [part.register_forward_pre_hook(lambda part, given: inputs.append(given[0])) for part in parts]
    images = torch.randn(batch, 3, *model.config.image_size)
    model(images)
    for hook in hooks:
        hook.remove()
    alone = [
        kept_of(part, x.detach().requires_grad_(), weights(model) | {x.untyped_storage().data_ptr()})
        for part, x in zip(parts, inputs, strict=True)
    ]
    model.gradient_checkpointing = True
    real = kept_of(model, images, weights(model)) + max(alone)
    assert activations(model.config, batch, "float32", True) == pytest.approx(real, rel=0.1)
    assert activations(model.config, batch, "float32", True) < activations(model.config, batch)


COMPILED = ["Ti/16", "BiT small root", "swiglu", "map", "layer scale", "registers", "hybrid", "convolutions", "BiT"]


@pytest.mark.filterwarnings("default")  # torch warns itself while it traces
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", ["S/16 gap", *(pytest.param(name, marks=pytest.mark.slow) for name in COMPILED)])
def test_a_compiled_step_keeps_what_its_graph_hands_to_the_backward_pass(name, precision):
    """The graph is cut where torch's compiler cuts it for a GPU; within a tenth, and never much less than it keeps."""
    model = network(name)
    real = kept_if_compiled(model, [model], precision)
    said = activations(model.config, 2, precision, compiled="whole")
    assert said == pytest.approx(real, rel=0.1 if name != "swiglu" else 0.25)
    assert said < activations(model.config, 2, precision) or precision == "float32"


OTHERS = ["Ti/16", "convolutions", "BiT"]


@pytest.mark.filterwarnings("default")  # torch warns itself while it traces
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", ["hybrid", *(pytest.param(name, marks=pytest.mark.slow) for name in OTHERS)])
def test_where_blocks_alone_are_compiled_the_stem_keeps_what_it_keeps_uncompiled(name, precision):
    """A residual network in front of the blocks keeps float32 maps; one without blocks is not compiled at all."""
    model = network(name)
    real = kept_if_compiled(model, getattr(model, "blocks", ()), precision)
    said, plain = (activations(model.config, 2, precision, compiled=kind) for kind in ("blocks", "none"))
    assert said == pytest.approx(real, rel=0.1)
    assert (said == plain) is (name == "BiT" or precision == "float32")


def kept_if_compiled(model: nn.Module, parts: Iterable[nn.Module], precision: str) -> int:
    """Bytes that autograd keeps of two images while these parts are compiled."""
    is_half = precision == "bfloat16"
    torch._dynamo.reset()
    for part in parts:
        vars(part)["forward"] = torch.compile(part.forward, backend="aot_eager_decomp_partition", dynamic=False)
    images = torch.randn(2, 3, *model.config.image_size)
    with norms_in_float32() if is_half else nullcontext(), torch.autocast("cpu", torch.bfloat16, enabled=is_half):
        return kept_of(model, images, weights(model))


@pytest.mark.parametrize("optimizer", ["adamw", "adam", "sgd", "muon", "lamb"])
def test_an_optimiser_takes_what_its_state_weighs(optimizer):
    model = network("Ti/16")
    made = make(model, Recipe(optimizer=optimizer), torch.device("cpu"))
    tensors = [t for state in made.state.values() for t in state.values() if torch.is_tensor(t) and t.dim()]
    said = memory(model.config, 1, optimizer)
    assert said.optimizer == sum(t.numel() * t.element_size() for t in tensors)
    assert said.parameters == said.gradients == sum(4 * p.numel() for p in model.parameters())


def test_activations_grow_with_the_batch_and_weights_do_not():
    config = network("Ti/16").config
    one, eight = memory(config, 1), memory(config, 8)
    assert eight.activations == 8 * one.activations
    assert eight.parameters + eight.gradients + eight.optimizer == one.parameters + one.gradients + one.optimizer
    assert memory(config, 128).total - memory(config, 64).total == pytest.approx(64 * one.activations, rel=0.05)


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("batch", [1, 64])
def test_a_step_holds_all_weights_and_moments_and_never_more_than_the_sum_of_its_parts(batch, checkpointing):
    said = memory(network("Ti/16").config, batch, checkpointing=checkpointing)
    always = said.parameters + said.optimizer
    assert always + max(said.gradients, said.activations) <= said.total
    assert said.total <= always + said.gradients + said.activations + said.temporaries


PLANNED = {  # the papers' networks, of fewer blocks where they are many
    "B/16": ("B/16 depth=4", 32),
    "L/16": ("L/16 depth=4", 16),
    "H/14": ("H/14 depth=4", 8),
    "BiT-R50x1": ("BiT-R50x1", 32),
    "R50+B/16": ("R50+B/16 depth=2", 8),
}


@pytest.mark.parametrize("checkpointing", [False, True], ids=["kept", "recomputed"])
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    "name", [*PLANNED, *(pytest.param(f"whole {model}", marks=pytest.mark.slow) for model in ("B/16", "L/16", "H/14"))]
)
def test_the_worst_moment_of_a_step_is_as_said(name, precision, checkpointing):
    """Within 3 %, at the papers' own sizes: activations go as gradients come, and blocks are computed again."""
    model, batch = PLANNED.get(name, (name.removeprefix("whole "), 32))
    config = parse(model)
    held = step_of(config, batch, half=precision == "bfloat16", checkpointing=checkpointing)
    said = memory(config, batch, "adamw", precision, checkpointing=checkpointing)
    assert said.total - said.parameters - said.optimizer == pytest.approx(held.peak, rel=0.03)
    if not checkpointing:
        assert said.activations == pytest.approx(held.forward, rel=0.03)


def test_shards_take_their_share_of_weights_and_room_for_two_blocks():
    """What is shared shrinks with the devices; what is gathered and what images keep does not."""
    config = parse("L/16")
    whole, two, eight = (memory(config, 16, parallel="fsdp", world=world) for world in (1, 2, 8))
    for name in ("parameters", "gradients", "optimizer"):
        assert getattr(two, name) == pytest.approx(getattr(whole, name) / 2, rel=1e-3)
        assert getattr(eight, name) == pytest.approx(getattr(whole, name) / 8, rel=1e-3)
    assert whole.communication == two.communication == eight.communication
    assert whole.activations == eight.activations
    assert 2 * whole.parameters / 24 < whole.communication < whole.parameters / 2
    assert memory(config, 16, parallel="ddp", world=8).communication == whole.gradients, "one bucket for each gradient"
    assert memory(config, 16, parallel="ddp", world=1).communication == 0


def test_shards_in_several_parts_keep_whole_gradients_until_the_last():
    one, four = (memory(parse("L/16"), 16, parallel="fsdp", world=8, parts=parts) for parts in (1, 4))
    assert four.gradients == pytest.approx(8 * one.gradients, rel=1e-3)


def test_an_average_is_one_more_copy_and_halves_are_smaller():
    config = network("Ti/16").config
    plain = memory(config, 64)
    assert memory(config, 64, average=True).total - plain.total == plain.parameters
    half = memory(config, 64, precision="bfloat16")
    assert 0.5 * plain.activations < half.activations < 0.75 * plain.activations
    assert half.optimizer == plain.optimizer, "state stays float32"


def test_what_a_run_expects_fits_on_a_line_and_in_json():
    said = expected(network("Ti/16").config, 64, Recipe(optimizer="muon", average="ema"), precision="float32")
    assert str(said) == (
        "5,491,786 parameters, 93.9 M multiply-adds an image; memory for 64 images at a time: about 224 MiB "
        "(21 MiB parameters, 21 MiB gradients, 22 MiB optimizer, 21 MiB average, 157 MiB activations, "
        "4.5 MiB temporaries)"
    )
    assert "\n" not in str(said)
    assert json.loads(json.dumps(said.to_json()))["memory"]["total"] == said.memory.total


def test_a_training_step_is_six_operations_for_each_multiply_add():
    """Two for the product and the sum; once forward, twice backward: against torch's own count."""
    from torch.utils.flop_counter import FlopCounterMode

    model = network("S/16 gap")
    nn.init.normal_(model.head.weight)
    with FlopCounterMode(display=False) as counter:
        model(torch.randn(1, 3, 96, 96, requires_grad=True)).sum().backward()
    assert training_flops(model.config) == 6 * macs(model.config)
    assert counter.get_total_flops() == pytest.approx(training_flops(model.config), rel=0.03)


def test_the_share_of_the_peak_is_of_the_devices_data_sheet_or_of_what_was_measured():
    assert share_of_peak(494.5e12, "NVIDIA H200") == pytest.approx(0.5)
    assert share_of_peak(156e12, "NVIDIA A100-SXM4-80GB") == pytest.approx(0.5)
    assert share_of_peak(756e12, "NVIDIA H100 PCIe") == 1
    assert share_of_peak(989e12, "NVIDIA H100 80GB HBM3") == 1
    assert share_of_peak(121e12, "NVIDIA L4") == 1
    assert share_of_peak(362e12, "NVIDIA L40S") == 1
    assert share_of_peak(1.0, "Abacus") is None
    assert share_of_peak(1e12, "Abacus", 4e12) == 0.25


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"optimizer": "adagrad"}, "optimizer='adagrad' is not one of adamw"),
        ({"precision": "float8"}, "precision='float8' is not one of float32"),
        ({"batch": 0}, "batch=0 must be 1 or more"),
    ],
)
def test_needs_of_nonsense_are_refused(changes, words):
    with pytest.raises(ConfigError, match=words):
        memory(**{"config": network("Ti/16").config, "batch": 1, **changes})
