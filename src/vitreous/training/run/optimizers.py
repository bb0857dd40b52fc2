"""From gradients to weights: groups of parameters, optimisers, clipping, and averages of the weights.

On a GPU nothing here asks the device for a number, and all state is there before the first step: a whole training step
can be captured as one graph. A rate is then a tensor that is written in place.

`optimizer.found_inf`, where the caller sets it (a 0-dim float32 tensor), is 1 for a step that must change nothing,
state included: gradients may then hold anything.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.optim.adamw import adamw

from vitreous.errors import CheckpointError, ConfigError
from vitreous.evaluation.eager_optimizer import EagerOptimizer, eager_step
from vitreous.models.taps import COMPILED_PREFIX, plain
from vitreous.training.recipe import Recipe

if TYPE_CHECKING:
    from vitreous.training.run.sharding import RankRows, ShardedTask

# ---------------------------------------------------------------------------------------------------------- parameters


def groups(model: nn.Module, recipe: Recipe) -> list[dict[str, Any]]:
    """Parameters that share a rate and a decay: `params`, `names`, `kind`, `lr` (the peak) and `weight_decay`.

    kind   head;  matrix: kernels of the blocks, where Muon turns them;  kernel: other weights of linear maps and
           convolutions;  other: biases, norms, tokens and positions, which never decay.
    Frozen parameters are left out.
    """
    kernels = {id(m.weight) for m in model.modules() if isinstance(m, nn.Linear | nn.Conv2d)}
    found: dict[tuple[str, float, float], dict[str, Any]] = {}
    named = [(name, p) for name, p in named_parameters(model) if p.requires_grad]
    layer_of = layers(name for name, _ in named_parameters(model))
    last = max(layer_of.values(), default=0)
    for name, parameter in named:
        is_kernel, is_head = id(parameter) in kernels, _is_of_head(name)
        is_matrix = recipe.optimizer == "muon" and is_kernel and layer_of[name] not in (0, last)
        kind = "head" if is_head else "matrix" if is_matrix else "kernel" if is_kernel else "other"
        peak = recipe.muon_lr if is_matrix else recipe.peak_lr
        peak *= recipe.layer_decay ** (last - layer_of[name])
        if is_head and recipe.head_lr is not None:
            peak = recipe.head_lr
        decay = recipe.weight_decay if is_kernel else 0.0
        group = found.setdefault(
            (kind, peak, decay), {"params": [], "names": [], "kind": kind, "lr": peak, "weight_decay": decay}
        )
        group["params"].append(parameter)
        group["names"].append(name)
    if not found:
        raise ConfigError("every parameter is frozen; leave some to train, the head at least")
    return list(found.values())


def named_parameters(model: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """Under their own names, however the model is wrapped."""
    for name, parameter in plain(model).named_parameters():
        yield name.replace(COMPILED_PREFIX, ""), parameter


def layers(names: Iterable[str]) -> dict[str, int]:
    """How far from the image each parameter lies: 0 what makes the tokens, then block by block, the readout last."""
    order = {name: _depth(name) for name in names}
    ranks = {depth: rank for rank, depth in enumerate(sorted({(0, 0), (10**6, 0), *order.values()}))}
    return {name: ranks[depth] for name, depth in order.items()}


def _depth(name: str) -> tuple[int, int]:
    if re.search(r"(^|\.)(stem|embedding|root|rotation|shared)\.", name):
        return 0, 0
    if found := re.search(r"(^|\.)(?:blocks|layer_positions\.tables|places\.bias\.layers)\.(\d+)\.", name):
        return 1 + int(found[2]), 0
    if found := re.search(r"(^|\.)stages\.(\d+)\.(?:\D*\.)?(\d+)\.", name):
        return 1 + int(found[2]), int(found[3])
    return 10**6, 0


def _is_of_head(name: str) -> bool:
    return re.search(r"(^|\.)(head|predictor)\.", name) is not None


# ---------------------------------------------------------------------------------------------------------- optimisers


def make(
    model: nn.Module, recipe: Recipe, device: torch.device, shards: ShardedTask | None = None
) -> torch.optim.Optimizer:
    """The recipe's optimiser, its state at zero. Every group has `peak_lr`; rates are set by `set_rate`.

    sgd has momentum without dampening, and its decay is L2 (BiT); adam and adamw decay decoupled from the gradient.
    shards: of the model, if it lies in shards; the optimiser changes this rank's rows.
    """
    device = torch.device(device)
    parts = groups(model, recipe)
    for part in parts:
        part["peak_lr"] = part["lr"]
        part["shapes"] = [tuple(parameter.shape) for parameter in part["params"]]
        if shards is not None:
            part["params"] = [shards.own[name] for name in part["names"]]
        if device.type == "cuda":
            part["lr"] = torch.tensor(part["lr"], dtype=torch.float32, device=device)
    optimizer = MAKERS[recipe.optimizer](parts, recipe, device.type == "cuda")
    if shards is not None and isinstance(optimizer, Muon | Lamb):
        optimizer.rows = shards.rows
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            optimizer.state[parameter].update(_zeros(parameter, STATE[_rule(recipe.optimizer, group)], recipe))
    return optimizer


class _SGD(EagerOptimizer, torch.optim.SGD):
    step = eager_step(torch.optim.SGD)


class _AdamW(EagerOptimizer, torch.optim.AdamW):
    step = eager_step(torch.optim.AdamW)


def _sgd(parts: list[dict[str, Any]], recipe: Recipe, on_gpu: bool) -> torch.optim.Optimizer:
    return _SGD(parts, lr=recipe.peak_lr, momentum=recipe.momentum, fused=True)


def _adamw(parts: list[dict[str, Any]], recipe: Recipe, on_gpu: bool) -> torch.optim.Optimizer:
    made = _AdamW(parts, lr=recipe.peak_lr, betas=recipe.betas, eps=recipe.eps, fused=True, capturable=on_gpu)
    made._warned_capturable_if_run_uncaptured = True  # both ways are intended
    return made


def _muon(parts: list[dict[str, Any]], recipe: Recipe, on_gpu: bool) -> torch.optim.Optimizer:
    return Muon(parts, momentum=recipe.momentum, betas=recipe.betas, eps=recipe.eps)


def _lamb(parts: list[dict[str, Any]], recipe: Recipe, on_gpu: bool) -> torch.optim.Optimizer:
    return Lamb(parts, betas=recipe.betas, eps=recipe.eps)


Maker = Callable[[list[dict[str, Any]], Recipe, bool], torch.optim.Optimizer]
MAKERS: dict[str, Maker] = {"adamw": _adamw, "adam": _adamw, "sgd": _sgd, "muon": _muon, "lamb": _lamb}
STATE = {
    "adamw": ("step", "exp_avg", "exp_avg_sq"),
    "sgd": ("momentum_buffer",),
    "matrix": ("momentum_buffer",),
}


def _rule(optimizer: str, group: Mapping[str, Any]) -> str:
    """The rule whose state a group's parameters keep."""
    return "sgd" if optimizer == "sgd" else "matrix" if group["kind"] == "matrix" else "adamw"


