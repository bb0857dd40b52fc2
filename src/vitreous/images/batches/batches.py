"""Batches of uint8 images on the device, in an order that depends only on the seed.

The order of an epoch is one list of places 0 … N − 1. A step takes the next `batch` places, and each rank an equal run
of them. So batch size, workers and ranks change who reads an image, never the images, their order or their pixels. The
position of a run is (epoch, place); starting there reads nothing before it.

With `repeats` an epoch shows that many times fewer images, but each of them that many times (DeiT's repeated
augmentation). It still has N places, and each copy of an image has its own draws.

Images come in one of two ways (workers.py). *Resident*: a set of equal images that fits is held whole on the device
(stores/device.py), and a batch is an index into it. *Streamed*: workers (threads, or processes if many cores feed one
device) read, crop and resize ahead (loader.py), into pinned memory.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict, deque
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import pairwise
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from vitreous.errors import ConfigError, DataError
from vitreous.images.batches.loader import Loader, Places
from vitreous.images.batches.workers import BatchStep, Feed, Processes, Resident, Threads, crops
from vitreous.images.imageset import ImageSet
from vitreous.images.pixels import augment as augmenting
from vitreous.images.pixels import decode
from vitreous.images.pixels.augment import Augment, AugmentPlan
from vitreous.images.stores.device import Whole, lay_whole
from vitreous.images.stores.memory import HeldPixels
from vitreous.machine import core_count
from vitreous.models.preprocess import Preprocess
from vitreous.randomness import integers, permutation, uniform
from vitreous.ranks import Ranks, gather, here

PROCESSES_FROM = 50_000  # images to read; worker processes start too slowly for fewer
COPY_ID_STEP = 2**40  # added to an image's id for the draws of its next copy
IMAGES_BETWEEN_COPIES = 8  # between two copies of one image
IMAGES_PER_BLOCK = 500  # neighbours in a shard that stay together when blocks are permuted
WINDOWS_KEPT = 8  # orders of windows
REPLACEMENT_DRAWS = 8  # images tried in place of an unreadable one


@dataclass(frozen=True)
class Batch:
    """Some images of one epoch, in the epoch's order.

    plan: the augmentation of each image, drawn on the host, or None. To get the model's input:
    `augment.apply(batch.images, batch.plan, rule, cropped=batch.is_cropped)`.
    """

    images: Tensor  # B C H W, uint8
    labels: Tensor  # B, or B K
    ids: Places  # B: image numbers in the source
    places: Places  # B: in the epoch's order
    epoch: int
    plan: AugmentPlan | None = None
    is_cropped: bool = True  # else `augment.apply` crops: call it with cropped=batch.is_cropped
    sizes: Places | None = None  # B 2: rows, columns of each image, at the upper left, if sizes differ
    copies: Places | None = None  # B: which copy of the image, from 0, if an epoch repeats images

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def drawn_ids(self) -> Places:
        """B: the id used in every draw; two copies of one image differ."""
        return _drawn_ids(self.ids, self.copies)


@dataclass(frozen=True)
class Coverage:
    """The images that an evaluation saw, over all ranks."""

    images: int  # in the set
    seen: int
    unique: int
    skipped: tuple[str, ...] = ()  # the reason for each unreadable image

    @property
    def is_exact(self) -> bool:
        """True if every image was seen exactly once."""
        return self.seen == self.unique == self.images

    def to_json(self) -> dict[str, Any]:
        return {"images": self.images, "seen": self.seen, "unique": self.unique, "skipped": list(self.skipped)}

    def __str__(self) -> str:
        text = f"{self.seen:,} images seen, {self.unique:,} unique of {self.images:,}, {len(self.skipped):,} skipped"
        return "\n".join([text, *self.skipped])


@dataclass(frozen=True, kw_only=True)
class Order:
    """Which image comes when.

    start: an earlier `state()`.  repeats: how often an epoch shows each of its images.
    shuffle, drop_last: by default, on with augmentation.  ranks: by default, those of the process group.
    """

    batch: int  # images per step, over all ranks
    seed: int = 0
    epochs: int = 1
    repeats: int = 1
    shuffle: bool | None = None
    shuffle_buffer: int = 10_000  # images of a window in which blocks of shards are shuffled
    drop_last: bool | None = None
    start: dict[str, Any] | None = None
    ranks: Ranks | None = None


@dataclass(frozen=True, kw_only=True)
class Loading:
    """How images are read.

    preprocess: sets the size of the batches and, without augmentation, their exact pixels.
    workers: 0 reads in the calling thread; in a long run, more than two are processes, unless `processes` decides.
    reads: images to read in all, if not every image in every epoch.  resident: None decides by itself.
    on_unreadable: "skip" leaves the image out of an evaluation; "replace" shows another image of the set, drawn by
    address, with its own label and id.  labelled: False gives images without a label the label 0.
    """

    preprocess: Preprocess
    augment: Augment | None = None
    device: torch.device | str = "cpu"
    workers: int | None = None
    processes: bool | None = None
    prefetch: int = 3
    reads: int | None = None
    resident: bool | None = None
    fast: bool | None = None
    on_unreadable: Literal["raise", "replace", "skip"] = "raise"
    labelled: bool = True


class Batches:
    """Iterate over batches: once through all remaining epochs; iterating again starts over."""

    def __init__(self, data: ImageSet, order: Order, loading: Loading):
        shuffle = loading.augment is not None if order.shuffle is None else order.shuffle
        drop_last = shuffle if order.drop_last is None else order.drop_last
        self.data, self.order, self.loading = data, replace(order, shuffle=shuffle, drop_last=drop_last), loading
        self.ranks = order.ranks or here()
        self._device = torch.device(loading.device)
        self._workers = min(core_count(), 8) if loading.workers is None else loading.workers
        blocks, buffer = (find_blocks(data), _window(data, order.shuffle_buffer)) if shuffle else (None, 1)
        self._places = EpochOrder(len(data), order.seed, shuffle, blocks, buffer, order.repeats)
        self._loader = Loader(data, loading.preprocess, decode.is_fast(loading.fast))
        self._epoch, self._place, self._is_through = 0, 0, False
        self._shown = Shown(len(data))
        self._skipped: list[str] = []
        self._replaced: dict[int, str] = {}  # each missing image, and why
        self._check()
        if order.start is not None:
            self._start_at(order.start)

    @property
    def replaced(self) -> list[tuple[str, str]]:
        """Name and reason of each missing image, once."""
        return [(self.data.name(member), why) for member, why in self._replaced.items()]

    def __len__(self) -> int:
        """Remaining steps, the same on every rank."""
        epochs = self.order.epochs
        if self._is_through:
            return epochs * self.steps_per_epoch
        now = self._count_steps(len(self.data) - self._place)
        return now + (epochs - self._epoch - 1) * self.steps_per_epoch if self._epoch < epochs else 0

    @property
    def steps_per_epoch(self) -> int:
        return self._count_steps(len(self.data))

    def _count_steps(self, images: int) -> int:
        return images // self.order.batch if self.order.drop_last else -(-images // self.order.batch)

    def state(self) -> dict[str, Any]:
        """The position of the next batch; valid for any batch size and number of ranks."""
        return {"epoch": self._epoch, "place": self._place, **self._identity()}

    def seek(self, epoch: int, place: int) -> None:
        """Continue from this epoch and place."""
        if epoch < 0 or not 0 <= place < len(self.data):
            raise ConfigError(f"epoch {epoch}, place {place} is not a place among {len(self.data)} images")
        self._epoch, self._place, self._is_through = epoch, place, False

    def coverage(self) -> Coverage:
        """What all ranks saw in this pass; every rank must call it."""
        if self.ranks.world not in (1, here().world):  # a single rank has seen everything
            raise ConfigError(
                f"these are batches of rank {self.ranks.rank} of {self.ranks.world}, and no such process group runs; "
                "coverage needs all ranks"
            )
        mine = self._shown.count, self._shown.bits, self._skipped
        seen, bits, skipped = zip(*(gather(mine) if self.ranks.world > 1 else [mine]), strict=True)
        unique = int(np.unpackbits(np.bitwise_or.reduce(bits)).sum(dtype=np.int64))
        return Coverage(len(self.data), sum(seen), unique, tuple(why for part in skipped for why in part))

    def __iter__(self) -> Iterator[Batch]:
        if self._is_through:
            self._epoch, self._place, self._skipped, self._is_through = 0, 0, [], False
            self._shown = Shown(len(self.data))
        feed = self._feed()
        waiting: deque[tuple[BatchStep, Any]] = deque()
        steps = self._steps(self._epoch, self._place)
        try:
            for step in steps:
                waiting.append((step, feed.start(step)))
                if len(waiting) > feed.ahead:
                    yield self._next(waiting, feed)
            while waiting:
                yield self._next(waiting, feed)
            self._is_through = True
        finally:
            feed.close()

    def _next(self, waiting: deque[tuple[BatchStep, Any]], feed: Feed) -> Batch:
        step, begun = waiting.popleft()
        images, failed = feed.finish(step, begun)
        places, members, copies = step.places, step.members, step.copies
        if failed and self.loading.on_unreadable == "replace":
            members = members.copy()
            for row in sorted(failed):
                members[row], pixels = self._replacement(step, row, failed[row], feed)
                images[row] = pixels
        elif failed:
            if self.loading.on_unreadable == "raise" or self.loading.augment is not None:
                raise DataError(failed[min(failed)])
            good = np.array([i for i in range(len(places)) if i not in failed], np.int64)
            images, places, members = images[torch.from_numpy(good).to(images.device)], places[good], members[good]
            copies = None if copies is None else copies[good]
            self._skipped += failed.values()
        self._epoch, self._place = (step.epoch, step.end) if not step.ends_epoch else (step.epoch + 1, 0)
        self._shown.add(members)
        numbers = self.data.labels[members]
        labels = torch.from_numpy(numbers if self.loading.labelled else numbers.clip(0))
        if self._device.type == "cuda":
            labels = labels.pin_memory()
        labels = labels.to(self._device, non_blocking=True)
        whole = self._whole
        sizes = None if whole is None or whole.sizes is None else whole.sizes[members]
        return Batch(
            images, labels, self.data.ids[members], places, step.epoch, step.plan, whole is None, sizes, copies
        )

    def _replacement(self, step: BatchStep, row: int, why: str, feed: Feed) -> tuple[int, Tensor]:
        """An image in place of an unreadable one, drawn by that one's address alone."""
        missing, tried = int(step.members[row]), why
        self._replaced.setdefault(missing, why)
        address = _drawn_ids(self.data.ids[missing : missing + 1], None if step.copies is None else step.copies[[row]])
        others = len(self.data) - 1
        draws = integers(self.order.seed, "replacement", step.epoch, address, others, REPLACEMENT_DRAWS)[0]
        for k in draws.tolist() if others else []:
            member = k + (k >= missing)  # never itself
            try:
                return member, feed.one(member, crops(step.plan, slice(row, row + 1)))
            except DataError as error:
                tried = str(error)
                self._replaced.setdefault(member, tried)
        raise DataError(
            f"{self.data.name(missing)} cannot be read, nor can {min(others, REPLACEMENT_DRAWS)} images drawn in "
            f"its place ({tried}); look at the set with: vitreous check {self.data.path}"
        )

    def _feed(self) -> Feed:
        if self._whole is not None:
            return Resident(self._whole)
        loading, shape = self.loading, (self._loader.channels, *self.loading.preprocess.size)
        if self._processes:
            most = -(-self.order.batch // self.ranks.world)
            return Processes(self._loader, shape, most, self._workers, loading.prefetch, self._device)
        return Threads(self._loader, shape, self._workers, loading.prefetch, self._device)

    @property
    def _processes(self) -> bool:
        """True if the workers are processes: more than 2 threads wait for each other, but processes start slowly."""
        if self.loading.processes is not None:
            return self.loading.processes and self._workers > 0
        if getattr(self.data.source, "stays_here", False):
            return False
        reads = len(self.data) * self.order.epochs if self.loading.reads is None else self.loading.reads
        return self._workers > 2 and reads >= PROCESSES_FROM and not isinstance(self.data.source, HeldPixels)

    @cached_property
    def _whole(self) -> Whole | None:
        """The set on the device, or None; decided on first use."""
        if self.loading.resident is False:
            return None
        return lay_whole(
            self._loader,
            self.loading.augment,
            self._device,
            world=self.ranks.world,
            is_asked=bool(self.loading.resident),
            may_miss=self.loading.on_unreadable != "raise",
        )

    def _draw(self, epoch: int, members: Places, copies: Places | None, places: Places) -> AugmentPlan | None:
        if self.loading.augment is None:
            return None
        ids = _drawn_ids(self.data.ids[members], copies)
        return augmenting.draw(self.loading.augment, self.order.seed, epoch, ids, places, len(self.data))

    def _steps(self, epoch: int, place: int) -> Iterator[BatchStep]:
        """This rank's part of every step, from (epoch, place) on."""
        n, batch, ranks = len(self.data), self.order.batch, self.ranks
        while epoch < self.order.epochs:
            last = place + (n - place) // batch * batch if self.order.drop_last else n
            for begin in range(place, last, batch):
                end = min(begin + batch, n)
                count = end - begin
                share = batch // ranks.world if count == batch else -(-count // (2 * ranks.world)) * 2
                mine = np.arange(begin + min(ranks.rank * share, count), begin + min((ranks.rank + 1) * share, count))
                members, copies = self._places.at(epoch, mine)
                draw = partial(self._draw, epoch, members, copies, mine)
                yield BatchStep(epoch, mine, members, copies, end, begin + batch >= last, draw)
            epoch, place = epoch + 1, 0

    def _identity(self) -> dict[str, Any]:
        """What a saved position depends on: images, labels and order."""
        return {
            "seed": self.order.seed,
            "images": len(self.data),
            "content_id": self.data.content_id,
            "chosen": self._chosen,
            "order": self._places.kind,
        }

    @cached_property
    def _chosen(self) -> str:
        """A digest of ids and labels, made once."""
        total = hashlib.sha256()
        for numbers in (self.data.ids, self.data.labels):
            total.update(np.ascontiguousarray(numbers).reshape(-1).view(np.uint8).data)
        return total.hexdigest()[:16]

    def _start_at(self, state: dict[str, Any]) -> None:
        for name, now in self._identity().items():
            if state.get(name) != now:
                then = state.get(name)
                raise DataError(
                    f"{self.data.path} is not where the run stopped: {name} was {then}, is {now}; "
                    "resume with the same data and seed, or start afresh"
                )
        epoch, place = state.get("epoch"), state.get("place")
        if not isinstance(epoch, int) or not isinstance(place, int) or epoch < 0 or not 0 <= place <= len(self.data):
            where = f"epoch {epoch}, place {place}"
            raise DataError(f"the state says {where}, which is not a place in {self.data.path}; start afresh")
        self._epoch, self._place = epoch, place

    def _check(self) -> None:
        data, order, loading = self.data, self.order, self.loading
        n, batch, world, augment = len(data), order.batch, self.ranks.world, loading.augment
        if n == 0:
            raise DataError(f"{data.path} has no images; look at it with: vitreous check {data.path}")
        if self._workers < 0 or order.epochs < 0 or loading.prefetch < 0:
            raise ConfigError(
                f"workers {self._workers}, epochs {order.epochs} and prefetch {loading.prefetch} must each be 0 or more"
            )
        nameless = np.flatnonzero(data.labels < 0) if not data.has_many_labels else np.array([], int)
        if loading.labelled and augment is not None and len(nameless):
            raise DataError(
                f"{len(nameless):,} images of {data.path} have no label, such as {data.name(int(nameless[0]))}; "
                "label them, or take them out with data.take(data.labels >= 0)"
            )
        if batch < 1 or batch % world:
            raise ConfigError(f"a batch of {batch} cannot be shared by {world} ranks; give a multiple of {world}")
        if order.drop_last and batch > n:
            raise ConfigError(f"a batch of {batch} is more than {data.path} has; give its {n} images or less")
        if order.repeats < 1 or (order.repeats > 1 and (not order.shuffle or self._places.distinct < 2)):
            raise ConfigError(
                f"repeats={order.repeats} of {n} images leaves no two to show, or the same ones in every epoch where "
                "they are not shuffled; give 1, or fewer repeats and shuffle"
            )
        if loading.on_unreadable not in ("raise", "replace", "skip"):
            raise ConfigError(f"on_unreadable={loading.on_unreadable!r} is unknown; give raise, replace or skip")
        if loading.on_unreadable == "replace" and not order.shuffle:
            raise ConfigError(
                "on_unreadable='replace' is for training, and an evaluation must not see an image twice; "
                "leave it out, or give skip"
            )
        if augment is not None and augment.mixes and (batch // world) % 2:
            raise ConfigError(
                f"mixing takes pairs, and a batch of {batch} on {world} ranks is {batch // world} each; "
                f"give a multiple of {2 * world}"
            )
        if augment is not None and augment.size != loading.preprocess.size:
            theirs = loading.preprocess.size
            raise ConfigError(
                f"augmentation makes images of {augment.size}, the model takes {theirs}; give both one size"
            )
        self._loader.check()


class Shown:
    """Which images were shown, one bit each, and how many in all."""

    def __init__(self, images: int):
        self.bits = np.zeros(-(-images // 8), np.uint8)
        self.count = 0

    def add(self, members: Places) -> None:
        self.count += len(members)
        np.bitwise_or.at(self.bits, members >> 3, (1 << (members & 7)).astype(np.uint8))


@dataclass(frozen=True)
class Blocks:
    """Neighbouring images that are read together: part of a shard, or a row group.

    start, size: of each block, in the order of `members`.  members: the images, block by block; None if in order.
    """

    start: Places
    size: Places
    members: Places | None = None


@dataclass
class EpochOrder:
    """The image at each place of an epoch.

    Shards are read nearly in order: blocks of neighbouring images are permuted, then images within windows of `buffer`
    places. So a reader keeps at most a few windows. Any place is found directly, in time and memory that depend on the
    number of blocks and on the window, not on the number of images or ranks.

    With R repeats an epoch shows the first D = ⌈N / R⌉ images of its order. Place R·j + r has copy r of the one at
    (j − r·apart) mod D. So copies of one image are R·apart + 1 places apart: mostly in one step, as in DeiT, but never
    neighbours, so no pair mixes two copies of one image. Each copy has other neighbours.
    """

    count: int
    seed: int
    is_shuffled: bool
    blocks: Blocks | None
    buffer: int
    repeats: int = 1
    _known: tuple[int, Any] | None = None  # an epoch, and its whole order or that of its blocks
    _windows: OrderedDict[int, Places] = field(default_factory=OrderedDict)

    @property
    def kind(self) -> str:
        """A description of the order; orders that differ have different ones."""
        again = "" if self.repeats == 1 else f", each {self.repeats} times"
        if not self.is_shuffled:
            return "as it lies" + again
        return ("shuffled" if self.blocks is None else f"shuffled in windows of {self.buffer}") + again

    @property
    def distinct(self) -> int:
        """The number of images that an epoch shows."""
        return -(-self.count // self.repeats)

    @cached_property
    def apart(self) -> int:
        """Less than D, so that places r and r + 1 show different images; and so that R·j + R − 1 and R·(j + 1) do."""
        far = range(min(IMAGES_BETWEEN_COPIES, self.distinct - 1), 0, -1)
        return next(k for k in far if self.repeats % 2 == 0 or ((self.repeats - 1) * k + 1) % self.distinct)

    def at(self, epoch: int, places: Places) -> tuple[Places, Places | None]:
        """The image numbers at these places, and which copy each is."""
        if self.repeats == 1:
            return self.members(epoch, places), None
        j, copies = np.divmod(places, self.repeats)
        return self.members(epoch, (j - copies * self.apart) % self.distinct), copies

    def members(self, epoch: int, numbers: Places) -> Places:
        """The images at these positions of the epoch's order."""
        if not self.is_shuffled:
            return numbers
        if self.blocks is None:
            if self._known is None or self._known[0] != epoch:
                self._known = epoch, permutation(self.seed, "order", epoch, self.count)
            return self._known[1][numbers]
        found = np.empty(len(numbers), np.int64)
        windows, places = np.divmod(numbers, self.buffer)
        for window in np.unique(windows).tolist():
            here = windows == window
            found[here] = self._window(epoch, window)[places[here]]
        return found

    def _window(self, epoch: int, window: int) -> Places:
        """The images of one window: those of the permuted blocks under it, in the order of their own draws."""
        assert self.blocks is not None
        if self._known is None or self._known[0] != epoch:
            order = permutation(self.seed, "shards", epoch, len(self.blocks.size))
            self._known = epoch, (order, np.cumsum(self.blocks.size[order]) - self.blocks.size[order])
            self._windows.clear()
        if window in self._windows:
            self._windows.move_to_end(window)
            return self._windows[window]
        order, begin = self._known[1]
        places = np.arange(window * self.buffer, min((window + 1) * self.buffer, self.count))
        block = np.searchsorted(begin, places, "right") - 1
        members = self.blocks.start[order[block]] + places - begin[block]
        members = members if self.blocks.members is None else self.blocks.members[members]
        within = uniform(self.seed, "order", epoch, members)[:, 0]
        self._windows[window] = members[np.argsort(within, kind="stable")]
        while len(self._windows) > WINDOWS_KEPT:
            self._windows.popitem(last=False)
        return self._windows[window]


def find_blocks(data: ImageSet) -> Blocks | None:
    """The blocks of a set whose source has them, none larger than IMAGES_PER_BLOCK unless it is read as one."""
    starts = getattr(data.source, "block_starts", None)
    if starts is None:
        return None
    ids, members = data.ids, None
    if (ids[1:] < ids[:-1]).any():
        members = np.argsort(ids, kind="stable")
        ids = ids[members]
    edges = np.searchsorted(ids, [*starts, len(data.source)])
    parts = [np.arange(a, b, IMAGES_PER_BLOCK) for a, b in pairwise(edges.tolist()) if a < b]
    if getattr(data.source, "window", None) is not None:  # a row group is read whole
        parts = [part[:1] for part in parts]
    start = np.concatenate(parts)
    return Blocks(start, np.diff(np.append(start, len(data))), members)


def _window(data: ImageSet, buffer: int) -> int:
    """The number of images in a window; the source may keep fewer."""
    return min(buffer, getattr(data.source, "window", None) or buffer)


def _drawn_ids(ids: Places, copies: Places | None) -> Places:
    return ids if copies is None else ids + copies * COPY_ID_STEP
