"""An image becomes what a model expects: `models.preprocess.Preprocess`, carried out."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from vitreous.errors import ConfigError
from vitreous.models.config import Size
from vitreous.models.preprocess import Preprocess

RESAMPLE = {
    "nearest": Image.Resampling.NEAREST,
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
    "lanczos": Image.Resampling.LANCZOS,
    "box": Image.Resampling.BOX,
}


def apply(image: Image.Image, rule: Preprocess) -> Tensor:
    """Resize, crop and normalise one image.  Returns C H W, float32."""
    modes = {1: "L", 3: "RGB", 4: "RGBA"}
    if len(rule.mean) not in modes:
        raise ConfigError(
            f"an image has 1, 3 or 4 channels, the model wants {len(rule.mean)}; give it tensors of your own"
        )
    image = image.convert(modes[len(rule.mean)])
    x = crop_centre(resize(image, rule), rule)                                  # H W C, 0 … 255
    mean, std = torch.tensor(rule.mean), torch.tensor(rule.std)
    return ((x / 255 - mean) / std).permute(2, 0, 1).contiguous()


def resize(image: Image.Image, rule: Preprocess) -> Tensor:
    """To the size before the crop.  Returns H W C of 0 … 255.

    Pillow always antialiases, and rounds to whole numbers, as timm and transformers do; without antialias the image
    is sampled in floating point, as TensorFlow does.
    """
    rows, columns = before_crop((image.height, image.width), rule)
    if rule.antialias:
        return as_tensor(image.resize((columns, rows), RESAMPLE[rule.interpolation]))
    x = as_tensor(image).permute(2, 0, 1)[None]  # 1 C H W
    mode = rule.interpolation
    if mode not in ("nearest", "bilinear", "bicubic"):
        raise ConfigError(f"interpolation {mode} always antialiases; say antialias=True")
    x = F.interpolate(x, (rows, columns), mode=mode, align_corners=None if mode == "nearest" else False)
    return x[0].permute(1, 2, 0)


def before_crop(size: Size, rule: Preprocess) -> Size:
    """Rows and columns that an image is resized to."""
    if rule.fit == "squash" or rule.short_side is None:
        return rule.size
    side = rule.short_side
    if rule.fit == "squash-crop":
        return side, side
    h, w = size
    return (side, max(int(side * w / h), 1)) if h <= w else (max(int(side * h / w), 1), side)


def crop_centre(x: Tensor, rule: Preprocess) -> Tensor:
    """The middle of an H W C image; an image that is too small is framed in black."""
    (h, w), (rows, columns) = x.shape[:2], rule.size
    more_rows, more_columns = max(rows - h, 0), max(columns - w, 0)
    if more_rows or more_columns:
        left, top = more_columns // 2, more_rows // 2
        x = F.pad(x, (0, 0, left, more_columns - left, top, more_rows - top))
        h, w = x.shape[:2]
    first = round if rule.centre == "round" else int
    top, left = first((h - rows) / 2), first((w - columns) / 2)
    return x[top : top + rows, left : left + columns]


def as_tensor(image: Image.Image) -> Tensor:
    """H W C, float32, 0 … 255."""
    array = np.array(image, dtype=np.float32)
    return torch.from_numpy(array if array.ndim == 3 else array[:, :, None])
