"""A whole set on the device, if its images are decoded and fit."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from vitreous.errors import ConfigError, DataError
from vitreous.images.batches.loader import Loader, Places, rows_first
from vitreous.images.pixels.augment import Augment
from vitreous.images.stores import kept
from vitreous.images.stores.disk import PackedPixels
from vitreous.images.stores.memory import HeldPixels, find_places
from vitreous.machine import memory as machine_memory

RESIDENT_SHARE = 0.4  # of the device's free memory
RESIDENT_ON_CPU = 2**31  # bytes
BATCH_RESIZE_BELOW = 64  # pixels; smaller images are resized a batch at a time even on a CPU
MAX_PADDING = 8.0  # size of a resident set's frame over that of its mean image
IMAGES_PER_COPY = 256  # to the device
SIZES_TRIED = 8  # images tried for their size, before the set counts as unreadable


@dataclass(frozen=True, eq=False)
class Whole:
    """All images of a set, in its order."""

    images: Tensor  # N C H W, uint8
    sizes: Places | None  # N 2: rows, columns of each image, at the upper left, if sizes differ
    missing: dict[int, str]  # the reason for each unreadable image


def lay_whole(
    loader: Loader, augment: Augment | None, device: torch.device, *, world: int, is_asked: bool, may_miss: bool
) -> Whole | None:
    """All images on the device, or None if they are not decoded or do not fit. On a GPU it pads images to one size.

    world: processes that may each hold a set.  is_asked: ignore the memory limit, and refuse instead of returning None.
    may_miss: leave out unreadable images.
    """
    ragged = device.type == "cuda" or is_asked
    shape = _frame(loader, augment, ragged=ragged)
    is_small = shape is None or max(shape) <= BATCH_RESIZE_BELOW
    if device.type == "cpu" and augment is not None and not is_small and not is_asked:
        return None  # workers crop and resize large images faster than a CPU does a batch of them
    fits = shape is not None and (is_asked or len(loader.data) * np.prod(shape) <= _room(device, world))
    if shape is not None and fits and (chosen := _of_kept_array(loader, augment, device, shape, world)) is not None:
        return Whole(chosen, None, {})
    whole = _gathered(loader, augment, device, shape, ragged, may_miss) if shape is not None and fits else None
    if whole is None and is_asked:
        raise ConfigError(
            f"{loader.data.path} cannot lie whole on {device}: its images differ in size, or are encoded; "
            "pack it for one preprocess value, or leave resident out"
        )
    return whole


def _frame(loader: Loader, augment: Augment | None, *, ragged: bool) -> tuple[int, ...] | None:
    """The H W C that holds every image, if known without reading or decoding all."""
    data, channels = loader.data, loader.channels
    if data.is_encoded:
        return None
    if augment is None:
        return (*loader.preprocess.size, channels)
    source = data.source
    if isinstance(source, PackedPixels | HeldPixels):
        return _frame_of(source.sizes[find_places(source.ids, data.ids)], channels, augment, ragged)
    for i in range(min(len(data), SIZES_TRIED)):
        with suppress(DataError):
            return (*data.read(i).shape[:2], channels)
    return None


def _frame_of(sizes: Places, channels: int, augment: Augment, ragged: bool) -> tuple[int, ...] | None:
    """H W C that holds images of these sizes (N 2), unless most of it would be empty."""
    sizes = sizes[sizes.min(1) > 0]  # readable ones
    if not len(sizes):
        return None
    rows, columns = map(int, sizes.max(0))
    if (sizes == sizes[0]).all():
        return rows, columns, channels
    rows += (rows, columns) == augment.size  # unlike the output size, so that boxes count
    return (rows, columns, channels) if ragged and not _is_wasteful(rows, columns, sizes) else None


def _is_wasteful(rows: int, columns: int, sizes: Places) -> bool:
    return bool(rows * columns > MAX_PADDING * sizes.prod(1).mean())


def _gathered(
    loader: Loader, augment: Augment | None, device: torch.device, shape: tuple[int, ...], ragged: bool, may_miss: bool
) -> Whole | None:
    """Fill a slice at a time; None if an image does not fit."""
    count, (rows, columns, channels) = len(loader.data), shape
    read = loader.whole if augment is None else loader.plain
    images = torch.zeros((count, channels, rows, columns), dtype=torch.uint8, device=device)
    sizes, missing = np.full((count, 2), shape[:2], np.int64), {}
    for first in range(0, count, IMAGES_PER_COPY):
        part = images[first : first + IMAGES_PER_COPY]
        host = part if device.type == "cpu" else torch.zeros(part.shape, dtype=torch.uint8)
        places = rows_first(host.numpy())
        for row, i in enumerate(range(first, first + len(part))):
            try:
                pixels = read(i)
            except DataError as error:
                if not may_miss:
                    raise
                missing[i] = str(error)
                continue
            tall, wide = sizes[i] = pixels.shape[:2]
            if tall > rows or wide > columns or ((tall, wide) != (rows, columns) and not ragged):
                return None
            places[row, :tall, :wide] = pixels
        if host is not part:
            part.copy_(host)
    if (sizes == shape[:2]).all():
        return Whole(images, None, missing)
    return None if augment is None or _is_wasteful(rows, columns, sizes) else Whole(images, sizes, missing)


def _of_kept_array(
    loader: Loader, augment: Augment | None, device: torch.device, shape: tuple[int, ...], world: int
) -> Tensor | None:
    """These images from their kept array; None if none is kept, it does not fit, or other pixels are wanted."""
    source = loader.data.source
    if not kept.is_on() or not hasattr(source, "whole") or not (augment is not None or loader.is_squashed_to(shape)):
        return None

    def lay() -> Tensor | None:
        if len(source) * np.prod(shape) > _room(device, world):
            return None
        return torch.from_numpy(source.whole()).to(device).permute(0, 3, 1, 2).contiguous()

    array = kept.once(source, ("array", device), lay)
    if array is None or tuple(array.shape[1:]) != (shape[2], *shape[:2]):
        return None
    return array.index_select(0, torch.from_numpy(loader.data.ids).to(device))


def _room(device: torch.device, world: int) -> float:
    """Bytes that a resident set may take; on a CPU `world` processes may each hold one."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0] * RESIDENT_SHARE
    return min(RESIDENT_ON_CPU, _free_memory() * RESIDENT_SHARE / world)


def _free_memory() -> int:
    """Free bytes of host memory, as far as the machine reports them."""
    most = machine_memory() or 2**33
    path = Path("/proc/meminfo")
    lines = path.read_text().splitlines() if path.exists() else []
    free = [1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")]
    return min([most, *free])
