"""What a training run will need, before it begins: memory, by what autograd keeps, and arithmetic.

L tokens, N of them patches   D width   M hidden width of the MLP   H heads   h w rows and columns of a map
"""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from functools import lru_cache
from itertools import islice, pairwise
from typing import TYPE_CHECKING, Any

from vitreous.errors import ConfigError
from vitreous.machine import GIB
from vitreous.models.catalog import blueprint
from vitreous.models.config import BiTConfig, Config, ResNetConfig, Size, ViTConfig
from vitreous.models.convolutions import halved, root_width, same_pads
from vitreous.models.cost import macs
from vitreous.models.hybrid import make_stem
from vitreous.models.layers import HIDDEN_WIDTHS_READ
from vitreous.training.plan.parallel import unit_sizes
from vitreous.training.recipe import Recipe
from vitreous.training.run.optimizers import groups
from vitreous.words import SIZE_LETTERS, count

if TYPE_CHECKING:
    from vitreous.training.run.step import Compiled

FLOAT = 4  # bytes; weights, gradients, moments and averages are float32 whatever the precision
INDEX = 8  # bytes; a pool keeps the place of each maximum
BYTES_PER_NUMBER = {"float32": 4, "bfloat16": 2}
MOMENTS = {"adamw": 2, "adam": 2, "lamb": 2, "sgd": 1, "muon": 2}  # numbers per weight; Muon's matrices have 1
GATHERED_UNITS = 2  # of FSDP: the blocks that compute, and the next, which are on their way


@dataclass(frozen=True)
class Memory:
    """Bytes of one device while it trains.

    activations: what the forward pass keeps for the backward pass.  temporaries: the largest gradients of activations.
    communication: what ranks exchange.  apart: gradients and activations that are never there together.
    """

    parameters: int
    gradients: int
    optimizer: int
    average: int
    activations: int
    temporaries: int = 0
    communication: int = 0
    apart: int = 0

    @property
    def total(self) -> int:
        """The most at any moment of a step."""
        return sum(asdict(self).values()) - 2 * self.apart

    def to_json(self) -> dict[str, int]:
        return {**asdict(self), "total": self.total}

    def __str__(self) -> str:
        parts = [f"{in_bytes(size)} {name}" for name, size in asdict(self).items() if size and name != "apart"]
        return f"about {in_bytes(self.total)} ({', '.join(parts)})"


@dataclass(frozen=True)
class Expected:
    """A run's needs before its first step. parameters: their number; macs: of one image's forward pass."""

    parameters: int
    macs: int
    batch: int
    memory: Memory

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "memory": self.memory.to_json()}

    def __str__(self) -> str:
        return (
            f"{self.parameters:,} parameters, {count(self.macs, SIZE_LETTERS)} multiply-adds an image; "
            f"memory for {self.batch} images at a time: {self.memory}"
        )


