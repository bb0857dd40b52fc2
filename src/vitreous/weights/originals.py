"""Checkpoints as their authors wrote them: DeiT, DINO, DINOv2, MAE and MoCo v3, recognised by their keys.

Their tensors have timm's names, so timm's rules read them. Each has a row in ORIGINS for what is its own: the
networks besides the encoder, the preprocessing, and heads that no tensor shows.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vitreous.models.config import Size
from vitreous.models.positions import square_grid
from vitreous.models.preprocess import IMAGENET_MEAN, IMAGENET_STD, Preprocess
from vitreous.weights.formats import Draft, Hints
from vitreous.weights.tensor_files import RawCheckpoint, Tensors

PATCH = "patch_embed.proj.weight"


@dataclass(frozen=True)
class Origin:
    """The code that wrote a checkpoint."""

    name: str
    is_told: Callable[[RawCheckpoint], str]  # what marks a file as its own; empty if nothing does
    encoder: str = ""  # the prefix of the network that its authors evaluate
    beside: Mapping[str, str] = field(default_factory=dict)  # patterns of other tensors, and what they are
    heads: Mapping[int, int] = field(default_factory=dict)  # by width, if not those of the published size
    interpolation: str = "bicubic"
    resize: float = 256 / 224  # short side over image size

    def preprocess(self, size: Size) -> Preprocess:
        side = round(min(size) * self.resize)
        how: Any = self.interpolation
        common: dict[str, Any] = {"antialias": True, "mean": IMAGENET_MEAN, "std": IMAGENET_STD}
        source = f"{self.name} (assumed)"
        return Preprocess(size=size, fit="crop", short_side=side, interpolation=how, source=source, **common)


def has(*starts: str) -> Callable[[RawCheckpoint], str]:
    """Recognised by a tensor whose name begins with one of these."""

    def is_told(found: RawCheckpoint) -> str:
        return next((start for start in starts if any(name.startswith(start) for name in found.tensors)), "")

    return is_told


def told_by_moco(found: RawCheckpoint) -> str:
    return has("base_encoder.", "momentum_encoder.")(found) or ("pos_embed" if follows(found, rows_first=True) else "")


def told_by_mae(found: RawCheckpoint) -> str:
    if key := has("decoder_embed.", "decoder_blocks.")(found):
        return key
    if follows(found, rows_first=False):
        return "pos_embed"
    return "fc_norm, within model" if within(found, "model") and "fc_norm.weight" in found.tensors else ""


def told_by_dinov2(found: RawCheckpoint) -> str:
    names = {name.removeprefix("backbone.") for name in found.tensors}
    is_one = "mask_token" in names and any(name.endswith(".ls1.gamma") for name in names)
    return "mask_token and ls1" if is_one else ""


def told_by_dino(found: RawCheckpoint) -> str:
    if key := has("head.last_layer.")(found):
        return key
    return "its name" if file_name(found).startswith("dino_") else ""


def told_by_deit(found: RawCheckpoint) -> str:
    if not within(found, "model") or "cls_token" not in found.tensors:
        return ""
    return "head, within model" if "head.weight" in found.tensors else ""


def told_by_deit3(found: RawCheckpoint) -> str:
    return "gamma_1" if "blocks.0.gamma_1" in found.tensors and "head.weight" in found.tensors else ""


PROJECTION, DECODER = "projection head of pre-training", "decoder of hidden patches"
ORIGINS = (  # the first that fits
    Origin(
        "MoCo v3", told_by_moco, encoder="base_encoder.", interpolation="bilinear", heads={384: 12},
        beside={r"momentum_encoder\.": "momentum encoder", r"predictor\.": "predictor", r"head\.\d": PROJECTION},
    ),
    Origin("DINOv2", told_by_dinov2, "backbone.", {r"(dino|ibot)_head\.": PROJECTION}),
    Origin("MAE", told_by_mae, beside={"decoder_|mask_token": DECODER}),
    Origin("DINO", told_by_dino, "backbone.", {r"head\.": PROJECTION}),
    Origin("DeiT III", told_by_deit3, resize=1.0),
    Origin("DeiT", told_by_deit),
)  # fmt: skip


def within(found: RawCheckpoint, wrapper: str) -> bool:
    return found.metadata.get("wrapper") == wrapper


def file_name(found: RawCheckpoint) -> str:
    return "" if found.file is None else Path(found.file).name


def follows(found: RawCheckpoint, *, rows_first: bool) -> bool:
    """True if the positions are the waves that MAE (columns first) and MoCo v3 (rows first) compute and never train."""
    table = found.tensors.get("pos_embed")
    if table is None or table.dim() != 3 or table.shape[1] < 5 or table.shape[2] % 4:
        return False
    grid = square_grid(table.shape[1] - 1)
    if grid is None or table[0, 0].any():
        return False
    return torch.allclose(table[0, 1:].float(), waves(grid, table.shape[2], rows_first=rows_first), atol=1e-4)


def waves(grid: Size, width: int, *, rows_first: bool) -> Tensor:
    """[sin(aω), cos(aω), sin(bω), cos(bω)], ωⱼ = 10000^(−4j/width); a and b are a patch's row and column.  N D."""
    omega = 10_000.0 ** (-torch.arange(width // 4) / (width // 4))
    places = torch.cartesian_prod(*(torch.arange(float(n)) for n in grid))  # N 2: row, column
    a, b = places.unbind(1) if rows_first else places.flip(1).unbind(1)
    a, b = a[:, None] * omega, b[:, None] * omega
    return torch.cat([a.sin(), a.cos(), b.sin(), b.cos()], 1)


def told(found: RawCheckpoint) -> tuple[Origin, str] | None:
    """Who wrote a file without a config, and the mark that shows it."""
    if found.config or found.sidecar or not any(name.endswith(PATCH) for name in found.tensors):
        return None
    return next(((origin, key) for origin in ORIGINS if (key := origin.is_told(found))), None)


@dataclass(frozen=True)
class Original:
    """A checkpoint of an author's own code, the encoder alone."""

    found: RawCheckpoint
    origin: Origin
    key: str
    left_out: list[str]

    def hints(self, hints: Hints) -> Hints:
        """These hints, with the heads that this code uses at this width unless the user says others."""
        width = self.found.tensors[PATCH].shape[0]
        return hints if hints.heads is not None else replace(hints, heads=self.origin.heads.get(width))

    def complete(self, draft: Draft) -> None:
        """Put the author's preprocessing in place of timm's, and note what was assumed."""
        origin, size = self.origin, draft.config.image_size
        draft.preprocess = origin.preprocess(size)
        draft.assumed = [f"written by {origin.name}'s own code: told by {self.key}"] + [
            note for note in draft.assumed if not note.startswith("preprocessing:")
        ]
        how = f"short side {draft.preprocess.short_side}, {origin.interpolation}, centre crop, ImageNet's mean"
        draft.assumed.append(f"preprocessing: {origin.name}'s own ({how})")
        draft.left_out += self.left_out


def open_original(found: RawCheckpoint) -> Original | None:
    """The encoder of a checkpoint that DeiT, DINO, DINOv2, MAE or MoCo v3 wrote; None for any other file."""
    known = told(found)
    if known is None:
        return None
    origin, key = known
    left: dict[str, int] = {}
    kept = Tensors({}, found.tensors.path)
    has_encoder = bool(origin.encoder) and any(name.startswith(origin.encoder) for name in found.tensors)
    for name, tensor in found.tensors.items():
        plain = name.removeprefix(origin.encoder) if has_encoder else name
        what = next((what for pattern, what in origin.beside.items() if re.match(pattern, plain)), None)
        if what is None:
            kept[plain] = tensor
        else:
            left[what] = left.get(what, 0) + 1
    kept = kept.renamed(lambda name: re.sub(r"^blocks\.\d+\.(\d+)\.", r"blocks.\1.", name))  # blocks in chunks
    parts = [f"{what} ({count} tensors)" for what, count in left.items()]
    parts += [f"{word} network" for word in found.metadata.get("beside", "").split(",") if word]
    return Original(replace(found, tensors=kept), origin, key, parts)
