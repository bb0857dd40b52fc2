"""Augmentation: drawn on the host from (seed, epoch, sample id) alone, applied to whole batches on their device.

    plan = draw(augment, seed, epoch, ids, places)      numbers only, the same in any batch, on any rank
    x = apply(batch, plan, rule)                        uint8 in; float, normalised and mixed, out
    y = targets(labels, plan, classes)                  labels mixed as the pixels were

Order: crop, flip, RandAugment, ThreeAugment, colour jitter, erasing, normalising, MixUp or CutMix.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from vitreous.errors import ConfigError
from vitreous.images.pixels import operations
from vitreous.images.pixels.operations import BLUR_TAPS, BLUR_UNIT, UNIT_FACTOR
from vitreous.images.pixels.preprocess import finish
from vitreous.models.config import Size
from vitreous.models.preprocess import Preprocess
from vitreous.options import check_ranges, option
from vitreous.randomness import bits, uniform

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

CROP_TRIES = 10  # for a box that fits, as in every library
ERASE_AREA, ERASE_RATIO = (0.02, 1 / 3), (0.3, 1 / 0.3)  # timm's
BLUR_RANGE = (0.1, 2.0)  # standard deviation in pixels, as in DeiT III
MAX_SIDE = 8192  # pixels; positions are 32-bit, in 1 / 65536 pixels

OPERATIONS = (
    "nothing", "autocontrast", "equalise", "invert", "rotate", "posterise", "solarise", "solarise-add", "colour",
    "contrast", "brightness", "sharpness", "shear-x", "shear-y", "translate-x", "translate-y", "cutout", "blur",
)  # fmt: skip
OPERATION_CODES = {name: code for code, name in enumerate(OPERATIONS)}
GEOMETRIC = ("rotate", "shear-x", "shear-y", "translate-x", "translate-y")
LOOKUP_OPERATIONS = ("autocontrast", "invert", "posterise", "solarise", "solarise-add", "contrast", "brightness")


def _enhance(level: Floats, sign: Floats) -> Floats:
    return level * 1.8 + 0.1


def _enhance_increasing(level: Floats, sign: Floats) -> Floats:
    return np.maximum(0.1, 1 + sign * level * 0.9)


Argument = Callable[[Floats, Floats], Floats]  # (magnitude / 10, random sign) -> units of `encode`
NO_ARGUMENT: Argument = lambda level, sign: level * 0  # noqa: E731

BIG_VISION_LEVELS: Mapping[str, Argument] = {
    "autocontrast": NO_ARGUMENT,
    "equalise": NO_ARGUMENT,
    "invert": NO_ARGUMENT,
    "rotate": lambda level, sign: sign * level * 30,
    "posterise": lambda level, sign: np.floor(level * 4),
    "solarise": lambda level, sign: np.floor(level * 256),
    "colour": _enhance,
    "contrast": _enhance,
    "brightness": _enhance,
    "sharpness": _enhance,
    "shear-x": lambda level, sign: sign * level * 0.3,
    "shear-y": lambda level, sign: sign * level * 0.3,
    "translate-x": lambda level, sign: sign * level * 100 / 224,
    "translate-y": lambda level, sign: sign * level * 100 / 224,
    "cutout": lambda level, sign: level * 40 / 224,
    "solarise-add": lambda level, sign: np.floor(level * 110),
}
"""What AugReg and "better plain ViT baselines" used (magnitudes 10, 15, 20; colours fade below 5, posterise vanishes at
20). They translate by 100 pixels and cut 40; so do we at 224, and in proportion at other sizes."""

TIMM_LEVELS: Mapping[str, Argument] = {
    **BIG_VISION_LEVELS,
    "posterise": lambda level, sign: 4 - np.floor(level * 4),
    "solarise": lambda level, sign: 256 - np.floor(level * 256),
    "solarise-add": lambda level, sign: np.minimum(128, np.floor(level * 110)),
    **dict.fromkeys(("colour", "contrast", "brightness", "sharpness"), _enhance_increasing),
    **dict.fromkeys(("translate-x", "translate-y"), lambda level, sign: sign * level * 0.45),
}
"""timm's "increasing" table, DeiT's: each operation is applied half of the time, without cutout."""

RAND_AUGMENT: dict[str, tuple[Mapping[str, Argument], tuple[str, ...], float]] = {
    "big_vision": (BIG_VISION_LEVELS, tuple(BIG_VISION_LEVELS), 1.0),
    "timm": (TIMM_LEVELS, tuple(name for name in TIMM_LEVELS if name != "cutout"), 0.5),
}  # arguments, operations to choose from, probability of applying the chosen one


@dataclass(frozen=True, kw_only=True)
class Augment:
    """The augmentation of a training image. The default is the ViT paper's: Inception crop and flip.

    crop  inception: a box of `area` of the image and of aspect `ratio`, resized to `size`;
          window: a box of `window` of both sides, resized (BiT: 480 / 512);  shift: moved by up to `margin` pixels;
          none: the whole image, resized.
    """

    size: Size = (224, 224)  # rows, columns of the output
    crop: Literal["inception", "window", "shift", "none"] = option("inception", "which box of the image is taken")
    area: tuple[float, float] = option((0.05, 1.0), "share of the image, uniform", above=0, at_most=1)
    ratio: tuple[float, float] = option((3 / 4, 4 / 3), "width to height, log-uniform", above=0)
    window: float = option(1.0, "crop=window: share of both sides that the box has", above=0, at_most=1)
    margin: int = option(4, "crop=shift: pixels by which an image is moved at most", at_least=0)
    edge: Literal["black", "reflect"] = option("black", "fills what a shift uncovers")
    flip: float = option(0.5, "probability", at_least=0, at_most=1)
    rand_augment: tuple[int, float] | None = option(None, "operations, magnitude")
    rand_augment_table: Literal["big_vision", "timm"] = option("big_vision", "whose operations and magnitudes")
    rand_augment_deviation: float = option(0.0, "deviation of the magnitude, which is then clipped to 0 … 10")
    three_augment: bool = option(False, "one of grey, solarise, blur")
    colour_jitter: float = option(
        0.0, "brightness, contrast and saturation by 1 ± this, in any order", at_least=0, at_most=1
    )
    erase: float = option(0.0, "probability that a box becomes noise", at_least=0, at_most=1)
    mixup: float = option(0.0, "λ ~ Beta(a, a); 0 is off", at_least=0)
    cutmix: float = option(0.0, "λ ~ Beta(a, a); 0 is off; beside mixup, each pair takes either one", at_least=0)

    def __post_init__(self) -> None:
        def need(holds: bool, what: str) -> None:
            if not holds:
                raise ConfigError(f"augmentation {what}")

        check_ranges(self, "augmentation ")
        fits = all(1 <= n <= MAX_SIDE for n in self.size)
        need(fits, f"size {self.size} is out of reach; give sides of 1 to {MAX_SIDE}")
        for name, (low, high) in (("area", self.area), ("ratio", self.ratio)):
            need(low <= high, f"{name} {low}, {high} is not a range; give the smaller number first")
        need(self.margin < min(self.size), f"margin={self.margin} is out of reach; give less than the side")
        n, m = self.rand_augment or (0, 0)
        need(0 <= n <= 16 and 0 <= m <= 30, f"rand_augment=({n}, {m}) is out of reach; give e.g. (2, 10)")

    @property
    def mixes(self) -> bool:
        return self.mixup > 0 or self.cutmix > 0

    @property
    def layers(self) -> tuple[tuple[str, ...], ...]:
        """The operations that each step after the crop may apply, one per sample."""
        n = self.rand_augment[0] if self.rand_augment else 0
        steps = [RAND_AUGMENT[self.rand_augment_table][1]] * n
        steps += [("colour", "solarise", "blur")] * self.three_augment
        steps += [("brightness", "contrast", "colour")] * 3 * (self.colour_jitter > 0)
        return tuple(steps)


@dataclass(frozen=True)
class AugmentLayer:
    """One step: each sample's operation, and parameters that are the identity where a sample has another operation."""

    code: Integers  # B
    number: Integers  # B: a threshold, a mask, an addition, or a factor in 1 / 1024
    matrix: Integers  # B 6
    box: Integers  # B 4
    taps: Integers  # B 13


