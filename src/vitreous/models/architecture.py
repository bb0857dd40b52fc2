"""What a network is made of, from image to answer: its parts, their shapes and parameters, and a drawing of them.

    parts(vitreous.models.catalog.parse("B/16"))        drawing(config, "B/16").to_svg()

A blueprint runs once on the meta device, so each shape is the network's own and no weight is needed.
"""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from vitreous.models.bit import BiT
from vitreous.models.catalog import blueprint
from vitreous.models.config import Config, EmbeddingConfig, ResNetConfig, Size, ViTConfig
from vitreous.models.convolutions import root_width, same_pads
from vitreous.models.hybrid import ConvolutionStem, ResNetStem, Stem
from vitreous.models.model import Model
from vitreous.models.positions import NoPositions
from vitreous.models.taps import tap_names
from vitreous.models.vit import Block, ViT
from vitreous.report.marks import Area, Box, Chart, Dot, Mark, Stroke, Words

STEM_STEP = re.compile(r"stem\.(layers\.\d+|root|stages\.\d+\.output)")
POSITIONS = {
    "learned": "a learned vector is added to each token",
    "learned-2d": "learned vectors of its row and column are added to each token",
    "sincos-2d": "fixed waves of its row and column are added to each {}",
    "relative": "and a learned vector for each distance between tokens",
}
ROTARY_SENTENCES = {
    "axial": "queries and keys turn with the row and column of their patch",
    "mixed": "queries and keys turn with their place, in directions that each head learned",
}
BIAS_SENTENCES = {
    "table": "attention adds a learned number for each offset of two tokens",
    "mlp": "attention adds what a small MLP says of the offset of two patches",
}
POOL_SENTENCES = {
    "cls": "the class token alone",
    "gap": "the mean of all {}",
    "max": "the largest of each number over all {}",
    "middle": "the one in the middle of the {}",
    "map": "one learned question asks all {}, then an MLP",
    "cls-and-gap": "the class token and the mean of all {}",
    "cls-and-distillation": "the class token and the distillation token",
    "cls-distillation-mean": "the mean of the class token and the distillation token",
}


@dataclass(frozen=True)
class ModelPart:
    """One step. kind: its colour.  shape: what leaves it, C H W or N D or D.  parameters: of all its copies."""

    name: str
    about: str
    kind: str
    shape: tuple[int, ...]
    parameters: int
    copies: int = 1
    legs: tuple[Leg, ...] = ()  # of one copy of a Transformer's block
    has_skip: bool = False  # a ResNet's units add what came in
    note: str = ""  # what a drawing of its legs does not show

    def to_json(self) -> dict[str, Any]:
        kept = ("name", "about", "shape", "parameters", "copies")
        return {key: value for key, value in asdict(self).items() if key in kept}


@dataclass(frozen=True)
class Leg:
    """branch(z) + z, then `after`.  parameters of its parts: of one copy."""

    branch: tuple[ModelPart, ...]
    after: tuple[ModelPart, ...] = ()
    has_skip: bool = True


def parts(config: Config) -> list[ModelPart]:
    """All parts in order; their parameters sum to the network's."""
    model = blueprint(config).eval().to("meta")
    made = _Shapes(model)
    if isinstance(model, ViT):
        return list(_of_vit(model, made))
    assert isinstance(model, BiT)
    return list(_of_bit(model, made))


def places(config: Config) -> str:
    """What the tokens stand for: patches of the image or of a map, or single places of a map."""
    if not isinstance(config, ViTConfig) or config.embedding.stem == "convolutions":
        return "places"
    return "places" if config.embedding.stem == "resnet" and config.embedding.patch == (1, 1) else "patches"


def place(config: Config) -> str:
    """The singular of `places`."""
    return {"patches": "patch", "places": "place"}[places(config)]


def front_tokens(e: EmbeddingConfig) -> list[str]:
    """Names of the tokens before the patches, in order."""
    registers = [f"register {i + 1}" for i in range(e.registers)]
    return [*["class token"] * e.class_token, *["distillation token"] * e.distillation_token, *registers]


