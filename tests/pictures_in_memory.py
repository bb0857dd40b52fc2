"""Sets of encoded pictures that lie in memory; in a module of its own, so that workers find the class."""

import io
from dataclasses import dataclass, field

import numpy as np
from PIL import Image

from vitreous.images.imageset import ImageSet
from vitreous.images.sources import image_file


@dataclass
class Files:
    """A source of named, encoded files."""

    names: list[str] = field(default_factory=list)
    raws: list[bytes] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.names)

    def name(self, i: int) -> str:
        return self.names[i]

    def raw(self, i: int) -> bytes | None:
        return self.raws[i]

    def read(self, i: int) -> np.ndarray:
        return image_file.decode(self.raws[i], self.names[i])


@dataclass
class Arrays:
    """A source of pictures that lie decoded."""

    pixels: list[np.ndarray]

    def __len__(self) -> int:
        return len(self.pixels)

    def name(self, i: int) -> str:
        return str(i)

    def raw(self, i: int) -> None:
        return None

    def read(self, i: int) -> np.ndarray:
        return self.pixels[i]


def noise_picture(seed: int, width: int = 96, height: int = 72) -> Image.Image:
    """Soft blobs of colour with some grain; no two are alike."""
    random = np.random.default_rng(seed)
    blobs = Image.fromarray(random.integers(0, 256, (9, 12, 3), np.uint8)).resize((width, height), Image.BICUBIC)
    grain = random.normal(0, 6, (height, width, 3))
    return Image.fromarray((np.asarray(blobs) + grain).clip(0, 255).astype(np.uint8))


def encode(image: Image.Image, format: str = "JPEG", **options) -> bytes:
    stream = io.BytesIO()
    image.save(stream, format, **({"quality": 90} if format == "JPEG" else {}) | options)
    return stream.getvalue()


def make_set(files: dict[str, bytes], path: str = "memory") -> ImageSet:
    """SPLIT/CLASS/NAME to bytes, as an ImageSet."""
    names = list(files)
    parts = [name.split("/") for name in names]
    classes = tuple(sorted({part[1] for part in parts}))
    return ImageSet(
        source=Files(names, list(files.values())),
        ids=np.arange(len(names)),
        labels=np.array([classes.index(part[1]) for part in parts], np.int64),
        classes=classes,
        splits=np.array([part[0] for part in parts]),
        path=path,
        kind="memory",
        content_id="0" * 16,
    )


def clean_files(count: int = 60, classes: tuple[str, ...] = ("ant", "bee", "cat")) -> dict[str, bytes]:
    """A set with nothing wrong: three in four for training."""
    return {
        f"{'test' if i % 4 == 3 else 'train'}/{classes[i // 4 % len(classes)]}/{i:04}.jpg": encode(noise_picture(i))
        for i in range(count)
    }
