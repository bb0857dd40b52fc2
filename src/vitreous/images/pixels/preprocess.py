"""Apply `models.preprocess.Preprocess`: an image becomes a model's input.

`pixels` resizes and crops one image, `normalise` makes the model's input of it, `apply` does both; `finish` normalises
a whole batch of bytes on its device.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from vitreous.errors import ConfigError, DataError
from vitreous.models.config import Size
from vitreous.models.preprocess import Preprocess

PILLOW_RESAMPLE = {
    "nearest": Image.Resampling.NEAREST,
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
    "lanczos": Image.Resampling.LANCZOS,
    "box": Image.Resampling.BOX,
}
PILLOW_MODES = {1: "L", 3: "RGB", 4: "RGBA"}
MAX_PIXELS = 2**26
TORCH_RESAMPLE = ("bilinear", "bicubic")  # torch resizes bytes as Pillow does, within one level


def apply(image: Image.Image | NDArray[Any], rule: Preprocess, *, fast: bool = False) -> Tensor:
    """Resize, crop and normalise one image.  Returns C H W, float32."""
    return normalise(pixels(image, rule, fast=fast), rule)


def pixels(image: Image.Image | NDArray[Any], rule: Preprocess, *, fast: bool = False) -> NDArray[Any]:
    """Resize and crop one image.  Returns H W C of 0 … 255: uint8, or float32 where the rule does not antialias.

    fast: antialiased bilinear and bicubic by torch's kernel for bytes, 3 to 5 times as fast as Pillow and at most one
    level away from it.
    """
    image = _middle(as_image(image, len(rule.mean)), rule)
    return crop_centre(resize(image, rule, fast=fast), rule)


def normalise(array: NDArray[Any], rule: Preprocess) -> Tensor:
    """H W C of 0 … 255 becomes C H W, float32."""
    x = torch.from_numpy(np.ascontiguousarray(array.transpose(2, 0, 1)))
    return finish(x[None], rule)[0]


def finish(batch: Tensor, rule: Preprocess, device: torch.device | str | None = None) -> Tensor:
    """(x / 255 − mean) / std on the device.  batch: B C H W of 0 … 255.  Returns float32."""
    x = batch.to(device or batch.device, non_blocking=True)
    if x.shape[1] != len(rule.mean):
        raise DataError(f"the images have {x.shape[1]} channels, the model wants {len(rule.mean)}; convert them")
    mean, std = _on_device(rule.mean, x), _on_device(rule.std, x)
    return x.to(torch.float32, copy=True).div_(255).sub_(mean).div_(std)  # in place: no other batch-sized memory


def _on_device(values: tuple[float, ...], x: Tensor) -> Tensor:
    """C 1 1, filled on the device: a captured CUDA graph cannot copy from the host."""
    return torch.stack([torch.full((), v, dtype=torch.float32, device=x.device) for v in values]).view(-1, 1, 1)


def as_image(image: Image.Image | NDArray[Any], channels: int) -> Image.Image:
    """Convert to the model's number of channels. Arrays are H W or H W C of uint8."""
    if channels not in PILLOW_MODES:
        raise ConfigError(f"an image has 1, 3 or 4 channels, the model wants {channels}; give it tensors of your own")
    if isinstance(image, np.ndarray):
        if image.dtype != np.uint8 or not (image.ndim == 2 or (image.ndim == 3 and image.shape[2] in PILLOW_MODES)):
            raise DataError(f"an array {image.shape} of {image.dtype} is not an image; give H×W×C of uint8")
        image = Image.fromarray(image[..., 0] if image.ndim == 3 and image.shape[2] == 1 else image)
    return image if image.mode == PILLOW_MODES[channels] else image.convert(PILLOW_MODES[channels])


