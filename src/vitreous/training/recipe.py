"""A recipe: everything that decides a run's numbers, as one frozen value that goes to JSON and back.

Recipe and augmentation share one set of option names, so a change needs no path:
`recipe.change(peak_lr=3e-3, mixup=0.2, length="30 epochs")`; the command line's `--set name=value` is this.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from vitreous.errors import ConfigError, advice
from vitreous.images.pixels.augment import Augment
from vitreous.options import changed, check_ranges, json_object, option, options_of, read_json, their_words

__all__ = [
    "Epochs",
    "Length",
    "Recipe",
    "Seconds",
    "Steps",
    "check_names",
    "from_json",
    "in_our_words",
    "length",
    "option",
]


@dataclass(frozen=True)
class Length:
    """How long a run is, or a part of it."""

    count: float

    def __str__(self) -> str:
        number = self.count if isinstance(self.count, int) else f"{self.count:g}"
        return f"{number} {type(self).__name__.lower()}"


class Epochs(Length):
    """Times through the training images."""


class Steps(Length):
    """Changes of the weights."""

    count: int


class Seconds(Length):
    """Time for the steps alone; becomes a fixed number of steps after the first few, which is written down."""


def length(value: Any, name: str = "length") -> Length:
    """'30 epochs', '500 steps', '60 seconds' (or 30e, 60s) as a length."""
    if isinstance(value, Epochs | Steps | Seconds):
        return value
    number, unit = r"(\d+\.?\d*|\.\d+)(e[+-]?\d+)?", "e|epochs?|steps?|s|seconds?|m|minutes?"
    if found := re.fullmatch(rf"\s*(?P<count>{number})\s*(?P<unit>{unit})\s*", str(value)):
        count, unit = float(found["count"]), found["unit"]
        if unit.startswith("e"):
            return Epochs(count)
        if not unit.startswith("st"):
            return Seconds(count * (60 if unit.startswith("m") else 1))
        if count.is_integer():
            return Steps(int(count))
    raise ConfigError(f"{name}={value!r} is not a length; say '30 epochs', '500 steps' or '60 seconds'")


def _length_or_share(value: Any, name: str) -> Length | float:
    """A length, or a bare number: a share of all steps."""
    try:
        return float(value)
    except (TypeError, ValueError):
        return length(value, name)


L2S = tuple(4.0**k for k in range(9))  # 1 to 65,536
USUAL = ("length", "batch", "peak_lr", "weight_decay", "image_size", "seed")  # the fields that are changed most
THEIR_WORDS = their_words(  # also words of our own command line
    {
        'length="{} epochs"': "epochs epoch num_epochs n_epochs max_epochs num_train_epochs total_epochs",
        'length="{} steps"': "steps max_steps num_steps total_steps iterations iters",
        'length="{} seconds"': "seconds time max_seconds",
        'length="{} minutes"': "minutes",
        "batch={}": "batch_size batchsize bs train_batch_size",
        "accumulation={}": "accumulate accum_iter accumulation_steps gradient_accumulation_steps",
        "checkpointing={}": "gradient_checkpointing activation_checkpointing grad_checkpointing",
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
    }
)


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

    length: Length = option(Epochs(100), "how long: '30 epochs', '500 steps' or '60 seconds'", read=length)
    batch: int = option(512, "images per step, all devices together", at_least=1)
    accumulation: int = option(1, "parts that a step's images are taken in, one after the other", at_least=1)
    checkpointing: bool | None = option(
        None, "recompute each block in the backward pass instead of keeping it; none: where memory asks for it"
    )
    seed: int = option(0, "of first weights, dev and folds, order, augmentation, masks and dropout")
    precision: Literal["auto", "float32", "bfloat16"] = option("auto", "auto: bfloat16 on GPUs that have it")

    optimizer: Literal["adamw", "adam", "sgd", "muon", "lamb", "closed-form"] = option(
        "adamw", "adam and adamw are one: their decay is decoupled; closed-form takes no steps, it solves the head"
    )
    l2: tuple[float, ...] = option(L2S, "closed-form: penalties, of which leave-one-out chooses", above=0)
    peak_lr: float = option(1e-3, "rate at the end of the warm-up", above=0)
    head_lr: float | None = option(None, "peak rate of the head alone; none: as the others", above=0)
    betas: tuple[float, float] = option(
        (0.9, 0.999), "of Adam, AdamW, LAMB, and of AdamW beside Muon", at_least=0, below=1
    )
    eps: float = option(1e-8, "of Adam, AdamW, LAMB, and of AdamW beside Muon", at_least=0)
    momentum: float = option(0.9, "of SGD and Muon", at_least=0, below=1)
    muon_lr: float = option(0.02, "Muon's peak rate, of the blocks' matrices; all else is AdamW at peak_lr", above=0)
    weight_decay: float = option(0.1, "on kernels only, times the rate; SGD's is L2, as BiT's", at_least=0)
    layer_decay: float = option(1.0, "factor on the rate for each layer further from the head", above=0)
    policy: str = option("full", "layers that train: head, last-K, all (at a tenth), layer-decay, full")
    clip: float | None = option(1.0, "largest norm of all gradients together; none: no limit", above=0)

    schedule: Literal["cosine", "linear", "steps", "constant", "rsqrt", "deit"] = option("cosine", "after the warm-up")
    warmup: Epochs | Steps | float = option(0.05, "steps, epochs, or a share of all steps", read=_length_or_share)
    end_lr: float = option(0.0, "where linear, cosine and deit end", at_least=0)
    warmup_lr: float = option(0.0, "where deit begins", at_least=0)
    drops: tuple[float, ...] = option(
        (), "schedule=steps: a tenth from each of these shares of all steps on", above=0, below=1
    )
    timescale: int = option(10_000, "schedule=rsqrt", at_least=1)
    cooldown: Epochs | Steps | float = option(
        0.0, "linearly to 0 at the end, over and above the schedule", read=_length_or_share
    )

    average: Literal["none", "ema", "polyak", "tail"] = option(
        "none", "of the weights: ema follows faster at first, polyak has one factor, tail is the mean of the last steps"
    )
    average_decay: float = option(0.9999, "factor of ema and polyak at each step", at_least=0, below=1)
    average_tail: float = option(0.25, "share of all steps that tail averages", above=0, at_most=1)

    loss: Literal["softmax", "sigmoid"] = option("softmax", "sigmoid: every class by itself; several labels need it")
    smoothing: float = option(0.0, "of labels", at_least=0, below=1)
    head_bias: float | None = option(None, "first value of the head's bias; none: 0")
    first_head: Literal["new", "solved"] = option(
        "new", "of given weights; new: zero, or their own for the same classes; solved: in closed form, on train alone"
    )
    dropout: float | None = option(None, "of the model; none: as the model says", at_least=0, below=1)
    drop_path: float | None = option(None, "of the model; none: as the model says", at_least=0, below=1)
    teacher: str | None = option(None, "MODEL to distil from")
    distillation: Literal["hard", "soft"] = option("hard", "DeiT's two kinds")
    distillation_share: float = option(0.5, "of the loss that is the teacher's")
    distillation_temperature: float = option(3.0, "of soft distillation")
    masked: float = option(0.5, "share of patches chosen, task=masked-patches", above=0, at_most=1)

    augment: Augment = Augment()  # what is done to a training image; its size is the model's
    repeats: int = option(1, "times that an epoch shows each of its images, a part of the set (DeiT: 3)", at_least=1)

    dev: float = option(0.1, "share of train set aside to choose by; 0: the last state is taken", at_least=0, below=1)
    evaluate_every: float = option(1.0, "epochs between looks at dev; a run has at most 50", above=0)
    patience: int | None = option(
        None, "looks at dev without gain before the run ends; none: it goes through", at_least=1
    )

    def __post_init__(self) -> None:
        check_ranges(self, "recipe: ")
        for name, value in (("length", self.length), ("warmup", self.warmup), ("cooldown", self.cooldown)):
            count = value.count if isinstance(value, Length) else value
            fits = math.isfinite(count) and (count > 0 if name == "length" else count >= 0)
            _need(fits, f"{name}={value} is not a length; give e.g. '10 epochs'")
        _need(-(2**63) <= self.seed < 2**64, f"seed={self.seed} has too many digits; give at most 18 of them")
        _need(self.batch % self.accumulation == 0, f"batch={self.batch} has no {self.accumulation} equal parts")
        _need(bool(self.l2), "l2 has no penalties; give numbers above 0")
        if self.is_solved:
            self._check_solved()

    @property
    def is_solved(self) -> bool:
        """Whether the head is computed, not trained."""
        return self.optimizer == "closed-form"

    def change(self, **changes: Any) -> Recipe:
        """The recipe with options replaced by name, including augmentation's; words are read as the option's type."""
        check_names(changes)
        return changed(self, changes)

    def to_json(self) -> dict[str, Any]:
        """Plain values; lengths as the words that `change` reads."""
        return {
            name: str(value) if isinstance(value, Length) else msgspec.to_builtins(value)
            for name, value in vars(self).items()
        }

    def _check_solved(self) -> None:
        """A closed form knows one head, one class per image, and each image as it is."""
        plain = Augment(size=self.augment.size, margin=self.augment.margin, crop="none", flip=0.0)
        _need(self.policy == "head", "optimizer=closed-form solves the head alone; say --recipe linear-probe")
        _need(self.task == "classify" and self.loss == "softmax", "optimizer=closed-form names one class an image")
        _need(self.teacher is None, "optimizer=closed-form learns from no teacher; say another, such as adamw")
        _need(self.augment == plain, "optimizer=closed-form sees each image as it is; leave augmentation out, or train")


def _need(holds: bool, what: str) -> None:
    if not holds:
        raise ConfigError(f"recipe: {what}")


def check_names(changes: Mapping[str, Any], also: Collection[str] = ()) -> None:
    """Refuse a name that is not a field of a recipe or of its augmentation.  also: words that may have been meant."""
    known = [each.name for each in options_of(Recipe())]
    fields = {name: value for name, value in changes.items() if name != "augment" and name not in known}
    usual = f"the usual ones: {', '.join(USUAL)}"
    for name, value in fields.items():
        do = advice(name, [*known, *also], theirs=THEIR_WORDS, value=value, otherwise=usual)
        raise ConfigError(f"a recipe has no field {name!r}; {do}")


def in_our_words(changes: Mapping[str, Any]) -> dict[str, Any]:
    """The changes by our names: {"epochs": 5, "lr": 0.1} is {"length": "5 epochs", "peak_lr": 0.1}."""
    ours = {each.name for each in options_of(Recipe())}
    found: dict[str, Any] = {}
    given: dict[str, str] = {}  # by field: the name that gave it
    for name, value in changes.items():
        field, new = name, value
        theirs = "" if name in ours else THEIR_WORDS.get(name, "")
        if "{}" in theirs or (theirs and value is True):  # ema=True
            field, _, form = theirs.partition("=")
            new = value if form == "{}" else form.strip('"').format(value)
        if field in found:
            raise ConfigError(f"{field} is given twice, by {given[field]} and by {name}; give one")
        found[field], given[field] = new, name
    return found


def from_json(data: Any) -> Recipe:
    """The recipe that `to_json` wrote."""
    rest = json_object(data, "a recipe")
    augment = read_json(Augment, rest.pop("augment", {}), "the recipe's augmentation")
    return Recipe(augment=augment).change(**rest)
