"""A training step fed from a pack, against one on data already there.   python benchmarks/feed_speed.py [--toy]

CUDA: ViT-S/16 at 224 px, batch 512, bf16 autocast, float32 weights, compiled, AdamW. One model, four feeds:
    synthetic            one float batch that lies on the device
    resident             a pack of 256-px pictures whole on the device; crop, resize, flip and normalise there, compiled
    streamed threads     the same pack by worker threads, cropped and resized by them
    streamed processes   the same by worker processes
Bar: each fed step at most 5 % below the synthetic one. Feeds alternate, round by round; each round starts with untimed
steps, more than are read ahead, so that no batch counts that was read during another feed's time. A ratio is
synthetic / fed in seconds (the share of the synthetic speed), the median over rounds with the 10th and 90th percentile.
--toy rehearses all of it on a CPU: Ti/16, batch 8, float32, a few steps, not compiled.
"""

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

import vitreous
from vitreous.images.batches.batches import Batches, Loading, Order
from vitreous.images.embedded import shapes
from vitreous.images.imageset import ImageSet
from vitreous.images.pixels import augment as augmenting
from vitreous.images.pixels.augment import Augment
from vitreous.images.stores.disk import Pack, pack
from vitreous.machine import record
from vitreous.models.preprocess import IMAGENET_MEAN, IMAGENET_STD, Preprocess
from vitreous.ranks import Ranks

RULE = Preprocess(size=(224, 224), antialias=True, mean=IMAGENET_MEAN, std=IMAGENET_STD)
CROPS = Augment(size=(224, 224))  # Inception crop and flip
PREFETCH = 3
UNCLOCKED = PREFETCH + 2  # steps at the start of a round
BAR = 0.95

Pair = tuple[torch.Tensor, torch.Tensor]


@dataclass(frozen=True)
class Size:
    """How much of everything."""

    model: str
    batch: int
    images: int
    rounds: int
    steps: int  # of a round, on the clock
    is_compiled: bool


FULL = Size("S/16", 512, 4096, 7, 30, True)
TOY = Size("Ti/16", 8, 32, 2, 2, False)


