"""One change of the weights: augment, forward, backward, clip, check, update, average.

On a GPU the whole of it is captured once as a graph and replayed: a step then costs the host one copy and one launch.
The check for numbers that are not finite costs nothing: from the first bad step on, the device itself leaves weights,
moments and averages as they are, and writes down which step it was; the host reads that whenever it logs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from vitreous.errors import ConfigError, RunError
from vitreous.images.batches.batches import Batch
from vitreous.images.pixels import augment as augmenting
from vitreous.images.pixels.augment import Augment, DevicePlan
from vitreous.images.pixels.preprocess import finish
from vitreous.models.config import ViTConfig
from vitreous.models.cost import training_flops
from vitreous.models.preprocess import Preprocess
from vitreous.models.vit import Block
from vitreous.randomness import uniform
from vitreous.ranks import Ranks
from vitreous.training.recipe import Recipe, Seconds
from vitreous.training.run import optimizers
from vitreous.training.run.core_parallel import Lane, Lanes, drop_paths, has_dropout
from vitreous.training.run.tasks.classify import Task
from vitreous.training.run.transfer_buffer import Staging

if TYPE_CHECKING:
    from vitreous.training.run.runtime import Runtime
    from vitreous.training.run.stage import Stage

__all__ = ["Compiled", "Meters", "Step", "averaged", "choose_compiling", "precision_on", "prepare"]

Compiled = Literal["whole", "blocks", "none"]

COMPILE_WHOLE, COMPILE_BLOCKS = 90.0, 12.0  # seconds of uncompiled training above which compiling pays (a guess)
UNCOMPILED_SPEED = 1.2e14  # FLOP/s of a captured, uncompiled step; seen on an H200
WARM_UP = 3  # eager steps before a capture, as torch asks for


@dataclass(frozen=True)
class Meters:
    """What the steps since the last look add up to, on all ranks."""

    loss: float  # mean over images
    accuracy: float
    norm: float  # of the gradients before clipping, mean over steps
    images: int
    bad_at: int | None  # the first step whose loss or gradient was not finite


class Step:
    """Called with batches, changes the weights in place."""

    def __init__(
        self,
        task: Task,
        recipe: Recipe,
        *,
        steps: int,
        rule: Preprocess,
        classes: int,
        device: torch.device,
        ranks: Ranks,
        compiled: Compiled | None = None,
        captured: bool | None = None,
        parts: int | None = None,
        lanes: int = 1,
    ):
        """compiled: whole; blocks, one graph for all of them, which is less to compile; or none.  lanes: on a CPU."""
        self.task, self.recipe, self.rule, self.classes = task, recipe, rule, classes
        self.device, self.ranks = device, ranks
        self.parts = recipe.accumulation if parts is None else parts
        if not self._has_parts(self.parts):
            raise ConfigError(
                f"a batch of {recipe.batch} on {ranks.world} devices has no accumulation={self.parts} equal parts, "
                "of whole pairs where images are mixed; give another number"
            )
        is_gpu = device.type == "cuda"
        self.compiled = compiled if compiled is not None else "whole" if is_gpu else "none"
        self.is_captured = (is_gpu and ranks.world == 1) if captured is None else captured
        self.precision = precision_on(device, recipe.precision)
        self.network = task.network  # before it is wrapped
        self.parameters = [p for p in self.network.parameters() if p.requires_grad]
        self.optimizer = optimizers.make(self.network, recipe, device)
        self.average = optimizers.Average(self.network, recipe, steps)
        self.drop_paths = drop_paths(self.network)
        self.drop_rates = np.array([path.rate for path in self.drop_paths], np.float32)
        self.has_dropout = has_dropout(self.network)
        number = torch.float32 if device.type == "mps" else torch.float64
        self.meters = torch.zeros(4, dtype=number, device=device)  # loss, right answers, images, norms
        self.bad_at = torch.full((), -1, dtype=torch.int64, device=device)
        self.found_inf = torch.zeros((), device=device)
        self.done = 0  # steps since the meters were last read
        if ranks.world > 1:
            self.task.network = torch.nn.parallel.DistributedDataParallel(
                self.network, device_ids=[device.index] if is_gpu else None
            )
        self._loss: Callable[..., tuple[Tensor, Tensor]] = task.loss
        self._prepare: Callable[..., tuple[Tensor, Tensor]] = prepare
        self.blocks = [m for m in self.network.modules() if isinstance(m, Block) and self.compiled == "blocks"]
        if self.compiled != "none":
            torch._dynamo.reset()  # each fold is another network: its graphs must not count against one limit
            self._prepare = torch.compile(prepare, dynamic=False)
        if self.compiled == "whole":
            self._loss = torch.compile(task.loss, dynamic=False)
        self.lanes = Lanes(task, lanes) if lanes > 1 else None
        self.staging: Staging | None = None
        self.images = self.labels = torch.empty(0)
        self.augment: Augment | None = None
        self.is_cropped = True
        self.graph: torch.cuda.CUDAGraph | None = None

    @property
    def lane_count(self) -> int:
        return 1 if self.lanes is None else len(self.lanes)

    def __call__(self, batch: Batch, step: int, factor: float) -> None:
        """Step number `step` on this batch, at `factor` of every peak rate."""
        self._take(batch, step)
        optimizers.set_rate(self.optimizer, factor)
        self.average.set_step(step)
        if self.has_dropout:
            torch.manual_seed(_seed(self.recipe.seed, step, self.ranks.rank))
        if self.graph is not None:
            self.graph.replay()
        elif self.is_captured:
            self._capture()
            self.graph.replay()  # type: ignore[attr-defined]  # just made
        else:
            self._work()
        self.done += 1

    def read(self) -> Meters:
        """What happened since the last look; waits for the device."""
        sums = self.meters.clone()
        if self.ranks.world > 1:
            torch.distributed.all_reduce(sums)
        loss, right, images, norms = sums.tolist()
        bad = int(self.bad_at)
        good = max(self.done * self.ranks.world, 1)
        self.meters.zero_()
        self.done = 0
        count = max(images, 1.0)
        return Meters(loss / count, right / count, norms / good, int(images), None if bad < 0 else bad)

    def forgive(self) -> None:
        """Go on after a bad step."""
        self.bad_at.fill_(-1)

    def state(self) -> dict[str, Tensor]:
        """Everything that the next step depends on, under names, on the host."""
        found = self._places() | {"meters.done": torch.tensor(self.done)}
        return {name: tensor.detach().to("cpu", copy=True) for name, tensor in found.items()}

    @torch.no_grad()
    def load(self, state: Mapping[str, Tensor]) -> None:
        """As it was when `state` was taken; every tensor stays where it lies."""
        for name, tensor in self._places().items():
            if name not in state or state[name].shape != tensor.shape:
                raise RunError(f"the saved state does not fit this model and recipe at {name}; start afresh")
            tensor.copy_(state[name])
        self.done = int(state["meters.done"])

    def _places(self) -> dict[str, Tensor]:
        found = {f"network.{name}": tensor for name, tensor in self.network.state_dict().items()}
        found |= {f"optimizer.{name}": tensor for name, tensor in optimizers.state_of(self.optimizer).items()}
        found |= {f"average.{name}": tensor for name, tensor in self.average.state.items()}
        return found | {"meters.sums": self.meters, "meters.bad_at": self.bad_at}

    def split_further(self) -> bool:
        """Take the batch in twice as many parts; False where a part is as small as it can be."""
        if self.recipe.batch // self.ranks.world < 4 * self.parts or not self._has_parts(2 * self.parts):
            return False
        self.parts *= 2
        self.graph = None
        self.staging = None
        self.optimizer.zero_grad(set_to_none=True)
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
        return True

    def _has_parts(self, count: int) -> bool:
        """Whether this rank's images are `count` equal parts, and no pair that is mixed lies in two."""
        part, rest = divmod(self.recipe.batch // self.ranks.world, count)
        return part > 0 and not rest and not (self.recipe.augment.mixes and part % 2)

    # ------------------------------------------------------------------------------------------------------ one step

    def _take(self, batch: Batch, step: int) -> None:
        """Put the batch and what was drawn for it where the step reads."""
        size = (batch.images.shape[2], batch.images.shape[3]) if batch.sizes is None else batch.sizes
        arrays: dict[str, NDArray[Any]] = {}
        if batch.plan is not None:
            arrays |= batch.plan.arrays(None if batch.is_cropped else size)
        arrays |= {f"extra.{name}": array for name, array in self.task.host(batch).items()}
        if self.drop_paths:
            count = len(self.drop_paths)
            drawn = uniform(self.recipe.seed, "drop-path", batch.epoch, batch.drawn_ids, count)  # B paths
            factors = (drawn.astype(np.float32) >= self.drop_rates) / (1 - self.drop_rates)
            arrays["drop_path"] = np.ascontiguousarray(factors.T.astype(np.float32))
        arrays["step"] = np.array(step, np.int64)
        if self.staging is None or not self.staging.fits(arrays) or self.images.shape != batch.images.shape:
            if self.graph is not None:
                raise ConfigError("a captured step got a batch of another shape; this is our mistake: report it")
            self.staging = Staging(arrays, self.device)
            self.images, self.labels = torch.empty_like(batch.images), torch.empty_like(batch.labels)
        self.staging.send(arrays)
        self.augment = None if batch.plan is None else batch.plan.augment
        self.is_cropped = batch.is_cropped
        if self.is_captured:
            self.images.copy_(batch.images, non_blocking=True)
            self.labels.copy_(batch.labels, non_blocking=True)
        else:
            self.images, self.labels = batch.images, batch.labels

    def _work(self) -> None:
        """Everything on the device. No value is looked at."""
        assert self.staging is not None
        count = len(self.images) // self.parts
        total = torch.zeros((), device=self.device)
        right = torch.zeros((), device=self.device)
        for part in range(self.parts):
            rows = slice(part * count, (part + 1) * count)
            if self.lanes is not None:
                loss, correct, gradients = self.lanes.gradients(self._forward, rows, self.parameters)
                self._add(gradients)
            else:
                with self._quiet(part):
                    loss, correct = self._forward(rows)
                    (loss / self.parts).backward()
            total, right = total + loss.detach() / self.parts, right + correct.detach()
        norm = optimizers.clip_(self.parameters, self.recipe.clip)
        self._judge(total, norm)
        if self.device.type != "cpu":
            self.optimizer.found_inf = self.found_inf  # type: ignore[attr-defined]
            self._update(total, right, norm)
        elif not self.found_inf:
            self._update(total, right, norm)
        self.optimizer.zero_grad(set_to_none=True)

    def _add(self, gradients: list[Tensor | None]) -> None:
        """To those of the parts before, each by its share."""
        for parameter, gradient in zip(self.parameters, gradients, strict=True):
            if gradient is not None:
                gradient = gradient if self.parts == 1 else gradient / self.parts
                parameter.grad = gradient if parameter.grad is None else parameter.grad + gradient

    def _forward(self, rows: slice, lane: Lane | None = None) -> tuple[Tensor, Tensor]:
        assert self.staging is not None
        views = {name: view for name, view in self.staging.views.items() if name not in ("step", "drop_path")}
        extra = {name.removeprefix("extra."): view[rows] for name, view in views.items() if name.startswith("extra.")}
        for i, path in enumerate(self.drop_paths if lane is None else lane.drop_paths):
            path.factor = self.staging.views["drop_path"][i, rows]
        plan = None
        if self.augment is not None:
            drawn = {name: view[rows] for name, view in views.items() if not name.startswith("extra.")}
            drawn["partner"] = drawn["partner"] - rows.start
            plan = DevicePlan.of(self.augment, drawn)
        images, labels = self.images[rows], self.labels[rows]
        x, y = self._prepare(
            images, labels, plan, self.rule, self.classes, self.recipe.smoothing, cropped=self.is_cropped
        )
        is_half = self.precision == "bfloat16"
        casting = torch.autocast(self.device.type, torch.bfloat16, enabled=is_half, cache_enabled=False)
        with casting, _one_compiled(self.blocks):
            return (self._loss if lane is None else lane.loss)(x, y, extra)

    def _judge(self, loss: Tensor, norm: Tensor) -> None:
        assert self.staging is not None
        if self.ranks.world > 1:
            loss = loss.clone()
            torch.distributed.all_reduce(loss)
        is_bad = ~(torch.isfinite(loss) & torch.isfinite(norm))
        first = is_bad & (self.bad_at < 0)
        self.bad_at.copy_(torch.where(first, self.staging.views["step"], self.bad_at))
        self.found_inf.copy_(self.bad_at >= 0)

    def _update(self, loss: Tensor, right: Tensor, norm: Tensor) -> None:
        self.optimizer.step()
        self.average.update(self.found_inf)
        count = torch.full_like(loss, len(self.images))
        seen = torch.stack([loss * count, right, count, norm]).to(self.meters)
        self.meters += torch.where(self.found_inf > 0, torch.zeros_like(seen), seen)

    def _quiet(self, part: int) -> Any:
        """Gradients meet those of other ranks with the last part only."""
        network = self.task.network
        if isinstance(network, torch.nn.parallel.DistributedDataParallel) and part < self.parts - 1:
            return network.no_sync()
        return nullcontext()

    def _capture(self) -> None:
        """Record the step as a graph. The steps that warm it up leave no trace."""
        before = self.state()
        try:
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                for _ in range(WARM_UP):
                    self._work()
            torch.cuda.current_stream().wait_stream(side)
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                self._work()
            self.graph = graph
        finally:
            self.load(before)


def prepare(
    images: Tensor,
    labels: Tensor,
    plan: DevicePlan | None,
    rule: Preprocess,
    classes: int,
    smoothing: float,
    *,
    cropped: bool,
) -> tuple[Tensor, Tensor]:
    """Bytes and labels as the network takes them.  B C H W, B -> B C H W float, B K."""
    if plan is not None:
        x = augmenting.apply(images, plan, rule, cropped=cropped)
        return x, augmenting.targets(labels, plan, classes, smoothing)
    y = labels.float() if labels.ndim == 2 else nn.functional.one_hot(labels, classes).float()
    return finish(images, rule), y * (1 - smoothing) + smoothing / classes


@contextmanager
def _one_compiled(blocks: list[Block]) -> Iterator[None]:
    """Within it, blocks run compiled: their class's forward, once, for all of them."""
    for block in blocks:
        vars(block)["forward"] = partial(_compiled_forward(type(block)), block)  # type: ignore[arg-type]
    try:
        yield
    finally:
        for block in blocks:
            del vars(block)["forward"]


@cache
def _compiled_forward(kind: type[nn.Module]) -> Callable[..., Tensor]:
    return torch.compile(kind.forward, dynamic=False)


@contextmanager
def averaged(step: Step) -> Iterator[None]:
    """The network with its averaged weights, where the recipe averages."""
    with step.average.applied_to(step.network):
        yield


def precision_on(device: torch.device, wanted: str) -> str:
    """auto: bfloat16 on GPUs that have it, elsewhere float32.  bfloat16 is refused on CPUs: some die of it."""
    if wanted == "bfloat16" and not (device.type == "cuda" and torch.cuda.is_bf16_supported()):
        raise ConfigError(f"bfloat16 on {device.type} is slow or missing here; say precision=float32 or auto")
    if wanted == "auto":
        has = device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
        return "bfloat16" if has else "float32"
    return wanted


def choose_compiling(stage: Stage, runtime: Runtime) -> Compiled:
    """What of a step to compile: it takes up to a minute, which a short run does not win back; blocks take less."""
    if runtime.compiled is not None or runtime.device.type != "cuda":
        return runtime.compiled or "none"
    if isinstance(stage.recipe.length, Seconds):
        expected = stage.recipe.length.count
    else:
        each = training_flops(stage.model.config) / UNCOMPILED_SPEED
        expected = each * stage.recipe.batch * stage.steps / runtime.ranks.world
    has_blocks = isinstance(stage.model.config, ViTConfig)
    return "whole" if expected > COMPILE_WHOLE else "blocks" if expected > COMPILE_BLOCKS and has_blocks else "none"


def _seed(seed: int, step: int, rank: int) -> int:
    """Of dropout: exact on resume, not across ranks or batch sizes."""
    return int(uniform(seed, "dropout", step, [rank])[0, 0] * 2**53)
