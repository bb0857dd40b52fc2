"""A run as it goes: one live line on a terminal, plain lines elsewhere. All on stderr."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from vitreous.cli.show import say
from vitreous.printable import printable
from vitreous.words import duration

if TYPE_CHECKING:
    from rich.console import Console

Tell = Callable[[dict[str, Any]], None]
SILENCE = 10.0  # seconds between plain lines
WIDE, BAR = 100, 20  # columns of a terminal that has room for a bar, and of the bar


@contextmanager
def display() -> Iterator[Tell]:
    """Yield what `fit` tells its events to."""
    if not sys.stderr.isatty():
        yield _Plain()
        return
    live = _Live()
    try:
        yield live
    finally:
        live.close()


class _Plain:
    """Lines for logs: what is decided, looks at dev, and now and then a step."""

    def __init__(self) -> None:
        self.last = 0.0
        self.flops, self.device = 0.0, None

    def __call__(self, event: dict[str, Any]) -> None:
        kind = event["kind"]
        if kind == "plan":
            self.flops, self.device = event["flops"], event["device"]
        elif kind == "step":
            now = time.monotonic()
            if event["step"] == event["steps"] or now - self.last >= SILENCE:
                self.last = now
                say(_step(event, self.flops, self.device), file=sys.stderr)
        elif (line := _line(event)) is not None:
            say(line, file=sys.stderr)


class _Live:
    """A bar that moves, with the lines above it.  console: stderr, where none is given."""

    def __init__(self, console: Console | None = None) -> None:
        from rich import console as consoles
        from rich.progress import BarColumn, Progress, TextColumn

        self.console = console or consoles.Console(stderr=True, highlight=False, soft_wrap=False)
        self.has_bar = self.console.width >= WIDE
        bar = [BarColumn(bar_width=BAR)] if self.has_bar else []
        self.bars = Progress(
            *bar, TextColumn("{task.fields[line]}", markup=False), console=self.console, transient=True
        )
        self.tasks: dict[str, Any] = {}
        self.began: dict[str, float] = {}
        self.flops, self.device = 0.0, None
        self.bars.start()

    def __call__(self, event: dict[str, Any]) -> None:
        kind = event["kind"]
        if kind == "plan":
            self.flops, self.device = event["flops"], event["device"]
        elif kind in ("checking", "features"):
            done, total = event["done"], event["total"]
            now = time.monotonic()
            spent = now - self.began.setdefault(kind, now)
            left = spent / done * (total - done) if done and spent else None
            self._move(kind, done / max(total, 1), left, [f"{kind} {done:,}/{total:,}"])
            if done >= total:
                self._end(kind)
        elif kind == "step":
            self._take_step(event)
        else:
            if kind in ("patience", "trial"):  # a stage may end before its last step
                self._end(event.get("stage"))
            if (line := _line(event)) is not None:
                self.console.print(printable(line), markup=False)

    def close(self) -> None:
        self.bars.stop()

    def _take_step(self, event: dict[str, Any]) -> None:
        stage, step, steps = event["stage"], event["step"], event["steps"]
        for other in [name for name in self.tasks if name != stage]:
            self._end(other)
        place = [f"training {event['stage_number']} of {event['stages']}"] if "stages" in event else []
        head = f"step {step:,}/{steps:,}" if place else f"{stage} step {step:,}/{steps:,}"
        parts = [*place, head, *_parts(event, self.flops, self.device)]
        self._move(stage, event.get("run_share", step / max(steps, 1)), _left(event), parts)
        if step >= steps:
            self.console.print(printable(_step(event, self.flops, self.device)), markup=False)
            self._end(stage)

    def _move(self, name: str, share: float, left: float | None, parts: list[str]) -> None:
        room = self.console.width - (BAR + 1 if self.has_bar else 0)
        line = _fitted(share, left, parts, room)
        if name not in self.tasks:
            self.tasks[name] = self.bars.add_task(name, total=1.0, line=line)
        self.bars.update(self.tasks[name], completed=share, line=line)

    def _end(self, name: str | None) -> None:
        if name is not None and name in self.tasks:
            self.began.pop(name, None)
            self.bars.remove_task(self.tasks.pop(name))


def _fitted(share: float, left: float | None, parts: list[str], width: int) -> str:
    """Share and time left, and as many of the parts as there is room for, the first ones first."""
    line = f"{100 * share:3.0f} %" + ("" if left is None else f", {duration(left)} left")
    for part in parts:
        if len(line) + 2 + len(part) > width:
            break
        line += f", {part}"
    return line


def _line(event: dict[str, Any]) -> str | None:
    match event["kind"]:
        case "say" | "note":
            return str(event["text"])
        case "dev":
            mark = " (kept so far)" if event.get("kept", event["best"]) else ""
            right = f"dev {100 * event['accuracy']:.1f} % right, loss {event['loss']:.3f}{mark}"
            return f"{event['stage']}: epoch {event['epoch']:.1f}, {right}"
        case "steps":
            return f"{event['budget']:g} seconds are {event['steps']:,} steps of {1e3 * event['seconds_each']:.1f} ms"
        case "memory":
            return (
                f"the batch does not fit into memory: it is taken in {event['parts']} parts of "
                f"{event['micro_batch']} images; the numbers stay the same"
            )
        case "solved":
            return (
                f"solved in {duration(event['seconds'])}: l2 {event['l2']:g} of {event['tried']} tried, "
                f"{event['right']:,} of {event['images']:,} right when left out"
            )
        case "trial" if "accuracy" in event:  # of one that failed a line was said
            right = f"dev {100 * event['accuracy']:.1f} % right, loss {event['loss']:.3f}"
            return f"rate {event['rate']:.3g}: {right} at step {event['step']:,}"
        case "nan":
            return _not_finite(event)
        case "patience":
            return f"no gain on dev in {event['looks']} looks: the run ends at step {event['step']:,}"
    return None


def _not_finite(event: dict[str, Any]) -> str:
    """What it is that is no number: of a step, or what a step has left."""
    what, step = event.get("what", "loss or gradient"), event["step"]
    if what == "loss or gradient":
        return f"the {what} of step {step} is not finite"
    first = f" ({event['weight']} first)" if event.get("weight") else ""
    return f"the {what} after step {step} are not finite, or too large to compute with{first}"


def _step(event: dict[str, Any], flops: float, device: str | None) -> str:
    place = f", training {event['stage_number']} of {event['stages']}" if "stages" in event else ""
    head = f"{event['stage']}{place}: step {event['step']:,} of {event['steps']:,}"
    left = _left(event)
    rest = "" if left is None else f", about {duration(left)} left"
    return f"{head}, {_numbers(event, flops, device)}{rest}"


def _left(event: dict[str, Any]) -> float | None:
    """Seconds until the last training of the run ends; None at its first step, of which none is known, and its last."""
    if "stages" in event:
        return event["run_seconds_left"] or None
    return event["seconds_left"] if 1 < event["step"] < event["steps"] else None


def _numbers(event: dict[str, Any], flops: float, device: str | None) -> str:
    return ", ".join(_parts(event, flops, device))


def _parts(event: dict[str, Any], flops: float, device: str | None) -> list[str]:
    """The numbers of a step, what people look at most first."""
    from vitreous.training.run.utilisation import share_of_peak

    rate = event["images_per_second"]
    parts = [
        f"epoch {event['epoch']:.1f}",
        f"loss {event['loss']:.3f}",
        f"{100 * event['accuracy']:.0f} % right",
        f"lr {event['lr']:.1e}",
        f"{rate:,.0f} images/s",
    ]
    if event.get("memory"):
        parts.append(f"{event['memory'] / 2**30:.1f} GiB")
    share = share_of_peak(rate * flops, device) if device else None
    if share is not None:
        parts.append(f"MFU {100 * share:.0f} %")
    return parts


def recipes_table(*, json: bool) -> None:
    """Every recipe, for people or machines."""
    from vitreous.cli.show import show
    from vitreous.training import recipes

    rows = recipes.rows()
    if json:
        show("fit", {"recipes": [vars(row) for row in rows]}, json=True)
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for head in ("recipe", "what it is", "source"):
        table.add_column(head, overflow="fold")
    for row in rows:
        table.add_row(row.name, row.about, row.source)
    Console(highlight=False).print(table)
