"""What a run will do, decided before its first step: images, network, recipe, protocol, and why."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from textwrap import wrap
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitreous.errors import ConfigError, RunError
from vitreous.files import digest
from vitreous.images import open_data, series, splits
from vitreous.images.health import Health, check
from vitreous.images.health.findings import TERMINAL_COLUMNS, UNREAD_KINDS
from vitreous.images.imageset import TEST, TRAIN, ImageSet
from vitreous.models import config as configs
from vitreous.models import preprocess as preprocesses
from vitreous.models.catalog import parse
from vitreous.models.config import Config, Size, as_size
from vitreous.models.model import Model
from vitreous.models.preprocess import Preprocess
from vitreous.training import recipe as recipe_values
from vitreous.training import recipes
from vitreous.training.plan import auto_recipe, memory, parallel, refusals
from vitreous.training.plan import estimate as estimates
from vitreous.training.plan.estimate import Estimate
from vitreous.training.plan.parallel import Kind, Strategy
from vitreous.training.plan.refusals import device_memory
from vitreous.training.plan.request import Request
from vitreous.training.plan.starting_weights import (
    CROSS_VALIDATE_BELOW,
    STARTER_LEFT_OUT,
    Beginning,
    choose_weights,
    fetch_weights,
    learned_images,
    one_run,
    seen_before,
    terms_of,
)
from vitreous.training.recipe import Recipe
from vitreous.training.run import closed_form
from vitreous.training.run.closed_form import Series
from vitreous.training.run.decoded import CROP_MARGIN, typical_size
from vitreous.training.run.events import FACT_INDENT, Checking, Event, Fact, Noted
from vitreous.training.run.folder import START, differences
from vitreous.training.run.network import Start, Weights, described, make_network, network_name, with_recipe
from vitreous.training.run.runtime import Runtime
from vitreous.training.run.step import parts_of, precision_on
from vitreous.weights import starter
from vitreous.weights.load_model import load
from vitreous.weights.tensor_files import READERS
from vitreous.words import counted, few

FOLDS = 5
CHECKED_IMAGES = 20_000  # that the check reads of a larger set
CHECKED_OF_STREAMED = 2_000  # that it reads of a streamed set, from shards all over it
SMALL_SIDE = 80  # pixels; smaller images are squashed, not cropped
SGD_RATES = (0.001, 0.003, 0.01, 0.03)  # P1's sweep
RATE_FACTORS = (1 / 3, 1.0, 3.0)  # of the recipe's own rate, for other optimizers
SOLVED_FIELDS = {"policy", "image_size", "seed", "l2"}  # the fields that a closed form reads
MAX_NAMED = 9  # classes

Say = Callable[[str | Event], object]


@dataclass(frozen=True, kw_only=True, eq=False)
class Plan:
    """A run, decided.

    protocol: dev, sweep, folds, leave-one-out (a solved head, each image judged when left out), closed-form (a solved
    head, judged on test), or masked (no labels).
    """

    data: ImageSet
    health: Health | None
    model: str | None  # as the user asked
    weights: Weights | None
    recipe: Recipe
    reasons: tuple[str, ...]
    preprocess: Preprocess  # of the network that is trained
    config: Config  # of that network
    beginning: str  # what training begins with, for people
    protocol: str
    folds: int = 0  # of the protocol folds
    rates: tuple[float, ...] = ()  # of the protocol sweep
    left_out: tuple[str, ...] = ()  # images that cannot be read
    unlabelled: int = 0  # images without a label, which are not learned from
    cautions: tuple[str, ...] = ()  # why the number may mislead
    estimate: Estimate | None = None  # of the weights' frozen features, before training
    series: Series | None = None  # named by the user, or measured
    start: Start = field(default_factory=Start)  # the network that was read for the plan

    @property
    def classes(self) -> tuple[str, ...]:
        return self.data.classes

    @property
    def missing(self) -> tuple[str, ...]:
        """Why fewer images are used than there are files, one reason each."""
        return _missing(len(self.left_out), self.unlabelled)

    @property
    def weights_file(self) -> Path | None:
        """The first file of the weights that training begins with; None without a file."""
        if isinstance(self.weights, Model):
            return self.weights.read_from
        return next(iter(_weight_files(self.weights)), None)

    @property
    def files(self) -> str:
        """How many files, or images, the set holds."""
        unit = "image" if self.health is not None and not self.health.is_encoded else "file"
        return counted(len(self.data) + len(self.left_out) + self.unlabelled, unit)

    @property
    def judges_all(self) -> bool:
        """Whether each image is judged by a model that has not seen it, and the saved model learns from all."""
        return self.protocol in ("folds", "leave-one-out")

    @property
    def keeps_series(self) -> bool:
        """Whether no series is split between what is learned from and what judges."""
        return self.series is not None and self.series.is_kept_whole

    @property
    def has_guessed(self) -> bool:
        """Whether the groups are a guess that matters, which the set alone cannot give again."""
        return self.keeps_series and self.series is not None and not self.series.is_given

    @property
    def measured_seconds(self) -> float:
        """Seconds of the estimate, whose features a closed form reuses."""
        return 0.0 if self.estimate is None else self.estimate.seconds

    @cached_property
    def teacher(self) -> Model | None:
        """The model that every training of the run learns from, read once."""
        return load(self.recipe.teacher) if self.recipe.teacher is not None else None

    def to_json(self) -> dict[str, Any]:
        """What a resumed run must find unchanged, and what it continues with."""
        return {
            "data": {
                "path": self.data.path,
                "place": _absolute(self.data.path),
                "content_id": self.data.content_id,
                "images": len(self.data),
                "classes": list(self.data.classes),
                "splits": _split_counts(self.data),
            },
            "model": self.model,
            "weights": START if isinstance(self.weights, Model) else self.weights and _absolute(self.weights),
            "recipe": self.recipe.to_json() | {"teacher": self.recipe.teacher and _absolute(self.recipe.teacher)},
            "digests": _digests(self.weights, self.recipe.teacher),
            "network": self.config.to_json(),
            "folds": len(self.data) if self.protocol == "leave-one-out" else self.folds,
            "reasons": list(self.reasons),
            "preprocess": self.preprocess.to_json(),
            "beginning": self.beginning,
            "checked": self.health is not None,
            "left_out": list(self.left_out),
            "cautions": list(self.cautions),
            "estimate": self.estimate and self.estimate.to_json(),
            "rates": list(self.rates),
            "series": self.series and asdict(self.series),
            "groups": self.data.groups.tolist() if self.has_guessed and self.data.groups is not None else None,
        }


def make(request: Request, runtime: Runtime) -> Plan:
    """Look at the images, measure the weights, choose recipe and protocol."""
    if request.weights is not None:
        request = replace(request, model=None)  # the first of two runs used it
    fetch_weights(request.weights)
    watch = partial(runtime.progress, Checking)
    opened = _opened(request, watch, runtime.say)
    images = _learnable(opened, request.recipe)
    unlabelled = len(opened) - len(images)
    was_open = isinstance(request.data, ImageSet)  # then its files may have changed since
    health = _check(images, runtime.say, watch, again=was_open) if request.check else None
    refusals.refuse_blank(images, health)
    unreadable = health.unread if health is not None and not images.is_streamed else ()  # else replaced when met
    images = _without(images, unreadable, runtime.say)
    images = _with_copies(images, request.group_by)
    for fact in _found(images, health, len(unreadable), unlabelled):
        runtime.say(fact)
    typical = typical_size(images, health)
    pool = learned_images(images, 0 if request.rates else request.folds)
    found = choose_weights(request, images, pool, typical, runtime)
    if found.series is not None:
        images = _in_series(images, found.series.groups, found.series.by, is_judged_whole=len(pool) == len(images))
    told = _counted(found.told, images, request.group_by)
    recipe, reasons = _choose_recipe(request, images, typical, found, runtime)
    rates = _sweep_rates(recipe, request, runtime.say)
    protocol, folds = _choose_protocol(request, recipe, rates, images, runtime.say)
    start = _first_network(request, found, recipe, images, runtime)
    weights = found.weights
    preprocess = start.preprocess
    if weights is None:
        preprocess = _new_preprocess(start.config.image_size, typical, images.channels)
    recipe = _fitted(recipe, images, protocol, folds, preprocess, runtime.say)
    plan = Plan(
        data=images,
        health=health,
        model=described(weights) if isinstance(weights, Model) else request.model,
        weights=weights,
        recipe=replace(recipe, model=None if weights is not None else recipe.model),
        reasons=(*reasons, *terms_of(start.source)),
        preprocess=preprocess,
        config=start.config,
        beginning=_beginning(weights, request.as_new),
        protocol=protocol,
        folds=folds,
        rates=rates,
        left_out=unreadable,
        unlabelled=unlabelled,
        estimate=found.estimate,
        series=told,
        start=Start(start),
    )
    if weights is not None:
        refusals.refuse_too_large(start.config, plan.recipe, runtime)
    seen = seen_before(start.source, images, plan.judges_all) if weights is not None else ()
    return replace(plan, cautions=(*seen, *_about_series(plan)))


def with_start(plan: Plan, request: Request, where: Path) -> Plan:
    """The plan; a network from memory becomes the file that the run folder `where` keeps."""
    if request.network is None:
        return plan
    kept = replace(plan, weights=str(where / START))
    vars(kept)["teacher"] = plan.teacher  # read already
    return kept


def resumed(config: dict[str, Any], data: Any, where: Path, say: Say, *, skip_bad_shards: bool = False) -> Plan:
    """The plan of the run in `where`, from its config; refused if images or weights changed."""
    if config.get("weights") == START:
        config = config | {"weights": str(where / START)}
    path = config["data"]["path"]
    place = data if data is not None else path if Path(path).exists() else config["data"].get("place") or path
    refusals.refuse_hidden(place, where)
    recipe = recipe_values.from_json(config["recipe"])
    told = Series(**config["series"]) if config.get("series") else None
    group_by = told.by if told is not None and told.is_given else None
    opened = replace(open_data.open(place, group_by=group_by, skip_bad_shards=skip_bad_shards), path=path)
    whole = _learnable(opened, recipe)
    unreadable = tuple(config["left_out"])
    images = _with_copies(_without(whole, unreadable, say), group_by)
    if told is not None and len(config.get("groups") or ()) == len(images):
        images = _in_series(images, np.array(config["groups"]), told.by, is_judged_whole=config["folds"] > 0)
    now = {
        "content_id": images.content_id,
        "images": len(images),
        "classes": list(images.classes),
        "splits": _split_counts(images),
    }
    before = {name: value for name, value in config["data"].items() if name not in ("path", "place")}
    if changed := differences({"data": before}, {"data": now}):
        raise RunError(f"{images.path} has changed since the run began: {'; '.join(changed)}; start a new run")
    _refuse_changed_weights(config)
    rates = tuple(config.get("rates", ()))
    return Plan(
        data=images,
        health=_check(whole, lambda line: None, None, again=isinstance(place, ImageSet))
        if config.get("checked")
        else None,
        model=config["model"],
        weights=config["weights"],
        recipe=recipe,
        reasons=tuple(config["reasons"]),
        preprocess=preprocesses.from_json(config["preprocess"]),
        config=configs.from_json(config["network"]),
        beginning=config["beginning"],
        protocol=_protocol(recipe, config["folds"], rates),
        folds=0 if recipe.is_solved else config["folds"],
        rates=rates,
        left_out=unreadable,
        unlabelled=len(opened) - len(whole),
        cautions=tuple(config.get("cautions", ())),
        estimate=estimates.from_json(config["estimate"]) if config.get("estimate") else None,
        series=told,
    )


def announce(plan: Plan, runtime: Runtime) -> Iterator[str | Fact]:
    """The plan for people: as facts in plain words, and in detail, a line each."""
    yield Fact("plan", _in_words(plan))
    yield from (Fact("caution", line, "warn") for line in plan.cautions)
    yield plan.data.headline(has_splits=not (plan.judges_all and plan.data.split_was_made))
    if plan.health is not None:
        yield f"check: {plan.health.verdict} ({plan.health.read})"
    yield from plan.reasons
    r, (rows, columns) = plan.recipe, plan.preprocess.size
    precision = "float32" if r.is_solved else precision_on(runtime.device, r.precision)
    if r.is_solved:
        yield f"each image once through the network, {columns}x{rows} pixels; then one system of equations"
    else:
        yield f"{r.length}, {r.batch} images a step, {columns}x{rows} pixels"
        micro = max(r.batch // r.accumulation // runtime.ranks.world, 1)
        yield str(memory.expected(plan.config, micro, r, precision=precision))
    if plan.rates:
        yield f"{len(plan.rates)} trainings, one for each of the rates {', '.join(f'{x:.3g}' for x in plan.rates)}"
    seen = "seen no image of its series" if plan.keeps_series else "not seen it"
    if plan.keeps_series:
        yield f"{plan.series}: none is split between what is learned from and what judges"
    if plan.protocol == "leave-one-out":
        yield f"each image is judged by a head that has {seen}, exactly, and the saved one learns from all"
    elif plan.protocol == "folds":
        is_default = plan.folds == FOLDS and len(plan.data) < CROSS_VALIDATE_BELOW
        yield (
            f"{plan.folds} trainings judge each image by a model that has {seen}, and one more learns from all"
            + f" (the default below {CROSS_VALIDATE_BELOW:,} images)" * is_default
        )


def choose_strategy(plan: Plan, runtime: Runtime) -> Strategy:
    """How the devices share the training, by what fits into one of them."""
    r, world, device = plan.recipe, runtime.ranks.world, runtime.device
    if r.is_solved or (world == 1 and runtime.parallel != "fsdp"):  # alone, a batch is split when memory runs out
        return Strategy("alone", checkpointing=bool(r.checkpointing))

    def needs(kind: Kind, parts: int, checkpointing: bool) -> memory.Memory:
        images = max(r.batch // world // parts, 1)
        return memory.expected(
            plan.config, images, r, precision=precision_on(device, r.precision),
            checkpointing=checkpointing, parallel=kind, world=world, parts=parts,
        ).memory  # fmt: skip

    return parallel.choose(
        runtime.parallel,
        needs,
        world=world,
        room=device_memory(device),
        on_each=r.batch // world,
        parts=parts_of(r, world),
        checkpointing=r.checkpointing,
    )


# ------------------------------------------------------------------------------------------------ facts for a newcomer


def _found(data: ImageSet, health: Health | None, unread: int = 0, unlabelled: int = 0) -> Iterator[Fact]:
    """What there is to learn from, how many files that leaves out, and what is wrong with the files."""
    own = ", ".join(f"{n:,} {split}" for split, n in data.split_counts.items())
    count = counted(len(data), "image") + ("" if data.split_was_made else f" ({own})")
    if missing := _missing(unread, unlabelled):
        count = f"{counted(len(data) + unread + unlabelled, 'file')}, {', '.join(missing)}: {count}"
    if not data.classes:
        yield Fact("found", count)
    else:
        least, most = int(data.counts.min()), int(data.counts.max())
        each = f"{least:,} to {most:,}" if least < most else f"{most:,}"
        start, end = f"{count} in {len(data.classes):,} classes (", f"), {each} each"
        named = [", ".join(data.classes[:n]) + " …" * (n < len(data.classes)) for n in range(2, len(data.classes) + 1)]
        texts = [f"{start}{names}{end}" for names in named[:MAX_NAMED]]
        nameless = f"{start.removesuffix(' (')}{end.removeprefix(')')}"
        is_short = not unread and not unlabelled and _has_room(texts[0], 2)
        yield Fact("found", _longest(texts if is_short else [nameless, *texts], 1))
    if health is not None:
        yield Fact("check", _wrong(health), "warn" if health.faults else "plain")


def _missing(unread: int, unlabelled: int) -> tuple[str, ...]:
    parts = f"{unread:,} cannot be read" if unread else "", f"{unlabelled:,} without a label" if unlabelled else ""
    return tuple(filter(None, parts))


def _wrong(health: Health) -> str:
    """What was found, each kind with a file, faults first, in two lines; and the command that shows all."""
    see = f"vitreous check {shlex.quote(health.path)}"
    parts = [f"{what} ({files[0]}{' …' * (len(files) > 1)})" if files else what for what, files in _kinds(health)]
    if not parts:
        return "nothing wrong found" if health.sample_seed is None else f"nothing wrong found; {health.read}"
    named = [(", ".join(parts[:n]), len(parts) - n) for n in range(1, len(parts) + 1)]
    return _longest([f"{text}, {left} more: {see}" if left else f"{text}; see: {see}" for text, left in named], 2)


def _kinds(health: Health) -> Iterator[tuple[str, tuple[str, ...]]]:
    """What was found, and in which files. Unreadable files are one kind, except HEIC: installing a reader helps."""
    torn = [found.files for kind in UNREAD_KINDS if kind != "heic" and (found := health.find(kind))]
    if files := tuple(name for names in torn for name in names):
        yield f"{len(files):,} {'file' if len(files) == 1 else 'files'} cannot be read", files
    for finding in health.findings:
        if finding.kind == "heic" or finding.kind not in UNREAD_KINDS:
            yield finding.what, finding.files


def _longest(texts: list[str], lines: int) -> str:
    """The last of the texts that fits on this many lines of a narrow terminal, else the first."""
    return next((text for text in reversed(texts) if _has_room(text, lines)), texts[0])


def _has_room(text: str, lines: int) -> bool:
    return len(wrap(text, TERMINAL_COLUMNS - FACT_INDENT)) <= lines


def _in_words(plan: Plan) -> str:
    """What will be done, for somebody who knows no recipe."""
    r, network = plan.recipe, _network_in_words(plan.weights)
    if plan.protocol == "masked":
        return f"teach {network} to fill in hidden patches, without labels, {r.length}"
    if r.is_solved:
        return f"teach the last layer of {network} your classes; the other layers stay"
    if plan.weights is None:
        why = ", since the starter knows too little" if any(STARTER_LEFT_OUT in each for each in plan.reasons) else ""
        do = f"train {network}{why}, {r.length}"
    else:
        number = r.policy.removeprefix("last-")
        last = {"head": "the last layer", "last-1": "the last block"}.get(r.policy, f"the last {number} blocks")
        which = last if r.policy == "head" or r.policy.startswith("last-") else "every layer"
        do = f"train {which} of {network}, {r.length}"
    if plan.rates:
        return f"{do}, at each of {len(plan.rates)} learning rates; the best is kept"
    told = f"{do}; {plan.folds} times to judge it, once more to keep" if plan.protocol == "folds" else do
    if plan.estimate is None or r.policy == "head":
        return told
    return f"{told}; quicker: --policy head, about {100 * plan.estimate.accuracy:.0f} % right in seconds"


def _network_in_words(weights: Weights | None) -> str:
    if weights is None:
        return "a new network"
    if isinstance(weights, Model):
        return "the network given"
    if starter.is_meant(weights):
        return "the starter"
    place = Path(weights)
    return (place.parent if place.name == "model.safetensors" else place).name or weights


# -------------------------------------------------------------------------------------------------------------- images


def _opened(request: Request, progress: Callable[[int, int], None], say: Say) -> ImageSet:
    """The images, with a line about shards that were skipped."""
    data = open_data.open(
        request.data, group_by=request.group_by, skip_bad_shards=request.skip_bad_shards, progress=progress
    )
    for note in data.notes if data.about.get("bad_shards") else ():
        if note.startswith("skipped "):
            say(Noted(note))
    return data


def _learnable(data: ImageSet, recipe: str | Recipe) -> ImageSet:
    """The images a run can learn from; a set that offers none is refused."""
    name = recipe if isinstance(recipe, str) else recipe.task
    if name == "masked-patches":  # ignores labels, and its network gets no head
        splits = data.splits if (data.splits == TRAIN).any() else np.full(len(data), TRAIN)
        return replace(data, labels=np.zeros(len(data), np.int64), classes=(), splits=splits)
    if len(data.classes) and not data.has_many_labels and (data.labels < 0).any():
        data = data.take(data.labels >= 0)
    refusals.refuse_unlearnable(data)
    return data


def _check(data: ImageSet, say: Say, progress: Callable[[int, int], None] | None, *, again: bool) -> Health:
    most = CHECKED_OF_STREAMED if data.is_streamed else CHECKED_IMAGES
    health = check(data, sample=most if len(data) > most else None, progress=progress, again=again)
    if not data.classes:  # labels are ignored, so none is wrong
        health = replace(health, findings=tuple(found for found in health.findings if found.kind != "wrong-label"))
    for finding in health.faults:
        say(f"caution: {finding.what}; {finding.do}")
    return health


def _without(data: ImageSet, names: tuple[str, ...], say: Say) -> ImageSet:
    """Leave out images that cannot be read."""
    if not names:
        return data
    say(f"left out: {counted(len(names), 'image')} that cannot be read, such as {names[0]}")
    bad = set(names)
    left = data.take(np.array([data.name(i) not in bad for i in range(len(data))]))
    refusals.refuse_unread(left, names)
    return left


def _with_copies(data: ImageSet, group_by: str | None) -> ImageSet:
    """Groups that the user names, joined with copies; refused if they leave nothing to judge by."""
    if group_by is None or data.groups is None or not data.classes:
        return data
    refusals.refuse_one_series(data, group_by)
    return data if data.split_was_made else replace(data, groups=splits.find_groups(data, data.groups)[0])


def _in_series(data: ImageSet, groups: NDArray[np.int64], by: str, *, is_judged_whole: bool) -> ImageSet:
    """The images with series that were guessed. If all are judged in turn, the split decides nothing and stays."""
    return replace(data, groups=groups) if is_judged_whole else open_data.regroup(data, groups, f"series by {by}")


def _counted(told: Series | None, data: ImageSet, group_by: str | None) -> Series | None:
    """Series with counts over all images, even if only a part was measured, or none."""
    if group_by is not None and told is None and data.groups is not None:
        return Series.of(data.groups, group_by, is_given=True)
    if told is None or data.groups is None or not told.is_kept_whole:
        return told
    found = Series.of(data.groups, told.by, is_given=told.is_given)
    return replace(told, count=found.count, images=found.images)


def _about_series(plan: Plan) -> Iterator[str]:
    """Cautions about series that leave a class unknown when left out whole, or that nobody measured."""
    data = plan.data
    if plan.keeps_series and not data.has_many_labels and data.groups is not None:
        alone = [name for i, name in enumerate(data.classes) if len(np.unique(data.groups[data.labels == i])) == 1]
        if alone:
            have = "class has" if len(alone) == 1 else "classes have"
            yield (
                f"{len(alone):,} {have} one series alone ({few(alone)}); left out whole, nothing of the class is "
                "learned, so the number is too low; add images of another series"
            )
        torn = set(data.groups[data.splits == TEST].tolist()) & set(data.groups[data.splits == TRAIN].tolist())
        if torn and not data.split_was_made:
            yield f"the set's own test split separates {len(torn):,} series, so its number is too high"
    elif plan.series is None and plan.recipe.task == "classify" and data.split_was_made and not data.is_streamed:
        named = [guess for guess in series.guesses(data) if guess.option]
        if named:
            yield (
                f"images seem to come in series, by {named[0].by}; if images of one series are learned from and others "
                f"judge, the number is too high; keep them together: --group-by {named[0].option}"
            )


def _split_counts(data: ImageSet) -> dict[str, int]:
    return {name: int((data.splits == name).sum()) for name in (TRAIN, TEST)}


# -------------------------------------------------------------------------------------------------- recipe and protocol


def _choose_recipe(
    request: Request, data: ImageSet, typical: Size, found: Beginning, runtime: Runtime
) -> tuple[Recipe, tuple[str, ...]]:
    """The recipe with the user's changes, and why this one."""
    asked, count, classes = request.recipe, int((data.splits == TRAIN).sum()), len(data.classes)
    if isinstance(asked, Recipe):
        chosen = asked if request.model is None else replace(asked, model=request.model)
        reasons: tuple[str, ...] = (f"the recipe {asked.name}, as given",)
    elif asked != "auto":
        chosen = recipes.get(asked, images=count, classes=classes, image_size=typical, model=request.model)
        reasons = (f"the recipe {asked}, as asked for",)
    else:
        choice = auto_recipe.choose(
            count,
            classes,
            typical,
            found.start,
            runtime.device.type,
            data.has_many_labels,
            model=request.model,
            asked=request.changes.get("policy"),
            estimate=found.estimate,
            may_solve=set(request.changes) <= SOLVED_FIELDS and not request.rates,
            has_room=found.start is None or closed_form.has_room(len(data), found.start),
            knows_classes=found.start is not None and found.start.labels == tuple(data.classes),
        )
        learned = len(learned_images(data, 0 if request.rates else request.folds))  # by the saved model
        told = (reason.replace(f"{count:,} images of", f"{learned:,} images of") for reason in choice.reasons)
        chosen, reasons = choice.recipe, (*found.reasons, *told)
    if request.as_new and asked == "auto":
        chosen = replace(chosen, image_size=None)
        reasons = (
            f"the network given trains from its present weights by {chosen.name}, as a new one; weights= fine-tunes it",
        )
    changed = _changed(chosen, request, data)
    return replace(changed, teacher=changed.teacher and one_run(changed.teacher)), reasons


