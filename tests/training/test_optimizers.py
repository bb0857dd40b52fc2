"""Optimisers, clipping and averages: what must not change does not, then the recorded steps."""

import math
import traceback

import numpy as np
import pytest
import torch
from shared_files import ROOT
from tiny_models import BIT, VIT, awake, line_of
from torch import Tensor, nn
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode

from vitreous.errors import CheckpointError, ConfigError
from vitreous.models.config import HYBRID_RESNET
from vitreous.training.recipe import Recipe
from vitreous.training.run.optimizers import (
    Average,
    clip_,
    groups,
    layers,
    load_state,
    make,
    named_parameters,
    orthogonalised,
    set_rate,
    state_of,
)

CPU = torch.device("cpu")
RECORDED = np.load(ROOT / "tests/golden/measures/optim_steps.npz")
OPTIMIZERS = ("adamw", "adam", "sgd", "muon", "lamb")


class Small(nn.Module):
    """The recorded matrix and vector: the matrix decays, as a kernel does."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 2).double()
        with torch.no_grad():
            self.layer.weight.copy_(torch.from_numpy(RECORDED["w0"].T))
            self.layer.bias.copy_(torch.from_numpy(RECORDED["b0"]))

    def give_gradient(self, step: int) -> None:
        self.layer.weight.grad = torch.from_numpy(RECORDED["grad_w"][step].T.copy())
        self.layer.bias.grad = torch.from_numpy(RECORDED["grad_b"][step].copy())


def give_gradients(model: nn.Module, seed: int = 0, scale: float = 1.0) -> None:
    generator = torch.Generator().manual_seed(seed)
    for p in model.parameters():
        p.grad = scale * torch.randn(p.shape, generator=generator)


def copy_of(model: nn.Module) -> dict[str, Tensor]:
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def is_same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def kinds(model: nn.Module, **changes) -> dict[str, str]:
    found = groups(model, Recipe(**changes))
    return {name: group["kind"] for group in found for name in group["names"]}


# -------------------------------------------------------------------------------------------------------------- groups


@pytest.mark.claim("T15")
@pytest.mark.parametrize(
    "model",
    [
        awake(VIT),
        awake(VIT, registers=2, distillation_token=True, layer_scale=0.1, qk_norm=True),
        awake(VIT, pool="map"),
        awake(VIT, positions="relative"),
        awake(VIT, stem="convolutions"),
        awake(BIT),
    ],
    ids=["plain", "tokens", "map", "relative", "convolutions", "bit"],
)
def test_kernels_decay_and_nothing_else_does(model):
    """Every weight of a linear map or convolution; no bias, norm, token, probe, gain or position."""
    decays = {n: g["weight_decay"] for g in groups(model, Recipe(weight_decay=0.3)) for n in g["names"]}
    kernels = {f"{n}.weight" for n, m in model.named_modules() if isinstance(m, nn.Linear | nn.Conv2d)}
    assert decays == {name: 0.3 if name in kernels else 0.0 for name, _ in model.named_parameters()}


def test_every_parameter_is_in_one_group():
    model = awake(VIT)
    found = [id(p) for g in groups(model, Recipe(layer_decay=0.7, head_lr=1.0)) for p in g["params"]]
    assert sorted(found) == sorted(id(p) for p in model.parameters())


@pytest.mark.claim("T03")
def test_a_new_head_learns_at_the_base_rate_and_the_rest_at_a_tenth():
    model = awake(VIT)
    for group in groups(model, Recipe(peak_lr=0.003, head_lr=0.03)):
        is_head = {name.startswith("head.") for name in group["names"]}
        assert is_head == {group["kind"] == "head"}
        assert group["lr"] == (0.03 if group["kind"] == "head" else 0.003)


@pytest.mark.claim("T03")
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_frozen_tensors_are_bit_equal_after_fifty_steps(optimizer):
    """With momentum and decay, and gradients of an earlier pass still lying on them; norm buffers too."""
    model = awake(VIT, norm_kind="batch").eval()
    recipe = Recipe(optimizer=optimizer, peak_lr=0.01, weight_decay=0.3)
    give_gradients(model)
    for name, p in model.named_parameters():
        p.requires_grad_(name.startswith("head."))
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    made = make(model, recipe, CPU)
    for _ in range(50):
        model(torch.randn(2, 3, 16, 16)).square().sum().backward()
        made.step()
        made.zero_grad()
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[name]) == (not name.startswith("head.")), name


def test_all_frozen_is_refused():
    model = awake(VIT).requires_grad_(False)
    with pytest.raises(ConfigError) as caught:
        groups(model, Recipe())
    line_of(caught.value, "frozen", "head")


@pytest.mark.parametrize("config", [VIT, BIT], ids=["vit", "bit"])
def test_layer_decay_falls_with_the_distance_from_the_head(config):
    model = awake(config)
    peaks = {n: g["lr"] for g in groups(model, Recipe(peak_lr=1.0, layer_decay=0.5)) for n in g["names"]}
    assert peaks["head.weight"] == peaks["head.bias"] == 1.0
    first = "embedding.projection.weight" if config is VIT else "root.conv.weight"
    inner = len(set(layers(peaks).values())) - 2
    assert peaks[first] == min(peaks.values()) == 0.5 ** (inner + 1)
    if config is VIT:
        assert peaks["embedding.class_token"] == peaks["embedding.positions.table"] == 0.125
        assert peaks["blocks.0.mlp.expand.weight"] == 0.25
        assert peaks["blocks.1.attention.qkv.bias"] == 0.5
        assert peaks["norm.weight"] == 1.0
    else:
        assert inner == sum(BIT.resnet.units)


def test_a_resnet_stem_is_all_one_layer():
    model = awake(VIT.change(stem="resnet", units=(1, 1), patch=1, resnet_width=0.25, image_size=16))
    assert HYBRID_RESNET.units
    found = layers(name for name, _ in named_parameters(model))
    assert {found[name] for name in found if name.startswith("stem.")} == {0}


def test_names_are_the_models_own_under_a_compiler_and_a_parent():
    model = awake(VIT)
    compiled = torch.compile(model, backend="eager")
    assert [n for n, _ in named_parameters(compiled)] == [n for n, _ in model.named_parameters()]
    parent = nn.ModuleDict({"vit": model})
    plain, inner = kinds(model, optimizer="muon"), kinds(parent, optimizer="muon")
    assert inner == {f"vit.{name}": kind for name, kind in plain.items()}


def test_muon_turns_the_matrices_of_the_blocks_alone():
    found = kinds(awake(VIT, stem="convolutions"), optimizer="muon")
    matrices = {name for name, kind in found.items() if kind == "matrix"}
    parts = ("attention.qkv", "attention.merge", "mlp.expand", "mlp.contract")
    assert matrices == {f"blocks.{i}.{part}.weight" for i in range(2) for part in parts}


# ----------------------------------------------------------------------------------------------------------- optimisers


@pytest.mark.claim("T15")
@pytest.mark.parametrize(
    ("name", "recipe"),
    [
        ("adamw", Recipe(optimizer="adamw", peak_lr=1e-3, weight_decay=0.1)),
        ("adamw", Recipe(optimizer="adam", peak_lr=1e-3, weight_decay=0.1)),
        ("sgd", Recipe(optimizer="sgd", peak_lr=0.03, weight_decay=0.0)),
    ],
    ids=["adamw", "adam", "sgd"],
)
def test_four_recorded_steps_with_clipping(name, recipe):
    model = Small()
    made = make(model, recipe, CPU)
    for step in range(4):
        model.give_gradient(step)
        norm = clip_(model.parameters(), 1.0)
        made.step()
        assert float(norm) == pytest.approx(RECORDED["grad_norm"][step], rel=1e-12)
        assert_close(model.layer.weight.detach().T, torch.from_numpy(RECORDED[f"{name}_w"][step]), atol=1e-7, rtol=0)
        assert_close(model.layer.bias.detach(), torch.from_numpy(RECORDED[f"{name}_b"][step]), atol=1e-7, rtol=0)


def test_sgd_decay_is_l2():
    """BiT's: it goes through the momentum, so that with no gradient one step takes η λ w."""
    model = Small()
    before = model.layer.weight.detach().clone()
    made = make(model, Recipe(optimizer="sgd", peak_lr=0.1, weight_decay=0.5), CPU)
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    made.step()
    assert_close(model.layer.weight.detach(), before * (1 - 0.1 * 0.5))
    made.step()
    assert_close(model.layer.weight.detach(), before * (1 - 0.05 - 0.05 * (0.9 + 0.95)))


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_rates_are_factors_of_each_groups_peak(optimizer):
    model = awake(VIT)
    made = make(model, Recipe(optimizer=optimizer, peak_lr=0.2, head_lr=1.0, layer_decay=0.5), CPU)
    for factor in (0.25, torch.tensor(0.25)):
        set_rate(made, factor)
        assert all(g["lr"] == pytest.approx(0.25 * g["peak_lr"]) for g in made.param_groups)
    set_rate(made, 0.0)
    before = copy_of(model)
    give_gradients(model)
    made.step()
    assert is_same(copy_of(model), before)  # at rate 0 not even the decay moves anything


