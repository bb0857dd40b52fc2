"""One change of the weights: augment, forward, backward, clip, check, update, average.

On a GPU the whole of it is captured once as a graph and replayed: a step then costs the host one copy and one launch.
The check for numbers that are not finite costs nothing: from the first bad step on, the device itself leaves weights,
moments and averages as they are, and writes down which step it was; the host reads that whenever it logs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
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
from vitreous.models.config import Config, ViTConfig
from vitreous.models.cost import training_flops
from vitreous.models.model import Model
from vitreous.models.preprocess import Preprocess
from vitreous.models.vit import Block
from vitreous.randomness import uniform
from vitreous.ranks import Ranks, gather
from vitreous.training.plan.parallel import Strategy
from vitreous.training.recipe import Recipe, Seconds
from vitreous.training.run import optimizers
from vitreous.training.run.core_parallel import Lane, Lanes, drop_paths, has_dropout
from vitreous.training.run.sharding import ShardedTask
from vitreous.training.run.tasks.classify import Task

if TYPE_CHECKING:
    from vitreous.training.run.runtime import Runtime
    from vitreous.training.run.stage import TrainingStage

Compiled = Literal["whole", "blocks", "none"]

COMPILE_WHOLE, COMPILE_BLOCKS = 90.0, 12.0  # seconds of uncompiled training above which compiling pays (a guess)
UNCOMPILED_SPEED = 1.2e14  # FLOP/s of a captured, uncompiled step; seen on an H200
ALIGNED_BYTES = 64  # bytes: every array on the device begins at a multiple
STEPS_ON_THEIR_WAY = 4  # steps whose numbers may be on their way
SUMS = "meters.sums"  # of a state: a row for each rank that saved it
MAX_COMPILED = 1024  # networks of different shapes whose code a process keeps
WARM_UP_STEPS = 3  # eager steps before a capture, as torch asks for


@dataclass(frozen=True)
class Meters:
    """What the steps since the last look add up to, on all ranks."""

    loss: float  # mean over images
    accuracy: float
    norm: float  # of the gradients before clipping, mean over steps
    images: int
    bad_at: int | None  # the first step whose loss or gradient was not finite


class _Staging:
    """Small arrays that the host draws for each step, sent to the device in one copy.

    `views` always lie at the same addresses, so a captured step finds each step's numbers there.
    """

    def __init__(self, like: Mapping[str, NDArray[Any]], device: torch.device):
        self.device = device
        self.places: dict[str, tuple[int, int]] = {}
        end = 0
        for name, array in like.items():
            self.places[name] = end, end + array.nbytes
            end = -(-(end + array.nbytes) // ALIGNED_BYTES) * ALIGNED_BYTES
        self.shapes = {name: (array.shape, array.dtype) for name, array in like.items()}
        self.memory = torch.zeros(max(end, 1), dtype=torch.uint8, device=device)
        self.views = {name: self._view(self.memory, name) for name in like}
        is_gpu = device.type == "cuda"
        self.host = [torch.zeros(max(end, 1), dtype=torch.uint8, pin_memory=is_gpu) for _ in range(STEPS_ON_THEIR_WAY)]
        self.sent: list[torch.cuda.Event | None] = [None] * STEPS_ON_THEIR_WAY
        self.slot = 0

    def fits(self, arrays: Mapping[str, NDArray[Any]]) -> bool:
        return {name: (array.shape, array.dtype) for name, array in arrays.items()} == self.shapes

    def send(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Copy these into `views`, in the order of the device's queue."""
        slot, self.slot = self.slot, (self.slot + 1) % STEPS_ON_THEIR_WAY
        if (event := self.sent[slot]) is not None:
            event.synchronize()  # four steps back: long done
        raw = self.host[slot].numpy()
        for name, array in arrays.items():
            begin, end = self.places[name]
            raw[begin:end] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        self.memory.copy_(self.host[slot], non_blocking=True)
        if self.device.type == "cuda":
            self.sent[slot] = torch.cuda.Event()
            self.sent[slot].record()  # type: ignore[union-attr]

    def _view(self, memory: Tensor, name: str) -> Tensor:
        shape, kind = self.shapes[name]
        begin, end = self.places[name]
        kinds = torch.from_numpy(np.empty(0, kind)).dtype
        return memory[begin:end].view(kinds).view(shape)


