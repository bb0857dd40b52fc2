"""A recipe: everything that decides a run's numbers, as one frozen value that goes to JSON and back.

Options have one name over recipe and augmentation, so that a change needs no path:
`recipe.change(peak_lr=3e-3, mixup=0.2, length="30 epochs")`; the command line's `--set name=value` is this.
"""

from __future__ import annotations

import dataclasses
import math
import re
import typing
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec

from vitreous.errors import ConfigError, advice
from vitreous.images.pixels.augment import Augment

__all__ = ["Epochs", "Length", "Recipe", "Seconds", "Steps", "check_names", "from_json", "length", "option"]


@dataclass(frozen=True)
class Epochs:
    """Times through the training images."""

    count: float

    def __str__(self) -> str:
        return f"{self.count:g} epochs"


@dataclass(frozen=True)
class Steps:
    """Changes of the weights."""

    count: int

    def __str__(self) -> str:
        return f"{self.count} steps"


@dataclass(frozen=True)
class Seconds:
    """Time for the steps alone; becomes a fixed number of steps after the first few, which is written down."""

    count: float

    def __str__(self) -> str:
        return f"{self.count:g} seconds"


Length = Epochs | Steps | Seconds


L2S = tuple(4.0**k for k in range(9))  # 1 to 65,536
USUAL = ("length", "batch", "peak_lr", "weight_decay", "image_size", "seed")  # fields that most changes are of
THEIR_WORDS = {  # of other libraries and of our own command line: what to say here
    word: said
    for said, words in {
        'length="{} epochs"': "epochs epoch num_epochs n_epochs max_epochs num_train_epochs total_epochs",
        'length="{} steps"': "steps max_steps num_steps total_steps iterations iters",
        'length="{} seconds"': "seconds time max_seconds",
        'length="{} minutes"': "minutes",
        "batch={}": "batch_size batchsize bs train_batch_size",
        "accumulation={}": "accumulate accum_iter accumulation_steps gradient_accumulation_steps",
        "peak_lr={}": "lr learning_rate learningrate base_lr max_lr initial_lr rate",
        "end_lr={}": "min_lr final_lr",
        "head_lr={}": "head_learning_rate",
        "weight_decay={}": "wd decay",
        "layer_decay={}": "llrd layerwise_decay layer_lr_decay",
        "optimizer={}": "optimiser opt",
        "schedule={}": "scheduler sched lr_schedule lr_scheduler",
        'warmup="{} epochs"': "warmup_epochs",
        'warmup="{} steps"': "warmup_steps",
        "warmup={}": "warmup_ratio",
        "clip={}": "grad_clip clip_grad clip_norm max_grad_norm gradient_clip gradient_clip_val",
        "smoothing={}": "label_smoothing",
        'average="ema"': "ema model_ema",
        "average_decay={}": "ema_decay model_ema_decay",
        "dropout={}": "drop drop_rate dropout_rate",
        "drop_path={}": "drop_path_rate stochastic_depth",
        "image_size={}": "img_size imgsz imagesize input_size resolution size",
        "precision={}": "dtype amp",
        "loss={}": "criterion loss_fn",
        "mixup={}": "mixup_alpha",
        "cutmix={}": "cutmix_alpha",
        "flip={}": "hflip horizontal_flip",
        "dev={}": "val val_split validation_split valid",
        "patience={}": "early_stopping",
        "evaluate_every={}": "eval_every eval_interval",
        "seed={}": "random_seed random_state",
    }.items()
    for word in words.split()
}