def _zeros(parameter: Tensor, names: tuple[str, ...], recipe: Recipe) -> dict[str, Tensor]:
    """A momentum that starts at 0 equals what torch's first step makes, and lets that step be skipped."""
    if recipe.optimizer == "sgd" and not recipe.momentum:
        return {}
    step = torch.zeros((), dtype=torch.float32, device=parameter.device)
    return {name: step if name == "step" else torch.zeros_like(parameter) for name in names}


def set_rate(optimizer: torch.optim.Optimizer, factor: float | Tensor) -> None:
    """Every group's rate becomes `factor` times its peak, in place if it is a tensor.

    A factor on the device may be part of a captured graph.
    """
    rates = [group["lr"] for group in optimizer.param_groups]
    peaks = [group["peak_lr"] for group in optimizer.param_groups]
    if not isinstance(rates[0], Tensor):
        for group in optimizer.param_groups:
            group["lr"] = float(factor) * group["peak_lr"]
    elif isinstance(factor, Tensor):
        torch._foreach_copy_(rates, torch._foreach_mul([factor] * len(rates), peaks))
    else:
        for rate, peak in zip(rates, peaks, strict=True):
            rate.fill_(factor * peak)


def state_of(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """All state as `PARAMETER/KIND`, such as `blocks.0.mlp.expand.weight/exp_avg`."""
    return {
        f"{name}/{kind}": tensor
        for group in optimizer.param_groups
        for name, parameter in zip(group["names"], group["params"], strict=True)
        for kind, tensor in optimizer.state[parameter].items()
    }


def load_state(optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor]) -> None:
    """What `state_of` gave, copied into place, so that a captured graph continues with it."""
    _copy_named(state_of(optimizer), tensors, "the optimiser's state")