@dataclass(frozen=True)
class AugmentPlan:
    """Everything drawn for some samples, on the host. Row i depends on sample ids[i] alone."""

    augment: Augment
    ids: Integers
    crop: Floats  # B 10 4: area, ratio, top, left of each try, as draws of 0 … 1
    flip: NDArray[np.bool_]  # B
    layers: tuple[AugmentLayer, ...]
    erase: Integers  # B 4
    key: Integers  # B: seeds the noise
    partner: Integers  # B: rows of this batch; its own row if unmixed
    share: Floats  # B: of its own pixels, outside the box
    mix_box: Integers  # B 4: the partner's pixels
    own: Floats  # B: of its own label

    def __len__(self) -> int:
        return len(self.ids)

    def on(self, device: torch.device | str, size: Size | None) -> DevicePlan:
        """The plan as tensors for a batch of this size; size None if the decoder has cropped already."""
        arrays = self.arrays(size)
        tensors = {name: torch.from_numpy(array).to(device, non_blocking=True) for name, array in arrays.items()}
        return DevicePlan.of(self.augment, tensors)

    def arrays(self, size: Size | Integers | None) -> dict[str, NDArray[Any]]:
        """The arrays that the device needs, by name; `DevicePlan.of` reads them back.

        size: rows and columns of all images, or of each (B 2).
        """
        found: dict[str, NDArray[Any]] = {}
        if size is not None:
            rows, columns = np.broadcast_to(np.asarray(size, np.int64), (len(self), 2)).T
            found["boxes"] = crop_boxes(self, rows, columns)
        found["offsets"] = np.floor(self.crop[:, 0, 2:] * (2 * self.augment.margin + 1)).astype(np.int64)
        for i, layer in enumerate(self.layers):
            for f in fields(AugmentLayer):
                found[f"layers.{i}.{f.name}"] = getattr(layer, f.name).astype(np.int32)
        for name in ("flip", "erase", "key", "partner", "mix_box"):
            found[name] = getattr(self, name)
        for name in ("share", "own"):
            found[name] = getattr(self, name).astype(np.float32)
        return {name: np.ascontiguousarray(array) for name, array in found.items()}


