"""What is known when a recipe is asked for."""

from __future__ import annotations

from dataclasses import dataclass

from vitreous.models.config import Size


@dataclass(frozen=True, kw_only=True)
class Given:
    """The training images, and the network where one was asked for. The default is ImageNet."""

    images: int = 1_281_167
    classes: int = 1000
    image_size: Size = (224, 224)  # rows, columns of a typical image
    model: str | None = None

    @property
    def side(self) -> int:
        """Pixels of the shorter side."""
        return min(self.image_size)

    def network(self, default: str) -> str:
        """The catalog name without its changes: `B/16` of `ViT-B/16 registers=4`."""
        return (self.model or default).split()[0].removeprefix("ViT-")

    def with_parts(self, default: str, parts: str = "") -> str:
        """The network with a recipe's parts, and then the changes that were asked for."""
        changes = (self.model or default).split()[1:]
        return " ".join([self.network(default), *parts.split(), *changes])

    def batch(self, most: int) -> int:
        """Images per step: a power of two, with at least eight steps an epoch if there are enough images."""
        batch = most
        while batch > 8 and batch * 8 > self.images:
            batch //= 2
        return batch
