"""What happens in a run: one struct for each kind of event. `str(event)` is its line for the terminal, if it has one.

`fit` gives every event to `tell`. Those of a stage are also lines of events.jsonl, whose keys are the fields here.
A newcomer sees facts, and what went wrong; `--verbose` also shows the details (`is_detail`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import nan
from typing import Any, ClassVar, Literal

import msgspec
from msgspec import UNSET, UnsetType

from vitreous.errors import DataError
from vitreous.printable import printable_line
from vitreous.words import duration

LOSS_OR_GRADIENT = "loss or gradient"
MAX_REPLACED_TOLD = 3  # unreadable images named at a time
FACT_INDENT = 9  # columns before the text of a fact


class Event(msgspec.Struct, frozen=True, tag_field="kind"):
    """An event reads like a mapping too: event["loss"], event.get("text"), {**event}; `kind` comes first."""

    is_detail: ClassVar[bool] = True  # shown only with --verbose

    def to_json(self) -> dict[str, Any]:
        fields = {name: getattr(self, name) for name in self.__struct_fields__}
        given = {name: value for name, value in fields.items() if value is not UNSET}
        return {"kind": self.__struct_config__.tag, **given}

    def __getitem__(self, name: str) -> Any:
        return self.to_json()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.to_json())

    def __len__(self) -> int:
        return len(self.to_json())

    def values(self) -> Iterable[Any]:
        return self.to_json().values()

    def keys(self) -> Iterable[str]:
        return self.to_json().keys()

    def items(self) -> Iterable[tuple[str, Any]]:
        return self.to_json().items()

    def get(self, name: str, default: Any = None) -> Any:
        return self.to_json().get(name, default)

    def __str__(self) -> str:
        return ""


# ------------------------------------------------------------------------------------------------------- told, not kept


class Fact(Event, frozen=True, tag="fact"):
    """One line for a newcomer, who reads ten of them in all."""

    is_detail: ClassVar[bool] = False

    about: str = ""  # one short word, such as found or plan
    text: str = ""
    tone: Literal["plain", "warn", "bad"] = "plain"

    def __str__(self) -> str:
        return f"{self.about:<{FACT_INDENT}}{printable_line(self.text)}"


class Said(Event, frozen=True, tag="say"):
    """A line for people who want to know more."""

    text: str = ""

    def __str__(self) -> str:
        return self.text


class Noted(Event, frozen=True, tag="note"):
    """A line about something that went wrong and was fixed."""

    is_detail: ClassVar[bool] = False

    text: str = ""

    def __str__(self) -> str:
        return self.text


def about_replaced(new: Sequence[tuple[str, str]], total: int) -> Iterator[str]:
    """Lines about images that could not be read since the last lines, by name and reason.  total: of all so far."""
    if len(new) <= MAX_REPLACED_TOLD:
        yield from (f"{name} cannot be read ({why}); another image is shown in its place" for name, why in new)
        return
    name, why = new[0]
    yield (
        f"{len(new):,} images cannot be read, such as {name} ({why}); others are shown in their place, "
        f"for {total:,} images so far"
    )


class ProgressMade(Event, frozen=True):
    """`done` of `total` images are done."""

    doing: ClassVar[str] = ""  # one word for people

    done: int = 0
    total: int = 0


class Checking(ProgressMade, frozen=True, tag="checking"):
    """Images are checked."""

    doing: ClassVar[str] = "checking"


class FeaturesRead(ProgressMade, frozen=True, tag="features"):
    """Frozen features of images are read."""

    doing: ClassVar[str] = "reading"


class Working(Event, frozen=True, tag="working"):
    """Something without a count is in progress, for the live line."""

    text: str = ""


class PlanMade(Event, frozen=True, tag="plan"):
    """What the display needs for the share of a GPU's arithmetic."""

    flops: float = 0.0  # of training on one image
    device: str | None = None  # the GPU's name


class RunEnded(Event, frozen=True, tag="end"):
    path: str = ""


# --------------------------------------------------------------------------------------------------------- bookkeeping