@dataclass(frozen=True)
class Window:
    """The pixels that a place of a map sees through convolutions: place i starts at first + i · step and spans size."""

    first: Size
    step: Size
    size: Size


def spread(stem: Stem, image_size: Size, grid: Size) -> tuple[float, float, float, float]:
    """Where the places lie: left, top, right, bottom in shares of the image.

    A hybrid's places stand around the middles of their windows, which is not where an even grid has its cells.
    """
    if (seen := window(stem, image_size)) is None:
        return 0.0, 0.0, 1.0, 1.0
    first = [at + (size - step) / 2 for at, step, size in zip(seen.first, seen.step, seen.size, strict=True)]
    last = [at + step * count for at, step, count in zip(first, seen.step, grid, strict=True)]
    rows, columns = image_size
    return first[1] / columns, first[0] / rows, last[1] / columns, last[0] / rows


def window(stem: Stem, image_size: Size) -> Window | None:
    """The window of a hybrid's places; None if patches are cut from the image itself."""
    if isinstance(stem, ConvolutionStem):
        steps, is_same = [(3, 2)] * stem.steps, False
    elif isinstance(stem, ResNetStem):
        stages: Any = stem.stages
        units = [2 if i and not j else 1 for i, stage in enumerate(stages) for j in range(len(stage.units))]
        steps, is_same = [(3, 1)] if stem.is_small else [(7, 2), (3, 2)], True
        steps = [*steps, *((3, stride) for stride in units)]
    else:
        return None
    sides = [_seen_from(side, steps, patch, is_same) for side, patch in zip(image_size, stem.patch, strict=True)]
    first, step, size = ((a, b) for a, b in zip(*sides, strict=True))
    return Window(first, step, size)