@dataclass(eq=False)
class _Inputs:
    """Where a step reads: the batch and what was drawn for it, always at the same addresses."""

    device: torch.device
    staging: _Staging | None = None
    images: Tensor = field(default_factory=lambda: torch.empty(0))
    labels: Tensor = field(default_factory=lambda: torch.empty(0))
    augment: Augment | None = None
    is_cropped: bool = True

    def take(self, batch: Batch, arrays: dict[str, NDArray[Any]], *, is_fixed: bool, copies: bool) -> None:
        """is_fixed: a captured graph reads these addresses.  copies: the batch is copied to them."""
        if self.staging is None or not self.staging.fits(arrays) or self.images.shape != batch.images.shape:
            if is_fixed:
                raise ConfigError("a captured step got a batch of another shape; this is our mistake: report it")
            self.staging = _Staging(arrays, self.device)
            self.images, self.labels = torch.empty_like(batch.images), torch.empty_like(batch.labels)
        self.staging.send(arrays)
        self.augment = None if batch.plan is None else batch.plan.augment
        self.is_cropped = batch.is_cropped
        if copies:
            self.images.copy_(batch.images, non_blocking=True)
            self.labels.copy_(batch.labels, non_blocking=True)
        else:
            self.images, self.labels = batch.images, batch.labels

    @property
    def views(self) -> dict[str, Tensor]:
        """The drawn arrays on the device, by name."""
        assert self.staging is not None
        return self.staging.views

    def plan_of(self, rows: slice) -> DevicePlan | None:
        """What the augmentation does to these rows."""
        if self.augment is None:
            return None
        own = ("step", "drop_path")
        drawn = {n: view[rows] for n, view in self.views.items() if n not in own and not n.startswith("extra.")}
        drawn["partner"] = drawn["partner"] - rows.start
        return DevicePlan.of(self.augment, drawn)

    def extra_of(self, rows: slice) -> dict[str, Tensor]:
        """What the task drew for these rows."""
        return {n.removeprefix("extra."): view[rows] for n, view in self.views.items() if n.startswith("extra.")}


class _DeviceMeters:
    """Sums over the steps since the last look, and the first bad step; all on the device."""

    def __init__(self, device: torch.device):
        number = torch.float32 if device.type == "mps" else torch.float64
        self.sums = torch.zeros(4, dtype=number, device=device)  # loss, right answers, images, norms
        self.bad_at = torch.full((), -1, dtype=torch.int64, device=device)
        self.found_inf = torch.zeros((), device=device)
        self.steps = 0  # since the last look

    def judge(self, loss: Tensor, norm: Tensor, step: Tensor) -> None:
        """Write down the first step whose loss or gradient is not finite."""
        is_bad = ~(torch.isfinite(loss) & torch.isfinite(norm))
        first = is_bad & (self.bad_at < 0)
        self.bad_at.copy_(torch.where(first, step, self.bad_at))
        self.found_inf.copy_(self.bad_at >= 0)

    def add(self, loss: Tensor, right: Tensor, norm: Tensor, images: int) -> None:
        count = torch.full_like(loss, images)
        seen = torch.stack([loss * count, right, count, norm]).to(self.sums)
        self.sums += torch.where(self.found_inf > 0, torch.zeros_like(seen), seen)

    def of_ranks(self, ranks: Ranks) -> Tensor:
        """The sums of each rank; of one rank, as they are."""
        return self.sums if ranks.world == 1 else torch.stack(gather(self.sums.cpu()))

    @staticmethod
    def own_sums(saved: Tensor, ranks: Ranks) -> Tensor:
        """This rank's part of what `of_ranks` gave; an equal share if the number of ranks changed."""
        if saved.ndim == 1:
            return saved
        return saved[ranks.rank] if len(saved) == ranks.world else saved.mean(0)

    def read(self, ranks: Ranks) -> Meters:
        """What happened on all ranks since the last look; waits for the device."""
        sums = self.sums.clone()
        if ranks.world > 1:
            torch.distributed.all_reduce(sums)
        loss, right, images, norms = sums.tolist()
        bad, good = int(self.bad_at), max(self.steps * ranks.world, 1)
        self.sums.zero_()
        self.steps = 0
        count = max(images, 1.0)
        return Meters(loss / count, right / count, norms / good, int(images), None if bad < 0 else bad)


