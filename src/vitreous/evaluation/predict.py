"""`vitreous.predict`: a model's answers for any number of images, in a stream."""

from __future__ import annotations

import itertools
import os
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, NoReturn

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from vitreous.errors import ConfigError, DataError
from vitreous.evaluation import calibration
from vitreous.evaluation.inference import Precision, Underway, choose_batch, in_flight, ready
from vitreous.evaluation.tie_breaking import best_classes
from vitreous.images import open_data
from vitreous.images.imageset import ImageSet
from vitreous.images.pixels import decode
from vitreous.images.sources import image_file
from vitreous.images.sources.fashion import FASHION_NAME as FASHION
from vitreous.images.sources.paths import cannot_read, find_place, is_image_name, read_image_file, walk
from vitreous.machine import choose_device, core_count
from vitreous.models.model import Model, unwrapped
from vitreous.report.page import Bar, Note, Table, Text, fragment
from vitreous.weights.load_model import load_trained
from vitreous.words import none_of_these, percent

Picture = str | os.PathLike[str] | NDArray[Any] | Image.Image | ImageSet
Read = Callable[[], NDArray[np.uint8]]  # H W C
MAX_ANSWERS_SHOWN = 20  # in a notebook


@dataclass(frozen=True)
class Prediction:
    """A model's most likely classes for one image with calibrated probabilities, best first.

    error: why an unreadable image has no answer.
    """

    name: str
    labels: tuple[str, ...] = ()
    classes: tuple[int, ...] = ()  # their numbers
    probabilities: tuple[float, ...] = ()
    score: float | None = None  # how much the image resembles what the model learned
    is_unlike: bool = False  # the score is below the model's threshold: none of these
    answers: Literal["one", "several"] = "one"
    error: str | None = None
    is_unsure: bool = False  # the confidence is below that of trusted answers

    @property
    def said(self) -> tuple[str, ...]:
        """The answer: the first label; with several labels, those of at least 1/2; none if `is_unlike`."""
        if self.error is not None or self.is_unlike:
            return ()
        if self.answers == "one":
            return self.labels[:1]
        return tuple(name for name, p in zip(self.labels, self.probabilities, strict=True) if p >= 0.5)

    @property
    def phrase(self) -> str:
        """The answer in words, without confidence."""
        return ", ".join(self.said) or none_of_these(self.labels[0])

    def to_json(self) -> dict[str, Any]:
        if self.error is not None:
            return {"name": self.name, "error": self.error}
        rows = zip(self.labels, self.classes, self.probabilities, strict=True)
        top = [{"label": label, "class": number, "probability": p} for label, number, p in rows]
        body = {"name": self.name, "said": list(self.said), "is_unlike": self.is_unlike, "is_unsure": self.is_unsure}
        return body | {"score": self.score, "top": top}

    def __str__(self) -> str:
        if self.error is not None:
            return f"{self.name}: {self.error}"
        if not self.said:
            return f"{self.name}: {self.phrase}"
        rows = zip(self.labels, self.probabilities, strict=True)
        top = ", ".join(f"{name} {percent(p)}" for name, p in rows)
        return f"{self.name}: {'unsure: ' * self.is_unsure}{top}"

    __repr__ = __str__  # at a prompt

    def _repr_html_(self) -> str:
        if self.error is not None:
            return fragment([Note(f"{self.name}: {self.error}", "bad")])
        answer = Text(f"{self.name}: {_marked(self)}")
        if self.is_unlike:
            return fragment([answer])
        pairs = zip(self.labels, self.probabilities, strict=True)
        rows: list[list[str | Bar]] = [[label, Bar(percent(p), p)] for label, p in pairs]
        return fragment([answer, Table(["class", "chance"], rows)])


class Answers(Iterator[Prediction]):
    """Predictions as they come; memory holds a few batches. A notebook shows the first ones without consuming them."""

    def __init__(self, stream: Generator[Prediction]):
        self._stream, self._waiting = stream, deque[Prediction]()

    def __next__(self) -> Prediction:
        return self._waiting.popleft() if self._waiting else next(self._stream)

    def __repr__(self) -> str:
        return "answers, computed as they are asked for: go through them in a loop, or make a list"

    def close(self) -> None:
        """Stop reading images."""
        self._waiting.clear()
        self._stream.close()

    def _repr_html_(self) -> str:
        self._waiting.extend(itertools.islice(self._stream, max(MAX_ANSWERS_SHOWN + 1 - len(self._waiting), 0)))
        shown = list(self._waiting)[:MAX_ANSWERS_SHOWN]
        if not shown:
            return fragment([Text("No answers are left; ask again to see them again.")])
        rows = [[each.name, each.error, ""] if each.error is not None else _row(each) for each in shown]
        more = "More come; go through them in a loop, or make a list." if len(self._waiting) > len(shown) else ""
        return fragment([Table(["image", "answer", "chance"], rows, caption=more)])


def _row(answer: Prediction) -> list[str | Bar]:
    if not answer.said:
        return [answer.name, answer.phrase, ""]
    return [answer.name, _marked(answer), Bar(percent(answer.probabilities[0]), answer.probabilities[0])]


def _marked(answer: Prediction) -> str:
    return f"{answer.phrase}{' (unsure)' * (answer.is_unsure and bool(answer.said))}"


