"""Small sets of real picture files and of arrays, held in memory; worker processes can import them from here."""

from __future__ import annotations

import io
import tarfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from PIL import Image

from vitreous.errors import DataError
from vitreous.images.imageset import ImageSet
from vitreous.images.pixels import decode
from vitreous.ranks import Ranks

SIZES = [(60, 80), (80, 60), (64, 64), (91, 67), (48, 120)]  # rows, columns


def scene(i: int, rows: int, columns: int) -> np.ndarray:
    """A picture like no other: smooth colours, and a few sharp edges."""
    rng = np.random.default_rng(i)
    coarse = Image.fromarray(rng.integers(0, 256, (6, 6, 3), dtype=np.uint8))
    pixels = np.array(coarse.resize((columns, rows), Image.Resampling.BICUBIC))
    top, left = rng.integers(0, rows // 2), rng.integers(0, columns // 2)
    pixels[top : top + rows // 4, left : left + columns // 4] = rng.integers(0, 256, 3)
    return pixels


def encoded(pixels: np.ndarray, kind: str = "JPEG", **options) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, kind, **({"quality": 90} if kind == "JPEG" else {}) | options)
    return file.getvalue()


@dataclass
class Files:
    """Encoded pictures; `log` is a file that gets one letter a read, `seconds` is how long one takes."""

    files: list[bytes]
    log: Path | None = None
    seconds: float = 0.0
    channels: int = 3

    def __len__(self):
        return len(self.files)

    def name(self, i):
        return f"set/{i}.jpg"

    def raw(self, i):
        self._count()
        return self.files[i]

    def read(self, i):
        self._count()
        return decode.decode(self.files[i], self.name(i), self.channels, fast=False)

    def _count(self):
        time.sleep(self.seconds)
        if self.log is not None:
            with self.log.open("a") as file:
                file.write("r")


@dataclass
class Arrays:
    """Decoded pictures, all of one size."""

    pixels: np.ndarray  # N H W C
    broken: set[int] = field(default_factory=set)

    def __len__(self):
        return len(self.pixels)

    def name(self, i):
        return f"array/{i}"

    def raw(self, i):
        return None

    def read(self, i):
        if i in self.broken:
            raise DataError(f"array/{i} cannot be read; take it out")
        return self.pixels[i]


def tar_shards(folder: Path, counts: list[int]) -> list[Path]:
    """Real shards of small PNG files; sample i of all has the key i and the class i % 3."""
    first, out = 0, []
    for number, count in enumerate(counts):
        path = folder / f"set-{number:03}.tar"
        with tarfile.open(path, "w") as tar:
            for i in range(first, first + count):
                for name, raw in (
                    (f"{i:05}.png", encoded(scene(i, 8, 8), "PNG")),
                    (f"{i:05}.cls", str(i % 3).encode()),
                ):
                    member = tarfile.TarInfo(name)
                    member.size = len(raw)
                    tar.addfile(member, io.BytesIO(raw))
        first += count
        out.append(path)
    return out


def as_set(source, *, test: int = 0, content_id: str = "content", classes: int = 3, **about) -> ImageSet:
    """The last `test` pictures are the test split."""
    n = len(source)
    splits = np.where(np.arange(n) < n - test, "train", "test")
    labels = np.arange(n) % classes
    names = tuple(f"class {k}" for k in range(classes))
    return ImageSet(source, np.arange(n), labels, names, splits, "a/set", "memory", content_id, **about)


def photos(n: int, *, test: int = 0, **options) -> ImageSet:
    files = [encoded(scene(i, *SIZES[i % len(SIZES)])) for i in range(n)]
    return as_set(Files(files, **options), test=test)


def arrays(n: int, side: int = 12, channels: int = 3, *, test: int = 0) -> ImageSet:
    pixels = np.stack([scene(i, side, side)[:, :, :channels] for i in range(n)])
    return as_set(Arrays(pixels), test=test, channels=channels)


def make_batches(data, *, rank=None, world=None, **settings):
    """`Batches` by keywords: each goes to the value that knows it."""
    from vitreous.images.batches.batches import Batches, Loading, Order

    of_order = {name: settings.pop(name) for name in list(settings) if name in Order.__dataclass_fields__}
    ranks = None if rank is None else Ranks(rank, world)
    return Batches(data, Order(**of_order, ranks=ranks), Loading(**settings))
