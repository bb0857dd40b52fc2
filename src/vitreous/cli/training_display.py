"""A run as it goes, on stderr: facts above one live line on a terminal, plain lines elsewhere; then its result."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from textwrap import wrap
from typing import TYPE_CHECKING, Any

from vitreous.cli.show import say
from vitreous.printable import printable, printable_line
from vitreous.training.run import events
from vitreous.training.run.plain_lines import PlainLines, utilisation
from vitreous.words import duration

if TYPE_CHECKING:
    from rich.console import Console

Tell = Callable[[events.Event], None]
WIDE, BAR = 100, 20  # columns of a terminal that has room for a bar, and of the bar
TONE_STYLES = {"plain": "", "warn": "yellow", "bad": "bold red"}  # of a fact's text


@contextmanager
def display(*, verbose: bool = False) -> Iterator[Tell]:
    """Yield what `fit` tells its events to.  verbose: with details."""
    if not sys.stderr.isatty():
        yield PlainLines(verbose=verbose)
        return
    live = _Live(verbose=verbose)
    try:
        yield live
    finally:
        live.close()


def tell_result(told: Iterable[events.Event], *, verbose: bool = False) -> None:
    """The end of a run, on stdout."""
    from rich.console import Console

    console = Console(highlight=False) if sys.stdout.isatty() else None
    for event in told:
        if verbose or not event.is_detail:
            _print(event, console) if console else say(str(event))


def _print(event: events.Event, console: Console) -> None:
    """The event's line, if it has one; a fact's further lines stand under its first, and no link is broken."""
    from rich.text import Text

    if not isinstance(event, events.Fact):
        if line := str(event):
            console.print(printable(line), markup=False)
        return
    start, room = f"{event.about:<{events.FACT_INDENT}}", max(console.width - events.FACT_INDENT, 1)
    for line in wrap(printable_line(event.text), room, break_long_words=False, break_on_hyphens=False):
        console.print(Text.assemble((start, "bold"), (line, TONE_STYLES[event.tone])), soft_wrap=True)
        start = " " * events.FACT_INDENT


class _Live:
    """A bar that moves, with the lines above it.  console: stderr, where none is given."""

    def __init__(self, console: Console | None = None, *, verbose: bool = False) -> None:
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
        self.plan = events.PlanMade()
        self.verbose = verbose
        self.bars.start()

    def __call__(self, event: events.Event) -> None:
        match event:
            case events.PlanMade():
                self.plan = event
            case events.ProgressMade():
                self._count(event)
            case events.StepLogged():
                self._take_step(event)
            case events.Working():
                self._end_others(event["kind"])
                self.tasks[event["kind"]] = self.bars.add_task("", total=None, line=event.text)
            case events.RunEnded():
                self._end_others("")
            case _:
                if isinstance(event, events.PatienceEnded | events.TrialEnded | events.TrialFailed):
                    self._end(event.stage)  # it may end before its last step
                if self.verbose or not event.is_detail:
                    _print(event, self.console)

    def close(self) -> None:
        self.bars.stop()

    def _count(self, event: events.ProgressMade) -> None:
        kind, now = event["kind"], time.monotonic()
        spent = now - self.began.setdefault(kind, now)
        left = spent / event.done * (event.total - event.done) if event.done and spent else None
        self._move(kind, event.done / max(event.total, 1), left, [f"{event.doing} {event.done:,}/{event.total:,}"])
        if event.done >= event.total:
            self._end(kind)

    def _take_step(self, event: events.StepLogged) -> None:
        self._end_others(event.stage)
        of_peak, step = utilisation(event, self.plan), f"step {event.step:,}/{event.steps:,}"
        place = [event.place, step] if event.place else [f"{event.stage} {step}"]
        self._move(event.stage, event.share, event.run_left, [*place, *event.numbers(of_peak)])
        if event.step >= event.steps:
            if self.verbose:
                self.console.print(printable(event.line(of_peak)), markup=False)
            self._end(event.stage)

    def _move(self, name: str, share: float, left: float | None, parts: list[str]) -> None:
        room = self.console.width - (BAR + 1 if self.has_bar else 0)
        line = _fitted(share, left, parts, room)
        if name not in self.tasks:
            self.tasks[name] = self.bars.add_task(name, total=1.0, line=line)
        self.bars.update(self.tasks[name], completed=share, line=line)

    def _end_others(self, than: str) -> None:
        for name in [name for name in self.tasks if name != than]:
            self._end(name)

    def _end(self, name: str) -> None:
        if name in self.tasks:
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
