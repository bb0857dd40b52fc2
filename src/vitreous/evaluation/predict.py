"""A model's output: logits of a whole set, and predictions for any number of images in a stream.

N images   K classes
"""

from __future__ import annotations

import itertools
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, NoReturn, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor, nn

from vitreous.errors import ConfigError, DataError
from vitreous.evaluation import calibration
from vitreous.evaluation.lanes import in_lanes, may_part
from vitreous.evaluation.ties import best_classes
from vitreous.images import open_data
from vitreous.images.batches.batches import Batches, Coverage
from vitreous.images.imageset import ImageSet
from vitreous.images.pixels import decode
from vitreous.images.sources import picture
from vitreous.images.sources.fashion import FASHION_NAME as FASHION
from vitreous.images.sources.finding import cannot_read, find_place, is_picture, read_picture, walk
from vitreous.machine import choose_device, core_count, device_of
from vitreous.models.config import Size
from vitreous.models.model import Model, unwrapped
from vitreous.ranks import Ranks, gather, here

__all__ = [
    "BATCHES_IN_FLIGHT",
    "Logits",
    "Prediction",
    "Underway",
    "answer_of",
    "at_work",
    "choose_batch",
    "class_names",
    "in_parts",
    "logits",
    "make_batches",
    "pictures_of",
    "predict",
    "ready",
]

Precision = Literal["auto", "float32", "bfloat16"]
Progress = Callable[[int, int], None]
T = TypeVar("T")
BATCHES_IN_FLIGHT = 4  # the host waits if the GPU is further behind


