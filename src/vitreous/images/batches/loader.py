"""Images of a set as pixels: read, cropped and resized for training or evaluation."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitreous.errors import DataError, ShardError
from vitreous.images.imageset import ImageSet
from vitreous.images.pixels import augment as augmenting
from vitreous.images.pixels import decode
from vitreous.images.pixels.augment import AugmentPlan
from vitreous.images.pixels.preprocess import before_crop
from vitreous.images.sources import image_file
from vitreous.images.stores.disk import PackedPixels, same_pixels
from vitreous.images.stores.memory import HeldPixels, find_places
from vitreous.models import preprocess as rules
from vitreous.models.config import Size
from vitreous.models.preprocess import Preprocess

Places = NDArray[np.int64]


@dataclass(frozen=True)
class Loader:
    """Everything that decides an image's pixels; sent to worker processes."""

    data: ImageSet
    preprocess: Preprocess
    fast: bool

    @property
    def channels(self) -> int:
        """The channels that the model expects."""
        return len(self.preprocess.mean)

    def load(self, members: Places, plan: AugmentPlan | None, out: NDArray[np.uint8]) -> dict[int, str]:
        """Fill `out` (B H W C) with these images; returns the reason for each unreadable row."""
        failed: dict[int, str] = {}
        fetched = self.data.fetch(members.tolist())
        if plan is None:
            for row, i in enumerate(members):
                try:
                    out[row] = self.whole(int(i), fetched.get(int(i)))
                except ShardError:
                    raise
                except DataError as error:
                    failed[row] = str(error)
            return failed
        opened: dict[int, _Opened] = {}
        for row, i in enumerate(members):
            try:
                opened[row] = self._open(int(i), fetched.get(int(i)))
            except ShardError:
                raise
            except DataError as error:
                failed[row] = str(error)
        sizes = np.array([opened[row].size if row in opened else (1, 1) for row in range(len(members))], np.int64)
        boxes = augmenting.crop_boxes(plan, sizes[:, 0], sizes[:, 1]).tolist()
        for row, found in opened.items():
            top, left, height, width = boxes[row]
            box = (left, top, left + width, top + height)
            try:
                out[row] = decode.with_channels(self._crop(found, box, plan.augment.size), self.channels)
            except DataError as error:
                failed[row] = str(error)
        return failed

    def for_workers(self) -> Loader:
        """The loader for a worker: of a streamed set it holds only the source, and is asked for images by id."""
        if not self.data.is_streamed:
            return self
        everything: Any = range(len(self.data.source))  # as ids: each image's place is its id
        none: Any = np.zeros(0, np.int64)
        data = replace(self.data, ids=everything, labels=none, splits=none, own_splits=None, groups=None)
        return replace(self, data=data)

    def one(self, member: int, crop: AugmentPlan | None, shape: tuple[int, ...]) -> Tensor:
        """A single image, C H W, as `load` fills it."""
        out = torch.empty((1, *shape), dtype=torch.uint8)
        if failed := self.load(np.array([member]), crop, rows_first(out.numpy())):
            raise DataError(failed[0])
        return out[0]

    def whole(self, i: int, fetched: bytes | DataError | None = None) -> NDArray[np.uint8]:
        """Image i as an evaluation sees it, in Pillow's own pixels.  fetched: its file, if it was read already."""
        pixels = self._read(i, fetched)
        if self.is_finished[i]:
            return decode.with_channels(pixels, self.channels)
        return decode.finish(pixels, self.preprocess)

    def plain(self, i: int) -> NDArray[np.uint8]:
        """Image i as stored."""
        return decode.with_channels(self.data.read(i), self.channels)

    def is_squashed_to(self, shape: tuple[int, ...]) -> bool:
        """Whether an evaluation would see stored images of this shape, H W C, as they are."""
        size = shape[0], shape[1]
        return shape[2] == self.channels and size == self.preprocess.size == before_crop(size, self.preprocess)

    def check(self) -> None:
        """Refuse test pixels that were finished by another preprocessing."""
        if self.is_finished.any():
            rule = rules.from_json(self.data.about["pack"]["preprocess"])
            if not same_pixels(rule, self.preprocess):
                raise DataError(
                    f"{self.data.path} holds test pixels of another rule ({rule}) than asked for ({self.preprocess}); "
                    "pack it again for this one with --force"
                )

    @cached_property
    def is_finished(self) -> NDArray[np.bool_]:
        """For each image: True if it is stored with its evaluation pixels."""
        source = self.data.source
        if not isinstance(source, PackedPixels | HeldPixels):
            return np.broadcast_to(np.False_, len(self.data))
        return source.is_finished[find_places(source.ids, self.data.ids)]

    def _read(self, i: int, fetched: bytes | DataError | None) -> NDArray[np.uint8]:
        if isinstance(fetched, DataError):
            raise fetched
        return self.data.read(i) if fetched is None else image_file.decode(fetched, self.data.name(i))

    def _open(self, i: int, fetched: bytes | DataError | None) -> _Opened:
        """An image and its size: a JPEG's from its header, any other's by decoding."""
        raw = fetched if isinstance(fetched, bytes) else None
        if self.fast and fetched is None:
            raw = self.data.raw(i)
        if self.fast and raw is not None and (header := decode.header(raw)) is not None:
            return _Opened(i, (header.rows, header.columns), raw, header, None)
        pixels = self._read(i, fetched)
        return _Opened(i, (pixels.shape[0], pixels.shape[1]), None, None, pixels)

    def _crop(self, found: _Opened, box: tuple[int, int, int, int], size: Size) -> NDArray[np.uint8]:
        if found.raw is not None:
            name, channels = self.data.name(found.i), self.data.channels
            return decode.decode_crop(found.raw, name, box, size, channels, fast=self.fast, known=found.header)
        assert found.pixels is not None
        return decode.crop(found.pixels, box, size, fast=self.fast)


@dataclass(frozen=True)
class _Opened:
    i: int
    size: Size
    raw: bytes | None
    header: decode.Header | None
    pixels: NDArray[np.uint8] | None


def rows_first(batch: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """B C H W seen as B H W C."""
    return batch.transpose(0, 2, 3, 1)