def _changed(recipe: Recipe, request: Request, data: ImageSet) -> Recipe:
    recipe = recipe.change(**request.changes)
    if data.has_many_labels and recipe.loss != "sigmoid":
        if "loss" in request.changes:
            raise ConfigError("these images have several labels each, which loss=softmax cannot learn; leave it out")
        recipe = recipe.change(loss="sigmoid", smoothing=0.0)
    return recipe


def _sweep_rates(recipe: Recipe, request: Request, say: Say) -> tuple[float, ...]:
    """The rates to try, in rising order; empty without a sweep, or if nothing has a rate."""
    if request.rates is False:
        return ()
    if recipe.is_solved:
        say(Noted(f"a closed form has no rate to sweep; its penalty is chosen among {len(recipe.l2)} as it is"))
        return ()
    refusals.refuse_unsweepable(recipe)
    refusals.refuse_folds_in_sweep(request.folds)
    if request.rates is True:
        return SGD_RATES if recipe.optimizer == "sgd" else tuple(recipe.peak_lr * factor for factor in RATE_FACTORS)
    return refusals.check_rates(request.rates)


def _choose_protocol(
    request: Request, recipe: Recipe, rates: tuple[float, ...], data: ImageSet, say: Say
) -> tuple[str, int]:
    """How the run trains and judges, and in how many folds."""
    folds = request.folds
    if recipe.is_solved:
        judges_all = len(learned_images(data, folds)) == len(data)
        if folds:
            judged = "each image is left out in its turn" if judges_all else "test judges it"
            say(Noted(f"a closed form takes no {folds} folds; {judged}"))
        return _protocol(recipe, int(judges_all), ()), 0
    if recipe.task != "classify" or rates:
        folds = 0
    elif folds is None:
        folds = FOLDS if len(data) < CROSS_VALIDATE_BELOW else 0
    return _protocol(recipe, folds, rates), folds


