"""Decode images once instead of every epoch: into memory, or into a pack on disk."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING

import numpy as np
import torch

from vitreous.errors import DataError
from vitreous.images.health import Health
from vitreous.images.imageset import TEST, TRAIN, ImageSet
from vitreous.images.stores import kept
from vitreous.images.stores.disk import pack
from vitreous.images.stores.memory import find_places, hold
from vitreous.machine import core_count
from vitreous.machine import memory as machine_memory
from vitreous.models.config import Size
from vitreous.ranks import Ranks
from vitreous.training.run.runtime import Runtime
from vitreous.training.run.schedule import total_steps

if TYPE_CHECKING:
    from vitreous.training.plan.plan import Plan

PACK = "pack"  # the pack's folder inside the run folder
MEMORY_SHARE = 0.2  # of the machine's memory that decoded images may take
MAX_PACK_BYTES = 64 * 2**30
CROP_MARGIN = 8 / 7  # short side of a stored image over the network's: 256 for 224


def typical_size(data: ImageSet, health: Health | None) -> Size:
    """Rows and columns of the median image."""
    if health is not None and health.sizes:
        return health.sizes["height"][1], health.sizes["width"][1]
    some = np.linspace(0, len(data) - 1, min(16, len(data))).astype(int)
    shapes, fault = [], None
    for i in some.tolist():
        try:
            shapes.append(data.read(i).shape[:2])
        except DataError as error:  # reported when the image is trained on or judged
            fault = error
    if fault is not None and not shapes:
        raise fault
    rows, columns = np.median(shapes, axis=0).astype(int).tolist()
    return rows, columns


def decode_once(
    plan: Plan, train: ImageSet, dev: ImageSet | None, where: Path, runtime: Runtime
) -> Callable[[ImageSet], ImageSet]:
    """Decode train and dev if that pays; the function returned finds a subset among the decoded images.

    Each rank decodes into its own memory. Only rank 0 decodes onto disk, and the others wait.
    """
    place = _place(plan, train, runtime.ranks, where)
    if place == "nowhere":
        return lambda some: some
    is_shared = place == "disk" and runtime.ranks.world > 1
    if is_shared and not runtime.ranks.is_first:
        torch.distributed.barrier()
    found = _decode(plan, train, dev, where, place, runtime)
    if is_shared and runtime.ranks.is_first:
        torch.distributed.barrier()

    def same(some: ImageSet) -> ImageSet:
        """The same images, decoded. A pack lacks those it could not read."""
        places = find_places(found.ids, some.ids[np.isin(some.ids, found.ids)])
        return replace(found.take(places), path=some.path)

    return same


def _place(plan: Plan, train: ImageSet, ranks: Ranks, where: Path) -> str:
    """memory or disk, by size; nowhere if decoding once does not pay, or the images are decoded already."""
    shown = plan.recipe.batch * (total_steps(plan.recipe, max(len(train) // plan.recipe.batch, 1)) or 10**9)
    if plan.data.is_streamed or plan.data.raw(0) is None or shown <= 2 * len(train):
        return "nowhere"
    typical = typical_size(plan.data, plan.health)
    side = min(round(min(plan.preprocess.size) * CROP_MARGIN), *typical)
    size = int(side**2 * max(typical) / min(typical) * len(plan.preprocess.mean)) * len(plan.data)
    if size * ranks.world < MEMORY_SHARE * (machine_memory() or 2**33):
        return "memory"
    return "disk" if size < MAX_PACK_BYTES and size < shutil.disk_usage(where).free / 2 else "nowhere"


def _decode(plan: Plan, train: ImageSet, dev: ImageSet | None, where: Path, place: str, runtime: Runtime) -> ImageSet:
    """Training images keep a margin for crops; dev images become the exact pixels of an evaluation."""
    side = round(min(plan.preprocess.size) * CROP_MARGIN)
    ids = np.concatenate([train.ids, dev.ids if dev is not None else np.zeros(0, np.int64)])
    wanted = plan.data.take(np.isin(plan.data.ids, ids))
    is_dev = np.isin(wanted.ids, dev.ids) if dev is not None else np.zeros(len(wanted), bool)
    wanted = replace(wanted, splits=np.where(is_dev, TEST, TRAIN))
    if place == "memory":
        runtime.say(f"decoding {len(wanted):,} images once, into memory")
        return kept.hold(wanted, short_side=side, preprocess=plan.preprocess, on_unreadable="defer")
    runtime.say(f"decoding {len(wanted):,} images once, into {where / PACK}")
    return pack(wanted, where / PACK, short_side=side, preprocess=plan.preprocess)


def decode_for_judging(
    plan: Plan,
    judged: ImageSet,
    ranks: Ranks,
    *,
    threads: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> ImageSet:
    """The images as an evaluation sees them, decoded once if two networks are judged on them and memory allows."""
    size = math.prod(plan.preprocess.size) * len(plan.preprocess.mean) * len(judged)
    is_read_twice = plan.estimate is not None and not plan.recipe.is_solved
    has_room = size <= MEMORY_SHARE * (machine_memory() or 2**33)
    if not is_read_twice or not judged.is_encoded or ranks.world > 1 or not has_room:
        return judged
    return hold(
        judged,
        short_side=min(plan.preprocess.size),
        preprocess=plan.preprocess,
        workers=threads,
        progress=progress,
        on_unreadable="defer",
    )


@contextmanager
def decoding_beside(
    device: torch.device, decode: Callable[..., ImageSet | None]
) -> Iterator[Callable[[], ImageSet | None]]:
    """On a GPU, decode the test images in a thread while training; on a CPU, when they are asked for.

    decode: takes `threads` and `progress`.  Training that ends early stops the thread.
    """
    has_ended = Event()

    def watch(done: int, total: int) -> None:
        if has_ended.is_set():
            raise CancelledError

    if device.type == "cpu":
        yield lambda: decode(threads=None, progress=watch)
        return
    with ThreadPoolExecutor(1, "vitreous-judging") as pool:
        ahead = pool.submit(decode, threads=max(core_count() // 8, 1), progress=watch)
        try:
            yield ahead.result
        finally:
            has_ended.set()
