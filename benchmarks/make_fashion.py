"""Makes the embedded Fashion-MNIST subset from the IDX files of Debian's dataset-fashion-mnist.

    apt-get install -y dataset-fashion-mnist
    python benchmarks/make_fashion.py [FOLDER]

The first TRAIN_PER_CLASS and TEST_PER_CLASS pictures of each class of train and of test, class after class, each
transposed, as one stream of bytes through xz. Bytes per picture, one measurement each. On 2,000 pictures: JPEG 2000
495, AVIF at quality 100 494 (not checked to be lossless), PNG sheet 390, MED-predicted residuals + xz 390, WebP
lossless sheet 378, pixels + xz 373. On 8,400: pixels + xz 377, by class 372, by class and transposed 356.
"""

from __future__ import annotations

import gzip
import json
import lzma
import sys
from pathlib import Path

import numpy as np

from vitreous.files import atomic_write, digest
from vitreous.images.sources import fashion

XZ = {"id": lzma.FILTER_LZMA2, "preset": 9 | lzma.PRESET_EXTREME, "lc": 4, "lp": 0, "pb": 0, "nice_len": 273}
ROOM = 3_900_000  # bytes


def original(folder: Path, part: str) -> np.ndarray:
    """The pictures that are kept, class after class.  N × 28 × 28."""
    pixels = np.frombuffer(gzip.decompress((folder / f"{part}-images-idx3-ubyte.gz").read_bytes()), np.uint8, offset=16)
    labels = np.frombuffer(gzip.decompress((folder / f"{part}-labels-idx1-ubyte.gz").read_bytes()), np.uint8, offset=8)
    count = fashion.TRAIN_PER_CLASS if part == "train" else fashion.TEST_PER_CLASS
    places = np.concatenate([np.flatnonzero(labels == c)[:count] for c in range(10)])
    return pixels.reshape(-1, 28, 28)[places]


def main(folder: Path) -> None:
    pixels = np.concatenate([original(folder, "train"), original(folder, "t10k")])
    raw = np.ascontiguousarray(pixels.swapaxes(1, 2)).tobytes()
    packed = lzma.compress(raw, format=lzma.FORMAT_XZ, filters=[XZ])
    assert len(packed) <= ROOM, f"{len(packed):,} bytes do not fit {ROOM:,}"
    atomic_write(fashion.FASHION_FILE, lambda file: file.write(packed), force=True)
    print(json.dumps({"pictures": len(pixels), "bytes": len(packed), "pixels_sha256": digest(pixels.tobytes())}))


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "/usr/share/datasets/fashion-mnist"))