def _copy_named(into: Mapping[str, Tensor], tensors: Mapping[str, Tensor], what: str) -> None:
    for name in [*into, *tensors]:
        if name not in tensors or name not in into or tensors[name].shape != into[name].shape:
            raise CheckpointError(
                f"{what} does not fit this model and recipe at {name}; resume with those it began with"
            )
    with torch.no_grad():
        for name, tensor in into.items():
            tensor.copy_(tensors[name])


@dataclass
class _Skip:
    """A step that must change nothing, without asking the device whether this is one."""

    found_inf: Tensor | None

    def clean(self, gradient: Tensor) -> Tensor:
        """0 if the step is skipped: the gradient may not be finite."""
        return gradient if self.found_inf is None else gradient.masked_fill(self.found_inf > 0, 0)

    def rate(self, rate: float | Tensor) -> float | Tensor:
        """0 if the step is skipped."""
        return rate if self.found_inf is None else rate * (1 - self.found_inf)

    def decay(self, factor: float) -> float | Tensor:
        """1 if the step is skipped."""
        return factor if self.found_inf is None else factor + (1 - factor) * self.found_inf


class Muon(EagerOptimizer):
    """Momentum turned into the nearest orthogonal matrix (Jordan 2024); AdamW for all but the matrices of blocks.

        M ← μ M + G;   W ← (1 − η λ) W − η √max(1, rows / columns) · orthogonalised(G + μ M)

    Matrices of one shape are orthogonalised together; a qkv counts as three, a convolution as output × all inputs.
    """

    def __init__(
        self,
        params: list[dict[str, Any]],
        *,
        momentum: float = 0.95,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
    ):
        super().__init__(params, {"momentum": momentum, "betas": betas, "eps": eps, "weight_decay": 0.0})
        self.found_inf: Tensor | None = None
        self.rows: RankRows | None = None  # of a network in shards

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            if group["kind"] == "matrix" and self.rows is not None:
                self._turn_rows(group, self.rows)
            elif group["kind"] == "matrix":
                self._turn(group)
            else:
                _adamw_step(group, self.state, self.found_inf)

    def _turn(self, group: dict[str, Any]) -> None:
        skip, momentum = _Skip(self.found_inf), group["momentum"]
        rate = skip.rate(group["lr"])
        parts: dict[tuple[int, ...], tuple[list[Tensor], ...]] = {}
        for name, parameter in zip(group["names"], group["params"], strict=True):
            if parameter.grad is None:
                continue
            count = 3 if name.endswith("qkv.weight") else 1
            buffer = self.state[parameter]["momentum_buffer"]
            cut = [_matrices(tensor, count) for tensor in (parameter, parameter.grad.contiguous(), buffer)]
            lists = parts.setdefault(tuple(cut[0][0].shape), ([], [], []))
            for kept, more in zip(lists, cut, strict=True):
                kept.extend(more)
        for (rows, columns), (weights, gradients, buffers) in parts.items():
            gradient = skip.clean(torch.stack(gradients))  # matrices rows columns
            torch._foreach_mul_(buffers, skip.decay(momentum))
            torch._foreach_add_(buffers, list(gradient.unbind()))
            ahead = torch.add(gradient, torch.stack(buffers), alpha=momentum)
            turned = orthogonalised(ahead).to(weights[0].dtype) * (rate * max(1, rows / columns) ** 0.5)
            if group["weight_decay"]:
                torch._foreach_mul_(weights, 1 - rate * group["weight_decay"])
            torch._foreach_sub_(weights, list(turned.unbind()))

    def _turn_rows(self, group: dict[str, Any], rows: RankRows) -> None:
        """Each rank gathers a matrix, turns it whole, and keeps its rows: all ranks do the same turning."""
        skip, momentum = _Skip(self.found_inf), group["momentum"]
        rate = skip.rate(group["lr"])
        for name, parameter, shape in zip(group["names"], group["params"], group["shapes"], strict=True):
            if parameter.grad is None:
                continue
            buffer, gradient = self.state[parameter]["momentum_buffer"], skip.clean(parameter.grad)
            buffer.mul_(skip.decay(momentum)).add_(gradient)
            whole = rows.whole(torch.add(gradient, buffer, alpha=momentum), shape)
            cut = torch.stack(_matrices(whole, 3 if name.endswith("qkv.weight") else 1))
            scale = rate * max(1, cut.shape[1] / cut.shape[2]) ** 0.5
            turned = orthogonalised(cut).to(parameter.dtype) * scale
            if group["weight_decay"]:
                parameter.mul_(1 - rate * group["weight_decay"])
            parameter.sub_(rows.own(turned.reshape(shape)))