def option(default: Any, meaning: str) -> Any:
    return field(default=default, metadata={"meaning": meaning})


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """What decides a run's numbers; device and folder are arguments of `fit`."""

    name: str = option("custom", "whose recipe this is")
    source: str = option("", "where it was published")
    task: Literal["classify", "masked-patches"] = option("classify", "what the network learns")
    model: str | None = option(None, "the network, where none is asked for")
    image_size: int | tuple[int, int] | None = option(
        None, "pixels of a side, or rows x columns; none: the model's, or what suits the images"
    )

    length: Length = option(Epochs(100), "how long: '30 epochs', '500 steps' or '60 seconds'")
    batch: int = option(512, "images per step, all devices together")
    accumulation: int = option(1, "parts that a step's images are taken in, one after the other")
    seed: int = option(0, "of first weights, dev and folds, order, augmentation, masks and dropout")
    precision: Literal["auto", "float32", "bfloat16"] = option("auto", "auto: bfloat16 on GPUs that have it")

    optimizer: Literal["adamw", "adam", "sgd", "muon", "lamb", "closed-form"] = option(
        "adamw", "adam and adamw are one: their decay is decoupled; closed-form takes no steps, it solves the head"
    )
    l2: tuple[float, ...] = option(L2S, "closed-form: penalties, of which leave-one-out chooses")
    peak_lr: float = option(1e-3, "rate at the end of the warm-up")
    head_lr: float | None = option(None, "peak rate of the head alone; none: as the others")
    betas: tuple[float, float] = option((0.9, 0.999), "of Adam, AdamW, LAMB, and of AdamW beside Muon")
    eps: float = option(1e-8, "of Adam, AdamW, LAMB, and of AdamW beside Muon")
    momentum: float = option(0.9, "of SGD and Muon")
    muon_lr: float = option(0.02, "Muon's peak rate, of the blocks' matrices; all else is AdamW at peak_lr")
    weight_decay: float = option(0.1, "on kernels only, times the rate; SGD's is L2, as BiT's")
    layer_decay: float = option(1.0, "factor on the rate for each layer further from the head")
    policy: str = option("full", "layers that train: head, last-K, all (at a tenth), layer-decay, full")
    clip: float | None = option(1.0, "largest norm of all gradients together; none: no limit")

    schedule: Literal["cosine", "linear", "steps", "constant", "rsqrt", "deit"] = option("cosine", "after the warm-up")
    warmup: Epochs | Steps | float = option(0.05, "steps, epochs, or a share of all steps")
    end_lr: float = option(0.0, "where linear, cosine and deit end")
    warmup_lr: float = option(0.0, "where deit begins")
    drops: tuple[float, ...] = option((), "schedule=steps: a tenth from each of these shares of all steps on")
    timescale: int = option(10_000, "schedule=rsqrt")
    cooldown: Epochs | Steps | float = option(0.0, "linearly to 0 at the end, over and above the schedule")

    average: Literal["none", "ema", "polyak", "tail"] = option(
        "none", "of the weights: ema follows faster at first, polyak has one factor, tail is the mean of the last steps"
    )
    average_decay: float = option(0.9999, "factor of ema and polyak at each step")
    average_tail: float = option(0.25, "share of all steps that tail averages")

    loss: Literal["softmax", "sigmoid"] = option("softmax", "sigmoid: every class by itself; several labels need it")
    smoothing: float = option(0.0, "of labels")
    head_bias: float | None = option(None, "first value of the head's bias; none: 0")
    first_head: Literal["new", "solved"] = option(
        "new", "of given weights; new: zero, or their own for the same classes; solved: in closed form, on train alone"
    )
    dropout: float | None = option(None, "of the model; none: as the model says")
    drop_path: float | None = option(None, "of the model; none: as the model says")
    teacher: str | None = option(None, "MODEL to distil from")
    distillation: Literal["hard", "soft"] = option("hard", "DeiT's two kinds")
    distillation_share: float = option(0.5, "of the loss that is the teacher's")
    distillation_temperature: float = option(3.0, "of soft distillation")
    masked: float = option(0.5, "share of patches chosen, task=masked-patches")

    augment: Augment = option(Augment(), "what is done to a training image; its size is the model's")
    repeats: int = option(1, "times that an epoch shows each of its images, a part of the set (DeiT: 3)")

    dev: float = option(0.1, "share of train set aside to choose by; 0: the last state is taken")
    evaluate_every: float = option(1.0, "epochs between looks at dev; a run has at most 50")
    patience: int | None = option(None, "looks at dev without gain before the run ends; none: it goes through")

    def __post_init__(self) -> None:
        self._check()

    @property
    def is_solved(self) -> bool:
        """Whether the head is computed, not trained."""
        return self.optimizer == "closed-form"

    def change(self, **changes: Any) -> Recipe:
        """With options replaced by their flat names, augmentation's among them; words are read as the option's type."""
        check_names(changes)
        own, _ = _fields()
        new: dict[str, Any] = {}
        inner: dict[str, Any] = {}
        for name, value in changes.items():
            if name == "augment":
                new[name] = value
            elif name in own:
                new[name] = _read(name, value, typing.get_type_hints(Recipe)[name])
            else:
                inner[name] = _read(name, value, typing.get_type_hints(Augment)[name])
        if inner:
            new["augment"] = dataclasses.replace(new.get("augment", self.augment), **inner)
        return dataclasses.replace(self, **new)

    def to_json(self) -> dict[str, Any]:
        """Plain values; lengths as the words that `change` reads."""
        values = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        return {
            name: str(value) if isinstance(value, Epochs | Steps | Seconds) else msgspec.to_builtins(value)
            for name, value in values.items()
        }

    def _check(self) -> None:
        def need(holds: bool, what: str) -> None:
            if not holds:
                raise ConfigError(f"recipe: {what}")

        for f in dataclasses.fields(self):
            value = getattr(self, f.name)
            if isinstance(value, float):
                need(math.isfinite(value), f"{f.name}={value} is no number; give a finite one")
            if isinstance(value, Epochs | Steps | Seconds):
                fits = math.isfinite(value.count) and (value.count > 0 if f.name == "length" else value.count >= 0)
                need(fits, f"{f.name}={value} is no length; give e.g. '10 epochs'")
        for name in ("peak_lr", "muon_lr", "layer_decay"):
            need(getattr(self, name) > 0, f"{name}={getattr(self, name)} must be above 0")
        for name in ("batch", "accumulation", "repeats", "timescale"):
            need(getattr(self, name) >= 1, f"{name}={getattr(self, name)} must be 1 or more")
        for name in ("weight_decay", "end_lr", "warmup_lr", "smoothing", "eps"):
            need(getattr(self, name) >= 0, f"{name}={getattr(self, name)} must not be negative")
        for name in ("momentum", "average_decay", "smoothing", "dev", "dropout", "drop_path"):
            share = getattr(self, name)
            need(share is None or 0 <= share < 1, f"{name}={share} must be at least 0 and below 1")
        for name in ("masked", "average_tail"):
            need(0 < getattr(self, name) <= 1, f"{name}={getattr(self, name)} must be above 0 and at most 1")
        fits = all(0 <= beta < 1 for beta in self.betas)
        need(fits, f"betas={','.join(map(str, self.betas))} must each be at least 0 and below 1; give e.g. 0.9,0.999")
        need(-(2**63) <= self.seed < 2**64, f"seed={self.seed} has too many digits; give at most 18 of them")
        need(self.batch % self.accumulation == 0, f"batch={self.batch} has no {self.accumulation} equal parts")
        need(self.clip is None or self.clip > 0, f"clip={self.clip} must be above 0, or none")
        need(self.head_lr is None or self.head_lr > 0, f"head_lr={self.head_lr} must be above 0, or none")
        need(self.evaluate_every > 0, f"evaluate_every={self.evaluate_every} must be above 0")
        need(self.patience is None or self.patience >= 1, f"patience={self.patience} must be 1 or more, or none")
        need(all(0 < share < 1 for share in self.drops), f"drops={self.drops} are no shares of the steps")
        has_l2 = bool(self.l2) and all(0 < value < math.inf for value in self.l2)
        need(has_l2, f"l2={self.l2} are no penalties; give numbers above 0")
        if self.is_solved:
            self._check_solved(need)

    def _check_solved(self, need: Callable[[bool, str], None]) -> None:
        """A closed form knows one head, one class an image, and each image as it is."""
        plain = Augment(size=self.augment.size, margin=self.augment.margin, crop="none", flip=0.0)
        need(self.policy == "head", "optimizer=closed-form solves the head alone; say --recipe linear-probe")
        need(self.task == "classify" and self.loss == "softmax", "optimizer=closed-form names one class an image")
        need(self.teacher is None, "optimizer=closed-form learns from no teacher; say another, such as adamw")
        need(self.augment == plain, "optimizer=closed-form sees each image as it is; leave augmentation out, or train")