@dataclass(frozen=True, eq=False)
class Logits:
    """A model's logits for a set, in its order."""

    values: NDArray[np.float32]  # N K
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
    if batches.augment is not None or batches.shuffle or batches.epochs != 1:
        raise ConfigError("logits need unaugmented images; give Batches without augment, shuffle and further epochs")
    total = len(batches.data)
    order: list[NDArray[np.int64]] = []
    parts: list[NDArray[np.float32]] = []
    done = 0
    with ready(model, place, precision) as answer:
        waiting: deque[Underway] = deque()
        for part in batches:
            if len(part):
                order.append(part.places)
                waiting.append(Underway(answer(part.images)))
            if len(waiting) > BATCHES_IN_FLIGHT:
                parts.append(waiting.popleft().values())
            done += len(part)
            if progress is not None:
                progress(done, total)
        parts += [each.values() for each in waiting]
    classes = unwrapped(model).config.readout.classes
    values = np.concatenate(parts) if parts else np.zeros((0, classes), np.float32)
    places = np.concatenate(order) if order else np.zeros(0, np.int64)
    if batches.ranks.world > 1:
        shares = gather((places, values))
        places, values = (np.concatenate([share[i] for share in shares]) for i in (0, 1))
        by_place = np.argsort(places, kind="stable")
        places, values = places[by_place], values[by_place]
    return Logits(values, batches.data.labels[places], batches.data.ids[places], places, batches.coverage())


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
    return Batches(
        data,
        batch=-(-batch // world) * world,
        preprocess=rule,
        device=device,
        rank=ranks.rank,
        world=world,
        workers=workers,
        skip_unreadable=skip,
    )


@contextmanager
def ready(
    model: nn.Module, device: torch.device, precision: Precision = "auto"
) -> Iterator[Callable[[Tensor], Tensor]]:
    """Yield a function from bytes B C H W to logits B K on the device; restores the model afterwards."""
    inner = unwrapped(model)
    if not inner.config.readout.classes:
        raise ConfigError("the model has no head, so it answers nothing; fit one: vitreous fit DATA --weights MODEL")
    network = model.module if isinstance(model, nn.parallel.DistributedDataParallel) else model
    kind = next(inner.parameters()).dtype
    with at_work(model, device, precision) as (normalised, cast):

        @torch.inference_mode()
        def answer(images: Tensor) -> Tensor:
            x = normalised(images)
            with cast():
                if network is not inner or kind != torch.float32:
                    return network(x.to(kind)).float()
                features = inner.features(x)
            return inner.logits(inner.head(features.float()))  # in bfloat16 the best classes would often tie

        go = in_lanes if device.type == "cpu" and network is inner and may_part(inner) else in_parts
        yield lambda images: go(answer, images, lambda parts: torch.cat(list(parts)))


@contextmanager
def at_work(
    model: nn.Module, device: torch.device, precision: Precision = "auto"
) -> Iterator[tuple[Callable[[Tensor], Tensor], Callable[[], Any]]]:
    """Put the model on the device in eval mode; restore it afterwards.

    Yields a function from bytes B C H W to its float32 input, and the autocast to run it under.
    """
    inner = unwrapped(model)
    network = model.module if isinstance(model, nn.parallel.DistributedDataParallel) else model
    was_training = [(module, module.training) for module in inner.modules()]
    was_on = device_of(inner)
    rule = inner.preprocess
    mean, std = (_sent(torch.tensor(v, dtype=torch.float32).view(-1, 1, 1), device) for v in (rule.mean, rule.std))
    cast = _autocast(device, precision)

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


def _sent(x: Tensor, device: torch.device) -> Tensor:
    """Copy to the device without waiting."""
    if device.type == "cuda" and x.device.type == "cpu":
        x = x.pin_memory()
    return x.to(device, non_blocking=True)


def _autocast(device: torch.device, precision: Precision) -> Callable[[], Any]:
    if precision not in ("auto", "float32", "bfloat16"):
        raise ConfigError(f"precision {precision!r} is unknown; give auto, float32 or bfloat16")
    is_able = device.type == "cuda" and torch.cuda.is_bf16_supported()
    if precision == "bfloat16" and not is_able:
        raise ConfigError(f"bfloat16 on {device.type} is slow or missing here; say precision=float32 or auto")
    if not is_able or precision == "float32":
        return nullcontext
    return lambda: torch.autocast("cuda", torch.bfloat16)


def in_parts(answer: Callable[[Tensor], T], images: Tensor, join: Callable[[Sequence[T]], T]) -> T:
    """Split the batch in halves when the device runs out of memory."""
    try:
        return answer(images)
    except torch.OutOfMemoryError:
        if len(images) == 1:
            raise DataError("one image is more than the device's memory holds; say device=cpu") from None
    torch.cuda.empty_cache()
    half = len(images) // 2
    return join([in_parts(answer, images[:half], join), in_parts(answer, images[half:], join)])


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


# One image after the other --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Prediction:
    """A model's most likely classes for one image with calibrated probabilities, best first.

    error: why an unreadable image has no answer.
    """

    name: str
    labels: tuple[str, ...] = ()
    classes: tuple[int, ...] = ()  # their numbers
    probabilities: tuple[float, ...] = ()
    score: float | None = None  # how much the image resembles the training data
    is_unlike: bool = False  # the score is below the model's threshold: none of these
    answers: Literal["one", "several"] = "one"
    error: str | None = None

    @property
    def said(self) -> tuple[str, ...]:
        """The answer: the first label; with several labels, those of at least 1/2; none if `is_unlike`."""
        if self.error is not None or self.is_unlike:
            return ()
        if self.answers == "one":
            return self.labels[:1]
        return tuple(name for name, p in zip(self.labels, self.probabilities, strict=True) if p >= 0.5)

    def to_json(self) -> dict[str, Any]:
        if self.error is not None:
            return {"name": self.name, "error": self.error}
        rows = zip(self.labels, self.classes, self.probabilities, strict=True)
        top = [{"label": label, "class": number, "probability": p} for label, number, p in rows]
        body = {"name": self.name, "said": list(self.said), "is_unlike": self.is_unlike, "score": self.score}
        return body | {"top": top}

    def __str__(self) -> str:
        if self.error is not None:
            return f"{self.name}: {self.error}"
        top = ", ".join(f"{name} {100 * p:.1f} %" for name, p in zip(self.labels, self.probabilities, strict=True))
        return f"{self.name}: {top}" if self.said else f"{self.name}: none of these ({top})"


Picture = str | os.PathLike[str] | NDArray[Any] | Image.Image | ImageSet
Read = Callable[[], NDArray[np.uint8]]  # H W C


def predict(
    model: Model,
    images: Picture | Iterable[Picture],
    *,
    top: int = 5,
    device: torch.device | str | None = None,
    batch: int | None = None,
    workers: int | None = None,
    precision: Precision = "auto",
) -> Iterator[Prediction]:
    """Predict images one by one, in order; memory holds a few batches.

    images: a file, a folder (searched through), a pattern, a set (`fashion`, a zip), an array H W C of uint8, a Pillow
    image, or any number of these. An unreadable image gets a Prediction with its `error`.
    """
    if not isinstance(top, int) or top < 1:
        raise ConfigError(f"top={top} asks for no class; give 1 or more")
    if batch is not None and batch < 1:
        raise ConfigError(f"a batch of {batch} holds no image; say 1 or more, or leave it out")
    items = pictures_of(images)
    place = choose_device(device, near=model)
    return _stream(unwrapped(model), model, items, top, place, batch, workers, precision)


def _stream(
    inner: Model,
    model: nn.Module,
    items: Iterator[tuple[str, Read]],
    top: int,
    device: torch.device,
    batch: int | None,
    workers: int | None,
    precision: Precision,
) -> Iterator[Prediction]:
    rule = inner.preprocess
    size = choose_batch(rule.size, device) if batch is None else batch
    names = class_names(inner)
    waiting: deque[tuple[list[tuple[str, str | None]], Underway | None]] = deque()

    def read(item: tuple[str, Read]) -> tuple[str, NDArray[np.uint8] | str]:
        name, load = item
        try:
            return name, decode.finish(load(), rule)
        except DataError as error:
            return name, str(error)
        except OSError as error:
            return name, f"{name} cannot be read: {error.strerror or error}; check that it is there and yours"
        except MemoryError:
            return name, f"{name} is more than the memory here holds; shrink it"

    def finished() -> Iterator[Prediction]:
        rows, underway = waiting.popleft()
        values = iter(() if underway is None else underway.values())
        for name, error in rows:
            yield (
                Prediction(name, error=error) if error is not None else answer_of(inner, names, name, next(values), top)
            )

    with (
        ready(model, device, precision) as answer,
        ThreadPoolExecutor(min(core_count(), 8) if workers is None else max(workers, 1), "vitreous-predict") as pool,
    ):
        try:
            found = _ahead(pool, read, items, 2 * size)
            while part := list(itertools.islice(found, size)):
                good = [pixels for _, pixels in part if not isinstance(pixels, str)]
                rows = [(name, pixels if isinstance(pixels, str) else None) for name, pixels in part]
                waiting.append((rows, Underway(answer(_stacked(good))) if good else None))
                if len(waiting) > 1:
                    yield from finished()
            while waiting:
                yield from finished()
        finally:
            pool.shutdown(cancel_futures=True)  # a caller who stops early waits for nothing


def class_names(model: Model) -> tuple[str, ...]:
    return model.labels or tuple(f"class {k}" for k in range(model.config.readout.classes))


def answer_of(model: Model, names: tuple[str, ...], name: str, z: NDArray[np.float32], top: int) -> Prediction:
    spread = calibration.sigmoid if model.answers == "several" else calibration.softmax
    p, score = spread(z, model.temperature), float(calibration.score(z[None])[0])
    best = best_classes(z, top)
    is_unlike = model.threshold is not None and score < model.threshold
    labels, shares = tuple(names[k] for k in best), tuple(float(p[k]) for k in best)
    return Prediction(name, labels, tuple(best), shares, score, is_unlike, model.answers)


def _stacked(pixels: list[NDArray[np.uint8]]) -> Tensor:
    return torch.from_numpy(np.stack(pixels)).permute(0, 3, 1, 2).contiguous()  # B C H W


def _ahead(
    pool: ThreadPoolExecutor,
    work: Callable[[tuple[str, Read]], tuple[str, NDArray[np.uint8] | str]],
    items: Iterator[tuple[str, Read]],
    count: int,
) -> Iterator[tuple[str, NDArray[np.uint8] | str]]:
    """Yield results in order, with `count` started ahead."""
    begun: deque[Future[tuple[str, NDArray[np.uint8] | str]]] = deque()
    for item in items:
        begun.append(pool.submit(work, item))
        if len(begun) > count:
            yield begun.popleft().result()
    while begun:
        yield begun.popleft().result()


# Which images --------------------------------------------------------------------------------------------------


def pictures_of(images: Picture | Iterable[Picture]) -> Iterator[tuple[str, Read]]:
    """(name, how to read it) of every image; refuses an empty list before any work."""
    if isinstance(images, str | os.PathLike):
        found = _named(os.fspath(images), is_alone=True)
    elif isinstance(images, np.ndarray | Image.Image | ImageSet):
        found = _given(images, 0)
    else:
        found = itertools.chain.from_iterable(
            _named(os.fspath(one), is_alone=False) if isinstance(one, str | os.PathLike) else _given(one, i)
            for i, one in enumerate(images)
        )
    first = next(found, None)
    if first is None:
        what = os.fspath(images) if isinstance(images, str | os.PathLike) else "what was named"
        raise DataError(f"{what} holds no images; name files, folders or patterns of images")
    return itertools.chain([first], found)


def _given(one: Any, i: int) -> Iterator[tuple[str, Read]]:
    if isinstance(one, ImageSet):
        return ((one.name(k), partial(one.read, k)) for k in range(len(one)))
    if isinstance(one, Image.Image):
        return iter([(str(getattr(one, "filename", "") or f"image {i}"), lambda: _pixels(one))])
    if isinstance(one, np.ndarray) and one.ndim == 4:
        return ((f"image {k}", partial(one.__getitem__, k)) for k in range(len(one)))
    if isinstance(one, np.ndarray):
        return iter([(f"image {i}", lambda: one)])
    raise DataError(
        f"a {type(one).__name__} is not an image; give files, folders, arrays H×W×C of uint8, Pillow images"
    )


def _pixels(image: Image.Image) -> NDArray[np.uint8]:
    return np.array(picture.upright(image).convert("RGB"))


def _named(text: str, *, is_alone: bool) -> Iterator[tuple[str, Read]]:
    """One file, the images below a folder, those that a pattern matches, or those of a set."""
    path = Path(text).expanduser()
    if path.is_dir():
        return _below(path)
    if path.is_file() and (is_picture(path.name) or not _is_set(text)):
        return iter([_file(str(path))])
    if not path.exists() and not is_alone and not _is_set(text) and not any(c in text for c in "*?["):
        return iter([_file(str(path))])  # its own row reports that it is missing
    if _is_set(text):
        return _given(open_data.open(text), 0)
    return (_file(name) for name in find_place(text).files if is_picture(name))


def _is_set(text: str) -> bool:
    return text == FASHION or text.lower().endswith((".zip", ".tar", ".parquet", ".npz", ".csv", ".tsv"))


def _below(folder: Path) -> Iterator[tuple[str, Read]]:
    for root, files, error in walk(folder):
        if error is not None:
            yield root, partial(_refuse, root, error)
        for name in files:
            if is_picture(name):
                yield _file(os.path.join(root, name))  # noqa: PTH118  pathlib is slow for a path a thousand folders long


def _refuse(folder: str, error: OSError) -> NoReturn:
    raise cannot_read(folder, error)


def _file(name: str) -> tuple[str, Read]:
    return name, lambda: picture.decode(read_picture(name), name)