def resize(image: Image.Image, rule: Preprocess, *, fast: bool = False) -> NDArray[Any]:
    """Resize to the size before the crop.  Returns H W C of 0 … 255.

    Pillow always antialiases and rounds to bytes, as in timm and transformers. torch's antialias works in floating
    point and rounds once, as in torchvision with tensors. Without antialias the image is sampled in floating point at
    half-pixel centres and not rounded, as in TensorFlow.
    """
    size = before_crop((image.height, image.width), rule)
    mode = rule.interpolation
    if rule.antialias and rule.resized_by != "torch":
        if not fast or mode not in TORCH_RESAMPLE or image.mode == "RGBA":  # Pillow weighs colours by alpha
            return as_array(image.resize((size[1], size[0]), PILLOW_RESAMPLE[mode]))
        x = F.interpolate(_batched(image), size, mode=mode, antialias=True)
    elif rule.antialias:
        if mode not in TORCH_RESAMPLE:
            raise ConfigError(f"torch does not antialias {mode}; say interpolation=bilinear or bicubic")
        x = F.interpolate(_batched(image).float(), size, mode=mode, antialias=True)
        x = x.round().clamp(0, 255).to(torch.uint8)
    else:
        if mode not in ("nearest", *TORCH_RESAMPLE):
            raise ConfigError(f"interpolation {mode} always antialiases; say antialias=True")
        corners = None if mode == "nearest" else False
        x = F.interpolate(_batched(image).float(), size, mode=mode, align_corners=corners)
    return x[0].permute(1, 2, 0).numpy()


def before_crop(size: Size, rule: Preprocess) -> Size:
    """Rows and columns to resize an image to.

    The short side of a square crop becomes `short_side`; for other crops, both sides keep the same margin, so nothing
    is padded with black.
    """
    if rule.fit == "squash" or rule.short_side is None:
        return rule.size
    rows, columns = (rule.short_side * n // min(rule.size) for n in rule.size)
    if rule.fit == "squash-crop":
        return rows, columns
    h, w = size
    if rows * w >= columns * h:
        return rows, max(int(rows * w / h), columns)
    return max(int(columns * h / w), rows), columns


def seen_box(size: Size, rule: Preprocess) -> tuple[float, float, float, float]:
    """Left, top, right and bottom of what the model sees, as shares of an image's width and height.

    size: rows and columns of the image.  Black that `crop_centre` adds lies outside 0 … 1.
    """
    sides = []
    for resized, seen in zip(before_crop(size, rule), rule.size, strict=True):
        first = round if rule.centre == "round" else int
        start = first((resized - seen) / 2) if resized >= seen else -((seen - resized) // 2)
        sides.append((start / resized, (start + seen) / resized))
    (top, bottom), (left, right) = sides
    return left, top, right, bottom


def _middle(image: Image.Image, rule: Preprocess) -> Image.Image:
    """The whole image; if it is so long that resizing gives more than MAX_PIXELS, only the part around the crop.

    Then the long side may be rounded differently; nothing else changes.
    """
    h, w = image.height, image.width
    if np.prod(before_crop((h, w), rule), dtype=np.int64) <= MAX_PIXELS:
        return image
    keep = 4 * min(h, w) * -(-max(rule.size) // min(rule.size))
    first = (max(h, w) - keep) // 2
    if first <= 0:
        return image
    last = max(h, w) - first  # cut equally on both sides
    return image.crop((first, 0, last, h) if w > h else (0, first, w, last))


def crop_centre(x: NDArray[Any], rule: Preprocess) -> NDArray[Any]:
    """The centre of an H W C image; pads a small image with black."""
    (h, w), (rows, columns) = x.shape[:2], rule.size
    more_rows, more_columns = max(rows - h, 0), max(columns - w, 0)
    if more_rows or more_columns:
        left, top = more_columns // 2, more_rows // 2
        x = np.pad(x, ((top, more_rows - top), (left, more_columns - left), (0, 0)))
        h, w = x.shape[:2]
    first = round if rule.centre == "round" else int
    top, left = first((h - rows) / 2), first((w - columns) / 2)
    return x[top : top + rows, left : left + columns]


def as_array(image: Image.Image) -> NDArray[np.uint8]:
    """A copy as H W C, uint8."""
    array = np.array(image)
    return array if array.ndim == 3 else array[:, :, None]


def _batched(image: Image.Image) -> Tensor:
    return torch.from_numpy(as_array(image)).permute(2, 0, 1)[None]  # 1 C H W