def _protocol(recipe: Recipe, folds: int, rates: tuple[float, ...]) -> str:
    """folds: as config.json has it; above 0, a solved head is judged on all images."""
    if recipe.task != "classify":
        return "masked"
    if recipe.is_solved:
        return "leave-one-out" if folds else "closed-form"
    return "sweep" if rates else "folds" if folds else "dev"


# ------------------------------------------------------------------------------------------------------------- network


def _first_network(request: Request, found: Beginning, recipe: Recipe, data: ImageSet, runtime: Runtime) -> Model:
    """The network with the recipe's size and dropout; a new one that cannot fit is refused before it takes memory."""
    size = None if recipe.image_size is None else as_size(recipe.image_size)
    if found.weights is None:
        asked = {"image_size": size, "classes": len(data.classes), "channels": data.channels}
        named = parse(network_name(request.model, recipe))
        config = named.change(**{name: value for name, value in asked.items() if value is not None})
        refusals.refuse_too_large(config, recipe, runtime)
    if found.start is not None and size in (None, found.start.config.image_size):
        return with_recipe(found.start, recipe)
    return make_network(found.weights, request.model, recipe, data, size)


def _fitted(recipe: Recipe, data: ImageSet, protocol: str, folds: int, preprocess: Preprocess, say: Say) -> Recipe:
    """The recipe with a batch that the images can fill and augmentation at the network's size."""
    parts = len(data) if protocol == "leave-one-out" else folds
    refusals.refuse_too_few(data, recipe, parts, has_folds=protocol == "folds")
    trained = refusals.train_size(data, recipe, parts)
    batch = min(recipe.batch, trained // 2 * 2)
    if batch != recipe.batch and not recipe.is_solved:
        say(f"a step takes {batch} images, since no more than {trained} are there to train on")
        recipe = recipe.change(batch=batch, accumulation=1)
    margin = min(recipe.augment.margin, min(preprocess.size) - 1)
    augment = replace(recipe.augment, size=preprocess.size, margin=margin)
    return replace(recipe, augment=augment, image_size=None)


def _new_preprocess(size: Size, typical: Size, channels: int) -> Preprocess:
    """How a new network takes its images: small ones whole, photographs cropped to their middle."""
    half = (0.5,) * channels
    if typical == size or max(typical) <= SMALL_SIDE:
        return Preprocess(size=size, fit="squash", antialias=True, mean=half, std=half, source="vitreous")
    side = round(min(size) * CROP_MARGIN)
    return Preprocess(size=size, fit="crop", short_side=side, antialias=True, mean=half, std=half, source="vitreous")


def _beginning(weights: Weights | None, as_new: bool) -> str:
    if weights is None:
        return "from scratch"
    if isinstance(weights, Model):
        return "from its present weights" if as_new else "from the weights given"
    return "from the starter" if starter.is_meant(weights) else f"the weights {weights}"


# -------------------------------------------------------------------------------------------------- weights on resuming


def _digests(weights: Weights | None, teacher: str | None) -> dict[str, str]:
    """Digests of the files that these name. A name that is not a path, or a network in memory, has no digest."""
    files = {"weights": _weight_files(weights), "teacher": _weight_files(teacher)}
    return {what: digest("".join(map(digest, found)).encode()) for what, found in files.items() if found}


def _weight_files(source: Weights | None) -> list[Path]:
    """The file itself; for a folder its model.safetensors, else every file of weights in it."""
    place = Path(source) if isinstance(source, str) and source else None
    if place is None or not place.is_dir():
        return [place] if place is not None and place.is_file() else []
    only = place / "model.safetensors"
    return [only] if only.is_file() else sorted(p for p in place.iterdir() if p.suffix in READERS and p.is_file())


def _refuse_changed_weights(config: dict[str, Any]) -> None:
    """A run continues only with the weights it began with. Older runs recorded no digest and are trusted."""
    places = {"weights": config["weights"], "teacher": config["recipe"].get("teacher")}
    now = _digests(**places)
    for what, before in config.get("digests", {}).items():
        if what in now and now[what] != before:
            name = "the weights" if what == "weights" else "the teacher"
            raise RunError(f"{name} {places[what]} changed after the run began; put them back, or start a new run")


def _absolute(path: str) -> str:
    """A path that means the same in any folder; words such as `fashion` and addresses stay as they are."""
    is_pattern = any(mark in path for mark in "*?[") and "://" not in path
    return str(Path(path).absolute()) if Path(path).exists() or is_pattern else path
