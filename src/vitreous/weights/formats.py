"""The formats of checkpoints that we read and write, one file each.

To add one, write a module with a `Format` and a line in FORMATS, or an entry point in the group `vitreous.formats`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from vitreous.errors import CheckpointError, ConfigError, FormatError
from vitreous.models import preprocess as preprocesses
from vitreous.models.config import Config, Size, ViTConfig, as_size
from vitreous.models.hybrid import Stem, make_stem
from vitreous.models.model import Model
from vitreous.models.positions import square_grid
from vitreous.models.preprocess import Preprocess
from vitreous.registry import Registry
from vitreous.weights.compatibility import Difference
from vitreous.weights.layouts import Rule
from vitreous.weights.tensor_files import RawCheckpoint, Tensors, by
from vitreous.words import one_line


@dataclass(frozen=True)
class Hints:
    """The user's values for what tensors cannot show. None falls back to the config beside them, then to convention."""

    image_size: Size | None = None
    heads: int | None = None
    activation: str | None = None
    norm_eps: float | None = None
    architecture: str | None = None  # one of the format's own names, to run the tensors as

    def of_encoder(self) -> dict[str, Any]:
        """The options of the encoder that are given."""
        given = {"heads": self.heads, "activation": self.activation, "norm_eps": self.norm_eps}
        return {name: value for name, value in given.items() if value is not None}


def hints_of(config: Config) -> Hints:
    """What tensors cannot show of a model with this config."""
    if not isinstance(config, ViTConfig):
        return Hints(config.image_size)
    e = config.encoder
    return Hints(config.image_size, e.heads, e.activation, e.norm_eps)


@dataclass
class Draft:
    """A model read from another library's file: config, tensors, and what was assumed."""

    config: Config
    preprocess: Preprocess
    tensors: Tensors  # by the format's canonical names
    labels: tuple[str, ...] | None = None
    assumed: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)  # other networks in the same file, such as a text tower
    rules: Callable[[Any], list[Rule]] | None = None  # this file's own, if the format names tensors in several ways


@dataclass(frozen=True)
class Format:
    name: str
    holds: str  # one line for people
    recognises: Callable[[RawCheckpoint], bool]
    draft: Callable[[RawCheckpoint, Hints], Draft]
    rules: Callable[[Config], list[Rule]]  # for reading and writing alike
    refuses: Callable[[Config], list[Difference]]  # parts it cannot hold, or that its library would run differently
    write: Callable[[Model, Mapping[str, Tensor], Path], list[Path]]  # writes a new file, or into a new folder
    to_hold: Callable[[Config, Mapping[str, Tensor]], tuple[Config, Mapping[str, Tensor]]] = lambda config, state: (
        config,
        state,
    )
    is_folder: bool = False  # True: a checkpoint is a folder; False: a single file
    suffixes: tuple[str, ...] = (".safetensors",)  # of a single file; a name without a suffix gets the first
    ignores: Callable[[str], bool] = lambda name: False  # tensors that the forward pass does not use
    names_architectures: bool = False  # True: a config names its architecture, so `architecture=` applies


def _lazy(name: str) -> Callable[[], Format]:
    return lambda: getattr(import_module(f"vitreous.weights.{name}"), f"{name.upper()}_FORMAT")


FORMATS: Registry[Any] = Registry(
    "formats",
    {name: _lazy(name) for name in ("google", "big_vision", "timm", "huggingface", "torchvision")},
)


def names() -> list[str]:
    """Formats that can be written; ours first."""
    return ["vitreous", *FORMATS]


def get(name: str) -> Format:
    if name not in FORMATS:
        others = "; ".join(f"{known} ({get(known).holds})" for known in FORMATS)
        raise FormatError(f"format {name!r} is not one of: vitreous (our own); {others}")
    found = FORMATS[name]
    return found if isinstance(found, Format) else found()


def recognise(found: RawCheckpoint) -> Format:
    """Find the format by the names of the tensors."""
    for name in FORMATS:
        if (known := get(name)).recognises(found):
            return known
    few = ", ".join(sorted(found.tensors)[:3]) or "none"
    named = found.config.get("model_type", found.config.get("architecture"))
    what = f"; its config names {one_line(named)}" if isinstance(named, str) else ""
    raise CheckpointError(
        f"{found.path} is of no known format (tensors: {few}, …{what}); say format=, one of {', '.join(names())}"
    )


