"""How fast pictures become batches, against torch's DataLoader with Pillow.   python benchmarks/images.py [--out FILE]

Photographs of 500 x 375 (imagenet-sample-1000 enlarged, JPEG q90), Inception crop and flip to 224:
    pillow_dataloader   torch's DataLoader, 2 worker processes: Pillow opens, crops (resize with box), flips, normalises
    pillow_uint8        the same without the last step, the batch staying uint8
    ours_jpeg           the same files, 2 worker threads, uint8, flipped       bar: 1.4 times pillow_dataloader
    ours_pack           a pack of short side 256, the same                     bar: 2.5 times pillow_dataloader
Pictures of 32 x 32 from memory, shifted by up to 4 pixels and flipped         bar: 100,000 images a second
Ours normalises on the device, which is part of the training step; what it costs on this CPU is measured too.
All alternate, round by round, in one run; a ratio is the median over rounds, with the 10th and 90th percentile. On a
shared machine the ratio of CPU seconds (of this process and its workers) says more than that of wall seconds; both
are given.
"""

import argparse
import io
import json
import os
import resource
import statistics
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import numpy as np
import torch
from PIL import Image

from vitreous.images.batches.batches import Batches, Loading, Order
from vitreous.images.imageset import ImageSet
from vitreous.images.pixels import augment, decode
from vitreous.images.pixels.augment import Augment
from vitreous.images.stores.disk import pack
from vitreous.machine import record
from vitreous.models.preprocess import IMAGENET_MEAN, IMAGENET_STD, Preprocess
from vitreous.ranks import Ranks

SHARED = Path(os.environ.get("VITREOUS_SHARED", Path(__file__).resolve().parent.parent.parent / "shared"))
RULE = Preprocess(size=(224, 224), antialias=True, mean=IMAGENET_MEAN, std=IMAGENET_STD)
SMALL_RULE = Preprocess(size=(32, 32), antialias=True, mean=IMAGENET_MEAN, std=IMAGENET_STD)
BATCH = 64


@dataclass
class Photographs:
    """JPEG files in memory."""

    files: list[bytes]

    def __len__(self) -> int:
        return len(self.files)

    def name(self, i: int) -> str:
        return f"{i}.jpg"

    def raw(self, i: int) -> bytes:
        return self.files[i]

    def read(self, i: int) -> np.ndarray:
        return decode.decode(self.files[i], self.name(i), fast=False)


@dataclass
class Small:
    """Decoded pictures in memory."""

    pixels: np.ndarray

    def __len__(self) -> int:
        return len(self.pixels)

    def name(self, i: int) -> str:
        return str(i)

    def raw(self, i: int) -> None:
        return None

    def read(self, i: int) -> np.ndarray:
        return self.pixels[i]


class PillowCrops(torch.utils.data.Dataset):
    """The usual way: torchvision's RandomResizedCrop, flip, to tensor and normalise, on Pillow."""

    def __init__(self, files: list[bytes], normalises: bool):
        self.files, self.normalises = files, normalises
        self.mean, self.std = (torch.tensor(v).view(3, 1, 1) for v in (IMAGENET_MEAN, IMAGENET_STD))

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, i: int) -> tuple[torch.Tensor, int]:
        image = Image.open(io.BytesIO(self.files[i])).convert("RGB")
        left, top, width, height = self.box(*image.size)
        image = image.resize((224, 224), Image.Resampling.BILINEAR, box=(left, top, left + width, top + height))
        if torch.rand(()) < 0.5:
            image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        x = torch.from_numpy(np.array(image)).permute(2, 0, 1).contiguous()
        return ((x.float().div(255) - self.mean) / self.std if self.normalises else x), i

    def box(self, w: int, h: int) -> tuple[int, int, int, int]:
        for _ in range(10):
            area = w * h * float(torch.empty(()).uniform_(0.05, 1))
            ratio = float(torch.empty(()).uniform_(np.log(3 / 4), np.log(4 / 3)).exp())
            width, height = round((area * ratio) ** 0.5), round((area / ratio) ** 0.5)
            if 0 < width <= w and 0 < height <= h:
                left, top = int(torch.randint(0, w - width + 1, ())), int(torch.randint(0, h - height + 1, ()))
                return left, top, width, height
        return 0, 0, w, h


def photographs(count: int) -> list[bytes]:
    out = []
    with zipfile.ZipFile(SHARED / "data" / "imagenet-sample-1000.zip") as file:
        names = [name for name in file.namelist() if name.lower().endswith((".jpg", ".jpeg"))]
        for name in names[:count]:
            image = Image.open(io.BytesIO(file.read(name))).convert("RGB").resize((500, 375), Image.Resampling.BICUBIC)
            encoded = io.BytesIO()
            image.save(encoded, "JPEG", quality=90)
            out.append(encoded.getvalue())
    return out


def as_set(source) -> ImageSet:
    n = len(source)
    splits = np.full(n, "train")
    return ImageSet(
        source, np.arange(n), np.arange(n) % 10, tuple("0123456789"), splits, "photos", "memory", "benchmark"
    )