@dataclass(frozen=True)
class DevicePlan:
    """A plan on the device of its batch; the input of a compiled `apply`."""

    augment: Augment
    boxes: Tensor | None  # B 4
    offsets: Tensor  # B 2: of a shift
    flip: Tensor
    layers: tuple[tuple[Tensor, ...], ...]
    erase: Tensor
    key: Tensor
    partner: Tensor
    share: Tensor
    mix_box: Tensor
    own: Tensor

    @classmethod
    def of(cls, augment: Augment, tensors: Mapping[str, Tensor]) -> DevicePlan:
        """From the arrays of `AugmentPlan.arrays`, on any device."""
        layers = tuple(
            tuple(tensors[f"layers.{i}.{f.name}"] for f in fields(AugmentLayer)) for i in range(len(augment.layers))
        )
        rest = ("erase", "key", "partner", "share", "mix_box", "own")
        return cls(augment, tensors.get("boxes"), tensors["offsets"], tensors["flip"], layers, *map(tensors.get, rest))  # type: ignore[arg-type]


# ------------------------------------------------------------------------------------------------ drawing, on the host


def draw(
    augment: Augment, seed: int, epoch: int, ids: ArrayLike, places: ArrayLike | None = None, total: int | None = None
) -> AugmentPlan:
    """The augmentation of these samples in this epoch.

    places: each sample's place in the epoch's order, needed for mixing: neighbours 2i and 2i + 1 are a pair, and a
    batch holds whole pairs. total: samples in the epoch; if odd, the last one stays unmixed.
    """
    ids = np.atleast_1d(np.asarray(ids, np.int64))

    def drawn(purpose: str, *shape: int) -> Floats:
        return uniform(seed, f"augment/{purpose}", epoch, ids, int(np.prod(shape))).reshape(len(ids), *shape)

    return AugmentPlan(
        augment,
        ids,
        drawn("crop", CROP_TRIES, 4),
        drawn("flip", 1)[:, 0] < augment.flip,
        (*_rand_augment(augment, drawn), *_three_augment(augment, drawn), *_colour_jitter(augment, drawn)),
        _erased(augment, drawn, len(ids)),
        (bits(seed, "augment/noise", epoch, ids)[:, 0] >> np.uint64(32)).astype(np.int64),
        *_mixing(augment, seed, epoch, len(ids), places, total),
    )


def _erased(augment: Augment, drawn: Callable[..., Floats], n: int) -> Integers:
    """Boxes that become noise; most are empty."""
    if not augment.erase:
        return np.zeros((n, 4), np.int64)
    chance = drawn("erase", 1 + 4 * CROP_TRIES)
    boxes = _boxes(chance[:, 1:].reshape(-1, CROP_TRIES, 4), *augment.size, ERASE_AREA, ERASE_RATIO)
    boxes[chance[:, 0] >= augment.erase] = 0
    return boxes