class _Compute:
    """Bytes to loss, compiled as asked."""

    def __init__(
        self,
        task: Task,
        network: nn.Module,
        recipe: Recipe,
        rule: Preprocess,
        classes: int,
        device: torch.device,
        compiled: Compiled,
    ):
        self.rule, self.classes, self.smoothing, self.kind = rule, classes, recipe.smoothing, device.type
        self.is_half = precision_on(device, recipe.precision) == "bfloat16"
        self.loss: Callable[..., tuple[Tensor, Tensor]] = task.loss
        self.prepare: Callable[..., tuple[Tensor, Tensor]] = prepare
        self.blocks = [m for m in network.modules() if isinstance(m, Block) and compiled == "blocks"]
        if compiled != "none":
            self.prepare = compiled_once(prepare)
        if compiled == "whole":
            self.loss = partial(compiled_once(type(task).loss), task)

    def __call__(self, inputs: _Inputs, rows: slice, loss: Callable[..., tuple[Tensor, Tensor]] | None) -> Any:
        """Mean loss and right answers of these rows.  loss: a lane's own."""
        images, labels = inputs.images[rows], inputs.labels[rows]
        plan, extra = inputs.plan_of(rows), inputs.extra_of(rows)
        x, y = self.prepare(images, labels, plan, self.rule, self.classes, self.smoothing, cropped=inputs.is_cropped)
        casting = torch.autocast(self.kind, torch.bfloat16, enabled=self.is_half, cache_enabled=False)
        with casting:
            return (self.loss if loss is None else loss)(x, y, extra)


class _Noise:
    """What is drawn inside the network: drop-path by address, dropout by step and rank."""

    def __init__(self, network: nn.Module, seed: int):
        self.seed = seed
        self.paths = drop_paths(network)
        self.rates = np.array([path.rate for path in self.paths], np.float32)
        self.has_dropout = has_dropout(network)

    def arrays(self, batch: Batch) -> dict[str, NDArray[Any]]:
        """The factors of each path for each image."""
        if not self.paths:
            return {}
        drawn = uniform(self.seed, "drop-path", batch.epoch, batch.drawn_ids, len(self.paths))  # B paths
        factors = (drawn.astype(np.float32) >= self.rates) / (1 - self.rates)
        return {"drop_path": np.ascontiguousarray(factors.T.astype(np.float32))}

    def seed_dropout(self, step: int, rank: int) -> None:
        """Exact on resume, not across ranks or batch sizes."""
        if self.has_dropout:
            torch.manual_seed(int(uniform(self.seed, "dropout", step, [rank])[0, 0] * 2**53))


