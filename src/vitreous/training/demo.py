"""`vitreous demo`: a recorded checkpoint in Google's format is loaded, looked into, and written for another library."""

from __future__ import annotations

import os
import tempfile
from dataclasses import asdict, dataclass
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from vitreous.files import atomic_write
from vitreous.images.embedded import shapes
from vitreous.images.preprocess import apply
from vitreous.measures import attention_map
from vitreous.models.catalog import Row, build, describe, names
from vitreous.models.model import Model
from vitreous.models.taps import taps
from vitreous.models.vit import ViT
from vitreous.report.figures import Picture, colours, strip
from vitreous.weights.loading import load
from vitreous.weights.saving import save

OUT = "vitreous-demo.svg"
HELD_OUT = 2  # seed of the pictures the recorded model never saw


@dataclass(frozen=True)
class Demo:
    """What the demo did and saw."""

    models: list[Row]
    built: list[str]  # one line each: a model, its parameters, the shape of its answer
    source: dict[str, Any]  # the recorded checkpoint, and what its tensors could not tell
    seen: int  # pictures it never saw in training
    right: int  # of those
    on_the_shape: float  # share of the class token's attention, mean over pictures, heads and layers, on the shape
    shape_area: float  # share of the patches that hold some of the shape
    round_trip: float  # largest difference of logits after a trip through another library's format
    figure: str

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def _repr_html_(self) -> str:
        return Path(self.figure).read_text(encoding="utf-8")

    def __str__(self) -> str:
        return "\n".join(
            [
                *self.built,
                f"loaded a checkpoint in Google's format; assumed: {'; '.join(self.source['assumed']) or 'nothing'}",
                f"it names {self.right} of {self.seen} new pictures rightly",
                f"{self.on_the_shape:.0%} of its class token's attention falls on the shape, "
                f"which has {self.shape_area:.0%} of the patches",
                f"through Hugging Face's format and back, logits differ by {self.round_trip:.1e}",
                f"attention map: {self.figure}",
            ]
        )


def demo(out: str | os.PathLike[str] | None = None, *, force: bool = False) -> Demo:
    """Build, load, look, convert; draws one attention map to `out` (vitreous-demo.svg, made anew each time)."""
    out, force = (OUT, True) if out is None else (out, force)
    built = [try_out(name) for name in ("Ti/16", "R26+S/32", "BiT-R50x1")]
    with as_file(files("vitreous.training") / "recorded") as folder:
        model = load(folder / "shapes.npz")
    assert isinstance(model, ViT)
    pictures, kinds = shapes.batch(range(200), seed=HELD_OUT)
    x = torch.stack([apply(Image.fromarray(p), model.preprocess) for p in pictures])
    with torch.inference_mode(), taps(model, "blocks.*.attention.weights") as seen:
        right = model(x).argmax(1).numpy() == kinds
    maps = torch.stack([attention_map(w, model.grid) for w in seen.values()], 1).numpy()  # B layers heads h w
    shown = int(right.argmax())  # the first it names rightly
    share, area = overlap(maps)
    figure = draw(pictures[shown], maps[shown], shapes.KINDS[kinds[shown]])
    atomic_write(out, lambda file: file.write(figure.encode()), force=force)
    return Demo(
        models=[describe(name) for name in names()],
        built=built,
        source=model.source,
        seen=len(kinds),
        right=int(right.sum()),
        on_the_shape=share,
        shape_area=area,
        round_trip=through_another_library(model, x[:8]),
        figure=os.fspath(out),
    )


def try_out(name: str) -> str:
    """A new model answers a random image."""
    model = build(name, image_size=64, classes=10, seed=0).eval()
    with torch.inference_mode():
        answer = model(torch.randn(1, 3, 64, 64, generator=torch.Generator().manual_seed(0)))
    count = sum(p.numel() for p in model.parameters())
    return f"built {name:10} for 64x64 images: {count:>11,} parameters, answers {tuple(answer.shape)}"


def overlap(maps: np.ndarray) -> tuple[float, float]:
    """Share of the attention on patches that hold some of the shape, and the share of such patches.  maps: B … h w."""
    rows, columns = maps.shape[-2:]
    cells = [
        shapes.mask(i, HELD_OUT).reshape(rows, shapes.SIZE // rows, columns, -1).any((1, 3)) for i in range(len(maps))
    ]
    held = np.stack(cells)  # B h w
    mean = maps.reshape(len(maps), -1, rows, columns)
    mean = (mean / mean.sum((2, 3), keepdims=True)).mean(1)  # B h w, each of sum 1
    return float((mean * held).sum((1, 2)).mean()), float(held.mean())


def draw(picture: np.ndarray, maps: np.ndarray, answer: str) -> str:
    """The picture, then the class token's attention in each layer, its heads averaged.  maps: layers heads h w."""
    tiles = [Picture(f"the picture: {answer}", picture)]
    tiles += [Picture(f"layer {i + 1}", colours(heads.mean(0))) for i, heads in enumerate(maps)]
    caption = f"attention to each patch, mean of {maps.shape[1]} heads; light is much, each map on its own scale"
    return strip(tiles, heading="Where the class token looks", caption=caption)


def through_another_library(model: Model, x: torch.Tensor) -> float:
    """Written for transformers, read back: how far the logits moved."""
    with tempfile.TemporaryDirectory() as folder, torch.inference_mode():
        save(model, Path(folder) / "model", format="huggingface")
        return float((load(Path(folder) / "model")(x) - model(x)).abs().max())