def check_names(changes: Mapping[str, Any], also: Collection[str] = ()) -> None:
    """Refuse what is no field of a recipe, nor of its augmentation.  also: words that may have been meant as well."""
    own, augment = _fields()
    for name, value in changes.items():
        if name not in own and name not in augment and not (name == "augment" and isinstance(value, Augment)):
            usual = f"the usual ones: {', '.join(USUAL)}"
            do = advice(name, [*own, *augment, *also], theirs=THEIR_WORDS, value=value, otherwise=usual)
            raise ConfigError(f"a recipe has no field {name!r}; {do}")


def _fields() -> tuple[list[str], list[str]]:
    """Names of the recipe's own fields, and of its augmentation's; a size is the recipe's."""
    own, augment = ([f.name for f in dataclasses.fields(kind)] for kind in (Recipe, Augment))
    return [name for name in own if name != "augment"], [name for name in augment if name != "size"]


def from_json(data: Any) -> Recipe:
    """The recipe that `to_json` wrote."""
    if not isinstance(data, dict):
        raise ConfigError(f"a recipe is a JSON object, not {type(data).__name__}; write one with recipe.to_json()")
    rest = dict(data)
    try:
        augment = msgspec.convert(rest.pop("augment", {}), Augment)
    except msgspec.ValidationError as error:
        raise ConfigError(f"the recipe's augmentation does not fit: {error}") from None
    return Recipe(augment=augment).change(**rest)


