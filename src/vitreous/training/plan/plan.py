"""What a run will do, decided before its first step: images, network, recipe, and why."""

from __future__ import annotations

import copy
import math
import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from vitreous.errors import ConfigError, DataError, RunError
from vitreous.files import digest
from vitreous.images import open_data
from vitreous.images.health import Health, check
from vitreous.images.imageset import TEST, TRAIN, ImageSet
from vitreous.images.stores.disk import pack
from vitreous.images.stores.memory import find_places, hold
from vitreous.machine import memory as machine_memory
from vitreous.models import config as configs
from vitreous.models import preprocess as rules
from vitreous.models.catalog import blueprint, parse
from vitreous.models.config import Size, as_size
from vitreous.models.model import Model
from vitreous.models.preprocess import Preprocess
from vitreous.ranks import Ranks
from vitreous.training import recipe as recipe_values
from vitreous.training import recipes
from vitreous.training.plan import auto_recipe, memory
from vitreous.training.plan import estimate as estimates
from vitreous.training.plan.estimate import Estimate
from vitreous.training.plan.starting_weights import (
    FEW,
    Beginning,
    Start,
    Weights,
    begin,
    choose_beginning,
    described,
    name_of_network,
    pool_of,
    seen_before,
    suited,
    terms_of,
)
from vitreous.training.recipe import Recipe
from vitreous.training.run import closed_form, schedule, sweep
from vitreous.training.run import trainable_layers as policy
from vitreous.training.run.folder import START, differences
from vitreous.training.run.loop import steps_of
from vitreous.training.run.step import precision_on
from vitreous.weights import starter
from vitreous.weights.load_model import load, newest_run
from vitreous.weights.tensor_files import READERS

__all__ = ["Job", "decoded_once", "for_judging", "is_packed", "plan", "planned", "refuse_early", "start_model"]

FOLDS = 5
SAMPLE = 20_000  # images that the check reads of a larger set
HELD = 0.2  # share of the memory that decoded pictures may take
PACKED = 64 * 2**30  # bytes that a pack of our own may take
MARGIN = 8 / 7  # of a packed picture's short side to the network's: 256 to 224

NO_STEPS = {"policy", "image_size", "seed", "l2"}  # fields that a closed form reads, too

Say = Callable[[str], object]
Progress = Callable[[str, int, int], None]  # what is done, how many, of how many


@dataclass(frozen=True, eq=False)
class Job:
    """A run, decided."""

    data: ImageSet
    health: Health | None
    model: str | None  # as asked for
    weights: Weights | None
    recipe: Recipe
    reasons: tuple[str, ...]
    rule: Preprocess  # of the network that is trained
    config: Any  # of that network
    beginning: str  # for people
    folds: int  # 0: a dev split; of a head that is solved: as many as images, 0 where a split judges
    has_several: bool
    left_out: tuple[str, ...] = ()  # images that cannot be read
    cautions: tuple[str, ...] = ()  # why the number may not be what it seems
    estimate: Estimate | None = None  # of the weights' frozen features, before training
    rates: tuple[float, ...] = ()  # of a sweep; none: the recipe's
    start: Start = field(default_factory=Start)  # what was read for the plan, until a training takes it

    @property
    def classes(self) -> tuple[str, ...]:
        return self.data.classes

    @cached_property
    def teacher(self) -> Model | None:
        """Whom every training of the run learns from; read once."""
        return load(self.recipe.teacher) if self.recipe.teacher is not None else None

    def record(self) -> dict[str, Any]:
        """What a resumed run must find unchanged, and what it goes on with."""
        counts = {name: int((self.data.splits == name).sum()) for name in (TRAIN, TEST)}
        return {
            "data": {
                "path": self.data.path,
                "place": _absolute(self.data.path),
                "content_id": self.data.content_id,
                "images": len(self.data),
                "classes": list(self.data.classes),
                "splits": counts,
            },
            "model": self.model,
            "weights": START if isinstance(self.weights, Model) else self.weights and _absolute(self.weights),
            "recipe": self.recipe.to_json() | {"teacher": self.recipe.teacher and _absolute(self.recipe.teacher)},
            "digests": _digests(self.weights, self.recipe.teacher),
            "network": self.config.to_json(),
            "folds": self.folds,
            "reasons": list(self.reasons),
            "preprocess": self.rule.to_json(),
            "beginning": self.beginning,
            "checked": self.health is not None,
            "left_out": list(self.left_out),
            "cautions": list(self.cautions),
            "estimate": self.estimate and self.estimate.to_json(),
            "rates": list(self.rates),
        }