@dataclass
class Enlarged:
    """Generated pictures of 256 px, all different: 64 scenes, moved around."""

    scenes: np.ndarray  # 64 256 256 3
    count: int

    def __len__(self) -> int:
        return self.count

    def name(self, i: int) -> str:
        return str(i)

    def raw(self, i: int) -> None:
        return None

    def read(self, i: int) -> np.ndarray:
        return np.roll(self.scenes[i % len(self.scenes)], 5 * (i // len(self.scenes)), 1)


def make_pack(count: int, folder: str) -> Pack:
    small = torch.from_numpy(shapes.batch(range(64))[0]).permute(0, 3, 1, 2)
    scenes = F.interpolate(small, (256, 256), mode="bilinear", antialias=True).permute(0, 2, 3, 1).contiguous().numpy()
    places = np.arange(count)
    data = ImageSet(
        source=Enlarged(scenes, count),
        ids=places,
        labels=places % 1000,
        classes=tuple(map(str, range(1000))),
        splits=np.full(count, "train"),
        path="generated",
        kind="memory",
        content_id="feed_speed",
        groups=places,
    )
    return pack(data, Path(folder) / "generated.pack", short_side=256)


def training_step(size: Size, device: str) -> Callable[[Pair], torch.Tensor]:
    model = vitreous.build(size.model, seed=0).to(device).train()
    called = torch.compile(model) if size.is_compiled else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=device == "cuda")

    def step(pair: Pair) -> torch.Tensor:
        x, y = pair
        with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):  # some CPUs lack its instructions
            loss = F.cross_entropy(called(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    return step


def synthetic(size: Size, device: str) -> Iterator[Pair]:
    x, y = torch.randn(size.batch, 3, 224, 224, device=device), torch.randint(0, 1000, (size.batch,), device=device)
    while True:
        yield x, y


def fed(packed: Pack, size: Size, device: str, workers: int, resident: bool, processes: bool) -> Iterator[Pair]:
    batches = Batches(
        packed,
        Order(batch=size.batch, epochs=10**6, ranks=Ranks()),
        Loading(
            preprocess=RULE,
            augment=CROPS,
            workers=workers,
            processes=processes,
            prefetch=PREFETCH,
            device=device,
            resident=resident,
        ),
    )
    apply = augmenting.apply
    if size.is_compiled:
        apply = torch.compile(apply, fullgraph=True, dynamic=False)  # 256 and 224 px are two graphs, not one for any
    for batch in batches:
        plan = batch.plan.on(device, None if batch.is_cropped else (256, 256))
        yield apply(batch.images, plan, RULE, cropped=batch.is_cropped), batch.labels


def wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def seconds_a_step(feed: Iterator[Pair], step: Callable[[Pair], torch.Tensor], size: Size, device: str) -> float:
    for _ in range(UNCLOCKED):
        step(next(feed))
    wait(device)
    begin = time.perf_counter()
    for _ in range(size.steps):
        loss = step(next(feed))
    wait(device)
    took = time.perf_counter() - begin
    assert torch.isfinite(loss)
    return took / size.steps


def spread(values: list[float]) -> list[float]:
    cuts = statistics.quantiles(values, n=10, method="inclusive")
    return [round(v, 4) for v in (cuts[0], statistics.median(values), cuts[-1])]


def measure(size: Size, device: str, workers: int) -> dict:
    torch.set_float32_matmul_precision("high")
    step = training_step(size, device)
    with tempfile.TemporaryDirectory() as folder:
        begin = time.perf_counter()
        packed = make_pack(size.images, folder)
        pack_seconds = time.perf_counter() - begin
        feeds = {
            "synthetic": synthetic(size, device),
            "resident": fed(packed, size, device, workers, True, False),
            "streamed threads": fed(packed, size, device, workers, False, False),
            "streamed processes": fed(packed, size, device, workers, False, True),
        }
        times: dict[str, list[float]] = {name: [] for name in feeds}
        for number in range(-1, size.rounds):  # the first compiles, reads the pack and starts the workers
            for name, feed in feeds.items():
                found = seconds_a_step(feed, step, size, device)
                if number >= 0:
                    times[name].append(found)
        for feed in feeds.values():
            feed.close()
    out: dict = {"images": size.images, "pack_seconds": round(pack_seconds, 1), "rounds": size.rounds}
    out |= {"model": size.model, "batch": size.batch, "steps_a_round": size.steps, "workers": workers, "bar": BAR}
    for name, found in times.items():
        ratio = spread([a / b for a, b in zip(times["synthetic"], found, strict=True)])
        out[name] = {
            "images_per_second": round(size.batch / statistics.median(found)),
            "seconds_a_step_10_50_90": spread(found),
            "share_of_synthetic_10_50_90": ratio,
            "reaches_the_bar": ratio[1] >= BAR,
        }
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out")
    parser.add_argument("--toy", action="store_true", help="rehearse on the CPU")
    parser.add_argument(
        "--workers", type=int, help="threads, or processes; by default as Batches takes them, 8 at most"
    )
    args = parser.parse_args()
    if not (args.toy or torch.cuda.is_available()):
        parser.error("there is no CUDA device here; rehearse with --toy")
    device = "cpu" if args.toy else "cuda"
    workers = args.workers or min(len(os.sched_getaffinity(0)), 8)
    result = {"benchmark": "feed_speed", **record(), "feeds": measure(TOY if args.toy else FULL, device, workers)}
    text = json.dumps(result, indent=2)
    print(text)
    if args.out:
        Path(args.out).parent.mkdir(parents=True, exist_ok=True)
        Path(args.out).write_text(text + "\n")


if __name__ == "__main__":
    main()
