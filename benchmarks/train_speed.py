"""A real training step of `fit` against timm's bare one, as ratios.   python benchmarks/train_speed.py [--toy]

Ours: what `vitreous fit` does for a step on a CUDA device: pictures that lie there as bytes, drawn crops and flips,
normalising, forward, backward, clipping, the check for numbers that are not finite, AdamW; compiled and captured.
Theirs: timm's model compiled, with our GELU, AdamW (fused), on one batch of floats that lies on the device: no data, no
augmentation, no clip. Both bfloat16 autocast with float32 weights. They alternate round by round; a ratio is
theirs / ours in seconds, the median over rounds with the 10th and 90th percentile. Beside it: the measured ceiling of a
bfloat16 matrix product, the share of it that our step reaches (6 x MACs x images / seconds), and where the step's time
goes (torch.profiler). --toy rehearses all of it on a CPU, against torch's own encoder in place of timm, tiny.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

import vitreous
from vitreous.images.batches.batches import Batches, Loading, Order
from vitreous.images.imageset import ImageSet
from vitreous.images.pixels.augment import Augment
from vitreous.machine import record
from vitreous.models.cost import training_flops
from vitreous.ranks import Ranks
from vitreous.training.recipe import Epochs, Recipe
from vitreous.training.run.step import Step
from vitreous.training.run.tasks.classify import Classify

CASES = [  # ours, timm's, pixels, pixels of the pictures, classes, batch, bar
    ("Ti/4", "vit_tiny_patch16_224", 32, 32, 10, 512, 1.7),
    ("Ti/4", "vit_tiny_patch16_224", 32, 32, 10, 1024, None),
    ("S/16", "vit_small_patch16_224", 224, 256, 1000, 512, 1.06),
    ("B/16", "vit_base_patch16_224", 224, 256, 1000, 512, 1.03),
    ("L/16", "vit_large_patch16_224", 224, 256, 1000, 256, 1.02),
]
TOY = [("Ti/16 depth=2", "", 32, 40, 10, 16, None)]
IMAGES = 4096  # that lie on the device


class Noise:
    """Pictures of noise: the work is the same for any."""

    def __init__(self, count: int, side: int):
        self.pixels = np.random.default_rng(0).integers(0, 256, (count, side, side, 3), dtype=np.uint8)

    def __len__(self) -> int:
        return len(self.pixels)

    def name(self, i: int) -> str:
        return str(i)

    def raw(self, i: int) -> None:
        return None

    def read(self, i: int) -> np.ndarray:
        return self.pixels[i]


def our_step(model: str, pixels: int, side: int, classes: int, batch: int, device: torch.device) -> Callable[[], None]:
    count = max(IMAGES if device.type == "cuda" else 64, batch)
    labels = np.arange(count) % classes
    data = ImageSet(
        source=Noise(count, side),
        ids=np.arange(count),
        labels=labels,
        classes=tuple(map(str, range(classes))),
        splits=np.full(count, "train"),
        path="noise",
        kind="memory",
        content_id="train_speed",
    )
    crop = Augment(size=(pixels, pixels)) if side > pixels else Augment(size=(pixels, pixels), crop="shift")
    recipe = Recipe(batch=batch, augment=crop, length=Epochs(10), clip=1.0)
    network = vitreous.build(model, image_size=pixels, classes=classes, seed=0).to(device).train()
    step = Step(
        Classify(network, recipe),
        recipe,
        steps=1000,
        rule=network.preprocess,
        classes=classes,
        device=device,
        ranks=Ranks(),
    )
    batches = iter(
        Batches(
            data,
            Order(batch=batch, epochs=10**6, ranks=Ranks()),
            Loading(preprocess=network.preprocess, augment=crop, workers=2, device=device, resident=True),
        )
    )
    done = 0

    def work() -> None:
        nonlocal done
        step(next(batches), done, 0.1)
        done += 1

    return work


def their_step(name: str, pixels: int, classes: int, batch: int, device: torch.device) -> Callable[[], None]:
    if name:
        import timm

        changes: dict[str, Any] = {"patch_size": 4} if pixels == 32 else {}
        changes |= {"act_layer": partial(torch.nn.GELU, approximate="tanh")}
        network = timm.create_model(name, img_size=pixels, num_classes=classes, **changes).to(device).train()
        network = torch.compile(network)
    else:
        layer = torch.nn.TransformerEncoderLayer(192, 3, 768, batch_first=True)
        parts = [torch.nn.Unfold(16, stride=16), _Turn(), torch.nn.Linear(768, 192), layer, layer, _Mean(classes)]
        network = torch.nn.Sequential(*parts).to(device)
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-4, fused=True)
    x = torch.randn(batch, 3, pixels, pixels, device=device)
    y = torch.randint(0, classes, (batch,), device=device)

    def work() -> None:
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            loss = F.cross_entropy(network(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return work


class _Turn(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.mT


class _Mean(torch.nn.Module):
    def __init__(self, classes: int):
        super().__init__()
        self.head = torch.nn.Linear(192, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(x.mean(1))


def seconds_each(work: Callable[[], None], steps: int, device: torch.device) -> float:
    wait(device)
    begin = time.perf_counter()
    for _ in range(steps):
        work()
    wait(device)
    return (time.perf_counter() - begin) / steps


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def spread(values: list[float]) -> list[float]:
    """10th, 50th and 90th percentile."""
    cuts = statistics.quantiles(values, n=10, method="inclusive")
    return [round(cuts[0], 4), round(statistics.median(values), 4), round(cuts[-1], 4)]


def matmul_ceiling(device: torch.device) -> float:
    """FLOP/s of a large bfloat16 product of random matrices, the median of ten."""
    n, kind = (8192, torch.bfloat16) if device.type == "cuda" else (256, torch.float32)
    a, b = (torch.randn(n, n, device=device, dtype=kind) for _ in range(2))
    times = [seconds_each(lambda: torch.matmul(a, b), 10, device) for _ in range(10)]
    return 2 * n**3 / statistics.median(times)


def where_time_goes(work: Callable[[], None], device: torch.device) -> dict[str, float]:
    """Share of the device's time by kind of kernel, over three steps."""
    if device.type != "cuda":
        return {}
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        for _ in range(3):
            work()
        wait(device)
    kinds = {"matrix products": ("gemm", "nvjet", "cutlass", "sm90_xmma"), "attention": ("flash", "fmha", "cudnn")}
    totals: dict[str, float] = {}
    for event in seen.key_averages():
        name = event.key.lower()
        kind = next((k for k, words in kinds.items() if any(w in name for w in words)), "everything else")
        kind = "copies" if "memcpy" in name or "memset" in name else kind
        totals[kind] = totals.get(kind, 0.0) + event.self_device_time_total
    whole = sum(totals.values()) or 1.0
    return {kind: round(value / whole, 4) for kind, value in sorted(totals.items(), key=lambda item: -item[1])}


