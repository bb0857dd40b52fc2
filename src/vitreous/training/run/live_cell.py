"""A run in progress, in a notebook: one cell that is rewritten, as HTML and as plain text.

`IPython.display` is asked for by name when a notebook runs us; nothing here needs IPython to be installed.
"""

from __future__ import annotations

import sys
import time
from collections import deque
from html import escape
from importlib import import_module
from typing import Any

from vitreous.printable import printable_line
from vitreous.training.run.events import Event, Fact, ProgressMade, RunEnded, StepLogged, Working
from vitreous.words import duration

MAX_CELL_LINES = 10
SECONDS_BETWEEN = 0.2  # a browser draws no faster, and training need not wait for it


def notebook_shell() -> Any:
    """IPython's shell if a notebook's kernel runs us; None in a terminal, a script or a test."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return shell if hasattr(shell, "kernel") else None


class LiveCell:
    """Listens to the events of `fit` and shows the last lines and a moving bar."""

    def __init__(self) -> None:
        self.lines: deque[Event] = deque(maxlen=MAX_CELL_LINES)
        self.bar: tuple[float | None, str] | None = None  # share done if it is counted, and words
        self.last = -SECONDS_BETWEEN
        self.handle: Any = None

    def __call__(self, event: Event) -> None:
        is_due = time.monotonic() - self.last >= SECONDS_BETWEEN
        match event:
            case ProgressMade():
                self.bar = event.done / max(event.total, 1), f"{event.doing} {event.done:,} of {event.total:,} images"
                is_due |= event.done >= event.total
            case StepLogged():
                self.bar = event.share, self._words(event)
                is_due |= event.step >= event.steps
            case Working():
                self.bar, is_due = (None, event.text), True
            case RunEnded():
                self.bar, is_due = None, True
            case _ if str(event) and not event.is_detail:
                self.lines.append(event)
                is_due = True
            case _:
                return
        if is_due:
            self._draw()

    def _words(self, event: StepLogged) -> str:
        left = [] if event.run_left is None else [f"about {duration(event.run_left)} left"]
        place = [event.place] if event.place else []
        return ", ".join([*place, f"step {event.step:,} of {event.steps:,}", *left, *event.numbers()])

    def _draw(self) -> None:
        self.last = time.monotonic()
        bundle = {"text/plain": self.plain(), "text/html": self.html()}
        if self.handle is None:
            display: Any = import_module("IPython.display").display
            self.handle = display(bundle, raw=True, display_id=True)
        else:
            self.handle.update(bundle, raw=True)

    def plain(self) -> str:
        share, words = self.bar or (None, "")
        done = "" if share is None else f"{100 * share:.0f} %, "
        return "\n".join([*(printable_line(str(line)) for line in self.lines), *([done + words] if words else [])])

    def html(self) -> str:
        """Everything is escaped: names of classes and files come from strangers."""
        rows = [_line(line) for line in self.lines]
        if self.bar is not None:
            share, words = self.bar
            value, done = ("", "") if share is None else (f' value="{share:.4f}"', f"{100 * share:.0f} %, ")
            rows.append(f'<progress max="1"{value} style="width:16em"></progress> {done}{escape(words)}')
        return f"<div>{'<br>'.join(rows)}</div>"


def _line(event: Event) -> str:
    if isinstance(event, Fact):
        return f"<b>{escape(event.about)}</b> {escape(printable_line(event.text))}"
    return escape(printable_line(str(event)))