def test_a_rate_that_is_a_tensor_is_written_in_place():
    """As on a GPU: a captured graph reads it where it lies."""
    made = make(awake(VIT), Recipe(optimizer="muon", head_lr=0.5), CPU)
    for group in made.param_groups:
        group["lr"] = torch.tensor(group["peak_lr"])
    places = [group["lr"].data_ptr() for group in made.param_groups]
    for factor in (0.5, torch.tensor(0.5)):
        set_rate(made, 1.0)
        set_rate(made, factor)
        assert [group["lr"].data_ptr() for group in made.param_groups] == places
        assert all(float(g["lr"]) == pytest.approx(0.5 * g["peak_lr"]) for g in made.param_groups)


@pytest.mark.parametrize("optimizer", ["muon", "lamb", "adamw"])
def test_a_rate_as_a_tensor_gives_the_same_weights(optimizer):
    results = []
    for as_tensor in (False, True):
        model = awake(VIT)
        made = make(model, Recipe(optimizer=optimizer, peak_lr=0.01, layer_decay=0.5), CPU)
        for group in made.param_groups:
            group["lr"] = torch.tensor(group["lr"]) if as_tensor else group["lr"]
        for step in range(3):
            give_gradients(model, step)
            set_rate(made, 0.5)
            made.step()
        results.append(copy_of(model))
    for name in results[0]:
        assert_close(results[0][name], results[1][name], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_no_number_of_a_step_is_read_by_the_host(optimizer):
    """A graph cannot be captured around such a question, and without one each costs a wait."""
    model = awake(VIT)
    made = make(model, Recipe(optimizer=optimizer, peak_lr=0.01), CPU)
    if optimizer in ("muon", "lamb"):  # torch's own fused steps take tensors here on a GPU alone
        for group in made.param_groups:
            group["lr"] = torch.tensor(group["lr"])
        made.found_inf = torch.zeros(())
    give_gradients(model, 0)
    asked = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, call, types, args=(), kwargs=None):
            if call is torch.ops.aten._local_scalar_dense.default:
                asked.append("".join(traceback.format_stack(limit=3)))
            return call(*args, **(kwargs or {}))

    with Watch():
        made.step()
    assert not asked, asked[0]


