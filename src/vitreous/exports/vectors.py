"""Test vectors: images, their tensors and the model's outputs, to test a runtime that we do not know.

    vectors/00.png … 09.png    images of several sizes          vectors/00.npy …   tensors 1 C H W, float32
    vectors/expected.json      {"limits": …, "tensor": {"00": logits}, "image": {"00": probabilities}}; for an
                               encoder without a head both hold features

Another runtime writes a file like expected.json: "tensor", "fixed" or "image", each with the outputs of all ten.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from vitreous.errors import DataError
from vitreous.evaluation import calibration
from vitreous.exports.parity import Parity, Tolerance, compare
from vitreous.exports.sample_images import generated
from vitreous.images.pixels import decode
from vitreous.images.pixels.preprocess import normalise
from vitreous.models.model import Model

VECTOR_COUNT, CANDIDATES = 10, 30
EXPECTED_FORM = {"tensor": "tensor", "fixed": "tensor", "image": "image"}  # form -> key in expected.json


def write(model: Model, folder: Path, limits: Tolerance) -> None:
    """Write the candidates with the clearest answers.  model: on the CPU, in evaluation mode."""
    rule = model.preprocess
    images = [generated(i, len(rule.mean)) for i in range(CANDIDATES)]
    tensors = torch.stack([normalise(decode.finish(image, rule), rule) for image in images])
    with torch.inference_mode():
        logits = torch.cat([model(part) for part in tensors.split(8)]).numpy()
    first_two = np.sort(logits, -1)[:, -2:]
    clearest = np.sort(np.argsort(first_two[:, 0] - first_two[:, -1], kind="stable")[:VECTOR_COUNT])
    spread = calibration.sigmoid if model.answers == "several" else calibration.softmax
    of = "answer" if model.config.readout.classes else "features"
    folder.mkdir()
    expected: dict[str, Any] = {"of": of, "limits": asdict(limits), "tensor": {}, "image": {}}
    for number, i in enumerate(clearest.tolist()):
        name = f"{number:02d}"
        Image.fromarray(images[i].squeeze()).save(folder / f"{name}.png")
        np.save(folder / f"{name}.npy", tensors[i : i + 1].numpy())
        expected["tensor"][name] = logits[i].tolist()
        expected["image"][name] = (spread(logits[i], model.temperature) if of == "answer" else logits[i]).tolist()
    (folder / "expected.json").write_text(json.dumps(expected))


def verify(outputs: str | os.PathLike[str], folder: str | os.PathLike[str] | None = None) -> Parity:
    """Compare what another runtime returned for vectors/ with the model's outputs.

    folder: the export; by default the folder of `outputs`, or its parent.
    """
    path = Path(outputs)
    place = _find(path, None if folder is None else Path(folder))
    expected, given = _read(place), _read(path)
    forms = [form for form in EXPECTED_FORM if form in given]
    if not forms:
        raise DataError(f"{path} has none of {', '.join(EXPECTED_FORM)}; write outputs as {place} has them")
    wanted = {form: expected[EXPECTED_FORM[form]] for form in forms}
    of = "features" if expected.get("of") == "features" else "answer"
    compared = tuple(
        compare(form, _rows(path, given[form], like), _rows(place, like), of=of) for form, like in wanted.items()
    )
    limits = msgspec.convert(expected["limits"], Tolerance)
    return Parity("another runtime", path.name, f"the vectors of {place.parent.parent}", compared, limits)


def _find(outputs: Path, folder: Path | None) -> Path:
    places = [outputs.parent, outputs.parent.parent] if folder is None else [folder]
    for place in places:
        for file in (place / "vectors" / "expected.json", place / "expected.json"):
            if file.is_file():
                return file
    raise DataError(f"{places[0]} holds no vectors/expected.json; name the exported folder: vitreous export FOLDER")


def _read(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text())
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}; check its name") from None
    except ValueError as error:
        raise DataError(f"{path} is not JSON: {' '.join(str(error).split())[:80]}; write it again") from None
    if not isinstance(found, dict):
        raise DataError(f"{path} holds a {type(found).__name__}; write outputs as vectors/expected.json has them")
    return found


def _rows(path: Path, given: Any, like: Any = None) -> NDArray[np.float64]:
    """N K, in the order of the names in `like`."""
    like = given if like is None else like
    if not isinstance(given, dict) or set(given) != set(like):
        raise DataError(f"{path} does not have {', '.join(like)}, each once; give the outputs of every vector")
    try:
        return np.stack([np.asarray(given[name], np.float64).reshape(len(like[name])) for name in like])
    except (ValueError, TypeError):
        lengths = len(next(iter(like.values())))
        raise DataError(f"{path} does not have {lengths} numbers for every vector; write them as plain lists") from None
