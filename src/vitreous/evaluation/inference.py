"""How a network answers many images: on any device, a part at a time, and the logits of a whole set.

On a CPU, each core takes a few images through all layers by itself. When all cores share each layer, they wait for each
other at every one, and tokens leave their caches. DeiT-Ti on two cores, images/s: batches of 64 give 64, batches of 16
give 82, 8 images per core give 96, and decoding continues meanwhile.

N images   K classes
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, Literal, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from vitreous.errors import ConfigError, DataError
from vitreous.images.batches.batches import Batches, Coverage, Loading, Order
from vitreous.images.imageset import ImageSet
from vitreous.machine import choose_device, device_of
from vitreous.models.config import Size
from vitreous.models.model import Model, unwrapped
from vitreous.ranks import Ranks, gather, here

Precision = Literal["auto", "float32", "bfloat16"]
Progress = Callable[[int, int], None]
T = TypeVar("T")
BATCHES_IN_FLIGHT = 4  # the host waits if the GPU is further behind
IMAGES_PER_CORE = 8  # at once; 4 and 16 were slower


@dataclass(frozen=True, eq=False)
class Logits:
    """A model's logits for a set, in its order."""

    values: NDArray[np.float32]  # N K
    scores: NDArray[np.float32]  # N: how much each image resembles what the model learned
    labels: NDArray[np.int64]  # N or N K, as the set numbers its classes
    ids: NDArray[np.int64]  # N: image numbers in the source
    places: NDArray[np.int64]  # N: image numbers in the set; unreadable images are missing
    coverage: Coverage

    def __len__(self) -> int:
        return len(self.values)


def logits(
    model: nn.Module,
    data: ImageSet | Batches,
    *,
    batch: int | None = None,
    device: torch.device | str | None = None,
    workers: int | None = None,
    precision: Precision = "auto",
    skip_unreadable: bool = False,
    ranks: Ranks | None = None,
    progress: Progress | None = None,
) -> Logits:
    """The model's logits for every image of a set, each once.

    data: a set; or Batches of one without augmentation, which keep resident images on the device between calls.
    device: None is the model's own, or a GPU if there is one and the model is on the CPU; the model moves back
    afterwards.  precision: auto is bfloat16 autocast on GPUs that support it; the head stays float32.
    ranks: None is all that torchrun started; each reads its share, and all return everything.
    """
    place = choose_device(device, near=model)
    batches = data
    if not isinstance(batches, Batches):
        batches = make_batches(model, batches, place, batch, workers, skip_unreadable, ranks or here())
    if batches.loading.augment is not None or batches.order.shuffle or batches.order.epochs != 1:
        raise ConfigError("logits need unaugmented images; give Batches without augment, shuffle and further epochs")
    order: list[NDArray[np.int64]] = [np.zeros(0, np.int64)]
    parts: list[NDArray[np.float32]] = [np.zeros((0, unwrapped(model).config.readout.classes + 1), np.float32)]

    def begun(answer: Callable[[Tensor], Tensor]) -> Iterator[Underway]:
        done = 0
        for part in batches:
            if len(part):
                order.append(part.places)
                yield Underway(answer(part.images))
            done += len(part)
            if progress is not None:
                progress(done, len(batches.data))

    with ready(model, place, precision) as answer:
        parts += [each.values() for each in in_flight(begun(answer), BATCHES_IN_FLIGHT)]
    places, values = np.concatenate(order), np.concatenate(parts)
    if batches.ranks.world > 1:
        shares = gather((places, values))
        places, values = (np.concatenate([share[i] for share in shares]) for i in (0, 1))
        by_place = np.argsort(places, kind="stable")
        places, values = places[by_place], values[by_place]
    labels, ids = batches.data.labels[places], batches.data.ids[places]
    return Logits(values[:, :-1], values[:, -1], labels, ids, places, batches.coverage())