def _seen_from(side: int, steps: Sequence[tuple[int, int]], patch: int, is_same: bool) -> tuple[int, int, int]:
    """first, step and size along one side.  steps: kernel and stride of each convolution, image first."""
    pads = []
    for kernel, stride in steps:
        pads.append(same_pads(side, kernel, stride)[0] if is_same else kernel // 2)
        side = -(-side // stride)
    first, step, size = 0, patch, patch
    for (kernel, stride), pad in zip(reversed(steps), reversed(pads), strict=True):
        first, step, size = first * stride - pad, step * stride, (size - 1) * stride + kernel
    return first, step, size


# The parts -----------------------------------------------------------------------------------------------------------


class _Shapes:
    """The shape that leaves each module during one forward pass on the meta device."""

    def __init__(self, model: Model):
        self.model, self._of = model, dict[nn.Module, tuple[int, ...]]()
        hooks = [module.register_forward_hook(self._keep) for module in model.modules()]
        size = (1, model.config.channels, *model.config.image_size)
        with torch.no_grad():
            model(torch.empty(size, device="meta"))
        for hook in hooks:
            hook.remove()

    def _keep(self, module: nn.Module, inputs: Any, output: Any) -> None:
        if isinstance(output, Tensor):
            self._of[module] = tuple(output.shape[1:])

    def __getitem__(self, module: nn.Module) -> tuple[int, ...]:
        return self._of[module]


def _count(*held: nn.Module | nn.Parameter | None) -> int:
    whole = [each for each in held if each is not None]
    return sum(sum(p.numel() for p in x.parameters()) if isinstance(x, nn.Module) else x.numel() for x in whole)


def _of_vit(model: ViT, made: _Shapes) -> Iterator[ModelPart]:
    config, embedding = model.config, model.embedding
    e, encoder, readout = config.embedding, config.encoder, config.readout
    what, width = places(config), encoder.width
    yield from _of_stem(model.stem, config.resnet, made)
    patch, channels = embedding.patch, model.stem.channels
    numbers = " × ".join(map(str, (*patch, channels) if patch != (1, 1) else (channels,)))
    about = f"the {numbers} numbers of each {place(config)} times one table"
    about += ", then a norm" if e.patch_norm else ""
    held_by = _count(embedding.projection, embedding.patch_norm)
    yield ModelPart(f"{what} to tokens", about, "embed", made[embedding.projection], held_by)
    count, _ = made[embedding.projection]
    if front := front_tokens(e):
        held = (embedding.class_token, embedding.distillation_token, embedding.registers)
        about = f"{listed(front)}, learned, {'stands' if len(front) == 1 else 'stand'} before the {what}"
        yield ModelPart("tokens in front", about, "embed", (count + len(front), width), _count(*held))
    if embedding.mask_token is not None:
        about = f"stands for hidden {what} in pre-training; not used for an answer"
        yield ModelPart("mask token", about, "embed", made[embedding], _count(embedding.mask_token))
    if e.positions != "none":
        about = POSITIONS.get(e.positions, f"of the kind {e.positions}").format(place(config))
        tables = model.layer_positions
        if tables.tables:
            shared = "the same" if e.positions_at == "every-layer-shared" else "its own"
            about = f"{about}, at the start of each block, {shared}"
        if tables.tables or not isinstance(embedding.positions, NoPositions):  # else they are inside attention
            held_by = _count(embedding.positions, tables)
            yield ModelPart("positions", about, "embed", made[embedding], held_by)
    if e.norm_before_blocks:
        yield ModelPart("norm", "each token by itself", "norm", made[embedding], _count(embedding.norm))
    told = {ROTARY_SENTENCES.get(config.rotation.rotary), BIAS_SENTENCES.get(encoder.attention_bias)} - {None}
    if told:
        about = "; ".join(sorted(filter(None, told)))
        yield ModelPart("places in attention", about, "embed", made[embedding], _count(model.places))
    yield _blocks(model, made)
    last = made[model.blocks[-1]]
    if not isinstance(model.norm, nn.Identity):
        yield ModelPart("norm", "each token by itself", "norm", last, _count(model.norm))
    about = POOL_SENTENCES.get(readout.pool, f"the pool {readout.pool}").format(what)
    after = ", then a norm" if encoder.norm != "post" and readout.pool_order == "mean-first" else ""
    yield ModelPart("pool", about + after, "read", made[model.pool], _count(model.pool))
    if readout.representation:
        held_by = _count(model.representation)
        is_tanh = readout.representation_kind == "tanh"
        named = ("hidden layer", "one table, then tanh") if is_tanh else ("projection", "one table, no bias")
        yield ModelPart(*named, "read", made[model.representation], held_by)
    yield from _head(model, made)


def _blocks(model: ViT, made: _Shapes) -> ModelPart:
    config, block = model.config, next(each for each in model.blocks if isinstance(each, Block))
    e = config.encoder
    each, is_post = e.width // e.heads, e.norm == "post"
    shape, ends = made[block], [getattr(part.end, "norm", None) for part in (block.attention, block.mlp)]
    kind = POSITIONS.get(config.embedding.positions, config.embedding.positions)
    inside = f", {kind}" if block.attention.positions is not None else ""
    heads = f"{e.heads} heads" if e.heads > 1 else "1 head"
    inner = {part: ", a norm inside" if e.inner_norm in (part, "both") else "" for part in ("attention", "mlp")}
    inside += inner["attention"]
    in_attention, in_mlp = (
        _count(part) - _count(end) for part, end in zip((block.attention, block.mlp), ends, strict=True)
    )
    attention = ModelPart("attention", f"{heads} of {each} numbers{inside}", "attention", shape, in_attention)
    about = f"{e.width} → {e.mlp} → {e.width}, {e.activation}{inner['mlp']}"
    mlp = ModelPart("MLP", about, "mlp", shape, in_mlp)
    held = (norm if end is None else end for norm, end in zip((block.norm1, block.norm2), ends, strict=True))
    norms = [ModelPart("norm", "", "norm", shape, _count(norm)) for norm in held]
    has_skip = len(set(e.skips)) < e.depth
    branch = (lambda norm, part: (part, norm)) if e.norm == "branch" else (lambda norm, part: (norm, part))
    legs = [
        Leg((part,), (norm,), has_skip) if is_post else Leg(branch(norm, part), (), has_skip)
        for norm, part in zip(norms, (attention, mlp), strict=True)
    ]
    about = f"attention of {heads}, then an MLP of {e.mlp}"
    about += ", each plus what came in" if has_skip else ", without skips"
    cut = ", ".join(str(i + 1) for i in sorted(set(e.skips))) if has_skip else ""
    note = f"without skips in block {cut}" if cut else ""
    about += f"; {note}" if note else ""
    return ModelPart("block", about, "block", shape, _count(model.blocks), e.depth, tuple(legs), note=note)


def _of_stem(stem: Stem, config: ResNetConfig, made: _Shapes) -> Iterator[ModelPart]:
    if isinstance(stem, ConvolutionStem):
        for i, layer in enumerate(stem.layers):
            about = "3 × 3, in steps of 2; norm, ReLU"
            yield ModelPart(f"convolution {i + 1}", about, "convolution", made[layer], _count(layer))
    elif isinstance(stem, ResNetStem):
        yield from _of_resnet(stem.root, stem.stages, config, made)


def _of_resnet(root: nn.Module, stages: Any, config: ResNetConfig, made: _Shapes) -> Iterator[ModelPart]:
    about = "3 × 3" if config.root == "small" else "7 × 7, in steps of 2; largest of 3 × 3, in steps of 2"
    yield ModelPart("root", about, "convolution", made[root], _count(root))
    for i, stage in enumerate(stages):
        middle, units = root_width(config) * 2**i, len(stage.units)
        about = (
            f"{units} unit{'s' if units > 1 else ''}: 1 × 1, 3 × 3, 1 × 1 over {middle}, {middle}, {4 * middle} maps"
        )
        about += ", plus what came in" + ("; the first halves the map" if i else "")
        yield ModelPart(f"stage {i + 1}", about, "convolution", made[stage], _count(stage), units, has_skip=True)


def _of_bit(model: BiT, made: _Shapes) -> Iterator[ModelPart]:
    yield from _of_resnet(model.root, model.stages, model.config.resnet, made)
    yield ModelPart("norm", "in groups of maps, then ReLU", "norm", made[model.norm], _count(model.last_norm))
    yield ModelPart("pool", "the mean of all places", "read", made[model.pooled], 0)
    yield from _head(model, made)


def _head(model: Model, made: _Shapes) -> Iterator[ModelPart]:
    if model.config.readout.classes:
        pair = isinstance(model, ViT) and model.config.readout.distillation_head
        about = "two tables, the mean of their scores" if pair else "one table: a score for each class"
        yield ModelPart("head", about, "read", made[model.head], _count(model.head))


def listed(names: Sequence[str]) -> str:
    """a class token and 4 registers"""
    registers = sum(name.startswith("register") for name in names)
    plain = [f"a {name}" for name in names if not name.startswith("register")]
    return " and ".join([*plain, *([f"{registers} registers" if registers > 1 else "a register"] if registers else [])])


def stem_taps(model: Model) -> list[str]:
    """The taps after each convolution, or stage, before the tokens; none in a ViT that cuts patches."""
    return [name for name in tap_names(model) if STEM_STEP.fullmatch(name)]


def stem_shapes(config: Config) -> list[list[int]]:
    """Channels, rows and columns at each of those taps."""
    model = blueprint(config).eval().to("meta")
    made = _Shapes(model)
    return [list(made[model.get_submodule(name)]) for name in stem_taps(model)]


# The drawing ---------------------------------------------------------------------------------------------------------

WIDTH = 430  # pixels: a phone shows it without scrolling
BOX_X, BOX_WIDTH = 38.0, 240.0
FRAME_X, FRAME_WIDTH = 8.0, 278.0
SKIP_X = 24.0  # the line of a skip, between frame and boxes
COUNT_X, BAR_WIDTH = 298.0, 124.0
ARROW, LINE = 26.0, 15.0  # height of an arrow, and of a line of text
LINE_LETTERS = 38  # that fit into a box
PART_COLOURS = {"convolution": "quiet", "embed": "third", "attention": "first", "mlp": "second", "read": "third"}
GLYPH = 64.0  # pixels of the image's picture


def drawing(config: Config, name: str) -> Chart:
    """The network from image to answer: each part with what leaves it, and its share of the parameters."""
    found = parts(config)
    total = sum(part.parameters for part in found)
    sketch = _Sketch(total)
    sketch.image(config)
    for part in found:
        sketch.add(part)
    sketch.arrow(_in_words(found[-1].shape, is_answer=bool(config.readout.classes)))
    title = f"{name}: {_sentence(config, found)}, {total:,} parameters"
    return Chart(title, sketch.marks, WIDTH, math.ceil(sketch.y + 6))


def _sentence(config: Config, found: Sequence[ModelPart]) -> str:
    """a Vision Transformer of 12 blocks; a hybrid …; a ResNet …"""
    if not isinstance(config, ViTConfig):
        return f"a ResNet of {sum(part.copies for part in found if part.has_skip)} units"
    kind = "a Vision Transformer" if config.embedding.stem == "patch" else "a hybrid, convolutions and a Transformer"
    return f"{kind} of {config.encoder.depth} block{'s' if config.encoder.depth > 1 else ''}"


def _in_words(shape: tuple[int, ...], *, is_answer: bool = False) -> str:
    if len(shape) == 3:
        return f"{shape[1]} × {shape[2]} places of {shape[0]:,} numbers"
    if len(shape) == 2:
        return f"{shape[0]:,} tokens of {shape[1]:,} numbers"
    return f"{shape[0]:,} scores" if is_answer else f"{shape[0]:,} numbers"


class _Sketch:
    """Marks from top to bottom; y is where the next begins."""

    def __init__(self, total: int):
        self.total, self.marks, self.y = total, list[Mark](), 8.0
        self.flows = ""  # what the next arrow carries

    def image(self, config: Config) -> None:
        h, w = config.image_size
        scale = GLYPH / max(h, w)
        tall, wide = h * scale, w * scale
        x, y = BOX_X + (BOX_WIDTH - wide) / 2, self.y
        self.marks.append(Box(x, y, wide, tall, "line", 0.55, border="quiet"))
        if isinstance(config, ViTConfig) and config.embedding.stem == "patch":
            rows, columns = h // config.embedding.patch[0], w // config.embedding.patch[1]
            across = [((x, y + i * tall / rows), (x + wide, y + i * tall / rows)) for i in range(1, rows)]
            down = [((x + i * wide / columns, y), (x + i * wide / columns, y + tall)) for i in range(1, columns)]
            self.marks += [Stroke(line, "quiet", 0.6) for line in (*across, *down)]
        self._write(COUNT_X, y + 14, "image", weight=600, size=13)
        colour = "one number" if config.channels == 1 else f"{config.channels} numbers"
        self._write(COUNT_X, y + 30, f"{h} × {w} pixels,", colour="quiet")
        self._write(COUNT_X, y + 45, f"{colour} each", colour="quiet")
        self.y += tall
        self._write(COUNT_X, self.y + ARROW / 2 + 4, "parameters", colour="quiet", size=11)

    def add(self, part: ModelPart) -> None:
        self.arrow(self.flows)
        top = self.y
        if part.legs:
            self._frame(part)
        else:
            self._box(part)
        self._parameters(part.parameters, top + 16)
        self.flows = _in_words(part.shape)

    def arrow(self, words: str = "", height: float = ARROW) -> None:
        x, y = BOX_X + BOX_WIDTH / 2, self.y + height
        self.marks.append(Stroke(((x, self.y + 2), (x, y - 6)), "quiet", 1.4))
        self.marks.append(Area(((x - 4, y - 8), (x + 4, y - 8), (x, y - 1)), "quiet", 1))
        if words:
            self._write(x + 10, self.y + height / 2 + 4, words, colour="quiet", size=11)
        self.y = y

    def _box(self, part: ModelPart) -> None:
        lines = textwrap.wrap(part.about, LINE_LETTERS)
        height, y = 12 + LINE * (1 + len(lines)), self.y
        colour = PART_COLOURS.get(part.kind, "quiet")
        fill = ("line", 0.35) if part.kind == "norm" else (colour, 0.13)
        tooltip = f"{part.name}: {part.parameters:,} parameters"
        self.marks.append(Box(BOX_X, y, BOX_WIDTH, height, *fill, border=colour, round=6, tooltip=tooltip))
        middle = BOX_X + BOX_WIDTH / 2
        self._write(middle, y + 19, part.name, anchor="middle", weight=600, size=13)
        for i, line in enumerate(lines):
            self._write(middle, y + 19 + LINE * (i + 1), line, anchor="middle", colour="quiet", size=11)
        if part.has_skip:
            self._skip(y + 12, y + height - 12, BOX_X)
        if part.has_skip and part.copies > 1:
            self._write(SKIP_X - 4, y + height / 2 + 4, f"{part.copies}×", anchor="end", colour="quiet", size=11)
        self.y = y + height

    def _frame(self, part: ModelPart) -> None:
        """One block in full, and how often it is repeated."""
        top, lowest = self.y, len(self.marks)
        self._write(FRAME_X + 12, top + 19, f"block, {part.copies} times" if part.copies > 1 else "block", weight=600)
        if part.copies > 1:
            self._write(COUNT_X, top + 46, f"{part.parameters // part.copies:,} in each:", colour="quiet", size=11)
        self.y = top + 26
        if part.note:
            self._write(FRAME_X + 12, top + 34, part.note, size=11)
            self.y += 12
        for leg in part.legs:
            begin = self.y + 7
            for one in leg.branch:
                self.arrow(height=20)
                self._inner(one)
            if leg.has_skip:
                self._sum(begin)
            for one in leg.after:
                self.arrow(height=20)
                self._inner(one)
        self.y += 12
        frame = Box(FRAME_X, top, FRAME_WIDTH, self.y - top, "line", 0.22, border="quiet", round=10)
        self.marks.insert(lowest, frame)

    def _inner(self, part: ModelPart) -> None:
        y = self.y
        self._box(part)
        self._write(COUNT_X, y + 20, f"{part.parameters:,}", colour="quiet", size=11)

    def _sum(self, begin: float) -> None:
        """The input is added.  begin: y where it leaves the main path."""
        self.arrow(height=18)
        x, y = BOX_X + BOX_WIDTH / 2, self.y + 8
        self.marks += [Dot(x, y, "paper", radius=9), Dot(x, y, "quiet", 0.25, 9)]
        self._write(x, y + 5, "+", anchor="middle", weight=600, size=15)
        self.y = y + 9
        self._skip(begin, y, x, x - 11)

    def _skip(self, begin: float, end: float, start: float, to: float | None = None) -> None:
        """The input goes round the box.  begin, end: y.  start, to: x of the line's ends."""
        path = ((start, begin), (SKIP_X, begin), (SKIP_X, end), (start if to is None else to, end))
        self.marks.append(Stroke(path, "first", 1.3, dashes="4 3"))

    def _parameters(self, count: int, y: float) -> None:
        share = count / self.total if self.total else 0.0
        if not count:
            self._write(COUNT_X, y, "nothing to learn", colour="quiet", size=11)
        else:
            self._write(COUNT_X, y, f"{count:,}", weight=600)
            self.marks.append(Box(COUNT_X, y + 5, BAR_WIDTH, 4, "line", 0.8))
            self.marks.append(Box(COUNT_X, y + 5, max(BAR_WIDTH * share, 0.5), 4, "first"))

    def _write(self, x: float, y: float, text: str, **look: Any) -> None:
        self.marks.append(Words(x, y, text, **look))
