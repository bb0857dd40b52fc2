"""Kinds of devices that a run may be planned for, and the share of their peak that a training step reaches.

The table is devices.toml, with its sources.
"""

from __future__ import annotations

import math
import time
import tomllib
from dataclasses import asdict, dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

from vitreous.errors import ConfigError, advice
from vitreous.machine import GIB, choose_device, core_count
from vitreous.machine import memory as machine_memory
from vitreous.models.catalog import parse
from vitreous.models.config import BiTConfig, Config
from vitreous.training.run.utilisation import peak_flops

TABLE = Path(__file__).with_name("devices.toml")
ON_THIS_MACHINE = ("here", "cpu")
CPU_SHARE = 0.6  # of the timed product; 0.4 to 0.9 were seen on two busy cores
UNKNOWN_MEMORY = 8 * GIB
PRODUCT_SIDE, PRODUCT_SECONDS = 1024, 0.3  # of the product that times a CPU


@dataclass(frozen=True)
class DeviceKind:
    """memory: bytes.  flops: FLOP/s of products at the run's precision.  link, network: bytes/s that a device sends."""

    name: str
    memory: int
    flops: float
    flops_basis: str  # "data sheet" or "measured"
    per_node: int
    link: float
    network: float

    @property
    def is_cpu(self) -> bool:
        return self.name.startswith("CPU")

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class PeakShare:
    """The share of a device's peak that a step reaches.  seen_on: the network that was measured."""

    share: float
    seen_on: str
    is_same: bool  # this network, these images, this device: measured, not carried over


def names() -> list[str]:
    return [*_table()["devices"], *ON_THIS_MACHINE]


def rows() -> list[dict[str, Any]]:
    """Every device by name, with what is known of it."""
    return [{"name": name, **row} for name, row in _table()["devices"].items()]


def find(name: str, precision: str) -> DeviceKind:
    """A device by name.  here: this machine's GPU, or its CPU."""
    if name in ON_THIS_MACHINE:
        return _here("cpu" if name == "cpu" else None, precision)
    word = name.lower().replace("_", "-").replace(" ", "-")
    row = _table()["devices"].get(word)
    if row is None:
        raise ConfigError(f"no device is called {name!r}; {advice(word, names())}")
    return DeviceKind(
        word.upper(),
        int(row["memory"] * GIB),
        _peak(row, precision),
        "data sheet",
        row["per_node"],
        1e9 * row["link"],
        1e9 * row["network"],
    )


def share(config: Config, device: DeviceKind, batch: int, precision: str) -> PeakShare:
    """Measured for networks of several widths and interpolated over log width; every BiT gets the measured BiT's.

    batch: images of a step on one device.
    """
    if device.is_cpu:
        return PeakShare(CPU_SHARE, "ViTs on a CPU", is_same=False)
    seen = [(row, parse(row["model"])) for row in _table()["shares"]]
    if isinstance(config, BiTConfig):
        row = next(row for row, known in seen if isinstance(known, BiTConfig))
        return PeakShare(row["share"], f"{row['model']} at {row['pixels']} px", is_same=False)
    known = sorted((known.encoder.width, row["share"], row) for row, known in seen if not isinstance(known, BiTConfig))
    width = config.encoder.width
    found = _between([(w, s) for w, s, _ in known], width)
    row = min(known, key=lambda each: abs(math.log(each[0] / width)))[2]
    is_same = (
        device.name == "H200"
        and precision == "bfloat16"
        and batch == row["batch"]
        and config.image_size == (row["pixels"], row["pixels"])
        and parse(row["model"]).change(image_size=row["pixels"], classes=config.readout.classes) == config
    )
    return PeakShare(found, row["model"], is_same)


def _between(points: list[tuple[int, float]], width: int) -> float:
    """Linear interpolation between points over log width; constant beyond the ends."""
    if width <= points[0][0]:
        return points[0][1]
    for (low, before), (high, after) in pairwise(points):
        if width <= high:
            return before + (after - before) * math.log(width / low) / math.log(high / low)
    return points[-1][1]


def _here(wanted: str | None, precision: str) -> DeviceKind:
    device = choose_device(wanted)
    if device.type == "cuda":
        product = torch.cuda.get_device_name(device)
        known = next(((name, row) for name, row in _table()["devices"].items() if row["product"] == product), None)
        name, row = known or (product, {"product": product, "float32": 0, "per_node": 8, "link": 32, "network": 6})
        flops = _peak(row, precision)
        return DeviceKind(
            name.upper() if known else product,
            torch.cuda.get_device_properties(device).total_memory,
            flops or _timed_flops(device, precision),
            "data sheet" if flops else "measured",
            torch.cuda.device_count(),
            1e9 * row["link"],
            1e9 * row["network"],
        )
    memory, cores = machine_memory() or UNKNOWN_MEMORY, core_count()
    return DeviceKind(f"CPU ({cores} cores)", memory, _timed_flops(device, precision), "measured", 1, 1e9, 1e9)


def _peak(row: dict[str, Any], precision: str) -> float:
    return 1e12 * row["float32"] if precision == "float32" else peak_flops(row["product"]) or 0.0


@cache
def _timed_flops(device: torch.device, precision: str) -> float:
    """FLOP/s of a matrix product here, the fastest seen."""
    kind = torch.bfloat16 if precision == "bfloat16" else torch.float32
    a = torch.ones(PRODUCT_SIDE, PRODUCT_SIDE, device=device, dtype=kind)
    fastest, end = math.inf, time.perf_counter() + PRODUCT_SECONDS
    while time.perf_counter() < end or math.isinf(fastest):
        begin = time.perf_counter()
        (a @ a).sum().item()  # waits for the device
        fastest = min(fastest, time.perf_counter() - begin)
    return 2 * PRODUCT_SIDE**3 / fastest


@cache
def _table() -> dict[str, Any]:
    return tomllib.loads(TABLE.read_text("utf-8"))
