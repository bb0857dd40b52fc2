"""How images become a model's input, as a value; `images` applies it, including when the value is called."""

from __future__ import annotations

from dataclasses import dataclass, replace
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from vitreous.errors import ConfigError
from vitreous.models.config import Size

if TYPE_CHECKING:
    from torch import Tensor

HALF_RGB = (0.5, 0.5, 0.5)
IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)


@dataclass(frozen=True, kw_only=True)
class Preprocess:
    """An RGB image of 0…1 becomes (x − mean) / std at `size`.

    fit   squash: resize straight to `size`;  crop: resize the short side to `short_side`, then cut the centre out;
          squash-crop: resize straight to a square of `short_side`, then cut the centre out.
    """

    size: Size = (224, 224)  # rows, columns
    fit: Literal["squash", "crop", "squash-crop"] = "squash"
    short_side: int | None = None  # pixels, for both crops
    interpolation: Literal["nearest", "bilinear", "bicubic", "lanczos", "box"] = "bilinear"
    antialias: bool = False
    resized_by: Literal["pillow", "torch"] = (
        "pillow"  # antialiased as Pillow does on bytes, or as torchvision does on tensors
    )
    centre: Literal["round", "floor"] = "round"  # rounds the crop's first pixel when half a pixel is left over
    mean: tuple[float, ...] = HALF_RGB
    std: tuple[float, ...] = HALF_RGB
    source: str = "default"  # who defined this preprocessing

    def __post_init__(self) -> None:
        if self.fit != "squash" and self.short_side is None:
            raise ConfigError(
                f"preprocess fit={self.fit} needs short_side; give the pixels of the short side before the crop"
            )
        if len(self.mean) != len(self.std) or not all(s > 0 for s in self.std):
            raise ConfigError(
                f"preprocess mean {self.mean} and std {self.std} do not fit; std must be positive, one per channel"
            )

    def __call__(self, images: Any) -> Tensor:
        """Images as a batch for the model: B C H W, float32.

            logits = model(model.preprocess("husky.jpg"))                # 1 K
            logits = model(model.preprocess([photo, "b.png", array]))    # 3 K

        images: a file, a Pillow image, an array H W C of uint8, a set of `images.open`, or any number of these.
        """
        as_batch = import_module("vitreous.images.pixels.as_batch").as_batch  # pixels are the work of `images`
        return as_batch(images, self)

    def at(self, size: Size) -> Preprocess:
        """The same preprocessing for another input size; the short side keeps its ratio to the crop."""
        if size == self.size:
            return self
        side = self.short_side and round(self.short_side * min(size) / min(self.size))
        return replace(self, size=size, short_side=side)

    def with_channels(self, channels: int) -> Preprocess:
        """The same preprocessing for another number of channels; averages mean and std over the colours."""
        if channels == len(self.mean):
            return self
        return replace(self, mean=_spread(self.mean, channels), std=_spread(self.std, channels))

    def to_json(self) -> dict[str, Any]:
        return msgspec.to_builtins(self)

    def __str__(self) -> str:
        size = f"{self.size[0]}x{self.size[1]}"
        how = {"squash": f"squashed to {size}", "crop": f"short side {self.short_side}, centre crop {size}"}
        how["squash-crop"] = f"squashed to {self.short_side}x{self.short_side}, centre crop {size}"
        edge = f"antialiased by {self.resized_by}" if self.antialias else "not antialiased"
        return f"{how[self.fit]}, {self.interpolation} {edge}, mean {self.mean}, std {self.std} ({self.source})"


def _spread(values: tuple[float, ...], channels: int) -> tuple[float, ...]:
    return (sum(values) / len(values),) * channels


def from_json(data: Any) -> Preprocess:
    """Read a record; fields that a newer version added are left out."""
    try:
        return msgspec.convert(data, Preprocess)
    except msgspec.ValidationError as error:
        raise ConfigError(f"the preprocessing record does not fit: {error}") from None


def google(size: Size) -> Preprocess:
    """Squashed to size, bilinear without antialias, (x − 127.5) / 127.5."""
    return Preprocess(size=size, source="google")