# Heads of the published sizes, by width; for other widths the user must give them.
HEADS_BY_WIDTH = {192: 3, 384: 6, 512: 8, 768: 12, 1024: 16, 1152: 16, 1280: 16, 1408: 16, 1536: 24, 1664: 16}


def choose_heads(width: int, found: RawCheckpoint, hints: Hints, stated: Any) -> tuple[int, list[str]]:
    """The number of heads: from the argument, the config, or the published size of that width, in this order."""
    if hints.heads is not None:
        return hints.heads, []
    if stated is not None:
        if type(stated) is not int or not 0 < stated <= width:
            raise CheckpointError(
                f"the config of {found.path} says {one_line(stated)} heads at width {width}; say heads="
            )
        return stated, []
    if width in HEADS_BY_WIDTH:
        return HEADS_BY_WIDTH[width], [f"heads {HEADS_BY_WIDTH[width]}: the published size of width {width}"]
    raise CheckpointError(f"{found.path} does not tell the number of heads at width {width}; say heads=")


def choose_image_size(
    places: int,
    cell: Size,
    found: RawCheckpoint,
    hints: Hints,
    stated: Any = None,
    grid_of: Callable[[Size], Size] | None = None,
    assumed: list[str] | None = None,
) -> Size:
    """The image size behind a table of `places` positions: the config's, the user's if it fits, or a square.

    cell: pixels per place.  grid_of: grid of an image, if not plain division.  assumed: gets a line if the config does
    not fit the table, or another grid has as many places.
    """

    def grid(size: Size) -> Size:
        return grid_of(size) if grid_of else (size[0] // cell[0], size[1] // cell[1])

    def fits(size: Size) -> bool:
        rows, columns = grid(size)
        return rows * columns == places

    in_config = None if stated is None else stated_size(stated, found)
    if in_config is not None and fits(in_config):
        return in_config
    asked, square, notes = hints.image_size, square_grid(places), [] if assumed is None else assumed
    if asked is not None and fits(asked):
        if square is None:
            notes.append(f"positions made for {by(asked)}: as given, {places} places make no square")
        elif grid(asked) != square:
            notes.append(f"positions made for {by(asked)}: as given, though {places} places could be {by(square)}")
        return asked
    if square is not None:
        size = square[0] * cell[0], square[1] * cell[1]
        if in_config is not None:
            notes.append(f"image size {by(size)}: the config says another, which its table does not fit")
        elif asked is not None:
            notes.append(f"positions made for {by(size)}: a square, and resized to {by(asked)}")
        return size
    raise CheckpointError(
        f"{found.path} has {places} positions, which make no square; "
        f"say image_size=(rows, columns) of the images it was made for"
    )


def stated_size(stated: Any, found: RawCheckpoint) -> Size:
    """Parse an image size from a config."""
    wrong = CheckpointError(
        f"the config of {found.path} says the image size {one_line(stated)}, which is not valid; correct config.json"
    )
    if not isinstance(stated, int | list | tuple) or isinstance(stated, bool):
        raise wrong
    try:
        return as_size(stated)
    except (ConfigError, ValueError, OverflowError):
        raise wrong from None


def stated_preprocess(found: RawCheckpoint, **stated: Any) -> Preprocess:
    """Parse a config's preprocessing; refuse nonsense."""
    try:
        rule = preprocesses.from_json(stated)
        side = rule.short_side if rule.short_side is not None else 1
        if not 0 < side < 2**16 or not all(0 < n < 2**16 for n in rule.size) or not rule.mean:
            raise ConfigError(f"sizes {rule.size} and {rule.short_side}, mean {rule.mean}")
    except ConfigError as error:
        raise CheckpointError(
            f"the preprocessing of {found.path} makes no sense: {one_line(error)}; mend the config beside the weights"
        ) from None
    return rule


def write_hub_folder(path: Path, tensors: Mapping[str, Tensor], **configs: Mapping[str, Any]) -> list[Path]:
    """Write a folder as on the hub: NAME.json for each config, and model.safetensors in float32."""
    path.mkdir(parents=True, exist_ok=True)
    file = path / "model.safetensors"
    save_file({name: tensor.to(torch.float32) for name, tensor in tensors.items()}, file, metadata={"format": "pt"})
    for name, content in configs.items():
        (path / f"{name}.json").write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    return [*(path / f"{name}.json" for name in configs), file]


def stem_of(config: ViTConfig) -> Stem:
    """The stem on the meta device, for its grid and channels."""
    with torch.device("meta"):
        return make_stem(config)