def plan(
    data: str | os.PathLike[str] | ImageSet,
    *,
    model: str | None,
    weights: Weights | None,
    recipe: str | Recipe,
    device: torch.device,
    checked: bool,
    folds: int | None,
    overrides: dict[str, Any],
    say: Say,
    progress: Progress | None = None,
    rates: bool | Sequence[float] = False,
    ranks: Ranks | None = None,
    workers: int | None = None,
    as_new: bool = False,
) -> Job:
    """Look at the images, measure the weights, choose, and say so.

    as_new: the weights are a network in memory, which trains from where it is as a new one does.
    """
    watch = None if progress is None else partial(progress, "checking")
    images = _labelled(open_data.open(data, progress=watch), recipe)
    health = _check(images, say, watch) if checked else None
    left_out = _unreadable(health)
    images = _without(images, left_out, say)
    typical = _typical_size(images, health)
    watch = None if progress is None else partial(progress, "features")
    pool = pool_of(images, 0 if rates else folds)
    found = choose_beginning(
        weights,
        model,
        recipe,
        images,
        overrides,
        pool,
        typical,
        device=device,
        ranks=ranks or Ranks(),
        workers=workers,
        progress=watch,
        as_new=as_new,
    )
    may_solve = set(overrides) <= NO_STEPS and not rates
    chosen, reasons = _choose(recipe, images, typical, model, found, device, overrides.get("policy"), may_solve)
    if as_new and recipe == "auto":
        chosen, reasons = _for_network(chosen)
    chosen = _with_one_teacher(_changed(chosen, overrides, images.labels.ndim == 2))
    swept = sweep.rates(chosen, rates, say)
    if chosen.task != "classify" or swept:
        folds = sweep.no_folds(folds) if swept else 0
    job = _fitted(images, health, model, found, chosen, reasons, typical, folds, device, say, as_new)
    return replace(job, left_out=left_out, estimate=found.estimate, rates=swept)


def planned(then: dict[str, Any], data: str | os.PathLike[str] | ImageSet | None, say: Say) -> Job:
    """The job of a run that goes on, from its config; refused where the images are others."""
    said = then["data"]["path"]
    path = data if data is not None else said if Path(said).exists() else then["data"].get("place") or said
    images = replace(open_data.open(path), path=said)
    recipe = recipe_values.from_json(then["recipe"])
    images = _labelled(images, recipe)
    left_out = tuple(then["left_out"])
    images = _without(images, left_out, say)
    now = {
        "content_id": images.content_id,
        "images": len(images),
        "classes": list(images.classes),
        "splits": {name: int((images.splits == name).sum()) for name in (TRAIN, TEST)},
    }
    before = {name: value for name, value in then["data"].items() if name not in ("path", "place")}
    if changed := differences({"data": before}, {"data": now}):
        raise RunError(f"{images.path} has changed since the run began: {'; '.join(changed)}; start a new run")
    _refuse_other_weights(then)
    return Job(
        data=images,
        health=_check(images, lambda line: None, None) if then.get("checked") else None,
        model=then["model"],
        weights=then["weights"],
        recipe=recipe,
        reasons=tuple(then["reasons"]),
        rule=rules.from_json(then["preprocess"]),
        config=configs.from_json(then["network"]),
        beginning=then["beginning"],
        folds=then["folds"],
        has_several=images.labels.ndim == 2,
        left_out=left_out,
        cautions=tuple(then.get("cautions", ())),
        estimate=estimates.from_json(then["estimate"]) if then.get("estimate") else None,
        rates=tuple(then.get("rates", ())),
    )