def _rand_augment(augment: Augment, drawn: Callable[..., Floats]) -> list[AugmentLayer]:
    """n operations from the table in turn, all of the same magnitude (arXiv 1909.13719)."""
    if augment.rand_augment is None:
        return []
    n, magnitude = augment.rand_augment
    arguments, names, often = RAND_AUGMENT[augment.rand_augment_table]
    numbers, out = drawn("rand-augment", n, 7), []
    for choice, chance, side, *place, u, v in np.moveaxis(numbers, (1, 2), (0, 1)):
        level = np.full(len(choice), float(magnitude))
        if augment.rand_augment_deviation:
            normal = np.sqrt(-2 * np.log(1 - u)) * np.cos(2 * np.pi * v)
            level = np.clip(level + augment.rand_augment_deviation * normal, 0, 10)
        code = np.array([OPERATION_CODES[name] for name in names])[(choice * len(names)).astype(np.int64)]
        code = np.where(chance < often, code, OPERATION_CODES["nothing"])
        sign = np.where(side < 0.5, -1.0, 1.0)
        argument = np.zeros(len(code))
        for name in names:
            argument = np.where(code == OPERATION_CODES[name], arguments[name](level / 10, sign), argument)
        out.append(encode(code, argument, augment.size, np.stack(place, 1)))
    return out


def _three_augment(augment: Augment, drawn: Callable[..., Floats]) -> list[AugmentLayer]:
    """Grey, solarise or blur, with equal probability (DeiT III, arXiv 2204.07118)."""
    if not augment.three_augment:
        return []
    choice, strength = drawn("three-augment", 2).T
    which = (choice * 3).astype(np.int64)
    code = np.array([OPERATION_CODES["colour"], OPERATION_CODES["solarise"], OPERATION_CODES["blur"]])[which]
    deviation = BLUR_RANGE[0] + (BLUR_RANGE[1] - BLUR_RANGE[0]) * strength
    argument = np.choose(which, [np.zeros_like(choice), np.full_like(choice, 128), deviation])
    return [encode(code, argument, augment.size)]


def _colour_jitter(augment: Augment, drawn: Callable[..., Floats]) -> list[AugmentLayer]:
    if not augment.colour_jitter:
        return []
    numbers = drawn("colour-jitter", 2, 3)
    order = numbers[:, 0].argsort(1)  # B 3
    code = np.array([OPERATION_CODES["brightness"], OPERATION_CODES["contrast"], OPERATION_CODES["colour"]])[order]
    factor = 1 + augment.colour_jitter * (2 * numbers[:, 1] - 1)
    return [encode(code[:, k], factor[:, k], augment.size) for k in range(3)]


def encode(code: Integers, argument: Floats, size: Size, place: Floats | None = None) -> AugmentLayer:
    """Parameters of one step.

    argument: degrees counter-clockwise (rotate), pixels a row or column (shear), share of the side (translate; cutout,
    half its side), bits kept (posterise), threshold (solarise), addition (solarise-add), factor (colour, contrast,
    brightness, sharpness), pixels of deviation (blur).  place: B 2, of cutouts, 0 … 1.
    """
    rows, columns = size
    n = len(code)
    is_ = {name: code == OPERATION_CODES[name] for name in OPERATIONS}
    kept = np.clip(argument, 0, 8).astype(np.int64)
    number = np.rint(argument * UNIT_FACTOR).astype(np.int64)  # factors
    number = np.where(is_["posterise"], 256 - (256 >> kept), number)  # a mask
    number = np.where(is_["solarise"] | is_["solarise-add"], argument.astype(np.int64), number)

    centre = np.zeros((n, 2)) if place is None else np.floor(place * (rows, columns))
    half = np.rint(argument * min(size))[:, None] * is_["cutout"][:, None]
    first, last = np.clip(centre - half, 0, (rows, columns)), np.clip(centre + half, 0, (rows, columns))
    box = np.concatenate([first, last - first], 1).astype(np.int64)  # empty for others
    return AugmentLayer(code, number, _matrix(is_, argument, size), box, _gaussian(np.where(is_["blur"], argument, 0)))


