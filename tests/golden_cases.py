"""The recorded checkpoints of other libraries: how to load each, and what was seen inside them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import vitreous

FOLDER = Path(__file__).parent / "golden"
MANIFEST = json.loads((FOLDER / "manifest.json").read_text())["cases"]
MODELS = [name for name, case in MANIFEST.items() if "checkpoint" in case]
FORMAT_OF = {
    "google": "google",
    "big_transfer": "google",
    "big_vision": "big_vision",
    "timm": "timm",
    "huggingface": "huggingface",
    "torchvision": "torchvision",
}


def format_of(name: str) -> str:
    return FORMAT_OF[MANIFEST[name]["format"].split("-")[0]]


def source(name: str) -> Path:
    """The checkpoint of a case: a folder where its library has folders."""
    folder = FOLDER / name
    return folder if (folder / "config.json").is_file() else folder / MANIFEST[name]["checkpoint"]


def hints(name: str) -> dict[str, Any]:
    """What the tensors of a case cannot tell: heads in torch's formats, the grid of what is not square."""
    case = MANIFEST[name]
    config = case["config"]
    if isinstance(config, str):  # a config.json beside it tells
        return {"dynamic_image_size": True} if case.get("position_resize") else {}
    out: dict[str, Any] = {}
    if "heads" not in config and "num_heads" in config and format_of(name) in ("timm", "torchvision"):
        out["heads"] = config["num_heads"]
    size = config["image_size"]
    if isinstance(size, list) and (
        size[0] != size[1] or "resnet" in str(config) or "posemb" in config or "blocks" in config or "layers" in config
    ):
        out["image_size"] = tuple(size)
    return out


def load(name: str) -> vitreous.models.model.Model:
    return vitreous.load(source(name), **hints(name))


def images(name: str) -> Tensor:
    x = torch.from_numpy(np.load(FOLDER / name / "input.npy"))
    return x.permute(0, 3, 1, 2) if MANIFEST[name]["input_layout"] == "NHWC" else x


def logits(name: str) -> Tensor:
    return torch.from_numpy(np.load(FOLDER / name / "logits.npy"))


def activations(name: str) -> dict[str, Tensor]:
    with np.load(FOLDER / name / "activations.npz") as file:
        return {key: torch.from_numpy(file[key]) for key in file.files}