def expected(
    config: Config,
    batch: int,
    recipe: Recipe,
    *,
    precision: str,
    checkpointing: bool = False,
    parallel: str = "alone",
    world: int = 1,
    parts: int = 1,
) -> Expected:
    """What a device needs for `batch` of a step's images at a time.  precision: float32 or bfloat16."""
    has_average = recipe.average != "none"
    needs = memory(
        config, batch, recipe.optimizer, precision, has_average, checkpointing,
        parallel=parallel, world=world, parts=parts,
    )  # fmt: skip
    return Expected(memory(config, 1).parameters // FLOAT, macs(config), batch, needs)


def memory(
    config: Config,
    batch: int,
    optimizer: str = "adamw",
    precision: str = "float32",
    average: bool = False,
    checkpointing: bool = False,
    *,
    parallel: str = "alone",
    world: int = 1,
    parts: int = 1,
    compiled: Compiled = "none",
) -> Memory:
    """The memory of a step on `batch` images at a time.

    compiled: the part of the step that is compiled. Compiled code keeps a norm's input in the run's precision; autocast
    keeps a float32 copy. With checkpointing a ViT takes the same memory either way (measured on a GPU), and a compiled
    BiT takes less than this forecast.
    Analytic. Augmentation, images that lie on the device and the device's own libraries come on top.
    parallel: alone, ddp or fsdp over `world` devices.  parts: into which a step is split; FSDP keeps whole gradients
    until the last.
    """
    if optimizer not in MOMENTS:
        raise ConfigError(f"optimizer={optimizer!r} is not one of {', '.join(MOMENTS)}")
    if precision not in BYTES_PER_NUMBER:
        raise ConfigError(f"precision={precision!r} is not one of {', '.join(BYTES_PER_NUMBER)}")
    if batch < 1:
        raise ConfigError(f"batch={batch} must be 1 or more")
    size = BYTES_PER_NUMBER[precision]
    copies = parallel != "fsdp"  # FSDP gathers weights in bfloat16
    kept = _kept(config, batch, size, compiled="none" if checkpointing else compiled, copies=copies)
    share = world if parallel == "fsdp" else 1
    gradients = [FLOAT * part.weights // (share if parts == 1 else 1) for part in kept]
    held, temporaries, together = _backward(kept, gradients, checkpointing)
    count = sum(part.weights for part in kept)
    return Memory(
        FLOAT * count // share,
        sum(gradients),
        FLOAT * _moments(config, optimizer) // share,
        FLOAT * count * average // share,
        held,
        temporaries,
        _communication([part.weights for part in kept], parallel, world, size),
        sum(gradients) + held + temporaries - together,
    )


@lru_cache(maxsize=256)
def _moments(config: Config, optimizer: str) -> int:
    """Numbers that the optimizer keeps."""
    model = blueprint(config)
    moments = MOMENTS[optimizer] * sum(parameter.numel() for parameter in model.parameters())
    if optimizer != "muon":
        return moments
    of_matrices = [part for part in groups(model, Recipe(optimizer="muon")) if part["kind"] == "matrix"]
    return moments - sum(parameter.numel() for part in of_matrices for parameter in part["params"])


def activations(
    config: Config,
    batch: int,
    precision: str = "float32",
    checkpointing: bool = False,
    *,
    compiled: Compiled = "none",
) -> int:
    """Bytes that autograd keeps of a forward pass of `batch` images, attention fused.

    checkpointing: the inputs of all blocks, and the most that one of them keeps while it is computed again.
    """
    size = BYTES_PER_NUMBER[precision]
    kept = _kept(config, batch, size, compiled="none" if checkpointing else compiled)
    return _backward(kept, None, checkpointing)[0]


@dataclass
class _Part:
    """One step of the backward pass: a block or stage, or what lies before or after them.

    weights: numbers.  kept: bytes for the backward pass.  given: bytes of its input, if checkpointing keeps that alone.
    temporary: bytes of the largest gradients of activations inside.
    """

    weights: int
    kept: int
    given: int | None = None
    temporary: int = 0


def _backward(parts: list[_Part], gradients: list[int] | None, checkpointing: bool) -> tuple[int, int, int]:
    """Activations; temporaries; the most that gradients, activations and temporaries take together.

    The backward pass goes from the last part to the first: activations go as gradients of weights come.
    """
    gradients = gradients or [0] * len(parts)
    stay = [part.given if checkpointing and part.given is not None else part.kept for part in parts]
    again = [
        part.kept - part.given if part.temporary and checkpointing and part.given is not None else 0 for part in parts
    ]
    moments = [
        (sum(stay[: i + 1]) + again[i] + part.temporary + sum(gradients[i + 1 :]), part.temporary)
        for i, part in enumerate(parts)
    ]
    together, temporary = max(moments)
    return sum(stay) + max(again), temporary, max(together, sum(gradients))


def _communication(weights: list[int], parallel: str, world: int, size: int) -> int:
    """DDP's buckets; FSDP's gathered weights, and the whole gradients of one unit before and while they are summed."""
    if parallel == "ddp" and world > 1:
        return FLOAT * sum(weights)
    if parallel != "fsdp":
        return 0
    blocks = iter(weights[1:-1])
    unit = max((sum(islice(blocks, count)) for count in unit_sizes(weights[1:-1])), default=0)
    return 2 * FLOAT * (weights[0] + weights[-1]) + unit * (GATHERED_UNITS * size + size + FLOAT)


def _kept(config: Config, batch: int, size: int, *, compiled: Compiled, copies: bool = True) -> list[_Part]:
    """The parts in the order of the forward pass.

    size: bytes of a number.  copies: autocast makes a copy of each block's weights.
    """
    if isinstance(config, BiTConfig):
        return _bit(config, batch, size, compiled=compiled == "whole")
    return _vit(config, batch, size, compiled=compiled, copies=copies)


def _normed(size: int, compiled: bool) -> int:
    """Bytes of a number that goes into a norm: autocast makes it a float32 one, which a compiled step does not keep."""
    return size if compiled else FLOAT


@lru_cache(maxsize=256)
def _weights(config: Config, blocks: str) -> list[int]:
    """Numbers of weights before the blocks, in each, and after them."""
    counts: dict[tuple[int, int], int] = {(0, 0): 0, (2, 0): 0}
    for name, parameter in blueprint(config).named_parameters():
        found = re.match(rf"{blocks}\.(\d+)\.", name)
        is_front = name.startswith(("stem.", "embedding.", "root.", "class_token", "registers"))
        place = (1, int(found[1])) if found else (0 if is_front else 2, 0)
        counts[place] = counts.get(place, 0) + parameter.numel()
    return [counts[place] for place in sorted(counts)]


def _vit(config: ViTConfig, batch: int, size: int, *, compiled: Compiled, copies: bool) -> list[_Part]:
    e, r, is_whole = config.encoder, config.readout, compiled == "whole"
    stem = make_stem(config)
    rows, columns = stem.grid(config.image_size)
    n = rows * columns
    tokens, d = n + config.prefix, e.width
    stream = tokens * d * size
    patches = n * stem.channels * stem.patch[0] * stem.patch[1] * size
    norm = tokens * d * _normed(size, is_whole)
    pool = (3 * n * d + n * d) * size if r.pool == "map" else n * d * size if r.pool == "max" else 0
    first, *middle, last = _weights(config, "blocks")
    cast = _cast(size)
    kernels = _standardised(config, size - cast, is_whole)  # `first * cast` counts the copy that a product reads
    front = _stem(config, size, compiled=is_whole) + patches + norm * config.embedding.norm_before_blocks
    block, gradients = _block(config, tokens, size, compiled=compiled != "none"), tokens * (e.mlp + d) * size
    matrix = d * e.mlp * FLOAT  # the first gradient of a block's weights is there before its activations go
    return [
        _Part(first, batch * front + first * cast + kernels),
        *(_Part(w, batch * block + w * cast * copies, batch * stream, batch * gradients + matrix) for w in middle),
        _Part(last, batch * (norm + pool) + last * cast, None, 2 * batch * norm),
    ]


def _cast(size: int) -> int:
    """Bytes of the copy that autocast makes of a float32 number for a product."""
    return 0 if size == FLOAT else size


def _block(config: ViTConfig, tokens: int, size: int, *, compiled: bool) -> int:
    """Bytes of one image in one block."""
    e, d = config.encoder, config.encoder.width
    norm = _normed(size, compiled)
    copies = 2 if e.norm_kind == "rms" and not compiled else 1  # an RMS norm keeps what it divides, and the quotient
    norms = 2 * copies * (d * norm + 2 * FLOAT)  # what goes in; mean and deviation
    attention = (
        d + 3 * d + d
    ) * size + e.heads * FLOAT  # what qkv reads; q k v; what merge reads; sums of exponentials
    if config.rotation.rotary != "none":
        attention += 2 * d * size  # queries and keys, turned
        attention += 2 * d * FLOAT if config.rotation.rotary == "mixed" else 0  # and before, for learned angles
    if e.qk_norm:
        attention += 2 * d * size + 4 * e.heads * FLOAT
    hidden = {"relu": 1, "swiglu": 2 * HIDDEN_WIDTHS_READ["swiglu"]}.get(e.activation, 2) * e.mlp
    branches = (2 * d if e.layer_scale is not None else 0) + (2 * d + e.mlp if e.dropout else 0)
    inside = {"attention": d, "mlp": e.mlp, "both": d + e.mlp}.get(e.inner_norm, 0)
    block = tokens * (norms + attention + (d + hidden + branches) * size + copies * inside * norm)
    if e.attention_bias != "none":
        block += e.heads * tokens * tokens * size
    if config.embedding.positions == "relative" or e.attention_dropout:  # weights are formed
        block += 3 * e.heads * tokens * tokens * size + 2 * tokens * d * size
    return block


def _stem(config: ViTConfig, size: int, *, compiled: bool) -> int:
    """Bytes of one image in front of the patches."""
    if config.embedding.stem == "resnet":
        kept = _resnet(config.resnet, config.channels, config.image_size, size, compiled, is_v2=False)
        return kept.root + sum(kept.stages)
    if config.embedding.stem == "convolutions":
        (h, w), kept_bytes = config.image_size, 0
        steps = config.embedding.patch[0].bit_length() - 1
        widths = [config.channels, *(config.encoder.width // 2 ** (steps - 1 - i) for i in range(steps))]
        for i, (before, after) in enumerate(pairwise(widths)):
            kept_bytes += h * w * before * (_cast(size) if i and not compiled else size)  # what the convolution reads
            h, w = halved(h), halved(w)
            kept_bytes += h * w * after * (size if compiled else 2 * FLOAT)  # into the norm; out of the ReLU
        return kept_bytes
    return 0


def _bit(config: BiTConfig, batch: int, size: int, *, compiled: bool) -> list[_Part]:
    found = _resnet(config.resnet, config.channels, config.image_size, size, compiled, is_v2=True)
    first, *middle, last = _weights(config, "stages")
    kernels = [_standardised(config, size, compiled, f"stages.{i}.") for i in range(len(middle))]
    end = found.output * (size if compiled else 2 * FLOAT)
    return [
        _Part(first, batch * found.root + _standardised(config, size, compiled, "root.")),
        *(
            _Part(w, batch * kept + own, batch * given, batch * gradients)
            for w, kept, own, given, gradients in zip(
                middle, found.stages, kernels, found.inputs, found.gradients, strict=True
            )
        ),
        _Part(last, batch * end, None, batch * end),
    ]


@dataclass
class _KeptByResNet:
    """Bytes of one image: kept by the root and by each stage, going into each stage, and of its largest gradients.

    output: numbers that come out of the last stage.
    """

    root: int
    stages: list[int]
    inputs: list[int]
    gradients: list[int]
    output: int


def _resnet(
    config: ResNetConfig, channels: int, image_size: Size, size: int, compiled: bool, *, is_v2: bool
) -> _KeptByResNet:
    """Under autocast a group norm, and the ReLU after it, are float32; each convolution reads a copy.

    compiled: it keeps the inputs of norms and convolutions in the run's precision, and a byte for each ReLU at a sum
    and for each place of a maximum.
    """
    width, cast = root_width(config), _cast(size)
    h, w = image_size
    root = h * w * channels * size
    is_small = config.root == "small"
    if not is_small:
        h, w = halved(h), halved(w)
    if not is_v2:
        root += h * w * width * (size if compiled else 2 * FLOAT)  # into the norm; out of the ReLU
    if not is_small:
        if not compiled:
            root += (h + 2) * (w + 2) * width * size if is_v2 else (h + 1) * (w + 1) * width * FLOAT
        h, w = halved(h), halved(w)
        root += h * w * width * (1 if compiled else INDEX)
    if compiled and not is_v2:
        root += h * w * width * size  # into the first convolution
    now, stages, inputs, gradients = width, [], [], []
    for i, units in enumerate(config.units):
        middle, kept = width * 2**i, 0
        inputs.append(h * w * now * (size if is_v2 else FLOAT))
        for unit in range(units):
            before = h * w
            stride = 2 if i > 0 and unit == 0 else 1
            padded = (h + sum(same_pads(h, 3, stride))) * (w + sum(same_pads(w, 3, stride)))
            if stride == 2:
                h, w = halved(h), halved(w)
            after, is_first = h * w, unit == 0
            readers = 2 if is_first else 1  # of the input; a shortcut reads it too
            if is_v2 and compiled:
                kept += (before * now + before * middle + after * middle) * 2 * size
            elif is_v2:
                kept += (before * now + before * middle + after * middle) * 2 * FLOAT
                kept += (readers * before * now + before * middle + after * middle) * cast
            elif compiled:
                kept += (before + 2 * after + padded + 8 * after + 4 * after * is_first) * middle * size
                kept += 4 * after * middle
            else:
                kept += (2 * before + 2 * after + 2 * after * 4 + 4 * after * is_first) * middle * FLOAT
                kept += padded * middle * size + (readers * before * now + after * middle) * cast
            now = 4 * middle
        stages.append(kept)
        gradients.append(2 * h * w * now * (size if compiled else FLOAT))
    return _KeptByResNet(root, stages, inputs, gradients, h * w * now)


@lru_cache(maxsize=256)
def _standardised(config: Config, size: int, compiled: bool, part: str = "stem.") -> int:
    """Bytes of kernels minus their means, and of these over their deviations, besides the kernels themselves.

    compiled: only the second are kept.
    """
    named = blueprint(config).named_parameters()
    kernels = (p.numel() for name, p in named if name.startswith(part) and p.dim() == 4 and ".layers." not in name)
    return sum(kernels) * (size if compiled else FLOAT + size)


def in_bytes(size: int) -> str:
    for factor, unit in ((GIB, "GiB"), (2**20, "MiB")):
        if size >= factor:
            return f"{size / factor:.1f} {unit}" if size < 10 * factor else f"{size / factor:.0f} {unit}"
    return f"{size / 2**10:.0f} KiB"