def measure(case: tuple, rounds: int, seconds: float, ceiling: float, device: torch.device) -> dict:
    model, theirs, pixels, side, classes, batch, bar = case
    ours, peer = (
        our_step(model, pixels, side, classes, batch, device),
        their_step(theirs, pixels, classes, batch, device),
    )
    for work in (ours, peer):
        for _ in range(5):
            work()
    steps = max(1, round(seconds / seconds_each(ours, 3, device)))
    pairs = [(seconds_each(ours, steps, device), seconds_each(peer, steps, device)) for _ in range(rounds)]
    mine = statistics.median(a for a, _ in pairs)
    flops = training_flops(vitreous.models.catalog.parse(model).change(image_size=pixels, classes=classes))
    return {
        "model": model,
        "peer": theirs,
        "pixels": pixels,
        "batch": batch,
        "ratio_10_50_90": spread([b / a for a, b in pairs]),
        "bar": bar,
        "our_images_per_second": round(batch / mine),
        "their_images_per_second": round(batch / statistics.median(b for _, b in pairs)),
        "rounds": rounds,
        "steps_a_round": steps,
        "share_of_matmul_ceiling": round(flops * batch / mine / ceiling, 4),
        "device_time": where_time_goes(ours, device),
    }


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--toy", action="store_true")
    arguments.add_argument("--only", nargs="*", help="models, such as Ti/4 S/16")
    arguments.add_argument("--rounds", type=int, default=9)
    arguments.add_argument("--seconds", type=float, default=0.7, help="of each side in a round, about")
    arguments.add_argument("--out", type=Path)
    asked = arguments.parse_args()
    device = torch.device("cpu" if asked.toy else "cuda")
    ceiling = matmul_ceiling(device)
    found = []
    for case in TOY if asked.toy else [c for c in CASES if not asked.only or c[0] in asked.only]:
        found.append(measure(case, asked.rounds, asked.seconds, ceiling, device))
        print(json.dumps(found[-1]), flush=True)
        body = {"benchmark": "train_speed", "matmul_flops_per_second": ceiling, "cases": found, **record()}
        if asked.out:
            asked.out.write_text(json.dumps(body, indent=2) + "\n")
    print(json.dumps(body))


if __name__ == "__main__":
    main()
