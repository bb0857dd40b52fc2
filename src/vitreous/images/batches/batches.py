"""Batches of uint8 images on the device, in an order that depends only on the seed.

The order of an epoch is one list of places 0 … N − 1. A step takes the next `batch` places, and each rank an equal run
of them. So batch size, workers and ranks change who reads an image, never the images, their order or their pixels. The
position of a run is (epoch, place); starting there reads nothing before it.

With `repeats` an epoch shows that many times fewer images, each that often (DeiT's repeated augmentation). It still has
N places, and each copy of an image has its own draws.

Images come in one of two ways (workers.py). *Resident*: a set of equal images that fits is held whole on the device
(stores/device.py), and a batch is an index into it. *Streamed*: workers (threads, or processes if many cores feed one
device) read, crop and resize ahead (loader.py), into pinned memory.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from vitreous.errors import ConfigError, DataError
from vitreous.files import digest
from vitreous.images.batches.loader import Loader, Places
from vitreous.images.batches.workers import BatchStep, Feed, Processes, Resident, Threads, crops
from vitreous.images.imageset import ImageSet
from vitreous.images.pixels import augment as augmenting
from vitreous.images.pixels import decode
from vitreous.images.pixels.augment import Augment, AugmentPlan
from vitreous.images.sources.shards import Shards
from vitreous.images.stores.device import Whole, lay_whole
from vitreous.images.stores.memory import HeldPixels
from vitreous.machine import core_count
from vitreous.models.preprocess import Preprocess
from vitreous.randomness import integers, permutation, uniform
from vitreous.ranks import Ranks, gather, here

__all__ = ["Batch", "Batches", "Coverage"]

PROCESSES_FROM = 50_000  # images to read; worker processes start too slowly for fewer
COPY_ID_STEP = 2**40  # added to an image's id for the draws of its next copy
IMAGES_BETWEEN_COPIES = 8  # between two copies of one image
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


class Batches:
    """Iterate over batches: once through all remaining epochs; iterating again starts over.

    batch: images per step, over all ranks.  preprocess: sets the size of the batches and, without augmentation, their
    exact pixels.  shuffle, drop_last: by default, on with augmentation.  start: an earlier `state()`.
    workers: 0 reads in the calling thread; more than two are processes in a long run, unless `processes` says.
    resident: None decides by itself.  repeats: how often an epoch shows each of its images.  reads: images to read in
    all, if `epochs` does not tell.  on_unreadable: "replace" shows another image of the set, drawn by address, with
    its own label and id; `replaced` lists name and reason of each missing image once.
    labelled: False gives images without a label the label 0.
    """

    def __init__(
        self,
        data: ImageSet,
        *,
        batch: int,
        preprocess: Preprocess,
        augment: Augment | None = None,
        shuffle: bool | None = None,
        drop_last: bool | None = None,
        seed: int = 0,
        epochs: int = 1,
        start: dict[str, Any] | None = None,
        rank: int | None = None,
        world: int | None = None,
        workers: int | None = None,
        processes: bool | None = None,
        prefetch: int = 3,
        device: torch.device | str = "cpu",
        resident: bool | None = None,
        skip_unreadable: bool = False,
        shuffle_buffer: int = 10_000,
        fast: bool | None = None,
        repeats: int = 1,
        reads: int | None = None,
        on_unreadable: Literal["raise", "replace"] = "raise",
        labelled: bool = True,
    ):
        self.data, self.preprocess, self.augment = data, preprocess, augment
        self.shuffle = augment is not None if shuffle is None else shuffle
        self.drop_last = self.shuffle if drop_last is None else drop_last
        self.seed, self.epochs, self.batch = seed, epochs, batch
        self.device = torch.device(device)
        if (rank is None) != (world is None):
            raise ConfigError("rank and world belong together; give both, or neither to ask the process group")
        self.ranks = here() if rank is None or world is None else Ranks(rank, world)
        self.prefetch, self.skip_unreadable = prefetch, skip_unreadable
        self.repeats, self.on_unreadable, self.labelled = repeats, on_unreadable, labelled
        self.replaced: list[tuple[str, str]] = []  # name, why
        self._noted: set[int] = set()  # of these
        self._workers = min(core_count(), 8) if workers is None else workers
        reads = len(data) * epochs if reads is None else reads
        is_long = reads >= PROCESSES_FROM and not isinstance(data.source, HeldPixels)
        many = self._workers > 2 and is_long  # more than 2 threads wait for each other, but processes start slowly
        self._processes = (many if processes is None else processes) and self._workers > 0
        self._order = _Order(len(data), seed, self.shuffle, _shards(data), shuffle_buffer, repeats)
        self._loader = Loader(data, preprocess, decode.is_fast(fast))
        self._epoch, self._place = 0, 0
        self._is_through = False
        self._want_resident = resident
        self._seen, self._unique = 0, np.zeros(len(data), bool)
        self._skipped: list[str] = []
        self._check()
        if start is not None:
            self._start_at(start)

    def __len__(self) -> int:
        """Remaining steps, the same on every rank."""
        left = len(self.data) - self._place
        now = left // self.batch if self.drop_last else -(-left // self.batch)
        if self._is_through:
            return self.epochs * self.steps_per_epoch
        return now + (self.epochs - self._epoch - 1) * self.steps_per_epoch if self._epoch < self.epochs else 0

    @property
    def steps_per_epoch(self) -> int:
        n = len(self.data)
        return n // self.batch if self.drop_last else -(-n // self.batch)

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
        parts = gather((self._seen, np.packbits(self._unique), self._skipped)) if self.ranks.world > 1 else None
        if parts is None:
            return Coverage(len(self.data), self._seen, int(self._unique.sum()), tuple(self._skipped))
        union = np.bitwise_or.reduce([bits for _, bits, _ in parts])
        unique = int(np.unpackbits(union, count=len(self.data)).sum())
        skipped = tuple(why for _, _, part in parts for why in part)
        return Coverage(len(self.data), sum(seen for seen, _, _ in parts), unique, skipped)

    def __iter__(self) -> Iterator[Batch]:
        if self._is_through:
            self._epoch, self._place, self._seen, self._skipped, self._is_through = 0, 0, 0, [], False
            self._unique[:] = False
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
        if failed and self.on_unreadable == "replace":
            members = members.copy()
            for row in sorted(failed):
                members[row], pixels = self._replacement(step, row, failed[row], feed)
                images[row] = pixels
        elif failed:
            if not self.skip_unreadable or self.augment is not None:
                raise DataError(failed[min(failed)])
            good = np.array([i for i in range(len(places)) if i not in failed], np.int64)
            images, places, members = images[torch.from_numpy(good).to(images.device)], places[good], members[good]
            copies = None if copies is None else copies[good]
            self._skipped += failed.values()
        self._epoch, self._place = (step.epoch, step.end) if not step.ends_epoch else (step.epoch + 1, 0)
        self._seen += len(places)
        self._unique[members] = True
        labels = torch.from_numpy(self.data.labels[members] if self.labelled else self.data.labels[members].clip(0))
        if self.device.type == "cuda":
            labels = labels.pin_memory()
        labels = labels.to(self.device, non_blocking=True)
        whole = self._whole
        sizes = None if whole is None or whole.sizes is None else whole.sizes[members]
        return Batch(
            images, labels, self.data.ids[members], places, step.epoch, step.plan, whole is None, sizes, copies
        )

    def _replacement(self, step: BatchStep, row: int, why: str, feed: Feed) -> tuple[int, Tensor]:
        """An image in place of an unreadable one, drawn by that one's address alone."""
        missing, tried = int(step.members[row]), why
        self._note(missing, why)
        address = _drawn_ids(self.data.ids[missing : missing + 1], None if step.copies is None else step.copies[[row]])
        others = len(self.data) - 1
        for k in (
            integers(self.seed, "replacement", step.epoch, address, others, REPLACEMENT_DRAWS)[0].tolist()
            if others
            else []
        ):
            member = k + (k >= missing)  # never itself
            try:
                return member, feed.one(member, crops(step.plan, slice(row, row + 1)))
            except DataError as error:
                tried = str(error)
                self._note(member, tried)
        raise DataError(
            f"{self.data.name(missing)} cannot be read, nor can {min(others, REPLACEMENT_DRAWS)} images drawn in "
            f"its place ({tried}); look at the set with: vitreous check {self.data.path}"
        )

    def _note(self, member: int, why: str) -> None:
        if member not in self._noted:
            self._noted.add(member)
            self.replaced.append((self.data.name(member), why))

    def _feed(self) -> Feed:
        if self._whole is not None:
            return Resident(self._whole)
        shape = (self._loader.channels, *self.preprocess.size)
        most = -(-self.batch // self.ranks.world)
        if self._processes:
            return Processes(self._loader, shape, most, self._workers, self.prefetch, self.device)
        return Threads(self._loader, shape, self._workers, self.prefetch, self.device)

    @cached_property
    def _whole(self) -> Whole | None:
        """The set on the device, or None; decided on first use."""
        if self._want_resident is False:
            return None
        return lay_whole(
            self._loader,
            self.augment,
            self.device,
            world=self.ranks.world,
            is_asked=bool(self._want_resident),
            may_miss=self.skip_unreadable or self.on_unreadable != "raise",
        )

    def _draw(self, epoch: int, members: Places, copies: Places | None, places: Places) -> AugmentPlan | None:
        if self.augment is None:
            return None
        ids = _drawn_ids(self.data.ids[members], copies)
        return augmenting.draw(self.augment, self.seed, epoch, ids, places, len(self.data))

    def _steps(self, epoch: int, place: int) -> Iterator[BatchStep]:
        """This rank's part of every step, from (epoch, place) on."""
        n, world, rank = len(self.data), self.ranks.world, self.ranks.rank
        while epoch < self.epochs:
            last = place + (n - place) // self.batch * self.batch if self.drop_last else n
            for begin in range(place, last, self.batch):
                end = min(begin + self.batch, n)
                count = end - begin
                share = self.batch // world if count == self.batch else -(-count // (2 * world)) * 2
                mine = np.arange(begin + min(rank * share, count), begin + min((rank + 1) * share, count))
                members, copies = self._order.at(epoch, mine)
                draw = partial(self._draw, epoch, members, copies, mine)
                yield BatchStep(epoch, mine, members, copies, end, begin + self.batch >= last, draw)
            epoch, place = epoch + 1, 0

    def _identity(self) -> dict[str, Any]:
        """What a saved position depends on: images, labels and order."""
        chosen = digest(self.data.ids.tobytes() + self.data.labels.tobytes())
        return {
            "seed": self.seed,
            "images": len(self.data),
            "content_id": self.data.content_id,
            "chosen": chosen[:16],
            "order": self._order.kind,
        }

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
        n, world = len(self.data), self.ranks.world
        if n == 0:
            raise DataError(f"{self.data.path} has no images; look at it with: vitreous check {self.data.path}")
        if self._workers < 0 or self.epochs < 0 or self.prefetch < 0:
            raise ConfigError(
                f"workers {self._workers}, epochs {self.epochs} and prefetch {self.prefetch} must each be 0 or more"
            )
        nameless = np.flatnonzero(self.data.labels < 0) if self.data.labels.ndim == 1 else np.array([], int)
        if self.labelled and self.augment is not None and len(nameless):
            raise DataError(
                f"{len(nameless):,} images of {self.data.path} have no label, "
                f"such as {self.data.name(int(nameless[0]))}; "
                "label them, or take them out with data.take(data.labels >= 0)"
            )
        if self.batch < 1 or self.batch % world:
            raise ConfigError(f"a batch of {self.batch} cannot be shared by {world} ranks; give a multiple of {world}")
        if self.drop_last and self.batch > n:
            raise ConfigError(f"a batch of {self.batch} is more than {self.data.path} has; give its {n} images or less")
        if self.repeats < 1 or (self.repeats > 1 and (not self.shuffle or self._order.distinct < 2)):
            raise ConfigError(
                f"repeats={self.repeats} of {n} images leaves no two to show, or the same ones in every epoch where "
                "they are not shuffled; give 1, or fewer repeats and shuffle"
            )
        if self.on_unreadable not in ("raise", "replace"):
            raise ConfigError(f"on_unreadable={self.on_unreadable!r} is unknown; give raise or replace")
        if self.on_unreadable == "replace" and (not self.shuffle or self.skip_unreadable):
            raise ConfigError(
                "on_unreadable='replace' is for training, and an evaluation must not see an image twice; "
                "leave it out, or say skip_unreadable alone"
            )
        if self.augment is not None and self.augment.mixes and (self.batch // world) % 2:
            raise ConfigError(
                f"mixing takes pairs, and a batch of {self.batch} on {world} ranks is {self.batch // world} each; "
                f"give a multiple of {2 * world}"
            )
        if self.augment is not None and self.augment.size != self.preprocess.size:
            ours, theirs = self.augment.size, self.preprocess.size
            raise ConfigError(f"augmentation makes images of {ours}, the model takes {theirs}; give both one size")
        self._loader.check()


@dataclass
class _Order:
    """The image at each place of an epoch.

    Shards are read nearly in order: whole shards are permuted, and images within windows of `buffer` places. So a
    reader keeps at most one window, and any place can be found directly.

    With R repeats an epoch shows the first D = ⌈N / R⌉ images of its order. Place R·j + r has copy r of number
    (j − r·apart) mod D of them: copies of one image are R·apart + 1 places apart, so mostly in one step, as DeiT has
    them; never neighbours, so no pair is mixed from two copies; and in each copy beside another image.
    """

    count: int
    seed: int
    is_shuffled: bool
    shards: Places | None  # the shard of each image
    buffer: int
    repeats: int = 1
    _known: tuple[int, Places] | None = None

    @property
    def kind(self) -> str:
        """A description of the order; orders that differ have different ones."""
        again = "" if self.repeats == 1 else f", each {self.repeats} times"
        if not self.is_shuffled:
            return "as it lies" + again
        return ("shuffled" if self.shards is None else f"shuffled in windows of {self.buffer}") + again

    @property
    def distinct(self) -> int:
        """The number of images that an epoch shows."""
        return -(-self.count // self.repeats)

    @cached_property
    def apart(self) -> int:
        """Less than D, so that neighbours r, r + 1 differ; and so that R·j + R − 1 differs from R·(j + 1)."""
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
        if self._known is None or self._known[0] != epoch:
            self._known = epoch, self._permutation(epoch)
        return self._known[1][numbers]

    def _permutation(self, epoch: int) -> Places:
        if self.shards is None:
            return permutation(self.seed, "order", epoch, self.count)
        _, shard = np.unique(self.shards, return_inverse=True)
        rank_of = np.argsort(permutation(self.seed, "shards", epoch, int(shard.max()) + 1))
        order = np.argsort(rank_of[shard], kind="stable")
        within = uniform(self.seed, "order", epoch, order)[:, 0]
        window = np.arange(self.count) // self.buffer
        return order[np.lexsort((within, window))]


def _shards(data: ImageSet) -> Places | None:
    """The shard of each image, or None for a source without shards."""
    return data.source.file[data.ids].astype(np.int64) if isinstance(data.source, Shards) else None


def _drawn_ids(ids: Places, copies: Places | None) -> Places:
    return ids if copies is None else ids + copies * COPY_ID_STEP