def refuse_early(job: Job, ranks: Ranks) -> None:
    """What would fail later, said before anything is written."""
    r = job.recipe
    if r.is_solved:
        _refuse_too_many(job)
        return
    per_epoch = max(_train_size(job.data, r, job.folds) // r.batch, 1)
    schedule.rates(r, steps_of(r, per_epoch) or 10**4, per_epoch)
    policy.frozen(blueprint(job.config), r.policy)
    if r.first_head == "solved":
        _refuse_no_head(job)
    if r.task != "classify" and r.policy != "full":
        raise ConfigError(f"task={r.task} trains every layer, so policy={r.policy} means nothing; leave it out")
    part, left = divmod(r.batch, ranks.world * r.accumulation)
    if left:
        raise ConfigError(f"a batch of {r.batch} has no {ranks.world * r.accumulation} equal parts; give a multiple")
    if r.augment.mixes and part % 2:
        raise ConfigError(
            f"a batch of {r.batch} with accumulation={r.accumulation} is taken {part} images at a time, and mixing "
            "takes pairs; give a batch with even parts"
        )
    _ = job.teacher  # that it can be read


def start_model(job: Job, device: torch.device, *, again: bool = False) -> Model:
    """The network before its first step: new, or of the weights with a new head.

    again: one more training begins with it, for which it is kept in memory.
    """
    if job.start.model is None:
        job.start.model = begin(job.weights, job.model, job.recipe, job.data, job.config.image_size)
    model = copy.deepcopy(job.start.model) if again else job.start.give()
    if model.config != job.config:
        raise RunError("the weights are no longer those the run began with; start a new run")
    model.preprocess, model.labels = job.rule, job.classes or None
    model.answers = "several" if job.has_several else "one"
    return model.to(device)


def is_packed(job: Job, train: ImageSet, ranks: Ranks, folder: Path) -> bool:
    """Whether the images are decoded onto disk."""
    return _where_decoded(job, train, ranks, folder) == "disk"


def _where_decoded(job: Job, train: ImageSet, ranks: Ranks, folder: Path) -> str:
    """memory or disk, by their size; nowhere, where that would not pay or they are decoded already."""
    shown = job.recipe.batch * (steps_of(job.recipe, max(len(train) // job.recipe.batch, 1)) or 10**9)
    if job.data.raw(0) is not None and shown > 2 * len(train):
        typical = _typical_size(job.data, job.health)
        side = min(round(min(job.rule.size) * MARGIN), *typical)
        size = int(side**2 * max(typical) / min(typical) * len(job.rule.mean)) * len(job.data)
        if size * ranks.world < HELD * (machine_memory() or 2**33):
            return "memory"
        if size < PACKED and size < shutil.disk_usage(folder).free / 2:
            return "disk"
    return "nowhere"


def decoded_once(
    job: Job, train: ImageSet, dev: ImageSet | None, folder: Path, ranks: Ranks, say: Say
) -> Callable[[ImageSet], ImageSet]:
    """Decode once what every epoch would decode again, into memory or onto disk; returns what finds a subset there.

    Dev pictures become the pixels an evaluation sees, exactly.
    """
    place = _where_decoded(job, train, ranks, folder)
    if place == "nowhere":
        return lambda some: some
    side = round(min(job.rule.size) * MARGIN)
    ids = np.concatenate([train.ids, dev.ids if dev is not None else np.zeros(0, np.int64)])
    wanted = job.data.take(np.isin(job.data.ids, ids))
    is_dev = np.isin(wanted.ids, dev.ids) if dev is not None else np.zeros(len(wanted), bool)
    wanted = replace(wanted, splits=np.where(is_dev, TEST, TRAIN))
    if place == "memory":
        say(f"decoding {len(wanted):,} images once, into memory")
        found = hold(wanted, short_side=side, preprocess=job.rule, on_unreadable="defer")
    else:
        say(f"decoding {len(wanted):,} images once, into {folder / 'pack'}")
        found = pack(wanted, folder / "pack", short_side=side, preprocess=job.rule)
    return lambda some: replace(_found_there(found, some), path=some.path)


def for_judging(
    job: Job,
    judged: ImageSet,
    ranks: Ranks,
    *,
    threads: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> ImageSet:
    """The pictures as an evaluation sees them, decoded once where two networks are judged on them and memory allows."""
    size = math.prod(job.rule.size) * len(job.rule.mean) * len(judged)
    is_read_twice = job.estimate is not None and not job.recipe.is_solved
    if not is_read_twice or not judged.is_encoded or ranks.world > 1 or size > HELD * (machine_memory() or 2**33):
        return judged
    return hold(
        judged,
        short_side=min(job.rule.size),
        preprocess=job.rule,
        workers=threads,
        progress=progress,
        on_unreadable="defer",
    )


def _found_there(there: ImageSet, some: ImageSet) -> ImageSet:
    """The same pictures, decoded; a pack has left out what it could not read."""
    return there.take(find_places(there.ids, some.ids[np.isin(some.ids, there.ids)]))


# ------------------------------------------------------------------------------------------------------------ its parts


def _labelled(data: ImageSet, recipe: str | Recipe) -> ImageSet:
    """The images that can be learned from; a set that cannot be is refused."""
    name = recipe if isinstance(recipe, str) else recipe.task
    if name == "masked-patches":  # labels are not looked at, and the network gets no head
        splits = data.splits if (data.splits == TRAIN).any() else np.full(len(data), TRAIN)
        return replace(data, labels=np.zeros(len(data), np.int64), classes=(), splits=splits)
    if not len(data.classes):
        raise DataError(
            f"the images of {data.path} have no labels; sort them into a folder for each class, "
            "or learn without labels: --recipe masked-patches"
        )
    if data.labels.ndim == 1 and (data.labels < 0).any():
        data = data.take(data.labels >= 0)
    if len(data.classes) < 2 or (data.labels.ndim == 1 and len(np.unique(data.labels)) < 2):
        raise DataError(
            f"{data.path} has one class ({data.classes[0]}), so there is nothing to tell apart; add another"
        )
    if not (data.splits == TRAIN).any():
        raise DataError(f"{data.path} has no training images, only test; put some into train")
    return data


def _check(data: ImageSet, say: Say, progress: Callable[[int, int], None] | None) -> Health:
    health = check(data, sample=SAMPLE if len(data) > SAMPLE else None, progress=progress)
    if not data.classes:  # labels are not looked at, so none is wrong
        health = replace(health, findings=tuple(found for found in health.findings if found.kind != "wrong-label"))
    for finding in health.faults:
        say(f"caution: {finding.what}; {finding.do}")
    return health


def _unreadable(health: Health | None) -> tuple[str, ...]:
    """Images that the check could not read."""
    found = [health.find(kind) for kind in ("unreadable", "truncated", "heic", "too-large")] if health else []
    return tuple(sorted({name for finding in found if finding for case in finding.cases for name in case.names}))


def _without(data: ImageSet, names: tuple[str, ...], say: Say) -> ImageSet:
    """Images that cannot be read are left out of everything."""
    if not names:
        return data
    say(f"{len(names):,} images cannot be read and are left out, such as {names[0]}")
    bad = set(names)
    return data.take(np.array([data.name(i) not in bad for i in range(len(data))]))


def _typical_size(data: ImageSet, health: Health | None) -> Size:
    """Rows and columns of the median image."""
    if health is not None and health.sizes:
        return health.sizes["height"][1], health.sizes["width"][1]
    some = np.linspace(0, len(data) - 1, min(16, len(data))).astype(int)
    shapes, fault = [], None
    for i in some.tolist():
        try:
            shapes.append(data.read(i).shape[:2])
        except DataError as error:  # said when it is its turn to be shown or judged
            fault = error
    if fault is not None and not shapes:
        raise fault
    rows, columns = np.median(shapes, axis=0).astype(int).tolist()
    return rows, columns


def _choose(
    asked: str | Recipe,
    data: ImageSet,
    typical: Size,
    model: str | None,
    found: Beginning,
    device: torch.device,
    policy: str | None,
    may_solve: bool,
) -> tuple[Recipe, tuple[str, ...]]:
    if isinstance(asked, Recipe):
        return (asked if model is None else replace(asked, model=model)), (f"the recipe {asked.name}, as given",)
    count, classes = int((data.splits == TRAIN).sum()), len(data.classes)
    if asked != "auto":
        chosen = recipes.get(asked, images=count, classes=classes, image_size=typical, model=model)
        return chosen, (f"the recipe {asked}, as asked for",)
    suited = auto_recipe.choose(
        count,
        classes,
        typical,
        found.start,
        device.type,
        data.labels.ndim == 2,
        model=model,
        asked=policy,
        estimate=found.estimate,
        may_solve=may_solve,
        has_room=found.start is None or closed_form.has_room(len(data), found.start),
        knows_classes=found.start is not None and found.start.labels == tuple(data.classes),
    )
    return suited.recipe, (*found.reasons, *suited.reasons)


def _for_network(recipe: Recipe) -> tuple[Recipe, tuple[str, ...]]:
    """The recipe for a network in memory, at that network's own size, and why it."""
    why = f"the network given trains from its present weights by {recipe.name}, as a new one; weights= fine-tunes it"
    return replace(recipe, image_size=None), (why,)


def _changed(recipe: Recipe, overrides: dict[str, Any], has_several: bool) -> Recipe:
    recipe = recipe.change(**overrides)
    if has_several and recipe.loss != "sigmoid":
        if "loss" in overrides:
            raise ConfigError("these images have several labels each, which loss=softmax cannot learn; leave it out")
        recipe = recipe.change(loss="sigmoid", smoothing=0.0)
    return recipe


def _fitted(
    data: ImageSet,
    health: Health | None,
    model: str | None,
    found: Beginning,
    recipe: Recipe,
    reasons: tuple[str, ...],
    typical: Size,
    folds: int | None,
    device: torch.device,
    say: Say,
    as_new: bool,
) -> Job:
    """Recipe, network and images made to fit each other."""
    weights = found.weights
    size = None if recipe.image_size is None else as_size(recipe.image_size)
    if weights is None:
        asked = {"image_size": size, "classes": len(data.classes), "channels": data.channels}
        config = parse(name_of_network(model, recipe)).change(**{name: v for name, v in asked.items() if v is not None})
        _refuse_too_large(config, recipe, device)  # before it takes any memory
    if found.start is not None and size in (None, found.start.config.image_size):
        start = suited(found.start, recipe)
    else:
        start = begin(weights, model, recipe, data, size)
    rule = start.preprocess if weights is not None else _rule(start.config.image_size, typical, data.channels)
    if recipe.is_solved:
        pool = pool_of(data, folds)
        if folds:
            judged = "each image is left out in its turn" if len(pool) == len(data) else "test judges it"
            say(f"a closed form takes no {folds} folds; {judged}")
        folds = len(pool) if len(pool) == len(data) else 0
    elif folds is None:
        folds = FOLDS if len(data) < FEW else 0
    trained = _train_size(data, recipe, folds)
    batch = min(recipe.batch, trained // 2 * 2)
    if batch < 2:
        raise _too_few(data, recipe, folds)
    if folds and not recipe.is_solved:
        _refuse_many_folds(data, folds)
    if batch != recipe.batch and not recipe.is_solved:
        say(f"a step takes {batch} images, since no more than {trained} are there to train on")
        recipe = recipe.change(batch=batch, accumulation=1)
    recipe = replace(recipe, augment=replace(recipe.augment, size=rule.size, margin=_margin(recipe, rule.size)))
    recipe = replace(recipe, image_size=None, model=None if weights is not None else recipe.model)
    beginning = "from scratch"
    if weights is not None:
        beginning = _how_begun(weights, as_new)
        _refuse_too_large(start.config, recipe, device)
    return Job(
        data=data,
        health=health,
        model=described(weights) if isinstance(weights, Model) else model,
        weights=weights,
        recipe=recipe,
        reasons=(*reasons, *terms_of(start.source)),
        rule=rule,
        config=start.config,
        beginning=beginning,
        folds=folds,
        has_several=data.labels.ndim == 2,
        cautions=seen_before(start.source, data, folds),
        start=Start(start),
    )


def _how_begun(weights: Weights, as_new: bool) -> str:
    """For people."""
    if isinstance(weights, Model):
        return "from its present weights" if as_new else "from the weights given"
    return "from the starter" if starter.is_meant(weights) else f"the weights {weights}"


def _train_size(data: ImageSet, recipe: Recipe, folds: int) -> int:
    """Images that a training learns from."""
    is_train = data.splits == TRAIN
    train = int(is_train.sum())
    if folds:
        pool = len(data) if (data.about.get("split") or {}).get("made") else train
        return pool - -(-pool // folds)
    own_dev = 0 if data.given is None else int((is_train & (data.given == "val")).sum())
    if recipe.dev and 0 < own_dev < train:
        return train - own_dev
    return round(train * (1 - recipe.dev))


def _too_few(data: ImageSet, recipe: Recipe, folds: int) -> ConfigError | DataError:
    """Why a step would have no two images, and whose fault that is."""
    if recipe.batch < 2:
        return ConfigError(f"batch={recipe.batch}: a step takes two images or more; say --set batch=2 or more")
    train = int((data.splits == TRAIN).sum())
    left = _train_size(data, recipe, folds)
    if recipe.dev and not folds and _train_size(data, replace(recipe, dev=0.0), folds) > 1:
        images = "image" if left == 1 else "images"
        return ConfigError(f"dev={recipe.dev:g} leaves {left} {images} of {train} to learn from; say --set dev=0.1")
    return DataError(f"{data.path} has {train} training images, too few to learn from; add some")


def _refuse_many_folds(data: ImageSet, folds: int) -> None:
    """Each fold needs a picture, and copies of one lie in one fold."""
    pool = pool_of(data, folds)
    there = len(pool) if pool.groups is None else len(np.unique(pool.groups))
    if there < folds:
        fewer = f"say --folds {there}, or " if there > 2 and pool.counts.min() > 1 else ""
        raise DataError(
            f"{data.path} has {there} pictures or groups of copies, too few for {folds} folds; {fewer}"
            f"add pictures, {folds} or more to each class"
        )


def _margin(recipe: Recipe, size: Size) -> int:
    return min(recipe.augment.margin, min(size) - 1)


def _rule(size: Size, typical: Size, channels: int) -> Preprocess:
    """How a new network wants its images: small ones as they are, photographs by their middle."""
    half = (0.5,) * channels
    if typical == size or max(typical) <= 80:
        return Preprocess(size=size, fit="squash", antialias=True, mean=half, std=half, source="vitreous")
    side = round(min(size) * MARGIN)
    return Preprocess(size=size, fit="crop", short_side=side, antialias=True, mean=half, std=half, source="vitreous")


def _refuse_too_large(config: Any, recipe: Recipe, device: torch.device) -> None:
    """A model that can never fit is refused before anything is done; one whose batch does not is split later."""
    if recipe.is_solved:
        return  # one forward pass at a time
    least = memory.expected(config, 2, recipe, precision=precision_on(device, recipe.precision)).memory.total
    if device.type == "cuda":
        there = torch.cuda.get_device_properties(device).total_memory
    else:
        there = machine_memory() or 2**63
    if least > there:
        raise ConfigError(
            f"the model needs {least / 2**30:.1f} GiB even for two images, {device} has {there / 2**30:.1f}; "
            "take a smaller one (vitreous models)"
        )


def _refuse_no_head(job: Job) -> None:
    """A head is solved on features that say something, for one class an image."""
    if job.weights is None:
        raise ConfigError("first_head=solved reads the features of given weights; give them: --weights MODEL")
    if job.has_several or job.recipe.task != "classify":
        raise ConfigError("first_head=solved names one class an image, which these have not; leave it out")
    _refuse_too_many(job)


def _refuse_too_many(job: Job) -> None:
    """A closed form holds the features of all images at once."""
    model = blueprint(job.config)
    if not closed_form.has_room(len(job.data), model):
        raise ConfigError(
            f"a closed form of {len(job.data):,} images needs "
            f"{closed_form.memory_needed(len(job.data), model) / 2**30:.1f} "
            "GiB, more than there is room for; train the head: --recipe p1-finetune --policy head"
        )


def _with_one_teacher(recipe: Recipe) -> Recipe:
    """`last` as the run it means now: another may end while this one trains."""
    is_last = recipe.teacher == "last" and not Path("last").exists()
    return replace(recipe, teacher=str(newest_run())) if is_last else recipe


def _digests(weights: Weights | None, teacher: str | None) -> dict[str, str]:
    """Of the files that these name; what is no path here, such as hf:OWNER/NAME or a network in memory, has none."""
    files = {"weights": _weight_files(weights), "teacher": _weight_files(teacher)}
    return {what: digest("".join(map(digest, found)).encode()) for what, found in files.items() if found}


def _weight_files(source: Weights | None) -> list[Path]:
    """That file; of a folder the one it is about, or all that hold weights."""
    place = Path(source) if isinstance(source, str) and source else None
    if place is None or not place.is_dir():
        return [place] if place is not None and place.is_file() else []
    only = place / "model.safetensors"
    return [only] if only.is_file() else sorted(p for p in place.iterdir() if p.suffix in READERS and p.is_file())


def _refuse_other_weights(then: dict[str, Any]) -> None:
    """A run goes on with the weights it began with; one begun before digests were kept is taken at its word."""
    places = {"weights": then["weights"], "teacher": then["recipe"].get("teacher")}
    now = _digests(**places)
    for what, before in then.get("digests", {}).items():
        if what in now and now[what] != before:
            name = "the weights" if what == "weights" else "the teacher"
            raise RunError(f"{name} {places[what]} changed after the run began; put them back, or start a new run")


def _absolute(path: str) -> str:
    """A path that means the same in any folder; words such as `fashion` and addresses stay as they are."""
    is_pattern = any(mark in path for mark in "*?[") and "://" not in path
    return str(Path(path).absolute()) if Path(path).exists() or is_pattern else path