def _matrices(tensor: Tensor, count: int = 1) -> list[Tensor]:
    """A weight as `count` matrices, views of it: output × all inputs."""
    return list(tensor.view(count, tensor.shape[0] // count, -1).unbind())


def orthogonalised(x: Tensor, steps: int = 5) -> Tensor:
    """Each matrix with its singular values brought to about 1 (0.7 … 1.2): a quintic Newton–Schulz iteration.

    X ← aX + (bA + cA²) X,  A = X Xᵀ.   x: B rows columns.  In bfloat16 on a GPU.
    """
    a, b, c = 3.4445, -4.7750, 2.0315
    y = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    y = y.bfloat16() if x.is_cuda else y
    is_tall = x.shape[-2] > x.shape[-1]
    y = y.mT if is_tall else y
    for _ in range(steps):
        gram = y @ y.mT
        y = torch.baddbmm(y, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), y, beta=a)
    return y.mT if is_tall else y


def _adamw_step(group: dict[str, Any], state: Mapping[Tensor, dict[str, Tensor]], found_inf: Tensor | None) -> None:
    """torch's fused AdamW, for a group of one of our optimisers."""
    params = [p for p in group["params"] if p.grad is not None]
    if not params:
        return
    kept = [state[p] for p in params]
    adamw(
        params,
        [p.grad for p in params],
        [s["exp_avg"] for s in kept],
        [s["exp_avg_sq"] for s in kept],
        [],
        [s["step"] for s in kept],
        fused=True,
        found_inf=found_inf,
        amsgrad=False,
        beta1=group["betas"][0],
        beta2=group["betas"][1],
        lr=group["lr"],
        weight_decay=group["weight_decay"],
        eps=group["eps"],
        maximize=False,
    )


class Lamb(EagerOptimizer):
    """AdamW whose step is as long as each tensor is large (You 2019; DeiT III's).

        u = m̂ / (√v̂ + ε) + λ w;   w ← w − η (‖w‖ / ‖u‖) u

    What has no decay keeps AdamW's length, as in the fused code that DeiT III ran; so does a tensor that is 0.
    """

    def __init__(self, params: list[dict[str, Any]], *, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8):
        super().__init__(params, {"betas": betas, "eps": eps, "weight_decay": 0.0})
        self.found_inf: Tensor | None = None
        self.rows: RankRows | None = None  # of a network in shards

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            if group["weight_decay"]:
                self._scaled(group)
            else:
                _adamw_step(group, self.state, self.found_inf)

    def _scaled(self, group: dict[str, Any]) -> None:
        params = [p for p in group["params"] if p.grad is not None]
        if not params:
            return
        skip, (beta1, beta2) = _Skip(self.found_inf), group["betas"]
        gradients = [skip.clean(p.grad) for p in params]
        kept = [self.state[p] for p in params]
        steps, means, squares = ([s[name] for s in kept] for name in ("step", "exp_avg", "exp_avg_sq"))
        one = torch.ones_like(steps[0]) if self.found_inf is None else 1 - self.found_inf
        torch._foreach_add_(steps, [one] * len(steps))  # the host would read back a single tensor
        torch._foreach_mul_(means, skip.decay(beta1))
        torch._foreach_add_(means, torch._foreach_mul(gradients, 1 - beta1))
        torch._foreach_mul_(squares, skip.decay(beta2))
        torch._foreach_add_(squares, torch._foreach_mul(torch._foreach_mul(gradients, gradients), 1 - beta2))
        count = steps[0].clamp(min=1)  # 0 after a skipped first step
        left1, left2 = (1 - torch.full_like(count, beta) ** count for beta in (beta1, beta2))  # made on the device
        roots = torch._foreach_sqrt(torch._foreach_div(squares, left2))
        torch._foreach_add_(roots, group["eps"])
        updates = torch._foreach_div(torch._foreach_div(means, left1), roots)
        torch._foreach_add_(updates, params, alpha=group["weight_decay"])
        lengths, sizes = torch.stack(torch._foreach_norm(updates)), torch.stack(torch._foreach_norm(params))
        if self.rows is not None:
            lengths, sizes = self.rows.norms(torch.stack([lengths, sizes])).unbind()
        trust = torch.where((lengths > 0) & (sizes > 0), sizes / lengths, 1.0) * skip.rate(group["lr"])
        torch._foreach_sub_(params, [u * t for u, t in zip(updates, trust.unbind(), strict=True)])


# ------------------------------------------------------------------------------------------------ clipping and averages


def clip_(parameters: Iterable[Tensor], limit: float | None, rows: RankRows | None = None) -> Tensor:
    """All gradients together scaled by min(1, limit / norm), exactly.  Returns their norm before that, 0-dim.

    rows: given if each rank has its rows of the gradients; the norm is then of all ranks'.
    """
    gradients = [p.grad for p in parameters if p.grad is not None]
    assert gradients, "backward comes before clip_"
    norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients)))
    if rows is not None:
        norm = rows.norms(norm)
    if limit is not None:
        torch._foreach_mul_(gradients, (limit / norm).clamp(max=1))
    return norm


