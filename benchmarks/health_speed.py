"""Check 10,000 JPEGs of 160 pixels in class folders.   python benchmarks/health_speed.py [PETS-ZIP ...]

Photographs of the zips given (each also mirrored, until there are enough), else soft noise. Prints one JSON object:
images a second by the clock and by the processor's time, first and resumed, and what was found. On a busy machine the
clock says little; seconds of processor time over two cores say what two idle ones would do.
"""

import io
import json
import os
import resource
import sys
import tempfile
import time
import zipfile
from itertools import count
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps

import vitreous
from vitreous.machine import record

IMAGES, CLASSES, SHORT, WORKERS = 10_000, 10, 160, 2


def pictures(archives: list[str]):
    """Distinct pictures without end."""
    for change in (lambda image: image, ImageOps.mirror, ImageOps.flip):
        for path in archives:
            with zipfile.ZipFile(path) as archive:
                for name in archive.namelist():
                    if not name.endswith("/"):
                        yield change(Image.open(io.BytesIO(archive.read(name))).convert("RGB"))
    for seed in count():
        blobs = np.random.default_rng(seed).integers(0, 256, (12, 15, 3), np.uint8)
        yield Image.fromarray(blobs).resize((200, SHORT), Image.BICUBIC)


def write_set(folder: Path, archives: list[str]) -> None:
    for i, image in zip(range(IMAGES), pictures(archives), strict=False):
        path = folder / ("test" if i % 5 == 0 else "train") / f"class-{i // 5 % CLASSES}" / f"{i}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        image = ImageOps.contain(image, (10_000, SHORT)) if min(image.size) > SHORT else image
        image.save(path, quality=90)


def processor_seconds() -> float:
    who = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    return sum(usage.ru_utime + usage.ru_stime for usage in map(resource.getrusage, who))


def timed_check(data, cache: Path) -> tuple[dict[str, float], vitreous.images.health.Health]:
    clock, processor = time.perf_counter(), processor_seconds()
    health = vitreous.check(data, workers=WORKERS, cache=cache)
    clock, processor = time.perf_counter() - clock, processor_seconds() - processor
    return {
        "seconds": round(clock, 2),
        "processor_seconds": round(processor, 2),
        "images_per_second": round(IMAGES / clock),
        "images_per_second_on_two_idle_cores": round(WORKERS * IMAGES / processor),
    }, health


def main() -> None:
    with tempfile.TemporaryDirectory() as place:
        folder, cache = Path(place) / "set", Path(place) / "facts"
        write_set(folder, sys.argv[1:])
        start = time.perf_counter()
        data = vitreous.images.open(str(folder))
        opening = time.perf_counter() - start
        first, health = timed_check(data, cache)
        resumed, _ = timed_check(data, cache)
        figures = {
            "images": len(data),
            "bytes_per_image": round(sum(p.stat().st_size for p in folder.rglob("*.jpg")) / IMAGES),
            "workers": WORKERS,
            "load_average": os.getloadavg()[0],
            "seconds_to_open": round(opening, 2),
            "first": first,
            "resumed": resumed,
            "cache_bytes_per_image": round(cache.stat().st_size / IMAGES),
            "findings": {finding.kind: len(finding.cases) for finding in health.findings},
        }
        print(json.dumps({"benchmark": "health_speed", **record(), **figures}, indent=2))


if __name__ == "__main__":
    main()
