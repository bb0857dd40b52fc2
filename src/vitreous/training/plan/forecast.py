"""`vitreous.plan`: what a training run will need, on devices that are not there yet: memory, time, and how to share.

Parameters and arithmetic are counted. Memory and communication are modelled. Speed is a share of the device's peak that
was measured for some networks on one H200 (devices.toml) and is carried over to the others.
"""

from __future__ import annotations

import html
import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from textwrap import wrap
from typing import Any

import torch

from vitreous.errors import ConfigError
from vitreous.images.health.findings import TERMINAL_COLUMNS
from vitreous.machine import GIB, choose_device
from vitreous.models.catalog import parse
from vitreous.models.config import BiTConfig, Config, Size, ViTConfig, as_size
from vitreous.models.cost import macs, training_flops
from vitreous.models.model import Model
from vitreous.training import recipes
from vitreous.training.plan import devices as kinds
from vitreous.training.plan.devices import DeviceKind, PeakShare
from vitreous.training.plan.memory import FLOAT, Memory, in_bytes, memory
from vitreous.training.plan.parallel import IMAGES_IN_A_PART, PARALLEL, ROOM_SHARE
from vitreous.training.plan.trial import TimedSteps, measure
from vitreous.training.recipe import Epochs, Recipe, Seconds, Steps
from vitreous.training.run.step import kind_of_compiling, uncompiled_seconds
from vitreous.weights.load_model import is_new, load
from vitreous.words import SIZE_LETTERS, count, counted, duration

LINK_SHARE = 0.7  # of a link's data sheet that a large exchange reaches (a guess)
SHARDS_GAIN = 1.1  # factor by which shards must be faster, where whole copies fit
TITLE_COLUMNS, TEXT_COLUMNS = 9, 60  # of a line of 80; how a figure was found stands at its end
TRIAL_SECONDS_AT_MOST = 60.0  # that --measure may take, by the model
PAPER_RUNS = {  # recipe -> images and classes of its set, as the paper prints them
    "p1-jft": (303_000_000, 18_000),
    "p1-imagenet21k": (14_000_000, 21_000),
    "p1-imagenet": (1_281_167, 1000),
}
PUBLISHED = {  # recipe, network -> TPUv3-core-days (P1's table 2), exaFLOP (table 6)
    ("p1-jft", "H/14"): (2500, 4262),
    ("p1-jft", "L/16"): (680, 1567),
    ("p1-jft", "B/16"): (None, 224),
    ("p1-imagenet21k", "L/16"): (230, None),
}


@dataclass(frozen=True)
class StepTime:
    """Seconds of a step.  exchange: of gradients and weights; exposed: the part that no computing hides."""

    computing: float
    exchange: float
    exposed: float

    @property
    def total(self) -> float:
        return self.computing + self.exposed