class Average:
    """A second set of weights that follows the trained ones:  average ← average + weight (θ − average).

    ema      weight 1 − min(d, (1 + t) / (10 + t)): fast at first
    polyak   weight 1 − d from the first weights on (P1, for its ImageNet figures)
    tail     the plain mean of the last `average_tail` of the steps; before that, θ itself
    none     nothing is kept, and nothing is done

    `set_step(t)` writes the weight of step t = 0, 1, …; `update()` may then be part of a captured graph.
    """

    def __init__(self, model: nn.Module, recipe: Recipe, steps: int, shards: ShardedTask | None = None):
        """shards: of the model, if it lies in shards; this rank's rows are averaged."""
        self.recipe, self.steps = recipe, steps
        parameters = named_parameters(model) if shards is None else shards.own.items()
        named = [] if recipe.average == "none" else list(parameters)
        self._followed: list[Tensor] = [p for _, p in named]
        self.state = {name: p.detach().clone() for name, p in named}
        self.weight = torch.zeros((), dtype=torch.float32, device=named[0][1].device if named else None)

    def weight_at(self, step: int) -> float:
        r = self.recipe
        if r.average == "tail":
            first = self.steps - max(1, round(r.average_tail * self.steps))
            return 1 / max(step - first + 1, 1)
        decay = min(r.average_decay, (1 + step) / (10 + step)) if r.average == "ema" else r.average_decay
        return 1 - decay

    def set_step(self, step: int) -> None:
        self.weight.fill_(self.weight_at(step))

    @torch.no_grad()
    def update(self, found_inf: Tensor | None = None) -> None:
        """Call after each step of the optimiser.  found_inf: 1 if that step was skipped; then this is skipped too."""
        if not self.state:
            return
        weight = self.weight if found_inf is None else self.weight * (1 - found_inf)
        kept = list(self.state.values())
        moves = torch._foreach_sub(self._followed, kept)
        torch._foreach_mul_(moves, weight)
        torch._foreach_add_(kept, moves)

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Another average's `state`, copied into place."""
        _copy_named(self.state, tensors, "the average of the weights")

    def copy_to(self, model: nn.Module) -> None:
        """Give a model the average's weights; its buffers stay its own."""
        if self.state:
            _copy_named(dict(named_parameters(model)), self.state, "the average of the weights")

    @contextmanager
    def applied_to(self, model: nn.Module) -> Iterator[None]:
        """The model has the average's weights inside, and its own again after; both in place."""
        if not self.state:
            yield
            return
        own = {name: p.detach().clone() for name, p in named_parameters(model)}
        self.copy_to(model)
        try:
            yield
        finally:
            _copy_named(dict(named_parameters(model)), own, "the model")