class RunStarted(Event, frozen=True, tag="start"):
    """The first line of a run.  waited: seconds, from the command's start to this line."""

    waited: float | UnsetType = UNSET


class StateSaved(Event, frozen=True, tag="save"):
    stage: str = "fit"
    step: int = 0


class StateRestored(Event, frozen=True, tag="restore"):
    """Lines from number `events` to `since`, or to this one, no longer count.

    Older runs counted no lines: what `stage` did after `step` no longer counts.
    """

    stage: str | UnsetType = UNSET
    step: int | UnsetType = UNSET
    events: int | UnsetType = UNSET
    since: int | UnsetType = UNSET


# ------------------------------------------------------------------------------------------------------------- a stage


class StageEvent(Event, frozen=True):
    """An event of one training: a fold, a trial of a sweep, or the only one."""

    stage: str = "fit"


class StepLogged(StageEvent, frozen=True, tag="step"):
    """Means over the steps since the last such event."""

    step: int = 0  # the last one
    steps: int = 0  # in all
    epoch: float = nan
    loss: float = nan
    accuracy: float = nan
    lr: float = nan
    norm: float = nan  # of the gradients before clipping
    images_per_second: float = nan
    seconds_left: float = nan
    memory: int | None = None  # peak bytes of a GPU

    @property
    def place(self) -> str:
        """Which training of the run this is, if there are several."""
        return ""

    @property
    def share(self) -> float:
        """How much of the run is done, 0 to 1."""
        return self.step / max(self.steps, 1)

    @property
    def run_left(self) -> float | None:
        """Seconds until the run's last step; None at the first step, before any is timed, and at the last."""
        return self.seconds_left if 1 < self.step < self.steps else None

    def numbers(self, utilisation: float | None = None) -> list[str]:
        """What people look at most comes first.  utilisation: of a GPU's arithmetic (MFU), 0 to 1."""
        parts = [
            f"epoch {self.epoch:.1f}",
            f"loss {self.loss:.3f}",
            f"train {100 * self.accuracy:.0f} % right",
            f"lr {self.lr:.1e}",
            f"{self.images_per_second:,.0f} images/s",
        ]
        parts += [f"{self.memory / 2**30:.1f} GiB"] if self.memory else []
        return parts + ([] if utilisation is None else [f"MFU {100 * utilisation:.0f} %"])

    def line(self, utilisation: float | None = None) -> str:
        place = f", {self.place}" if self.place else ""
        left = "" if self.run_left is None else f", about {duration(self.run_left)} left"
        numbers = ", ".join(self.numbers(utilisation))
        return f"{self.stage}{place}: step {self.step:,} of {self.steps:,}, {numbers}{left}"

    def __str__(self) -> str:
        return self.line()


class StepOfSeveral(StepLogged, frozen=True, tag="step"):
    """A step in a run of several trainings, with its place among them."""

    stage_number: int = 1
    stages: int = 1
    run_share: float = nan
    run_seconds_left: float | None = None

    @property
    def place(self) -> str:
        return f"training {self.stage_number} of {self.stages}"

    @property
    def share(self) -> float:
        return self.run_share

    @property
    def run_left(self) -> float | None:
        return self.run_seconds_left or None


class DevLooked(StageEvent, frozen=True, tag="dev"):
    """The averaged weights were judged on dev."""

    step: int = 0
    epoch: float = nan
    accuracy: float = nan
    loss: float = nan
    best: bool = False  # the highest accuracy so far
    kept: bool | UnsetType = UNSET  # older runs kept the best

    @property
    def is_kept(self) -> bool:
        return self.best if isinstance(self.kept, UnsetType) else self.kept

    def __str__(self) -> str:
        mark = " (kept so far)" if self.is_kept else ""
        return (
            f"{self.stage}: epoch {self.epoch:.1f}, dev {100 * self.accuracy:.1f} % right, loss {self.loss:.3f}{mark}"
        )


class PatienceEnded(StageEvent, frozen=True, tag="patience"):
    step: int = 0
    looks: int = 0  # at dev without a gain

    def __str__(self) -> str:
        return f"no gain on dev in {self.looks} looks: the run ends at step {self.step:,}"