class Step:
    """Called with a batch, it changes the weights in place."""

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
        strategy: Strategy | None = None,
    ):
        """compiled: whole; blocks (one graph for all of them, faster to compile); or none.  lanes: on a CPU."""
        strategy = Strategy() if strategy is None else strategy
        self.task, self.recipe, self.ranks = task, recipe, ranks
        self.parts = max(recipe.accumulation, strategy.parts) if parts is None else parts
        if not self._has_parts(self.parts):
            raise ConfigError(
                f"a batch of {recipe.batch} on {ranks.world} devices has no accumulation={self.parts} equal parts, "
                "of whole pairs where images are mixed; give another number"
            )
        is_gpu = device.type == "cuda"
        self.shards: ShardedTask | None = None
        if strategy.kind == "fsdp":
            half = precision_on(device, recipe.precision) == "bfloat16"
            self.shards = ShardedTask(task, device, ranks, half=half)
            self.task = task = self.shards.task
        self.network = task.network  # before it is wrapped
        self.is_checkpointed = False
        own = self.network.parameters() if self.shards is None else self.shards.own.values()
        self.parameters = [p for p in own if p.requires_grad]
        self.optimizer = optimizers.make(self.network, recipe, device, self.shards)
        self.average = optimizers.Average(self.network, recipe, steps, self.shards)
        self.noise = _Noise(self.network, recipe.seed)
        self.meters = _DeviceMeters(device)
        self.inputs = _Inputs(device)
        if strategy.kind == "ddp" or (ranks.world > 1 and self.shards is None):
            self.task.network = torch.nn.parallel.DistributedDataParallel(
                self.network, device_ids=[device.index] if is_gpu else None
            )
        kind: Compiled = compiled if compiled is not None else "whole" if is_gpu else "none"
        self.compute = _Compute(task, self.network, recipe, rule, classes, device, kind)
        self.lanes = Lanes(task, lanes) if lanes > 1 else None
        self.graph: torch.cuda.CUDAGraph | None = None
        is_plain = ranks.world == 1 and strategy.kind == "alone" and not strategy.checkpointing
        self.is_captured = (is_gpu and is_plain) if captured is None else captured
        if strategy.checkpointing:
            self.checkpoint()

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """Within it, the network that was given has its averaged weights, if the recipe averages."""
        if self.shards is not None:  # the given network only ever shows what the shards hold
            self.shards.fill_given(self.average.state or self.shards.own)
            yield
            return
        with self.average.applied_to(self.network):
            yield

    def checkpoint(self) -> bool:
        """Recompute blocks in the backward pass from now on; False if the network has none, or did so already."""
        models = [module for module in self.network.modules() if isinstance(module, Model)]
        if self.is_checkpointed or not models or any(isinstance(m, nn.BatchNorm1d) for m in self.network.modules()):
            return False
        for model in models:
            model.gradient_checkpointing = True
        self.is_checkpointed, self.is_captured = True, False
        self._forget_sizes()
        return True

    def stop_checkpointing(self) -> None:
        """Leave the network as it was given."""
        for module in self.network.modules():
            if isinstance(module, Model) and self.is_checkpointed:
                module.gradient_checkpointing = False

    @property
    def lane_count(self) -> int:
        return 1 if self.lanes is None else len(self.lanes)

    @property
    def done(self) -> int:
        """Steps since the last `read`."""
        return self.meters.steps

    def __call__(self, batch: Batch, step: int, factor: float) -> None:
        """Step number `step` on this batch, at `factor` of every peak rate."""
        self._take(batch, step)
        optimizers.set_rate(self.optimizer, factor)
        self.average.set_step(step)
        self.noise.seed_dropout(step, self.ranks.rank)
        if self.graph is not None:
            self.graph.replay()
        elif self.is_captured:
            self._capture()
            self.graph.replay()  # type: ignore[attr-defined]  # just made
        else:
            self._work()
        self.meters.steps += 1

    def read(self) -> Meters:
        """What happened since the last look; waits for the device."""
        return self.meters.read(self.ranks)

    def forgive(self) -> None:
        """Go on after a bad step."""
        self.meters.bad_at.fill_(-1)

    def state(self) -> dict[str, Tensor]:
        """Everything that the next step depends on, under names, on the host; with shards, this rank's rows.

        Called by all ranks.
        """
        found = self._places() | {"meters.done": torch.tensor(self.meters.steps)}
        found[SUMS] = self.meters.of_ranks(self.ranks)
        return {name: tensor.detach().to("cpu", copy=True) for name, tensor in found.items()}

    @torch.no_grad()
    def load(self, state: Mapping[str, Tensor]) -> None:
        """Restore a state in place: a captured graph keeps its addresses."""
        for name, tensor in self._places().items():
            if name not in state or (state[name].shape != tensor.shape and name != SUMS):
                raise RunError(f"the saved state does not fit this model and recipe at {name}; start afresh")
            tensor.copy_(state[name] if name != SUMS else self.meters.own_sums(state[name], self.ranks))
        self.meters.steps = int(state["meters.done"])

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Whole shapes of what lies in shards, by the names of `state`."""
        if self.shards is None:
            return {}
        whole = self.shards.shapes
        names = optimizers.state_of(self.optimizer)
        found = {f"network.{name}": shape for name, shape in whole.items()}
        found |= {f"optimizer.{n}": whole[n.rpartition("/")[0]] for n in names if not n.endswith("/step")}
        return found | {f"average.{name}": whole[name] for name in self.average.state}

    def _places(self) -> dict[str, Tensor]:
        if self.shards is None:
            found = {f"network.{name}": tensor for name, tensor in self.network.state_dict().items()}
        else:
            found = {f"network.{name}": tensor for name, tensor in self.weights().items()}
        found |= {f"optimizer.{name}": tensor for name, tensor in optimizers.state_of(self.optimizer).items()}
        found |= {f"average.{name}": tensor for name, tensor in self.average.state.items()}
        return found | {SUMS: self.meters.sums, "meters.bad_at": self.meters.bad_at}

    def weights(self) -> dict[str, Tensor]:
        """The network's parameters and buffers; with shards, this rank's rows."""
        found = self.network.state_dict()
        return found if self.shards is None else {**found, **self.shards.own}

    def split_further(self) -> bool:
        """Take the batch in twice as many parts; False if a part is as small as it can be."""
        if self.recipe.batch // self.ranks.world < 4 * self.parts or not self._has_parts(2 * self.parts):
            return False
        self.parts *= 2
        self._forget_sizes()
        return True

    def keep_parts(self, parts: int) -> None:
        """Keep as many parts as before, if this number of ranks can."""
        self.parts = parts if self._has_parts(parts) else self.parts

    def _forget_sizes(self) -> None:
        """Prepare for steps of other sizes."""
        self.graph = None
        self.inputs = _Inputs(self.inputs.device)
        self.optimizer.zero_grad(set_to_none=True)
        if self.inputs.device.type == "cuda":
            torch.cuda.empty_cache()

    def _has_parts(self, count: int) -> bool:
        return has_parts(self.recipe, self.ranks.world, count)

    # ------------------------------------------------------------------------------------------------------ one step

    def _take(self, batch: Batch, step: int) -> None:
        """Put the batch and what was drawn for it where the step reads."""
        size = (batch.images.shape[2], batch.images.shape[3]) if batch.sizes is None else batch.sizes
        arrays: dict[str, NDArray[Any]] = {}
        if batch.plan is not None:
            arrays |= batch.plan.arrays(None if batch.is_cropped else size)
        arrays |= {f"extra.{name}": array for name, array in self.task.host(batch).items()}
        arrays |= self.noise.arrays(batch)
        arrays["step"] = np.array(step, np.int64)
        self.inputs.take(batch, arrays, is_fixed=self.graph is not None, copies=self.is_captured)

    def _work(self) -> None:
        """All work on the device. On a GPU, the host reads no value."""
        device, meters = self.inputs.device, self.meters
        count = len(self.inputs.images) // self.parts
        total = torch.zeros((), device=device)
        right = torch.zeros((), device=device)
        for part in range(self.parts):
            rows = slice(part * count, (part + 1) * count)
            if self.lanes is not None:
                loss, correct, gradients = self.lanes.gradients(self._forward, rows, self.parameters)
                self._add(gradients)
            else:
                with self._quiet(part), _one_compiled(self.compute.blocks):  # including those that are recomputed
                    loss, correct = self._forward(rows)
                    (loss / self.parts).backward()
            total, right = total + loss.detach() / self.parts, right + correct.detach()
        if self.shards is not None:
            self.shards.take_gradients()
        norm = optimizers.clip_(self.parameters, self.recipe.clip, None if self.shards is None else self.shards.rows)
        self._judge(total, norm)
        if device.type != "cpu":
            self.optimizer.found_inf = meters.found_inf  # type: ignore[attr-defined]
            self._update(total, right, norm)
        elif not meters.found_inf:
            self._update(total, right, norm)
        self.optimizer.zero_grad(set_to_none=True)

    def _add(self, gradients: list[Tensor | None]) -> None:
        """Add to the gradients of the parts before, each by its share."""
        for parameter, gradient in zip(self.parameters, gradients, strict=True):
            if gradient is not None:
                gradient = gradient if self.parts == 1 else gradient / self.parts
                parameter.grad = gradient if parameter.grad is None else parameter.grad + gradient

    def _forward(self, rows: slice, lane: Lane | None = None) -> tuple[Tensor, Tensor]:
        for i, path in enumerate(self.noise.paths if lane is None else lane.drop_paths):
            path.factor = self.inputs.views["drop_path"][i, rows]
        return self.compute(self.inputs, rows, None if lane is None else lane.loss)

    def _judge(self, loss: Tensor, norm: Tensor) -> None:
        if self.ranks.world > 1:
            loss = loss.clone()
            torch.distributed.all_reduce(loss)
        self.meters.judge(loss, norm, self.inputs.views["step"])

    def _update(self, loss: Tensor, right: Tensor, norm: Tensor) -> None:
        self.optimizer.step()
        self.average.update(self.meters.found_inf)
        self.meters.add(loss, right, norm, len(self.inputs.images))

    def _quiet(self, part: int) -> AbstractContextManager[Any]:
        """Ranks exchange gradients after the last part only."""
        network = self.task.network
        if self.shards is not None:
            self.shards.set_sync(part == self.parts - 1)
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
                for _ in range(WARM_UP_STEPS):
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
    """Within it, blocks run the forward of their class, compiled once for all of them."""
    for block in blocks:
        vars(block)["forward"] = partial(compiled_once(type(block).forward), block)
    try:
        yield
    finally:
        for block in blocks:
            del vars(block)["forward"]


@cache
def compiled_once(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function compiled; a network takes the code of an earlier one with the same shapes and options.

    Rates, seeds and weights may differ. A process may see many networks: folds, or the cells of a paper.
    """
    torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, MAX_COMPILED)
    torch._dynamo.config.accumulated_recompile_limit = max(
        torch._dynamo.config.accumulated_recompile_limit, MAX_COMPILED
    )
    return torch.compile(function, dynamic=False)


