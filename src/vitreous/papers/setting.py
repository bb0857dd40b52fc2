"""What a scale is, in one line made from its cells: networks, images, length of training, seeds."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from vitreous.errors import VitreousError
from vitreous.images.imageset import TRAIN
from vitreous.models.catalog import blueprint, parse
from vitreous.models.config import ViTConfig
from vitreous.papers.experiment import RELEASED, Cell, GridCell, ScaleName, walk
from vitreous.papers.experiments.networks import HYBRID, KINDS, RESNET, VIT
from vitreous.papers.results import Results
from vitreous.papers.sets import Sets, named_sets, plain_name
from vitreous.weights.pretrained import PRETRAINED
from vitreous.words import counted

MOST_LISTED = 3  # more numbers are a range
TRAINING_IMAGES = re.compile(r"(?:UP: |DOWN: )?([\d,.]+(?: million)?)")  # in a set's description
SIZED = re.compile(r"image_size=(\S+)")


def setting(scale: ScaleName, placed: Sequence[GridCell], results: Results) -> str:
    """`ViT (105,546 parameters, 3 blocks of 4 heads); 28 pixels; 8,700 images of fashion, 200 steps of 64; 8 seeds`"""
    cells = list(walk(one.cell for one in placed))
    seeds = len({one.seed for one in placed})
    names = _names(cells, results)
    parts = [", ".join(_networks(names)), _pixels(names), _trained(cells)]
    parts += [_groups(cells, seeds) if scale == RELEASED else counted(seeds, "seed")]
    return "; ".join(part for part in parts if part)


# Networks ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class GridNetwork:
    """kind: ViT, hybrid, ResNet, or the name of released weights.  parameters: None if no finished cell says."""

    kind: str
    parameters: int | None
    blocks: int = 0  # 0: a ResNet
    heads: int = 0


def _names(cells: Iterable[Cell], results: Results) -> dict[str, int | None]:
    """The networks and weights that cells name, each with its parameters if a finished cell says."""
    found: dict[str, int | None] = {}
    for cell in cells:
        record = results.get(cell)
        said = None if record is None else record.readings.get("parameters")
        begun = _begun_from(cell)
        for name in (begun, *(cell.options.get(key) for key in ("against", "weights"))):
            if isinstance(name, str):
                found[name] = found.get(name) or (said if name == begun else None)
    return found


def _begun_from(cell: Cell) -> str | None:
    """The network of a cell; of a fine-tuning, that of the training it starts from."""
    name: str | None = cell.options.get("model")
    return _begun_from(cell.needs[0]) if name is None and cell.work == "train" and cell.needs else name


def _networks(names: Mapping[str, int | None]) -> list[str]:
    """Each kind once; released weights of one shape together."""
    alike: dict[Any, list[GridNetwork]] = {kind: [] for kind in KINDS}
    for name, parameters in names.items():
        with suppress(VitreousError):  # a bag of letters is no network of the catalog
            network = _network(name, parameters)
            alike.setdefault(network.kind if network.kind in KINDS else network.parameters, []).append(network)
    return [_described(networks) for networks in alike.values() if networks]


def _network(name: str, parameters: int | None) -> GridNetwork:
    known = PRETRAINED.get(name)
    config = parse(known.network if known else name)
    if known:
        parameters = sum(one.numel() for one in blueprint(config).parameters())
    if not isinstance(config, ViTConfig):
        return GridNetwork(name if known else RESNET, parameters)
    kind = name if known else VIT if config.embedding.stem == "patch" else HYBRID
    return GridNetwork(kind, parameters, config.encoder.depth, config.encoder.heads)


def _described(networks: Sequence[GridNetwork]) -> str:
    names = " and ".join(dict.fromkeys(network.kind for network in networks))
    counts = [network.parameters for network in networks if network.parameters]
    size = [f"{_range(counts)} parameters"] if len(counts) == len(networks) else []
    blocks, heads = ([getattr(network, name) for network in networks] for name in ("blocks", "heads"))
    shape = [f"{_range(blocks)} blocks of {_range(heads)} heads"] if all(blocks) else []
    return names + (f" ({', '.join(size + shape)})" if size or shape else "")


def _pixels(names: Iterable[str]) -> str:
    """The sizes that names state; elsewhere the set decides."""
    sizes = {int(found[1]) for name in names if (found := SIZED.search(name)) and found[1].isdigit()}
    sizes |= {PRETRAINED[name].pixels for name in names if name in PRETRAINED}
    return f"{_either(sizes)} pixels" if sizes else ""


# Images and lengths --------------------------------------------------------------------------------------------------


def _trained(cells: Sequence[Cell]) -> str:
    """Trainings, then those that start from weights."""
    trainings = [cell for cell in cells if cell.work == "train"]
    first = [cell for cell in trainings if not cell.needs and "weights" not in cell.options]
    tuned = [cell for cell in trainings if cell.needs or "weights" in cell.options]
    if trainings:
        return ", then ".join(_learned(each) for each in (first, tuned) if each)
    letters = [cell.options for cell in cells if cell.work == "letters"]
    return _lengths({"length": f"{options['steps']} steps", **options} for options in letters)


def _learned(trainings: Sequence[Cell]) -> str:
    counts: dict[str, set[int | None]] = {}
    for cell in trainings:
        counts.setdefault(plain_name(cell.options["data"]), set()).add(_images(cell.options))
    images = " and ".join(_of_a_set(name, found) for name, found in counts.items())
    return f"{images}, {_lengths(_recipe(cell.options) for cell in trainings)}"


def _recipe(options: Mapping[str, Any]) -> Mapping[str, Any]:
    recipe = options["recipe"]
    named = {"length": f"as long as the recipe {recipe} says"} if isinstance(recipe, str) else recipe
    return {**named, **options["fields"]}


def _images(options: Mapping[str, Any]) -> int | None:
    """How many images a training has; None: all of a set that is not in the package."""
    count: int | None = options.get("images")
    if count is None and named_sets()[plain_name(options["data"])].is_embedded:
        return Sets().part({**options, "data": plain_name(options["data"])}, 0).split_counts[TRAIN]
    return count


def _of_a_set(name: str, counts: set[int | None]) -> str:
    some = [count for count in counts if count is not None]
    whole = TRAINING_IMAGES.match(named_sets()[name].about)
    words = [_range(some)] if some else []
    words += [f"all {whole[1]}" if whole else "all"] if None in counts else []
    return f"{' or '.join(words)} images of {name}"


def _lengths(recipes: Iterable[Mapping[str, Any]]) -> str:
    """`20 or 200 steps of 128`."""
    recipes = list(recipes)
    units: dict[str, set[int]] = {}
    others = set()
    for number, _, unit in (str(recipe.get("length", "")).partition(" ") for recipe in recipes):
        if number.isdigit():
            units.setdefault(unit, set()).add(int(number))
        else:
            others.add(f"{number} {unit}")
    words = [f"{_either(numbers)} {unit}" for unit, numbers in units.items()] + sorted(others)
    batches = {int(recipe["batch"]) for recipe in recipes if "batch" in recipe}
    return " or ".join(words) + (f" of {_either(batches)}" if batches else "")


def _groups(cells: Iterable[Cell], seeds: int) -> str:
    """What released networks see."""
    seen = {(cell.options["seen"], cell.options["data"]) for cell in cells if "group" in cell.options}
    return ", ".join(f"{seeds} groups of {count:,} images of {data}" for count, data in sorted(seen))


# Words ---------------------------------------------------------------------------------------------------------------


def _range(numbers: Iterable[int]) -> str:
    found = sorted(set(numbers))
    return f"{found[0]:,} to {found[-1]:,}" if len(found) > 1 else f"{found[0]:,}"


def _either(numbers: Iterable[int]) -> str:
    found = sorted(set(numbers))
    if len(found) > MOST_LISTED:
        return _range(found)
    *first, last = (f"{number:,}" for number in found)
    return f"{', '.join(first)} or {last}" if first else last