def length(value: Any, name: str = "length") -> Length:
    """'30 epochs', '500 steps', '60 seconds' (or 30e, 60s) as a length."""
    if isinstance(value, Epochs | Steps | Seconds):
        return value
    found = re.fullmatch(r"\s*([\d.]+(?:e[+-]?\d+)?)\s*(e|epochs?|steps?|s|seconds?|m|minutes?)\s*", str(value))
    try:
        if found is None:
            raise ValueError
        count, unit = float(found[1]), found[2]
        if unit.startswith("st"):
            if count != int(count):
                raise ValueError
            return Steps(int(count))
        if unit.startswith("e"):
            return Epochs(count)
        return Seconds(count * (60 if unit.startswith("m") else 1))
    except ValueError:
        raise ConfigError(f"{name}={value!r} is no length; say '30 epochs', '500 steps' or '60 seconds'") from None


def _read(name: str, value: Any, hint: Any) -> Any:
    """`value` as the type the field has; one clear line where it cannot be."""
    kinds = typing.get_args(hint) or (hint,)
    if value in (None, "none") and type(None) in kinds:
        return None
    if Epochs in kinds:
        if isinstance(value, str) and float in kinds and re.fullmatch(r"\s*[\d.]+\s*", value):
            return float(value)
        return float(value) if isinstance(value, int | float) and float in kinds else length(value, name)
    pair = next((kind for kind in kinds if typing.get_origin(kind) is tuple), None)
    if typing.get_origin(hint) is tuple:
        pair = hint
    is_one = int in kinds and bool(re.fullmatch(r"\s*[+-]?\d+\s*", str(value)))  # a side alone, of rows x columns
    try:
        if pair is not None and not is_one:
            words = [word for word in re.split(r"[,\s()x×]+", value) if word] if isinstance(value, str) else list(value)
            return msgspec.convert(words, pair, strict=False)
        if is_one:
            return int(value)
        return msgspec.convert(value, hint, strict=not isinstance(value, str))
    except (msgspec.ValidationError, ValueError, TypeError):
        raise ConfigError(f"{name}={value!r} does not fit; give {_words(hint, kinds)}") from None


def _words(hint: Any, kinds: tuple[Any, ...]) -> str:
    if typing.get_origin(hint) is Literal:
        return " | ".join(map(str, kinds))
    if typing.get_origin(hint) is tuple:
        return "numbers with commas between" if ... in kinds else f"{len(kinds)} numbers with a comma between"
    names = {int: "a whole number", float: "a number", str: "a word", bool: "true or false", type(None): "none"}
    return " or ".join(names.get(kind, "numbers with commas between") for kind in kinds)
