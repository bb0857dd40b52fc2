"""Everything a run refuses before it writes a file: options, images and plans that would fail later."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import numpy as np
import torch

from vitreous.errors import HIDDEN, ConfigError, DataError, ToldError
from vitreous.files import digest
from vitreous.images.health import Health
from vitreous.images.imageset import TRAIN, ImageSet
from vitreous.images.sources.remote import ADDRESS
from vitreous.machine import memory as machine_memory
from vitreous.models.catalog import blueprint, parse
from vitreous.models.config import Config
from vitreous.ranks import gather, meet
from vitreous.training import recipes
from vitreous.training.plan import memory
from vitreous.training.plan.parallel import PARALLEL, Kind
from vitreous.training.plan.starting_weights import learned_images, one_run, refuse_untrained
from vitreous.training.recipe import Recipe
from vitreous.training.run import closed_form, schedule, trackers, trainable_layers
from vitreous.training.run import folder as runs
from vitreous.training.run.runtime import Runtime
from vitreous.training.run.step import Compiled, precision_on
from vitreous.weights.pretrained import PRETRAINED

if TYPE_CHECKING:
    from vitreous.training.plan.plan import Plan

ON_NAN = ("stop", "rollback")
MANY_IN_A_GROUP = 10  # images of a series, on average: the pattern may be too coarse
COMPARED = ("data", "recipe", "digests", "network", "folds", "preprocess", "left_out", "rates")  # on all ranks


# ------------------------------------------------------------------------------------------------------------- options


def refuse_options(
    *,
    model: Any,
    weights: Any,
    resume: bool,
    force: bool,
    has_then: bool,
    says_how_then: bool,
    group_by: str | None,
    workers: int | None,
    folds: int | None,
    on_nan: str,
    log: Sequence[str],
    compiled: Compiled | None,
    parallel: str,
) -> None:
    """Options that mean nothing, alone or together."""
    _refuse_other_than("on_nan", on_nan, ON_NAN)
    _refuse_other_than("parallel", parallel, PARALLEL)
    if compiled is not None:
        _refuse_other_than("compiled", compiled, get_args(Compiled))
    if folds is not None and (folds < 0 or folds == 1):
        raise ConfigError(f"folds={folds} splits nothing; give 2 or more, or 0 for dev and test splits")
    if workers is not None and workers < 0:
        raise ConfigError(f"workers is {workers}; give 0 (this process) or more")
    if resume and force:
        raise ConfigError("--resume goes on with a run and --force begins it again; give one")
    if says_how_then and not has_then:
        raise ConfigError("--then-recipe and --then-set say how to fine-tune; give the images too: --then DATA")
    if group_by is not None and has_then:
        raise ConfigError(
            "--group-by is for one set of images, and --then names a second; fit them one after the other, the second "
            "with --weights"
        )
    if model is not None and weights is not None and not (isinstance(weights, str) and weights == "none"):
        raise ConfigError("--model and --weights each say what network to begin with; give one")
    if isinstance(model, str) and model in PRETRAINED:
        raise ConfigError(f"{model} is a name of weights, and --model begins with none; say --weights {model}")
    trackers.check(log)


def _refuse_other_than(name: str, word: str, words: Sequence[str]) -> None:
    if word not in words:
        raise ConfigError(f"{name}={word!r} is not one of {', '.join(words)}")


def refuse_typos(model: Any, weights: str | None, asked: Sequence[str | Recipe]) -> None:
    """Refuse unknown names of networks, weights and recipes before any image is read."""
    for recipe in asked:
        if isinstance(recipe, str) and recipe != "auto":
            recipes.check_name(recipe)
    if isinstance(model, str):
        parse(model)
    if weights not in (None, "none"):
        refuse_untrained(one_run(weights))


def refuse_run_as_data(data: Any) -> None:
    """A run folder holds no images: say what it is, and what to type."""
    if not isinstance(data, str | os.PathLike) or not runs.is_run(Path(data)):
        return
    where = Path(data)
    if runs.is_finished(where):
        images = runs.config_of(where).get("data", {}).get("path", "IMAGES")
        raise DataError(
            f"{where} is a finished run, not images; name those it learned from (vitreous fit {images}), "
            f"or others to go on from its model (vitreous fit IMAGES --weights {where})"
        )
    raise DataError(f"{where} is an unfinished run, not images; go on with it: vitreous fit {where} --resume")


def refuse_hidden(data: Any, where: Path) -> None:
    """An address whose secrets were not written down cannot be read again."""
    if isinstance(data, str) and HIDDEN in data and ADDRESS.match(data):
        raise DataError(
            f"{data} is without its password or signature, which {where} does not keep; "
            f"name it again: vitreous fit ADDRESS --resume --out {where}"
        )


# --------------------------------------------------------------------------------------------------------------- sweep


def check_rates(asked: Any) -> tuple[float, ...]:
    """The rates of a sweep, in rising order."""
    try:
        found = tuple(sorted({float(rate) for rate in asked}))
    except (TypeError, ValueError):
        found = ()
    if isinstance(asked, str) or not found or not all(0 < rate < math.inf for rate in found):
        raise ConfigError(f"sweep={asked!r} are not learning rates; give numbers above 0, such as (0.001, 0.01)")
    return found


def refuse_unsweepable(recipe: Recipe) -> None:
    if recipe.task != "classify":
        raise ConfigError(f"a sweep chooses by right answers, and task={recipe.task} has none; leave --sweep out")
    if not recipe.dev:
        raise ConfigError("a sweep chooses on dev, and dev=0 leaves none; give a share, such as --set dev=0.1")


def refuse_folds_in_sweep(folds: int | None) -> None:
    """A sweep needs a dev split; folds have none."""
    if folds:
        raise ConfigError(f"a sweep chooses on dev, and {folds} folds leave none; leave --folds or --sweep out")


# -------------------------------------------------------------------------------------------------------------- images


def refuse_unlearnable(data: ImageSet) -> None:
    """Images without labels, of one class only, or without a training split."""
    if not len(data.classes):
        if (wider := _folder_of_classes(Path(data.path))) is not None:
            what = "is one image" if Path(data.path).is_file() else "has no folders of classes"
            raise DataError(f"{data.path} {what}; did you mean {wider}?")
        raise DataError(
            f"the images of {data.path} have no labels; sort them into a folder for each class, "
            "or learn without labels: --recipe masked-patches"
        )
    met = np.unique(data.labels[data.labels >= 0])
    if len(data.classes) < 2 or (not data.has_many_labels and len(met) < 2):
        name = data.classes[0 if data.has_many_labels or not len(met) else int(met[0])]
        raise DataError(f"{data.path} has one class ({name}), so there is nothing to tell apart; add another")
    if not (data.splits == TRAIN).any():
        raise DataError(f"{data.path} has no training images, only test; put some into train")


def _folder_of_classes(path: Path) -> Path | None:
    """The named folder around one class, or around the class of one image, if other classes lie there too."""
    found = path.parent.parent if path.is_file() else path.parent
    if not found.name or not path.exists():
        return None
    return found if sum(each.is_dir() and not each.name.startswith(".") for each in found.iterdir()) > 1 else None


def refuse_blank(data: ImageSet, health: Health | None) -> None:
    """Images that show nothing."""
    blank = health and health.find("blank")
    if health is not None and blank and len(blank.cases) == health.checked - len(health.unread):
        images = "readable images" if health.unread else "images"
        raise DataError(
            f"all {len(blank.cases):,} {images} of {data.path} are blank, each almost one colour; look at them: "
            f"vitreous check {data.path}; or train all the same: --no-check"
        )


def refuse_unread(data: ImageSet, unread: Sequence[str]) -> None:
    """A set that cannot be learned from once unreadable images are left out.  data: what is left."""
    if not len(data):
        raise DataError(
            f"none of the {len(unread):,} images of {data.path} can be read, such as {unread[0]}; "
            f"see why: vitreous check {data.path}"
        )
    if len(data.classes):
        refuse_unlearnable(data)


def refuse_one_series(data: ImageSet, group_by: str) -> None:
    """Series that leave nothing to learn from when one is left out."""
    assert data.groups is not None
    if len(np.unique(data.groups)) == 1:
        raise DataError(
            f"--group-by {group_by} puts all {len(data):,} images of {data.path} into one series, so none is left to "
            "judge by; group by something finer"
        )
    if data.has_many_labels:
        return
    if all(len(np.unique(data.groups[data.labels == label])) == 1 for label in np.unique(data.labels)):
        raise DataError(
            f"--group-by {group_by} puts each class of {data.path} into one series, so a class that judges is never "
            "learned; group by something finer"
        )


def train_size(data: ImageSet, recipe: Recipe, parts: int) -> int:
    """Images that a training learns from.  parts: how many judge each other in turn; 0 for a dev split."""
    is_train = data.splits == TRAIN
    train = int(is_train.sum())
    if parts:
        pool = len(data) if data.split_was_made else train
        return pool - -(-pool // parts)
    own_dev = 0 if data.own_splits is None else int((is_train & (data.own_splits == "val")).sum())
    if recipe.dev and 0 < own_dev < train:
        return train - own_dev
    return round(train * (1 - recipe.dev))


def refuse_too_few(data: ImageSet, recipe: Recipe, parts: int, *, has_folds: bool) -> None:
    """A step needs two images, and each fold needs one."""
    left = train_size(data, recipe, parts)
    if min(recipe.batch, left // 2 * 2) < 2:
        raise _too_few(data, recipe, parts, left)
    if has_folds:
        _refuse_many_folds(data, parts)


def _too_few(data: ImageSet, recipe: Recipe, parts: int, left: int) -> ConfigError | DataError:
    """Why a step would not have two images, and whose fault that is."""
    if recipe.batch < 2:
        return ConfigError(f"batch={recipe.batch}: a step takes two images or more; say --set batch=2 or more")
    train = int((data.splits == TRAIN).sum())
    if recipe.dev and not parts and train_size(data, replace(recipe, dev=0.0), parts) > 1:
        images = "image" if left == 1 else "images"
        return ConfigError(f"dev={recipe.dev:g} leaves {left} {images} of {train} to learn from; say --set dev=0.1")
    return DataError(f"{data.path} has {train} training images, too few to learn from; add some")


def _refuse_many_folds(data: ImageSet, folds: int) -> None:
    """Each fold needs an image, and copies of one image lie in one fold."""
    pool = learned_images(data, folds)
    there = len(pool) if pool.groups is None else len(np.unique(pool.groups))
    if there < folds:
        fewer = f"say --folds {there}, or " if there > 2 and pool.counts.min() > 1 else ""
        if there < len(pool) // MANY_IN_A_GROUP:
            raise DataError(
                f"the {len(pool):,} images of {data.path} are only {there} series or groups of copies, too few for "
                f"{folds} folds; group them more finely (--group-by), or {fewer}add images of other series"
            )
        raise DataError(
            f"{data.path} has {there} images or groups of copies, too few for {folds} folds; {fewer}"
            f"add images, {folds} or more to each class"
        )


# ---------------------------------------------------------------------------------------------------------------- plan


def refuse_early(plan: Plan, runtime: Runtime) -> None:
    """Refuse a plan that would fail later."""
    r, ranks = plan.recipe, runtime.ranks
    if r.is_solved:
        _refuse_no_room(plan)
        return
    per_epoch = max(train_size(plan.data, r, plan.folds) // r.batch, 1)
    schedule.rates(r, schedule.total_steps(r, per_epoch) or 10**4, per_epoch)
    trainable_layers.frozen(blueprint(plan.config), r.policy)
    if r.first_head == "solved":
        _refuse_no_head(plan)
    if r.task != "classify" and r.policy != "full":
        raise ConfigError(f"task={r.task} trains every layer, so policy={r.policy} means nothing; leave it out")
    part, left = divmod(r.batch, ranks.world * r.accumulation)
    if left:
        who = f" on {ranks.world} devices" if ranks.world > 1 else ""
        count = ranks.world * r.accumulation
        raise ConfigError(f"a batch of {r.batch}{who} has no {count} equal parts; give a multiple of {count}")
    if r.augment.mixes and part % 2:
        raise ConfigError(
            f"a batch of {r.batch} with accumulation={r.accumulation} is taken {part} images at a time, and mixing "
            "takes pairs; give a batch with even parts"
        )
    _ = plan.teacher  # refuses a teacher that cannot be read


def refuse_other_plans(plan: Plan, runtime: Runtime) -> None:
    """Refuse ranks whose images, weights or recipe are not those of rank 0; paths may differ."""
    if runtime.ranks.world == 1:
        return
    meet(runtime.ranks)
    own = {name: value for name, value in plan.to_json().items() if name in COMPARED}
    own["data"] = {name: value for name, value in own["data"].items() if name not in ("path", "place")}
    own["recipe"] = {name: value for name, value in own["recipe"].items() if name != "teacher"}
    marks = gather(digest(json.dumps(own, sort_keys=True, default=str).encode()))
    others = [rank for rank, mark in enumerate(marks) if mark != marks[0]]
    if not others:
        return
    plans, other = gather(own), others[0]
    found = runs.differences(plans[0], plans[other])
    first = found[0].replace(" then, ", " on rank 0, ").removesuffix(" now") if found else "their plans differ"
    error = f"rank {other} differs from rank 0: {first} on rank {other}; give all ranks the same data and options"
    raise ConfigError(error) if runtime.ranks.is_first else ToldError(error)


def refuse_too_large(config: Config, recipe: Recipe, runtime: Runtime) -> None:
    """Refuse a model that never fits into memory. If only the batch does not fit, training splits it later."""
    if recipe.is_solved:
        return  # it takes one forward pass at a time
    device, world = runtime.device, runtime.ranks.world
    frugal = recipe.checkpointing is not False
    kind: Kind = "alone" if world == 1 or runtime.parallel == "ddp" else "fsdp"
    precision = precision_on(device, recipe.precision)
    needs = memory.expected(
        config, 2, recipe, precision=precision, checkpointing=frugal, parallel=kind, world=world
    ).memory
    least, there = needs.total, device_memory(device)
    if least > there:
        raise ConfigError(
            f"the model needs {least / 2**30:.1f} GiB even for two images, {device} has {there / 2**30:.1f}; "
            "take a smaller one (vitreous models)"
        )


def device_memory(device: torch.device) -> int:
    """Bytes of a GPU; of a CPU, this process's share of the machine."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    return (machine_memory() or 2**63) // max(int(os.environ.get("LOCAL_WORLD_SIZE") or 1), 1)


def _refuse_no_head(plan: Plan) -> None:
    """A solved head needs features that mean something, and one class per image."""
    if plan.weights is None:
        raise ConfigError("first_head=solved reads the features of given weights; give them: --weights MODEL")
    if plan.data.has_many_labels or plan.recipe.task != "classify":
        raise ConfigError("first_head=solved names one class an image, which these have not; leave it out")
    _refuse_no_room(plan)


def _refuse_no_room(plan: Plan) -> None:
    """A closed form holds the features of all images at once."""
    model, images = blueprint(plan.config), len(plan.data)
    if not closed_form.has_room(images, model):
        raise ConfigError(
            f"a closed form of {images:,} images needs {closed_form.memory_needed(images, model) / 2**30:.1f} "
            "GiB, more than there is room for; train the head: --recipe p1-finetune --policy head"
        )