def choose_batch(size: Size, device: torch.device) -> int:
    """Batch size: large enough to fill a GPU; small on a CPU, whose caches are small."""
    if device.type == "cpu":
        return 32
    return 1 << min(max((2**24 // (size[0] * size[1])).bit_length() - 1, 4), 10)


def make_batches(
    model: nn.Module,
    data: ImageSet,
    device: torch.device,
    batch: int | None,
    workers: int | None,
    skip: bool,
    ranks: Ranks,
) -> Batches:
    rule, world = unwrapped(model).preprocess, ranks.world
    batch = choose_batch(rule.size, device) if batch is None else batch
    on_unreadable: Literal["skip", "raise"] = "skip" if skip else "raise"
    return Batches(
        data,
        Order(batch=-(-batch // world) * world, ranks=ranks),
        Loading(preprocess=rule, device=device, workers=workers, on_unreadable=on_unreadable),
    )


# The network at work -----------------------------------------------------------------------------------------------


@contextmanager
def ready(
    model: nn.Module, device: torch.device, precision: Precision = "auto"
) -> Iterator[Callable[[Tensor], Tensor]]:
    """Yield a function from bytes B C H W to answers B K + 1 on the device; restores the model afterwards.

    An answer is the logits of an image and, last, its score: how much it resembles what the model learned.
    """
    inner = unwrapped(model)
    if not inner.config.readout.classes:
        raise ConfigError("the model has no head, so it answers nothing; fit one: vitreous fit DATA --weights MODEL")
    network = _on_this_rank(model)
    kind = next(inner.parameters()).dtype
    with at_work(model, device, precision) as (normalised, cast):

        @torch.inference_mode()
        def answer(images: Tensor) -> Tensor:
            x = normalised(images)
            with cast():
                if network is not inner and inner.familiarity is None:  # compiled, say
                    z = network(x.to(kind)).float()
                    return torch.cat([z, z.amax(1, keepdim=True)], 1)
                features = inner.features(x.to(kind))
            return with_score(inner, x, features)

        go = on_all_cores if device.type == "cpu" and network is inner and may_split(inner) else in_parts
        yield lambda images: go(answer, images, torch.cat)


def with_score(model: Model, images: Tensor, features: Tensor) -> Tensor:
    """Logits and score, B K + 1.  images: B C H W, normalised.  features: B D, maybe in bfloat16.

    The head computes in the type of its weights: in bfloat16 the best classes would often tie.
    """
    z = model.logits(model.head(features.to(next(model.parameters()).dtype))).float()
    return torch.cat([z, model.score(images, features, z)[:, None]], 1)


@contextmanager
def at_work(
    model: nn.Module, device: torch.device, precision: Precision = "auto"
) -> Iterator[tuple[Callable[[Tensor], Tensor], Callable[[], Any]]]:
    """Put the model on the device in eval mode; restore it afterwards.

    Yields a function from bytes B C H W to its float32 input, and the autocast to run it under.
    """
    inner = unwrapped(model)
    network = _on_this_rank(model)
    was_training = [(module, module.training) for module in inner.modules()]
    was_on = device_of(inner)
    rule = inner.preprocess
    mean, std = (_sent(torch.tensor(v, dtype=torch.float32).view(-1, 1, 1), device) for v in (rule.mean, rule.std))
    cast = partial(torch.autocast, "cuda", torch.bfloat16) if is_bfloat16(device, precision) else nullcontext

    def normalised(images: Tensor) -> Tensor:
        return _sent(images, device).to(torch.float32, copy=True).div_(255).sub_(mean).div_(std)

    try:
        if was_on != device:
            inner.to(device)
        network.eval()
        yield normalised, cast
    finally:
        for module, was in was_training:
            module.training = was
        network.training = inner.training
        if was_on != device:
            inner.to(was_on)


def _on_this_rank(model: nn.Module) -> nn.Module:
    return model.module if isinstance(model, nn.parallel.DistributedDataParallel) else model


def _sent(x: Tensor, device: torch.device) -> Tensor:
    """Copy to the device without waiting."""
    if device.type == "cuda" and x.device.type == "cpu":
        x = x.pin_memory()
    return x.to(device, non_blocking=True)


def is_bfloat16(device: torch.device, precision: Precision) -> bool:
    """True if the network computes in bfloat16 there; refuses a precision that the device lacks."""
    if precision not in ("auto", "float32", "bfloat16"):
        raise ConfigError(f"precision {precision!r} is unknown; give auto, float32 or bfloat16")
    is_able = device.type == "cuda" and torch.cuda.is_bf16_supported()
    if precision == "bfloat16" and not is_able:
        raise ConfigError(f"bfloat16 on {device.type} is slow or missing here; say precision=float32 or auto")
    return is_able and precision != "float32"


class Underway:
    """Numbers on their way to the host; reading them waits for this copy alone."""

    def __init__(self, values: Tensor):
        self.event: torch.cuda.Event | None = None
        if values.is_cuda:
            self.host = torch.empty(values.shape, dtype=torch.float32, pin_memory=True)
            self.host.copy_(values, non_blocking=True)
            self.event = torch.cuda.Event()
            self.event.record()
        else:
            self.host = values.cpu()

    def values(self) -> NDArray[np.float32]:
        if self.event is not None:
            self.event.synchronize()
            return self.host.numpy().copy()  # free the pinned buffer early
        return self.host.numpy()


def in_flight(items: Iterable[T], count: int) -> Iterator[T]:
    """Yield the items in order; `count` further items begin before each is yielded."""
    waiting: deque[T] = deque()
    for item in items:
        waiting.append(item)
        if len(waiting) > count:
            yield waiting.popleft()
    yield from waiting


# A batch in parts ---------------------------------------------------------------------------------------------------


def in_parts(answer: Callable[[Tensor], T], images: Tensor, join: Callable[[list[T]], T]) -> T:
    """Split the batch in halves when the device runs out of memory."""
    try:
        return answer(images)
    except torch.OutOfMemoryError:
        if len(images) == 1:
            raise DataError("one image is more than the device's memory holds; say device=cpu") from None
    torch.cuda.empty_cache()
    half = len(images) // 2
    return join([in_parts(answer, images[:half], join), in_parts(answer, images[half:], join)])


def may_split(model: nn.Module) -> bool:
    """True if several threads may run the model: no hook expects all images of a batch."""
    return not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def on_all_cores(answer: Callable[[Tensor], T], images: Tensor, join: Callable[[list[T]], T]) -> T:
    """answer(images), a few at a time on each of torch's cores."""
    cores = torch.get_num_threads()
    each = min(-(-len(images) // cores), IMAGES_PER_CORE)
    if images.device.type != "cpu" or cores == 1 or each == len(images):
        return answer(images)

    def alone(part: Tensor) -> T:
        torch.set_num_threads(1)  # OpenMP keeps this per thread
        return answer(part)

    try:
        return join(list(_pool(cores).map(alone, images.split(each))))
    finally:
        torch.set_num_threads(cores)  # MKL keeps this for all threads


@cache
def _pool(cores: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(cores, "vitreous-core")


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pool.cache_clear)  # a fork does not copy threads
