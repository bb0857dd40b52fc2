"""What a training run will need, before it begins: memory, by what autograd keeps, and arithmetic.

L tokens, N of them patches   D width   M hidden width of the MLP   H heads   h w rows and columns of a map
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

from vitreous.errors import ConfigError
from vitreous.machine import GIB
from vitreous.models.catalog import blueprint
from vitreous.models.config import BiTConfig, Config, ResNetConfig, Size, ViTConfig
from vitreous.models.convolutions import halved, root_width, same_pads
from vitreous.models.cost import macs
from vitreous.models.hybrid import make_stem
from vitreous.models.layers import HIDDEN_WIDTHS_READ
from vitreous.training.recipe import Recipe
from vitreous.training.run.optimizers import groups
from vitreous.words import SIZE_LETTERS, count

FLOAT = 4  # bytes; weights, gradients, moments and averages are float32 whatever the precision
BYTES_PER_NUMBER = {"float32": 4, "bfloat16": 2}
MOMENTS = {"adamw": 2, "adam": 2, "lamb": 2, "sgd": 1, "muon": 2}  # numbers per weight; Muon's matrices have 1


@dataclass(frozen=True)
class Memory:
    """Bytes of one device while it trains. activations: what the forward pass keeps for the backward pass."""

    parameters: int
    gradients: int
    optimizer: int
    average: int
    activations: int

    @property
    def total(self) -> int:
        return self.parameters + self.gradients + self.optimizer + self.average + self.activations

    def to_json(self) -> dict[str, int]:
        return {**asdict(self), "total": self.total}

    def __str__(self) -> str:
        parts = [f"{_size(size)} {name}" for name, size in asdict(self).items() if size]
        return f"about {_size(self.total)} ({', '.join(parts)})"


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


def expected(config: Config, batch: int, recipe: Recipe, *, precision: str, checkpointing: bool = False) -> Expected:
    """What a device needs for `batch` of a step's images at a time.  precision: float32 or bfloat16."""
    needs = memory(config, batch, recipe.optimizer, precision, recipe.average != "none", checkpointing)
    return Expected(needs.parameters // FLOAT, macs(config), batch, needs)


def memory(
    config: Config,
    batch: int,
    optimizer: str = "adamw",
    precision: str = "float32",
    average: bool = False,
    checkpointing: bool = False,
) -> Memory:
    """Analytic, of an eager step; a compiled one keeps less. Augmentation and the largest gradients come on top."""
    if optimizer not in MOMENTS:
        raise ConfigError(f"optimizer={optimizer!r} is not one of {', '.join(MOMENTS)}")
    if precision not in BYTES_PER_NUMBER:
        raise ConfigError(f"precision={precision!r} is not one of {', '.join(BYTES_PER_NUMBER)}")
    if batch < 1:
        raise ConfigError(f"batch={batch} must be 1 or more")
    model = blueprint(config)
    count = sum(parameter.numel() for parameter in model.parameters())
    moments = MOMENTS[optimizer] * count
    if optimizer == "muon":
        parts = groups(model, Recipe(optimizer="muon"))
        moments -= sum(p.numel() for part in parts if part["kind"] == "matrix" for p in part["params"])
    kept = activations(config, batch, precision, checkpointing)
    return Memory(FLOAT * count, FLOAT * count, FLOAT * moments, FLOAT * count * average, kept)


def activations(config: Config, batch: int, precision: str = "float32", checkpointing: bool = False) -> int:
    """Bytes that autograd keeps of a forward pass of `batch` images, attention fused."""
    size = BYTES_PER_NUMBER[precision]
    if isinstance(config, BiTConfig):
        return _bit(config, batch, size, checkpointing)
    copies = 0 if size == FLOAT else size * sum(p.numel() for p in blueprint(config).parameters())  # made by autocast
    return copies + _vit(config, batch, size, checkpointing)


def _vit(config: ViTConfig, batch: int, size: int, checkpointing: bool) -> int:
    e, r = config.encoder, config.readout
    stem = make_stem(config)
    rows, columns = stem.grid(config.image_size)
    n = rows * columns
    tokens, d = n + config.prefix, e.width
    stream = tokens * d * size
    block = _block(config, tokens, size)
    blocks = e.depth * stream + block if checkpointing else e.depth * block
    patches = n * stem.channels * stem.patch[0] * stem.patch[1] * FLOAT
    norms = (1 + config.embedding.norm_before_blocks) * tokens * d * FLOAT
    pool = (3 * n * d + n * d) * size if r.pool == "map" else n * d * size if r.pool == "max" else 0
    return batch * (_stem(config, size) + patches + norms + blocks + pool) + _standardised(config, size)


def _block(config: ViTConfig, tokens: int, size: int) -> int:
    """Bytes of one image in one block."""
    e, d = config.encoder, config.encoder.width
    copies = 2 if e.norm_kind == "rms" else 1  # an RMS norm keeps what it divides, and the quotient
    norms = 2 * copies * (d * FLOAT + 2 * FLOAT)  # what goes in, which autocast makes float32; mean and deviation
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
    block = tokens * (norms + attention + (d + hidden + branches) * size + copies * inside * FLOAT)
    if e.attention_bias != "none":
        block += e.heads * tokens * tokens * size
    if config.embedding.positions == "relative" or e.attention_dropout:  # weights are formed
        block += 3 * e.heads * tokens * tokens * size + 2 * tokens * d * size
    return block


def _stem(config: ViTConfig, size: int) -> int:
    """Bytes of one image in front of the patches."""
    if config.embedding.stem == "resnet":
        kept = _resnet(config.resnet, config.channels, config.image_size, is_v2=False)
        return size * (kept.root + sum(kept.stages))
    if config.embedding.stem == "convolutions":
        (h, w), kept_numbers = config.image_size, 0
        steps = config.embedding.patch[0].bit_length() - 1
        widths = [config.channels, *(config.encoder.width // 2 ** (steps - 1 - i) for i in range(steps))]
        for before, after in pairwise(widths):
            kept_numbers += h * w * before
            h, w = halved(h), halved(w)
            kept_numbers += h * w * after
        return size * (kept_numbers + h * w * widths[-1])
    return 0


def _bit(config: BiTConfig, batch: int, size: int, checkpointing: bool) -> int:
    found = _resnet(config.resnet, config.channels, config.image_size, is_v2=True)
    ends = batch * size * (found.root + 2 * found.output) + _standardised(config, size, "root.")
    kept = [batch * size * stage + _standardised(config, size, f"stages.{i}.") for i, stage in enumerate(found.stages)]
    if checkpointing:
        return ends + batch * size * sum(found.inputs) + max(kept, default=0)
    return ends + sum(kept)


@dataclass
class _KeptByResNet:
    """Numbers of one image: kept by the root and by each stage, going into each stage, and coming out of the last."""

    root: int
    stages: list[int]
    inputs: list[int]
    output: int


def _resnet(config: ResNetConfig, channels: int, size: Size, *, is_v2: bool) -> _KeptByResNet:
    width = root_width(config)
    h, w = size
    root = h * w * channels
    is_small = config.root == "small"
    if not is_small:
        h, w = halved(h), halved(w)
    if not is_v2:
        root += 2 * h * w * width  # into the norm, out of the ReLU
    if not is_small:
        root += (h + 2) * (w + 2) * width if is_v2 else (h + 1) * (w + 1) * width
        h, w = halved(h), halved(w)
        root += 2 * h * w * width  # whence each maximum came, as int64
    now, stages, inputs = width, [], []
    for i, units in enumerate(config.units):
        middle, kept = width * 2**i, 0
        inputs.append(h * w * now)
        for unit in range(units):
            before = h * w
            stride = 2 if i > 0 and unit == 0 else 1
            padded = (h + sum(same_pads(h, 3, stride))) * (w + sum(same_pads(w, 3, stride)))
            if stride == 2:
                h, w = halved(h), halved(w)
            after = h * w
            if is_v2:
                kept += 2 * before * now + 2 * before * middle + 2 * after * middle
            else:
                kept += (2 * before + padded) * middle + 2 * after * middle + 2 * after * 4 * middle
                kept += after * 4 * middle if unit == 0 else 0
            now = 4 * middle
        stages.append(kept)
    return _KeptByResNet(root, stages, inputs, h * w * now)


def _standardised(config: Config, size: int, part: str = "stem.") -> int:
    """Kernels minus their means, and over their deviations: kept besides the kernels themselves."""
    named = blueprint(config).named_parameters()
    kernels = (p.numel() for name, p in named if name.startswith(part) and p.dim() == 4 and ".layers." not in name)
    return sum(kernels) * (FLOAT + size)


def _size(size: int) -> str:
    for factor, unit in ((GIB, "GiB"), (2**20, "MiB")):
        if size >= factor:
            return f"{size / factor:.1f} {unit}" if size < 10 * factor else f"{size / factor:.0f} {unit}"
    return f"{size / 2**10:.0f} KiB"