def has_parts(recipe: Recipe, world: int, count: int) -> bool:
    """Whether a rank's images are `count` equal parts, and no mixed pair lies in two."""
    part, rest = divmod(recipe.batch // world, count)
    return part > 0 and not rest and not (recipe.augment.mixes and part % 2)


def parts_of(recipe: Recipe, world: int) -> list[int]:
    """The numbers of parts that a step may be taken in: the recipe's, doubled again and again."""
    doubled = [recipe.accumulation * 2**k for k in range(16)]
    return [recipe.accumulation, *(count for count in doubled[1:] if has_parts(recipe, world, count))]


def precision_on(device: torch.device, wanted: str) -> str:
    """auto: bfloat16 on GPUs that have it, elsewhere float32.  bfloat16 is refused on CPUs: some processes crash."""
    if wanted == "bfloat16" and not (device.type == "cuda" and torch.cuda.is_bf16_supported()):
        raise ConfigError(f"bfloat16 on {device.type} is slow or missing here; say precision=float32 or auto")
    if wanted == "auto":
        has = device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
        return "bfloat16" if has else "float32"
    return wanted


def choose_compiling(stage: TrainingStage, runtime: Runtime) -> Compiled:
    """Which part of a step to compile."""
    config, length = stage.model.config, stage.recipe.length
    if runtime.compiled is not None or runtime.device.type != "cuda":
        return runtime.compiled or "none"
    images = stage.recipe.batch * stage.steps // runtime.ranks.world
    seconds = length.count if isinstance(length, Seconds) else uncompiled_seconds(config, images)
    is_sharded = runtime.strategy.kind == "fsdp"
    return kind_of_compiling(seconds, has_blocks=isinstance(config, ViTConfig), sharded=is_sharded)


def uncompiled_seconds(config: Config, images: int) -> float:
    """Roughly how long a GPU trains on this many images."""
    return training_flops(config) * images / UNCOMPILED_SPEED


def kind_of_compiling(seconds: float, *, has_blocks: bool, sharded: bool) -> Compiled:
    """Compiling takes up to a minute, too long for a short run; blocks take less.

    seconds: of the run uncompiled.  sharded: blocks are gathered between two graphs.
    """
    if seconds > COMPILE_WHOLE and not sharded:
        return "whole"
    return "blocks" if seconds > COMPILE_BLOCKS and has_blocks else "none"
