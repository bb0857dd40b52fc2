"""Which word is the model, and which are images: people write them in either order."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from vitreous.errors import ConfigError

MAX_IMAGES_REPEATED = 3


def check_order(command: str, model: str, images: Sequence[str] = ()) -> None:
    """Refuse images in the place of the model, with the command that was meant."""
    from vitreous.images.sources.paths import is_image_name
    from vitreous.weights.load_model import is_weights

    path = Path(model)
    if is_weights(model) or not (path.exists() or is_image_name(path.name)):  # a model's name, perhaps misspelt
        return
    known = [word for word in images if is_weights(word)]
    if known:
        rest = [model, *(word for word in images if word != known[0])]
        raise ConfigError(f"{known[0]} is the model, and the model comes first: {_call(command, known[0], rest)}")
    if path.is_dir() and not images and not (path / "events.jsonl").exists():  # else a run, which loading reports
        what = "holds no weights"
    elif path.is_file() and is_image_name(path.name):
        what = "is an image"
    else:
        return
    again, named = ([], "a model") if command == "serve" else ([model, *images], "a model before it")
    raise ConfigError(f"{model} {what}; name {named}: {_call(command, 'last', again)} (last: the newest run)")


def _call(command: str, model: str, images: Sequence[str]) -> str:
    more = " …" if len(images) > MAX_IMAGES_REPEATED else ""
    return shlex.join(["vitreous", command, model, *images[:MAX_IMAGES_REPEATED]]) + more