@pytest.mark.parametrize("first", [True, False], ids=["first", "later"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_step_marked_bad_changes_nothing(optimizer, first):
    """Weights and state, bit for bit, whatever the gradients hold; and the step after goes on as if it had not been."""
    model, other = awake(VIT), awake(VIT)
    recipe = Recipe(optimizer=optimizer, peak_lr=0.01)
    made, clean = make(model, recipe, CPU), make(other, recipe, CPU)
    bad, good = torch.ones(()), torch.zeros(())
    made.found_inf = good
    if not first:
        for net, one in ((model, made), (other, clean)):
            give_gradients(net)
            one.step()
    before, state = copy_of(model), {n: t.clone() for n, t in state_of(made).items()}
    give_gradients(model, scale=math.nan)
    made.found_inf = bad
    made.step()
    assert is_same(copy_of(model), before)
    assert is_same(state_of(made), state)
    made.found_inf = good
    for net, one in ((model, made), (other, clean)):
        give_gradients(net, 5)
        one.step()
    for name, tensor in copy_of(other).items():
        assert_close(dict(model.named_parameters())[name].detach(), tensor, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_state_goes_out_and_back_in_place(optimizer):
    """Three steps, and two then one from the saved state: the same bits; every tensor stays where it lay."""
    recipe = Recipe(optimizer=optimizer, peak_lr=0.01)
    model = awake(VIT)
    made = make(model, recipe, CPU)
    for step in range(2):
        give_gradients(model, step)
        made.step()
    saved, weights = {n: t.clone() for n, t in state_of(made).items()}, copy_of(model)
    give_gradients(model, 2)
    made.step()
    wanted = copy_of(model)

    again = awake(VIT)
    again.load_state_dict(weights, strict=False)
    resumed = make(again, recipe, CPU)
    places = {name: tensor.data_ptr() for name, tensor in state_of(resumed).items()}
    load_state(resumed, saved)
    assert {name: tensor.data_ptr() for name, tensor in state_of(resumed).items()} == places
    give_gradients(again, 2)
    resumed.step()
    assert is_same(copy_of(again), wanted)


def test_state_that_does_not_fit_is_refused():
    made = make(awake(VIT), Recipe(), CPU)
    state = state_of(made)
    name = "blocks.0.mlp.expand.weight/exp_avg"
    for broken in ({n: t for n, t in state.items() if n != name}, {**state, name: torch.zeros(3)}):
        with pytest.raises(CheckpointError) as caught:
            load_state(made, broken)
        line_of(caught.value, name, "resume")


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_all_state_is_there_before_the_first_step(optimizer):
    model = awake(VIT)
    made = make(model, Recipe(optimizer=optimizer), CPU)
    before = {name: tensor.data_ptr() for name, tensor in state_of(made).items()}
    give_gradients(model)
    made.step()
    assert {name: tensor.data_ptr() for name, tensor in state_of(made).items()} == before


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("config", [VIT, BIT], ids=["vit", "bit"])
def test_every_optimiser_lowers_a_loss(optimizer, config):
    torch.manual_seed(0)
    model = awake(config)
    x, y = torch.randn(8, 3, *config.image_size), torch.arange(8) % 5
    made = make(model, Recipe(optimizer=optimizer, peak_lr=0.003, muon_lr=0.01, weight_decay=0.01), CPU)
    losses = []
    for _ in range(20):
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        losses.append(loss.item())
        clip_(model.parameters(), 1.0)
        made.step()
        made.zero_grad()
    assert losses[-1] < 0.8 * losses[0]


# ---------------------------------------------------------------------------------------------------------------- Muon


def test_orthogonalised_brings_singular_values_near_one():
    for rows, columns in ((24, 24), (40, 16), (16, 40)):
        x = torch.randn(3, rows, columns, generator=torch.Generator().manual_seed(0))
        values = torch.linalg.svdvals(orthogonalised(x))
        assert values.min() > (0.1 if rows == columns else 0.6)  # a square matrix has some near 0, which take longer
        assert values.max() < 1.25
        assert values.median() > 0.6


def test_orthogonalised_keeps_the_singular_vectors():
    """X = U S Vᵀ becomes U f(S) Vᵀ: so it commutes with rotations, and a scale does not matter."""
    g = torch.Generator().manual_seed(1)
    x = torch.randn(2, 12, 8, generator=g, dtype=torch.float64)
    turn = torch.linalg.qr(torch.randn(12, 12, generator=g, dtype=torch.float64))[0]
    assert_close(orthogonalised(turn @ x), turn @ orthogonalised(x))
    assert_close(orthogonalised(1000 * x), orthogonalised(x))
    assert_close(orthogonalised(x.mT), orthogonalised(x).mT)
    assert torch.equal(orthogonalised(torch.zeros(1, 4, 4)), torch.zeros(1, 4, 4))  # a zero head's first step


def test_a_batch_of_matrices_is_each_by_itself():
    x = torch.randn(5, 9, 6, generator=torch.Generator().manual_seed(2))
    assert_close(orthogonalised(x), torch.cat([orthogonalised(one[None]) for one in x]))


def test_a_muon_step_by_hand():
    """qkv as three squares, a tall matrix scaled by √(rows / columns), Nesterov momentum, decoupled decay."""
    model = awake(VIT)
    recipe = Recipe(optimizer="muon", muon_lr=0.02, momentum=0.9, weight_decay=0.1)
    made = make(model, recipe, CPU)
    weights = {"qkv": model.blocks[0].attention.qkv.weight, "expand": model.blocks[1].mlp.expand.weight}
    wanted = {name: w.detach().clone() for name, w in weights.items()}
    buffers = {name: torch.zeros_like(w) for name, w in wanted.items()}
    for step in range(2):
        give_gradients(model, step)
        for name, w in weights.items():
            buffers[name] = 0.9 * buffers[name] + w.grad
            ahead = w.grad + 0.9 * buffers[name]
            parts = ahead.chunk(3) if name == "qkv" else [ahead]
            turned = torch.cat([orthogonalised(part[None])[0] for part in parts])
            scale = 1.0 if name == "qkv" else (24 / 16) ** 0.5
            wanted[name] = wanted[name] * (1 - 0.02 * 0.1) - 0.02 * scale * turned
        made.step()
    for name, w in weights.items():
        assert_close(w.detach(), wanted[name], rtol=1e-4, atol=1e-5)


def test_what_muon_leaves_is_adamw():
    model, other = awake(VIT), awake(VIT)
    muon = make(model, Recipe(optimizer="muon", peak_lr=0.01), CPU)
    adamw = make(other, Recipe(optimizer="adamw", peak_lr=0.01), CPU)
    for step in range(3):
        for net, one in ((model, muon), (other, adamw)):
            give_gradients(net, step)
            one.step()
    turned = {name for name, kind in kinds(model, optimizer="muon").items() if kind == "matrix"}
    a, b = copy_of(model), copy_of(other)
    assert {name for name in a if not torch.equal(a[name], b[name])} == turned


# ---------------------------------------------------------------------------------------------------------------- LAMB


def test_a_lamb_step_is_as_long_as_the_tensor_is_large():
    """‖Δw‖ = η ‖w‖ for every kernel, whatever its gradient's scale; a tensor of zeros takes AdamW's step."""
    model = awake(VIT)
    with torch.no_grad():
        model.head.weight.zero_()
    made = make(model, Recipe(optimizer="lamb", peak_lr=0.01, weight_decay=0.05), CPU)
    before = copy_of(model)
    give_gradients(model, scale=1e-3)
    made.step()
    for name, old in before.items():
        moved = (dict(model.named_parameters())[name].detach() - old).norm()
        if name == "head.weight":
            assert moved == pytest.approx(0.01 * old.numel() ** 0.5, rel=1e-3)
        elif name.endswith("weight") and "norm" not in name:
            assert moved == pytest.approx(0.01 * float(old.norm()), rel=1e-4), name


def test_two_lamb_steps_by_hand():
    """m̂ and v̂ with bias correction, decay inside the scaled step."""
    model = Small()
    w = model.layer.weight.detach().clone()
    made = make(model, Recipe(optimizer="lamb", peak_lr=0.01, weight_decay=0.05, eps=1e-6), CPU)
    m, v = torch.zeros_like(w), torch.zeros_like(w)
    for step in range(2):
        model.give_gradient(step)
        g = model.layer.weight.grad
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g**2
        u = (m / (1 - 0.9 ** (step + 1))) / ((v / (1 - 0.999 ** (step + 1))).sqrt() + 1e-6) + 0.05 * w
        w = w - 0.01 * (w.norm() / u.norm()) * u
        made.step()
    assert_close(model.layer.weight.detach(), w, rtol=1e-6, atol=1e-7)


# ------------------------------------------------------------------------------------------------------------- clipping


@pytest.mark.claim("T15")
def test_clipping_brings_the_norm_of_all_gradients_to_the_limit():
    model = awake(VIT)
    give_gradients(model)
    directions = [p.grad.clone() for p in model.parameters()]
    norm = clip_(model.parameters(), 1.0)
    assert float(norm) == pytest.approx(float(torch.cat([d.flatten() for d in directions]).norm()), rel=1e-6)
    after = torch.cat([p.grad.flatten() for p in model.parameters()])
    assert float(after.norm()) == pytest.approx(1.0, rel=1e-6)
    assert_close(after, torch.cat([d.flatten() for d in directions]) / norm)


@pytest.mark.parametrize("limit", [1e6, None])
def test_short_gradients_are_left_alone(limit):
    model = awake(VIT)
    give_gradients(model)
    before = [p.grad.clone() for p in model.parameters()]
    clip_(model.parameters(), limit)
    assert all(torch.equal(p.grad, b) for p, b in zip(model.parameters(), before, strict=True))


def test_no_gradient_at_all_stays_none():
    model = awake(VIT)
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    assert float(clip_(model.parameters(), 1.0)) == 0
    assert all(torch.equal(p.grad, torch.zeros_like(p)) for p in model.parameters())


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_norm_that_is_not_finite_is_told(value):
    model = awake(VIT)
    give_gradients(model)
    model.head.bias.grad[0] = value
    assert not torch.isfinite(clip_(model.parameters(), 1.0))


# ------------------------------------------------------------------------------------------------------------- averages


def follow(average: Average, model: nn.Module, values: list[float]) -> None:
    """Steps after which every weight has these values."""
    for step, value in enumerate(values):
        with torch.no_grad():
            for p in model.parameters():
                p.fill_(value)
        average.set_step(step)
        average.update()


def test_polyak_is_the_recorded_average():
    model = Small()
    average = Average(model, Recipe(average="polyak", average_decay=0.9999), 4)
    for step in range(4):
        with torch.no_grad():
            model.layer.weight.copy_(torch.from_numpy(RECORDED["sgd_w"][step].T.copy()))
        average.set_step(step)
        average.update()
    wanted = torch.from_numpy(RECORDED["ema_w_after4"].T.copy())
    assert_close(average.state["layer.weight"], wanted, atol=1e-9, rtol=0)


def test_an_average_of_equal_weights_is_they():
    for kind in ("ema", "polyak", "tail"):
        model = awake(VIT)
        average = Average(model, Recipe(average=kind), 10)
        for step in range(10):
            average.set_step(step)
            average.update()
        assert is_same(average.state, copy_of(model))


def test_ema_forgets_the_first_weights_quickly():
    model = Small()
    average = Average(model, Recipe(average="ema", average_decay=0.999), 100)
    assert average.weight_at(0) == pytest.approx(0.9)
    assert average.weight_at(10**6) == pytest.approx(0.001)
    follow(average, model, [1.0] * 30)
    assert_close(average.state["layer.bias"], torch.ones(2).double(), atol=1e-6, rtol=0)


def test_tail_is_the_mean_of_the_last_steps_and_before_them_the_weights():
    model = Small()
    average = Average(model, Recipe(average="tail", average_tail=0.3), 10)
    follow(average, model, [float(n) for n in range(7)])
    assert_close(average.state["layer.bias"], torch.full((2,), 6.0).double())
    follow(average, model, [float(n) for n in range(10)])
    assert_close(average.state["layer.bias"], torch.full((2,), 8.0).double(), rtol=1e-6, atol=0)


def test_a_skipped_step_leaves_the_average():
    model = awake(VIT)
    average = Average(model, Recipe(average="ema"), 10)
    before = {name: tensor.clone() for name, tensor in average.state.items()}
    with torch.no_grad():
        model.head.bias.add_(1)
    average.set_step(0)
    average.update(torch.ones(()))
    assert is_same(average.state, before)
    average.update(torch.zeros(()))
    assert not is_same(average.state, before)


def test_a_model_has_the_average_inside_and_its_own_weights_after():
    model = awake(VIT)
    average = Average(model, Recipe(average="polyak", average_decay=0.5), 10)
    first = copy_of(model)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(1)
    own, places = copy_of(model), [p.data_ptr() for p in model.parameters()]
    with pytest.raises(KeyError), average.applied_to(model):
        assert is_same(copy_of(model), first)
        raise KeyError
    assert is_same(copy_of(model), own)
    assert [p.data_ptr() for p in model.parameters()] == places
    average.copy_to(model)
    assert is_same(copy_of(model), first)


def test_no_average_is_nothing():
    model = awake(VIT)
    average = Average(model, Recipe(average="none"), 10)
    before = copy_of(model)
    average.set_step(3)
    average.update(torch.zeros(()))
    with average.applied_to(model):
        assert is_same(copy_of(model), before)
    average.copy_to(model)
    assert average.state == {}
    assert is_same(copy_of(model), before)


def test_an_average_of_another_model_is_refused():
    average = Average(awake(VIT), Recipe(average="ema"), 10)
    with pytest.raises(CheckpointError) as caught:
        average.load(Average(awake(VIT, classes=7), Recipe(average="ema"), 10).state)
    line_of(caught.value, "average", "head.weight")