def predict(
    model: Model | str | os.PathLike[str],
    images: Picture | Iterable[Picture],
    *,
    top: int = 5,
    device: torch.device | str | None = None,
    batch: int | None = None,
    workers: int | None = None,
    precision: Precision = "auto",
    untrained: bool = False,
) -> Answers:
    """Predict images one by one, in order; memory holds a few batches.

    model: a model, or what `vitreous.load` takes; random weights are refused there, unless `untrained`.
    images: a file, a folder (searched through), a pattern, a set (`fashion`, a zip), an array H W C of uint8, a Pillow
    image, or any number of these. An unreadable image gets a Prediction with its `error`.
    """
    if not isinstance(top, int) or top < 1:
        raise ConfigError(f"top={top} asks for no class; give 1 or more")
    if batch is not None and batch < 1:
        raise ConfigError(f"a batch of {batch} holds no image; say 1 or more, or leave it out")
    if isinstance(model, str | os.PathLike):
        model = load_trained(model, untrained=untrained)
    place = choose_device(device, near=model)
    size = choose_batch(unwrapped(model).preprocess.size, place) if batch is None else batch
    return Answers(_stream(model, pictures_of(images), top, place, size, workers, precision))


def _stream(
    model: Model,
    items: Iterator[tuple[str, Read]],
    top: int,
    device: torch.device,
    batch: int,
    workers: int | None,
    precision: Precision,
) -> Generator[Prediction]:
    inner = unwrapped(model)
    rule, names = inner.preprocess, class_names(inner)

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

    def begun() -> Iterator[tuple[list[tuple[str, str | None]], Underway | None]]:
        """Names and errors of each batch, and the answers to the images that could be read."""
        reading = in_flight((pool.submit(read, item) for item in items), 2 * batch)
        while part := [future.result() for future in itertools.islice(reading, batch)]:
            good = [pixels for _, pixels in part if not isinstance(pixels, str)]
            rows = [(name, pixels if isinstance(pixels, str) else None) for name, pixels in part]
            stacked = torch.from_numpy(np.stack(good)).permute(0, 3, 1, 2).contiguous() if good else None  # B C H W
            yield rows, None if stacked is None else Underway(answer(stacked))

    with (
        ready(model, device, precision) as answer,
        ThreadPoolExecutor(min(core_count(), 8) if workers is None else max(workers, 1), "vitreous-predict") as pool,
    ):
        try:
            for rows, underway in in_flight(begun(), 1):
                values = iter(() if underway is None else underway.values())
                for name, error in rows:
                    is_read = error is None
                    yield answer_of(inner, names, name, next(values), top) if is_read else Prediction(name, error=error)
        finally:
            pool.shutdown(cancel_futures=True)  # a caller who stops early waits for nothing


def class_names(model: Model) -> tuple[str, ...]:
    return model.labels or tuple(f"class {k}" for k in range(model.config.readout.classes))


def answer_of(model: Model, names: tuple[str, ...], name: str, answer: NDArray[np.float32], top: int) -> Prediction:
    """answer: K logits and the score, as `inference.ready` gives them."""
    spread = calibration.sigmoid if model.answers == "several" else calibration.softmax
    z, score = answer[:-1], float(answer[-1])
    p = spread(z, model.temperature)
    best = best_classes(z, top)
    is_unlike = model.threshold is not None and score < model.threshold
    labels, shares = tuple(names[k] for k in best), tuple(float(p[k]) for k in best)
    is_unsure = model.track_record is not None and not is_unlike and model.track_record.is_unsure(shares[0])
    return Prediction(name, labels, tuple(best), shares, score, is_unlike, model.answers, is_unsure=is_unsure)


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
        name = str(getattr(one, "filename", "") or f"image {i}")
        return iter([(name, lambda: np.array(image_file.upright(one).convert("RGB")))])
    if isinstance(one, np.ndarray) and one.ndim == 4:
        return ((f"image {k}", partial(one.__getitem__, k)) for k in range(len(one)))
    if isinstance(one, np.ndarray):
        return iter([(f"image {i}", lambda: one)])
    raise DataError(
        f"a {type(one).__name__} is not an image; give files, folders, arrays H×W×C of uint8, Pillow images"
    )


def _named(text: str, *, is_alone: bool) -> Iterator[tuple[str, Read]]:
    """One file, the images below a folder, those that a pattern matches, or those of a set."""
    path = Path(text).expanduser()
    if path.is_dir():
        return _below(path)
    if path.is_file() and (is_image_name(path.name) or not _is_set(text)):
        return iter([_file(str(path))])
    if not path.exists() and not is_alone and not _is_set(text) and not any(c in text for c in "*?["):
        return iter([_file(str(path))])  # its own row reports that it is missing
    if _is_set(text):
        return _given(open_data.open(text), 0)
    return (_file(name) for name in find_place(text).files if is_image_name(name))


def _is_set(text: str) -> bool:
    return text == FASHION or text.lower().endswith((".zip", ".tar", ".parquet", ".npz", ".csv", ".tsv"))


def _below(folder: Path) -> Iterator[tuple[str, Read]]:
    for root, files, error in walk(folder):
        if error is not None:
            yield root, partial(_refuse, root, error)
        for name in files:
            if is_image_name(name):
                yield _file(os.path.join(root, name))  # noqa: PTH118  pathlib is slow for a path a thousand folders long


def _refuse(folder: str, error: OSError) -> NoReturn:
    raise cannot_read(folder, error)


def _file(name: str) -> tuple[str, Read]:
    return name, lambda: image_file.decode(read_image_file(name), name)