def _matrix(is_: Mapping[str, NDArray[np.bool_]], argument: Floats, size: Size) -> Integers:
    """Where output pixels look, in 1 / 65536 pixels: B 6. Turns are about the middle, shears about the first pixel."""
    rows, columns = size
    angle = np.radians(np.where(is_["rotate"], argument, 0))
    cos, sin = np.cos(angle), np.sin(angle)
    x, y = columns / 2, rows / 2
    a, b, c = cos, -sin, x - cos * x + sin * y  # clockwise output to input, y down
    d, e, f = sin, cos, y - sin * x - cos * y
    b = np.where(is_["shear-x"], argument, b)
    d = np.where(is_["shear-y"], argument, d)
    c = np.where(is_["translate-x"], np.rint(argument * columns), c)
    f = np.where(is_["translate-y"], np.rint(argument * rows), f)
    real = np.stack([a, b, c + (a + b) / 2, d, e, f + (d + e) / 2], 1)  # pixel i's middle is i + ½
    return np.floor(real * 65536 + 0.5).astype(np.int64)


def _gaussian(deviation: Floats) -> Integers:
    """exp(−i² / 2σ²) at −6 … 6 as whole numbers adding up to 4096; σ = 0 is the pixel alone.  B 13."""
    i = np.arange(BLUR_TAPS) - BLUR_TAPS // 2
    weight = np.exp(-0.5 * (i / np.maximum(deviation, 1e-3)[:, None]) ** 2)
    whole = np.rint(BLUR_UNIT * weight / weight.sum(1, keepdims=True)).astype(np.int64)
    whole[:, BLUR_TAPS // 2] += BLUR_UNIT - whole.sum(1)
    return whole


def _mixing(
    augment: Augment, seed: int, epoch: int, n: int, places: ArrayLike | None, total: int | None
) -> tuple[Integers, Floats, Integers, Floats]:
    """partner, share, box and the own label's share; both samples of a pair share one draw.

    λ is taken as max(λ, 1 − λ): in a pair both give the same two images, and the larger lets a sample's own label lead.
    """
    alone = np.arange(n), np.ones(n), np.zeros((n, 4), np.int64), np.ones(n)
    if not augment.mixes:
        return alone
    if places is None:
        raise ConfigError("mixup and cutmix pair neighbours of the epoch's order; give draw the samples' places in it")
    places = np.atleast_1d(np.asarray(places, np.int64))
    order = places.argsort()
    found = order[np.searchsorted(places, places ^ 1, sorter=order).clip(max=n - 1)]
    is_paired = places[found] == places ^ 1
    is_last = (places % 2 == 0) & (places + 1 == total if total is not None else places == places.max())
    if not (is_paired | is_last).all():
        lost = int(places[~(is_paired | is_last)][0])
        raise ConfigError(f"place {lost} of the epoch's order comes without {lost ^ 1}; cut batches at even places")
    partner = np.where(is_paired, found, np.arange(n))

    choice, u, v, *middle = uniform(seed, "augment/mix", epoch, places // 2, 5).T
    is_cut = is_paired & (choice < (0.5 if augment.mixup else 1.0) * (augment.cutmix > 0))
    share = np.where(is_cut, beta(u, v, augment.cutmix or 1.0), beta(u, v, augment.mixup or 1.0))
    share = np.where(is_paired, np.maximum(share, 1 - share), 1.0)
    sides = np.array(augment.size)
    half = np.floor(sides * np.sqrt(1 - share)[:, None]) // 2 * is_cut[:, None]
    centre = np.floor(np.stack(middle, 1) * sides)
    first, last = np.clip(centre - half, 0, sides), np.clip(centre + half, 0, sides)
    box = np.concatenate([first, last - first], 1).astype(np.int64)
    own = np.where(is_cut, 1 - (last - first).prod(1) / sides.prod(), share)  # what the box, cut at the edge, leaves
    return partner, np.where(is_cut, 1.0, share), box, own


def beta(u: Floats, v: Floats, a: float) -> Floats:
    """Beta(a, a) from two uniform draws: Bailey's polar method for Student's t, of 2a degrees, mapped to 0 … 1."""
    with np.errstate(over="ignore", divide="ignore"):
        g = (1 - u) ** (-1 / a) - 1
        cos = np.cos(2 * np.pi * v)
        return 0.5 + 0.5 * cos / np.sqrt(1 / g + cos**2)


def crop_boxes(plan: AugmentPlan, heights: ArrayLike, widths: ArrayLike) -> Integers:
    """Top, left, height and width of each sample's crop in an image of this size, to crop while decoding.

    Resize the box to `plan.augment.size` and call `apply` with cropped=True. A shift has no box inside the image: the
    decoder resizes the whole image and `apply` shifts it.  Returns B 4.
    """
    augment = plan.augment
    h, w = np.broadcast_arrays(np.asarray(heights, np.int64), np.asarray(widths, np.int64))
    h, w = np.broadcast_to(h, len(plan)), np.broadcast_to(w, len(plan))
    if augment.crop == "inception":
        boxes = _boxes(plan.crop, h, w, augment.area, augment.ratio)
        return np.where(boxes[:, 2:3] > 0, boxes, _centre(h, w, augment.ratio))
    share = augment.window if augment.crop == "window" else 1.0
    tall, wide = (np.maximum(np.rint(share * n), 1) for n in (h, w))
    top, left = (np.floor(u * (n - m + 1)) for u, n, m in zip(plan.crop[:, 0, 2:].T, (h, w), (tall, wide), strict=True))
    return np.stack([top, left, tall, wide], 1).astype(np.int64)


def _boxes(
    drawn: Floats, h: Integers | int, w: Integers | int, area: tuple[float, float], ratio: tuple[float, float]
) -> Integers:
    """The first try that fits into h × w; all 0 if none does.  drawn: B tries 4.  Returns B 4."""
    h, w = (np.broadcast_to(n, len(drawn))[:, None] for n in (h, w))
    share, aspect, top, left = np.moveaxis(drawn, 2, 0)  # each B tries
    pixels = (area[0] + (area[1] - area[0]) * share) * h * w
    low, high = np.log(ratio)
    aspect = np.exp(low + (high - low) * aspect)
    tall, wide = np.rint(np.sqrt(pixels / aspect)), np.rint(np.sqrt(pixels * aspect))
    fits = (tall >= 1) & (tall <= h) & (wide >= 1) & (wide <= w)
    top, left = np.floor(top * (h - tall + 1)), np.floor(left * (w - wide + 1))
    tries = np.stack([top, left, tall, wide], 2)[np.arange(len(drawn)), fits.argmax(1)]
    return (tries * fits.any(1, keepdims=True)).astype(np.int64)


def _centre(h: Integers, w: Integers, ratio: tuple[float, float]) -> Integers:
    """The largest centred box with an allowed aspect."""
    tall = np.minimum(h, np.maximum(np.rint(w / ratio[0]), 1))
    wide = np.minimum(w, np.maximum(np.rint(h * ratio[1]), 1))
    return np.stack([(h - tall) // 2, (w - wide) // 2, tall, wide], 1).astype(np.int64)


# ------------------------------------------------------------------------------------------------- doing, on the device


def apply(
    batch: Tensor, plan: AugmentPlan | DevicePlan, rule: Preprocess | None = None, *, cropped: bool = False
) -> Tensor:
    """Augment a batch: B C H W or B H W C of uint8.  Returns B C H W at the plan's size.

    With a rule: float32, normalised for the model. Without: uint8.  cropped: the decoder has cropped already.
    To compile, pass `plan.on(device, size)`.
    """
    x = channels_first(batch)
    if isinstance(plan, AugmentPlan):
        plan = plan.on(x.device, None if cropped else (x.shape[2], x.shape[3]))
    augment = plan.augment
    x = _crop(x, plan)
    for names, (code, number, matrix, box, taps) in zip(augment.layers, plan.layers, strict=True):
        x = _layer(x, names, code, number, matrix, box, taps)
    if augment.erase:
        x = _where(x, plan.erase[:, 2] > 0, operations.erase, plan.erase, plan.key)
    if rule is not None:
        x = finish(x, rule)
    if augment.mixes:
        x = operations.mix(x, plan.partner, plan.share, plan.mix_box)
    return x.contiguous()


def targets(labels: Tensor, plan: AugmentPlan | DevicePlan, classes: int, smoothing: float = 0.0) -> Tensor:
    """Labels mixed as the pixels were.  labels: B class numbers, whose rows then sum to 1, or B K.  Returns B K."""
    device = labels.device
    if isinstance(plan, AugmentPlan):
        plan = plan.on(device, None)
    y = labels.float() if labels.ndim == 2 else torch.nn.functional.one_hot(labels, classes).float()
    y = y * (1 - smoothing) + smoothing / classes
    own = plan.own[:, None]
    return own * y + (1 - own) * y[plan.partner]


def channels_first(batch: Tensor) -> Tensor:
    """B C H W from either layout."""
    if batch.ndim != 4 or (batch.shape[1] not in (1, 3) and batch.shape[3] not in (1, 3)):
        raise ConfigError(f"a batch of shape {tuple(batch.shape)} is not a batch of images; give B C H W or B H W C")
    return batch if batch.shape[1] in (1, 3) else batch.permute(0, 3, 1, 2)


def _crop(x: Tensor, plan: DevicePlan) -> Tensor:
    """Crop, resize and mirror."""
    augment, size = plan.augment, (x.shape[2], x.shape[3])
    if plan.boxes is None and size != augment.size:
        raise ConfigError(f"cropped images of {size} do not fit augmentation size {augment.size}; resize to it")
    boxes = None if augment.crop in ("shift", "none") and size == augment.size else plan.boxes
    if augment.crop == "shift":
        if boxes is not None:
            x = operations.crop_and_resize(x, boxes, torch.zeros_like(plan.flip), augment.size)
        return operations.shift(x, plan.offsets, plan.flip, augment.margin, augment.edge == "reflect")
    if boxes is None:
        return operations.mirror(x, plan.flip)
    return operations.crop_and_resize(x, boxes, plan.flip, augment.size)


def _layer(
    x: Tensor, names: tuple[str, ...], code: Tensor, number: Tensor, matrix: Tensor, box: Tensor, taps: Tensor
) -> Tensor:
    """One operation per sample: runs every kind in turn, with identity parameters for samples of another kind."""

    def among(some: tuple[str, ...]) -> Tensor:
        return sum((code == OPERATION_CODES[name] for name in some), torch.zeros_like(code, dtype=torch.bool))

    def factor(name: str) -> Tensor:
        return torch.where(code == OPERATION_CODES[name], number, UNIT_FACTOR)

    if "rotate" in names:
        x = _where(x, among(GEOMETRIC), operations.affine, matrix)
    if tables := tuple(name for name in LOOKUP_OPERATIONS if name in names):
        x = _where(x, among(tables), _replace, code, number)
    if "equalise" in names:
        x = _where(x, code == OPERATION_CODES["equalise"], _equalise, code)
    if "colour" in names:
        x = _where(x, code == OPERATION_CODES["colour"], operations.saturate, factor("colour"))
    if "sharpness" in names:
        x = _where(x, code == OPERATION_CODES["sharpness"], operations.sharpen, factor("sharpness"))
    if "blur" in names:
        x = _where(x, code == OPERATION_CODES["blur"], operations.blur, taps)
    if "cutout" in names:
        x = _where(x, code == OPERATION_CODES["cutout"], operations.cut_out, box)
    return x


def _where(x: Tensor, needed: Tensor, work: Callable[..., Tensor], *parameters: Tensor) -> Tensor:
    """Apply an operation: on a CPU to the samples that need it, elsewhere to all, most with identity parameters."""
    if not operations.is_eager_cpu(x):
        return work(x, *parameters)
    rows = needed.nonzero()[:, 0]
    if len(rows) == 0:
        return x
    return x.index_copy(0, rows, work(x[rows], *(p[rows] for p in parameters)))


def _replace(x: Tensor, code: Tensor, number: Tensor) -> Tensor:
    """The operations that map each value by a table."""
    v, code, n = operations.levels(x), code.view(-1, 1, 1), number.view(-1, 1, 1)
    table = v.expand(len(x), x.shape[1], 256)
    for name, entry in (
        ("autocontrast", operations.stretched(x)),
        ("invert", 255 - v),
        ("posterise", v & n),
        ("solarise", torch.where(v < n, v, 255 - v)),
        ("solarise-add", torch.where(v < 128, (v + n).clamp(0, 255), v)),
        ("brightness", operations.blend(torch.zeros_like(v), v, n)),
        ("contrast", operations.blend(operations.mean_grey(x), v, n)),
    ):
        table = torch.where(code == OPERATION_CODES[name], entry, table)
    return operations.look_up(x, table)


def _equalise(x: Tensor, code: Tensor) -> Tensor:
    is_equalise = code.view(-1, 1, 1) == OPERATION_CODES["equalise"]
    table = torch.where(is_equalise, operations.equalised(x), operations.levels(x))
    return operations.look_up(x, table)
