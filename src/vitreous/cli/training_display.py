"""A run as it goes: one live line on a terminal, plain lines elsewhere. All on stderr."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["display", "recipes_table"]

Tell = Callable[[dict[str, Any]], None]
SILENCE = 10.0  # seconds between plain lines


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
                print(_step(event, self.flops, self.device), file=sys.stderr, flush=True)
        elif (line := _line(event)) is not None:
            print(line, file=sys.stderr, flush=True)


class _Live:
    """A bar that moves, with the lines above it."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        self.console = Console(stderr=True, highlight=False, soft_wrap=False)
        columns = (
            TextColumn("{task.fields[stage]}"),
            BarColumn(bar_width=20),
            TextColumn("{task.percentage:>3.0f}%"),
            TimeRemainingColumn(elapsed_when_finished=True),
            TextColumn("{task.fields[numbers]}"),
        )
        self.bars = Progress(*columns, console=self.console, transient=True)
        self.tasks: dict[str, Any] = {}
        self.flops, self.device = 0.0, None
        self.bars.start()

    def __call__(self, event: dict[str, Any]) -> None:
        kind = event["kind"]
        if kind == "plan":
            self.flops, self.device = event["flops"], event["device"]
        elif kind in ("checking", "features"):
            self._move(kind, event["done"], event["total"], "")
            if event["done"] >= event["total"]:
                self._end(kind)
        elif kind == "step":
            self._move(event["stage"], event["step"], event["steps"], _numbers(event, self.flops, self.device))
            if event["step"] >= event["steps"]:
                self.console.print(_step(event, self.flops, self.device))
                self._end(event["stage"])
        elif (line := _line(event)) is not None:
            self.console.print(line, markup=False)

    def close(self) -> None:
        self.bars.stop()

    def _move(self, name: str, done: int, total: int, numbers: str) -> None:
        if name not in self.tasks:
            self.tasks[name] = self.bars.add_task(name, total=total, stage=name, numbers="")
        self.bars.update(self.tasks[name], completed=done, total=total, numbers=numbers)

    def _end(self, name: str) -> None:
        self.bars.remove_task(self.tasks.pop(name))


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
                f"solved in {_time(event['seconds'])}: l2 {event['l2']:g} of {event['tried']} tried, "
                f"{event['right']:,} of {event['images']:,} right when left out"
            )
        case "trial" if "accuracy" in event:  # of one that failed a line was said
            right = f"dev {100 * event['accuracy']:.1f} % right, loss {event['loss']:.3f}"
            return f"rate {event['rate']:.3g}: {right} at step {event['step']:,}"
        case "nan":
            return f"the loss or gradient of step {event['step']} is not finite"
        case "patience":
            return f"no gain on dev in {event['looks']} looks: the run ends at step {event['step']:,}"
    return None


def _step(event: dict[str, Any], flops: float, device: str | None) -> str:
    head = f"{event['stage']}: step {event['step']:,} of {event['steps']:,}"
    left = f", about {_time(event['seconds_left'])} left" if 1 < event["step"] < event["steps"] else ""
    return f"{head}, {_numbers(event, flops, device)}{left}"


def _time(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 100 * 60 else f"{seconds / 3600:.1f} h"


def _numbers(event: dict[str, Any], flops: float, device: str | None) -> str:
    from vitreous.training import budget

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
    share = budget.share(rate * flops, device) if device else None
    if share is not None:
        parts.append(f"MFU {100 * share:.0f} %")
    return ", ".join(parts)


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
