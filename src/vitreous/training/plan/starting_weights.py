"""Which weights a run begins with, and what they are worth.

If the user names none, a small set of colour images uses the starter, if its frozen features know something of them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from vitreous.errors import ConfigError, VitreousError, nearest
from vitreous.images import series, splits
from vitreous.images.imageset import TRAIN, ImageSet
from vitreous.images.series import Guess
from vitreous.models.catalog import parse
from vitreous.models.config import Size
from vitreous.models.model import Model
from vitreous.ranks import gather
from vitreous.training.plan import estimate as estimates
from vitreous.training.plan.estimate import Estimate
from vitreous.training.plan.request import Request
from vitreous.training.recipe import Recipe
from vitreous.training.run import trainable_layers
from vitreous.training.run.closed_form import Series
from vitreous.training.run.events import FeaturesRead
from vitreous.training.run.network import Weights, make_network
from vitreous.training.run.runtime import Runtime
from vitreous.weights import imagenet, starter
from vitreous.weights.load_model import fetch, is_new, newest_run

BETTER = "--weights deit-tiny"
STARTER_LEFT_OUT = "the starter knows little of these images"
CROSS_VALIDATE_BELOW = 2_000  # images; fewer are each judged by a model that has not seen them


@dataclass(frozen=True, eq=False)
class Beginning:
    """weights: None is from scratch.  start: the network with them.  estimate: what its frozen features are worth.

    series: of all images, if leaving whole series out changes the number.
    """

    weights: Weights | None = None
    start: Model | None = None
    estimate: Estimate | None = None
    reasons: tuple[str, ...] = ()
    series: Guess | None = None
    told: Series | None = None  # what series do to the number, if anything was measured


def choose_weights(request: Request, data: ImageSet, pool: ImageSet, typical: Size, runtime: Runtime) -> Beginning:
    """The weights the user named, or the starter where it helps; measured if the recipe depends on that.

    pool: the images to measure on.  typical: the size of an image.
    """
    if request.as_new:
        return Beginning(request.network)
    asked: Weights | None = request.weights if request.network is None else request.network
    is_plain = not data.has_many_labels and request.recipe == "auto"
    train = int((data.splits == TRAIN).sum())
    is_tried = asked is None and request.model is None and is_plain and starter.suits(train, data.channels)
    if asked == "none" or (asked is None and not is_tried):
        if "policy" in request.changes:
            raise ConfigError("a policy says which layers of given weights train; give them: --weights MODEL")
        return Beginning()
    name = starter.word() if asked is None else one_run(asked) if isinstance(asked, str) else asked
    if isinstance(name, str):
        refuse_untrained(name)
    if request.recipe != "auto":
        return Beginning(name)
    known = {field: value for field, value in request.changes.items() if field in ("image_size", "seed")}
    if isinstance(name, str) and starter.is_meant(name):
        known.setdefault("image_size", starter.size_for(typical))
    sized = Recipe().change(**known)
    start = make_network(name, None, sized, data, sized.image_size)
    trainable_layers.frozen(start, str(request.changes.get("policy", "full")))  # refuses an unknown policy
    if not is_plain:
        return Beginning(name, start)
    may_guess = data.split_was_made and request.group_by is None and not data.is_streamed
    guesses = series.guesses(data) if may_guess else None
    estimate, found = _measured(
        start, pool, sized.seed, request.group_by, guesses and _within(guesses, data, pool), runtime
    )
    whole = found and _of_all(found, guesses or [], data)
    is_clear = starter.is_clear(estimate.right, estimate.images, estimate.chance)
    if is_tried and not is_clear and "policy" not in request.changes:
        why = f"{STARTER_LEFT_OUT} ({estimate}), so it is left out"
        return Beginning(reasons=(why,), series=whole, told=estimate.series)
    return Beginning(name, start, estimate, (_about_starter(),) if is_tried else (), whole, estimate.series)


def _within(guesses: list[Guess], data: ImageSet, pool: ImageSet) -> list[Guess]:
    """Guesses about `data`, for the images of `pool`."""
    here = np.isin(data.ids, pool.ids)
    return [replace(guess, groups=guess.groups[here]) for guess in guesses]


def _of_all(found: Guess, guesses: list[Guess], data: ImageSet) -> Guess:
    """The guess that matters, for all images, where only train was measured."""
    if len(found.groups) == len(data):
        return found
    same = next(guess for guess in guesses if guess.by == found.by)
    groups = series.joined(same, splits.find_groups(data)[0], data.labels)
    return same if groups is None else replace(same, groups=groups)


def fetch_weights(weights: str | None) -> None:
    """Fetch weights from the hub before any image is read, so a run without internet ends at once."""
    if weights not in (None, "none"):
        fetch(one_run(weights))


def _about_starter() -> str:
    """Say that the starter was chosen, and how to choose otherwise."""
    better = f"; {BETTER} fetches weights that know more" if find_spec("huggingface_hub") else ""
    return (
        "no weights were named: begun from the starter, which comes with vitreous; --weights none is from scratch"
        + better
    )


def refuse_untrained(name: str) -> None:
    """Refuse a catalog name: such a network has learned nothing. Refuse a word that names no weights either."""
    if not is_new(name):
        return
    if nearest(name, ("none",)):
        raise ConfigError(f"no weights are called {name!r}; did you mean none?")
    parse(name)  # refuses a name that is not in the catalog
    raise ConfigError(
        f"{name} is a network without weights; for one from scratch say --model '{name}', "
        "or name weights: a file, a run, deit-tiny, hf:OWNER/NAME"
    )


def one_run(model: str) -> str:
    """`last` as the run that it means now: another may end while this one trains."""
    return str(newest_run()) if model == "last" and not Path(model).exists() else model


def learned_images(data: ImageSet, folds: int | None) -> ImageSet:
    """The images a run learns from: train, or all of a small set that brought no test split."""
    is_judged_whole = folds or (folds is None and len(data) < CROSS_VALIDATE_BELOW)
    return data if data.split_was_made and is_judged_whole else data.split(TRAIN)


def _measured(
    model: Model, pool: ImageSet, seed: int, group_by: str | None, guesses: list[Guess] | None, runtime: Runtime
) -> tuple[Estimate, Guess | None]:
    """Rank 0 measures and tells the others; the model ends on the CPU.  guesses: about the images of `pool`."""
    found: tuple[Estimate, Guess | None] | VitreousError | None = None
    if runtime.ranks.is_first:
        try:
            found = estimates.measure(
                model.to(runtime.device),
                pool,
                seed=seed,
                group_by=group_by,
                guesses=guesses,
                device=runtime.device,
                workers=runtime.workers,
                progress=partial(runtime.progress, FeaturesRead),
            )
        except VitreousError as error:
            found = error
        model.to("cpu")
    if runtime.ranks.world > 1:
        found = gather(found)[0]
    if isinstance(found, VitreousError):
        raise found
    assert found is not None
    return found


def terms_of(source: dict[str, Any]) -> tuple[str, ...]:
    """The terms of the images that the weights have learned from.  source: the model's."""
    return (f"terms of what the weights have learned from: {source['terms']}",) if source.get("terms") else ()


def seen_before(source: dict[str, Any], data: ImageSet, is_judged_whole: bool) -> tuple[str, ...]:
    """A caution if weights have learned from these very images, or may have.  source: the model's."""
    if source.get("data") == data.content_id and (source.get("learned_from") == "all" or is_judged_whole):
        return (
            "the weights have learned from these very images, so the number is of images they have seen and too high; "
            "for an honest one begin from weights that have not",
        )
    if imagenet.are_ids(data.classes):
        return (
            "the classes are ImageNet's; weights that learned from ImageNet may have seen these very images, and then "
            "the number is too high",
        )
    return ()