class StepsFixed(StageEvent, frozen=True, tag="steps"):
    """A time in seconds became a number of steps."""

    steps: int = 0
    seconds_each: float = nan
    budget: float = nan  # seconds

    def __str__(self) -> str:
        return f"{self.budget:g} seconds are {self.steps:,} steps of {1e3 * self.seconds_each:.1f} ms"


class MemorySplit(StageEvent, frozen=True, tag="memory"):
    """The batch did not fit into memory and is taken in parts."""

    parts: int = 1
    micro_batch: int = 0  # images of a part

    def __str__(self) -> str:
        return (
            f"the batch does not fit into memory: it is taken in {self.parts} parts of "
            f"{self.micro_batch} images; the numbers stay the same"
        )


class NotFinite(StageEvent, frozen=True, tag="nan"):
    """A step broke the loss or the gradient, or left weights or answers that are not finite."""

    is_detail: ClassVar[bool] = False

    step: int = 0
    what: str = LOSS_OR_GRADIENT
    weight: str | UnsetType | None = UNSET  # the first one that is not finite
    batch: str | None = None  # the file that keeps the images of the step

    @property
    def is_of_step(self) -> bool:
        """The weights before the step are still good."""
        return self.what == LOSS_OR_GRADIENT

    def __str__(self) -> str:
        if self.is_of_step:
            return f"the {self.what} of step {self.step} is not finite"
        first = f" ({self.weight} first)" if self.weight else ""
        return f"the {self.what} after step {self.step} are not finite, or too large to compute with{first}"


class TrialEnded(StageEvent, frozen=True, tag="trial"):
    """One learning rate of a sweep, judged on dev."""

    rate: float = nan
    accuracy: float = nan
    loss: float = nan
    step: int = 0  # at which dev was best
    is_kept: bool = False

    def __str__(self) -> str:
        right = f"dev {100 * self.accuracy:.1f} % right, loss {self.loss:.3f}"
        return f"rate {self.rate:.3g}: {right} at step {self.step:,}"


class TrialFailed(StageEvent, frozen=True, tag="trial"):
    """A learning rate that broke the loss; `Said` tells people about it."""

    rate: float = nan
    failed: bool = True


class HeadSolved(StageEvent, frozen=True, tag="solved"):
    """The head was solved in closed form."""

    l2: float = nan
    tried: int = 0  # penalties
    right: int = 0  # images named rightly when left out
    images: int = 0
    rounds: int = 0  # in which images were left out
    copies: int = 0  # images that have copies, left out together
    seconds: float = nan

    def __str__(self) -> str:
        return (
            f"solved in {duration(self.seconds)}: l2 {self.l2:g} of {self.tried} tried, "
            f"{self.right:,} of {self.images:,} right when left out"
        )


# ---------------------------------------------------------------------------------------------------------- from a line

_KINDS: dict[Any, type[Event]] = {
    kind.__struct_config__.tag: kind
    for kind in (
        *(
            Fact,
            Said,
            Noted,
            Checking,
            FeaturesRead,
            Working,
            PlanMade,
            RunEnded,
            RunStarted,
            StateSaved,
            StateRestored,
        ),
        *(StepLogged, DevLooked, PatienceEnded, StepsFixed, MemorySplit, NotFinite, TrialEnded, HeadSolved),
    )
}


def from_json(record: Mapping[str, Any]) -> Event | None:
    """The event of a line, of any version; None for a kind that we do not know. A missing value has its default."""
    kind = _KINDS.get(record["kind"])
    if kind is None:
        return None
    if kind is StepLogged and "stages" in record:
        kind = StepOfSeveral
    if kind is TrialEnded and record.get("failed"):
        kind = TrialFailed
    given = {name: value for name, value in record.items() if value is not None}
    try:
        return msgspec.convert(given, kind, strict=False)
    except msgspec.ValidationError as error:
        raise DataError(f"a line of events.jsonl does not fit: {error}; delete that line") from None


def known(records: Iterable[Mapping[str, Any]]) -> list[Event]:
    return [event for event in map(from_json, records) if event is not None]