@dataclass(frozen=True)
class Forecast:
    """What a run needs, and how to share it among devices. Sizes are of one device, in bytes."""

    model: str
    config: Config = field(repr=False)
    parameters: int
    images: int | None
    epochs: float | None
    steps: int | None
    recipe: Recipe = field(repr=False)
    batch: int
    devices: int
    device: DeviceKind
    precision: str
    parallel: str  # alone, ddp or fsdp
    checkpointing: bool
    parts: int
    why: str
    memory: Memory
    largest: int  # images that fit on a device at once, this way
    largest_checkpointed: int
    speed: PeakShare
    step: StepTime
    published: tuple[int | None, int | None] | None = None
    measured: TimedSteps | None = None
    modelled_seconds: float | None = None  # of a step of `measured`

    @property
    def at_once(self) -> int:
        """Images on a device at a time."""
        return self.batch // self.devices // self.parts

    @property
    def seconds(self) -> float | None:
        return None if self.steps is None else self.steps * self.step.total

    @property
    def device_hours(self) -> float | None:
        return None if self.seconds is None else self.seconds * self.devices / 3600

    @property
    def nodes(self) -> int:
        return -(-self.devices // self.device.per_node)

    @property
    def basis(self) -> dict[str, str]:
        """How each figure was found: counted, measured, modelled, published or from a data sheet."""
        speed = "measured" if self.speed.is_same else "modelled"
        found = {
            "parameters": "counted", "macs": "counted", "steps": "counted", "device": self.device.flops_basis,
            "parallel": "modelled", "memory": "modelled", "largest": "modelled", "speed": speed,
            "step": speed if self.devices == 1 and not self.checkpointing else "modelled", "seconds": "modelled",
        }  # fmt: skip
        found |= {"published": "published"} if self.published else {}
        return found | ({"measured": "measured"} if self.measured else {})

    def to_json(self) -> dict[str, Any]:
        step = asdict(self.step) | {"total": self.step.total}
        found = {
            "model": self.model, "parameters": self.parameters, "macs": macs(self.config),
            "image_size": list(self.config.image_size), "images": self.images, "epochs": self.epochs,
            "steps": self.steps, "batch": self.batch, "optimizer": self.recipe.optimizer, "devices": self.devices,
            "nodes": self.nodes, "device": self.device.to_json(), "precision": self.precision,
            "parallel": self.parallel, "checkpointing": self.checkpointing, "parts": self.parts,
            "images_at_once": self.at_once, "why": self.why, "memory": self.memory.to_json(),
            "largest": {"as_planned": self.largest, "with_checkpointing": self.largest_checkpointed},
            "speed": asdict(self.speed), "step": step, "seconds": self.seconds, "device_hours": self.device_hours,
            "published": None, "measured": None, "basis": self.basis,
        }  # fmt: skip
        if self.published:
            found["published"] = dict(zip(("tpu_v3_core_days", "exaflop"), self.published, strict=True))
        if self.measured:
            found["measured"] = self.measured.to_json() | {"modelled_seconds": self.modelled_seconds}
        return found

    def rows(self) -> Iterator[tuple[str, str, str]]:
        """(title, text, how it was found), in reading order."""
        rows, columns = self.config.image_size
        size = f"{rows} px" if rows == columns else f"{rows} x {columns} px"
        cost = count(macs(self.config), SIZE_LETTERS)
        named = f"{self.model.split()[0]} at {size}"
        yield "network", f"{named}: {count(self.parameters, SIZE_LETTERS)} parameters, {cost} multiply-adds", "counted"
        if self.steps is not None:
            yield "run", f"{counted(self.steps, 'step')} of {self.batch:,} images{self._epochs()}", "counted"
        d = self.device
        where = f" in {counted(self.nodes, 'node')}" if self.nodes > 1 else ""
        peak = f"{d.flops / 1e12:.3g} TFLOP/s"
        yield "device", f"{self.devices} x {d.name}{where}, {d.memory / GIB:.0f} GiB, {peak}", d.flops_basis
        yield "share", self._sharing(), "modelled"
        yield "memory", f"{in_bytes(self.memory.total)} on each device{self.why and f'; {self.why}'}", "modelled"
        yield self._memory_parts()
        more = "" if self.checkpointing else f"; {self.largest_checkpointed:,} if blocks are recomputed"
        yield "at most", f"{self.largest:,} images at once on each{more}", "modelled"
        seen = "measured for" if self.speed.is_same else "carried over from"
        yield "speed", f"{100 * self.speed.share:.0f} % of the peak, {seen} {self.speed.seen_on}", self.basis["speed"]
        yield "step", self._step(), self.basis["step"]
        if self.seconds is not None and self.device_hours is not None:
            unit = "CPU-hours" if d.is_cpu else "GPU-hours"
            yield "in all", f"{_long(self.seconds)}, {_three_digits(self.device_hours)} {unit}", "modelled"
        if self.published:
            yield "paper", self._paper(), "published"
        if self.measured:
            yield "here", self._measured(), "measured"
        yield "left out", "reading images, looks at dev, saving states", ""

    def __str__(self) -> str:
        """At 80 columns: title, text, and how it was found."""
        lines = []
        for title, text, basis in self.rows():
            first, *more = wrap(text, TEXT_COLUMNS if basis else TERMINAL_COLUMNS - TITLE_COLUMNS)
            lines.append(f"{title:<{TITLE_COLUMNS}}{first:<{TEXT_COLUMNS}} {basis}".rstrip())
            lines += [f"{'':<{TITLE_COLUMNS}}{line}" for line in more]
        return "\n".join(lines)

    __repr__ = __str__  # at a prompt

    def _repr_html_(self) -> str:
        cells = ("".join(f"<td>{html.escape(cell)}</td>" for cell in row) for row in self.rows())
        return f"<table>{''.join(f'<tr>{row}</tr>' for row in cells)}</table>"

    def _epochs(self) -> str:
        if self.epochs is None or self.images is None:
            return ""
        return f": {self.epochs:.3g} {'epoch' if self.epochs == 1 else 'epochs'} of {count(self.images)}"

    def _sharing(self) -> str:
        names = {"alone": "one device", "ddp": "ddp: a whole copy on each", "fsdp": "fsdp: weights in shards"}
        parts = f"{self.parts} parts of " if self.parts > 1 else ""
        recomputed = ", blocks recomputed" * self.checkpointing
        return f"{names[self.parallel]}, {self.precision}{recomputed}, {parts}{counted(self.at_once, 'image')}"

    def _memory_parts(self) -> tuple[str, str, str]:
        m = self.memory
        sizes = {
            "weights": m.parameters + m.average, "gradients": m.gradients, "moments": m.optimizer,
            "activations": m.activations, "buffer": m.communication,
        }  # fmt: skip
        unit, factor = ("GiB", GIB) if m.total >= GIB else ("MiB", 2**20)
        told = {name: size / factor for name, size in sizes.items() if size}
        return f"  in {unit}", ", ".join(f"{name} {_two_digits(size)}" for name, size in told.items()), ""

    def _step(self) -> str:
        s = self.step
        if not s.exchange:
            return f"{_short(s.total)}, {_three_digits(self.batch / s.total)} images/s"
        is_hidden = s.exposed < s.exchange / 2
        exchange = f"{_short(s.exchange)}, mostly hidden" if is_hidden else f"{_short(s.exposed)} in the open"
        return f"{_short(s.total)}: computing {_short(s.computing)}, exchange {exchange}"

    def _paper(self) -> str:
        days, work = self.published or (None, None)
        ours = training_flops(self.config) * self.batch * (self.steps or 0) / 1e18
        told = [f"{days:,} TPUv3-core-days"] if days else []
        told += [f"{work:,} exaFLOP"] if work else ["exaFLOP not told"]
        return f"{', '.join(told)}; counted here: {ours:,.0f}"

    def _measured(self) -> str:
        m, modelled = self.measured, self.modelled_seconds
        assert m is not None
        assert modelled is not None
        held = f", {in_bytes(m.memory)}" if m.memory else ""
        told = f"{m.steps} steps of {counted(m.images, 'image')}: {_short(m.seconds)} each{held}"
        return f"{told} (modelled {_short(modelled)})"


def plan(
    model: str | Config | Model,
    *,
    images: int | None = None,
    batch: int | None = None,
    devices: int = 1,
    device: str = "here",
    image_size: int | Size | None = None,
    epochs: float | None = None,
    steps: int | None = None,
    precision: str = "auto",
    optimizer: str | None = None,
    checkpointing: bool | None = None,
    parallel: str = "auto",
    like: str | None = None,
    measure: bool = False,
) -> Forecast:
    """What a training run needs: memory, time, and how to share it among devices. Trains nothing, except for `measure`.

        vitreous.plan("L/16", images=1_281_167, epochs=90, batch=4096, devices=8, device="h100")
        vitreous.plan("H/14", like="p1-jft", devices=64, device="a100")

    batch: images of a step, on all devices together.  device: a name of `vitreous plan --device list`, or here, cpu.
    checkpointing: recompute blocks in the backward pass; None: only if it does not fit otherwise.
    like: a recipe's name, for its batch, length, optimizer and image size; the papers' recipes bring their images too.
    measure: time 20 real steps on this machine.
    """
    named, config, recipe, images = _asked(model, like, images, image_size, batch, optimizer)
    length = _length(recipe, like, images, epochs, steps)
    _refuse(images, recipe.batch, devices, parallel)
    wanted = _precision(precision, device)
    kind = kinds.find(device, wanted)
    job = PlannedTraining(config, recipe, wanted, _uncompiled(config, recipe.batch // devices, kind, length[1]))
    found, why = _choose(job, kind, devices, parallel, checkpointing)
    speed = kinds.share(config, kind, recipe.batch // devices, wanted)
    said = Forecast(
        model=named, config=config, parameters=found.parameters, images=images, epochs=length[0], steps=length[1],
        recipe=recipe, batch=recipe.batch, devices=devices, device=kind, precision=wanted, parallel=found.parallel,
        checkpointing=found.checkpointing, parts=found.parts, why=why, memory=found.memory,
        largest=_largest(job, kind, devices, found.parallel, found.checkpointing),
        largest_checkpointed=_largest(job, kind, devices, found.parallel, True),
        speed=speed, step=step_time(config, recipe.batch, kind, devices, wanted, speed.share, found),
        published=PUBLISHED.get((like or "", named.split()[0].removeprefix("ViT-"))),
    )  # fmt: skip
    return _with_trial(said) if measure else said


# ------------------------------------------------------------------------------------------------------- what was asked


def _asked(
    model: str | Config | Model,
    like: str | None,
    images: int | None,
    image_size: int | Size | None,
    batch: int | None,
    optimizer: str | None,
) -> tuple[str, Config, Recipe, int | None]:
    """The network's name and config, the recipe, and the number of images."""
    recipe, name = Recipe(), model if isinstance(model, str) else ""
    if like is not None:
        recipes.check_name(like)
        theirs, classes = PAPER_RUNS.get(like, (None, None))
        images = theirs if images is None else images
        in_catalog = bool(name) and is_new(name)
        recipe = recipes.get(like, images=images or 1_281_167, model=name if in_catalog else None)
        if recipe.is_solved:
            raise ConfigError(f"the recipe {like} takes no steps, so there is nothing to plan; name another")
        if in_catalog and recipe.model:
            model = recipe.model
        image_size = recipe.image_size if image_size is None else image_size
    if isinstance(model, str):
        config = parse(model) if is_new(model) else load(model).config
    else:
        config = model.config if isinstance(model, Model) else model
    if like is not None and classes is not None and isinstance(model, str) and is_new(name):
        config = config.change(classes=classes)
    if image_size is not None:
        config = config.change(image_size=as_size(image_size))
    changes = {"batch": batch, "optimizer": optimizer}
    recipe = recipe.change(**{name: value for name, value in changes.items() if value is not None})
    return name or type(config).__name__.removesuffix("Config"), config, recipe, images


def _length(
    recipe: Recipe, like: str | None, images: int | None, epochs: float | None, steps: int | None
) -> tuple[float | None, int | None]:
    """Epochs and steps; None where the length or the number of images is unknown."""
    if epochs is not None and steps is not None:
        raise ConfigError("epochs and steps both say how long; give one")
    for name, value in (("epochs", epochs), ("steps", steps)):
        if value is not None and value <= 0:
            raise ConfigError(f"{name}={value:g} is no length; give more than 0")
    if epochs is None and steps is None and like is not None:
        length = recipe.length
        if isinstance(length, Seconds):
            raise ConfigError(f"the recipe {like} goes by the clock; give --steps or --epochs")
        epochs = length.count if isinstance(length, Epochs) else None
        steps = length.count if isinstance(length, Steps) else None
    if epochs is None and steps is None and images is not None:
        epochs = 1.0
    if epochs is not None and images is None:
        raise ConfigError(f"{epochs:g} epochs are of how many images? give --images N, or --steps")
    if epochs is not None and images is not None:
        per_epoch = images // recipe.batch
        steps = max(1, round(epochs * per_epoch)) if per_epoch else 0
    elif steps is not None and images is not None:
        epochs = steps * recipe.batch / images
    return epochs, steps


def _refuse(images: int | None, batch: int, devices: int, parallel: str) -> None:
    if images is not None and images < 1:
        raise ConfigError(f"images={images} is nothing to learn from; give 1 or more")
    if devices < 1:
        raise ConfigError(f"devices={devices} trains nothing; give 1 or more")
    if images is not None and batch > images:
        raise ConfigError(f"a batch of {batch:,} is more than the {counted(images, 'image')}; give --batch {images}")
    if parallel not in PARALLEL:
        raise ConfigError(f"parallel={parallel!r} is not one of {', '.join(PARALLEL)}")
    if batch % devices:
        near = max(batch // devices, 1) * devices
        raise ConfigError(
            f"a batch of {batch:,} has no {devices} equal parts, one for each device; give --batch {near}, "
            "or another number of devices"
        )


def _precision(asked: str, device: str) -> str:
    if asked not in ("auto", "float32", "bfloat16"):
        raise ConfigError(f"precision={asked!r} is not one of auto, float32, bfloat16")
    is_cpu = device == "cpu" or (device == "here" and not torch.cuda.is_available())
    if is_cpu and asked == "bfloat16":
        raise ConfigError("bfloat16 on cpu is slow or missing here; say precision=float32 or auto")
    return ("float32" if is_cpu else "bfloat16") if asked == "auto" else asked


# -------------------------------------------------------------------------------------------------------- how to share


@dataclass(frozen=True)
class PlannedTraining:
    """What is trained.  seconds: what a GPU takes for it, uncompiled; `fit` compiles a long run."""

    config: Config
    recipe: Recipe
    precision: str
    seconds: float

    def needs(self, images: int, kind: str, recompute: bool, world: int, parts: int = 1) -> Memory:
        """The memory of a device for this many images at once."""
        r, has_blocks = self.recipe, isinstance(self.config, ViTConfig)
        compiled = kind_of_compiling(self.seconds, has_blocks=has_blocks, sharded=kind == "fsdp")
        return memory(
            self.config, images, r.optimizer, self.precision, r.average != "none", recompute,
            parallel=kind, world=world, parts=parts, compiled=compiled,
        )  # fmt: skip


def _uncompiled(config: Config, on_each: int, device: DeviceKind, steps: int | None) -> float:
    """Seconds of a run; 0 on a CPU, which compiles nothing.  on_each: images of a step.  steps: None is a long run."""
    if device.is_cpu:
        return 0.0
    return math.inf if steps is None else uncompiled_seconds(config, on_each * steps)


@dataclass(frozen=True)
class Sharing:
    """A way to train: whole copies or shards, checkpointed or not, in `parts` parts."""

    parallel: str
    checkpointing: bool
    parts: int
    parameters: int
    memory: Memory

    @property
    def is_plain(self) -> bool:
        return self.parallel != "fsdp" and not self.checkpointing and self.parts == 1


def _choose(
    job: PlannedTraining, device: DeviceKind, world: int, asked: str, checkpointing: bool | None
) -> tuple[Sharing, str]:
    """The fastest way that fits by the model, and why it is not the plain one."""
    own = ("alone",) if world == 1 and asked != "fsdp" else ("ddp", "fsdp") if asked == "auto" else (asked,)
    config, batch = job.config, job.recipe.batch
    parameters, on_each = memory(config, 1).parameters // FLOAT, batch // world
    ways = [
        Sharing(kind, again, parts, parameters, job.needs(on_each // parts, kind, again, world, parts))
        for parts in _divisors(on_each)
        if parts == 1 or on_each // parts >= IMAGES_IN_A_PART or parts == on_each
        for again in ((False, True) if checkpointing is None else (checkpointing,))
        for kind in own
    ]
    room = ROOM_SHARE * device.memory
    fitting = [way for way in ways if way.memory.total <= room]
    if not fitting:
        least = min(ways, key=lambda way: way.memory.total)
        more = None if asked == "ddp" or checkpointing is False else _enough(job, device)
        raise ConfigError(_no_room(batch, device, world, least.memory, asked, checkpointing, more))
    share = kinds.share(config, device, on_each, job.precision).share

    def seconds(way: Sharing) -> float:
        found = step_time(config, batch, device, world, job.precision, share, way).total
        return found * (SHARDS_GAIN if way.parallel == "fsdp" else 1)

    found = min(fitting, key=seconds)  # the first of equals
    if found.is_plain:
        return found, ""
    if ways[0].memory.total <= room:
        return found, f"{'whole copies' if world > 1 else 'otherwise'}: {_short(seconds(ways[0]))} a step"
    copy = "a whole copy, " if world > 1 else ""
    return found, f"{copy}all at once: {in_bytes(ways[0].memory.total)}"


def _enough(job: PlannedTraining, device: DeviceKind) -> int | None:
    """The fewest devices that have room: in shards, recomputed, an image at a time. None if no number has."""
    for world in _divisors(job.recipe.batch):
        if job.needs(1, "fsdp", True, world, job.recipe.batch // world).total <= ROOM_SHARE * device.memory:
            return world
    return None


def _no_room(
    batch: int, device: DeviceKind, world: int, least: Memory, asked: str, checkpointing: bool | None, more: int | None
) -> str:
    """Why no way fits, and what would."""
    need, room = in_bytes(least.total), in_bytes(int(ROOM_SHARE * device.memory))
    what = f"a batch of {batch:,} on {world} x {device.name} needs {need} on each, which has room for {room}"
    if asked == "ddp" or checkpointing is False:
        return f"{what}; leave --parallel and --checkpointing to the plan"
    if more is not None:
        return f"{what}; in shards it fits --devices {more}"
    return f"{what}, and no number of them that divides the batch is enough; take larger devices or a smaller model"


def _largest(job: PlannedTraining, device: DeviceKind, world: int, kind: str, recompute: bool) -> int:
    """Images that fit on a device at once, by bisection to a hundredth; 0 if none does."""

    def fits(images: int) -> bool:
        return job.needs(images, kind, recompute, world).total <= ROOM_SHARE * device.memory

    low, high = 0, 1
    while fits(high):
        low, high = high, 2 * high
    while high - low > max(low // 100, 1):
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def _divisors(number: int) -> list[int]:
    return [part for part in range(1, number + 1) if number % part == 0]


# ---------------------------------------------------------------------------------------------------------------- time


def step_time(
    config: Config, batch: int, device: DeviceKind, world: int, precision: str, share: float, way: Sharing
) -> StepTime:
    """Computing is 6 operations for each multiply-add, 8 if blocks are recomputed.

    ddp sums float32 gradients once, 2 (w − 1) / w of their bytes through each link, behind the backward pass. fsdp
    gathers weights twice for each part and scatters gradients once, behind all computing. One block's exchange stays
    exposed.
    """
    flops = training_flops(config) * (8 / 6 if way.checkpointing else 1) * batch / world
    computing = flops / (device.flops * share)
    if world == 1:
        return StepTime(computing, 0.0, 0.0)
    link = LINK_SHARE * (device.link if world <= device.per_node else device.network)
    each = (world - 1) / world / link  # seconds of a byte that all must see
    size = FLOAT if precision == "float32" else FLOAT // 2
    if way.parallel == "ddp":
        exchange, behind = 2 * FLOAT * way.parameters * each, computing / way.parts * (2 / 3)
    else:
        exchange, behind = (2 * way.parts * size + FLOAT) * way.parameters * each, computing
    blocks = len(config.resnet.units) if isinstance(config, BiTConfig) else config.encoder.depth
    hidden = min(exchange * (1 - 1 / max(blocks, 1)), behind)
    return StepTime(computing, exchange, exchange - hidden)


def _with_trial(said: Forecast) -> Forecast:
    """Time 20 steps here, with fewer images than planned if the model expects more than a minute."""
    device = choose_device("cpu" if said.device.is_cpu else None)
    precision = _precision("auto", "cpu" if device.type == "cpu" else "here")
    here = kinds.find("cpu" if device.type == "cpu" else "here", precision)
    images = said.at_once
    way = Sharing("alone", said.checkpointing, 1, said.parameters, said.memory)

    def modelled(images: int) -> float:
        share = kinds.share(said.config, here, images, precision).share
        return step_time(said.config, images, here, 1, precision, share, way).total

    steps = 20
    while images > 2 and steps * modelled(images) > TRIAL_SECONDS_AT_MOST:
        images //= 2
    recipe = said.recipe.change(batch=images, accumulation=1, precision=precision)
    timed = measure(said.config, recipe, device, steps=steps, checkpointing=said.checkpointing)
    return replace(said, measured=timed, modelled_seconds=modelled(images))


def _short(seconds: float) -> str:
    """`34 min`, `1.64 s`, `35 ms`."""
    if seconds >= 100:
        return duration(seconds)
    return f"{seconds:.3g} s" if seconds >= 1 else f"{1e3 * seconds:.3g} ms"


def _long(seconds: float) -> str:
    return duration(seconds) if seconds < 72 * 3600 else f"{seconds / 86400:,.3g} days"


def _three_digits(number: float) -> str:
    return f"{number:,.0f}" if number >= 100 else f"{number:.3g}"


def _two_digits(number: float) -> str:
    return f"{number:.0f}" if number >= 10 else f"{number:.1f}" if number >= 0.1 else f"{number:.1g}"
