"""`vitreous predict --explain`: for each answer, a picture that lights up the patches it came from."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePath
from typing import Any

from PIL import Image
from torch import nn

from vitreous.errors import ConfigError, DataError, ExistsError
from vitreous.evaluation.predict import Prediction, pictures_of
from vitreous.files import atomic_write
from vitreous.images.pixels import decode
from vitreous.measures.explain import look_of, overlay
from vitreous.models.model import unwrapped
from vitreous.models.pooling import find_pool
from vitreous.models.vit import ViT


def explained(
    model: nn.Module, images: Any, answers: Iterable[Prediction], folder: str | os.PathLike[str]
) -> Iterator[Prediction]:
    """Yield the answers, each after its picture is written into the folder, which must be new or empty."""
    network = unwrapped(model)
    if not isinstance(network, ViT):
        raise ConfigError("the model is a network of convolutions and has no attention to show; leave --explain out")
    if silence := find_pool(network)[0].silence:
        raise ConfigError(f"{silence}, so nothing can be explained; leave --explain out")
    place = Path(folder).expanduser()
    if place.exists() and (not place.is_dir() or any(place.iterdir())):
        raise ExistsError(f"{place} exists and is not empty; name another folder for the pictures")
    try:
        place.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(f"{place} cannot be created: {error.strerror}; name another folder") from None
    return _written(network, images, answers, place)


def _written(model: ViT, images: Any, answers: Iterable[Prediction], folder: Path) -> Iterator[Prediction]:
    taken: set[str] = set()
    for answer, (_, read) in zip(answers, pictures_of(images), strict=False):  # both in the order of the images
        if answer.error is None:
            seen = decode.finish(read(), model.preprocess)
            picture = Image.fromarray(overlay(look_of(model, seen)))
            _save(picture, folder / _free_name(answer.name, taken))
        yield answer


def _save(picture: Image.Image, path: Path) -> None:
    atomic_write(path, lambda file: picture.save(file, "PNG"))


def _free_name(name: str, taken: set[str]) -> str:
    """photos/cat.jpg -> cat.png; a second cat is cat-2.png."""
    stem = PurePath(name.replace("\\", "/")).stem or "image"
    clean = "".join(c if c.isprintable() and c not in '<>:"|?*' else "-" for c in stem)[:100]
    number, free = 1, clean
    while free.lower() in taken:
        number += 1
        free = f"{clean}-{number}"
    taken.add(free.lower())
    return f"{free}.png"