def ours(data: ImageSet, crops: Augment, epochs: int, normalises: bool = False) -> Callable[[], int]:
    order = Order(batch=BATCH, epochs=epochs, ranks=Ranks())
    batches = Batches(data, order, Loading(preprocess=RULE, augment=crops, workers=2))
    rule = RULE if normalises else None

    def run() -> int:
        """A whole pass: nothing is read ahead for the next one, which would count as another's time."""
        return sum(len(augment.apply(b.images, b.plan, rule, cropped=b.is_cropped)) for b in batches)

    return run


def peer(files: list[bytes], normalises: bool) -> Callable[[], int]:
    loader = torch.utils.data.DataLoader(
        PillowCrops(files, normalises),
        BATCH,
        shuffle=True,
        num_workers=2,
        drop_last=True,
        persistent_workers=True,
        worker_init_fn=one_thread,
    )

    def run() -> int:
        return sum(len(x) for x, _ in loader)

    run()  # the workers start
    return run


def one_thread(_: int) -> None:
    torch.set_num_threads(1)


def cpu_seconds() -> float:
    """Of this process and its children, running (Linux) or ended."""
    mine = resource.getrusage(resource.RUSAGE_SELF)
    total = mine.ru_utime + mine.ru_stime
    tick = os.sysconf("SC_CLK_TCK")
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == os.getpid():
            total += (int(fields[11]) + int(fields[12])) / tick
    return total


def clock(run: Callable[[], int]) -> tuple[float, float]:
    """Wall and CPU seconds for one image."""
    wall, cpu = time.perf_counter(), cpu_seconds()
    seen = run()
    return (time.perf_counter() - wall) / seen, (cpu_seconds() - cpu) / seen


def spread(values: list[float], digits: int = 3) -> list[float]:
    cuts = statistics.quantiles(values, n=10, method="inclusive")
    return [round(v, digits) for v in (cuts[0], statistics.median(values), cuts[-1])]


def against_pillow(files: list[bytes], rounds: int) -> dict:
    crops = Augment(size=(224, 224))
    data = as_set(Photographs(files))
    with tempfile.TemporaryDirectory() as folder:
        begin = time.perf_counter()
        packed = pack(data, Path(folder) / "photos.pack", short_side=256, workers=2)
        pack_seconds = time.perf_counter() - begin
        sides = {
            "pillow_dataloader": peer(files, True),
            "pillow_uint8": peer(files, False),
            "ours_jpeg": ours(data, crops, 1),
            "ours_pack": ours(packed, crops, 2),
            "ours_jpeg_normalised": ours(data, crops, 1, True),
        }
        for run in sides.values():
            run()
        times: dict[str, list[tuple[float, float]]] = {name: [] for name in sides}
        for number in range(rounds):
            for name, run in sides.items():
                times[name].append(clock(run))
            print(number, {name: round(1 / t[-1][0]) for name, t in times.items()}, file=sys.stderr, flush=True)
    out: dict = {"images": len(files), "rounds": rounds, "pack_images_per_second": round(len(files) / pack_seconds)}
    base = times["pillow_dataloader"]
    for name, found in times.items():
        out[name] = {
            "images_per_second": round(1 / statistics.median(wall for wall, _ in found)),
            "images_per_cpu_second": round(1 / statistics.median(cpu for _, cpu in found)),
            "wall_ratio_10_50_90": spread([b[0] / a[0] for a, b in zip(found, base, strict=True)]),
            "cpu_ratio_10_50_90": spread([b[1] / a[1] for a, b in zip(found, base, strict=True)]),
        }
    return out


def small_from_memory(rounds: int) -> dict:
    """50,000 pictures of 32 x 32 that lie in memory whole; with two threads, as the photographs have two workers."""
    torch.set_num_threads(2)
    pixels = np.random.default_rng(0).integers(0, 256, (50_000, 32, 32, 3), dtype=np.uint8)
    crops = Augment(size=(32, 32), crop="shift", margin=4)
    data = as_set(Small(pixels))
    batches = Batches(data, Order(batch=500, ranks=Ranks()), Loading(preprocess=SMALL_RULE, augment=crops))

    def run(rule: Preprocess | None) -> Callable[[], int]:
        return lambda: sum(len(augment.apply(b.images, b.plan, rule, cropped=b.is_cropped)) for b in batches)

    out: dict = {"images": len(pixels), "rounds": rounds}
    for name, rule in (("uint8", None), ("normalised_float32", SMALL_RULE)):
        run(rule)()
        found = [clock(run(rule)) for _ in range(rounds)]
        out[name] = {
            "images_per_second_10_50_90": spread([1 / wall for wall, _ in found], 0),
            "images_per_cpu_second": round(1 / statistics.median(cpu for _, cpu in found)),
        }
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out")
    parser.add_argument("--images", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=9)
    args = parser.parse_args()
    result = {
        "benchmark": "images",
        **record(),
        "threads_each": 1,
        "workers": 2,
        "load_average": os.getloadavg(),
        "photographs_500x375_to_224": against_pillow(photographs(args.images), args.rounds),
        "small_32": small_from_memory(args.rounds),
    }
    text = json.dumps(result, indent=2)
    print(text)
    if args.out:
        Path(args.out).parent.mkdir(parents=True, exist_ok=True)
        Path(args.out).write_text(text + "\n")


if __name__ == "__main__":
    main()
