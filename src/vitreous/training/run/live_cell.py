"""A run as it goes, in a notebook: one cell that is written again, as HTML and as plain text.

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
from vitreous.training.run.events import Event, PatienceEnded, ProgressMade, RunEnded, StepLogged
from vitreous.words import duration

MAX_CELL_LINES = 10
SECONDS_BETWEEN = 0.2  # a browser draws no faster, and training need not wait for it


def notebook_shell() -> Any:
    """IPython's shell if a notebook's kernel runs us; None in a terminal, a script or a test."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return shell if hasattr(shell, "kernel") else None


class LiveCell:
    """What `fit` tells its events to: the last lines, and a bar that moves."""

    def __init__(self) -> None:
        self.lines: deque[str] = deque(maxlen=MAX_CELL_LINES)
        self.bar: tuple[float, str] | None = None  # share done, and words
        self.last = -SECONDS_BETWEEN
        self.handle: Any = None

    def __call__(self, event: Event) -> None:
        is_end = isinstance(event, RunEnded)
        match event:
            case ProgressMade():
                self.bar = event.done / max(event.total, 1), f"{event['kind']} {event.done:,} of {event.total:,}"
                is_end = event.done >= event.total
            case StepLogged():
                self.bar = event.share, self._words(event)
                is_end = event.step >= event.steps
            case _:
                if isinstance(event, RunEnded | PatienceEnded):
                    self.bar = None
                line = str(event)
                if not line or getattr(event, "is_detail", False):
                    self._draw() if is_end else None
                    return
                self.lines.append(printable_line(line))
                is_end = True
        if is_end or time.monotonic() - self.last >= SECONDS_BETWEEN:
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
        bar = [] if self.bar is None else [f"{100 * self.bar[0]:.0f} %  {self.bar[1]}"]
        return "\n".join([*self.lines, *bar])

    def html(self) -> str:
        """Everything is escaped: names of classes and files come from strangers."""
        lines = "<br>".join(map(escape, self.lines))
        if self.bar is None:
            return f"<div>{lines}</div>"
        share, words = self.bar
        bar = f'<progress max="1" value="{share:.4f}" style="width:16em"></progress> {100 * share:.0f} %'
        return f"<div>{lines}<br>{bar}, {escape(words)}</div>"
